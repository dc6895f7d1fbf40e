"""Many headers as one dataset: order, arrays, pieces, and what keeps them from fitting."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Any, Literal

import numpy as np

from zarr_dask._util.keywords import did_you_mean
from zarr_dask.errors import GridError, IngestError, StoreKeyError
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.formats.missing_values import has_mask
from zarr_dask.jobs.engine.plan import format_bytes
from zarr_dask.jobs.ingest.convert import PACKING, Conversion, unpacked_dtype
from zarr_dask.jobs.ingest.differences import FileDifference, choice_for
from zarr_dask.jobs.ingest.file_store import FORMAT, meta_of
from zarr_dask.jobs.ingest.header import (
    NOT_FINITE,
    Header,
    Variable,
    decoded,
    encoded,
    plain,
)
from zarr_dask.jobs.ingest.time_units import between_lengths, between_units, finer_units, is_time
from zarr_dask.stores.base import check_key

__all__ = [
    "Combination",
    "Combined",
    "FilePiece",
    "Order",
    "StoredVariable",
    "combine",
    "compared_variables",
    "inferred_concat",
    "new_ends",
    "with_zero_fills",
]

Order = Literal["given", "name", "coordinate"]


@dataclass(frozen=True)
class FilePiece:
    """The part of an array that lies in one file."""

    file: int
    """Number of the file; -1 for masked values in the place of a missing variable."""
    start: int
    """Its first element along the concatenation."""
    extent: int
    conversion: Conversion | None
    """None if values stay as they are."""
    direct: bool
    """True if its chunks are those of the array."""


@dataclass(frozen=True)
class StoredVariable:
    """A variable of the store to which files are appended."""

    units: str
    """Its attribute; empty if it has none."""
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Combined:
    """One array of the dataset."""

    path: str
    meta: ArrayMeta
    served: Variable
    """Data type, filters and fill value of its chunks."""
    axis: int | None
    """The axis of the concatenation; None for an array that one file has for all."""
    new_axis: bool
    """True if files do not have that axis."""
    pieces: tuple[FilePiece, ...]
    missing: Any = None
    """Value where a file lacks it; None if none does."""

    @property
    def mask(self) -> Any:
        """The value of elements that a file does not yield, masked if the array has masks."""
        if self.served.dtype == "string":
            return ""
        if self.missing is not None:
            return self.missing
        given = self.served.attribute("_FillValue")
        if given is not None:
            return given
        if np.dtype(self.served.dtype).kind in "fc":
            return np.nan
        return 0 if self.served.fill is None else decoded(self.served.fill)


@dataclass(frozen=True)
class Combination:
    """Files as one dataset."""

    headers: tuple[Header, ...]
    """The files in the order of the concatenation."""
    concat: str | None
    arrays: Mapping[str, Combined]
    groups: Mapping[str, Mapping[str, Any]]
    """Attributes of the groups."""
    differences: tuple[FileDifference, ...]
    """Those that are not settled."""
    notes: tuple[str, ...]
    lengths: tuple[int, ...]
    """Elements of each file along the concatenation."""
    has_zero_fills: bool = False
    """True if it comes from `with_zero_fills`."""

    @property
    def doubt(self) -> str:
        """A question if a new dimension has almost the name of one in the files; else empty."""
        known = sorted({name for one in self.headers for name in one.dimensions})
        if self.concat is None or self.concat in known:
            return ""
        question = did_you_mean(self.concat, known, closeness=0.75)
        new = f"No file has the dimension {self.concat!r}, so that each would be one element of it."
        return question and new + question


def with_zero_fills(found: Combination) -> Combination:
    """Return files as a dataset in which no number that is not masked is a fill value, but zero.

    NetCDF and HDF5 have a fill value of their own for what was never written, which is no mask.
    """
    arrays = {
        path: replace(
            one,
            meta=replace(one.meta, fill_value=one.meta.data_type.zero),
            served=replace(one.served, fill=None),
        )
        if has_mask(one.meta)
        else one
        for path, one in found.arrays.items()
    }
    return replace(found, arrays=arrays, has_zero_fills=True)


@dataclass
class _Work:
    settle: Mapping[str, str]
    differences: list[FileDifference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def choice(
        self,
        kind: str,
        header: Header,
        variable: str,
        found: str,
        choices: tuple[str, ...],
        by_name: tuple[str, ...] = (),
        default: str = "stop",
    ) -> str:
        """Return the choice for a difference; "stop" if there is none, and it is listed."""
        chosen = choice_for(self.settle, kind, variable, by_name, default)
        if chosen not in choices:
            difference = FileDifference(kind, header.url, variable, found, choices, by_name)
            self.differences.append(difference)
            return "stop"
        return chosen

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)


# --- the concatenation ----------------------------------------------------------------------------


def compared_variables(headers: Sequence[Header], concat: str | None) -> list[str]:
    """Return the variables whose values must be equal in all files."""
    if len(headers) < 2:
        return []
    return sorted(
        {path for one in headers for path, v in one.variables.items() if concat not in v.dims}
    )


def inferred_concat(headers: Sequence[Header]) -> str | None:
    """Return the one dimension along which the files differ; None for a single file.

    Raises
    ------
    IngestError
        If there is none, or several.
    """
    if len(headers) < 2:
        return None
    found: list[str] = []
    for name in headers[0].dimensions:
        if _is_text_length(name, headers[0]):
            continue
        ones = [
            next(
                (
                    v
                    for p, v in h.variables.items()
                    if p.rpartition("/")[2] == name and v.dims == (name,)
                ),
                None,
            )
            for h in headers
        ]
        facts = {  # times of two years may be the same numbers, since other days
            (one.shape, one.digest, str(one.attribute("units"))) if one else None for one in ones
        }
        lengths = {h.dimensions.get(name) for h in headers}
        if len(facts) > 1 or len(lengths) > 1:
            found.append(name)
    if len(found) == 1:
        return found[0]
    why = f"they differ along {', '.join(found)}" if found else "their coordinates are all equal"
    raise IngestError(
        f"the dimension of the concatenation cannot be told, because {why}: give it as concat=, "
        "a name; one that no file has becomes a new dimension."
    )


def _is_text_length(name: str, header: Header) -> bool:
    """True for a dimension that only counts the characters of texts, as NetCDF-3 has them."""
    having = [one for one in header.variables.values() if name in one.dims]
    return all(_is_text(one) and one.dims[-1] == name for one in having)


def _is_text(one: Variable) -> bool:
    """True for an array of characters, whose last dimension makes texts of them."""
    return one.dtype == "|S1" and len(one.dims) > 1


def _are_texts(one: Variable, other: Variable, concat: str | None) -> bool:
    """True for texts that may differ in nothing but their lengths."""
    return (
        (_is_text(one) and _is_text(other))
        and one.dims[:-1] == other.dims[:-1]
        and concat not in (one.dims[-1], other.dims[-1])
    )


def _coordinate(header: Header, concat: str) -> Variable | None:
    for path, one in header.variables.items():
        if path.rpartition("/")[2] == concat and one.dims == (concat,):
            return one
    return None


def _ends(header: Header, concat: str, reference: Variable | None) -> tuple[float, ...]:
    """Return the ends of a file's coordinate in the units of the reference; empty if unknown."""
    one = _coordinate(header, concat)
    if one is None or not one.values or reference is None:
        return ()
    change = _time_change(one, reference)
    if change is None or one.values[4] == NOT_FINITE:
        return one.values
    scale, offset = change
    first, last, least, most = (float(Fraction(v) * scale + offset) for v in one.values[:4])
    return (first, last, least, most, one.values[4])


