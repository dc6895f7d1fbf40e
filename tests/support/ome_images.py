"""Images and plates of OME-Zarr, written by zarr-python."""

from __future__ import annotations

import numpy as np
import zarr

FORMATS = {"0.4": 2, "0.5": 3}


def wrapped(version, members):
    return {"ome": {"version": version, **members}} if version == "0.5" else members


def put_image(root, path, version, values, *, names="zyx", **more):
    """Write an image of halved levels with zarr-python; what each level holds."""
    zarr_format = FORMATS[version]
    axes = [{"name": n, "type": "space", "unit": "micrometer"} for n in names]
    levels = [values[tuple(slice(None, None, 2**i) for _ in names)] for i in range(3)]
    datasets = [
        {
            "path": f"s{i}",
            "coordinateTransformations": [
                {"type": "scale", "scale": [0.5 * 2**i] * len(names)},
                {"type": "translation", "translation": [0.25 * (2**i - 1)] * len(names)},
            ],
        }
        for i in range(3)
    ]
    members = {"multiscales": [{"name": "main", "axes": axes, "datasets": datasets, **more}]}
    group = zarr.open_group(root, path=path, mode="a", zarr_format=zarr_format)
    group.attrs.update(wrapped(version, members))
    for i, level in enumerate(levels):
        named = (
            {"dimension_names": list(names)}
            if version == "0.5"
            else {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
        )
        chunks = tuple(min(8, n) for n in level.shape)
        array = group.create_array(
            f"s{i}", shape=level.shape, dtype=level.dtype, chunks=chunks, **named
        )
        array[...] = level
    return levels


def pixels(*shape, dtype="u2"):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def put_plate(root, version, wells, fields=("0",)):
    """A plate of 2 x 3; `wells` maps paths to images."""
    rows, columns = [{"name": n} for n in "AB"], [{"name": n} for n in "123"]
    places = [
        {"path": path, "rowIndex": "AB".index(path[0]), "columnIndex": int(path[2]) - 1}
        for path in wells
    ]
    plate = {"rows": rows, "columns": columns, "wells": places, "name": "p"}
    group = zarr.open_group(root, mode="a", zarr_format=FORMATS[version])
    group.attrs.update(wrapped(version, {"plate": plate}))
    for path, values in wells.items():
        well = zarr.open_group(root, path=path, mode="a", zarr_format=FORMATS[version])
        images = [{"path": field} for field in fields]
        well.attrs.update(wrapped(version, {"well": {"images": images}}))
        for i, field in enumerate(fields):
            put_image(root, f"{path}/{field}", version, values + values.dtype.type(i), names="yx")
