"""Digest of values, independent of how they are stored.

Every element has a hash of its own, computed from its position in the array (in C order) and its
value. The digest is the sum of all hashes modulo 2^128. A sum does not depend on order, so blocks
of any shape can be hashed in any task. Equal arrays have the same digest in any chunks, shards,
codecs and formats. Hashing runs of bytes would be faster, but would need blocks that hold whole
runs.

A hash is two 64-bit words, each computed as ``mix(mix(position * odd + constant) ^ value)`` with
the mixing function of splitmix64, in which every input bit changes half of the output bits. Two
arrays that differ by accident have the same digest with a probability of about 2^-128. It does not
protect against deliberate changes (SHA-256 of stored objects does).

Values that `zarr_dask.compare` treats as equal have equal hashes: zeros of both signs are equal,
and so are all NaN. The text of a digest starts with the version of this construction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import accumulate
from math import prod
from operator import mul
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.dtypes import is_small
from zarr_dask.errors import StoreError
from zarr_dask.formats.base import ReadOptions
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.jobs.engine.map_regions import boxes_for, run_boxes
from zarr_dask.journal.manifest import Manifest, ManifestPlace
from zarr_dask.stores.patience import in_job

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Sum", "add_hashes", "digest", "digest_text", "sum_of"]

Sum = tuple[int, int]
"""Sums of the two words of all hashes, each modulo 2^64."""

_SLAB = 1 << 15
"""Number of elements hashed at once: they and their hashes stay in the CPU cache."""
_WORD = (1 << 64) - 1
_LANES = ((0x9E3779B97F4A7C15, 0x2545F4914F6CDD1D), (0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
"""An odd factor for the position and a constant, for each of the two words."""


@in_job()
@takes_habits(component="path", url="array")
def digest(
    array: Any,
    path: str = "",
    *,
    client: Client | None = None,
    manifest: str | PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> str:
    """Return a digest of the values of an array, the same in any layout, format and encoding.

    Parameters
    ----------
    array
        A stored array (`zarr_dask.Array`) or its location, a NumPy array or a dask array.
    path
        Path of the array below a location or an open group.
    client
        A cluster; by default the current client, or else dask's configured scheduler.
    manifest
        Path or URL of a manifest to store the digest in: ``zarr_dask.Manifest.read(...).digest``.
    storage_options, read
        As for `zarr_dask.open`, if `array` is a location.

    Returns
    -------
    str
        ``"zd1-"`` and 32 hexadecimal digits, computed from shape, data type and values.

    Raises
    ------
    NodeNotFoundError
        If there is no array at a location.
    CorruptObjectError
        If stored bytes cannot be decoded.
    ManifestError
        If the manifest is missing or incomplete.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(4, 6), dtype="f4", chunks=(4, 2))
    >>> a[...] = np.arange(24).reshape(4, 6)
    >>> zd.digest(a) == zd.digest(np.arange(24, dtype="f4").reshape(4, 6))
    True
    """
    if storage_options and hasattr(array, "shape"):
        raise StoreError(
            f"storage_options {sorted(storage_options)} are for a place, and this is an array."
        )
    if hasattr(array, "shape") and path:
        raise ValueError(f"path={path!r} is for a place, and this is an array.")
    if not hasattr(array, "shape"):
        array = open_array(array, path, "r", None, storage_options, read)
    stored = array if isinstance(array, Array) else None
    place = None
    if manifest is not None:
        place = ManifestPlace.of(manifest, None if stored is None else stored.store)
    kept = None if place is None else Manifest.at(place)
    total = (0, 0)

    def add(share: Sum) -> None:
        nonlocal total
        total = add_hashes(total, share)

    boxes = boxes_for(array.shape, array.dtype, [stored] if stored is not None else [])
    run_boxes(partial(sum_of, shape=tuple(array.shape)), array, boxes, add, client, "digest")
    text = digest_text(array.shape, array.dtype, total)
    if kept is not None and place is not None:
        replace(kept, digest=text).write(place)
    return text


def digest_text(shape: Shape, dtype: np.dtype[Any], total: Sum) -> str:
    """Return the digest of an array, from the sum of the hashes of its elements."""
    label = "object" if dtype.kind in "OT" else str(np.dtype(dtype).newbyteorder("="))
    facts = f"{label}{tuple(map(int, shape))}{total[0]:016x}{total[1]:016x}"
    return f"zd1-{blake2b(facts.encode(), digest_size=16).hexdigest()}"


def add_hashes(a: Sum, b: Sum) -> Sum:
    """Return the sum of two sums."""
    return (a[0] + b[0]) & _WORD, (a[1] + b[1]) & _WORD


def sum_of(block: np.ndarray, region: Region, shape: Shape) -> Sum:
    """Return the sum of the hashes of a block.

    Parameters
    ----------
    block
        Values.
    region
        Region of the block in the array; slices of step 1.
    shape
        Shape of the array.
    """
    strides = list(accumulate(reversed(shape[1:]), mul, initial=1))[::-1]
    total = (0, 0)
    for slab in _slabs(block.shape):
        positions = np.zeros((), np.uint64)
        for axis, (one, where) in enumerate(zip(slab, region, strict=True)):
            along = np.arange(where.start + one.start, where.start + one.stop, dtype=np.uint64)
            along *= np.uint64(strides[axis] & _WORD)
            positions = positions + along.reshape((-1,) + (1,) * (block.ndim - 1 - axis))
        words = list(_words(block[slab] if slab else block))
        total = add_hashes(total, _summed(np.ravel(positions), words))
    return total


def _slabs(shape: Shape) -> Iterator[Region]:
    """Yield regions of few elements that make up a shape, of whole rows if possible."""
    rows = list(shape)
    axis = 0
    while axis < len(rows) and prod(shape[axis:]) > _SLAB:
        rows[axis] = 1
        axis += 1
    if axis:
        inner = prod(shape[axis:])
        rows[axis - 1] = max(_SLAB // max(inner, 1), 1)

    def along(depth: int) -> Iterator[Region]:
        if depth == len(shape):
            yield ()
            return
        for start in range(0, shape[depth], max(rows[depth], 1)):
            piece = slice(start, min(start + rows[depth], shape[depth]), 1)
            for rest in along(depth + 1):
                yield (piece, *rest)

    return along(0)


def _summed(positions: np.ndarray, words: list[np.ndarray]) -> Sum:
    sums = []
    for factor, constant in _LANES:
        hashes = _mix(positions * np.uint64(factor) + np.uint64(constant))
        for word in words:
            hashes = _mix(hashes ^ word)
        sums.append(int(hashes.sum(dtype=np.uint64)))
    return sums[0], sums[1]


def _mix(x: np.ndarray) -> np.ndarray:
    """Apply the finalizer of splitmix64 in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


