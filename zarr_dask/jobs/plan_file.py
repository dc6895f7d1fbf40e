"""Loading plans of rechunkings and copies from JSON, to run them.

All content is checked as if a stranger had written it: the plan itself names the arrays to open,
and its boxes must be whole stored objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.errors import MetadataChangedError, PlanError, SourceIsTargetError
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    GroupMeta,
    ReadOptions,
    normalise_path,
    prefix_of,
)
from zarr_dask.formats.consolidated import without_recorded
from zarr_dask.formats.detect import format_for_new
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.indexing.basic import checked_region
from zarr_dask.jobs.copy.plan import CopyPlan
from zarr_dask.jobs.copy.raw_copy import RawCopyPlan
from zarr_dask.jobs.engine.array_job import metadata_hash
from zarr_dask.jobs.engine.cost_model import Layout, StagePlan
from zarr_dask.jobs.engine.layouts import layout_between, layout_of
from zarr_dask.jobs.engine.plan import format_bytes, format_region
from zarr_dask.jobs.engine.predict import CostModel
from zarr_dask.jobs.ingest.described import files_of
from zarr_dask.jobs.rechunk.compression_sample import CompressionRatios
from zarr_dask.jobs.rechunk.joint_plan import JointRechunkPlan
from zarr_dask.jobs.rechunk.plan import READ_OPTIONS, VERSION, RechunkPlan
from zarr_dask.jobs.rechunk.rechunk import check_all_apart, check_source_not_target
from zarr_dask.stores.base import Store
from zarr_dask.stores.config import from_config
from zarr_dask.stores.open import open_store
from zarr_dask.stores.patience import in_job
from zarr_dask.stores.real_location import locations_overlap

__all__ = ["load_plan"]

_LARGEST = 1 << 63
AnyPlan = RechunkPlan | JointRechunkPlan | CopyPlan


@takes_habits()
@in_job()
def load_plan(text: str, storage_options: Mapping[str, Any] | None = None) -> AnyPlan:
    """Load a plan from JSON.

    Parameters
    ----------
    text
        Result of a plan's ``to_json``.
    storage_options
        Options of remote stores that the plan does not contain, such as credentials; keyed by
        scheme if they are for several services, as in ``{"s3": {...}, "gs": {...}}``.

    Raises
    ------
    PlanError
        If it is not a valid plan.
    NodeNotFoundError
        If the source does not exist.
    MetadataChangedError
        If the source has changed since the plan was made.
    SourceIsTargetError
        If it would overwrite its own source.

    Examples
    --------
    >>> import tempfile
    >>> import zarr_dask as zd
    >>> folder = tempfile.mkdtemp()
    >>> a = zd.create_array(f"{folder}/a.zarr", shape=(8, 8), dtype="f4", chunks=(1, 8))
    >>> plan = zd.plan_rechunk(a, f"{folder}/b.zarr", chunks=(8, 1))
    >>> zd.load_plan(plan.to_json()).stages == plan.stages
    True
    """
    document = _document(text)
    read = _READERS[document["job"]]
    try:
        return read(document, storage_options)
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        if isinstance(error, PlanError | SourceIsTargetError):
            raise
        raise PlanError(f"the plan has a member that is missing or wrong: {error!r}.") from error


_SHORTEST = 1000  # characters of a plan; what is shorter may be the name of its file


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        hint = " load_plan takes the text of a plan: pathlib.Path(file).read_text() reads it."
        hint = hint if len(str(text)) < _SHORTEST else ""
        raise PlanError(f"the plan is not JSON ({error}).{hint}") from error
    known = ", ".join(f'"{job}"' for job in _READERS)
    if not isinstance(document, dict) or str(document.get("job")) not in _READERS:
        raise PlanError(f'the document is no plan: expected an object whose "job" is {known}.')
    if document.get("version") != VERSION:
        raise PlanError(
            f"the plan is of version {document.get('version')!r}, this package reads version "
            f"{VERSION}. Make the plan again."
        )
    return document


def _plan(document: Mapping[str, Any], storage_options: Mapping[str, Any] | None) -> RechunkPlan:
    return _rechunking(document, storage_options, CostModel.of(document["model"]))


def _rechunking(
    document: Mapping[str, Any], storage_options: Mapping[str, Any] | None, model: CostModel
) -> RechunkPlan:
    """Return the plan of one array, alone or among others."""
    source = _source(document["source"], storage_options)
    target = _target(document["target"], storage_options)
    temp = document["temp"]
    check_source_not_target(source, target)
    source_ratio, between, target_ratio = map(float, document["ratios"])
    blocks = _flag(document, "in_blocks")
    sample = CompressionRatios(source_ratio, between, target_ratio, in_blocks=blocks)
    where = None if temp is None else from_config(temp, storage_options)
    bounds = [_bounds(one) for one in document["source"]["region"]]
    region = checked_region(tuple(bounds), source.shape)
    if tuple(s.stop - s.start for s in region) != target.shape:
        raise PlanError(
            f"the region {format_region(region)} of the source is not of the shape "
            f"{target.shape} of the target."
        )
    plan = RechunkPlan(
        source=source,
        region=region,
        target=target,
        stages=_stages(document["stages"], source, region, target, where, sample),
        ratios=sample,
        max_mem=_integer(document, "max_mem"),
        threads=_integer(document, "threads", 1),
        threads_per_process=_integer(document, "threads_per_process", 1),
        overwrite=_flag(document, "overwrite"),
        run_id=_run_id(document),
        temp=where,
        notes=tuple(map(str, document["notes"])),
        model=model,
    )
    _check_memory(plan)
    return plan


def _several(
    document: Mapping[str, Any], storage_options: Mapping[str, Any] | None
) -> JointRechunkPlan:
    model = CostModel.of(document["model"])
    plans = tuple(_rechunking(one, storage_options, model) for one in document["arrays"])
    if not plans:
        raise PlanError("the plan has no arrays.")
    check_all_apart(plans)
    plan = JointRechunkPlan(
        members=plans,
        max_mem=_integer(document, "max_mem"),
        threads=_integer(document, "threads", 1),
        threads_per_process=_integer(document, "threads_per_process", 1),
        overwrite=_flag(document, "overwrite"),
        run_id=_run_id(document),
        model=model,
    )
    _check_memory(plan)
    return plan


def _copy(document: Mapping[str, Any], storage_options: Mapping[str, Any] | None) -> CopyPlan:
    given = document["target"]
    store, path = from_config(given["store"], storage_options), _path(given)
    node_format = format_for_new(store, given["format"], path)
    groups = tuple(
        (_within(path, group), _group(documents, group, node_format))
        for group, documents in document["groups"].items()
    )
    consolidated = tuple(map(str, document["consolidated"]))
    if not {*consolidated} <= {group for group, _ in groups}:
        raise PlanError("the plan names consolidated groups that it does not copy.")
    source, model = document["source"], CostModel.of(document["model"])
    plan = CopyPlan(
        members=tuple(_member(one, storage_options, model) for one in document["arrays"]),
        max_mem=_integer(document, "max_mem"),
        besides=_integer(document, "besides"),
        threads=_integer(document, "threads", 1),
        threads_per_process=_integer(document, "threads_per_process", 1),
        overwrite=_flag(document, "overwrite"),
        run_id=_run_id(document),
        source=(_opened(source["store"], storage_options), _path(source)),
        store=store,
        path=path,
        node_format=node_format,
        groups=groups,
        consolidated=consolidated,
        notes=tuple(map(str, document["notes"])),
        model=model,
    )
    for member in plan.members:
        _within(path, member.target.path)
        if member.target.store != store or member.target.node_format != node_format:
            raise PlanError(f"{member.target.where} is no part of the copy at {plan.where}.")
        if locations_overlap((member.source.store, member.source.path), (store, path)):
            raise SourceIsTargetError(
                f"{member.source.where} lies in {plan.where}, or the reverse: the copy that the "
                "plan makes would go into what it copies."
            )
    _check_memory(plan)
    return plan


def _within(root: str, path: str) -> str:
    """Return a path if it is the copy's or below it, else raise."""
    if normalise_path(path) != path or not (path == root or path.startswith(prefix_of(root))):
        raise PlanError(f"{path!r} in the plan is no path at or below {root!r}.")
    return path


