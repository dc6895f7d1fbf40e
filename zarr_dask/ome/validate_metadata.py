"""Validation of metadata, or of a whole hierarchy, against OME-Zarr 0.4 or 0.5.

`validate_attributes` checks the attributes of one group. `validate` checks all groups and arrays
below a path: levels against axes, label images against their image, wells against their plate.
The rules of attributes are in `zarr_dask.ome.rules`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, starmap
from math import inf
from typing import Any

from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.errors import (
    ABSENT,
    ListingError,
    MetadataError,
    NodeNotFoundError,
    NodeTypeError,
    OmeVersionError,
    StoreKeyError,
    ValidationProblem,
)
from zarr_dask.formats.base import ReadOptions
from zarr_dask.formats.detect import OME_ZARR
from zarr_dask.hierarchy.group import Group, node_below
from zarr_dask.hierarchy.growing import LOOKS, as_before
from zarr_dask.hierarchy.open_node import open_group
from zarr_dask.ome.extents import lengths_around, misfits
from zarr_dask.ome.model import (
    EXPECTED,
    KEYS,
    NESTED,
    SUPPORTED,
    detect_version,
    is_number,
    members_of,
)
from zarr_dask.ome.rules import RULES, Violation, Violations
from zarr_dask.stores.base import join
from zarr_dask.stores.open import Location

__all__ = ["KINDS", "find", "series_of", "validate", "validate_attributes"]

KINDS = {
    "image": "multiscales",
    "label": "image-label",
    "labels": "labels",
    "plate": "plate",
    "well": "well",
    "bioformats2raw": "bioformats2raw.layout",
    "series": "series",
}
"""Kinds of groups, and the field that each kind requires."""
_ALL_LISTED = {
    "labels": "all label images should be listed",
    "plate.wells": "all wells should be listed",
    "well.images": "all images of a well should be listed",
}


@takes_habits()
def validate_attributes(
    attributes: Mapping[str, Any],
    version: str | None = None,
    kind: str | None = None,
    *,
    strict: bool = False,
) -> list[Violation]:
    """List every rule that the attributes of a group violate; the list is empty if they are valid.

    Parameters
    ----------
    attributes
        All attributes of the group.
    version
        ``"0.4"`` or ``"0.5"``; detected by default.
    kind
        Required kind of the group: ``"image"``, ``"label"``, ``"labels"``, ``"plate"``, ``"well"``,
        ``"bioformats2raw"`` or ``"series"``; by default any kind.
    strict
        True to list violated recommendations as well, with the level ``should``.

    Raises
    ------
    OmeVersionError
        If the rules of the version are not known.

    Examples
    --------
    >>> from zarr_dask.ome import validate_attributes
    >>> for violation in validate_attributes({"ome": {"version": "0.5", "labels": "cells"}}):
    ...     print(violation)
    labels: 'cells'; must be a list of paths of label images (must)
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind={kind!r}: expected one of {', '.join(map(repr, KINDS))}.")
    version = version or detect_version(attributes) or _GUESS
    if version not in SUPPORTED:
        raise OmeVersionError("attributes", version, SUPPORTED)
    found = _violations(attributes, version, kind, alone=True)
    return [one for one in found if strict or one.level == "must"]


def _violations(
    attributes: Mapping[str, Any], version: str, kind: str | None, *, alone: bool
) -> list[Violation]:
    """Return all violations of a group's attributes, including recommendations."""
    notes = Violations(version, alone=alone)
    members = _members(attributes, notes)
    if members is not None:
        needed = KINDS[kind] if kind else None
        if needed is not None and needed not in members:
            notes.add(needed, ABSENT, f"metadata of the kind {kind!r} must have it")
        if needed is None and not any(key in members for key in KEYS):
            notes.add("", sorted(members), "OME-Zarr metadata must have one of its members")
        for name, check in RULES.items():
            if name in members:
                check(members[name], notes)
    return notes.found


_GUESS = "0.5"
"""The version to check against if the metadata state none."""


def _members(attributes: Mapping[str, Any], notes: Violations) -> Mapping[str, Any] | None:
    """Return the object that holds the metadata."""
    if notes.version not in NESTED:
        return attributes
    ome = members_of(attributes, notes.version)
    if not isinstance(ome, Mapping):
        notes.add("ome", ome, "metadata must lie in an object 'ome'")
        return None
    if ome.get("version") != notes.version:
        found = ome.get("version", ABSENT)
        notes.add("ome.version", found, f"must be {notes.version!r}")
    return ome


