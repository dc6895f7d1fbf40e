"""Hints for a node that is absent: files of other formats, other spellings, names nearby."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from zarr_dask._util.keywords import closest, did_you_mean
from zarr_dask.errors import NodeNotFoundError, ZarrDaskError
from zarr_dask.formats.base import GroupMeta
from zarr_dask.formats.detect import FORMATS, formats_at
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.open import local_path
from zarr_dask.stores.wrapper import unwrap

__all__ = ["MOST_NAMED", "Mode", "names_beside", "with_hint_of_file"]

Mode = Literal["r", "r+", "a", "w", "w-"]
MOST_NAMED = 10
"""Names of nodes that an error lists at most."""


def names_beside(store: Store, path: str, below: str) -> str:
    """Return a hint with the names that there are beside a node that is missing below a group."""
    if below in get_args(Mode) and not path:
        return f"{below!r} was taken as the path of a node: a mode is given as mode={below!r}."
    above, _, name = below.rpartition("/")
    around = join(path, above)
    try:
        groups = [one for one, meta in formats_at(store, around) if isinstance(meta, GroupMeta)]
        names = groups[0].child_names(store, around) if groups else []
    except ZarrDaskError:
        return ""
    if not names:
        return ""
    shown = ", ".join(map(repr, names[:MOST_NAMED]))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{above or 'The group'} has {shown}{more}.{did_you_mean(name, names)}"


def with_hint_of_file(error: NodeNotFoundError, store: Store) -> NodeNotFoundError:
    """Return the error, with a hint if the given location seems to be a file, not a folder."""
    place = unwrap(store)
    remote = "::" not in place.url and "://" in place.url
    root = local_path(place, "")
    if root is not None and Path(root).is_file():
        hint = f"{root} is a file, and no zip archive."
        hint = _of_kind(root) or hint
        if any(Path(root).name in known.node_keys("") for known in FORMATS):
            hint = f"{root} is the metadata of a node: open {Path(root).parent}."
        elif root.endswith(".json"):
            hint += f" References (kerchunk) are read as 'reference::{root}'."
    elif remote and place.url.lower().endswith((".zip", ".ozx")):
        hint = f"An archive is read as 'zip::{place.url}'."
    elif remote and place.url.endswith(".json"):
        hint = f"References (kerchunk) are read as 'reference::{place.url}'."
    elif root is not None and not Path(root).exists():
        above, name = Path(root).parent, Path(root).name
        names = [one.name for one in above.iterdir()] if above.is_dir() else []
        by_stem = {one.removesuffix(".zarr"): one for one in names}
        stem = closest(name.removesuffix(".zarr"), by_stem)
        meant = by_stem[stem] if stem else closest(name, names, closeness=0.8)
        hint = "There is no such folder." + (f" Did you mean {meant!r}?" if meant else "")
        hint = _of_other_spelling(root) or hint
        hint += " zarr_dask.create_array and create_group make nodes."
    else:
        return error
    return NodeNotFoundError(error.where, error.looked_for, f"{error.hint} {hint}".lstrip())


def _of_other_spelling(path: str) -> str:
    """Return a hint for a location spelled as other programs have it; empty for all others."""
    if found := re.match(r".*/(https?)[:/]+(.+)", path):
        return f"A URL has '://', as in {f'{found[1]}://{found[2]}'!r}."
    for mark in ("/|", "::", "#", "|", ":"):
        above, cut, name = path.partition(mark)
        if cut and Path(above).exists():
            below = "" if "|" in mark else f", path={name!r}"
            return f"A node is named by its path: open({above!r}{below})."
    return ""


_KINDS = (
    ((b"\x89HDF\r\n\x1a\n", b"CDF\x01", b"CDF\x02", b"CDF\x05", b"GRIB"), "a NetCDF, HDF5 or GRIB"),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), "a TIFF"),
)
"""First bytes of files of other formats."""


def _of_kind(path: str) -> str:
    """Return a hint for a file of another format; empty if its first bytes are unknown."""
    with suppress(OSError), Path(path).open("rb") as file:
        start = file.read(8)
        for begins, kind in _KINDS:
            if start.startswith(begins):
                way = (
                    "tifffile reads it, and zarr_dask.ome.convert writes it as OME-Zarr"
                    if kind == "a TIFF"
                    else "zarr_dask.ingest writes it, or many of its kind, into a store; "
                    "xarray.open_dataset opens it as it is"
                )
                return f"{path} is {kind} file: {way}."
    return ""
