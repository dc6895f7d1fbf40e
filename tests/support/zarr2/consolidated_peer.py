"""Run by zarr-python 2.18: writes a hierarchy with consolidated metadata, or reads one by them.

python consolidated_peer.py write PLACE
python consolidated_peer.py read PLACE
"""

import json
import sys

import numpy as np
import zarr


def write(place):
    root = zarr.open_group(place, mode="w")
    root.attrs["title"] = "t"
    array = root.require_group("a/b").create_dataset(
        "x", data=np.arange(1, 5, dtype="<i4"), chunks=2
    )
    array.attrs["unit"] = "m"
    root.require_group("e")
    zarr.consolidate_metadata(place)


def read(place):
    root = zarr.open_consolidated(place)
    paths = []
    root.visit(paths.append)
    values = {path: root[path][...].tolist() for path in paths if hasattr(root[path], "shape")}
    print(json.dumps({"paths": paths, "values": values, "attributes": root.attrs.asdict()}))


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](sys.argv[2])
