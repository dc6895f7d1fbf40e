"""Tens of thousands of hostile inputs for every decoder, and for the documents of every format.

Each must end in an error of ours or decode to something that depends on nothing but the input,
within a second and with less than 300 MiB of memory, without a byte written beside the destination.
The inputs are a function of their number, so that a failure is found again by running its target.
"""

import json
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.support.fuzz.child import MEMORY, SECONDS, attempt
from tests.support.fuzz.guided import CORPUS, read_corpus
from tests.support.fuzz.mutate import hostile_bytes, hostile_json
from tests.support.fuzz.records import record_targets
from tests.support.fuzz.targets import all_targets, names_covered
from tests.support.paths import ROOT
from zarr_dask.codecs.numcodecs import FILTERS
from zarr_dask.codecs.registry import v3_names
from zarr_dask.codecs.registry_numcodecs import numcodecs_names
from zarr_dask.errors import ZarrDaskError


def run(tmp_path, first, count, part=0, parts=1):
    last = tmp_path / "last input"
    numbers = (first, count, part, parts)
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.fuzz.child", *map(str, numbers), last],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, f"it died of {last.read_text()}: {child.stderr[-3000:]}"
    report = json.loads(child.stdout)
    failures = "\n".join(f"{place}: {failure}" for place, failure in report["failures"][:3])
    assert not failures, f"{len(report['failures'])} inputs fail, the first are {failures}"
    assert report["slowest"][0] < SECONDS, report["slowest"]
    assert report["grown_mib"] * (1 << 20) < MEMORY
    return report["inputs"]


def test_some_hostile_inputs_for_every_decoder(tmp_path):
    assert run(tmp_path, 0, 30) > 2000


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_hostile_inputs_for_every_decoder(tmp_path, part):
    assert run(tmp_path, 1000, 1000, part, 4) > 10_000


def test_every_codec_is_a_target():
    # other tests and examples register codecs in this process
    own = {name for name in v3_names() if not name.startswith(("example.", "tests."))}
    assert own <= names_covered()
    assert {*numcodecs_names(), *FILTERS} - {"pickle"} <= names_covered()


@pytest.mark.filterwarnings("ignore")  # what is read leniently
@pytest.mark.parametrize("target", all_targets(), ids=lambda target: target.name)
def test_hostile_inputs_are_refused_and_valid_ones_are_not(target):
    target.decode(target.samples[0])
    refused = 0
    for number in range(30):
        data = target.hostile(f"{target.name}#{number}", target.samples)
        assert data == target.hostile(f"{target.name}#{number}", target.samples)
        try:
            target.decode(data)
        except ZarrDaskError:
            refused += 1
    assert refused > 0


@pytest.fixture(scope="module")
def records():
    return record_targets()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [2, pytest.param(150, marks=pytest.mark.slow)])
def test_records_of_jobs_that_strangers_have_made(records, count):
    for target in records:
        with suppress(ZarrDaskError):  # an output that is open is not deleted
            target.decode(target.samples[-1])
        for number in range(count):
            place = f"{target.name}#{number}"
            _, failure = attempt(target, place)
            assert not failure, f"{place}: {failure}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_inputs_that_reached_new_lines_are_read_or_refused(records):
    targets = {target.name: target for target in [*all_targets(), *records]}
    for name, inputs in read_corpus(CORPUS).items():
        for data in inputs:
            with suppress(ZarrDaskError):
                targets[name].decode(data)


@pytest.mark.slow
def test_fuzzing_by_coverage_finds_nothing(tmp_path):
    pytest.importorskip("atheris")
    corpus = tmp_path / "corpus.json"
    shutil.copy(CORPUS, corpus)
    command = [sys.executable, "-m", "tests.support.fuzz.guided", corpus, "30"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert read_corpus(corpus).keys() >= read_corpus(CORPUS).keys()


def test_inputs_differ():
    bytes_ = {hostile_bytes(f"a#{number}", [bytes(range(200))]) for number in range(1000)}
    texts = {hostile_json(f"a#{number}", [b'{"a": [1, {"b": "c"}]}']) for number in range(1000)}
    assert len(bytes_) > 900
    assert len(texts) > 300
