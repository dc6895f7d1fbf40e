"""Attacks that need more than one value: long files, archives, hierarchies, images.

Each is an item of `CASES`, which `tests.support.fuzz.named` runs with its own.
"""

import io
import json
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import zarr_dask as zd
import zarr_dask.ome
from zarr_dask.stores.backends.memory import MemoryStore
from zarr_dask.stores.wrappers.base import PrefixStore, ReadOnly
from zarr_dask.stores.wrappers.cache import Cache

CASES: dict[str, Callable[[], object]] = {}
LONG = 3 << 30
LEVEL = {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1]}]}


def array_document(*codecs: object, n: int = 64) -> dict:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [n],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [n]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [*codecs] or [{"name": "bytes"}],
    }


def long_chunk(nbytes: int, *codecs: object, wrap=None, part: bool = False, ending=b"") -> object:
    """Read a chunk of 64 bytes that is a sparse file of many more."""
    folder = Path(mkdtemp()) / "a.zarr"
    (folder / "c").mkdir(parents=True)
    (folder / "zarr.json").write_text(json.dumps(array_document(*codecs)))
    with (folder / "c" / "0").open("wb") as file:
        file.truncate(nbytes - len(ending))
        file.seek(0, os.SEEK_END)
        file.write(ending)
    location = str(folder)
    array = zd.open_array(location if wrap is None else wrap(zd.open_array(location).store))
    return array[3:9] if part else array[...]


def sharded(*codecs: object) -> dict:
    configuration = {
        "chunk_shape": [32],
        "codecs": [{"name": "bytes"}, *codecs],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    return {"name": "sharding_indexed", "configuration": configuration}


RAW, GZIP = {"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}
ABSENT = b"\xff" * 16
for what, codecs in {
    "raw": [RAW],
    "gzip": [RAW, GZIP],
    "crc32c": [RAW, {"name": "crc32c"}],
}.items():
    CASES[f"a chunk of 3 GiB, {what}"] = partial(long_chunk, LONG, *codecs)
    CASES[f"a part of a chunk of 3 GiB, {what}"] = partial(long_chunk, LONG, *codecs, part=True)
CASES["a chunk of 1 TiB"] = partial(long_chunk, 1 << 40)
CASES["a chunk of 3 GiB in a cache"] = partial(
    long_chunk, LONG, wrap=lambda store: Cache(store, 1 << 20)
)
CASES["a chunk of 3 GiB, read only"] = partial(long_chunk, LONG, wrap=ReadOnly)
CASES["a shard of 3 GiB, gzip around it"] = partial(long_chunk, LONG, sharded(), GZIP)
CASES["a shard of 3 GiB whose index gives all of it to a chunk"] = partial(
    long_chunk,
    LONG,
    sharded(GZIP),
    ending=np.array([0, LONG - 32], "<u8").tobytes() + ABSENT,
)


def walked(store: object) -> object:
    return list(zd.open_group(store).walk())


def consolidated(entries: dict) -> dict[str, bytes]:
    known = {"kind": "inline", "must_understand": False, "metadata": entries}
    document = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": known}
    return {"zarr.json": json.dumps(document).encode()}


for depth in (3000, 10_000, 20_000):
    CASES[f"consolidated metadata of a path of {depth} names"] = lambda depth=depth: walked(
        consolidated({"/".join("a" * depth): array_document()})
    )
nested = consolidated(
    {"/".join("a" * n): {"zarr_format": 3, "node_type": "group"} for n in range(1, 5000)}
)
CASES["consolidated metadata of 5000 groups in one another"] = lambda: walked(nested)


def deep_groups() -> object:
    folder = Path(mkdtemp()) / "d.zarr"
    zd.create_group(str(folder))
    before = Path.cwd()
    try:
        os.chdir(folder)
        for _ in range(1200):
            Path("aaa").mkdir()
            os.chdir("aaa")
            Path("zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    finally:
        os.chdir(before)
    return walked(str(folder))


CASES["1200 groups in one another"] = deep_groups


def shared_entries(*names: str) -> object:
    """Walk an archive whose entries are all of the same deflated bytes."""
    path = Path(mkdtemp()) / "a.zip"
    content = io.BytesIO()
    archive = zipfile.ZipFile(content, "w")
    archive.writestr("zarr.json", '{"zarr_format": 3, "node_type": "group"}')
    archive.writestr("big/zarr.json", bytes(1 << 22), zipfile.ZIP_DEFLATED)
    (_, big) = archive.infolist()
    for name in names:
        entry = zipfile.ZipInfo(name)
        for field in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
            setattr(entry, field, getattr(big, field))
        archive.filelist.append(entry)
    archive._didModify = True
    archive.close()
    path.write_bytes(content.getvalue())
    return walked(str(path))


CASES["a zip archive of 200 names for one document"] = lambda: shared_entries(
    *(f"n{number}/zarr.json" for number in range(200))
)


def many_large_documents() -> object:
    """Walk 12 groups with documents of 30 MB, which the file system holds as holes."""
    folder = Path(mkdtemp()) / "m.zarr"
    zd.create_group(str(folder))
    for number in range(12):
        (folder / str(number)).mkdir()
        with (folder / str(number) / "zarr.json").open("wb") as file:
            file.truncate(30_000_000)
    found = [node for _, node in walked(str(folder))]
    assert len(found) == 12
    raise found[0]


CASES["12 documents of 30 MB"] = many_large_documents


def image(ome: dict) -> object:
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}}
    level = json.dumps(array_document()).encode()
    store = MemoryStore({"zarr.json": json.dumps(document).encode(), "0/zarr.json": level})
    return zd.ome.open(PrefixStore(store, ""))


AXES = [{"name": "x", "type": "space"}]
CASES["an image of 100000 levels"] = lambda: image(
    {"version": "0.5", "multiscales": [{"axes": AXES, "datasets": [LEVEL] * 100_000}]}
)
CASES["a level of 100000 transformations"] = lambda: image(
    {
        "version": "0.5",
        "multiscales": [
            {
                "axes": AXES,
                "datasets": [
                    {
                        "path": "0",
                        "coordinateTransformations": LEVEL["coordinateTransformations"] * 100_000,
                    }
                ],
            }
        ],
    }
)
CASES["a plate of 100000 rows and columns"] = lambda: image(
    {
        "version": "0.5",
        "plate": {
            "rows": [{"name": "A"}] * 100_000,
            "columns": [{"name": "1"}] * 100_000,
            "wells": [{"path": "A/1", "rowIndex": 0, "columnIndex": 0}],
        },
    }
)
