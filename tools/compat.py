"""docs/reference/compat.md: data types and codecs of each format, and the peers that agree.

``make compat`` writes the page. Every row is tried: a small array is written and read back by us,
then read by each peer; a peer agrees where it finds the same values. The rows come from the
registries of data types and codecs, configurations from the classes (`Codec.example`).
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import zarr_dask as zd
from zarr_dask.codecs.registry import CODECS, codec_class
from zarr_dask.codecs.registry_numcodecs import example_of_numcodecs, numcodecs_names
from zarr_dask.dtypes import data_type_of
from zarr_dask.dtypes import v3_names as data_type_names
from zarr_dask.errors import ZarrDaskError

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "compat.md"
ZARR2 = ROOT / ".venv-zarr2" / "bin" / "python"
COUNT = 6


# --- what is tried --------------------------------------------------------------------------------


@dataclass
class Trial:
    """One small array of one format, and what came of it."""

    format: str
    data_type: str
    codec: str
    dtype: Any
    codecs: Any = None
    shards: Any = None
    path: str = ""
    values: Any = None
    refused: bool = False
    peers: tuple[str, ...] = ()


def _values(dtype: Any) -> np.ndarray:
    """Some values of a data type, the unusual ones among them."""
    made = data_type_of(dtype)
    if made.name == "string":
        return np.array(["", "a", "é", "日本", "two words", "\n"], object)
    if made.name == "bytes":
        return np.array([b"", b"a", b"\x00\xff", b"xyz", b"\n", b"0"], object)
    return _of_dtype(made.dtype)


def _of_dtype(dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.names:
        out = np.zeros(COUNT, dtype)
        for name in dtype.names:
            out[name] = _of_dtype(dtype[name])
        return out
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        flat = _of_dtype(base).reshape(COUNT, *(1 for _ in shape))
        return np.broadcast_to(flat, (COUNT, *shape))
    if dtype.kind == "U":
        return np.array(["", "a", "é", "日本", "abc", "z"], dtype)
    if dtype.kind == "S":
        return np.array([b"", b"a", b"ab", b"abc", b"b", b"z"], dtype)
    if dtype.kind == "V" and dtype.type is np.void:
        raw = np.arange(1, COUNT * dtype.itemsize + 1, dtype="u1")
        return raw.view(dtype)
    if dtype.kind in "Mm":
        counts = np.array([0, 1, -1, 10**6, -(1 << 63), 7], "i8")
        return counts.view(dtype)
    if dtype.kind == "b":
        return np.array([0, 1, 1, 0, 1, 0], bool)
    return np.array([1, 0, 1, 2, 1, 3] if dtype.kind == "V" else [1, 0, 1, 1, 0, 1]).astype(dtype)


_CONFIGURED = {
    "fixed_length_utf32": "U3",
    "null_terminated_bytes": "S3",
    "raw_bytes": "V3",
    "numpy.datetime64": "M8[10us]",
    "numpy.timedelta64": "m8[ns]",
    "struct": np.dtype([("a", "<i4"), ("b", "<f8"), ("c", "u1")]),
}
_READ_ONLY = {"structured", "variable_length_bytes", "r<bits>"}

_V2_TYPES: dict[str, Any] = {
    "|b1": "b1",
    **{f"<{t}": f"<{t}" for t in ("i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16")},
    **{f">{t}": f">{t}" for t in ("i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16")},
    "|i1": "i1",
    "|u1": "u1",
    "<M8[ns]": "<M8[ns]",
    ">m8[10us]": ">m8[10us]",
    "|S3": "S3",
    "<U3": "<U3",
    ">U3": ">U3",
    "|V3": "V3",
    "structured": np.dtype([("a", "<i4"), ("b", "<f8"), ("c", "u1")]),
    "structured, mixed byte orders": np.dtype([("a", "<i4"), ("b", ">f8")]),
    "structured, nested": np.dtype([("a", [("x", "<i2"), ("y", "<i2")]), ("b", "<f8")]),
    "structured, subarray": np.dtype([("a", "<i4"), ("b", "<f4", (2, 2))]),
}

_V1_TYPES = {name: dtype for name, dtype in _V2_TYPES.items() if name[0] in "|<>"}
_DRAFT_TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


def _named(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


_V3_READ_ONLY = {"endian"}


def _example(name: str, dtype: str) -> list[Any]:
    """Return a codec of v3 as its class would try it on elements of a type string."""
    cls = codec_class(name)
    assert cls is not None
    return [_named(name, **cls.example(name, dtype))]


def _type_string(dtype: np.dtype[Any]) -> str:
    """Return the type string; for types that NumPy does not know, that of as many bytes."""
    try:
        known = np.dtype(dtype.str) == dtype
    except TypeError:
        known = False
    return dtype.str if known else f"|V{dtype.itemsize}"


_OBJECT_CODECS = ("vlen-array", "json2", "msgpack2")


def _trials() -> list[Trial]:
    return [*_of_v3(), *_of_v2(), *_of_v1(), *_of_drafts()]


def _of_v3() -> Iterator[Trial]:
    for name in data_type_names():
        if name in _READ_ONLY:
            continue
        dtype = _CONFIGURED.get(name, name)
        made = data_type_of(dtype)
        for codec in CODECS.own_names():
            if codec == "sharding_indexed":
                yield Trial("v3", name, codec, dtype, shards=(4,))
            elif codec not in _V3_READ_ONLY:
                codecs = _example(codec, _type_string(made.dtype))
                yield Trial("v3", name, codec, dtype, codecs)


def _of_v2() -> Iterator[Trial]:
    for name, dtype in {**_V2_TYPES, "|O": "object"}.items():
        stored = np.dtype(dtype)
        for codec in numcodecs_names():
            if codec == "pickle" or (name == "|O") != (codec in _OBJECT_CODECS):
                continue
            wanted = [example_of_numcodecs(codec, stored.str)]
            yield Trial("v2", name, codec, dtype, wanted)
    for name in ("string", "bytes"):
        for codec in numcodecs_names():
            framing = {"id": {"string": "vlen-utf8", "bytes": "vlen-bytes"}[name]}
            if codec not in (*_OBJECT_CODECS, "pickle"):
                steps = [example_of_numcodecs(codec, "|O")]
                if codec not in {"vlen-utf8", "vlen-bytes"}:
                    steps.insert(0, framing)
                yield Trial("v2", f"|O ({name})", codec, name, steps)


def _of_v1() -> Iterator[Trial]:
    for name, dtype in _V1_TYPES.items():
        for codec in ("blosc", "zlib", "bz2", "lzma"):
            yield Trial("v1", name, codec, dtype, [example_of_numcodecs(codec, "|u1")])


def _of_drafts() -> Iterator[Trial]:
    for draft in ("v3draft", "v3draft-2022-05"):
        for name in _DRAFT_TYPES:
            for codec in ("gzip", "blosc"):
                yield Trial(draft, name, codec, name, _example(codec, "|u1"))
            yield Trial(draft, name, "sharding", name, shards=(4,))


def _values_of(trial: Trial) -> np.ndarray:
    if trial.dtype == "object":
        values = np.empty(COUNT, object)
        for number in range(COUNT):
            item = np.arange(number, dtype="i4")
            values[number] = item if trial.codec == "vlen-array" else item.tolist()
        return values
    return _values(trial.dtype)


# --- trying ---------------------------------------------------------------------------------------


def _told(values: Any) -> str:
    """What is in an array, in a form that does not depend on who read it."""
    array = np.asarray(values)
    if array.dtype.kind in "Mm":
        array = array.astype(array.dtype.newbyteorder("=")).view("i8")
    return repr(_plain(array.tolist()))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, bytes | str | int | complex):
        return value
    return float(value)


def _write(trial: Trial, folder: Path, number: int) -> None:
    """Write and read back; what is lossy is taken as we read it back."""
    trial.path = str(folder / f"{number}.zarr")
    values = _values_of(trial)
    try:
        array = zd.create_array(
            trial.path,
            shape=values.shape,
            dtype=trial.dtype,
            chunks=2,
            shards=trial.shards,
            codecs=trial.codecs,
            fill_value=values[0] if "e8m0" in trial.data_type else 0,
            format=trial.format,
        )
        array[...] = values
    except (ZarrDaskError, ValueError):
        trial.refused = True  # this codec is not for this data type
        return
    trial.values = np.asarray(zd.open_array(trial.path)[...])


def _zarr_python(trial: Trial) -> str:
    import zarr

    return _told(zarr.open_array(trial.path, mode="r")[...])


def _tensorstore(trial: Trial) -> str:
    import tensorstore

    driver = {"v2": "zarr", "v3": "zarr3"}[trial.format]
    spec: dict[str, Any] = {"driver": driver, "kvstore": {"driver": "file", "path": trial.path}}
    return _told(tensorstore.open(spec, open=True, read=True).result().read().result())


_READERS: Mapping[str, tuple[Callable[[Trial], str], Sequence[str]]] = {
    "zarr-python": (_zarr_python, ("v2", "v3")),
    "tensorstore": (_tensorstore, ("v2", "v3")),
}

_ZARR2_READS = """
import json, sys, zarr, numpy as np
def plain(v):
    if isinstance(v, (list, tuple)): return [plain(i) for i in v]
    if isinstance(v, np.ndarray): return plain(v.tolist())
    if isinstance(v, (bytes, str, int, complex)): return v
    return float(v)
