"""S3 with 20 ms more for each request: reading, writing, opening, copying, beside others.

``make bench-remote`` runs it; ``python -m benchmarks.remote checking 0 20 100`` runs one part at
other latencies, in ms. Everything is measured in one run, on the same server, with two
threads of dask; contenders take turns. "obstore alone" sends the very requests that zarr_dask
sends, with as many at a time (32 when reading, 10 when writing), and does nothing with the answers;
when writing once the shards alone, and once with what must come before and after them.
Blocks that are read are left as they are computed (`persist`): a result of `compute` is copied by
dask, whoever has read it. Whoever writes does so to a new place each time, or into an array that is
open before, with the same codecs.
What each has read or written is compared with what it should be, outside of the measured time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np

import zarr_dask as zd
from benchmarks.s3_nginx import find_nginx, s3_nginx
from benchmarks.s3_server import s3_server
from zarr_dask.formats.detect import FORMATS
from zarr_dask.jobs.engine.overlap_pool import max_uploading
from zarr_dask.stores import Range, Recording, open_store

LATENCY = 20  # ms
WORKERS = 2
PUTS = WORKERS + max_uploading(1 << 20)
KEY = "AKIAEXAMPLE"
ROUNDS = 7

CHUNK = (128, 192)  # of float32: 96 KiB
SHARD = (16 * 128, 16 * 192)
SHAPE = (2 * SHARD[0], 4 * SHARD[1])  # 8 shards of 256 chunks
TAKEN = 4 * 192  # columns that are read of each shard: 64 of its chunks
VALUES = np.random.default_rng(1).random(SHAPE, "f4")


def options(endpoint: str) -> dict[str, Any]:
    client = {"endpoint_url": endpoint, "region_name": "us-east-1"}
    return {"key": KEY, "secret": KEY, "client_kwargs": client}


def best(
    contenders: Mapping[str, Callable[[], object]], tidy: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """The best time of each, after a warm-up; every round is begun by another one."""
    names = list(contenders)
    times = dict.fromkeys(names, float("inf"))
    for number in range(-1, ROUNDS):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            begun = time.perf_counter()
            contenders[name]()
            seconds = time.perf_counter() - begun
            if number >= 0:
                times[name] = min(times[name], seconds)
            tidy()
    return times


def show(
    contenders: Mapping[str, Callable[[], object]], tidy: Callable[[], object] = lambda: None
) -> None:
    """Measure contenders, of which the first is ours; what they leave is tidied up in between."""
    times = best(contenders, tidy)
    ours = next(iter(times.values()))
    for name, seconds in times.items():
        print(f"  {name:<34} {seconds:7.3f} s   {seconds / ours:5.2f} x zarr_dask", flush=True)


def threads(function: Callable[[], object], workers: int = WORKERS) -> Callable[[], object]:
    def run() -> object:
        with dask.config.set(scheduler="threads", num_workers=workers):
            return function()

    return run


# --- reading --------------------------------------------------------------------------------------


def blocks(x: Any) -> list[Any]:
    """The part of each shard that is read, of whatever is indexed like an array."""
    return [
        x[row : row + SHARD[0], column : column + TAKEN]
        for row in range(0, SHAPE[0], SHARD[0])
        for column in range(0, SHAPE[1], SHARD[1])
    ]


def check_blocks(found: tuple[np.ndarray, ...]) -> None:
    """Whether these are the parts that are read."""
    expected = blocks(VALUES)
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def client_of(endpoint: str) -> Any:
    """What sends requests for those that are obstore alone."""
    from obstore.store import S3Store

    return S3Store(
        "bucket",
        endpoint=endpoint,
        region="us-east-1",
        access_key_id=KEY,
        secret_access_key=KEY,
        client_options={"allow_http": True},
    )


def read_with_obstore(
    endpoint: str, rounds: list[list[tuple[str, Range]]], per_object: int
) -> Callable[[], object]:
    """The same ranges, asked for in the same rounds, with as many at a time."""
    import obstore

    client = client_of(endpoint)

    def get(request: tuple[str, Range]) -> int:
        key, (start, stop) = request
        wanted: Any = (start, stop) if stop is not None else {"suffix": -start}
        options: Any = {"range": wanted}
        return len(obstore.get(client, f"a/{key}", options=options).bytes())

    def read() -> None:
        with ThreadPoolExecutor(WORKERS) as tasks, ThreadPoolExecutor(32) as requests:

            def one(number: int) -> None:
                for some in rounds[number * per_object : (number + 1) * per_object]:
                    list(requests.map(get, some))

            list(tasks.map(one, range(len(rounds) // per_object)))

    return read


def rounds_of(array: zd.Array) -> list[list[tuple[str, Range]]]:
    """What is asked for to read each of the blocks, call by call."""
    found: list[list[tuple[str, Range]]] = []
    for block in range(8):
        recording = Recording(array.store)
        row, column = block // 4 * SHARD[0], block % 4 * SHARD[1]
        # one request after the other, so that the calls can be told apart
        opened = zd.open_array(recording)
        recording.clear()
        opened.read((slice(row, row + SHARD[0]), slice(column, column + TAKEN)), threads=1)
        asked = [(one.key, one.range) for one in recording.requests if one.range is not None]
        found += [asked[:1], asked[1:]]
    return found


def reading(endpoint: str) -> None:
    import zarr

    url, given = "s3://bucket/a", options(endpoint)
    array = zd.create_array(
        url, shape=SHAPE, chunks=CHUNK, shards=SHARD, dtype="f4", storage_options=given
    )
    array[...] = VALUES
    rounds = rounds_of(array)
    nbytes = 8 * SHARD[0] * TAKEN * 4
    print(
        f"reading 512 chunks of 8 shards ({nbytes >> 20} MiB, {sum(map(len, rounds))} requests)",
        flush=True,
    )
    x = zd.from_zarr(url, storage_options=given, chunks=(SHARD[0], TAKEN))
    root = zarr.open_array(url, mode="r", storage_options=given)
    y = da.from_array(root, chunks=(SHARD[0], TAKEN))
    check_blocks(dask.compute(*blocks(x)))
    check_blocks(dask.compute(*blocks(y)))
    show(
        {
            "zarr_dask, dask threads": threads(lambda: dask.persist(*blocks(x))),
            "obstore alone": read_with_obstore(endpoint, rounds, 2),
            "dask + zarr-python + s3fs": threads(lambda: dask.persist(*blocks(y))),
            "tensorstore, two reads at a time": read_with_tensorstore(endpoint),
        }
    )


def open_with_tensorstore(endpoint: str, path: str, **create: Any) -> Any:
    import tensorstore as ts

    os.environ.setdefault("AWS_ACCESS_KEY_ID", KEY)
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", KEY)
    place = {
        "driver": "s3",
        "bucket": "bucket",
        "path": path,
        "endpoint": endpoint,
        "aws_region": "us-east-1",
        "aws_credentials": {"type": "environment"},
    }
    return ts.open({"driver": "zarr3", "kvstore": place, "recheck_cached_data": False, **create})


def read_with_tensorstore(endpoint: str) -> Callable[[], object]:
    array = open_with_tensorstore(endpoint, "a/").result()

    def read() -> tuple[np.ndarray, ...]:
        with ThreadPoolExecutor(WORKERS) as pool:
            return tuple(pool.map(lambda part: part.read().result(), blocks(array)))

    check_blocks(read())
    return read


# --- writing --------------------------------------------------------------------------------------


class Shards(NamedTuple):
    """What is written."""

    x: da.Array
    """A dask array of 64 MiB in memory, whose blocks are the shards."""
    stored: Sequence[tuple[str, bytes]]
    """Keys and bytes of the shards."""
    document: bytes
    """The metadata of the array."""
    created: Mapping[str, Any]
    """How zarr_dask makes that array."""

    def with_zarr_python(self, url: str, given: Mapping[str, Any]) -> Any:
        """An array of zarr-python that they fit in."""
        import zarr

        blosc = zarr.codecs.BloscCodec(typesize=4, cname="lz4", clevel=5, shuffle="shuffle")
        return zarr.create_array(
            url,
            shape=self.x.shape,
            chunks=self.created["chunks"],
            shards=self.created["shards"],
            dtype="f4",
            compressors=[blosc],
            overwrite=True,
            storage_options=given,
        )

    def with_tensorstore(self, endpoint: str, path: str) -> Any:
        """An array of tensorstore that they fit in."""
        made = {"create": True, "delete_existing": True, "metadata": json.loads(self.document)}
        return open_with_tensorstore(endpoint, path, **made).result()

    def put_with_tensorstore(self, target: Any) -> None:
        rows = self.x.chunksize[0]
        tasks = [
            dask.delayed(lambda block, n: target[n * rows : (n + 1) * rows].write(block).result())(
                block, n
            )
            for n, block in enumerate(self.x.to_delayed().ravel())
        ]
        dask.compute(*tasks)

    def check(self, url: str, given: Mapping[str, Any]) -> None:
        """Whether an array holds them."""
        found = zd.open_array(url, storage_options=given)[...]
        assert np.array_equal(found, self.x.compute())

    def check_copied(self, url: str, given: Mapping[str, Any]) -> None:
        """Whether the shards are there, byte for byte."""
        copies = open_store(url, given)
        assert all(copies.get(key) == value for key, value in self.stored)


def shards_to_write(given: Mapping[str, Any]) -> Shards:
    created = {"chunks": (128, 128), "shards": (512, 512)}
    values = np.random.default_rng(2).random((64 * 512, 512), "f4")
    x = da.from_array(values, chunks=created["shards"], name=False)
    url = "s3://bucket/encoded"
    zd.to_zarr(x, url, mode="w", storage_options=given, **created)
    store = open_store(url, given)
    stored = [(key, bytes(store.get(key) or b"")) for key in store.list("c/")]
    document = store.get("zarr.json")
    assert len(stored) == 64
    assert document is not None
    return Shards(x, stored, bytes(document), created)


class Alone:
    """Requests of obstore, without anything else."""

    def __init__(self, endpoint: str) -> None:
        self.client = client_of(endpoint)

    def get(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.client.get(path).bytes()

    def list(self, prefix: str) -> None:
        self.client.list_with_delimiter(prefix)

    def look(self, paths: Iterable[str], prefixes: Iterable[str]) -> None:
        """Ask for values and listings, all at once."""
        requests = [partial(self.get, path) for path in paths]
        requests += [partial(self.list, prefix) for prefix in prefixes]
        with ThreadPoolExecutor(len(requests)) as pool:
            for asked in [pool.submit(request) for request in requests]:
                asked.result()

    def put(self, root: str, values: Iterable[tuple[str, bytes]]) -> None:
        with ThreadPoolExecutor(PUTS) as pool:
            list(pool.map(lambda one: self.client.put(f"{root}/{one[0]}", one[1]), values))


class Places:
    """Where contenders write to, a new place each time."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.last: dict[str, str] = {}
        """Where each has written to at last."""
        self._numbers = count()
        self._replaced: list[str] = []

    def new(self, name: str) -> str:
        if name in self.last:
            self._replaced.append(self.last[name])
        self.last[name] = f"s3://bucket/{name}{next(self._numbers)}"
        return self.last[name]

    def new_path(self, name: str) -> str:
        """In the bucket."""
        return self.new(name).removeprefix("s3://bucket/")

    def tidy(self) -> None:
        """Remove what has been replaced: a server whose memory fills up becomes slower."""
        while self._replaced:
            old = open_store(self._replaced.pop(), self.given)
            with ThreadPoolExecutor(32) as pool:
                list(pool.map(old.delete, list(old.list(""))))