# --- values as 64-bit words -----------------------------------------------------------------------


def _words(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yield every element as one or more words, which are equal for equal values."""
    dtype = values.dtype
    if dtype.names is not None:
        for name in dtype.names:
            field = values[name]
            inner = field.reshape((values.size, -1))  # a field may be an array itself
            for column in range(inner.shape[1]):
                yield from _words(inner[:, column])
    elif dtype.kind in "OT":
        yield from _words_of_objects(values)
    elif is_small(dtype):
        yield from _words(values.astype(np.float32))  # float32 can hold all of them
    elif dtype.kind == "c":
        yield from _words(values.real)
        yield from _words(values.imag)
    elif dtype.kind == "f":
        yield from _words_of_floats(values)
    elif dtype.kind in "SUV":
        yield from _words_of_bytes(values)
    elif dtype.kind in "mM":
        yield _native(values).view(np.uint64)
    else:
        yield np.ravel(values).astype(np.int64 if dtype.kind == "i" else np.uint64).view(np.uint64)


def _words_of_floats(values: np.ndarray) -> Iterator[np.ndarray]:
    high = np.ravel(values).astype(np.float64)
    if values.dtype.itemsize > 8:
        with np.errstate(invalid="ignore"):
            low = (np.ravel(values) - high).astype(np.float64)
        low[~np.isfinite(low)] = 0
        yield (low + 0.0).view(np.uint64)
    high += 0.0  # -0.0 becomes 0.0
    high[np.isnan(high)] = np.nan
    yield high.view(np.uint64)


def _native(values: np.ndarray) -> np.ndarray:
    """Return all elements, flat and in native byte order."""
    return np.ravel(values).astype(values.dtype.newbyteorder("="), copy=False)


def _words_of_bytes(values: np.ndarray) -> Iterator[np.ndarray]:
    itemsize = values.dtype.itemsize
    if not itemsize:
        return
    flat = np.ascontiguousarray(_native(values)).view(np.uint8).reshape(-1, itemsize)
    padded = np.zeros((len(flat), -(-itemsize // 8) * 8), np.uint8)
    padded[:, :itemsize] = flat
    yield from padded.view("<u8").astype(np.uint64).T


def _words_of_objects(values: np.ndarray) -> Iterator[np.ndarray]:
    made = b"".join(blake2b(_bytes_of(item), digest_size=16).digest() for item in values.flat)
    yield from np.frombuffer(made, "<u8").astype(np.uint64).reshape(-1, 2).T


def _bytes_of(item: object) -> bytes:
    if isinstance(item, str):
        return b"s" + item.encode("utf-8", "surrogatepass")
    if isinstance(item, bytes | bytearray | memoryview):
        return b"b" + bytes(item)
    return b"o" + repr(item).encode()
