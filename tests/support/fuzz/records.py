"""Records of jobs as inputs, as strangers make them: journals, manifests, plans, references.

Each input stands in a folder beside a victim. Whatever is called then raises nothing but errors of
this package, touches nothing of the victim, and what reads as whole is right.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import numpy as np

import zarr_dask as zd
from tests.support.fuzz.mutate import change, hostile_bytes, hostile_json, places
from tests.support.fuzz.targets import LIMITS, Target, read_a_little
from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import NodeNotFoundError, ZarrDaskError
from zarr_dask.journal import default_place, open_journals
from zarr_dask.journal.manifest import Manifest
from zarr_dask.journal.receipts import Receipt, stored_object
from zarr_dask.stores import LocalStore

VALUES = np.arange(1, 73, dtype="<i4").reshape(6, 12)
LOST = "../../victim"
KEPT = tempfile.TemporaryDirectory(prefix="zarr-dask-fuzz-")


class _StopError(Exception):
    """Ends a job in the middle."""


def _stopping(block, block_info=None):
    if block_info[0]["chunk-location"] == (1, 2):
        raise _StopError
    return block


def _values(*, stops: bool = False) -> da.Array:
    x = da.from_array(VALUES, chunks=(3, 4), name="values")
    return x.map_blocks(_stopping, dtype=x.dtype) if stops else x


def _write(root: Path, *, stops: bool = False, **options) -> object:
    return zd.to_zarr(_values(stops=stops), root / "a.zarr", "x", resume="run", **options)


def _grow(root: Path, *, stops: bool = False) -> object:
    if stops:
        zd.to_zarr(_values(), root / "a.zarr", "x")
    return zd.to_zarr(_values(stops=stops), root / "a.zarr", "x", append=0, resume="run")


def _rechunk(root: Path, *, stops: bool = False) -> object:
    if not stops:
        return zd.rechunk(root / "s.zarr", root / "a.zarr", chunks=(6, 2), max_mem="200MB")
    source = zd.create_array(root / "s.zarr", shape=(6, 12), dtype="<i4", chunks=(3, 4), codecs=[])
    source[...] = VALUES
    Path(source.store.root, "c", "1", "2").write_bytes(b"torn")
    try:
        return zd.rechunk(root / "s.zarr", root / "a.zarr", chunks=(6, 2), max_mem="200MB")
    finally:
        source[...] = VALUES


JOBS: dict[str, Callable[..., object]] = {
    "write": _write,
    "swap": partial(_write, mode="swap"),
    "append": _grow,
    "rechunk": _rechunk,
}


def _dead(name: str) -> Path:
    """A folder with a job that died in the middle."""
    root = Path(KEPT.name, name)
    root.mkdir()
    (root / "victim").mkdir()
    (root / "victim" / "thesis.txt").write_text("years")
    if name == "swap":
        zd.to_zarr(_values(), root / "a.zarr", "x")
    with dask.config.set(scheduler="sync"), suppress(_StopError, ZarrDaskError):
        JOBS[name](root, stops=True)
    if name in FIRST:
        _add_receipts(name, root)
    return root


FIRST = {"write": "x/c/0/0", "append": "x/c/2/0", "rechunk": "c/0/0"}
"""An object that a job has written."""


def _add_receipts(name: str, root: Path) -> None:
    """Put an object and its receipt, as a task that is killed after it has left them."""
    with tempfile.TemporaryDirectory() as folder:
        twin = Path(folder, "r")
        shutil.copytree(root, twin)
        with dask.config.set(scheduler="sync"):
            JOBS[name](twin)
        value = (twin / "a.zarr" / FIRST[name]).read_bytes()
    place = root / "a.zarr" / FIRST[name]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(value)
    key = FIRST[name].removeprefix("x/")
    path = "x" if key != FIRST[name] else ""
    beside = default_place(LocalStore(str(root / "a.zarr")), path)
    for journal, job in open_journals(beside):
        found = stored_object(key, [value], with_sha256=False)
        journal.add(Receipt(job.token, job.run_id, (found,), ("c/5/0",)))
        journal.add(Receipt(job.token, "another", (found,), ()))


def journal_targets() -> Iterator[Target]:
    for name, job in JOBS.items():
        root = _dead(name)
        for path in sorted((root / "a.zarr.zarr-dask").rglob("__job-*/*")):
            inside = path.relative_to(root)
            if path.name == "job.json":
                yield Target(
                    f"{path.name} of a {name}",
                    [_with_ways_out(path.read_bytes()), path.read_bytes()],
                    partial(_go_on, root, inside, job),
                    hostile_json,
                )
            elif path.name.startswith("receipts-") and path.stat().st_size:
                yield Target(
                    f"receipts of a {name}",
                    [path.read_bytes()],
                    partial(_go_on, root, inside, job),
                    _hostile_receipts,
                )


def _with_ways_out(text: bytes) -> bytes:
    """A document whose texts lead to the victim, where they lead anywhere."""
    document = json.loads(text)
    document["extra"]["targets"] = [LOST]
    return json.dumps({**document, "data": f"{LOST}/", "swap": f"x/{LOST}"}).encode()


def _go_on(root: Path, inside: Path, job: Callable[[Path], object], data: bytes) -> None:
    """Do what meets a journal, with a file of it replaced; the last error counts."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "r")
        shutil.copytree(root, place)
        (place / inside).write_bytes(data)
        failed: ZarrDaskError | None = None
        path = "" if (place / "s.zarr").exists() else "x"
        whole = False
        for call in (
            lambda: zd.verify(place / "a.zarr", sweep=True),
            partial(job, place),
            lambda: zd.delete(place / "a.zarr", path),
        ):
            with dask.config.set(scheduler="sync"):
                try:
                    call()
                    whole = whole or isinstance(call, partial)
                except NodeNotFoundError:
                    continue
                except ZarrDaskError as error:
                    failed = error if isinstance(call, partial) else failed or error
            if isinstance(call, partial):
                _check_values(place, path, whole=whole and inside.name == "job.json")
        assert _state(place / "victim") == _state(root / "victim"), "something else was touched"
        assert sorted(one.name for one in Path(folder).iterdir()) == ["r"]
        if failed is not None:
            raise failed