def _group(documents: Mapping[str, str], path: str, node_format: Format) -> GroupMeta:
    """Return the metadata of a group from its stored metadata."""
    if not documents:
        return GroupMeta(implicit=True)
    store = open_store({key: text.encode() for key, text in documents.items()})
    meta = node_format.read(store, path, ReadOptions(), found={})
    if not isinstance(meta, GroupMeta):
        raise PlanError(f"the plan holds no document of a group at {path!r}.")
    return GroupMeta(meta.attributes, without_recorded(meta.extra))


def _member(
    document: Mapping[str, Any], storage_options: Mapping[str, Any] | None, model: CostModel
) -> RawCopyPlan | RechunkPlan:
    """Return the plan of one array of a copy."""
    if document["job"] != "move":
        return _rechunking(document, storage_options, model)
    source = _source(document["source"], storage_options)
    target = _target(document["target"], storage_options)
    check_source_not_target(source, target)
    if (source.meta.grid, source.meta.data_type) != (target.meta.grid, target.meta.data_type):
        raise PlanError(
            f"{target.where} has another grid or data type than {source.where}, whose stored "
            "objects the plan would copy as they are."
        )
    return RawCopyPlan(
        source=source,
        target=target,
        batch=_integer(document, "batch", 1),
        abreast=_integer(document, "abreast", 1),
        objects=_integer(document, "objects"),
        stored=_integer(document, "stored"),
        largest=_integer(document, "largest"),
        listed=_flag(document, "listed"),
        busy=_integer(document, "busy"),
        asked=_integer(document, "asked"),
    )


