"""Write an image with labels as OME-Zarr 0.5, look at the plan, add a level, and read it.

python examples/ome_pyramid.py [DIRECTORY]
"""

import sys
import tempfile
from pathlib import Path

import dask.array as da

import zarr_dask as zd


def main(directory):
    url = Path(directory, "image.zarr")
    y, x = da.meshgrid(da.arange(1500, chunks=256), da.arange(2000, chunks=256), indexing="ij")
    waves = (da.sin(x / 40) * da.cos(y / 60) * 2000 + 2000).astype("uint16")
    image = da.stack([waves, waves[::-1]])
    cells = (waves > 3000).astype("uint8")
    micrometres = {"y": "micrometer", "x": "micrometer"}
    options = {
        "axes": "cyx",
        "scale": {"y": 0.25, "x": 0.25},
        "units": micrometres,
        "channels": ["waves", {"label": "the same upside down", "color": "FF8800"}],
        "chunks": {"y": 128, "x": 128},
        "shards": {"y": 512, "x": 512},
        "labels": {"crests": zd.ome.LabelImage(cells, colors={1: "#FFFF00"}, method="mode")},
    }
    print(zd.ome.plan_write(image, url, **options, overwrite=True))
    print(zd.ome.write(image, url, **options, overwrite=True))
    zd.ome.add_level(url)
    print(zd.ome.validate(url) or "valid")
    for level in zd.ome.open(url).levels:
        print(level, level.scale)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(directory)
