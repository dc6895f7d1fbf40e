"""Run by zarr-python 2.18 in an environment of its own: reads or writes what a job file lists.

python peer.py read JOBS.json      arrays under job["path"] -> job["values"] (.npy)
python peer.py write JOBS.json     job["values"] (.npy) -> an array under job["path"]
"""

import json
import sys
from pathlib import Path

import numcodecs
import numpy as np
import zarr


def read(job):
    array = zarr.open_array(job["path"], mode="r")
    np.save(job["values"], array[...])
    return {"dtype": array.dtype.str, "attributes": array.attrs.asdict(), "order": array.order}


def write(job):
    filters = [numcodecs.get_codec(config) for config in job["filters"]] or None
    array = zarr.open_array(
        job["path"],
        mode="w",
        shape=job["shape"],
        chunks=tuple(job["chunks"]),
        dtype=job["dtype"],
        compressor=job["compressor"] and numcodecs.get_codec(job["compressor"]),
        filters=filters,
        order=job["order"],
        fill_value=job["fill"],
        dimension_separator=job["separator"],
    )
    array[...] = np.load(job["values"])
    array.attrs["unit"] = "m"
    return {}


def main(what, jobs):
    work = {"read": read, "write": write}[what]
    answers = [work(job) for job in json.loads(Path(jobs).read_text())]
    print(json.dumps({"version": zarr.__version__, "answers": answers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
