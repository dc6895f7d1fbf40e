"""A process that runs the operations of a history, one line of them at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import monotonic
from typing import Any, TextIO

import dask
import dask.array as da
import numpy as np

import zarr_dask as zd
from tests.support.histories.model import CHUNK, FIRST
from zarr_dask.errors import ZarrDaskError

Place = tuple[str, str, dict[str, Any]]


def serve(asked: TextIO, answers: TextIO) -> None:
    """Answer lines of operations until there are no more."""
    with dask.config.set(scheduler="sync"):
        for line in asked:
            root, options, todo = json.loads(line)
            print(json.dumps([_done(root, options, *one) for one in todo]), file=answers)
            answers.flush()


def _done(root: str, options: dict[str, Any], name: str, path: str, args: list[Any]) -> list[Any]:
    error, answer = "", None
    began = monotonic()
    try:
        answer = OPERATIONS[name]((root, path, options), *args)
    except ZarrDaskError as raised:
        error = type(raised).__name__
    return [name, path, args, began, monotonic(), error, answer]


def _opened(place: Place) -> zd.Array:
    root, path, options = place
    return zd.open_array(root, path, storage_options=options, mode="r+")


def _create(place: Place, number: int, format: str | None = None) -> None:
    root, path, options = place
    zd.create_array(
        root,
        path,
        shape=FIRST,
        dtype="i4",
        chunks=CHUNK,
        attributes={"id": number},
        storage_options=options,
        **({"format": format} if format else {}),
    )


def _migrate(place: Place) -> None:
    root, _, options = place
    zd.migrate(root, data="rename", storage_options=options)


def _write_anew(mode: str) -> Callable[..., None]:
    def write(place: Place, number: int) -> None:
        root, path, options = place
        values = da.full((FIRST,), number, chunks=CHUNK, dtype="i4")
        attributes = {"id": number}
        zd.to_zarr(values, root, path, mode=mode, attributes=attributes, storage_options=options)

    return write


def _write(place: Place, chunk: int, value: int) -> None:
    _opened(place)[chunk * CHUNK : (chunk + 1) * CHUNK] = value


def _append(place: Place, count: int, value: int) -> None:
    root, path, options = place
    if value % 2:
        _opened(place).append(np.full(count, value, "i4"))
        return
    values = da.full((count,), value, chunks=CHUNK, dtype="i4")
    zd.to_zarr(values, root, path, append=0, storage_options=options, resume=value % 4 == 0)


def _resize(place: Place, length: int) -> None:
    _opened(place).resize(length, prune=True)


def _update_attributes(place: Place, key: str, value: int) -> None:
    _opened(place).update_attributes({key: value})


def _rename(place: Place, target: str) -> None:
    root, path, options = place
    zd.open_group(root, mode="r+", storage_options=options).rename(path, target)


def _delete(place: Place) -> None:
    root, path, options = place
    zd.delete(root, path, storage_options=options)


def _read(place: Place) -> list[Any]:
    array = _opened(place)
    return [dict(array.attributes), array[...].tolist()]


OPERATIONS: dict[str, Callable[..., Any]] = {
    "create": _create,
    "replace": _write_anew("w"),
    "swap": _write_anew("swap"),
    "write": _write,
    "append": _append,
    "resize": _resize,
    "attributes": _update_attributes,
    "delete": _delete,
    "rename": _rename,
    "read": _read,
    "migrate": _migrate,
}
