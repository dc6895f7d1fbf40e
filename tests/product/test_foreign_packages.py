"""What the pages say on extensions, done by small packages that are installed for a test."""

import re
import shutil
import subprocess
import sys

from tests.support.paths import ROOT


def blocks(page, language):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def install(folder, module, source, *entry_points):
    """Put a module into a folder, as pip would: with its metadata beside it.

    `entry_points` are tables of a pyproject.toml.
    """
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = "".join(entry_points).replace("[project.entry-points.", "[").replace('"', "")
    (info / "entry_points.txt").write_text(lines)


def run(folder, code):
    child = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(folder), str(ROOT)]}\n{code}"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return child.stdout


CODEC = """
import numpy as np
import zarr_dask as zd
assert "example_xor" not in sys.modules
values = np.arange(100, dtype="i4")
zd.create_array("a.zarr", data=values, chunks=10, codecs=["example.xor", "zstd"])
assert "example_xor" in sys.modules
assert (zd.open("a.zarr")[...] == values).all()
plan = zd.plan_rechunk("a.zarr", "b.zarr", chunks=25)
assert zd.compare("a.zarr", "b.zarr") if plan.run() else False
assert zd.verify("b.zarr")
try:
    zd.create_array("c.zarr", shape=3, dtype="i4",
                    codecs={"name": "example.xor", "configuration": {"mask": 256}})
except ValueError as error:
    print(error)
"""


def test_a_codec(tmp_path):
    (source, *_) = blocks("developers/add-codec.md", "python")
    install(tmp_path, "example_xor", source, *blocks("developers/add-codec.md", "toml"))
    assert "mask is 256, not an integer from 0 to 255" in run(tmp_path, CODEC)


STORE = """
import dask, dask.array as da, numpy as np
import zarr_dask as zd
x = da.arange(100, chunks=10)
with dask.config.set(scheduler="processes", num_workers=1):
    zd.to_zarr(x, "shelf://data/a")
assert (zd.open("shelf://data/a")[...] == np.arange(100)).all()
zd.rechunk("shelf://data/a", "shelf://data/b", chunks=25)
assert zd.verify("shelf://data/b")
assert zd.compare("shelf://data/a", "shelf://data/b")
try:
    zd.register_store("s3", object)
except ValueError as error:
    print(error)
"""


def test_a_store(tmp_path):
    (source, *_) = blocks("developers/add-store.md", "python")
    install(tmp_path, "example_shelf", source, *blocks("developers/add-store.md", "toml"))
    assert "is served by this package" in run(tmp_path, STORE)


KIT = """
import sys

import pytest

from example_shelf import Shelf
from zarr_dask.testing.stores import StoreTests


class TestShelf(StoreTests):
    @pytest.fixture
    def store(self, tmp_path):
        return Shelf(str(tmp_path / "shelf"))
"""


def test_the_store_of_the_page_passes_the_kit(tmp_path):
    (source, *_) = blocks("developers/add-store.md", "python")
    install(tmp_path, "example_shelf", source)
    (tmp_path / "test_shelf.py").write_text(KIT)
    # In a folder of its own: pytest removes the oldest of the shared ones when it ends, and those
    # of a whole run of the tests take it a minute.
    arguments = ["-q", "-x", "-p", "no:cacheprovider", "--basetemp=base", "test_shelf.py"]
    run(tmp_path, f"import pytest; sys.exit(pytest.main({arguments}))")


DATA_TYPE = """
import numpy as np
import zarr_dask as zd
a = zd.create_array("a.zarr", shape=4, dtype="example.degrees", fill_value=90, chunks=2)
a[:2] = [0, 45]
assert zd.open("a.zarr")[...].tolist() == [0, 45, 90, 90]
zd.rechunk("a.zarr", "b.zarr", chunks=4)
text = open("b.zarr/zarr.json").read()
assert '"example.degrees"' in text and '"90.0 deg"' in text, text
try:
    zd.create_array("c.zarr", shape=4, dtype="example.degree")
except TypeError as error:
    print(error)
"""


def test_a_data_type(tmp_path):
    (source, *_) = blocks("developers/add-data-type.md", "python")
    install(tmp_path, "example_degrees", source, *blocks("developers/add-data-type.md", "toml"))
    assert "example.degree" in run(tmp_path, DATA_TYPE)


FORMAT = """
import numpy as np
import zarr_dask as zd
assert zd.__file__.startswith(sys.path[0])
group = zd.create_group("g.zarr", format="single", attributes={"title": "one"})
values = np.arange(12, dtype=">i4").reshape(3, 4)
zd.create_array("g.zarr", path="a", data=values, chunks=2)
found = zd.open("g.zarr")
assert (found.format, dict(found.attrs), list(found)) == ("single", {"title": "one"}, ["a"])
assert (found["a"][...] == values).all() and found["a"].dtype == values.dtype.newbyteorder("=")
zd.rechunk("g.zarr/a", "b.zarr", chunks=3, format="single")
zd.copy("g.zarr", "copy.zarr")
assert zd.verify("copy.zarr") and zd.compare("copy.zarr/a", "b.zarr")
open("g.zarr/a/node.json", "w").write('{".zarray": {"zarr_format": 2}}')
try:
    zd.open("g.zarr/a")
except zd.errors.MetadataError as error:
    print(error)
"""


def patched(text, difference):
    """Apply a diff without line numbers; hunks are separated by empty lines."""
    for hunk in difference.strip("\n").split("\n\n"):
        lines = hunk.splitlines()
        old = "\n".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(old) == 1, old
        text = text.replace(old, "\n".join(line[1:] for line in lines if line[0] in " +"))
    return text


def test_a_format(tmp_path):
    shutil.copytree(ROOT / "zarr_dask", tmp_path / "zarr_dask")
    formats = tmp_path / "zarr_dask" / "formats"
    page = "developers/add-format.md"
    (formats / "single.py").write_text(blocks(page, "python")[0])
    detect = formats / "detect.py"
    detect.write_text(patched(detect.read_text(), blocks(page, "diff")[0]))
    assert "shape" in run(tmp_path, FORMAT)


JOB = """
import dask, numpy as np
import zarr_dask as zd
from example_job import extremes, scale
values = np.arange(3000).reshape(50, 60) - 7
zd.create_array("a.zarr", data=values, chunks=(7, 9))
with dask.config.set(scheduler="processes", num_workers=1):
    assert extremes("a.zarr") == (-7, 2992)
assert extremes("a.zarr", above=3) == (4, 2992) and extremes("a.zarr", above=3000) is None
scale("a.zarr", "b.zarr", 10, resume=True)
assert (zd.open("b.zarr")[...] == values * 10).all() and zd.verify("b.zarr")
try:
    extremes("nothing.zarr")
except zd.errors.NodeNotFoundError as error:
    print(error)
"""


def test_a_job(tmp_path):
    reading, _, writing = blocks("developers/add-job.md", "python")
    functions = writing.partition('scale("grid')[0]
    install(tmp_path, "example_job", f"{reading}\nimport zarr_dask as zd\n\n{functions}")
    assert "nothing.zarr" in run(tmp_path, JOB)