def writing(endpoint: str) -> None:
    """Into a new array: a look at the place, the shards, and the document at last."""
    given = options(endpoint)
    shards = shards_to_write(given)
    print("writing 64 shards of 1 MiB", flush=True)
    places, alone = Places(given), Alone(endpoint)

    def write() -> None:
        zd.to_zarr(shards.x, places.new("w"), mode="w", storage_options=given, **shards.created)

    def put() -> None:
        alone.put(places.new_path("o"), shards.stored)

    def put_with_look() -> None:
        root = places.new_path("l")
        keys = [key for one in FORMATS for key in one.node_keys("")]
        alone.look([*keys, *(f"{root}/{key}" for key in keys)], [root, f"{root}.zarr-dask"])
        alone.put(root, shards.stored)
        alone.put(root, [("zarr.json", shards.document)])

    def with_zarr_python() -> None:
        da.store(shards.x, shards.with_zarr_python(places.new("z"), given), lock=False)

    def with_tensorstore() -> None:
        path = places.new_path("t")
        shards.put_with_tensorstore(shards.with_tensorstore(endpoint, f"{path}/"))

    show(
        {
            "zarr_dask, dask threads": threads(write),
            f"obstore alone, {PUTS} puts at a time": put,
            "obstore alone, the same requests": put_with_look,
            "dask + zarr-python + s3fs": threads(with_zarr_python),
            f"tensorstore, {PUTS} writes at a time": threads(with_tensorstore, PUTS),
        },
        places.tidy,
    )
    for name in "ol":
        shards.check_copied(places.last[name], given)
    for name in "wzt":
        shards.check(places.last[name], given)


