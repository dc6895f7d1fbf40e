"""The common model of all formats: metadata in one form, however they are written.

`ArrayMeta` and `GroupMeta` hold metadata in one form for all formats: byte order belongs to the
``bytes`` codec, column-major order is a ``transpose`` codec, the layout of keys is a
`ChunkKeyEncoding` value, "no fill value" is None. Code outside this package never depends on a
version.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from zarr_dask._util.arguments import check_bools, check_type
from zarr_dask.codecs.base import ChunkSpec, DecodeOptions
from zarr_dask.codecs.chain import BoundCodecChain, CodecChain
from zarr_dask.codecs.index_codecs import DEFAULT_INDEX_CODECS
from zarr_dask.dtypes import DataType, bits_of, full_of, is_full_of
from zarr_dask.errors import (
    GridError,
    StoreError,
    StoreKeyError,
    UnknownCodecError,
    ValidationProblem,
)
from zarr_dask.formats.documents import (
    DEFAULT_LIMITS,
    FetchedDocuments,
    Limits,
    checked_attributes,
    checked_documents,
    document_range,
    dump_json,
    load_json,
    read_documents,
    where,
)
from zarr_dask.grid.grid import Edges, Grid, Shape
from zarr_dask.stores.base import Store

__all__ = [
    "DEFAULT_OPTIONS",
    "DIMENSIONS",
    "ArrayMeta",
    "BesideData",
    "ChunkKeyEncoding",
    "FetchedDocuments",
    "Format",
    "GroupMeta",
    "Limits",
    "NodeMeta",
    "NodeReader",
    "ReadOptions",
    "ancestors",
    "check_listed",
    "checked_attributes",
    "checked_documents",
    "child_prefixes",
    "document_range",
    "dump_json",
    "load_json",
    "normalise_path",
    "prefix_of",
    "read_documents",
    "stored_grid",
    "where",
]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading.

    Parameters
    ----------
    missing
        Treatment of absent chunks, those inside shards included: ``"fill"`` reads the fill value,
        ``"error"`` raises `ChunkMissingError`. It applies to reading only: a write that covers a
        part of an absent chunk starts from the fill value in both cases, as in a new array, and the
        chunk exists afterwards. Other chunks of the same shard stay absent.
    v1_f_order
        Layout of v1 arrays of order "F" that are not compressed by blosc: ``"spec"`` follows the
        specification (columns first), ``"legacy"`` follows its only writer (rows first). Both
        layouts look alike.
    dimension_separator
        Separator of the coordinates in the keys of a v2 array whose metadata are wrong about it;
        None trusts the metadata.
    consolidated
        Use consolidated metadata if there are any; False requests the metadata of every node.
    fallback_dtypes
        Read draft arrays of an unknown data type as the first known of their fallbacks; such arrays
        are read-only.
    allow_pickle
        Decode pickled object arrays. A pickle can run any code of its writer.
    limits
        Limits for the sizes that metadata and chunks may claim.
    index_cache
        Bytes of shard indices that this process caches, for reads of some chunks of a shard at a
        time; none by default. A cached index is used only if the store confirms that its shard is
        unchanged (by its ETag, or its size and time). A remote store is queried for that each time;
        if it cannot tell, nothing is cached.
    walk_by_full_listing
        Walk hierarchies by one listing of all keys in every store. By default this is done only if
        it costs no more than listing a folder; otherwise there is one listing for each group. A
        full listing includes the keys of all chunks, and saves requests if there are many groups
        and few chunks. Links to groups above are then omitted.
    verify
        Compare all bytes of every stored object that is read with a manifest: its path or URL, or
        True for the manifest beside the node, which ``to_zarr(manifest=True)`` keeps there. An
        object that was damaged, exchanged for another or an older one, or lost is a
        `ManifestMismatchError`; one that the manifest does not list is a `ManifestError`. Stored
        objects are read whole.
    consistent
        Read all stored objects of an array as they were when it was opened, or raise
        `ArrayChangedError`: also in the tasks of a dask array. A listing at opening, and one in
        each process that reads, tells their ETags, or times and sizes. `Array.options` has a text
        instead of True then, which names what was seen; given here, it opens the same version or
        nothing.

    Raises
    ------
    ValueError
        If an option has an invalid value.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> _ = zd.create_array(values, shape=(4,), dtype="i2", chunks=2)
    >>> a = zd.open_array(values, read=zd.ReadOptions(missing="error"))
    >>> a[0]
    Traceback (most recent call last):
    zarr_dask.errors.ChunkMissingError: ...
    """

    missing: Literal["fill", "error"] = "fill"
    v1_f_order: Literal["spec", "legacy"] = "spec"
    dimension_separator: Literal[".", "/"] | None = None
    consolidated: bool = True
    fallback_dtypes: bool = False
    allow_pickle: bool = False
    limits: Limits = DEFAULT_LIMITS
    index_cache: int = 0
    walk_by_full_listing: bool = False
    verify: bool | str | os.PathLike[str] = False
    consistent: bool | str = False

    def __post_init__(self) -> None:
        if not isinstance(self.verify, bool):
            object.__setattr__(self, "verify", _lasting_location("verify", self.verify))
        if not isinstance(self.consistent, bool | str):
            raise TypeError(f"consistent={self.consistent!r}: expected True or False.")
        if not isinstance(self.limits, Limits):
            raise TypeError(f"limits={self.limits!r}: expected zarr_dask.Limits(...).")
        flags = ("consolidated", "fallback_dtypes", "allow_pickle", "walk_by_full_listing")
        check_bools(**{name: getattr(self, name) for name in flags})
        size: Any = self.index_cache
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
            raise ValueError(
                f"index_cache={self.index_cache}: expected a whole number of bytes, at least 0."
            )
        if self.missing not in ("fill", "error"):
            raise ValueError(f"missing={self.missing!r}: expected 'fill' or 'error'.")
        if self.v1_f_order not in ("spec", "legacy"):
            raise ValueError(f"v1_f_order={self.v1_f_order!r}: expected 'spec' or 'legacy'.")
        if self.dimension_separator not in (".", "/", None):
            raise ValueError(
                f"dimension_separator={self.dimension_separator!r}: expected '.', '/' or None."
            )

    @staticmethod
    def given(read: ReadOptions | None) -> ReadOptions:
        """Return the options given as ``read=``, or the defaults for None.

        Raises
        ------
        TypeError
            If `read` is neither.
        """
        check_type("read", read, ReadOptions, "zarr_dask.ReadOptions(...)")
        return DEFAULT_OPTIONS if read is None else read

    @property
    def reading(self) -> DecodeOptions:
        """Options that the codecs need."""
        return DecodeOptions(absent_is_error=self.missing == "error")


DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute that names dimensions, by xarray's convention."""
DEFAULT_OPTIONS = ReadOptions()


def _lasting_location(name: str, location: Any) -> str:
    """Return a path or URL that means the same in every process and working directory."""
    if not isinstance(location, str | os.PathLike) or not os.fspath(location):
        raise TypeError(f"{name}={location!r}: expected True, False, a path or a URL.")
    text = os.fspath(location)
    return text if "://" in text else str(Path(text).absolute())


@lru_cache(maxsize=64)
def _key_pattern(name: str, separator: str, ndim: int) -> re.Pattern[str]:
    """Return the pattern of the keys of stored objects, whose group is their coordinates."""
    number, joint = r"(?:0|[1-9][0-9]*)", re.escape(separator)
    lead = {"default": f"c{joint}", "draft": "c", "draft_c0": "c", "v2": ""}[name]
    return re.compile(f"{lead}({number}(?:{joint}{number}){{{ndim - 1}}})")


@dataclass(frozen=True, slots=True)
class ChunkKeyEncoding:
    """Keys of stored objects, below the data prefix of their array."""

    name: Literal["default", "v2", "draft", "draft_c0"]
    """``"draft"`` is ``"default"`` without the separator after its first letter; ``"draft_c0"`` is
    the same, except for the only key of an array without dimensions."""
    separator: Literal["/", "."]

    def key(self, coords: Sequence[int]) -> str:
        """Return the key of the stored object at some coordinates.

        Examples
        --------
        >>> ChunkKeyEncoding("default", "/").key((1, 23)), ChunkKeyEncoding("v2", ".").key(())
        ('c/1/23', '0')
        >>> ChunkKeyEncoding("draft", "/").key((1, 23))
        'c1/23'
        """
        numbers = self.separator.join(map(str, coords))
        if self.name == "default":
            return f"c{self.separator}{numbers}" if coords else "c"
        if self.name == "draft":
            return f"c{numbers}"
        if self.name == "draft_c0":
            return f"c{numbers or '0'}"
        return numbers or "0"

    def coords(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the coordinates in a key; None if it is not the key of a stored object."""
        if ndim == 0:
            return () if key == self.key(()) else None
        found = _key_pattern(self.name, self.separator, ndim).fullmatch(key)
        return None if found is None else tuple(map(int, found[1].split(self.separator)))

    def folder(self, ndim: int) -> str:
        """Return the common folder of all keys of an array with `ndim` dimensions, or "".

        Examples
        --------
        >>> ChunkKeyEncoding("default", "/").folder(2), ChunkKeyEncoding("default", ".").folder(2)
        ('c/', '')
        """
        return "c/" if ndim and self.name == "default" and self.separator == "/" else ""

    @property
    def ambiguous_separator(self) -> ChunkKeyEncoding | None:
        """The layout that metadata with a wrong separator would name instead of this one.

        None if the keys themselves show their layout.
        """
        if self.name != "v2":
            return None
        return ChunkKeyEncoding("v2", "/" if self.separator == "." else ".")


@dataclass(frozen=True)
class ArrayMeta:
    """The metadata of an array."""

    grid: Grid
    """Grid of the stored objects."""
    data_type: DataType
    fill_value: np.ndarray | None
    """A 0-d array; None if there is no fill value, which some formats allow."""
    codecs: CodecChain
    chunk_key_encoding: ChunkKeyEncoding
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dimension_names: tuple[str | None, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Unknown fields of the metadata that readers may ignore, kept unchanged."""
    limits: Limits = field(default=DEFAULT_LIMITS, compare=False)
    """Limits that decoding enforces."""
    missing_chunks_hint: str = field(default="", compare=False)
    """A possible reason why existing chunks seem absent; empty if there is none."""
    skipped: tuple[str, ...] = ()
    """Unknown parts other than codecs that were skipped; the array is then read-only.

    These are storage transformers, and a data type that was read as its fallback.
    """

    def with_shape(
        self,
        grid: Grid,
        attributes: Mapping[str, Any],
        dimension_names: tuple[str | None, ...] | None,
    ) -> ArrayMeta:
        """Return an array that differs in these values only; stored objects must keep their shape.

        Computed attributes that depend on that shape are kept.
        """
        other = object.__new__(ArrayMeta)
        other.__dict__.update(
            self.__dict__, grid=grid, attributes=attributes, dimension_names=dimension_names
        )
        return other

    def with_attributes(self, attributes: Mapping[str, Any]) -> ArrayMeta:
        """Return an array that differs in its attributes only."""
        return self.with_shape(self.grid, attributes, self.dimension_names)

    def is_stored_as(self, other: ArrayMeta) -> bool:
        """True if stored objects of equal shape mean the same in both arrays, by their keys too."""
        return (
            self.chunk_key_encoding == other.chunk_key_encoding
            and self.skipped == other.skipped
            and self.data_type == other.data_type
            and bits_of(self.fill_value) == bits_of(other.fill_value)
            # what holds a NaN differs from itself, but is written alike
            and (self.codecs == other.codecs or repr(self.codecs) == repr(other.codecs))
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements in memory, in native byte order."""
        return self.data_type.dtype

    @property
    def shape(self) -> Shape:
        """Elements along each dimension."""
        return self.grid.shape

    @cached_property
    def chunk_shape(self) -> Shape:
        """Shape of a chunk, the unit of decoding (the largest, if stored objects differ)."""
        return self.codecs.inner_shape(self.grid.largest_cell)

    @property
    def grids(self) -> str:
        """Chunks and shards as text; ranges from smallest to largest if they differ."""
        if self.codecs.serializer.is_sharding:
            return f"{self.chunk_shape} in shards {self.grid.words}"
        return self.grid.words

    def check_writable(self, at: str) -> None:
        """Raise if a step of encoding is not known.

        Raises
        ------
        UnknownCodecError
            If a codec or another step was skipped in reading; `at` locates it in the message.
        """
        if self.skipped:
            expected = "nothing unknown: it may be skipped in reading, but not in writing"
            raise UnknownCodecError(
                at, [ValidationProblem("", list(self.skipped), expected, "codec")]
            )
        self.codecs.check_writable(at)

    def coords(self, key: str) -> tuple[int, ...] | None:
        """Return the coordinates in a key below the data prefix; None if no object has it."""
        coords = self.chunk_key_encoding.coords(key, self.grid.ndim)
        return coords if coords is not None and self.grid.has_cell(coords) else None

    def bound(self, coords: Sequence[int]) -> BoundCodecChain:
        """Return the codecs for the stored object at some coordinates."""
        if self._one_bound is not None:
            return self._one_bound
        return self.codecs.bind(self._spec(self.grid.shape_of(coords)))

    def largest_bound(self) -> BoundCodecChain:
        """Return the codecs for the largest possible stored object."""
        return self.codecs.bind(self._spec(self.grid.largest_cell))

    @cached_property
    def _one_bound(self) -> BoundCodecChain | None:
        cell = self.grid.cell_shape
        return None if cell is None else self.codecs.bind(self._spec(cell))

    def _spec(self, shape: Shape) -> ChunkSpec:
        return ChunkSpec(shape, self.data_type, self.fill_value, self.limits.variable_bytes)

    def __getstate__(self) -> dict[str, Any]:
        # an array is part of each task: leave out computed attributes and usual defaults
        left_out = {"_one_bound", "chunk_shape"}
        left_out |= {name for name in ("missing_chunks_hint", "skipped") if not getattr(self, name)}
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def full_of_fill(self, shape: Shape) -> np.ndarray:
        """Return elements before anything is written, in new memory."""
        return full_of(shape, self.dtype, self.data_type.fill_or_zero(self.fill_value))

    def is_all_fill(self, elements: np.ndarray) -> bool:
        """True if a stored object of these elements can be omitted: all have the fill value."""
        return self.fill_value is not None and is_full_of(elements, self.fill_value)

    def problems(self) -> Iterator[ValidationProblem]:
        """Yield the problems of the combined parts."""
        if self.grid.ndim > _MOST_DIMENSIONS:
            yield ValidationProblem(
                "shape", list(self.shape), f"at most {_MOST_DIMENSIONS} dimensions"
            )
            return
        limits = self.limits
        found = self._codec_problems()
        yield from found
        if not found:
            # bytes codecs around a shard must decode it before its chunks can be read
            whole = self.codecs.serializer.is_sharding and self.codecs.bytes
            unit = self.grid.largest_cell if whole else self.chunk_shape
            nbytes = prod(unit) * self.codecs.largest_item(self._spec(unit))
            if nbytes > limits.chunk_bytes:
                yield ValidationProblem(
                    "chunk shape",
                    list(unit),
                    f"at most {limits.chunk_bytes} decoded bytes per chunk, not {nbytes} "
                    "(ReadOptions(limits=Limits(chunk_bytes=...)) sets another bound)",
                    "grid",
                )

    def _codec_problems(self) -> list[ValidationProblem]:
        """Return the problems of the codecs for the largest cells, or else for smaller ones."""
        found = self._problems_of(self.grid.largest_cell)
        for axis, dimension in enumerate(self.grid.dimensions):
            if isinstance(dimension, Edges) and not found:
                found = self._edge_problems(axis, dimension)
        return found

    def _edge_problems(self, axis: int, edges: Edges) -> list[ValidationProblem]:
        """Return the problems of the codecs for one of the sizes of cells along a dimension."""
        largest = self.grid.largest_cell
        sizes = sorted({size for size, _ in edges.runs})

        def problems_of(size: int) -> list[ValidationProblem]:
            return self._problems_of((*largest[:axis], size, *largest[axis + 1 :]))

        common = problems_of(edges.common)  # a divisor of it divides every size
        if not common:
            return []
        rest = common if len(sizes) > _MOST_TRIED else []
        return next(filter(None, map(problems_of, sizes[:_MOST_TRIED])), rest)

    def _problems_of(self, shape: Shape) -> list[ValidationProblem]:
        return list(self.codecs.problems(self._spec(shape)))


_MOST_TRIED = 1000
"""Maximum number of cell sizes that are tried to name one that does not fit."""
_MOST_DIMENSIONS = 63
"""NumPy's limit is 64, and the index of a shard has one more dimension than its array."""


@dataclass(frozen=True)
class GroupMeta:
    """The metadata of a group."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Unknown fields of the metadata that readers may ignore, kept unchanged."""
    implicit: bool = False
    """True if there is no document: the group exists because nodes lie below its path."""

    def with_attributes(self, attributes: Mapping[str, Any]) -> GroupMeta:
        """Return a group that differs in its attributes only."""
        return replace(self, attributes=attributes)


NodeMeta = ArrayMeta | GroupMeta


class NodeReader(Protocol):
    """The part of a format that walking a hierarchy needs; combined formats implement it, too."""

    @property
    def has_implicit_groups(self) -> bool:
        """True if the groups above a node need no documents."""
        ...

    def node_keys(self, path: str) -> tuple[str, ...]:
        """Return the keys of the documents that a node may have, the most significant first."""
        ...

    def child_names(self, store: Store, path: str) -> list[str]:
        """Return names directly below a group that may be nodes, in order; takes one listing."""
        ...

    def read(
        self, store: Store, path: str, options: ReadOptions, *, found: FetchedDocuments
    ) -> NodeMeta | None:
        """Read the node at `path`; None if there is none.

        `found` holds documents that were fetched already; other documents are fetched here.
        """
        ...


class Format(NodeReader, Protocol):
    """One version of the storage format: location and meaning of documents and data.

    Formats are frozen values; a format with several layouts has them as fields.
    """

    @property
    def name(self) -> str:
        """Name of the format for users, ``"v3"`` for instance."""
        ...

    @property
    def has_shards(self) -> bool:
        """True if a stored object may hold several chunks."""
        ...

    @property
    def shard_index_codecs(self) -> CodecChain:
        """The codecs of the index of a new shard."""
        ...

    @property
    def has_undefined_fill(self) -> bool:
        """True if an array may have no fill value."""
        ...

    @property
    def key_layouts(self) -> tuple[ChunkKeyEncoding, ...]:
        """All layouts of keys, the default first, if a document says which one and all else.

        Such an array may be replaced under other keys; empty for other formats.
        """
        ...

    @property
    def names_attribute(self) -> str | None:
        """The attribute that names dimensions, if they are not a field of the document."""
        ...

    # --- keys -------------------------------------------------------------------------------------

    def data_prefix(self, path: str) -> str:
        """Return the prefix of the stored objects of an array."""
        ...

    def prefixes(self, path: str) -> tuple[str, ...]:
        """Return the prefixes of everything below a node: documents of nodes, stored objects."""
        ...

    def is_node_name(self, name: str) -> bool:
        """True if a name below a group may be a node."""
        ...

    # --- documents --------------------------------------------------------------------------------

    def documents(self, meta: NodeMeta, path: str) -> dict[str, bytes]:
        """Return the documents of a node by key, the one that makes it visible last.

        Raises
        ------
        MetadataError
            If the format cannot express `meta`.
        """
        ...

    def root_documents(self) -> dict[str, bytes]:
        """Return documents of the root of a hierarchy in addition to those of its node."""
        ...

    # --- new arrays -------------------------------------------------------------------------------

    def chain(
        self, wanted: Any, data_type: DataType, stored: np.dtype[Any], order: str, ndim: int
    ) -> CodecChain | list[ValidationProblem]:
        """Return the codecs of a chunk, from the arguments of a user.

        Parameters
        ----------
        wanted
            Codecs as the format spells them; None for the default.
        data_type
            Data type of the array.
        stored
            Its NumPy type with the requested byte orders.
        order
            ``"C"``, or ``"F"`` for chunks with the first dimension varying fastest.
        ndim
            Number of dimensions.
        """
        ...

    def chunk_keys(self, wanted: Any) -> ChunkKeyEncoding | ValidationProblem:
        """Return the layout of keys, from the argument of a user (None: the default)."""
        ...

    def attributes(
        self, attributes: Mapping[str, Any], names: Sequence[str | None] | None
    ) -> dict[str, Any]:
        """Return the attributes of a new array, including names of dimensions if stored there."""
        ...


@dataclass(frozen=True, slots=True)
class BesideData:
    """The part of a format whose documents lie beside the stored objects of their node."""

    name: str
    document_names: tuple[str, ...]
    """Names of the documents that a node may have, the most significant first."""
    has_shards: bool = False
    shard_index_codecs: CodecChain = DEFAULT_INDEX_CODECS
    has_undefined_fill: bool = True
    key_layouts: tuple[ChunkKeyEncoding, ...] = ()
    has_implicit_groups: bool = False
    names_attribute: str | None = None

    def node_keys(self, path: str) -> tuple[str, ...]:
        """See `Format.node_keys`."""
        below = f"{path}/" if path else ""
        return tuple([below + name for name in self.document_names])

    def data_prefix(self, path: str) -> str:
        """See `Format.data_prefix`."""
        return f"{path}/" if path else ""

    def prefixes(self, path: str) -> tuple[str, ...]:
        """See `Format.prefixes`."""
        return (self.data_prefix(path),)

    def child_names(self, store: Store, path: str) -> list[str]:
        """See `Format.child_names`."""
        names = child_prefixes(store, self.data_prefix(path), self.node_keys(path))
        return [name for name in names if self.is_node_name(name)]

    def is_node_name(self, name: str) -> bool:
        """True for all names except those of documents."""
        return bool(name) and name not in self.document_names and name.strip(".") != ""

    def root_documents(self) -> dict[str, bytes]:
        """See `Format.root_documents`."""
        return {}


def child_prefixes(store: Store, prefix: str, documents: Iterable[str]) -> list[str]:
    """Return names directly below a prefix that have something below them.

    Parameters
    ----------
    store, prefix, documents
        As for `check_listed`.
    """
    found = store.list_dir(prefix)
    if not any(found):
        check_listed(store, prefix, documents)
    return [below[len(prefix) :].rstrip("/") for below in found.prefixes]


def check_listed(store: Store, prefix: str, documents: Iterable[str]) -> None:
    """Raise if nothing was listed below a prefix where metadata are.

    A page of a gateway, with status 200, is an empty listing for the libraries of object stores.

    Parameters
    ----------
    store, prefix
        What was listed.
    documents
        Keys of metadata, which are looked for if they are below the prefix.

    Raises
    ------
    StoreError
        If one is there.
    """
    for key in documents:
        if key.startswith(prefix) and store.get(key) is not None:
            raise StoreError(
                f"could not list {prefix!r} in {store.url}: nothing was listed, but {key!r} is "
                "there. Another service than the store may have answered, such as a gateway. Try "
                "again; if it remains so, look at what listings of that address return."
            )


# --- paths ----------------------------------------------------------------------------------------


def normalise_path(path: str | os.PathLike[str] | None) -> str:
    """Return a path below the root of a hierarchy, without redundant slashes; None is the root.

    Raises
    ------
    StoreKeyError
        If it is not a text, or a segment is "." or "..".

    Examples
    --------
    >>> normalise_path("/a//b/")
    'a/b'
    """
    from zarr_dask.stores.base import check_key

    text = "" if path is None else path
    if isinstance(text, os.PathLike):
        text = os.fspath(text)
    if not isinstance(text, str):
        raise StoreKeyError(f"path={path!r}: expected a text, names joined by '/'.")
    normal = "/".join(part for part in text.replace("\\", "/").split("/") if part)
    if normal:
        check_key(normal)
    return normal


def ancestors(path: str) -> list[str]:
    """Return paths of the groups above a path, the root first.

    Examples
    --------
    >>> ancestors("a/b/c")
    ['', 'a', 'a/b']
    """
    parts = path.split("/") if path else []
    return ["/".join(parts[:depth]) for depth in range(len(parts))]


def prefix_of(path: str) -> str:
    """Return the prefix of all keys below a path."""
    return f"{path}/" if path else ""


def stored_grid(shape: Sequence[int], cell: Sequence[int]) -> Grid:
    """Return a regular grid from metadata; a length of 0 is read as 1 if there are no elements.

    Raises
    ------
    GridError
        If the lengths do not fit together.
    """
    if len(shape) == len(cell):
        cell = [1 if c == 0 and n == 0 else c for c, n in zip(cell, shape, strict=True)]
    if any(n < 0 for n in shape):
        raise GridError(f"shape {list(shape)} has a negative length.")
    if any(c >= 1 << 63 for c in cell):
        raise GridError(f"a cell shape {list(cell)} has a length that no array has.")
    return Grid.regular(shape, cell)
