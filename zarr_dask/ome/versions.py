"""Conversion of OME-Zarr metadata to another version, as JSON: of a group, or a hierarchy.

From 0.4 to 0.5 the metadata move below ``ome``, which states the version of all of them; from 0.5
to 0.4 they move up again, and each kind states its own. Unknown fields move with them. The
dimensions of arrays get the names of the axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from zarr_dask.errors import StoreKeyError, ValidationProblem
from zarr_dask.formats.base import ArrayMeta, GroupMeta, NodeMeta, normalise_path
from zarr_dask.formats.detect import OME_ZARR
from zarr_dask.jobs.migrate.nodes import NodeOverrides, Rewrite
from zarr_dask.ome.earlier_versions import in_words_of_0_4
from zarr_dask.ome.model import EARLIER, KEYS, detect_version, members_of
from zarr_dask.stores.base import join

__all__ = ["Rewriting", "in_version", "names_of_dimensions"]


def in_version(
    attributes: Mapping[str, Any], old: str, new: str
) -> dict[str, Any] | ValidationProblem:
    """Convert the attributes of a group to another version; unchanged without OME-Zarr metadata.

    Parameters
    ----------
    attributes
        All attributes of the group.
    old, new
        ``"0.4"`` or ``"0.5"``.

    Returns
    -------
    dict or ValidationProblem
        New attributes, or the problem: metadata of another version than `old`, or a conflicting
        attribute.

    Examples
    --------
    >>> old = {"labels": ["cells"], "mine": 1}
    >>> in_version(old, "0.4", "0.5")
    {'mine': 1, 'ome': {'version': '0.5', 'labels': ['cells']}}
    >>> in_version(in_version(old, "0.4", "0.5"), "0.5", "0.4") == old
    True
    """
    found = detect_version(attributes)
    if found is None or old == new:
        return deepcopy(dict(attributes))
    if found != old:
        expected = f"metadata of {old}, as in the whole hierarchy"
        return ValidationProblem("OME-Zarr version", found, expected)
    return _MOVES[old, new](deepcopy(dict(attributes)))


def _below_ome(attributes: dict[str, Any]) -> dict[str, Any] | ValidationProblem:
    if "ome" in attributes:
        return ValidationProblem(
            "ome", attributes["ome"], "no attribute of this name, which 0.5 needs"
        )
    members = {name: value for name, value in attributes.items() if name in KEYS}
    others = {name: value for name, value in attributes.items() if name not in KEYS}
    for one in _objects(members.get("multiscales")):
        one.pop("version", None)
    for name in ("omero", "well"):
        if isinstance(members.get(name), dict):
            members[name].pop("version", None)
    if isinstance(members.get("plate"), dict):
        members["plate"]["version"] = "0.5"  # required by the text of 0.5, not by its schema
    if isinstance(members.get("image-label"), dict) and "version" in members["image-label"]:
        members["image-label"]["version"] = "0.5"
    return {**others, "ome": {"version": "0.5", **members}}


def _among_attributes(attributes: dict[str, Any]) -> dict[str, Any] | ValidationProblem:
    members = attributes.pop("ome")
    members.pop("version", None)
    both = sorted(members.keys() & attributes.keys())
    if both:
        expected = "no attributes of the same name beside 'ome', where 0.4 has its metadata"
        return ValidationProblem(", ".join(both), [attributes[name] for name in both], expected)
    for one in _objects(members.get("multiscales")):
        one["version"] = "0.4"
    for name in ("plate", "well", "image-label"):
        if isinstance(members.get(name), dict):
            members[name]["version"] = "0.4"
    return {**attributes, **members}


_MOVES: Mapping[tuple[str, str], Callable[[dict[str, Any]], dict[str, Any] | ValidationProblem]] = {
    ("0.4", "0.5"): _below_ome,
    ("0.5", "0.4"): _among_attributes,
}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


# --- hierarchies ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rewriting:
    """Changes of the metadata of nodes; implements `zarr_dask.jobs.migrate.nodes.Rewriting`."""

    old: str
    new: str

    def __call__(self, nodes: Mapping[str, NodeMeta]) -> Rewrite:
        """Return the function that changes nodes, given all nodes with old metadata."""
        nodes, unclear = self.in_words(nodes)
        version = "0.4" if self.old in EARLIER else self.old
        names = names_of_dimensions(nodes, version)
        # attributes left by an interrupted removal belong to no node: they are the old ones
        old = version if nodes else next(one for one in OME_ZARR if one != self.new)

        def rewrite(path: str, meta: NodeMeta) -> NodeOverrides:
            if path in unclear:
                return NodeOverrides(meta, (unclear[path],))
            if isinstance(meta, GroupMeta):
                meta = replace(meta, attributes=nodes.get(path, meta).attributes)
                attributes = in_version(meta.attributes, old, self.new)
                if isinstance(attributes, ValidationProblem):
                    return NodeOverrides(meta, (attributes,))
                problems = tuple(_strays(members_of(meta.attributes, version)))
                return NodeOverrides(replace(meta, attributes=attributes), problems)
            return self._named(meta, names.get(path, ()))

        return rewrite

    def in_words(
        self, nodes: Mapping[str, NodeMeta]
    ) -> tuple[Mapping[str, NodeMeta], Mapping[str, ValidationProblem]]:
        """Return nodes of earlier versions in the words of 0.4, and what is unclear."""
        if self.old not in EARLIER:
            return nodes, {}
        found = {path: in_words_of_0_4(path, nodes) for path in nodes}
        unclear = {path: one for path, one in found.items() if isinstance(one, ValidationProblem)}
        said = {path: one for path, one in found.items() if isinstance(one, dict)}
        return {
            path: replace(meta, attributes=said[path]) if path in said else meta
            for path, meta in nodes.items()
        }, unclear

    def _named(self, meta: ArrayMeta, found: Sequence[tuple[str, ...]]) -> NodeOverrides:
        """Return an array whose dimensions have the names of the axes."""
        if not found:
            return NodeOverrides(meta)
        names = found[0]
        if len(names) != meta.grid.ndim:
            expected = f"one dimension for each of the axes {', '.join(names)}"
            return NodeOverrides(meta, (ValidationProblem("shape", meta.shape, expected, "grid"),))
        other = next((one for one in found if one != names), None)
        if other is not None:
            expected = f"the names {names}, which another image gives the same array"
            return NodeOverrides(meta, (ValidationProblem("axes", other, expected),))
        attributes = OME_ZARR[self.new].attributes(meta.attributes, names)
        return NodeOverrides(replace(meta, dimension_names=names, attributes=attributes))


def names_of_dimensions(
    nodes: Mapping[str, NodeMeta], version: str
) -> dict[str, list[tuple[str, ...]]]:
    """Return the names that images give the dimensions of arrays, by path of the array."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for path, meta in nodes.items():
        if not isinstance(meta, GroupMeta):
            continue
        for _, level, names in _levels(members_of(meta.attributes, version)):
            if _is_below(level):
                found.setdefault(join(path, normalise_path(level)), []).append(names)
    return found


def _levels(members: Any) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield position, path and axis names of each level that the metadata of a group name."""
    images = members.get("multiscales") if isinstance(members, Mapping) else None
    for i, image in enumerate(_objects(images)):
        names = tuple(str(axis.get("name")) for axis in _objects(image.get("axes")))
        for k, level in enumerate(_objects(image.get("datasets"))):
            if isinstance(level.get("path"), str):
                yield f"multiscales[{i}].datasets[{k}].path", level["path"], names


def _strays(members: Any) -> Iterator[ValidationProblem]:
    """Yield a problem for each level outside the group, which would not be converted."""
    for place, path, _ in _levels(members):
        if not _is_below(path):
            yield ValidationProblem(place, path, "the path of an array below the group")


def _is_below(path: str) -> bool:
    try:
        normalise_path(path)
    except StoreKeyError:
        return False
    return True