def writing_into(endpoint: str) -> None:
    """Into an array that is there, and that everybody has opened before."""
    given = options(endpoint)
    shards = shards_to_write(given)
    print("writing 64 shards of 1 MiB into an array that is there", flush=True)
    alone = Alone(endpoint)
    urls = [f"s3://bucket/into-{name}" for name in ("zarr_dask", "zarr-python", "tensorstore")]
    zd.create_array(
        urls[0], shape=shards.x.shape, dtype="f4", storage_options=given, **shards.created
    )
    ours = zd.open_array(urls[0], mode="r+", storage_options=given)
    theirs = shards.with_zarr_python(urls[1], given)
    googles = shards.with_tensorstore(endpoint, urls[2].removeprefix("s3://bucket/") + "/")

    def put_with_look() -> None:
        alone.look(["into-zarr_dask/zarr.json"], ["into-zarr_dask.zarr-dask"])
        alone.put("into-alone", shards.stored)

    show(
        {
            "zarr_dask, dask threads": threads(lambda: zd.to_zarr(shards.x, ours)),
            f"obstore alone, {PUTS} puts at a time": lambda: alone.put("into-o", shards.stored),
            "obstore alone, the same requests": put_with_look,
            "dask + zarr-python + s3fs": threads(lambda: da.store(shards.x, theirs, lock=False)),
            f"tensorstore, {PUTS} writes at a time": threads(
                lambda: shards.put_with_tensorstore(googles), PUTS
            ),
        }
    )
    for root in ("into-o", "into-alone"):
        shards.check_copied(f"s3://bucket/{root}", given)
    for url in urls:
        shards.check(url, given)


