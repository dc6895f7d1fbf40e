"""Run by zarr-python 2.18 in an environment of its own: reads or writes what a job file lists.

python peer.py read JOBS.json      arrays under job["path"] -> job["values"], job["fill"] (.npy)
python peer.py write JOBS.json     job["values"], job["fill"] (.npy) -> an array under job["path"]
"""

import json
import sys
import warnings
from pathlib import Path

import numcodecs
import numpy as np
import zarr


def dtype_of(document):
    """The dtype that a ``.zarray`` document names."""
    if isinstance(document, str):
        return np.dtype(document)
    return np.dtype([(name, dtype_of(of), *map(tuple, shape)) for name, of, *shape in document])


def read(job):
    store = zarr.NestedDirectoryStore(job["path"]) if job.get("nested") else job["path"]
    array = zarr.open_array(store, mode="r")
    np.save(job["values"], array[...])
    np.save(job["fill"], np.array([array.fill_value]))
    dtype = array.dtype
    return {
        "dtype": dtype.str if dtype.names is None else json.loads(json.dumps(dtype.descr)),
        "attributes": array.attrs.asdict(),
        "order": array.order,
        "filters": [codec.get_config() for codec in array.filters or ()],
        "initialized": array.nchunks_initialized,
    }


def write(job):
    filters = [numcodecs.get_codec(config) for config in job["filters"]] or None
    array = zarr.open_array(
        job["path"],
        mode="w",
        shape=job["shape"],
        chunks=tuple(job["chunks"]),
        dtype=dtype_of(job["dtype"]),
        compressor=job["compressor"] and numcodecs.get_codec(job["compressor"]),
        filters=filters,
        order=job["order"],
        fill_value=np.load(job["fill"], allow_pickle=True)[0],
        dimension_separator=job["separator"],
    )
    array[job["written"]] = np.load(job["values"], allow_pickle=True)[()]
    array.attrs.update(job["attributes"])
    return {}


def main(what, jobs):
    warnings.simplefilter("ignore")  # of NumPy, about times without unit
    work = {"read": read, "write": write}[what]
    answers = []
    for job in json.loads(Path(jobs).read_text(encoding="utf-8")):
        if "written" in job:  # slices as pairs
            job["written"] = tuple(slice(*pair) for pair in job["written"])
        answers.append(work(job))
    print(json.dumps({"version": zarr.__version__, "answers": answers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
