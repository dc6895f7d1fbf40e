"""docs/howto/failures.md: each failure is made, its message is the page's, and the remedy helps."""

import json
import os
import signal
import subprocess
import sys
import warnings
from collections import defaultdict
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.leftovers import open_below
from tests.support.running import running
from tools import docs_pages

PAGE = docs_pages.DOCS / "howto" / "failures.md"
SECTIONS = defaultdict(list)
for _block in docs_pages.blocks(PAGE.read_text(encoding="utf-8")):
    SECTIONS[_block.section].append(_block)
DISK = {"objects": 8}
ONES = da.ones((40, 40), chunks=10)
NOISE = np.random.default_rng(0).random((40, 40))


def until_the_disk_is_full(block):
    if DISK["objects"] == 0:
        raise OSError("no space left on device")
    DISK["objects"] -= 1
    return block


def job():
    return ONES.map_blocks(until_the_disk_is_full, meta=np.empty((0, 0)))


def killed():
    """Make a job that dies when half of its objects are written."""
    DISK["objects"] = 8
    with dask.config.set(scheduler="synchronous"), pytest.raises(OSError, match="no space") as told:
        zd.to_zarr(job(), "run.zarr", "salt", resume=True)
    DISK["objects"] = 100
    return told.value


def salt_is_whole(_=None):
    assert (zd.open_array("run.zarr", "salt")[...] == 1).all()
    assert not open_below(Path("run.zarr.zarr-dask"))


def resumed(_):
    assert DISK["objects"] == 100 - 8  # the other half alone was computed
    salt_is_whole()


def error(call, kind):
    with pytest.raises(kind) as told:
        call()
    return str(told.value)


def findings(**options):
    found = zd.verify("run.zarr", **options)
    assert not found.ok
    return str(found)


def whole(_):
    assert zd.verify("run.zarr", deep="decode").ok


def my_job_was_killed():
    return str(killed()), {"x": job()}, resumed


def has_not_ended():
    killed()
    message = error(lambda: zd.open("run.zarr", "salt"), zd.errors.NodeNotFoundError)
    return message, {"x": job()}, salt_is_whole


def what_is_the_folder():
    killed()
    return "", {"x": job()}, salt_is_whole


def resuming_is_refused():
    def random():
        return da.random.random((40, 40), chunks=10).map_blocks(
            until_the_disk_is_full, meta=np.empty((0, 0))
        )

    DISK["objects"] = 8
    with pytest.raises(OSError, match="no space"):
        zd.to_zarr(random(), "run.zarr", "salt", resume=True)
    call = lambda: zd.to_zarr(random(), "run.zarr", "salt", resume=True)  # noqa: E731
    message = error(call, zd.errors.ResumeError)
    return (
        message,
        {},
        lambda names: np.testing.assert_array_equal(
            zd.open_array("run.zarr", "salt")[...], names["x"].compute()
        ),
    )


def damaged():
    zd.to_zarr(da.from_array(NOISE, chunks=10), "run.zarr")
    stored = Path("run.zarr/c/0/0")
    stored.write_bytes(stored.read_bytes()[:20])

    def check(_):
        whole(_)
        np.testing.assert_array_equal(zd.open_array("run.zarr")[...], NOISE)

    return findings(deep="decode"), {"source": NOISE}, check


def orphans():
    zd.to_zarr(ONES, "run.zarr")
    Path("run.zarr/junk").write_bytes(b"junk")
    return findings(), {}, whole


def stray():
    a = zd.create_array("run.zarr", shape=40, dtype="i4", chunks=10)
    a[:] = 1
    a.resize((20,))
    return findings(), {}, whole


def stale():
    zd.to_zarr(ONES, "run.zarr", "a")
    zd.consolidate("run.zarr")
    path = Path("run.zarr/a/zarr.json")
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"attributes": {"units": "m"}}))
    return findings(), {}, whole


def temporary():
    zd.to_zarr(ONES, "run.zarr")
    left = Path("run.zarr/c/.zarr-dask-0123456789abcdef.tmp")
    left.write_bytes(b"half")
    os.utime(left, (1, 1))
    return findings(), {}, whole


