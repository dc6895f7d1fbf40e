"""The survey of many files: all of their headers, read in parallel and kept in one small file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count
from threading import Lock
from typing import Any

import numpy as np

from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import IngestError, ZarrDaskError
from zarr_dask.jobs.engine.thread_map import map_concurrently as thread_map
from zarr_dask.jobs.ingest.file_store import SMALL, FileArrays, header_of
from zarr_dask.jobs.ingest.header import NOT_FINITE, Header, Variable
from zarr_dask.jobs.ingest.source_file import SourceFile
from zarr_dask.stores.base import Store

__all__ = ["FileSurvey", "survey_files", "with_digests"]

VERSION = 2
_COMPARED = 1 << 27
"""Most bytes of a variable that is compared between files."""
_AT_A_TIME = 8
"""Files behind a network that are read at a time. Those of this machine are read one by one: the
HDF5 library works for one thread, and handing it over costs the others as much time again."""


@dataclass(frozen=True)
class FileSurvey:
    """Headers of files, in the order in which these were given."""

    headers: tuple[Header, ...]
    engine: str | None = None

    def to_json(self) -> bytes:
        """Return the survey as a JSON document."""
        files = [header.to_json() for header in self.headers]
        facts = {"ingest_survey": VERSION, "engine": self.engine, "crc32c": _checksum(files)}
        return json.dumps({**facts, "files": files}, separators=(",", ":")).encode()

    @staticmethod
    def of_json(text: bytes, at: str) -> FileSurvey:
        """Return the survey that `to_json` has written.

        Raises
        ------
        IngestError
            If it is none.
        """
        try:
            facts = json.loads(bytes(text))
            if (version := facts["ingest_survey"]) != VERSION:
                raise ValueError(f"version {version!r:.40}, expected {VERSION}")  # noqa: TRY301
            if facts["crc32c"] != _checksum(facts["files"]):
                raise ValueError("its checksum does not fit")  # noqa: TRY301
            return FileSurvey(tuple(map(Header.of_json, facts["files"])), facts["engine"])
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise IngestError(
                f"{at} is no survey of files ({error!s:.200}). Remove it, or name another with "
                "survey=."
            ) from error


def _checksum(files: Any) -> int:
    return crc32c(json.dumps(files).encode())


def survey_files(
    urls: Sequence[str],
    options: Mapping[str, Any] | None,
    engine: str | None,
    known: FileSurvey | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FileSurvey:
    """Read the headers of files in parallel; of those that are known, only sizes and times.

    Parameters
    ----------
    urls
        Paths and URLs.
    options
        Options of the stores of URLs.
    engine
        An engine of xarray; None to tell NetCDF, HDF5 and GRIB by their first bytes.
    known
        An earlier survey.
    progress
        Called after each file, in its thread, with the number of files done and of all.
    """
    before = {one.url: one for one in known.headers} if known and known.engine == engine else {}
    done, lock = count(1), Lock()

    def one(place: SourceFile) -> Header:
        found = before.get(place.url)
        if found is None or found.error or not _is_same(place, found):
            found = _with_values(place, header_of(place, engine))
        if progress is not None:
            with lock:
                progress(next(done), len(urls))
        return found

    places = [SourceFile.of(url, options) for url in urls]
    return FileSurvey(tuple(thread_map(one, places, _at_a_time(places))), engine)


def _at_a_time(places: Sequence[SourceFile]) -> int:
    return 1 if all(place.path for place in places) else _AT_A_TIME


def _is_same(place: SourceFile, header: Header) -> bool:
    try:
        return place.version() == (header.size, header.tag)
    except (OSError, ValueError):
        return False


def _with_values(place: SourceFile, header: Header) -> Header:
    """Return a header with digests of small variables, and the ends of coordinates."""
    found: dict[str, Variable] = {}
    for path, one in header.variables.items():
        if one.unsupported or one.nbytes > SMALL:
            continue
        try:
            found[path] = _looked_at(place, header, path)
        except (OSError, ValueError, RuntimeError, KeyError, ZarrDaskError) as error:
            found[path] = replace(one, unsupported=f"cannot be read ({error})")
    return replace(header, variables={**header.variables, **found}) if found else header


def _looked_at(place: SourceFile, header: Header, path: str) -> Variable:
    one = header.variables[path]
    values = np.asarray(FileArrays(place, header).array(path).read(threads=1))
    own = one.dims == (path.rpartition("/")[2],)
    ends = _ends(values) if own and values.dtype.kind in "iuf" else ()
    return replace(one, digest=_digest(values), values=ends)


def _digest(values: np.ndarray) -> str:
    if values.dtype == object:
        data = json.dumps([str(v) for v in values.ravel()]).encode()
    else:
        if values.dtype.kind == "f":
            values = values + 0.0
        order = values.dtype.newbyteorder("<") if sys.byteorder == "big" else values.dtype
        data = np.ascontiguousarray(values, order).tobytes()
    return sha256(repr(values.shape).encode() + data).hexdigest()[:24]


def _ends(values: np.ndarray) -> tuple[float, ...]:
    if not values.size:
        return ()
    if not np.isfinite(values).all():
        return (0, 0, 0, 0, NOT_FINITE)
    steps = np.diff(values.astype("f8"))
    direction = 1 if (steps > 0).all() else -1 if (steps < 0).all() else 0
    first, last = values[0].item(), values[-1].item()
    return (first, last, values.min().item(), values.max().item(), direction)


def with_digests(
    survey: FileSurvey, paths: Sequence[str], options: Mapping[str, Any] | None
) -> FileSurvey:
    """Return a survey with digests of these variables, as long as they are not very large."""

    def one(pair: tuple[SourceFile, Header]) -> Header:
        place, header = pair
        found = {}
        for path in paths:
            variable = header.variables.get(path)
            if variable is None or variable.digest or variable.unsupported:
                continue
            if variable.nbytes <= _COMPARED:
                found[path] = _looked_at(place, header, path)
        return replace(header, variables={**header.variables, **found}) if found else header

    places = [SourceFile.of(header.url, options) for header in survey.headers]
    pairs = zip(places, survey.headers, strict=True)
    return replace(survey, headers=tuple(thread_map(one, pairs, _at_a_time(places))))


def read_survey(store: Store, key: str) -> FileSurvey | None:
    """Return a survey that is kept in a file; None if there is none."""
    text = store.get(key)
    return None if text is None else FileSurvey.of_json(bytes(text), f"{store.url}/{key}")