# --- hierarchies ----------------------------------------------------------------------------------


@takes_habits()
def validate(
    url: Location | Group,
    path: str = "",
    *,
    strict: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> list[Violation]:
    """List every rule that an image, a plate or a collection violates; empty if it is valid.

    All groups that the metadata name are opened, and the metadata of all arrays; no chunk is read.

    Parameters
    ----------
    url, path
        The group, as for `zarr_dask.open_group`.
    strict
        True to list violated recommendations as well.
    storage_options, read
        As for `zarr_dask.open_group`.

    Raises
    ------
    OmeVersionError
        If the rules of the version are not known.
    MetadataError
        If there are no OME-Zarr metadata.
    """
    root = open_group(url, path, storage_options=storage_options, read=read)
    version = detect_version(root.attributes)
    if version is None:
        raise MetadataError(root.where, [ValidationProblem("ome", ABSENT, EXPECTED)])
    if version not in SUPPORTED:
        raise OmeVersionError(root.where, version, SUPPORTED)
    walk = _Walk(version, root)
    walk.check_group(root, "", None)
    return [one for one in walk.found if strict or one.level == "must"]


@dataclass
class _Walk:
    """Violations found in the hierarchy so far."""

    version: str
    root: Group
    """The group that is validated."""
    found: list[Violation] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """Groups that were checked: metadata may name a group inside itself."""

    def add(self, path: str, member: str, found: object, rule: str, level: str = "must") -> None:
        place = f"{path or '/'}: {member}" if member else path or "/"
        self.found.append(Violation(place, found, rule, level))

    def node(self, group: Group, path: str, below: str, rule: str) -> Any:
        """Return a node that metadata name; if it is missing, note a violation and return None."""
        try:
            return node_below(group, below)
        except (NodeNotFoundError, NodeTypeError):
            self.add(join(path, below), "", ABSENT, rule)
        except (MetadataError, StoreKeyError) as error:
            self.add(join(path, below), "", str(error), rule)
        return None

    def check_group(self, group: Group, path: str, kind: str | None) -> Mapping[str, Any] | None:
        """Check a group and all nodes that its metadata name; return its metadata if readable."""
        if group.path in self.seen:
            return None
        self.seen.add(group.path)
        required = OME_ZARR[self.version].name
        if group.format != required:
            rule = f"OME-Zarr {self.version} must be stored as Zarr {required}"
            self.add(path, "", f"Zarr {group.format}", rule)
        version = detect_version(group.attributes)
        if version is not None and version != self.version:
            rule = f"all metadata of a hierarchy must be of one version, here {self.version}"
            self.add(path, "version", version, rule)
            return None
        attributes = group.attributes
        for one in _violations(attributes, self.version, kind, alone=False):
            place = f"{path}: {one.place}" if path else one.place
            self.found.append(replace(one, place=place))
        members = members_of(attributes, self.version)
        if not isinstance(members, Mapping):
            return None
        self.check_below(group, path, members)
        return members

    def check_below(self, group: Group, path: str, members: Mapping[str, Any]) -> None:
        """Check the nodes that the metadata of a group name."""
        if "plate" in members:
            self.check_wells(group, path, members["plate"])
        elif "bioformats2raw.layout" in members:
            self.check_collection(group, path)
        if "multiscales" in members:
            self.check_image(group, path, members)
        if "labels" in members:
            self.check_labels(group, path, members["labels"], None)
        if "well" in members:
            self.check_fields(group, path, members["well"])

    # --- images

    def check_image(self, group: Group, path: str, members: Mapping[str, Any]) -> None:
        """Check levels against axes, then the label images."""
        levels = [
            self.levels(group, path, one, f"multiscales[{i}]")
            for i, one in enumerate(_objects(members["multiscales"]))
        ]
        first = next((one for one in levels[0] if one is not None), None) if levels else None
        if first is not None:
            self.check_channels(path, members, first)
        node, at = find(group, "labels"), join(path, "labels")
        if isinstance(node, Group):
            below = self.listed_labels(node, at)
            self.check_labels(node, at, below, len(levels[0]) if levels else None)

    def listed_labels(self, node: Group, path: str) -> Any:
        """Return the list of label images in their group."""
        version = detect_version(node.attributes)
        if version is None:
            self.add(path, "labels", ABSENT, "the group of label images must list them")
            return None
        if version != self.version:
            rule = f"all metadata of a hierarchy must be of one version, here {self.version}"
            self.add(path, "version", version, rule)
            return None
        for one in _violations(node.attributes, self.version, "labels", alone=False):
            self.found.append(replace(one, place=f"{path}: {one.place}"))
        members = members_of(node.attributes, self.version)
        return members.get("labels") if isinstance(members, Mapping) else None

    def levels(
        self, group: Group, path: str, one: Mapping[str, Any], member: str
    ) -> list[Array | None]:
        """Check the arrays of one multiscale."""
        names = [axis.get("name") for axis in _objects(one.get("axes"))]
        arrays: list[Array | None] = []
        paths: list[str] = []
        for i, dataset in enumerate(_objects(one.get("datasets"))):
            below = dataset.get("path")
            if not isinstance(below, str):
                continue
            rule = f"{member}.datasets[{i}].path must be that of an array"
            node = self.node(group, path, below, rule)
            if node is not None and not isinstance(node, Array):
                self.add(join(path, below), "", node, rule)
            array = node if isinstance(node, Array) else None
            if array is not None:
                self.check_level(array, join(path, below), names)
            arrays.append(array)
            paths.append(below)
        scales = [_scale(dataset) for dataset in _objects(one.get("datasets"))]
        if len(scales) == len(arrays):
            arrays = _settled(group, paths, arrays, scales)
            self.check_extents(list(zip(arrays, scales, strict=True)), path, member)
        self.check_sizes([a for a in arrays if a is not None], path, member)
        return arrays

    def check_extents(
        self, levels: list[tuple[Array | None, list[float] | None]], path: str, member: str
    ) -> None:
        """Check that levels have one data type, and lengths that their pixels explain."""
        for i, ((fine, small), (made, large)) in enumerate(pairwise(levels), 1):
            if fine is None or made is None or fine.ndim != made.ndim:
                continue
            place = f"{member}.datasets[{i}]"
            if made.dtype != fine.dtype:
                rule = f"all levels should have one data type, here {fine.dtype}"
                self.add(path, place, str(made.dtype), rule, "should")
            if _misfit((fine, small), (made, large)):
                rule = (
                    "a level must cover the same extent as the one before: its lengths times its "
                    f"scale {large} do not give those of {fine.shape} times {small}"
                )
                self.add(path, place, made.shape, rule)

    def check_channels(self, path: str, members: Mapping[str, Any], first: Array) -> None:
        """Check that there are display settings for every channel."""
        omero, images = members.get("omero"), _objects(members["multiscales"])
        axes = _objects(images[0].get("axes"))
        channels = omero.get("channels") if isinstance(omero, Mapping) else None
        at = [i for i, axis in enumerate(axes) if axis.get("type") == "channel"]
        if not isinstance(channels, list) or len(at) != 1 or len(axes) != first.ndim:
            return
        count = first.shape[at[0]]
        if len(channels) != count:
            rule = f"there should be display settings of each of the {count} channels"
            self.add(path, "omero.channels", f"{len(channels)} channels", rule, "should")

    def check_level(self, array: Array, path: str, names: list[Any]) -> None:
        if array.ndim != len(names):
            rule = f"an array must have one dimension for each of the {len(names)} axes"
            self.add(path, "shape", array.shape, rule)
        if self.version in NESTED and list(array.dimension_names or ()) != names:
            rule = f"dimension_names must be those of the axes, {names}"
            self.add(path, "dimension_names", array.dimension_names, rule)

    def check_sizes(self, arrays: list[Array], path: str, member: str) -> None:
        for before, array in pairwise(arrays):
            if array.ndim == before.ndim and array.size > before.size:
                rule = "datasets must be in the order from the highest resolution to the lowest"
                self.add(path, f"{member}.datasets", array.shape, rule)

    # --- labels

    def check_labels(self, group: Group, path: str, labels: Any, levels: int | None) -> None:
        """Check label images: they have integers, and as many levels as their image."""
        listed = [one for one in labels if isinstance(one, str)] if isinstance(labels, list) else []
        if self.version in NESTED:
            self.check_unlisted(group, path, listed, "labels")
        for below in listed:
            at = join(path, below)
            self.check_between(group, path, below)
            node = self.node(group, path, below, "labels must list the paths of label images")
            if not isinstance(node, Group):
                continue
            members = self.check_group(node, at, "image")
            if members is None:
                continue
            if "image-label" not in members:
                rule = "a label image should say what its values mean"
                self.add(at, "image-label", ABSENT, rule, "should")
            self.check_label_levels(node, at, members, levels)
            self.check_source(at, members.get("image-label"))

    def check_source(self, path: str, meaning: Any) -> None:
        """Check that the image which a label image names exists, unless it is further up."""
        source = meaning.get("source") if isinstance(meaning, Mapping) else None
        image = source.get("image") if isinstance(source, Mapping) else None
        if not isinstance(image, str):
            return
        named = posixpath.normpath(posixpath.join(path, image))
        if named.startswith(".."):
            return
        is_relative = not named.startswith("/")
        node = self.root if named == "." else find(self.root, named) if is_relative else None
        members = None if node is None else _members_in(node, self.version)
        if not isinstance(node, Group) or "multiscales" not in (members or ()):
            rule = "must be the relative path of the image that is labelled"
            self.add(path, "image-label.source.image", image, rule)

    def check_unlisted(
        self, group: Group, path: str, listed: Iterable[str], member: str, kind: str = "multiscales"
    ) -> None:
        """Check for groups of a kind that exist and are not listed: no reader will find them."""
        try:
            names = [name for name, _ in group.groups()]
        except (ListingError, MetadataError):
            return  # the groups cannot be known
        known = {one.strip("/").partition("/")[0] for one in listed}
        for name in names:
            node = find(group, name) if name not in known else None
            if node is not None and kind in (_members_in(node, self.version) or ()):
                self.add(path, member, name, _ALL_LISTED[member], "should")

    def check_between(self, group: Group, path: str, below: str) -> None:
        """Check that groups between the list of label images and a label image have no metadata."""
        parts = below.strip("/").split("/")
        for count in range(1, min(len(parts), _DEEPEST)):
            between = "/".join(parts[:count])
            node = find(group, between)
            if node is not None and detect_version(node.attributes) == self.version:
                rule = (
                    "a group between that of the label images and one of them must have no metadata"
                )
                self.add(join(path, between), "", sorted(node.attributes), rule)

    def check_label_levels(
        self, node: Group, path: str, members: Mapping[str, Any], levels: int | None
    ) -> None:
        for one in _objects(members.get("multiscales"))[:1]:
            paths = [str(d.get("path")) for d in _objects(one.get("datasets"))]
            if levels is not None and len(paths) != levels:
                rule = f"a label image must have as many levels as its image, {levels}"
                self.add(path, "multiscales[0].datasets", len(paths), rule)
            for below in paths:
                array = find(node, below)
                if isinstance(array, Array) and array.dtype.kind not in "iu":
                    rule = "the values of a label image must be integers"
                    self.add(join(path, below), "data type", str(array.dtype), rule)

    # --- plates and collections

    def check_wells(self, group: Group, path: str, plate: Any) -> None:
        """Check every well that a plate lists, and its images."""
        if not isinstance(plate, Mapping):
            return
        runs = _objects(plate.get("acquisitions"))
        wells = (well["path"] for well in _objects(plate.get("wells")) if _has_path(well))
        listed = list(dict.fromkeys(wells))
        rows: dict[str, list[str]] = {}
        for below in listed:
            row, _, column = below.partition("/")
            rows.setdefault(row, []).append(column)
        for row, beside in rows.items():
            between = find(group, row)
            if isinstance(between, Group):
                self.check_unlisted(between, join(path, row), beside, "plate.wells", "well")
        for below in listed:
            node = self.node(group, path, below, "plate.wells must list the paths of groups")
            if isinstance(node, Group):
                self.check_well(node, join(path, below), runs, plate.get("field_count"))

    def check_well(
        self, node: Group, path: str, runs: list[Mapping[str, Any]], most: object
    ) -> None:
        members = self.check_group(node, path, "well")
        if members is None:
            return
        well = members.get("well")
        self.check_runs(path, well, [run.get("id") for run in runs])
        self.check_counts(path, well, runs, most)

    def check_counts(
        self, path: str, well: Any, runs: list[Mapping[str, Any]], most: object
    ) -> None:
        """Check the numbers of images of a well against those of its plate."""
        images = _objects(well.get("images")) if isinstance(well, Mapping) else []
        if isinstance(most, int) and len(images) > most:
            rule = f"no well must have more images than the field_count of the plate, {most}"
            self.add(path, "well.images", len(images), rule)
        for run in runs:
            own = [one for one in images if one.get("acquisition", ABSENT) == run.get("id")]
            largest = run.get("maximumfieldcount")
            if isinstance(largest, int) and len(own) > largest:
                rule = f"no well must have more images than the maximumfieldcount, {largest}"
                self.add(path, f"well.images of acquisition {run.get('id')}", len(own), rule)

    def check_runs(self, path: str, well: Any, runs: list[Any]) -> None:
        images = _objects(well.get("images")) if isinstance(well, Mapping) else []
        for i, image in enumerate(images):
            run = image.get("acquisition", ABSENT)
            if (run is ABSENT and len(runs) > 1) or (run is not ABSENT and run not in runs):
                rule = "must be the id of one of the acquisitions of the plate"
                self.add(path, f"well.images[{i}].acquisition", run, rule)

    def check_fields(self, group: Group, path: str, well: Any) -> None:
        """Check every image that a well lists."""
        images = _objects(well.get("images")) if isinstance(well, Mapping) else []
        listed = list(dict.fromkeys(image["path"] for image in images if _has_path(image)))
        self.check_unlisted(group, path, listed, "well.images")
        for below in listed:
            self.check_named_image(group, path, below, "well.images must list images")

    def check_collection(self, group: Group, path: str) -> None:
        """Check the images of a group written by bioformats2raw."""
        xml = join(group.path, "OME/METADATA.ome.xml")
        if group.store.size(xml) is None:
            rule = "metadata of the images should lie in an OME-XML document"
            self.add(join(path, "OME/METADATA.ome.xml"), "", ABSENT, rule, "should")
        for below in dict.fromkeys(series_of(group)):
            self.check_named_image(group, path, below, "must be an image of the collection")

    def check_named_image(self, group: Group, path: str, below: str, rule: str) -> None:
        node = self.node(group, path, below, rule)
        if isinstance(node, Group):
            self.check_group(node, join(path, below), "image")
        elif node is not None:
            self.add(join(path, below), "", node, rule)


_DEEPEST = 32
"""Maximum number of groups above a label image that are checked."""


def _misfit(
    finer: tuple[Array | None, list[float] | None], coarser: tuple[Array | None, list[float] | None]
) -> bool:
    """True if two levels differ in their extent, as far as they and their scales are known."""
    (fine, small), (made, large) = finer, coarser
    if fine is None or made is None or not (small and large):
        return False
    if not len(small) == len(large) == fine.ndim == made.ndim:
        return False
    return misfits(fine.shape, small, made.shape, large)


def _settled(
    group: Group,
    paths: Sequence[str],
    arrays: list[Array | None],
    scales: Sequence[list[float] | None],
) -> list[Array | None]:
    """Return levels as readers see them while an append changes their lengths one by one."""

    def fit(levels: Sequence[Array | None]) -> bool:
        return not any(starmap(_misfit, pairwise(zip(levels, scales, strict=True))))

    found = arrays
    for _ in range(LOOKS):
        if fit(found):
            return found
        lengths = lengths_around(group)
        before = [None if one is None else as_before(one, lengths) for one in found]
        if fit(before):
            return before
        looked = [
            None if one is None else find(group, p) for p, one in zip(paths, found, strict=True)
        ]
        found = [one if isinstance(one, Array) else None for one in looked]
    return arrays


def _scale(dataset: Mapping[str, Any]) -> list[float] | None:
    """Return the scale of a level if it has one of numbers."""
    for one in _objects(dataset.get("coordinateTransformations")):
        scale = one.get("scale")
        if isinstance(scale, list) and all(is_number(item) and 0 < item < inf for item in scale):
            return scale
    return None


def _members_in(node: Array | Group, version: str) -> Mapping[str, Any] | None:
    members = members_of(node.attributes, version)
    return members if isinstance(members, Mapping) else None


def _has_path(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("path"), str)


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def find(group: Group, path: str) -> Array | Group | None:
    """Return the node below a group, if it exists and can be opened."""
    try:
        return node_below(group, path)
    except (NodeNotFoundError, NodeTypeError, MetadataError, StoreKeyError):
        return None


def series_of(group: Group) -> list[str]:
    """Return paths of the images in a group written by bioformats2raw, in their order."""
    node = find(group, "OME")
    if node is not None:
        ome = node.attributes.get("ome")
        series = (ome if isinstance(ome, Mapping) else node.attributes).get("series")
        if isinstance(series, list):
            return [one for one in series if isinstance(one, str)]
    paths: list[str] = []
    while find(group, str(len(paths))) is not None:
        paths.append(str(len(paths)))
    return paths
