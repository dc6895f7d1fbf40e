"""Libraries of the sweep, each with the same few methods.

A peer makes an array from a `Layout`, opens it, reads and writes selections and appends rows. It
says with `can` which cells it has. Those that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import dask.array as da
import numpy as np
import tensorstore as ts
import zarr

import zarr_dask as zd
from zarr_dask.stores import LocalStore

__all__ = ["PEERS", "Access", "Layout", "Peer"]


@dataclass(frozen=True)
class Layout:
    """An array as all peers make it."""

    shape: tuple[int, ...]
    dtype: str
    codec: str
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None = None

    @cached_property
    def codecs(self) -> list[dict[str, Any]]:
        name, _, detail = self.codec.partition("-")
        itemsize = np.dtype(self.dtype).itemsize
        blosc = {"cname": detail, "clevel": 5, "shuffle": "shuffle", "typesize": itemsize}
        return {
            "raw": [],
            "zstd": [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
            "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
            "crc32c": [{"name": "crc32c"}],
            "blosc": [{"name": "blosc", "configuration": {**blosc, "blocksize": 0}}],
        }[name]

    def create(self, target: Any) -> zd.Array:
        return zd.create_array(
            target,
            shape=self.shape,
            dtype=self.dtype,
            chunks=self.chunks,
            shards=self.shards,
            codecs=[{"name": "bytes", "configuration": {"endian": "little"}}, *self.codecs],
        )


@dataclass(frozen=True)
class Access:
    """A selection: an index, and the accessor that it is for."""

    index: Any
    accessor: str = ""
    """``""``, ``"oindex"``, ``"vindex"`` or ``"mask"``."""


class Peer:
    """A library. This base is zarr_dask."""

    name = "zarr_dask"
    package = "zarr_dask"
    synced = False
    """True if everything that is written is synced to the disk."""
    reads_zarr = True
    accessors: ClassVar[set[str]] = {"", "oindex", "vindex", "mask"}

    def can(self, interface: str, kind: str, layout: Layout, accessor: str) -> bool:
        return interface == "array" or not self.synced

    def create(self, path: Path, layout: Layout) -> Any:
        return layout.create(path)

    def open(self, path: Path, layout: Layout) -> Any:
        return zd.open_array(path, mode="r+")

    def read(self, array: Any, access: Access) -> np.ndarray:
        return _accessor(array, access)[access.index]

    def write(self, array: Any, access: Access, values: np.ndarray) -> None:
        _accessor(array, access)[access.index] = values

    def append(self, array: Any, values: np.ndarray) -> Any:
        return array.append(values)

    def lazy(self, path: Path, layout: Layout, blocks: tuple[int, ...]) -> da.Array:
        return zd.from_zarr(path, chunks=blocks)

    def store(self, source: da.Array, path: Path, layout: Layout) -> None:
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, *layout.codecs]
        grids = {"chunks": layout.chunks, "shards": layout.shards}
        zd.to_zarr(source, path, codecs=codecs, progress=False, **grids)


def _accessor(array: Any, access: Access) -> Any:
    if access.accessor in {"", "mask"}:
        return array
    return getattr(array, access.accessor)


class SyncedZarrDask(Peer):
    name = "zarr_dask fsync"
    synced = True

    def create(self, path: Path, layout: Layout) -> Any:
        return layout.create(LocalStore(str(path), fsync=True))

    def open(self, path: Path, layout: Layout) -> Any:
        return zd.open_array(LocalStore(str(path), fsync=True), mode="r+")


class _Lazy:
    """An array as dask wants its sources and targets."""

    def __init__(self, peer: Peer, array: Any, layout: Layout) -> None:
        self._peer, self._array = peer, array
        self.shape, self.ndim = layout.shape, len(layout.shape)
        self.dtype = np.dtype(layout.dtype)

    def __getitem__(self, index: Any) -> np.ndarray:
        return self._peer.read(self._array, Access(index))

    def __setitem__(self, index: Any, values: np.ndarray) -> None:
        self._peer.write(self._array, Access(index), values)


class _Other(Peer):
    def lazy(self, path: Path, layout: Layout, blocks: tuple[int, ...]) -> da.Array:
        lazy = _Lazy(self, self.open(path, layout), layout)
        return da.from_array(lazy, chunks=blocks, meta=np.empty((0,) * lazy.ndim, lazy.dtype))

    def store(self, source: da.Array, path: Path, layout: Layout) -> None:
        da.store(source, _Lazy(self, self.create(path, layout), layout), lock=False)


class TensorStore(_Other):
    name = "tensorstore"
    package = "tensorstore"

    def _open(self, path: Path, **options: Any) -> Any:
        context = ts.Context({"cache_pool": {}, "file_io_sync": self.synced})
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}, **options}
        return ts.open(spec, context=context).result()

    def create(self, path: Path, layout: Layout) -> Any:
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, *layout.codecs]
        outer = layout.chunks
        if layout.shards is not None:
            outer = layout.shards
            inner = {"chunk_shape": layout.chunks, "codecs": codecs}
            codecs = [{"name": "sharding_indexed", "configuration": inner}]
        grid = {"name": "regular", "configuration": {"chunk_shape": outer}}
        metadata = {
            "shape": layout.shape,
            "data_type": np.dtype(layout.dtype).name,
            "chunk_grid": grid,
            "codecs": codecs,
        }
        return self._open(path, create=True, metadata=metadata)

    def open(self, path: Path, layout: Layout) -> Any:
        return self._open(path)

    def read(self, array: Any, access: Access) -> np.ndarray:
        return _accessor(array, access)[access.index].read().result()

    def write(self, array: Any, access: Access, values: np.ndarray) -> None:
        _accessor(array, access)[access.index].write(values).result()

    def append(self, array: Any, values: np.ndarray) -> Any:
        begin = array.shape[0]
        shape = (begin + len(values), *array.shape[1:])
        array = array.resize(exclusive_max=shape).result()
        array[begin:].write(values).result()
        return array


class SyncedTensorStore(TensorStore):
    name = "tensorstore fsync"
    synced = True


class ZarrPython(_Other):
    name = "zarr-python"
    package = "zarr"
    pipeline = "zarr.core.codec_pipeline.BatchedCodecPipeline"

    def create(self, path: Path, layout: Layout) -> Any:
        with zarr.config.set({"codec_pipeline.path": self.pipeline}):
            return zarr.create_array(
                path,
                shape=layout.shape,
                dtype=layout.dtype,
                chunks=layout.chunks,
                shards=layout.shards,
                compressors=layout.codecs or None,
                filters=None,
            )

    def open(self, path: Path, layout: Layout) -> Any:
        with zarr.config.set({"codec_pipeline.path": self.pipeline}):
            return zarr.open_array(path, mode="r+")

    def read(self, array: Any, access: Access) -> np.ndarray:
        at = array.vindex if access.accessor == "mask" else _accessor(array, access)
        return at[access.index]

    def write(self, array: Any, access: Access, values: np.ndarray) -> None:
        at = array.vindex if access.accessor == "mask" else _accessor(array, access)
        at[access.index] = values

    def append(self, array: Any, values: np.ndarray) -> Any:
        array.append(values)
        return array


class Zarrs(ZarrPython):
    name = "zarrs"
    package = "zarrs"
    pipeline = "zarrs.ZarrsCodecPipeline"

    def can(self, interface: str, kind: str, layout: Layout, accessor: str) -> bool:
        return interface == "array" and not accessor and layout.codec != "crc32c"


class H5Py(_Other):
    name = "h5py"
    package = "h5py"
    reads_zarr = False

    def can(self, interface: str, kind: str, layout: Layout, accessor: str) -> bool:
        plain = layout.shards is None and layout.codec in {"raw", "gzip"}
        return interface == "array" and plain and not accessor

    def create(self, path: Path, layout: Layout) -> Any:
        import h5py

        path.parent.mkdir(parents=True, exist_ok=True)
        gzip = {"compression": "gzip", "compression_opts": 1} if layout.codec == "gzip" else {}
        return h5py.File(path.with_suffix(".h5"), "w").create_dataset(
            "a", layout.shape, layout.dtype, chunks=layout.chunks,
            maxshape=(None, *layout.shape[1:]), **gzip,
        )  # fmt: skip

    def open(self, path: Path, layout: Layout) -> Any:
        import h5py

        # a new file object without a cache of decoded chunks, as the others have none
        return h5py.File(path.with_suffix(".h5"), "r+", rdcc_nbytes=0)["a"]

    def write(self, array: Any, access: Access, values: np.ndarray) -> None:
        super().write(array, access, values)
        array.file.flush()  # else chunks wait in memory to be compressed and written

    def append(self, array: Any, values: np.ndarray) -> Any:
        begin = array.shape[0]
        array.resize(begin + len(values), 0)
        self.write(array, Access(slice(begin, None)), values)
        return array


class Blosc2(_Other):
    name = "blosc2"
    package = "blosc2"
    reads_zarr = False

    def can(self, interface: str, kind: str, layout: Layout, accessor: str) -> bool:
        fits = layout.shards is None and layout.codec in {"blosc-lz4", "blosc-zstd"}
        return interface == "array" and fits and not accessor and kind != "append"

    def create(self, path: Path, layout: Layout) -> Any:
        import blosc2

        path.parent.mkdir(parents=True, exist_ok=True)
        codec = getattr(blosc2.Codec, layout.codec.removeprefix("blosc-").upper())
        return blosc2.empty(
            layout.shape, np.dtype(layout.dtype), chunks=layout.chunks, mode="w",
            urlpath=str(path.with_suffix(".b2nd")), contiguous=True,
            cparams={"codec": codec, "clevel": 5, "nthreads": 2}, dparams={"nthreads": 2},
        )  # fmt: skip

    def open(self, path: Path, layout: Layout) -> Any:
        import blosc2

        dparams = blosc2.DParams(nthreads=2)
        return blosc2.open(str(path.with_suffix(".b2nd")), mode="a", dparams=dparams)


_ALL = (
    Peer,
    TensorStore,
    ZarrPython,
    Zarrs,
    H5Py,
    Blosc2,
    SyncedZarrDask,
    SyncedTensorStore,
)
PEERS = [peer() for peer in _ALL if importlib.util.find_spec(peer.package)]
"""What is installed, this package first."""