def document():
    zd.to_zarr(ONES, "run.zarr", "a")
    Path("run.zarr/a/zarr.json").write_text("{")

    def check(_):
        whole(_)
        assert (zd.open_array("run.zarr", "a")[...] == 1).all()

    return findings(), {}, check


def group():
    zd.to_zarr(ONES, "run.zarr", "sub/a", format="v2")
    Path("run.zarr/sub/.zgroup").unlink()
    with pytest.warns(zd.errors.MissingGroupWarning):
        return findings(), {}, whole


def memory():
    zd.create_array("maps.zarr", shape=(64, 4096, 4096), dtype="f4", chunks=(1, 4096, 4096))
    chunks = (64, 64, 4096)
    message = error(
        lambda: zd.plan_rechunk(
            "maps.zarr", "series.zarr", chunks=chunks, max_mem="10MB", threads=2
        ),
        zd.errors.MemoryBudgetError,
    )
    return message, {}, lambda names: names["plan"].to_json()


def region():
    zd.to_zarr(da.from_array(NOISE, chunks=10), "run.zarr")
    x = da.ones((15, 40), chunks=15)
    message = error(
        lambda: zd.to_zarr(x, "run.zarr", region=np.s_[5:20]), zd.errors.PartialWriteError
    )

    def check(_):
        values = zd.open_array("run.zarr")[...]
        assert (values[5:20] == 1).all()
        np.testing.assert_array_equal(values[20:], NOISE[20:])

    return message, {"x": x}, check


def exists():
    zd.to_zarr(ONES, "run.zarr")
    message = error(lambda: zd.to_zarr(2 * ONES, "run.zarr"), zd.errors.NodeExistsError)
    return message, {"x": 2 * ONES}, lambda _: equal("run.zarr", 2)


def equal(url, value):
    assert (zd.open_array(url)[...] == value).all()


def source():
    zd.to_zarr(ONES, "run.zarr")
    call = lambda: zd.to_zarr(zd.from_zarr("run.zarr") + 1, "run.zarr", mode="w")  # noqa: E731
    return error(call, zd.errors.SourceIsTargetError), {}, lambda _: equal("run.zarr", 2)


def another_job():
    def first(stopped):
        return zd.to_zarr(ONES, "run.zarr", progress=stopped, resume=True)

    with running(first):
        message = error(
            lambda: zd.to_zarr(2 * ONES, "run.zarr", mode="w"), zd.errors.JobRunningError
        )
    return message, {"x": 2 * ONES}, lambda _: equal("run.zarr", 2)


def changed():
    zd.to_zarr(ONES, "run.zarr")
    plans = [zd.plan_write(ONES, "run.zarr", append=0) for _ in range(2)]
    plans[0].run()
    message = error(plans[1].run, zd.errors.MetadataChangedError)

    def check(_):
        assert zd.open_array("run.zarr").shape == (120, 40)
        equal("run.zarr", 1)

    return message, {"x": ONES}, check


def differs():
    zd.to_zarr(da.from_array(NOISE, chunks=10), "run.zarr")
    lossy = [
        {"name": "bitround", "configuration": {"keepbits": 4}},
        {"name": "bytes", "configuration": {"endian": "little"}},
    ]
    call = lambda: zd.rechunk("run.zarr", "copy.zarr", chunks=(40, 10), codecs=lossy, verify=True)  # noqa: E731
    message = error(call, zd.errors.ValuesDifferError)
    assert not Path("copy.zarr/zarr.json").exists()
    return (
        message,
        {},
        lambda _: np.testing.assert_array_equal(zd.open_array("copy.zarr")[...], NOISE),
    )


def out_of_reach():
    with dask.config.set(scheduler="processes"):
        message = error(lambda: zd.to_zarr(ONES, {}), zd.errors.StoreOutOfReachError)
    return message, {"x": ONES}, lambda _: equal("run.zarr", 1)


