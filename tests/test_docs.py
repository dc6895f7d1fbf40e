"""Python in the README and in docs/ runs as it stands there, but for the names of places.

Commands are read as the command line would read them, and not run.
"""

import json
import re
import shlex
from pathlib import Path

import click
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.paths import ROOT
from zarr_dask.cli import main
from zarr_dask.errors import NodeNotFoundError
from zarr_dask.stores import MemoryStore

ELSEWHERE = {
    "s3://bucket/": "bucket/",
    "/scratch/me": "scratch",
    '{"anon": True}': "{}",
    '"remote_protocol": "s3"': '"remote_protocol": "file"',
}
REMOTE = {"s3://bucket/": "memory://docs/"}
"""For what only stores behind a network have."""


def run(store="run.zarr"):
    names = ("time", "lat", "lon")
    values = da.arange(10 * 12 * 14, chunks=-1).reshape(10, 12, 14).rechunk((5, 6, 7))
    zd.to_zarr(values, store, "temperature", dimension_names=names, mode="w")


def dataset(url):
    def prepare():
        zd.to_zarr(da.ones((4, 6), chunks=3), url, "t", dimension_names=("time", "x"))
        zd.consolidate(url)

    return prepare


def era5():
    names = ("time", "lat", "lon")
    zd.to_zarr(da.ones((40, 8, 8), chunks=(10, 8, 8)), "era5.zarr", "t", dimension_names=names)
    run("run-7.zarr")
    zd.create_array("old.zarr", shape=4, dtype="i2", chunks=2, format="v2")


def maps():
    shape, names = (200, 20, 8), ("time", "lat", "lon")
    zd.create_array("maps.zarr", shape=shape, dtype="f4", chunks=(1, 20, 8), dimension_names=names)