# --- opening --------------------------------------------------------------------------------------


def opening(endpoint: str) -> None:
    import zarr

    given = options(endpoint)
    group = zd.create_group("s3://bucket/g", storage_options=given)
    for number in range(100):
        group.create_array(f"a{number}", shape=(10,), chunks=(5,), dtype="i4")

    client = client_of(endpoint)

    def walk() -> None:
        found = dict(zd.open_group("s3://bucket/g", storage_options=given).arrays())
        assert len(found) == 100

    def alone() -> None:
        client.get("g/zarr.json").bytes()
        names = client.list_with_delimiter("g")["common_prefixes"]
        assert len(names) == 100
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda name: client.get(f"{name}/zarr.json").bytes(), names))

    def with_zarr_python() -> None:
        found = dict(zarr.open_group("s3://bucket/g", mode="r", storage_options=given).arrays())
        assert len(found) == 100

    print("opening 100 arrays without consolidated metadata", flush=True)
    show({"zarr_dask": walk, ALONE: alone, "zarr-python + s3fs": with_zarr_python})


# --- checking and copying -------------------------------------------------------------------------


ALONE = "obstore alone, the same requests"
SMALL_SHARDS = 500
"""Number of shards that are checked and copied; small, so that requests are what takes time."""


def _small_shards(given: Mapping[str, Any]) -> str:
    """Write the shards, and return their URL."""
    url = "s3://bucket/small"
    array = zd.create_array(
        url,
        shape=(25 * 64, 20 * 64),
        chunks=(32, 32),
        shards=(64, 64),
        dtype="f4",
        storage_options=given,
    )
    array[...] = np.random.default_rng(3).random(array.shape, "f4")
    return url