def publish():
    u = {"shape": (64, 64), "dtype": "f4", "chunks": (1, 32, 64)}
    zd.Writer.create("run.zarr", {"u": u}, owners=zd.decompose((64, 64), (2, 1)))
    with zd.Writer.attach("run.zarr", rank=0) as writer:
        writer.write_step(0, {"u": np.ones((32, 64), "f4")})
    message = error(lambda: zd.Writer.attach("run.zarr").publish(0), zd.errors.StepsMissingError)

    def check(_):
        array = zd.open_array("run.zarr", "u", mode="r+")
        with pytest.warns(zd.errors.ConsolidatedMetadataWarning):
            array.resize((3, 64, 64))  # nothing is open any more

    return message, {}, check


def shared():
    u = {"shape": (64, 64), "dtype": "f4", "chunks": (1, 64, 64)}
    owners = zd.decompose((64, 64), (2, 1))
    call = lambda: zd.Writer.create("run.zarr", {"u": u}, owners=owners)  # noqa: E731
    message = error(call, zd.errors.SharedObjectError)

    def check(_):
        zd.Writer.attach("run.zarr", rank=1).close()

    return message, {}, check


def still_open():
    u = {"shape": (64, 64), "dtype": "f4", "chunks": (1, 32, 64)}
    zd.Writer.create("run.zarr", {"u": u}, owners=zd.decompose((64, 64), (2, 1)))
    for rank in range(2):
        with zd.Writer.attach("run.zarr", rank=rank) as writer:
            writer.write_step(0, {"u": np.ones((32, 64), "f4")})
    array = zd.open_array("run.zarr", "u", mode="r+")
    message = error(lambda: array.resize((3, 64, 64)), zd.errors.RankError)

    def check(_):
        found = zd.open_array("run.zarr", "u", mode="r+")
        assert found.shape == (1, 64, 64)
        assert (found[...] == 1).all()
        with pytest.warns(zd.errors.ConsolidatedMetadataWarning):
            found.resize((3, 64, 64))

    return message, {}, check


def converted():
    """Make what a conversion leaves that takes no notice of what xarray means in v2."""
    options = {"shape": (4,), "chunks": (2,), "dtype": "i2", "fill_value": 9999}
    a = zd.create_array("run.zarr", "t", dimension_names=["x"], **options)
    a[:2] = [1, 0]
    assert list(zd.open_dataset("run.zarr").t.values) == [1, 0, 9999, 9999]

    def check(names):
        np.testing.assert_array_equal(names["marked"].t.values, [1, 0, np.nan, np.nan])
        assert list(names["plain"].t.values) == [1, 0, 9999, 9999]

    return "", {}, check


def stopped():
    DISK["objects"] = 100

    def interrupted(block):
        if DISK["objects"] == 92:
            raise KeyboardInterrupt  # as Ctrl-C, whatever handler other tests have left
        return until_the_disk_is_full(block)

    x = ONES.map_blocks(interrupted, meta=np.empty((0, 0)))
    with dask.config.set(scheduler="synchronous"), pytest.raises(KeyboardInterrupt):
        zd.to_zarr(x, "run.zarr", resume=True)
    DISK["objects"] = 91

    def check(_):
        assert DISK["objects"] == 91 - 8  # what was stored before is not computed again
        equal("run.zarr", 1)

    return "", {"x": x}, check


def slow():
    zd.create_array("maps.zarr", shape=(1000, 1000), dtype="f4", chunks=(10, 10))
    return "", {}, None


FAILURES = {
    "My job was killed": my_job_was_killed,
    "An array cannot be opened because a job has not ended": has_not_ended,
    "What is the folder run.zarr.zarr-dask?": what_is_the_folder,
    "Resuming is refused": resuming_is_refused,
    "Damaged stored objects": damaged,
    "Orphans": orphans,
    "Stray objects": stray,
    "Stale metadata": stale,
    "Temporary files": temporary,
    "Damaged metadata": document,
    "Groups without a document": group,
    "Too little memory": memory,
    "A region is refused": region,
    "Something is there already": exists,
    "A job would overwrite its source": source,
    "Another job is running": another_job,
    "The metadata have changed": changed,
    "A copy differs from its source": differs,
    "Workers cannot reach the store": out_of_reach,
    "Ranks would share a stored object": shared,
    "A simulation cannot publish": publish,
    "An output is open": still_open,
    "Values are NaN or 0 after a conversion from v2": converted,
    "It is slow": slow,
    "Stop a job": stopped,
}
ALONE = {"Workers died", "A script starts processes", "A process was forked"}
"""Sections with tests of their own, which start processes."""


