"""Images with labels of OME-Zarr, written by zarr-python."""

from __future__ import annotations

import numpy as np
import zarr

from tests.support.ome_images import pixels, put_image, wrapped

OMERO = {
    "version": "0.4",
    "channels": [{"color": "FF0000", "window": {"min": 0, "max": 9, "start": 0, "end": 9}}],
    "rdefs": {"model": "color"},
}


def put_labelled(root, version, path="", names="zyx", shape=(9, 20, 17)):
    """An image with labels, display settings and members that nobody knows."""
    levels = put_image(root, path, version, pixels(*shape), names=names, mine={"a": [1]})
    cells = put_image(
        root, f"{path}/labels/cells".strip("/"), version, pixels(*shape, dtype="i4"), names=names
    )
    zarr_format = 2 if version == "0.4" else 3
    group = zarr.open_group(root, path=path, mode="a", zarr_format=zarr_format)
    old = {"omero": OMERO, "title": "run 7", "custom": [1, None]}
    if version == "0.4":
        multiscales = group.attrs["multiscales"]
        multiscales[0]["version"] = "0.4"
        group.attrs.update({**old, "multiscales": multiscales})
    labels = zarr.open_group(
        root, path=f"{path}/labels".strip("/"), mode="a", zarr_format=zarr_format
    )
    labels.attrs.update(wrapped(version, {"labels": ["cells"]}))
    label = zarr.open_group(
        root, path=f"{path}/labels/cells".strip("/"), mode="a", zarr_format=zarr_format
    )
    meaning = {"colors": [{"label-value": 1, "rgba": [1, 2, 3, 4]}], "version": version}
    attributes = dict(label.attrs)
    if version == "0.4":
        attributes["image-label"] = meaning
    else:
        attributes["ome"]["image-label"] = meaning
    label.attrs.update(attributes)
    return levels, cells


def same(image, levels):
    assert [level.shape for level in image.levels] == [one.shape for one in levels]
    for level, values in zip(image.levels, levels, strict=True):
        np.testing.assert_array_equal(level.array[...], values)
