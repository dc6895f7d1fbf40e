"""``zarr-dask migrate``: plans, prints and executes the migration of a hierarchy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import zarr_dask as zd
from zarr_dask.cli.errors import FAILED, as_options
from zarr_dask.cli.options import FormatType
from zarr_dask.cli.output import answer, echo, report_facts, say_plan, wrapped
from zarr_dask.cli.price import price_option, say_price
from zarr_dask.cli.progress import migration_progress
from zarr_dask.cli.settings import two_storage_options
from zarr_dask.cli.signals import handle_signals
from zarr_dask.errors import ZarrDaskError
from zarr_dask.formats.detect import DEFAULT_FORMAT
from zarr_dask.formats.translate import TARGETS

if TYPE_CHECKING:
    from zarr_dask.jobs.migrate.plan import MigrationPlan, MigrationReport
    from zarr_dask.ome import OmeMigration
    from zarr_dask.ome.migrate_hierarchy import OmeMigrationReport

__all__ = ["migrate", "run_migration", "wrong_usage"]


@click.command(
    epilog="""\b
Examples:
  zarr-dask migrate maps.zarr --dry-run
  zarr-dask migrate maps.zarr
  zarr-dask migrate maps.zarr --remove-old
  zarr-dask migrate draft.zarr final.zarr"""
)
@click.argument("src")
@click.argument("dst", required=False)
@click.option("--path", default="", help="Path of the hierarchy's root below SRC (and DST).")
@click.option(
    "--format",
    type=FormatType([one.name for one in TARGETS]),
    default=DEFAULT_FORMAT.name,
    show_default=True,
    help="The new format; v2 is for arrays of v1.",
)
@click.option(
    "--data",
    type=click.Choice(["keep", "rename", "copy"]),
    help="keep stored objects where they are (the default in place), rename them to the default "
    "keys of v3, or copy them to DST. Their bytes are never changed.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan; write nothing.")
@click.option(
    "--remove-old",
    is_flag=True,
    help="In place: remove old metadata and keys once the new ones are written and verified.",
)
@click.option(
    "--v1-f-order",
    type=click.Choice(["spec", "legacy"]),
    default="spec",
    show_default=True,
    help="Layout of v1 arrays of order F without blosc; legacy is that of zarr-python 1.",
)
@price_option
def migrate(
    src: str,
    dst: str | None,
    *,
    path: str,
    format: str,
    data: Any,
    dry_run: bool,
    remove_old: bool,
    v1_f_order: Any,
) -> None:
    """Convert the metadata of a hierarchy to another format.

    No chunk is decoded. A hierarchy is migrated completely or not at all: if a node cannot be
    migrated, the exit code is 3 and all reasons are printed, for a dry run as well. Without DST the
    new metadata are written beside the old ones, which are kept unless --remove-old is given; v3
    takes precedence if both exist. An interrupted migration leaves a readable hierarchy; run the
    same command again.
    """
    if re.fullmatch("v[0-9]", src) and not Path(src).exists():  # as the zarr command has it
        raise click.UsageError(
            f"{src!r} is a format, which is given by an option: migrate SRC DST --format {src}."
        )
    read = zd.ReadOptions(v1_f_order=v1_f_order)
    options, target_options = two_storage_options(src, dst)
    with wrong_usage():
        plan = zd.plan_migration(
            src,
            dst,
            path=path,
            format=format,
            data=data,
            remove_old=remove_old,
            read=read,
            storage_options=options,
            target_options=target_options,
        )
    run_migration(plan, plan.run, dry_run=dry_run)


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Report arguments that are refused before planning as wrong usage."""
    try:
        yield
    except ZarrDaskError:
        raise
    except ValueError as error:
        raise click.UsageError(as_options(str(error))) from error


def run_migration(
    plan: MigrationPlan | OmeMigration,
    run: Callable[[Callable[[int], None] | None], MigrationReport | OmeMigrationReport],
    *,
    dry_run: bool,
    to_go_on: str = "to go on.",
) -> None:
    """Print a plan, run it with a progress bar, and print the report.

    Parameters
    ----------
    plan
        Plan to print; a dry run fails if it has refusals.
    run
        Function that executes it, and returns the report.
    dry_run
        Only print the plan.
    to_go_on
        Reason and way to run the command again after an interrupt.

    Raises
    ------
    Interrupted
        On Ctrl-C or SIGTERM; the message says how to resume.
    """
    facts = {
        "plan": plan.explain(),
        "refusals": [f"{path or '/'}: {problem}" for path, problem in plan.refusals],
    }
    price: dict[str, float] = {}
    if dry_run or not plan.refusals:
        say_plan(plan)
        price = say_price(plan)
    if dry_run:
        answer({**facts, **price, "report": None}, FAILED if plan.refusals else 0)
        return
    state = f"{plan.where} can be read as before. Run the same command again {to_go_on}"
    with (
        handle_signals(state, "what is being copied"),
        migration_progress(plan) if plan.nbytes else nullcontext() as advance,
    ):
        report = run(advance)
    echo(wrapped(f"done: {report}", "  "))
    answer({**facts, "report": {**report_facts(report), **say_price(report)}})