def told(path):
    path, _, name = path.rpartition("|")
    try:
        a = zarr.open_array(path, path="", mode="r", zarr_version=2 if name == "v2" else 3)[...]
        a = np.asarray(a).astype(a.dtype.newbyteorder("="))
        return repr(plain((a.view("i8") if a.dtype.kind in "Mm" else a).tolist()))
    except Exception as error:
        return "error: " + type(error).__name__
print(json.dumps([told(p) for p in json.load(sys.stdin)]))
"""


def _ask_peers(trials: Sequence[Trial]) -> None:
    written = [trial for trial in trials if not trial.refused]
    for trial in written:
        for peer, (read, formats) in _READERS.items():
            if trial.format not in formats:
                continue
            try:
                agrees = read(trial) == _told(trial.values)
            except Exception:  # noqa: BLE001  (whatever a peer raises, it has not read the array)
                agrees = False
            if agrees:
                trial.peers += (peer,)
    old = [trial for trial in written if trial.format in ("v2", "v3draft-2022-05")]
    answer = subprocess.run(
        [ZARR2, "-W", "ignore", "-c", _ZARR2_READS],
        input=json.dumps([f"{trial.path}|{trial.format}" for trial in old]),
        env={"ZARR_V3_EXPERIMENTAL_API": "1", "ZARR_V3_SHARDING": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    for trial, told in zip(old, json.loads(answer.stdout), strict=True):
        if told == _told(trial.values):
            trial.peers += ("zarr-python 2.18",)


def tried() -> list[Trial]:
    """All trials, done."""
    trials = _trials()
    with (
        tempfile.TemporaryDirectory(prefix="zarr-dask-compat-") as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # peers warn of what is not in the core specification
        for number, trial in enumerate(trials):
            _write(trial, Path(folder), number)
        _ask_peers(trials)
    return trials


# --- the page -------------------------------------------------------------------------------------

_HEAD = """# Data types and codecs

