"""Create the output of examples/c/wave.c or examples/fortran/wave.f90, or publish its steps.

python examples/c/wave.py run.zarr create
python examples/c/wave.py run.zarr publish
python examples/c/wave.py run.zarr finish
"""

import sys

import zarr_dask as zd

CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]

url, what = sys.argv[1:]
if what == "create":
    shape, ranks = (64, 128), (2, 2)
    arrays = {
        "wave": {"shape": shape, "dtype": "f4", "chunks": (5, 32, 64), "codecs": CODECS},
        "time": {"shape": (), "dtype": "f8", "chunks": (1,), "codecs": CODECS},
    }
    zd.Writer.create(url, arrays, owners=zd.decompose(shape, ranks))
else:
    writer = zd.Writer.attach(url)
    print(writer.finish() if what == "finish" else writer.publish(), "steps can be seen")