def image(*urls):
    def prepare():
        pixels = np.arange(2 * 2 * 64 * 64, dtype="u2").reshape(2, 2, 64, 64)
        cells = (pixels[0] // 500).astype("u2")
        for url in urls:
            size = {"y": 1.0, "x": 1.0}
            zd.ome.write(pixels, url, axes="czyx", scale=size, labels={"cells": cells}, levels=2)
        return {"x": pixels, "cells": cells, "url": url}

    return prepare


def plate():
    pixels = np.ones((1, 64, 64), "u2")
    zd.ome.write_plate({"A/1": pixels, "B/3": pixels}, "plate.zarr", axes="cyx", levels=3)


def old_image():
    image("image.zarr", "new.zarr")()
    zd.ome.migrate("image.zarr", "0.4", "image04.zarr")
    zd.delete("image.zarr")
    Path("image04.zarr").rename("image.zarr")


def names(**values):
    return lambda: values


def pair():
    zd.to_zarr(da.ones(6, chunks=3), "a.zarr")
    zd.to_zarr(da.ones(6, chunks=2), "b.zarr")


def selected():
    run()
    return {"a": zd.open_array("run.zarr", "temperature"), "mask": np.arange(14) % 2 == 0}


def written():
    return {"x": da.ones((8, 8), chunks=4), "y": da.ones(8, chunks=4)}


def sources():
    a, b = (zd.create_array({}, shape=(8, 64, 64), dtype="f4", chunks=(1, 64, 64)) for _ in "uv")
    return {"u": a, "v": b, "a": a.to_dask()}


def step(shape):
    return names(rank=0, steps=2, time=0.5, block=np.ones(shape, "f4"), x=np.arange(4096.0))


def repository():
    icechunk = pytest.importorskip("icechunk")
    maps = da.ones((8, 4), chunks=(2, 4))
    zd.to_zarr(maps, "maps.zarr", dimension_names=("time", "x"))
    return {"repository": icechunk.Repository.create(icechunk.in_memory_storage()), "x": maps}


def references():
    """Of a file that holds what a store would."""
    np.arange(6, dtype="<f4").tofile("raw.bin")
    document = {"zarr_format": 2, "shape": [6], "chunks": [3], "dtype": "<f4", "order": "C"}
    document |= dict.fromkeys(("compressor", "filters", "fill_value"))
    found = {
        ".zgroup": '{"zarr_format": 2}',
        "temperature/.zarray": json.dumps(document),
        "temperature/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}',
        "temperature/0": ["raw.bin", 0, 12],
        "temperature/1": ["raw.bin", 12, 12],
    }
    Path("refs.json").write_text(json.dumps({"version": 1, "refs": found}))


def half_done():
    """What a job that was killed leaves, in the end: no array."""


def several_images():
    return dict.fromkeys(("x", "y0", "y1", "z", "w"), np.ones((1, 8, 8)))


PREPARED = {
    'zd.to_zarr(x, "x.zarr", shards=': (),
    '"chunks": (10, 512, 512)},': (step((512, 512)),),
    "zd.plan_copy(": (era5,),
    "dask_array.from_array(": (run,),
    "image.level(shape=": (image("bucket/image.zarr"),),
    "zd.ome.open_plate(": (plate,),
    "zd.ome.thumbnail(": (image("image.zarr"),),
    "zd.ome.write(\n": (image("other.zarr"),),
    "zd.ome.write_labels(": (
        image("image.zarr"),
        lambda: zd.delete("image.zarr", "labels"),
    ),
    "zd.ome.write_plate(": (several_images,),
    "zd.ome.validate(": (image("bucket/image.zarr"),),
    "zd.ome.migrate(": (old_image,),
    "zd.ome.from_attributes(": (image("image.zarr"),),
    "# time, lat, lon": (run,),
    "a.lazy[::-1].oindex[": (selected,),
    '"ocean/salt", resume=True)': (written,),
    "NodeNotFoundError: ": (half_done,),
    "zd.Manifest.read(": (written,),
    'path=["u", "v"]': (sources,),
    "spring.zarr": (maps,),
    'temp="/scratch/me"': (sources,),
    '"chunks": (10, 512, 512),\n': (step((512, 512)),),
    'zd.ZipWriter("run.zip")': (written,),
    "repository.writable_session(": (repository,),
    "reference::refs.json": (references,),
    "RetryPolicy(": (dataset("memory://docs/a.zarr"), names(any_store=MemoryStore())),
    "Cache(open_store(": (lambda: zd.to_zarr(da.ones(4), "bucket/a.zarr") and None,),
    'zd.verify("run.zarr")  #': (run,),
    'zd.compare("a.zarr", "b.zarr")': (pair,),
    "plan.plot()": (),
    "zd.open_datatree(": tuple(map(dataset, ("bucket/era5.zarr", "era5.zarr", "runs.zarr"))),
}
"""What makes the names and the places of each block, which is known by some text in it."""
RAISES = {"NodeNotFoundError: ": NodeNotFoundError}


def blocks(kinds):
    """The blocks of some kinds in all documents, by document and number."""
    found = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        fenced = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
        codes = [code for kind, code in fenced if kind in kinds]
        for number, code in enumerate(codes, 1):
            found[f"{path.relative_to(ROOT).as_posix()} {number}"] = code
    return found


def commands():
    """The commands in all blocks for a shell, but for those that say what could be given."""
    for code in blocks({"", "console", "sh"}).values():
        for line in code.replace("\\\n", " ").splitlines():
            for command in line.removeprefix("$ ").partition("  #")[0].split("&&"):
                if command.strip().startswith("zarr-dask ") and "[" not in command:
                    yield " ".join(command.partition(" > ")[0].split())


EXAMPLES = blocks({"python"})


@pytest.mark.parametrize("name", EXAMPLES)
def test_runs(name, tmp_path, monkeypatch):
    code = EXAMPLES[name]
    found = [text for text in PREPARED if text in code]
    assert len(found) == 1, "PREPARED must have one text of this block, and what it needs"
    known = found[0]
    monkeypatch.chdir(tmp_path)
    if known in RAISES:  # only what is typed, not what comes out
        code = "\n".join(re.findall(r"(?m)^>>> (.*)", code))
    for place, here in (REMOTE if "retry" in code else ELSEWHERE).items():
        code = code.replace(place, here)
    namespace = {"zd": zd, "np": np, "da": da, "Path": Path}
    for prepare in PREPARED[known]:
        namespace |= prepare() or {}
    if known in RAISES:
        with pytest.raises(RAISES[known]):
            exec(code, namespace)  # noqa: S102
    else:
        exec(code, namespace)  # noqa: S102


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_commands_are_known(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("plan.json").touch()
    words, found = shlex.split(command)[1:], main
    while isinstance(found, click.Group):
        found = found.get_command(click.Context(found), words.pop(0))
    assert found.make_context(command, words).params