class SmallShards:
    """Shards that are checked and copied, small, so that requests are what takes time."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.given = options(endpoint)
        self.client = client_of(endpoint)
        self.url = _small_shards(self.given)
        self.other = "s3://bucket/compared"
        both = {"storage_options": self.given, "target_options": self.given}
        zd.copy(self.url, self.other, **both)
        self.stored = [*open_store(self.url, self.given).list("c/")]
        self._numbers = count()

    def new(self) -> str:
        """A place that is copied to."""
        return f"copied-{next(self._numbers)}"

    def verify(self, **depth: Any) -> None:
        assert zd.verify(self.url, storage_options=self.given, **depth).ok

    def compare(self) -> None:
        both = {"storage_options": self.given, "target_options": self.given}
        assert zd.compare(self.url, self.other, **both).equal

    def copy(self, **target: Any) -> None:
        to = f"s3://bucket/{self.new()}"
        zd.copy(self.url, to, storage_options=self.given, target_options={**self.given, **target})

    # --- the same requests by obstore; those before and after the shards' one after the other -----

    def _at_once(self, request: Callable[[str], object], keys: Iterable[str]) -> None:
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(request, keys))

    def _look(self) -> None:
        self.client.get("small/zarr.json").bytes()
        list(self.client.list("small/"))

    def indices_alone(self) -> None:
        import obstore

        self._look()
        wanted: Any = {"range": {"suffix": 4 * 16 + 4}}  # of each chunk, and a checksum
        self._at_once(
            lambda key: obstore.get(self.client, f"small/{key}", options=wanted).bytes(),
            self.stored,
        )
        self.client.list_with_delimiter("small.zarr-dask")

    def all_bytes_alone(self) -> None:
        self._look()
        self._at_once(lambda key: self.client.get(f"small/{key}").bytes(), self.stored)
        self.client.list_with_delimiter("small.zarr-dask")

    def all_bytes_twice_alone(self) -> None:
        roots = ("small", "compared")
        for root in roots:
            self.client.get(f"{root}/zarr.json").bytes()
        paths = [f"{root}/{key}" for root in roots for key in self.stored]
        self._at_once(lambda path: self.client.get(path).bytes(), paths)

    def copied_alone(self, one: Callable[[str, str], object]) -> None:
        root = self.new()
        self._look()
        self.client.list_with_delimiter(root)
        self.client.put(f"{root}/job.json", b"{}")
        self._at_once(lambda key: one(f"small/{key}", f"{root}/{key}"), self.stored)
        list(self.client.list(root))
        self.client.put(f"{root}/zarr.json", b"{}")
        self.client.delete(f"{root}/job.json")

    def get_and_put(self, old: str, new: str) -> None:
        self.client.put(new, self.client.get(old).bytes())

    # --- others -----------------------------------------------------------------------------------

    def _of_zarr_python(self, path: str) -> Any:
        import zarr

        return zarr.open_array(f"s3://bucket/{path}", mode="r", storage_options=self.given)

    def _of_tensorstore(self, path: str, **create: Any) -> Any:
        return open_with_tensorstore(self.endpoint, f"{path}/", **create).result()

    def compare_with_zarr_python(self) -> None:
        both = (self._of_zarr_python(path)[...] for path in ("small", "compared"))
        assert np.array_equal(*both)

    def compare_with_tensorstore(self) -> None:
        both = (self._of_tensorstore(path).read().result() for path in ("small", "compared"))
        assert np.array_equal(*both)

    def copy_with_zarr_python(self) -> None:
        import zarr

        source, to = self._of_zarr_python("small"), f"s3://bucket/{self.new()}"
        made = zarr.from_array(to, data=source, write_data=False, storage_options=self.given)
        made[...] = source[...]

    def copy_with_tensorstore(self) -> None:
        document = json.loads(bytes(self.client.get("small/zarr.json").bytes()))
        target = self._of_tensorstore(self.new(), create=True, metadata=document)
        target.write(self._of_tensorstore("small")).result()


def checking(endpoint: str) -> None:
    """verify, compare and copy of many shards, beside the same requests, as many at a time."""
    of = SmallShards(endpoint)
    print(f"checking and copying {len(of.stored)} shards of 4 chunks", flush=True)
    elsewhere = options(endpoint.replace("127.0.0.1", "localhost"))  # as if of another service
    runs: list[dict[str, Callable[[], object]]] = [
        {"verify": of.verify, ALONE: of.indices_alone},
        {"verify(deep='decode')": lambda: of.verify(deep="decode"), ALONE: of.all_bytes_alone},
        {
            "compare": of.compare,
            ALONE: of.all_bytes_twice_alone,
            "zarr-python + s3fs": of.compare_with_zarr_python,
            "tensorstore": of.compare_with_tensorstore,
        },
        {"copy within the service": of.copy, ALONE: lambda: of.copied_alone(of.client.copy)},
        {
            "copy to another service": lambda: of.copy(**elsewhere),
            ALONE: lambda: of.copied_alone(of.get_and_put),
            "zarr-python + s3fs": of.copy_with_zarr_python,
            "tensorstore": of.copy_with_tensorstore,
        },
    ]
    for contenders in runs:
        show({name: threads(function) for name, function in contenders.items()})
    last = f"s3://bucket/{of.new()}"
    zd.copy(of.url, last, storage_options=of.given, target_options=of.given)
    both = (zd.open_array(one, storage_options=of.given)[...] for one in (of.url, last))
    assert np.array_equal(*both)


# --- memory ---------------------------------------------------------------------------------------

STREAM = """
import json, sys
import dask
import zarr_dask as zd
given = json.loads(sys.argv[1])
x = zd.from_zarr("s3://bucket/m", storage_options=given)
def grown(): return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
with dask.config.set(scheduler="threads", num_workers=2):
    x.blocks[:2].sum().compute()
    before = int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) / 1024
    total = x.sum().compute()