def _check_values(place: Path, path: str, *, whole: bool) -> None:
    try:
        found = zd.open_array(place / "a.zarr", path)[...]
    except ZarrDaskError:
        assert not whole, "the job has ended, and its array does not read"
        return
    if whole:
        assert np.array_equal(found[-6:], VALUES), "the job has ended, and values are wrong"


def _state(folder: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(folder)): one.read_bytes()
        for one in sorted(folder.rglob("*"))
        if one.is_file()
    }


def _hostile_receipts(seed: str, samples: list[bytes]) -> bytes:
    """Receipts whose bytes were changed, or whose JSON was, with checksums that fit."""
    rng = random.Random(seed)
    if rng.randrange(3) == 0:
        return hostile_bytes(seed, samples)
    lines = [line for line in rng.choice(samples).split(b"\n") if line]
    number = rng.randrange(len(lines))
    document = json.loads(lines[number][9:])
    holder, key = rng.choice([p for p in places(document) if p[1] not in ("token", "run_id")])
    if rng.randrange(4) == 0 and isinstance(holder[key], str):
        holder[key] = f"{LOST}/thesis.txt"
    elif isinstance(holder[key], str):
        del holder[key]  # a receipt of a file that is not there is of no use to anyone
    else:
        change(rng, holder, key)
    text = json.dumps(document).encode()
    lines[number] = b"%08x %b" % (crc32c(text), text)
    return b"\n".join(lines) + b"\n"


def ended_targets() -> Iterator[Target]:
    """The record of a job that has ended, and that of an output of a simulation which is open."""
    root = Path(KEPT.name, "ended")
    root.mkdir()
    (root / "victim").mkdir()
    (root / "victim" / "thesis.txt").write_text("years")
    with dask.config.set(scheduler="sync"):
        _write(root)
    for path in sorted((root / "a.zarr.zarr-dask").rglob("__done-*")):
        go_on = partial(_go_on, root, path.relative_to(root), _write)
        yield Target("record of an ended job", [path.read_bytes()], go_on, hostile_json)
    root = Path(KEPT.name, "output")
    root.mkdir()
    (root / "victim").mkdir()
    array = {"shape": (12,), "dtype": "i4", "chunks": (2, 12)}
    zd.Writer.create(root / "a.zarr", {"x": array})
    _continue_output(root, steps=range(3))
    for path in sorted((root / "a.zarr.zarr-dask" / "__output").rglob("*")):
        if path.is_file() and path.stat().st_size:
            go_on = partial(_go_on, root, path.relative_to(root), _continue_output)
            change_it = hostile_json if path.suffix == ".json" else _hostile_receipts
            yield Target(f"{path.name[:12]} of an output", [path.read_bytes()], go_on, change_it)