def new_ends(header: Header, found: Combination) -> tuple[float, ...]:
    """Return the ends of a file's coordinate in the units of its array; empty if unknown."""
    concat = str(found.concat)
    reference = _coordinate(found.headers[0], concat)
    path = next((p for p, v in found.headers[0].variables.items() if v is reference), "")
    units = found.arrays[path].meta.attributes.get("units") if path in found.arrays else None
    if reference is not None and units is not None:
        reference = _in_units(reference, str(units))
    ends = _ends(header, concat, reference)
    return () if ends and ends[4] == NOT_FINITE else ends


def _ordered(
    headers: Sequence[Header], concat: str | None, order: Order | None, work: _Work
) -> list[Header]:
    """Return the files in order, and note what is odd about it."""
    found = list(headers)
    if concat is None or len(found) < 2:
        return found
    reference = _coordinate(found[0], concat)
    ends = {one.url: _ends(one, concat, reference) for one in found}
    odd = [one for one in found if ends[one.url] and ends[one.url][4] == NOT_FINITE]
    for one in odd:
        text = "has values that are not finite: NaN, or infinity"
        work.choice("order", one, concat, text, ("keep",))
    known = all(ends.values()) and not odd
    directions = {one[4] for one in ends.values() if one and one[0] != one[1]}
    falling = directions == {-1}
    if order == "coordinate":
        if not known:
            raise IngestError(
                f"order='coordinate': not every file has numbers along {concat!r}. Give the files "
                "in their order, or order='name'."
            )
        found.sort(key=lambda one: ends[one.url][0], reverse=falling)
    if known:
        _check_order([(one, ends[one.url]) for one in found], concat, falling, work)
    return found


def _check_order(
    files: Sequence[tuple[Header, tuple[float, ...]]], concat: str, falling: bool, work: _Work
) -> None:
    sign = -1 if falling else 1
    for one, ends in files:
        if not ends[4] or (ends[4] != sign and ends[0] != ends[1]):
            work.choice(
                "order",
                one,
                concat,
                "its own values neither rise nor fall throughout"
                if ends[4] == 0
                else "its values run the other way",
                ("keep",),
            )
    for (before, a), (one, b) in pairwise(files):
        if (b[0] - a[0]) * sign < 0:
            text = f"begins at {b[0]:g}, before {before.url} ({a[0]:g}): order='coordinate' sorts"
            work.choice("order", one, concat, text, ("keep",))
        elif (b[0] - a[1]) * sign <= 0:
            text = f"begins at {b[0]:g}, but {before.url} reaches {a[1]:g}"
            work.choice("overlap", one, concat, text, ("keep",))
    for text in _gaps(files, concat, sign):
        work.note(text)


