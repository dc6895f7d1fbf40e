"""Options of every command, given before or after its name.

`add_settings` gives a command those options that it does not declare itself. `settings` returns
their values while a command runs, `storage_options` those of the stores it opens.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

import zarr_dask as zd
from zarr_dask._util.display import escape_control_chars
from zarr_dask.errors import ZarrDaskError
from zarr_dask.stores.open import BACKEND
from zarr_dask.stores.option_mapping import SCHEMES, WEB
from zarr_dask.stores.secrets import public_options

__all__ = [
    "COMMAND",
    "Settings",
    "ToStandardError",
    "add_settings",
    "is_remote",
    "settings",
    "storage_options",
    "two_storage_options",
]

COMMAND = "zarr_dask.command"
"""The key of the name of the command that runs, among what contexts share."""
_META = "zarr_dask.settings"
_LOGGER = "zarr_dask"


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the options of every command."""

    as_json: bool = False
    """Print one JSON object, and nothing else, on standard output."""
    quiet: bool = False
    """Print nothing but errors, and JSON if it is requested."""
    verbose: int = 0
    """1 to log what happens, 2 to log every repeated request as well."""
    traceback: bool = False
    """Show where in Python an error arose."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of object stores and web servers."""
    target_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the target, where they differ."""
    of_buckets: Mapping[str, Any] = field(default_factory=dict)
    """Options that only object stores have, such as the region."""
    backend: str | None = None
    """Library for URLs of object stores."""

    def store_words(self) -> list[str]:
        """Return the options of stores as words of a command, for another process.

        Raises
        ------
        click.UsageError
            If one is a credential, which others could read on a command line.
        """
        given = ({name: value} for name, value in self.options.items())
        if hidden := [name for one in given if public_options(one) != one for name in one]:
            raise click.UsageError(
                f"--storage-option {', '.join(sorted(hidden))}: a credential does not belong in a "
                "script, where others can read it. Leave it in the environment of the jobs, or in "
                "the files of the service."
            )
        words = [] if self.backend is None else ["--backend", self.backend]
        for name, value in self.of_buckets.items():
            words += [_flags({name: value})] if value is True else [_flags({name: value}), value]
        for name, value in self.options.items():
            text = value if isinstance(value, str) else json.dumps(value)
            words += ["--storage-option", f"{name}={text}"]
        return words


def settings() -> Settings:
    """Return the settings of the command that runs; the defaults outside of one."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.meta.get(_META)
    return found if isinstance(found, Settings) else Settings()


def storage_options(url: str) -> dict[str, Any] | None:
    """Return the options of the store at a path or URL; None if there are none.

    Raises
    ------
    click.UsageError
        If options are given, and the location is a local one, which has none of them.
    """
    return two_storage_options(url, None)[0]


