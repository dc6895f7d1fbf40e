"""The reference of the command line, which is made of the commands themselves."""

from pathlib import Path

import click

from tools.docs_hook import on_page_markdown
from zarr_dask.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def commands(command, name="zarr-dask"):
    yield name, command
    for below in getattr(command, "commands", {}).values():
        yield from commands(below, f"{name} {below.name}")


def test_every_command_and_option_is_in_the_reference():
    page = on_page_markdown(PAGE.read_text(encoding="utf-8"))
    assert "<!-- commands -->" not in page
    for name, command in commands(main):
        heading = f"\n{'#' * (name.count(' ') + 2)} {name}\n"
        assert heading in page
        section = page.partition(heading)[2].partition("\n## ")[0]
        own = [
            param
            for param in command.params
            if isinstance(param, click.Option)
            and (command is main or not str(param.name).startswith("setting_"))
        ]
        for param in own:
            assert param.opts[0] in section, (name, param.opts)
            assert param.help, (name, param.opts)
            assert param.help.rstrip().endswith("."), (name, param.help)


def test_help_begins_with_a_verb_or_a_noun():
    for name, command in commands(main):
        for text in [command.help, *(getattr(param, "help", None) for param in command.params)]:
            first = (text or "").split(maxsplit=1)[:1]
            assert first not in (["What"], ["Whether"], ["How"], ["Where"], ["Which"], ["Who"]), (
                name,
                text,
            )