def _continue_output(root: Path, steps: range | None = None) -> None:
    with zd.Writer.attach(root / "a.zarr", rank=0) as writer:
        for step in range(3, 6) if steps is None else steps:
            writer.write_step(step, {"x": VALUES[0]})


# --- manifests ------------------------------------------------------------------------------------


def manifest_targets() -> Iterator[Target]:
    root = Path(KEPT.name, "manifest")
    zd.to_zarr(_values(), root / "a.zarr", "x", manifest=True, sha256=True)
    place = root / "a.zarr.zarr-dask" / "x" / "__manifest"
    yield Target(
        "manifest beside an array", [place.read_bytes()], partial(_verified, root, place),
        _hostile_manifest,
    )  # fmt: skip


def _verified(root: Path, place: Path, data: bytes) -> None:
    place.write_bytes(data)
    Manifest.from_text(data).to_text()
    zd.verify(root / "a.zarr", deep="receipts", manifest=True)
    found = zd.open_array(root / "a.zarr", "x", read=zd.ReadOptions(verify=True))[...]
    assert np.array_equal(found, VALUES)


def _hostile_manifest(seed: str, samples: list[bytes]) -> bytes:
    rng = random.Random(seed)
    if rng.randrange(3) == 0:
        return hostile_bytes(seed, samples)
    lines = [json.loads(line) for line in samples[0].splitlines()[:-1]]
    for _ in range(rng.choice((1, 2))):
        change(rng, *rng.choice(list(places(lines))))
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return body + json.dumps({"lines": len(lines), "crc32c": crc32c(body)}).encode() + b"\n"


# --- plans ----------------------------------------------------------------------------------------


def plan_targets() -> Iterator[Target]:
    root = Path(KEPT.name, "plans")
    source = zd.create_array(root / "s.zarr", "x", shape=(6, 12), dtype="<i4", chunks=(3, 4))
    source[...] = VALUES
    plans = {
        "rechunk": zd.plan_rechunk(source, root / "t.zarr", chunks=(6, 2), max_mem="200MB"),
        "several": zd.plan_rechunk([source], root / "u.zarr", path=["y"], chunks=(6, 2)),
        "copy": zd.plan_copy(root / "s.zarr", root / "v.zarr"),
    }
    for name, plan in plans.items():
        yield Target(f"plan file of {name}", [plan.to_json().encode()], _load_plan, hostile_json)


def _load_plan(data: bytes) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise zd.errors.PlanError("no text") from error  # as the command line does
    plan = zd.load_plan(text)
    str(plan)
    repr(plan)
    plan.to_json()


# --- references -----------------------------------------------------------------------------------


def reference_targets() -> Iterator[Target]:
    values: dict[str, bytes] = {}
    zd.create_array(values, shape=(4, 4), dtype="u1", chunks=2, codecs=[])[...] = 7
    folder = Path(KEPT.name, "references")
    folder.mkdir()
    (folder / "data").write_bytes(b"abcdefgh")
    text = {
        "zarr.json": bytes(values["zarr.json"]).decode(),
        "c/0/0": "base64:BwcHBw==",
        "c/0/1": [str(folder / "data"), 2, 4],
        "c/1/0": "\x07\x07\x07\x07",
    }
    gen = {"key": "c/{{i}}/{{ j % 2 }}", "url": "{{ f(a='data') }}", "offset": "{{2 * i}}"}
    gen |= {"length": "4", "dimensions": {"i": {"start": 0, "stop": 2}, "j": [2, 3]}}
    made = {"version": 1, "templates": {"f": f"{folder}/{{{{a}}}}"}, "gen": [gen], "refs": text}
    samples = [json.dumps(one).encode() for one in (text, {"version": 1, "refs": text}, made)]
    yield Target("references", samples, partial(_read_references, folder), hostile_json)


def _read_references(folder: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".json") as file:
        file.write(data)
        file.flush()
        options = {"fo": file.name, "reference_places": [str(folder)]}
        node = zd.open("reference://", storage_options=options, read=zd.ReadOptions(limits=LIMITS))
        read_a_little(node)
        if isinstance(node, zd.Array) and node.nbytes < 1 << 20:
            node[...]


def record_targets() -> list[Target]:
    return [
        *journal_targets(),
        *ended_targets(),
        *manifest_targets(),
        *plan_targets(),
        *reference_targets(),
    ]