assert total == 1.0 * x.size, total
print(before, grown(), x.nbytes / 2**30, x.blocks[0].nbytes / 2**20)
"""


def streaming(endpoint: str) -> None:
    given = options(endpoint)
    n = 1 << 21  # 8 MiB of float32
    array = zd.create_array(
        "s3://bucket/m",
        shape=(256 * n,),
        chunks=n,
        dtype="f4",
        codecs=[{"name": "bytes", "configuration": {"endian": "little"}}],
        storage_options=given,
    )
    array[:n] = 1
    store = open_store("s3://bucket/m", given)
    value = store.get("c/0") or b""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.set(f"c/{number}", [value]), range(1, 256)))
    command = [sys.executable, "-c", STREAM, json.dumps(given)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    before, peak, gib, block = map(float, said.split())
    print(f"streaming {gib:g} GiB, two blocks of {block:g} MiB at a time", flush=True)
    print(
        f"  the process grows from {before:.0f} to {peak:.0f} MiB: {peak - before:.0f} MiB, of "
        f"which {2 * block:g} MiB are blocks"
    )


PARTS = {
    "reading": reading,
    "writing": writing,
    "writing-into": writing_into,
    "opening": opening,
    "checking": checking,
    "streaming": streaming,
}


def main(wanted: list[str]) -> None:
    server = s3_server if find_nginx() is None else s3_nginx
    print(
        "server: nginx"
        if server is s3_nginx
        else "server: Python, which levels differences (tools/servers.sh nginx-lua installs nginx)"
    )
    latencies = [int(word) for word in wanted if word.isdigit()] or [LATENCY]
    parts = [word for word in wanted if not word.isdigit()] or PARTS
    for latency in latencies:
        with server(latency / 1000) as endpoint:
            print(f"{latency} ms more for each request", flush=True)
            for name in parts:
                PARTS[name](endpoint)


if __name__ == "__main__":
    main(sys.argv[1:])
