"""Run by zarr-python 2.18 with its draft of v3 switched on: reads or writes what a job file lists.

python draft_peer.py read JOBS.json     array job["name"] of job["path"] -> job["values"] (.npy)
python draft_peer.py write JOBS.json    job["values"] (.npy) -> that array, with a group beside it
python draft_peer.py group JOBS.json    attributes and children of the group job["group"]

The environment must have ZARR_V3_EXPERIMENTAL_API=1 and ZARR_V3_SHARDING=1. Object arrays are
saved as pickles, which the two versions of NumPy share.
"""

import json
import sys
import types
import warnings
from pathlib import Path

import numcodecs
import numpy as np

warnings.simplefilter("ignore")

# It looks for storage transformers in a module of its tests, which needs pytest.
tests = types.ModuleType("zarr.tests.test_storage_v3")
tests.DummyStorageTransfomer = type("DummyStorageTransfomer", (), {"extension_uri": "dummy"})
sys.modules[tests.__name__] = tests

import zarr  # noqa: E402  (it warns of its own experiment)
from zarr._storage.v3_storage_transformers import ShardingStorageTransformer  # noqa: E402


def store_of(job):
    return zarr.DirectoryStoreV3(job["path"])


def read(job):
    array = zarr.open_array(store_of(job), path=job["name"], mode="r", zarr_version=3)
    np.save(job["values"], array[...], allow_pickle=True)
    return {
        "dtype": array.dtype.str,
        "attributes": array.attrs.asdict(),
        "order": array.order,
        "chunks": array.chunks,
    }


def write(job):
    values = np.load(job["values"], allow_pickle=True)
    codec = {"object_codec": numcodecs.get_codec(job["object"])} if job.get("object") else {}
    shards = job.get("chunks_per_shard")
    array = zarr.create(
        store=store_of(job),
        path=job["name"],
        shape=values.shape,
        chunks=tuple(job["chunks"]) or True,
        dtype=job["dtype"] or values.dtype,
        compressor=job["compressor"] and numcodecs.get_codec(job["compressor"]),
        filters=[numcodecs.get_codec(config) for config in job["filters"]] or None,
        order=job["order"],
        fill_value=job["fill"],
        dimension_separator=job["separator"],
        storage_transformers=[ShardingStorageTransformer("indexed", shards)] if shards else [],
        zarr_version=3,
        **codec,
    )
    array[...] = values
    array.attrs["unit"] = "m"
    zarr.group(store_of(job), path="g/h", zarr_version=3).attrs["title"] = "beside"
    if job.get("consolidate"):
        zarr.consolidate_metadata(store_of(job), path="g/h")
    return {}


def group(job):
    found = zarr.open_group(store_of(job), path=job["group"], mode="r", zarr_version=3)
    children = {name: type(node).__name__ for name, node in found.items()}
    return {"attributes": found.attrs.asdict(), "children": children}


def main(what, jobs):
    work = {"read": read, "write": write, "group": group}[what]
    answers = [work(job) for job in json.loads(Path(jobs).read_text())]
    print(json.dumps({"version": zarr.__version__, "answers": answers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