def test_every_section_with_code_has_its_failure():
    assert SECTIONS.keys() == FAILURES.keys() | ALONE


@pytest.mark.parametrize("section", FAILURES)
def test_the_remedy_helps(section, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message, names, check = FAILURES[section]()
    for block in SECTIONS[section]:
        if block.kind == "text":
            assert_says(message, block.code)
    namespace = {"zd": zd, "da": da, "np": np, "dask": dask} | names
    for block in SECTIONS[section]:
        docs_pages.execute(block, namespace, f"{PAGE.name}: {section}")
    if check is not None:
        check(namespace)


def test_workers_died(tmp_path, monkeypatch):
    from distributed import Client, LocalCluster

    monkeypatch.chdir(tmp_path)
    here = os.getpid()

    def until_memory_is_short(block, block_info=None):
        if block_info[0]["chunk-location"] == (3, 3) and os.getppid() == here:
            os._exit(1)
        return block

    x = ONES.map_blocks(until_memory_is_short, meta=np.empty((0, 0)), name="large")
    message, code = SECTIONS["Workers died"]
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(**options) as cluster,
        Client(cluster),
    ):
        told = error(lambda: zd.to_zarr(x, "run.zarr", resume=True), zd.errors.WorkerLostError)
    assert_says(told, message.code)

    def larger(**asked):
        assert asked.keys() <= {"n_workers", "threads_per_worker", "memory_limit"}
        return Client(processes=False, dashboard_address="127.0.0.1:0", **asked)

    docs_pages.execute(code, {"zd": zd, "x": x, "Client": larger}, "Workers died")
    equal("run.zarr", 1)


def in_a_fork(run, seconds):
    """Run a function in a forked child for at most this long; return how the child ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not pytest-timeout's
        signal.alarm(seconds)
        try:
            run()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_process_was_forked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    total = ONES.sum()
    with dask.config.set(scheduler="threads"):
        total.compute()  # starts threads that a child lacks
        assert in_a_fork(total.compute, seconds=1) == -signal.SIGALRM
        (block,) = SECTIONS["A process was forked"]
        names = {"zd": zd, "dask": dask, "x": ONES}
        assert in_a_fork(lambda: docs_pages.execute(block, names, "fork"), seconds=30) == 0
    equal("run.zarr", 1)


def script(code, guarded):
    """Run a program that starts a process; return what it prints."""
    if not guarded:
        code = code.partition('if __name__ == "__main__":')[0] + "main()\n"
    code = code.replace("Client(n_workers=2)", "ProcessPoolExecutor(2, get_context('spawn'))")
    imports = "from concurrent.futures import ProcessPoolExecutor\n"
    imports += "from multiprocessing import get_context\n"
    Path("job.py").write_text(imports + code)
    done = subprocess.run(
        [sys.executable, "job.py"], capture_output=True, text=True, timeout=50, check=False
    )
    return " ".join((done.stdout + done.stderr).split())


def test_a_script_starts_processes(tmp_path, monkeypatch):
    """With a pool, which starts its processes as a cluster does, in a tenth of the time."""
    monkeypatch.chdir(tmp_path)
    message, code = SECTIONS["A script starts processes"]
    assert_says(script(code.code, guarded=False), message.code)
    assert script(code.code, guarded=True) == "3"


def assert_says(message, shown):
    """Assert that a message has the text of a page, which leaves out what stands for "..."."""
    text = " ".join(message.split())
    for part in " ".join(shown.split()).split("..."):
        at = text.find(part.strip())
        assert at >= 0, f"the page says {part.strip()!r}, the message is\n{message}"
        text = text[at + len(part.strip()) :]


def test_a_wrong_message_is_noticed():
    with pytest.raises(AssertionError):
        assert_says("the disk is full", "the disk ... empty")
