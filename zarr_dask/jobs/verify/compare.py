"""Compare the values of two arrays or hierarchies, independently of how they are stored.

Two arrays are compared in boxes that cut no stored object of either, if memory allows it, so that
each object is decoded once. For groups, all nodes below are compared: their existence, shapes, data
types, dimension names, attributes and values. Layouts, codecs, fill values and formats are ignored.

Values are equal if ``==`` is true. NaN equals NaN (and NaT NaT) unless ``equal_nan=False``; zeros
of both signs are equal. Complex numbers are compared part by part, records field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask._util.arguments import check_bools
from zarr_dask._util.display import InWords
from zarr_dask._util.keywords import takes_habits
from zarr_dask._util.lazy_names import hides
from zarr_dask.array.array import Array
from zarr_dask.errors import MetadataError, NodeTypeError, StoreError
from zarr_dask.formats.base import ReadOptions
from zarr_dask.formats.missing_values import FILL_VALUE
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.open_node import open as open_node
from zarr_dask.jobs.engine.block_diff import BlockDiff, differing
from zarr_dask.jobs.engine.map_regions import boxes_for, is_dask, run_boxes, sampled
from zarr_dask.jobs.engine.plan import LISTED, more_line
from zarr_dask.jobs.engine.prices import Measured, Traffic, measuring
from zarr_dask.jobs.verify.digest import Sum, add_hashes, digest_text, sum_of
from zarr_dask.stores.open import Location
from zarr_dask.stores.patience import in_job

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

__all__ = [
    "ArrayComparison",
    "Comparison",
    "Difference",
    "compare",
]


@dataclass(frozen=True)
class Difference:
    """A difference between two nodes, other than in values."""

    kind: str
    """``"only in a"``, ``"only in b"``, ``"kind"``, ``"shape"``, ``"dtype"``,
    ``"dimension_names"``, ``"attributes"`` or ``"document"``."""
    path: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.path or '/'}: {self.kind}: {self.a} and {self.b}"


@dataclass(frozen=True)
class ArrayComparison:
    """Comparison of the values of two arrays."""

    path: str
    elements: int
    """Number of elements that were compared."""
    differing: int
    """Number of elements that differ."""
    first: tuple[tuple[Shape, Any, Any], ...]
    """Coordinates and both values of the first ten differing elements, in C order."""
    digest: str | None
    """`zarr_dask.digest` of `a`, and of `b` if they are equal; None if it was not requested."""


@hides("exit_code", "traffic_lines", "traffic_to_json")
@dataclass(frozen=True, repr=False)
class Comparison(Measured, InWords):
    """Result of a comparison; made by `zarr_dask.compare`. ``bool(result)`` is `equal`."""

    a: str
    b: str
    arrays: tuple[ArrayComparison, ...]
    differences: tuple[Difference, ...]
    sample: float | None = None
    traffic: Traffic = field(default_factory=Traffic, compare=False)
    """Time and requests."""

    @property
    def equal(self) -> bool:
        """True if nothing differs."""
        return not self.differences and not any(one.differing for one in self.arrays)

    def __bool__(self) -> bool:
        return self.equal

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0 only if nothing differs."""
        return 0 if self.equal else 1

    @property
    def digest(self) -> str | None:
        """The digest of `a`, if it is one array and the digest was requested."""
        return self.arrays[0].digest if len(self.arrays) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON values; values of elements are texts.

        Returns
        -------
        dict
            ``compare_version`` (1), ``a``, ``b``, ``equal``, ``sample``, ``seconds``, ``requests``
            (numbers by kind), ``retried``, ``waited``, and ``differences`` and ``arrays``, lists
            with the members of `Difference` and `ArrayComparison`.
        """
        return {
            "compare_version": 1,
            "a": self.a,
            "b": self.b,
            "equal": self.equal,
            "sample": self.sample,
            **self.traffic_to_json(),
            "differences": [
                {"kind": d.kind, "path": d.path, "a": d.a, "b": d.b} for d in self.differences
            ],
            "arrays": [
                {
                    "path": one.path,
                    "elements": one.elements,
                    "differing": one.differing,
                    "first": [
                        {"coords": list(coords), "a": _shown(a), "b": _shown(b)}
                        for coords, a, b in one.first
                    ],
                    "digest": one.digest,
                }
                for one in self.arrays
            ],
        }

    def __str__(self) -> str:
        lines = [f"compare {self.a} with {self.b}: {'equal' if self.equal else 'different'}"]
        lines.extend(f"  {difference}" for difference in self.differences[:LISTED])
        lines += more_line(len(self.differences), "difference")
        differing = [one for one in self.arrays if one.differing]
        for one in differing[:LISTED]:
            lines.append(
                f"  {one.path or '/'}: {one.differing:,} of {one.elements:,} elements differ"
            )
            lines.extend(f"    {at}: {_shown(a)} and {_shown(b)}" for at, a, b in one.first)
        lines += more_line(len(differing), "array")
        elements = sum(one.elements for one in self.arrays)
        verdict = "equal" if self.equal else "different"
        part = "" if self.sample is None else ", a sample"
        lines += self.traffic_lines()
        lines.append(f"  {verdict} ({elements:,} elements compared{part})")
        return "\n".join(lines)


def _shown(value: Any) -> str:
    text = repr(
        value.item() if isinstance(value, np.generic) and value.dtype.kind != "V" else value
    )
    return text if len(text) <= 80 else f"{text[:77]}..."


@in_job()
@takes_habits()
def compare(
    a: Location | Array | Group,
    b: Location | Array | Group | np.ndarray | da.Array,
    sample: float | None = None,
    client: Client | None = None,
    *,
    equal_nan: bool = True,
    attributes: bool = True,
    digest: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> Comparison:
    """Compare the values of two arrays, or of all arrays of two hierarchies.

    Parameters
    ----------
    a, b
        Arrays or groups: locations, open nodes, NumPy arrays; one of them may be a dask array.
    sample
        Compare only this fraction of the blocks (a float), or this many blocks of each array (an
        int); the choice is always the same.
    client
        A cluster; by default the current client, or else dask's configured scheduler.
    equal_nan
        True if NaN equals NaN, and NaT equals NaT.
    attributes
        True to compare attributes.
    digest
        Also compute the digest of the values (see `zarr_dask.digest`).
    storage_options, read
        As for `zarr_dask.open`, for arguments that are locations; storage options only for paths
        and URLs.
    target_options
        Storage options of `b`, if they are others; None for those of `a`.

    Returns
    -------
    Comparison
        True if nothing differs.

    Raises
    ------
    NodeNotFoundError
        If nothing exists at a location.
    NodeTypeError
        If one is an array and the other a group.
    TypeError
        If one is a dataset of xarray, which ``dataset.zd.compare(url)`` compares.
    CorruptObjectError
        If stored bytes cannot be decoded.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(4,), dtype="i4", chunks=2)
    >>> a[...] = [1, 2, 3, 4]
    >>> found = zd.compare(a, np.array([1, 2, 7, 4], "i4"))
    >>> bool(found), found.arrays[0].first
    (False, (((2,), np.int32(3), np.int32(7)),))
    """
    check_bools(equal_nan=equal_nan, attributes=attributes, digest=digest)
    if storage_options and not any(map(_is_named, (a, b))):
        raise StoreError(
            f"storage_options {sorted(storage_options)} are for a path or URL, and neither of the "
            "two is one."
        )
    if target_options and not _is_named(b):
        raise StoreError(
            f"target_options {sorted(target_options)} are for a path or URL, and the second of the "
            "two is none."
        )
    of_b = storage_options if target_options is None else target_options
    given: Any = sample
    if isinstance(given, np.number):
        sample = given.item()  # the report must be JSON
    job = _ComparisonState(sample, client, equal_nan, attributes, digest)
    with measuring() as measured:
        left, right = _opened(a, storage_options, read), _opened(b, of_b, read)
        if isinstance(left, Group) != isinstance(right, Group):
            kinds = ["a group" if isinstance(one, Group) else "an array" for one in (left, right)]
            raise NodeTypeError(f"{_place(left)} is {kinds[0]}, {_place(right)} {kinds[1]}.")
        if isinstance(left, Group) and isinstance(right, Group):
            job.groups(left, right)
        else:
            job.arrays_at("", left, right)
    found = tuple(job.arrays), tuple(job.differences)
    return Comparison(_place(left), _place(right), *found, sample, measured.traffic)


def _opened(one: Any, storage_options: Mapping[str, Any] | None, read: ReadOptions | None) -> Any:
    if hasattr(one, "data_vars"):
        raise TypeError(
            "datasets of xarray are compared by dataset.zd.compare(url), stored ones by their "
            "locations: zarr_dask.compare(url, other)."
        )
    if isinstance(one, Array | Group | np.ndarray) or is_dask(one):
        return one
    if isinstance(one, np.generic) and not isinstance(one, np.str_):  # a location
        return np.asarray(one)  # an index that leaves no dimension gives these
    return open_node(one, storage_options=storage_options if _is_named(one) else None, read=read)


def _is_named(one: Any) -> bool:
    """True for a path or URL, which storage options are for."""
    return isinstance(one, str | PathLike)


def _place(one: Any) -> str:
    return (
        one.where
        if isinstance(one, Array | Group)
        else f"a {type(one).__module__.partition('.')[0]} array"
    )


@dataclass
class _ComparisonState:
    """Arguments of a comparison, and its results so far."""

    sample: float | None
    client: Client | None
    equal_nan: bool
    attributes: bool
    digest: bool
    arrays: list[ArrayComparison] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    def differ(self, kind: str, path: str, a: object, b: object) -> None:
        """Record a difference."""
        self.differences.append(Difference(kind, path, str(a), str(b)))

    def groups(self, a: Group, b: Group) -> None:
        """Compare two groups and all nodes below them."""
        self.attributes_at("", a, b)
        left, right = dict(a.walk()), dict(b.walk())
        for path in sorted(left.keys() | right.keys()):
            one, other = left.get(path), right.get(path)
            if one is None or other is None:
                what = type(one or other).__name__.lower()
                self.differ("only in a" if other is None else "only in b", path, what, "nothing")
            elif isinstance(one, MetadataError) or isinstance(other, MetadataError):
                self.differ("document", path, one, other)
            elif isinstance(one, Array) and isinstance(other, Array):
                self.arrays_at(path, one, other)
            elif isinstance(one, Group) and isinstance(other, Group):
                self.attributes_at(path, one, other)
            else:
                self.differ("kind", path, type(one).__name__, type(other).__name__)

    def attributes_at(self, path: str, a: Array | Group, b: Array | Group) -> None:
        """Compare the attributes of two nodes."""
        mine, theirs = (
            one.user_attributes if isinstance(one, Array) else one.attributes for one in (a, b)
        )
        names = mine.keys() | theirs.keys() if self.attributes else set()
        if _says_missing_values_otherwise(a, b):
            names -= {FILL_VALUE}
        for name in sorted(names):
            one, other = mine.get(name, _NOTHING), theirs.get(name, _NOTHING)
            if one != other and repr(one) != repr(other):  # NaN in JSON is not equal to itself
                self.differ("attributes", path, f"{name}={one!r}", f"{name}={other!r}")

    def arrays_at(self, path: str, a: Any, b: Any) -> None:
        """Compare two arrays."""
        if isinstance(a, Array) and isinstance(b, Array):
            self.attributes_at(path, a, b)
            if (a.dimension_names or None) != (b.dimension_names or None):  # a scalar has none
                self.differ("dimension_names", path, a.dimension_names, b.dimension_names)
        labels = [_label(one) for one in (a, b)]
        if labels[0] != labels[1] and not _is_in_memory_as(a, b):
            self.differ("dtype", path, *labels)
        if tuple(a.shape) != tuple(b.shape):
            self.differ("shape", path, tuple(a.shape), tuple(b.shape))
        elif _comparable(a.dtype, b.dtype):
            self.arrays.append(self.values(path, a, b))

    def values(self, path: str, a: Any, b: Any) -> ArrayComparison:
        """Compare the values of two arrays of one shape."""
        swapped = is_dask(b)
        source, other = (b, a) if swapped else (a, b)
        if is_dask(other):
            raise NodeTypeError("two dask arrays: compare them with dask, or store one of them.")
        stored = [one for one in (a, b) if isinstance(one, Array)]
        boxes = boxes_for(a.shape, a.dtype, stored)
        numbers = sampled(boxes.ncells, self.sample)
        if is_dask(source):
            if self.sample is not None:
                raise NodeTypeError("sample= chooses among stored blocks: a dask array has none.")
            if stored:
                source = source.rechunk(stored[0].meta.grid.align(source.chunks))
        found = _BoxDiff()
        shape = tuple(other.shape) if self.digest else None
        look = partial(_look, swapped=swapped, equal_nan=self.equal_nan, digest_shape=shape)
        run_boxes(look, source, boxes, found.add, self.client, "compare", numbers, other)
        text = None
        if self.digest and numbers is None:
            text = digest_text(a.shape, a.dtype, found.total)
        first = tuple((at, x, y) for at, x, y in found.diff.first)
        return ArrayComparison(path, found.diff.elements, found.diff.differing, first, text)


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _label(array: Any) -> str:
    return array.meta.data_type.label if isinstance(array, Array) else _numpy_label(array.dtype)


def _is_in_memory_as(a: Any, b: Any) -> bool:
    """True if two types of variable-length elements differ only because one array is in memory.

    NumPy uses objects for all of them, and `numpy.dtypes.StringDType` for texts.
    """
    in_memory = [one for one in (a, b) if not isinstance(one, Array)]
    kinds = {a.dtype.kind, b.dtype.kind}
    return bool(in_memory) and "O" in kinds and kinds <= set("OT")


def _numpy_label(dtype: np.dtype[Any]) -> str:
    from zarr_dask.dtypes import data_type_of

    made = data_type_of(dtype) if not dtype.hasobject else None
    return str(dtype) if made is None or isinstance(made, list) else made.label


def _comparable(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """True if ``==`` is meaningful for values of these types."""
    if a == b:
        return True
    kinds = {_family(one) for one in (a, b)}
    return len(kinds) == 1 and kinds <= {"numbers", "texts"}


def _family(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "biufc":
        return "numbers"
    return "texts" if dtype.kind in "UOT" else str(dtype)


# --- one box --------------------------------------------------------------------------------------


@dataclass
class _BoxDiff:
    """Differences found in one box or in all, and the sum of the hashes of the elements."""

    diff: BlockDiff = field(default_factory=BlockDiff)
    total: Sum = (0, 0)

    def add(self, other: _BoxDiff) -> None:
        self.diff.add(other.diff)
        self.total = add_hashes(self.total, other.total)


def _look(
    values: np.ndarray,
    region: Region,
    others: np.ndarray,
    *,
    swapped: bool,
    equal_nan: bool,
    digest_shape: Shape | None,
) -> _BoxDiff:
    """Compare a box of one array with the same box of the other; digest it with a whole shape."""
    pair = (values, others)
    a, b = reversed(pair) if swapped else pair
    found = differing(a, b, tuple(s.start for s in region), equal_nan=equal_nan)
    return _BoxDiff(found, (0, 0) if digest_shape is None else sum_of(a, region, digest_shape))


def _says_missing_values_otherwise(a: Array | Group, b: Array | Group) -> bool:
    """True if one of two nodes has its missing value as fill value, the other as an attribute."""
    said = [one.node_format.names_attribute is None for one in (a, b)]
    return said[0] != said[1]
