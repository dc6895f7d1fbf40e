"""An image of OME-Zarr 0.4 becomes a sharded one of 0.5, and a small picture is made of it.

python examples/ome_versions.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import dask.array as da

import zarr_dask as zd
from zarr_dask.ome.png import png


def main(folder: str) -> None:
    old, new = Path(folder, "old.zarr"), Path(folder, "new.zarr")
    y, x = da.meshgrid(da.arange(600, chunks=200), da.arange(800, chunks=200), indexing="ij")
    rings = (da.cos(da.hypot(y - 300, x - 400) / 15) * 1000 + 1000).astype("uint16")
    window = {"start": 0, "end": 2000}
    channels = [
        {"label": "rings", "color": "00FF00", "window": window},
        {"label": "ramp", "color": "FF00FF", "window": window},
    ]
    ramp = (x * 2).astype("uint16")
    image = da.stack([rings, ramp])
    zd.ome.write(image, old, axes="cyx", channels=channels, version="0.4", overwrite=True)

    # only documents would be written if no chunks or shards were asked for
    layout = {"chunks": {"y": 128, "x": 128}, "shards": {"y": 512, "x": 512}}
    plan = zd.ome.plan_migration(old, "0.5", new, resume=True, **layout)
    print(plan)
    print(plan.run(resume=True))
    print(zd.ome.validate(new) or "valid")

    pixels = zd.ome.thumbnail(new, size=128)
    picture = Path(folder, "thumbnail.png")
    picture.write_bytes(png(pixels))
    print(f"{picture.name}: {pixels.shape[1]} x {pixels.shape[0]} pixels")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(sys.argv[1] if len(sys.argv) > 1 else scratch)