Every combination that each format can store, and the libraries that read the same values.
A data type that is not listed beside a codec cannot be stored with it; creating such an array is
refused.

This page is generated by `make compat`, and the tests try every cell again. A small array is
written and read back here, then read by zarr-python {zarr} and tensorstore {tensorstore}.
For v2 and the draft of May 2022, zarr-python 2.18.7 reads it too.

Names of groups stand for all of their data types:

{groups}
"""

_CORE = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_SMALL_FLOATS = (
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
)
_GROUPS: Mapping[str, Sequence[str]] = {
    "core numbers": _CORE,
    "small integers": ("int2", "int4", "uint2", "uint4"),
    "small floats": _SMALL_FLOATS,
    "complex numbers of small floats": tuple(f"complex_{name}" for name in _SMALL_FLOATS),
    "other complex numbers": ("complex_float16", "complex_float32", "complex_float64"),
    "text and bytes": ("string", "bytes"),
    "fixed text and bytes": ("fixed_length_utf32", "null_terminated_bytes", "raw_bytes"),
    "times": ("numpy.datetime64", "numpy.timedelta64"),
}

_NOTES = {
    "v3": "Read as well: the data types `r<bits>` (written where a document said so), "
    "`variable_length_bytes` (rewritten as `bytes`) and `structured` (as `struct`); the codec "
    "`endian` (old name of `bytes`), and unknown codecs that say `must_understand: false` "
    "(skipped; nothing can be written then).",
    "v2": "`pickle` is decoded with `ReadOptions(allow_pickle=True)` only.",
    "v1": "No peer reads v1 any more; the tests use the specification's own example.",
    "v3draft": "No peer reads this layout (December 2022). Read as well: the type strings of the "
    "older layout, and its extension types, by their fallbacks if allowed.",
}


def _shown(names: Sequence[str]) -> str:
    """Return the names of data types, with the names of groups that are there as a whole."""
    left, shown = list(names), []
    for group, members in _GROUPS.items():
        if set(members) <= set(left):
            shown.append(f"**{group}**")
            left = [name for name in left if name not in members]
    return ", ".join(shown + [f"`{name}`" for name in left]).replace("|", "\\|")


def members(cell: str) -> set[str]:
    """Return the data types in a cell of the page, those of groups one by one."""
    found: set[str] = set()
    for shown in cell.split(", "):
        group = shown.strip().strip("*")
        found |= {f"`{name}`" for name in _GROUPS[group]} if group in _GROUPS else {shown.strip()}
    return found


def page(trials: Sequence[Trial]) -> str:
    """The page as Markdown: for each format and codec the data types, by who agrees."""
    groups = "\n".join(
        f"* **{group}**: {', '.join(f'`{name}`' for name in names)}"
        for group, names in _GROUPS.items()
    )
    peers_at = {"zarr": version("zarr"), "tensorstore": version("tensorstore")}
    lines = [_HEAD.format(**peers_at, groups=groups)]
    for format_name in dict.fromkeys(trial.format for trial in trials):
        lines += [f"## {format_name}", "", "| codec | who agrees | data types |", "|---|---|---|"]
        mine = [t for t in trials if t.format == format_name and not t.refused]
        for codec in dict.fromkeys(trial.codec for trial in mine):
            groups: dict[tuple[str, ...], list[str]] = {}
            for trial in mine:
                if trial.codec == codec:
                    groups.setdefault(trial.peers, []).append(trial.data_type)
            for peers, names in sorted(groups.items(), key=lambda item: -len(item[0])):
                shown = _shown(names)
                lines.append(f"| `{codec}` | {', '.join(peers) or 'only here'} | {shown} |")
        lines += ["", _NOTES.get(format_name, ""), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(tried()), encoding="utf-8")