def _gaps(
    files: Sequence[tuple[Header, tuple[float, ...]]], concat: str, sign: int
) -> Iterator[str]:
    """Yield gaps between files of which each has regular steps, or one element."""
    steps = sorted(abs(b[0] - a[1]) for (_, a), (_, b) in pairwise(files))
    usual = steps[(len(steps) - 1) // 2] if steps else 0
    for (before, a), (one, b) in pairwise(files):
        step = (b[0] - a[1]) * sign
        if len(steps) > 1 and usual and step > 1.5 * usual:
            ends = f"{before.url} ends at {a[1]:g}, {one.url} begins at {b[0]:g}"
            yield f"a gap along {concat}: {ends}"


# --- the arrays -----------------------------------------------------------------------------------


def combine(
    headers: Iterable[Header],
    *,
    concat: str | None,
    order: Order | None,
    settle: Mapping[str, str],
    variables: Sequence[str] | None = None,
    stored: Mapping[str, StoredVariable] | None = None,
) -> Combination:
    """Return files as one dataset, with all differences that are not settled.

    Parameters
    ----------
    headers
        Headers in the order of the files.
    concat
        Dimension along which files follow each other; None if there is one file, or to take the
        one along which they differ.
    order
        ``"coordinate"`` to sort by the values along it; else as they are.
    settle
        Choices for differences, by kind or by kind and variable.
    variables
        Paths of the variables to take; all by default.
    stored
        Variables of the store to append to, by path.

    Raises
    ------
    IngestError
        If there is nothing to combine.
    """
    work = _Work(settle)
    readable = []
    for one in headers:
        if one.error:
            if work.choice("unreadable", one, "", one.error, ("skip",)) == "skip":
                work.note(f"{one.url} is left out: {one.error}")
        else:
            readable.append(_with_masks(one, work))
    if not readable:
        return Combination((), concat, {}, {}, tuple(work.differences), tuple(work.notes), ())
    _check_variables(readable, "variables", variables or ())
    _check_variables(readable, "settle", [key.partition(":")[2] for key in settle if ":" in key])
    concat = concat or inferred_concat(readable)
    files = _ordered(readable, concat, order, work)
    new = concat is not None and all(concat not in one.dimensions for one in files)
    lengths = tuple(1 if new else _length(one, concat) for one in files)
    parents = _bounds_parents(files)
    stored = stored or {}
    units = _finer(files, settle, stored)
    arrays: dict[str, Combined] = {}
    for path in dict.fromkeys(p for one in files for p in one.variables):
        if variables is not None and path not in variables:
            continue
        made = _Array(
            path, files, concat, new, lengths, parents.get(path), units, stored.get(path), work
        ).made()
        if made is not None:
            arrays[path] = made
    groups = _groups(files, work)
    _note_left_out(files, work)
    _note_sparse(files, arrays, work)
    return Combination(
        tuple(files), concat, arrays, groups, tuple(work.differences), tuple(work.notes), lengths
    )


def _with_masks(header: Header, work: _Work) -> Header:
    """Return a header without the masks that mask nothing: NaN, of integers."""
    found = {}
    for path, one in header.variables.items():
        idle = {
            name
            for name in ("_FillValue", "missing_value")
            if one.dtype != "string" and np.dtype(one.dtype).kind in "iu" and _is_nan(one, name)
        }
        if idle:
            attrs = {name: value for name, value in one.attrs.items() if name not in idle}
            found[path] = replace(one, attrs=attrs)
            kind = np.dtype(one.dtype).newbyteorder("=")
            work.note(f"{path}: {' and '.join(sorted(idle))} is NaN and masks no {kind}: left out")
    return replace(header, variables={**header.variables, **found}) if found else header


def _is_nan(one: Variable, name: str) -> bool:
    value = np.asarray(one.attribute(name))
    return value.ndim == 0 and value.dtype.kind == "f" and bool(np.isnan(value))


def _check_variables(headers: Sequence[Header], option: str, names: Sequence[str]) -> None:
    there = {path for one in headers for path in one.variables}
    unknown = [name for name in names if name not in there]
    if unknown:
        raise IngestError(
            f"{option} names {unknown}, which no file has; there are {', '.join(sorted(there))}."
        )


def _length(header: Header, concat: str | None) -> int:
    return header.dimensions.get(concat, 1) if concat is not None else 1


def _bounds_parents(headers: Sequence[Header]) -> dict[str, str]:
    """Return the variables that give bounds of others, with these: they have the same units."""
    found = {}
    for one in headers[:1]:
        for path, variable in one.variables.items():
            for name in ("bounds", "climatology"):
                bounds = variable.attribute(name)
                if isinstance(bounds, str):
                    found[f"{path.rpartition('/')[0]}/{bounds}".lstrip("/")] = path
    return found


def _finer(
    files: Sequence[Header], settle: Mapping[str, str], stored: Mapping[str, StoredVariable]
) -> dict[str, str]:
    """Return the units that are stored, or finer ones, in which no time becomes a rounded one."""
    found = {}
    for path in dict.fromkeys(p for one in files for p in one.variables):
        ones = [one.variables[path] for one in files if path in one.variables]
        if _choice_of_units(settle, path, ones[0]) != "convert":
            continue
        if path in stored and is_time(stored[path].units):
            if _time_change(ones[0], _in_units(ones[0], stored[path].units)) is not None:
                found[path] = stored[path].units
            continue
        whole = all(one.dtype != "string" and np.dtype(one.dtype).kind in "iu" for one in ones)
        changes = [change for one in ones if (change := _time_change(one, ones[0]))]
        parts = lcm(*(number.denominator for change in changes for number in change))
        if parts > 1 and (whole or parts & (parts - 1)):  # floats have halves, but no thirds
            units = finer_units(str(_units_of(ones[0])[0]), parts)
            found |= {} if units is None else {path: units}
    return found


def _choice_of_units(settle: Mapping[str, str], path: str, one: Variable) -> str:
    """Return the choice for other units: times are converted unless another one is given."""
    default = "convert" if _is_decoded_time(one) else "stop"
    return choice_for(settle, "units", path, ("first",), default)


def _is_decoded_time(one: Variable) -> bool:
    """True for dates, and for lengths of time of xarray, which takes other units in each file."""
    marked = str(one.attribute("dtype") or "").startswith("timedelta64")
    return is_time(_units_of(one)[0]) or marked


def _in_units(one: Variable, units: str | None) -> Variable:
    return one if units is None else replace(one, attrs={**one.attrs, "units": units})


def _groups(files: Sequence[Header], work: _Work) -> dict[str, dict[str, Any]]:
    """Return the attributes of groups, those of the first file that has one."""
    found: dict[str, dict[str, Any]] = {}
    for one in files:
        for path, attrs in one.groups.items():
            first = found.setdefault(path, dict(attrs))
            if first != attrs:
                names = sorted(k for k in {*first, *attrs} if first.get(k) != attrs.get(k))
                what = f"{path or 'the files'} differ ({', '.join(names)})"
                work.note(f"attributes of {what}: the first file's stay")
    return {path: {k: plain("", v) for k, v in attrs.items()} for path, attrs in found.items()}


def _note_left_out(files: Sequence[Header], work: _Work) -> None:
    """Name the attributes that are not kept, and the links that are not followed."""
    found = list(dict.fromkeys(name for one in files for name in one.left_out))
    for what, names in (
        ("attributes of types that Zarr does not have", [one for one in found if "@" in one]),
        ("links to other files, or to nothing,", [one for one in found if "@" not in one]),
    ):
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            work.note(f"{what} are left out: {', '.join(names[:_NAMED])}{more}")


_NAMED = 5


def _note_sparse(files: Sequence[Header], arrays: Iterable[str], work: _Work) -> None:
    """Say so if files declare far more values than can lie in them."""
    declared = sum(one.variables[p].nbytes for p in arrays for one in files if p in one.variables)
    held = sum(one.size for one in files)
    if declared > max(_SPARSE * held, _LARGE) and all(one.kind == "hdf5" for one in files):
        work.note(
            f"the files declare {format_bytes(declared)} of values and hold {format_bytes(held)}: "
            "most were never written, or compress well; tasks go through all that is declared"
        )


_SPARSE, _LARGE = 100, 10**9


def _time_change(one: Variable, reference: Variable) -> tuple[Fraction, Fraction] | None:
    """Return the change of units from one time to another, or from one length of time.

    None if they are equal, or no such units.
    """
    (units, calendar), (wanted, wanted_calendar) = _units_of(one), _units_of(reference)
    equal = (units, calendar) == (wanted, wanted_calendar)
    if equal or units is None or wanted is None:
        return None
    factor = between_lengths(units, wanted)
    if factor is not None:
        return factor, Fraction(0)
    if not (is_time(units) and is_time(wanted)):
        return None
    return between_units(units, calendar, wanted, wanted_calendar)


@dataclass
class _Array:
    """One array being put together."""

    path: str
    files: Sequence[Header]
    concat: str | None
    new: bool
    lengths: Sequence[int]
    parent: str | None
    finer: Mapping[str, str]
    stored: StoredVariable | None
    work: _Work
    left_out: bool = False

    def made(self) -> Combined | None:
        """Return the array; None if it is left out, or does not fit."""
        having = [n for n, one in enumerate(self.files) if self.path in one.variables]
        reference = self._variable(having[0])
        if bad := self._bad_name():
            self._differs(having[0], "unsupported", bad, "skip")
            return None
        own = reference.dims == (self.path.rpartition("/")[2],)
        joined = self.concat in reference.dims or (
            self.new and not own and not self._is_equal_coordinate(having)
        )
        if not joined:
            return self._from_one(having, reference)
        before = len(self.work.differences)
        reference = self._widest(having, reference)
        if self.path in self.finer:
            reference = _in_units(reference, self.finer[self.path])
        changes = {n: self._change(n, reference) for n in having}
        if len(having) < len(self.files):
            self._note_missing(having)
        if self.left_out or len(self.work.differences) > before:
            return None
        return self._joined(having, reference, changes)

    def _bad_name(self) -> str:
        """Return the reason why no array can have the path; empty if one can."""
        names = self.path.split("/")
        try:
            check_key(self.path)
        except StoreKeyError:
            names = []
        if not names or not all(map(FORMAT.is_node_name, names)):
            return "has a name that no array of Zarr can have"
        for count in range(1, len(names)):
            above = "/".join(names[:count])
            for one in self.files:
                if above in one.variables:
                    return f"lies in the group {above}, which is a variable in {one.url}"
        return ""

    def _variable(self, number: int) -> Variable:
        return self.files[number].variables[self.path]

    def _widest(self, having: Sequence[int], reference: Variable) -> Variable:
        """Return a reference whose texts are as long as the longest of all files."""
        ones = [self._variable(number) for number in having]
        if not all(_are_texts(one, reference, self.concat) for one in ones):
            return reference
        width = max(one.shape[-1] for one in ones)
        name = re.sub(r"(?<=^string)\d+$", str(width), reference.dims[-1])  # as xarray names it
        return replace(
            reference, dims=(*reference.dims[:-1], name), shape=(*reference.shape[:-1], width)
        )

    def _is_equal_coordinate(self, having: Sequence[int]) -> bool:
        """True for a variable that others name as a coordinate, and that is equal in all files."""
        name = self.path.rpartition("/")[2]
        if name == self.concat:  # a dataset cannot have a scalar of the name of a dimension
            return False
        named = (
            any(
                name in str(v.attribute("coordinates") or "").split()
                for v in self.files[0].variables.values()
            )
            or name in str(self.files[0].groups.get("", {}).get("coordinates", "")).split()
        )
        digests = {self._variable(n).digest for n in having}
        return named and len(digests) == 1 and "" not in digests and len(having) == len(self.files)

    def _differs(
        self,
        number: int,
        kind: str,
        found: str,
        *choices: str,
        by_name: tuple[str, ...] = (),
        default: str = "stop",
    ) -> str:
        chosen = self.work.choice(
            kind, self.files[number], self.path, found, choices, by_name, default
        )
        if chosen == "skip":
            self.left_out = True
            self.work.note(f"{self.path} is left out ({kind})")
        return chosen

    def _note_missing(self, having: Sequence[int]) -> None:
        text = f"is not in the file, but in {self.files[having[0]].url}"
        for number in sorted({*range(len(self.files))} - {*having}):
            self._differs(number, "missing", text, "fill", "skip")

    # --- one for all ------------------------------------------------------------------------------

    def _from_one(self, having: Sequence[int], reference: Variable) -> Combined | None:
        """Return an array that is the same in all files."""
        before = len(self.work.differences)
        if reference.unsupported:
            self._differs(having[0], "unsupported", reference.unsupported, "skip")
        elif bad := _bad_packing(reference):
            self._differs(having[0], "packing", bad, "skip")
        for number in having[1:]:
            one = self._variable(number)
            if one.unsupported:
                self._differs(number, "unsupported", one.unsupported, "skip")
            elif bad := _bad_packing(one):
                self._differs(number, "packing", bad, "skip")
            elif one.dims != reference.dims or one.shape != reference.shape:
                at = self.files[having[0]].url
                text = f"has the shape {_shape(one)}, but {_shape(reference)} in {at}"
                self._differs(number, "shape", text, "skip")
            elif found := _other_values(one, reference, self.files[having[0]].url):
                self._differs(number, "values", found, "first", "skip")
            else:
                self._other_attributes(one, reference, *_MASKS)
        if self.left_out or len(self.work.differences) > before:
            return None
        lacking = [one.url for one in self.files if self.path not in one.variables]
        if lacking:
            more = f" and {len(lacking) - 1} more files" if len(lacking) > 1 else ""
            stay = f"the values of {self.files[having[0]].url} stay"
            self.work.note(f"{self.path} is not in {lacking[0]}{more}: {stay}")
        piece = FilePiece(having[0], 0, 0, None, direct=True)
        meta = self._meta(reference, reference, reference.shape, reference.dims, reference.chunks)
        return Combined(self.path, meta, reference, None, False, (piece,))

    def _meta(
        self, reference: Variable, served: Variable, shape: Any, dims: Any, cells: Any
    ) -> ArrayMeta:
        attributes = {
            name: plain(name, value) for name, value in _cast_fill(reference, served).items()
        }
        return meta_of(served, shape, dims, cells, attributes, self.path)

    # --- joined -----------------------------------------------------------------------------------

    def _change(self, number: int, reference: Variable) -> Conversion | None:
        """Return what makes the values of one file those of the first; note differences."""
        one, first = self._variable(number), self.files[0].url
        if one.unsupported:
            self._differs(number, "unsupported", one.unsupported, "skip")
            return None
        if bad := _bad_packing(one):
            self._differs(number, "packing", bad, "skip")
            return None
        are_texts = _are_texts(one, reference, self.concat)
        if one.dims != reference.dims and not are_texts:
            text = f"has the dimensions {one.dims}, but {reference.dims} in {first}"
            self._differs(number, "dims", text, "skip")
            return None
        others = [
            (name, a, b)
            for name, a, b in zip(one.dims, one.shape, reference.shape, strict=True)
            if name != self.concat and a != b and not (are_texts and name == one.dims[-1])
        ]
        for name, a, b in others:
            self._differs(
                number, "shape", f"has {a} elements along {name}, but {b} in {first}", "skip"
            )
        change = Conversion()
        if _kind(one.dtype) != _kind(reference.dtype):
            choices = (
                ("promote", "skip") if "string" not in {one.dtype, reference.dtype} else ("skip",)
            )
            self._differs(
                number,
                "dtype",
                f"is of {_kind(one.dtype)}, but of {_kind(reference.dtype)} in {first}",
                *choices,
            )
        change = self._units(number, one, reference, change)
        packing = _told(one), _told(reference)
        if packing[0] != packing[1]:
            text = f"is packed with {packing[0]}, but with {packing[1]} in {first}"
            self._differs(number, "packing", text, "unpack", "skip")
        self._other_attributes(one, reference)
        return change if change.changes_units else None

    def _units(
        self, number: int, one: Variable, reference: Variable, change: Conversion
    ) -> Conversion:
        if self.parent is not None and "units" not in one.attrs:
            parent = self.files[number].variables.get(self.parent)
            first = self.files[0].variables.get(self.parent)
            if parent is not None and first is not None:
                one, reference = parent, _in_units(first, self.finer.get(self.parent))
        ours, theirs = _units_of(one), _units_of(reference)
        if ours == theirs:
            return change
        found = _time_change(one, reference)
        # the numbers of times are other times, while a user may have chosen for temperatures
        of_time = is_time(ours[0]) or is_time(theirs[0]) or found is not None
        by_name = ("first",) if of_time else ()
        text = f"has the units {_named(ours)}, but {_named(theirs)} in {self.files[0].url}"
        if found is not None:
            converted = replace(change, scale=found[0], offset=found[1])
            if not converted.changes_units:
                return change
            chosen = self._differs(
                number,
                "units",
                text,
                *("convert", "first", "skip"),
                by_name=by_name,
                default=_choice_of_units(self.work.settle, self.parent or self.path, reference),
            )
            if chosen == "convert":
                self.work.note(
                    f"{self.path} is in other units in some files: converted to {_named(theirs)}"
                )
                return converted
            return change
        self._differs(number, "units", text, "first", "skip", by_name=by_name)
        return change

    def _other_attributes(self, one: Variable, reference: Variable, *more: str) -> None:
        known = {*PACKING, "units", "calendar"} - {*more}
        names = sorted(
            name
            for name in {*one.attrs, *reference.attrs} - known
            if one.attrs.get(name) != reference.attrs.get(name)
        )
        if names:
            self.work.note(
                f"attributes of {self.path} differ ({', '.join(names)}): the first file's stay"
            )

    def _joined(
        self,
        having: Sequence[int],
        reference: Variable,
        changes: Mapping[int, Conversion | None],
    ) -> Combined:
        files = {n: self._variable(n) for n in having}
        served, unpacks, missing = self._served(reference, files, changes)
        axis = 0 if self.new else reference.dims.index(str(self.concat))
        cell = served.chunks
        pieces, lengths, start = [], [], 0
        for number, length in enumerate(self.lengths):
            one, extent = files.get(number), length
            if one is None:
                pieces.append(FilePiece(-1, start, extent, None, direct=False))
                lengths += _cut(extent, 1 if self.new else cell[axis])
            else:
                step = 1 if self.new else one.chunks[axis]
                extent = 1 if self.new else one.shape[axis]  # groups have dimensions of their own
                change = self._conversion(one, served, changes[number], unpacks)
                if _is_text(reference) and one.shape[-1] != reference.shape[-1]:
                    change = Conversion(width=one.shape[-1], target=served.dtype)
                direct = change is None and _alike(one, served, None if self.new else axis)
                pieces.append(FilePiece(number, start, extent, change, direct))
                lengths += _cut(extent, step)
            start += extent
        dims, shape = list(reference.dims), list(reference.shape)
        cells: list[Any] = list(cell)
        if self.new:
            dims.insert(0, str(self.concat))
            shape.insert(0, start)
            cells.insert(0, 1)
        else:
            shape[axis] = start
            cells[axis] = tuple(lengths) or 1
        meta = self._meta(reference, served, shape, dims, cells)
        return Combined(self.path, meta, served, axis, self.new, tuple(pieces), missing)

    def _served(
        self,
        reference: Variable,
        files: Mapping[int, Variable],
        changes: Mapping[int, Conversion | None],
    ) -> tuple[Variable, bool, Any]:
        """Return the variable as the array has it, True if values are unpacked, and a mask."""
        usual = _most_common(list(files.values()), reference)
        served = replace(usual, attrs=reference.attrs, fill=reference.fill)
        if reference.dtype == "string":
            return served, False, ""
        dtype = (
            np.result_type(*(np.dtype(one.dtype).newbyteorder("=") for one in files.values()))
            if len({_kind(o.dtype) for o in files.values()}) > 1
            else np.dtype(usual.dtype)
        )
        unpacks = len({_told(one) for one in files.values()}) > 1
        if any(changes.values()):  # what is converted are the values, and not their packed numbers
            unpacks = unpacks or not _SCALES.isdisjoint(reference.attrs)
        exact = all(
            one is None or one.scale.denominator == one.offset.denominator == 1
            for one in changes.values()
        )
        if any(changes.values()):
            dtype = self._whole_dtype() if exact and dtype.kind in "iu" else np.dtype("f8")
        missing = None
        if len(files) < len(self.files):
            mask = reference.attribute("_FillValue")
            unpacks = unpacks or (mask is None and dtype.kind in "iu" and bool(_packing(reference)))
            if mask is None and dtype.kind in "iu":
                dtype = np.dtype("f8")
            missing = np.nan if mask is None or unpacks else mask
            if dtype.kind == "c":
                missing = np.full((), complex(np.nan, np.nan), dtype)[()]
            elif dtype.kind not in "iuf":
                missing = np.zeros((), dtype)[()]
        if unpacks:
            dtype = np.result_type(*(unpacked_dtype(one) for one in files.values()))
        if unpacks or any(changes.values()) or dtype != np.dtype(usual.dtype):
            fill = (
                encoded(np.array(np.nan, dtype)[()])
                if dtype.kind == "f" and unpacks
                else _refilled(reference, dtype)
            )
            attrs = {k: v for k, v in reference.attrs.items() if not (unpacks and k in PACKING)}
            # the filters stay, so that the plan knows what reading costs
            served = replace(served, dtype=dtype.newbyteorder("<").str, attrs=attrs, fill=fill)
        return served, unpacks, missing

    def _whole_dtype(self) -> np.dtype[Any]:
        """Return the type of whole numbers in new units: that of the store, or int64."""
        kept = np.dtype("i8") if self.stored is None else self.stored.dtype
        return kept if kept.kind in "iu" else np.dtype("i8")

    def _conversion(
        self, one: Variable, served: Variable, change: Conversion | None, unpacks: bool
    ) -> Conversion | None:
        if unpacks:
            packing = tuple(_packing(one).items())
            unpacked = unpacked_dtype(one).str
            made = replace(change or Conversion(), packing=packing, target=served.dtype)
            return replace(made, unpacked=unpacked)
        if change is not None or _kind(one.dtype) != _kind(served.dtype):
            made = replace(change or Conversion(), masks=_masks(one), target=served.dtype)
            return replace(made, has_nat=_is_decoded_time(one) and _kind(one.dtype) == "int64")
        return None


def _cut(extent: int, step: int) -> list[int]:
    whole, rest = divmod(extent, step)
    return [step] * whole + ([rest] if rest else [])


def _kind(dtype: str) -> str:
    """Return the name of a data type without its byte order."""
    return dtype if dtype == "string" else str(np.dtype(dtype).newbyteorder("="))


def _packing(one: Variable) -> dict[str, Any]:
    return {name: one.attrs[name] for name in PACKING if name in one.attrs}


def _told(one: Variable) -> str:
    """Return the packing as a text that is equal for equal numbers of any type."""
    is_float = one.dtype != "string" and np.dtype(one.dtype).kind in "fc"
    facts = [
        f"{name}={value['value'] if isinstance(value, Mapping) else value}"
        for name, value in _packing(one).items()
        if not (is_float and name in _MASKS and _is_nan(one, name))  # NaN is one without a mask
    ]
    return ", ".join(facts) or "nothing"


_MASKS = ("_FillValue", "missing_value")
_SCALES = {"scale_factor", "add_offset", "_Unsigned"}


def _masks(one: Variable) -> tuple[float, ...]:
    """Return the numbers that stand for missing values."""
    given = [np.atleast_1d(decoded(one.attrs[name])) for name in _MASKS if name in one.attrs]
    return tuple(number for each in given if each.dtype.kind in "iuf" for number in each.tolist())


def _other_values(one: Variable, reference: Variable, at: str) -> str:
    """Return how values differ from those in the file `at`; empty if they do not."""
    if not one.digest:
        return "is too large to be compared with that of the first file"
    if _kind(one.dtype) != _kind(reference.dtype):
        return f"is of {_kind(one.dtype)}, but of {_kind(reference.dtype)} in {at}"
    if one.digest != reference.digest:
        is_turned = bool(one.values) and one.values[:2] == reference.values[1::-1]
        return f"has other values than in {at}" + (": it runs the other way" if is_turned else "")
    packing = [_told(_without_masks(each)) for each in (one, reference)]
    if packing[0] != packing[1]:
        return f"is packed with {packing[0]}, but with {packing[1]} in {at}"
    units = _units_of(one), _units_of(reference)
    change = _time_change(one, reference)
    is_same = change is not None and not Conversion(*change).changes_units
    if units[0] != units[1] and not is_same:
        return f"has the units {_named(units[0])}, but {_named(units[1])} in {at}"
    return ""


def _without_masks(one: Variable) -> Variable:
    return replace(one, attrs={k: v for k, v in one.attrs.items() if k not in _MASKS})


def _units_of(one: Variable) -> tuple[str | None, str]:
    """Return units and calendar; as texts, whatever they are."""
    units, calendar = one.attribute("units"), one.attribute("calendar")
    return None if units is None else str(units), "" if calendar is None else str(calendar)


def _bad_packing(one: Variable) -> str:
    """Return the reason why the packing cannot be undone; empty if it can."""
    for name in ("scale_factor", "add_offset"):
        value = one.attribute(name)
        number = value is None or (np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf")
        if not number or (value is not None and not np.isfinite(value)):
            return f"has {name}={_plainly(value)}, expected a finite number"
    mask = one.attribute("_FillValue")
    if mask is None or np.ndim(mask) or one.dtype == "string" or one.dtype.startswith("|S"):
        return ""
    dtype = np.dtype(one.dtype)
    if np.asarray(mask).dtype.kind not in "iuf" or not _holds(
        dtype, mask, "_Unsigned" in one.attrs
    ):
        return f"has _FillValue={_plainly(mask)}, which {dtype.newbyteorder('=')} cannot hold"
    return ""


def _plainly(value: Any) -> str:
    return repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)


def _holds(dtype: np.dtype[Any], value: Any, turned: bool) -> bool:
    """True if a data type has a number, perhaps one of the type with or without a sign."""
    if dtype.kind == "f":
        return not np.isfinite(value) or abs(float(value)) <= float(np.finfo(dtype).max)
    if dtype.kind not in "iu":
        return True
    bits = 8 * dtype.itemsize
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if turned:
        least, most = -(1 << (bits - 1)), (1 << bits) - 1
    return bool(np.isfinite(value)) and int(value) == value and least <= int(value) <= most


def _named(units: tuple[Any, Any]) -> str:
    return f"{units[0]!r}" + (f" ({units[1]})" if units[1] else "")


def _shape(one: Variable) -> str:
    return ", ".join(f"{n}={length}" for n, length in zip(one.dims, one.shape, strict=True)) or "()"


def _most_common(files: Sequence[Variable], reference: Variable) -> Variable:
    """Return the variable whose chunks and filters most files have; of texts of that length."""

    def layout(one: Variable) -> str:
        return repr((one.dtype, one.chunks, one.filters))

    counts = Counter(map(layout, files))
    best = counts.most_common(1)[0][0]
    found = next(one for one in files if layout(one) == best)
    if _is_text(reference) and found.shape[-1] != reference.shape[-1]:
        found = replace(found, chunks=(*found.chunks[:-1], reference.shape[-1]))
    if found.layout == "values" and found.dtype != "string" and not found.filters:
        return replace(found, filters=({"id": "zlib", "level": 1},))
    return found


def _alike(one: Variable, served: Variable, axis: int | None) -> bool:
    """True if chunks of a file are those of the array, but for their length along the axis."""
    chunks = [c for n, c in enumerate(one.chunks) if n != axis]
    others = [c for n, c in enumerate(served.chunks) if n != axis]
    same = (one.dtype, one.filters, chunks) == (served.dtype, served.filters, others)
    return same and one.layout != "values"


def _refilled(reference: Variable, dtype: np.dtype[Any]) -> Any:
    """Return the fill value of a reference in another data type; 0 if that cannot hold it."""
    value = decoded(reference.fill) if reference.fill is not None else 0
    with np.errstate(all="ignore"):
        return encoded(np.asarray(value).astype(dtype)[()])


def _cast_fill(reference: Variable, served: Variable) -> dict[str, Any]:
    """Return attributes whose masks have the data type of the array."""
    attrs = dict(served.attrs)
    given = reference.attribute("_FillValue") if "_FillValue" in attrs else None
    if given is not None and served.dtype != "string" and np.dtype(served.dtype).kind in "iuf":
        try:
            attrs["_FillValue"] = encoded(np.asarray(given).astype(np.dtype(served.dtype))[()])
        except (TypeError, ValueError):
            raise GridError(f"_FillValue={given!r} does not fit {served.dtype}") from None
    elif served.dtype.startswith("|S"):
        attrs.pop("_FillValue", None)  # characters have no masks, and xarray does not read one
    return attrs