_READERS: Mapping[str, Callable[..., AnyPlan]] = {
    "rechunk": _plan,
    "rechunk several": _several,
    "copy": _copy,
}


def _run_id(document: Mapping[str, Any]) -> str:
    run_id = str(document["run_id"])
    if not re.fullmatch("[0-9a-f]{32}", run_id):
        raise PlanError(f"{run_id!r} in the plan: expected 32 hexadecimal digits.")
    return run_id


def _check_memory(plan: AnyPlan) -> None:
    if plan.peak > plan.max_mem:
        raise PlanError(
            f"the stages of the plan hold {format_bytes(plan.peak)} per process, more than its "
            f"max_mem of {format_bytes(plan.max_mem)}."
        )


def _integer(document: Mapping[str, Any], name: str, least: int = 0) -> int:
    number = document[name]
    if type(number) is not int or not least <= number < _LARGEST:
        raise PlanError(
            f"{name!r} is {number!a:.80} in the plan: expected an integer of at least {least}."
        )
    return number


def _bounds(given: Any) -> slice:
    if (
        not isinstance(given, list)
        or len(given) != 2
        or any(type(n) is not int or not 0 <= n < _LARGEST for n in given)
    ):
        raise PlanError(f"'region' has {given!a:.80} in the plan: expected two indices.")
    return slice(*given)


def _flag(document: Mapping[str, Any], name: str) -> bool:
    flag = document[name]
    if not isinstance(flag, bool):
        raise PlanError(f"{name!r} is {flag!a:.80} in the plan: expected true or false.")
    return flag


def _path(document: Mapping[str, Any]) -> str:
    path = document["path"]
    if not isinstance(path, str) or normalise_path(path) != path:
        raise PlanError(f"'path' is {path!a:.80} in the plan: expected names joined by '/'.")
    return path


def _opened(given: Mapping[str, Any], storage_options: Mapping[str, Any] | None) -> Store:
    """Return the store of a source; that of an ingest stands for many files."""
    if "files" in given:
        return files_of(given["files"], str(given["identity"]), storage_options)
    return from_config(given, storage_options)


def _source(given: Mapping[str, Any], storage_options: Mapping[str, Any] | None) -> Array:
    store = _opened(given["store"], storage_options)
    read = dict(given.get("read", {}))
    if read.keys() - {*READ_OPTIONS}:
        raise PlanError(f"the plan has options of reading that no plan has: {sorted(read)}.")
    array = open_array(store, _path(given), format=given["format"], read=ReadOptions(**read))
    if metadata_hash(array) != given["digest"]:
        raise MetadataChangedError(
            f"the metadata of {array.where} are not those that the plan was made for. Make it "
            "again."
        )
    return array


def _target(given: Mapping[str, Any], storage_options: Mapping[str, Any] | None) -> Array:
    store = from_config(given["store"], storage_options)
    path = _path(given)
    node_format = format_for_new(store, given["format"], path)
    documents = {key: text.encode() for key, text in given["documents"].items()}
    meta = node_format.read(open_store(documents), path, ReadOptions(), found={})
    if not isinstance(meta, ArrayMeta):
        raise PlanError("the plan holds no document of an array to write.")
    return Array(store, path, meta, node_format)


def _stages(
    given: Any,
    source: Array,
    region: Region,
    target: Array,
    temp: Store | None,
    ratios: CompressionRatios,
) -> tuple[StagePlan, ...]:
    if not isinstance(given, list) or not given:
        raise PlanError("the plan has no stages.")
    layouts = [ratios.layout_of_source(source, region)]
    cells = [_shape(stage["cell"], source.ndim) for stage in given[:-1]]
    if len(set(cells)) < len(cells):
        raise PlanError("two intermediate arrays of the plan would be one.")
    for stage in given[:-1]:
        cell = _shape(stage["cell"], source.ndim)
        compressed = _flag(stage, "compressed")
        ratio = ratios.between if compressed else 1.0
        middle = layout_between(source, target, temp, compressed=compressed, ratio=ratio)
        layouts.append(middle.with_cell(target.shape, cell))
    layouts.append(replace(layout_of(target), ratio=ratios.target))
    return tuple(
        _stage(layouts[number], layouts[number + 1], _shape(stage["box"], source.ndim), stage)
        for number, stage in enumerate(given)
    )


def _stage(source: Layout, target: Layout, box: Shape, given: Mapping[str, Any]) -> StagePlan:
    unit = target.grid.common_cell
    if target.grid.cell_shape is not None and any(
        length % size for length, size in zip(box, unit, strict=True)
    ):
        raise PlanError(
            f"boxes of {box} are no whole stored objects of {unit}: two tasks would write to one."
        )
    return StagePlan(source, target, box, _integer(given, "threads", 1))


def _shape(given: Any, ndim: int) -> Shape:
    lengths = tuple(given)
    if len(lengths) != ndim or any(type(n) is not int or n < 1 for n in lengths):
        raise PlanError(f"{given!r} in the plan: expected {ndim} integers of at least 1.")
    return lengths
