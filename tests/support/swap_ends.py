"""Deaths of a process while the new node of a swap takes the place of the old one."""

from __future__ import annotations

from pathlib import Path

from zarr_dask.journal import swap as swap_module


class Stopped(Exception):  # noqa: N818
    """Stands for the death of the process."""


def die(*_args, **_options):
    raise Stopped


def die_halfway(renames):
    """The two renames, of which only some are done."""

    def exchange(new, old):
        for source, target in [(old, f"{new}.old"), (new, old)][:renames]:
            Path(source).rename(target)
        raise Stopped

    return exchange


def die_when_done(swap, original=swap_module.AtomicReplace.remove):
    return die() if swap.is_done else original(swap)


EXCHANGES = {
    "before": (swap_module, "_exchange", die),
    "after one rename": (swap_module, "_exchange", die_halfway(1)),
    "after two renames": (swap_module, "_exchange", die_halfway(2)),
    "before the old one goes": (swap_module.AtomicReplace, "remove", die_when_done),
}
"""What to replace by what, for each moment."""