def two_storage_options(
    source: str, target: str | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the options of source and target; those for all stores hold for both.

    Raises
    ------
    click.UsageError
        If options are given that none of the locations has a use for.
    """
    given = settings()
    places = [source] if target is None else [source, target]
    for flags, fits, where in (
        ("--storage-option" * bool(given.options), map(is_remote, places), "at a URL"),
        (_flags(given.of_buckets), map(_is_bucket, places), "in an object store"),
        ("--target-option" * bool(given.target_options), map(is_remote, places[1:]), "at a URL"),
    ):
        if flags and not any(fits):
            shown = ", ".join(map(escape_control_chars, places))
            what = "target" if flags == "--target-option" else "location"
            raise click.UsageError(f"{flags} is for a {what} {where}, unlike {shown}.")
    own = {} if target is None else dict(given.target_options)
    return _options(source, given, {}), None if target is None else _options(target, given, own)


def _options(url: str, given: Settings, own: Mapping[str, Any]) -> dict[str, Any] | None:
    if not is_remote(url):
        return None
    return {**(given.of_buckets if _is_bucket(url) else {}), **given.options, **own} or None


def _flags(options: Mapping[str, Any]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in options)


def is_remote(url: str) -> bool:
    """True for a URL of an object store or a server, which may take options."""
    return "::" in url or ("://" in url and not url.startswith("file://"))


def _is_bucket(url: str) -> bool:
    scheme = url.rpartition("::")[2].partition("://")[0]
    return is_remote(url) and scheme in SCHEMES and scheme not in WEB


# --- the options ----------------------------------------------------------------------------------


class _OptionType(click.ParamType[tuple[str, Any]]):
    """``K=V``: the name and the value of an option; JSON objects, numbers and booleans as such."""

    name = "K=V"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        """See `click.ParamType.convert`."""
        if isinstance(value, tuple):
            return value
        key, mark, text = str(value).partition("=")
        if not (key.strip() and mark):
            self.fail(f"{value!r}: expected a name and a value, as in anon=true.", param, ctx)
        return key.strip(), _value(key, text)


def _value(key: str, text: str) -> Any:
    """Return booleans, objects and numbers of seconds or bytes; else the text, as keys are."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if text[:1] in {"{", "["} or key in {"timeout", "largest", "port"}:
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _remember(**found: Any) -> None:
    """Add values to the settings of the command that is being parsed."""
    context = click.get_current_context()
    context.meta[_META] = replace(context.meta.get(_META, Settings()), **found)


def _note_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[COMMAND] = " ".join(context.command_path.split()[1:])
    if value:
        _remember(as_json=True)


def _note(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(_: click.Context, __: click.Parameter, value: Any) -> None:
        if value:
            _remember(**{name: value})

    return callback


def _note_options(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(_: click.Context, __: click.Parameter, value: Any) -> None:
        if value:
            known = getattr(settings(), name)
            _remember(**{name: {**known, **dict(value)}})

    return callback


def _note_bucket(option: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(_: click.Context, __: click.Parameter, value: Any) -> None:
        if value:
            _remember(of_buckets={**settings().of_buckets, option: value})

    return callback


def _note_backend(_: click.Context, __: click.Parameter, value: str | None) -> None:
    """Set the backend for this process and its child processes."""
    if value is not None:
        os.environ[BACKEND] = value
        _remember(backend=value)


def _note_verbosity(_: click.Context, __: click.Parameter, value: int) -> None:
    if value:
        _remember(verbose=value)
        logging.getLogger(_LOGGER).setLevel(logging.INFO if value == 1 else logging.DEBUG)


class ToStandardError(logging.Handler):
    """Logs to standard error, above progress bars, which replace `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        word = "Warning: " if record.levelno >= logging.WARNING else ""
        try:
            sys.stderr.write(f"{word}{escape_control_chars(record.getMessage())}\n")
        except RuntimeError:  # a signal has interrupted a write to the same stream
            self.handleError(record)


class _Setting(click.Option):
    """An option of every command, which only the help of the whole program explains."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """See `click.Option.get_help_record`."""
        if ctx.parent is None:
            return super().get_help_record(ctx)
        if "--json" not in self.opts:
            return None
        return "--json, -q, -v, --anon ...", "Options of every command: see zarr-dask --help."


def _options_of_all() -> list[_Setting]:
    return [
        _Setting(
            ["--json"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_note_json,
            help="Print one JSON object instead of text; errors as well.",
        ),
        _Setting(
            ["--quiet", "-q"],
            is_flag=True,
            expose_value=False,
            callback=_note("quiet"),
            help="Print nothing but errors, and JSON with --json.",
        ),
        _Setting(
            ["--verbose", "-v"],
            count=True,
            expose_value=False,
            callback=_note_verbosity,
            help="Log plans, retries and fallbacks to standard error; -vv logs more.",
        ),
        _Setting(
            ["--storage-option"],
            type=_OptionType(),
            multiple=True,
            expose_value=False,
            callback=_note_options("options"),
            help="Option of the stores at URLs, such as profile=work; may be repeated. Other "
            "users can see secrets on the command line: put these into the environment.",
        ),
        _Setting(
            ["--target-option"],
            type=_OptionType(),
            multiple=True,
            expose_value=False,
            callback=_note_options("target_options"),
            help="Option of the target alone, such as anon=false.",
        ),
        _Setting(
            ["--anon"],
            is_flag=True,
            expose_value=False,
            callback=_note_bucket("anon"),
            help="Send no credentials to object stores: for public data.",
        ),
        _Setting(
            ["--region", "--s3-region"],
            metavar="NAME",
            expose_value=False,
            callback=_note_bucket("region"),
            help="Region of S3, such as eu-west-1. By default S3 is asked.",
        ),
        _Setting(
            ["--profile"],
            metavar="NAME",
            expose_value=False,
            callback=_note_bucket("profile"),
            help="Profile of AWS's configuration files, whose credentials and region are used.",
        ),
        _Setting(
            ["--endpoint-url"],
            metavar="URL",
            expose_value=False,
            callback=_note_bucket("endpoint_url"),
            help="Address of an object store that is not its provider's own.",
        ),
        _Setting(
            ["--backend"],
            type=click.Choice(["fsspec", "obstore"]),
            expose_value=False,
            callback=_note_backend,
            help="Library for URLs of object stores. By default obstore if it is installed and "
            "supports all options.",
        ),
        _Setting(
            ["--traceback"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            envvar="ZARR_DASK_TRACEBACK",
            callback=_note("traceback"),
            help="Show where in Python an error arose.",
        ),
    ]


class _LocationType(click.ParamType[str]):
    """A path or URL; shells complete it as a file."""

    name = "text"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """See `click.ParamType.shell_complete`."""
        return [CompletionItem(incomplete, type="file")]


class _PathType(click.ParamType[str]):
    """The path of a node below a location, not another location."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path."""
        url = str(ctx.params.get("url", "")) if ctx is not None else ""
        if _is_location(url, value):
            self.fail(
                f"{value!r} is a location of its own, but PATH names a node below URL: call the "
                "command once for each location.",
                param,
                ctx,
            )
        return value


def _is_location(url: str, path: str) -> bool:
    """True for a URL, and for a hierarchy in a local file or folder that is not below another."""
    if "://" in path:
        return True
    is_below = not Path(url).is_dir() or Path(url, path).exists()
    if is_below or not path or not Path(path).exists():
        return False
    try:
        zd.open(path)
    except ZarrDaskError:
        return False
    return True


def add_settings(command: click.Command) -> None:
    """Give a command, and those below it, the options of every command.

    Options whose names a command uses itself are left out. Shells complete locations as files.
    """
    for param in command.params:
        if isinstance(param, click.Argument) and param.type is click.STRING:
            param.type = _PathType() if param.name == "path" else _LocationType()
    taken = {name for param in command.params for name in param.opts}
    for option in _options_of_all():
        option.name = f"setting_{option.name}"  # a command may have another one of this name
        option.opts = [name for name in option.opts if name not in taken]
        if any(name.startswith("--") for name in option.opts):
            command.params.append(option)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add_settings(below)
