"""Images and plates of OME-Zarr as other libraries read them: ome-zarr-models, ome-zarr, ngff-zarr.

Each reader gives the arrays of all levels, or raises. The schemas are the published ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zarr

models = pytest.importorskip("ome_zarr_models", reason="ome-zarr-models needs Python 3.12")
ngff_zarr = pytest.importorskip("ngff_zarr")
ome_zarr_io = pytest.importorskip("ome_zarr.io", reason="ome-zarr needs Python 3.12")
ome_zarr_reader = pytest.importorskip("ome_zarr.reader", reason="ome-zarr needs Python 3.12")

KINDS = {
    "multiscales": "image",
    "image-label": "label",
    "plate": "plate",
    "well": "well",
    "bioformats2raw.layout": "bf2raw",
    "series": "ome",
}
"""Published schemas by the member that they are about."""


def by_ngff_zarr(path):
    """Levels of an image."""
    found = ngff_zarr.from_ome_zarr(str(path), validate=True)
    return [image.data for image in found.images]


def by_ome_zarr(path):
    """Levels of an image, or of the mosaic of a plate."""
    place = ome_zarr_io.parse_url(str(path))
    # of a label image, the image that it is for comes first
    return next(node.data for node in ome_zarr_reader.Reader(place)() if node.zarr == place)


def by_models(path, version):
    """What kind of group it is, if it is valid."""
    return type(models.open_ome_zarr(str(path), version=version)).__name__


def kinds(attributes, version):
    """The members that schemas are about, among the attributes of a group."""
    members = attributes.get("ome", {}) if version != "0.4" else attributes
    return [schema for member, schema in KINDS.items() if member in members]


def schema_problems(public_data: Path, root, version) -> list[str]:
    """What the published schemas refuse in all groups below a place."""
    validation = pytest.importorskip("jsonschema")
    folder = public_data / f"ngff_{version}" / "schemas"
    schemas = [json.loads(path.read_text()) for path in folder.glob("*.schema")]
    referencing = pytest.importorskip("referencing.jsonschema")
    registry = referencing.EMPTY_REGISTRY.with_resources(
        (schema["$id"], referencing.DRAFT202012.create_resource(schema)) for schema in schemas
    )
    by_name = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.schema")}
    group = zarr.open_group(str(root), mode="r", zarr_format=2 if version == "0.4" else 3)
    groups = {"": group} | {name: one for name, one in group.members(None) if _is_group(one)}
    problems = []
    for name, one in groups.items():
        attributes = dict(one.attrs)
        for kind in kinds(attributes, version):
            checker = validation.Draft202012Validator(by_name[kind], registry=registry)
            problems += [f"{name}: {kind}: {e.message}" for e in checker.iter_errors(attributes)]
    return problems


def _is_group(node) -> bool:
    return isinstance(node, zarr.Group)
