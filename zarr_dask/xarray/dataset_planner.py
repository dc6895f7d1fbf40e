"""Plans of datasets: writes of single arrays, and their common end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from functools import partial as bound
from typing import TYPE_CHECKING, Any

import xarray as xr

from zarr_dask._util.keywords import did_you_mean
from zarr_dask.array.array import Array
from zarr_dask.errors import (
    ConditionalWriteError,
    DatasetMismatchError,
    GridError,
    NodeNotFoundError,
    NodeTypeError,
)
from zarr_dask.formats.base import Format, GroupMeta, ReadOptions, where
from zarr_dask.formats.detect import (
    DEFAULT_FORMAT,
    find_node,
    format_for_new,
    format_named,
    formats_at,
)
from zarr_dask.grid.grid import Shape
from zarr_dask.hierarchy.edit import check_can_create
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.key_swap import KeySwap, Swap, check_shown_whole, plan_group_swap
from zarr_dask.hierarchy.locate import (
    PrefetchedLocation,
    find_free_location,
    find_replaced_location,
    parent_format,
)
from zarr_dask.jobs.write.checks import check_not_read
from zarr_dask.jobs.write.commit import GroupCommit, GroupShown
from zarr_dask.jobs.write.plan import Partial
from zarr_dask.jobs.write.request import WriteRequest
from zarr_dask.jobs.write.target_array import new_array
from zarr_dask.jobs.write.write import plan_several
from zarr_dask.journal import no_open_journals
from zarr_dask.journal.swap import AtomicReplace, is_halfway, plan_swap
from zarr_dask.stores.base import Store, is_remote, join
from zarr_dask.stores.compare_and_swap import as_cas_store
from zarr_dask.stores.wrappers.base import check_writable
from zarr_dask.xarray.append import forget_append, plan_growth
from zarr_dask.xarray.call import Call, VariableWrite
from zarr_dask.xarray.encode import EncodedDataset, array_spec, encode_dataset, values_of
from zarr_dask.xarray.plan import DatasetPlan
from zarr_dask.xarray.region import region_pieces
from zarr_dask.xarray.stored import StoredGroup, in_order_of, missing_names

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["Planner"]


@dataclass(frozen=True)
class Write:
    """One array of a call."""

    path: str
    blocks: da.Array
    request: WriteRequest


@dataclass
class Work:
    """Plan of a call."""

    writes: list[Write] = field(default_factory=list)
    bare: list[Array] = field(default_factory=list)
    groups: list[GroupShown] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    is_repeated: bool = False


class Planner:
    """Plans one call.

    Parameters
    ----------
    store, path
        The group.
    call
        Arguments of the user.
    is_claimed
        True if the caller keeps other appends to the group away.
    awaited
        By path, the shapes that an append was to make arrays (`ResumeOptions.until`).
    """

    def __init__(
        self,
        store: Store,
        path: str,
        call: Call,
        *,
        is_claimed: bool = False,
        awaited: Mapping[str, Shape] | None = None,
    ) -> None:
        self.store = store
        self.path = path
        self.call = call
        self._is_claimed = is_claimed
        self._awaited = awaited or {}

    @cached_property
    def free(self) -> PrefetchedLocation | None:
        """Return the location of the group, if nothing is stored there, or will be before it."""
        call = self.call
        if call.append is not None or call.region is not None or call.mode in {"r+", "swap"}:
            return None
        if call.mode == "w" and not call.resume.resume:
            return find_replaced_location(self.store, self.path)
        node_format = format_named(call.format or DEFAULT_FORMAT.name)
        return find_free_location(self.store, self.path, node_format)

    @cached_property
    def _asked(self) -> Store:
        """The store, with what is known of the location."""
        return self.store if self.free is None else self.free.store

    @cached_property
    def around(self) -> str:
        """Name of the format of a new group."""
        return self.call.format or parent_format(self._asked, self.path)

    @cached_property
    def partial(self) -> Partial:
        """Return the way to treat stored objects that a region cuts."""
        if self.call.partial is not None:
            return self.call.partial
        try:
            as_cas_store(self.store).check_conditional(join(self.path, "region"))
        except ConditionalWriteError:
            return "refuse"
        return "compare"

    def plan(self, nodes: Mapping[str, xr.Dataset]) -> DatasetPlan:
        """Plan to write datasets, by path below the group."""
        check_writable(self.store, where(self.store, self.path))
        call, work = self.call, Work()
        if len(nodes) > 1 and (call.append is not None or call.region is not None):
            raise ValueError("append= and region= are about one group; write the nodes one by one.")
        if len(nodes) > 1 and set(call.encoding) - {f"/{path}" for path in nodes}:
            unknown = sorted(set(call.encoding) - {f"/{path}" for path in nodes})
            raise ValueError(f"unexpected encoding group names: {unknown}")
        _check_names(call, nodes)
        present = self._present(self.path)
        if present is None or call.mode in {"w", "swap"}:
            node_format = format_for_new(self._asked, self.around, self.path)
        else:
            node_format = present.group.node_format
        self._check_place(node_format, exists=present is not None)
        for below, dataset in sorted(nodes.items(), key=lambda item: item[0], reverse=True):
            encoding = call.encoding.get(f"/{below}", {}) if len(nodes) > 1 else call.encoding
            self._plan_node(work, join(self.path, below), dataset, encoding, node_format)
        plan = self._planned(work, node_format)
        if call.resume.resume:
            plan = replace(plan, anew=bound(self._awaiting(plan, present).plan, nodes))
        if present is not None and plan.has_ended:  # a swap has its claim to give back, too
            return plan if self.swap is not None else plan.without_commit()
        if call.resume.resume and not plan.joint.is_resumed:
            self._check_free(node_format, exists=present is not None)
        return plan

    def _awaiting(self, plan: DatasetPlan, present: StoredGroup | None) -> Planner:
        """Return the planner for a plan made after another process has worked on the same job.

        Labels tell what was appended already; an append without labels is not made twice either.
        """
        awaited = dict(self._awaited)
        if present is not None and str(self.call.append) not in present.raw:
            growing = (one for one in plan.joint.plans if one.before is not None)
            awaited |= {one.target.path: one.target.shape for one in growing}
        call, is_claimed = self.call, self._is_claimed
        return Planner(self.store, self.path, call, is_claimed=is_claimed, awaited=awaited)

    @cached_property
    def _outermost(self) -> StoredGroup | None:
        return self._found(self.path)

    @cached_property
    def swap(self) -> Swap | None:
        """Return the swap that replaces the group at once; None if there is no group yet."""
        if self.call.mode != "swap":
            return None
        if is_remote(self.store):
            if self._outermost is None:
                return None
            if self.call.consolidated is False:
                raise ValueError(
                    "consolidated=False was given: in object stores mode='swap' shows a dataset by "
                    "its consolidated metadata; leave it out."
                )
            node_format = format_for_new(self._asked, self.around, self.path)
            return plan_group_swap(self._outermost.group, node_format)
        present, formats = self._outermost, [format_for_new(self._asked, self.around, self.path)]
        if present is not None:
            formats.append(present.group.node_format)
        elif not is_halfway(self.store):
            return None
        return plan_swap(self.store, self.path, *formats)

    def _present(self, path: str) -> StoredGroup | None:
        """Return the group at a path, unless it is to be replaced."""
        return self._outermost if path == self.path else self._found(path)

    def _found(self, path: str) -> StoredGroup | None:
        if self.free is not None:
            return None
        options = ReadOptions(consolidated=False)
        try:  # arrays alone, which a killed call has left, are no group yet
            found = find_node(self.store, path, None, options)
        except NodeNotFoundError:
            return None
        if not isinstance(found.meta, GroupMeta):
            raise NodeTypeError(f"{where(self.store, path)} is an array, not a group.")
        if found.meta.implicit:
            return None
        return StoredGroup(Group(self.store, path, found.meta, found.format, options))

    def _check_place(self, node_format: Format, *, exists: bool) -> None:
        call = self.call
        if call.format is not None and exists and call.mode not in {"w", "w-", "swap"}:
            wanted = format_named(call.format)
            if wanted.name != node_format.name:
                raise DatasetMismatchError(
                    f"{where(self.store, self.path)} is of format {node_format.name}, not "
                    f"{wanted.name}: leave format= out."
                )
        if not exists and (call.append is not None or call.region is not None or call.mode == "r+"):
            keys = list(node_format.node_keys(self.path))
            hint = "Nothing was written. "
            if call.append is not None:
                hint += "append= lengthens a dataset that exists: write the first piece without it."
            else:
                hint += "zarr_dask.create_dataset(ds, url) makes one to be written in parts."
            raise NodeNotFoundError(where(self.store, self.path), keys, hint)
        if not call.resume.resume:  # else plans tell if an earlier call has made the group
            self._check_free(node_format, exists=exists)

    def _check_free(self, node_format: Format, *, exists: bool) -> None:
        """Refuse to make a group where something is."""
        if self.call.mode in {"w", "w-", "swap"} or not exists:
            check_can_create(
                self._asked,
                self.path,
                node_format,
                overwrite=self.call.mode == "w" or self.swap is not None,
                is_group=True,
                advice="Pass mode='w' to replace it, mode='a' to write its variables, or append= "
                "a dimension.",
            )

    # --- one group --------------------------------------------------------------------------------

    def _plan_node(
        self,
        work: Work,
        path: str,
        dataset: xr.Dataset,
        encoding: Mapping[str, Any],
        node_format: Format,
    ) -> None:
        call = self.call
        present = None if call.mode in {"w", "w-", "swap"} else self._present(path)
        if present is not None:
            check_shown_whole(present.group, present.arrays.values())
        if present is not None and call.region is not None:
            for piece in region_pieces(dataset, call.region, present, call.casting):
                work.writes.append(self._write_piece(path, piece, present))
            call.check_one_place()
        elif present is not None and call.append is not None:
            self._plan_append(work, path, dataset, present)
        else:
            stored = {} if present is None else present.decoded
            encoded = encode_dataset(dataset, node_format, encoding, stored, casting=call.casting)
            self._plan_variables(work, path, encoded, encoding, node_format, present)
            if call.mode != "r+":
                made = present is None
                work.groups.append(GroupShown(path, encoded.attributes, creates=made))

    def _plan_append(
        self, work: Work, path: str, dataset: xr.Dataset, present: StoredGroup
    ) -> None:
        growth = plan_growth(dataset, self.call, present)
        work.kept += [join(path, name) for name in growth.kept]
        work.is_repeated = growth.is_repeated
        node_format = present.group.node_format
        for name, variable in growth.new.items():
            self._plan_new(work, path, name, variable, self.call.encoding, node_format)
        work.writes += [self._write_piece(path, piece, present) for piece in growth.pieces]
        work.groups.append(GroupShown(path, growth.encoded.attributes, creates=False))

    def _plan_variables(
        self,
        work: Work,
        path: str,
        encoded: EncodedDataset,
        encoding: Mapping[str, Any],
        node_format: Format,
        present: StoredGroup | None,
    ) -> None:
        """Plan variables that are new, or written over as a whole."""
        stored = {} if present is None else present.raw
        new = missing_names(encoded.variables, stored)
        if new and self.call.mode == "r+":
            raise DatasetMismatchError(
                f"dataset contains non-pre-existing variables {new!r}, which mode='r+' does not "
                "make; pass mode='a'."
            )
        for name, variable in encoded.variables.items():
            if name in stored:
                if self.call.bare and variable.chunks is not None:
                    continue
                given = in_order_of(name, variable, stored[name])
                if given.shape != stored[name].shape:
                    raise DatasetMismatchError(
                        f"variable {name!r} already exists with different dimension sizes: "
                        f"{dict(stored[name].sizes)} != {dict(given.sizes)}. Append to it "
                        "(append=), write a part of it (region=), or all of it anew (mode='w')."
                    )
                piece = VariableWrite(name, given)
                work.writes.append(self._write_piece(path, piece, present))
            else:
                self._plan_new(work, path, name, variable, encoding, node_format)

    def _plan_new(
        self,
        work: Work,
        path: str,
        name: str,
        variable: xr.Variable,
        encoding: Mapping[str, Any],
        node_format: Format,
    ) -> None:
        call = self.call
        spec, keywords = array_spec(
            name,
            variable,
            node_format,
            is_asked=name in encoding,
            chunks=_of_variable(call.chunks, name, variable),
            shards=_of_variable(call.shards, name, variable, whole=True),
            codecs=call.codecs.get(name) if _is_by_variable(call.codecs) else call.codecs,
        )
        if call.bare and variable.chunks is not None:
            at = join(path, name)
            array = new_array(variable.data, self.store, at, spec, keywords, node_format.name)
            if isinstance(self.swap, KeySwap):
                array = self.swap.new_version(array, named=False)
            work.bare.append(array)
            return
        at = join(path, name)
        request = replace(self._request(at), spec=spec, keywords=keywords)
        if call.mode == "w" and self.free is None:
            request = replace(request, mode="w")
        work.writes.append(Write(at, values_of(variable), request))

    @cached_property
    def _free_beside(self) -> bool:
        return no_open_journals(self.store, self.path)

    def _write_piece(self, path: str, piece: VariableWrite, present: StoredGroup | None) -> Write:
        """Return a write to an array that exists, and is open already."""
        request = self._request(join(path, piece.name))
        if present is not None and is_remote(self.store):
            prefetched = PrefetchedLocation(self.store, self._free_beside)
            request = replace(
                request, url=present.arrays[piece.name], component=None, prefetched=prefetched
            )
        request = replace(
            request,
            mode="r+" if piece.append is None else "a",
            region=piece.region,
            append=piece.append,
            overlap=piece.overlap,
            until=self._awaited.get(join(path, piece.name)),
            partial=self.partial if piece.region is not None else "refuse",
        )
        if piece.partial is not None:
            request = replace(request, partial=piece.partial)
        if present is not None and piece.append is not None:
            request = replace(request, length=present.raw[piece.name].shape[piece.append])
        return Write(join(path, piece.name), values_of(piece.variable), request)

    def _request(self, path: str) -> WriteRequest:
        call = self.call
        return WriteRequest(
            url=self.store,
            component=path,
            mode="w-",
            advice="A call that failed at its end may have left it. Pass mode='w' to replace the "
            "group with all below it, or choose another path.",
            casting=call.casting,
            resume=call.resume.resume,
            journal=call.resume.journal,
            manifest=call.manifest,
            sha256=call.sha256,
            confirm=call.confirm,
            verify=call.verify,
            max_mem=call.max_mem,
            temp=call.temp,
            prefetched=self.free,
            swap=self.swap,
        )

    # --- the plan ---------------------------------------------------------------------------------

    def _planned(self, work: Work, node_format: Format) -> DatasetPlan:
        call, start = self.call, len(self.path) + 1 if self.path else 0
        if call.mode in {"w", "swap"}:
            is_moved = isinstance(self.swap, AtomicReplace)
            for one in () if isinstance(self.swap, KeySwap) else work.writes:
                check_not_read(one.blocks, self.store, self.path, moves=is_moved)
        if isinstance(self.swap, KeySwap):
            arrays = [*(one.path for one in work.writes), *(one.path for one in work.bare)]
            self.swap.check_kinds(arrays, [one.path for one in work.groups])
        is_root = not self.path and self._outermost is not None
        has_root = is_root or bool(formats_at(self._asked, ""))
        # a call that is resumed makes the root again that the one before may have made
        makes_root = not has_root or any(one.creates and not one.path for one in work.groups)
        commit = GroupCommit(
            store=self.store,
            path=self.path,
            node_format=node_format,
            groups=tuple(work.groups),
            bare=tuple(work.bare),
            overwrite=call.mode == "w",
            swap=self.swap,
            appends=call.append is not None and not self._is_claimed,
            job=call.job,
            consolidated=makes_root if call.consolidated is None else call.consolidated,
            confirms=call.confirm,
        )
        writes = [] if work.is_repeated else work.writes
        joint = plan_several(
            [one.blocks for one in writes], [one.request for one in writes], commit
        )
        return DatasetPlan(
            joint,
            tuple(one.path[start:] for one in writes),
            where(self.store, self.path),
            tuple(path[start:] for path in work.kept),
            work.is_repeated,
            bound(forget_append, self.store, self.path, str(call.append))
            if work.is_repeated
            else None,
        )


def _is_by_variable(codecs: Any) -> bool:
    """True if a mapping has codecs by variable; others are one codec, with a name or an id."""
    return isinstance(codecs, Mapping) and not isinstance(codecs.get("name", codecs.get("id")), str)


def _check_names(call: Call, nodes: Mapping[str, xr.Dataset]) -> None:
    """Refuse grids and codecs of what is not in the dataset, so that no misspelt one is lost.

    Raises
    ------
    GridError
        If grids are given for something else than its variables and dimensions.
    KeyError
        If codecs are given for something else than its variables.
    """
    variables = {str(name) for node in nodes.values() for name in node.variables}
    known = variables | {str(dim) for node in nodes.values() for dim in node.dims}
    for option, grids in (("chunks", call.chunks), ("shards", call.shards)):
        if not isinstance(grids, Mapping):
            continue
        below = [name for one in grids.values() if isinstance(one, Mapping) for name in one]
        for name in [*grids, *below]:
            if name not in known:
                raise GridError(
                    f"{option}= names {name!r}, which is no dimension and no variable of the "
                    f"dataset.{did_you_mean(name, known)}"
                )
    for name in call.codecs if _is_by_variable(call.codecs) else ():
        if name not in variables:
            raise KeyError(
                f"codecs= names {name!r}, which is no variable of the dataset."
                f"{did_you_mean(name, variables)}"
            )


def _of_variable(given: Any, name: str, variable: xr.Variable, *, whole: bool = False) -> Any:
    """Return what the user says of the grid of one variable, which comes before its dimensions.

    Dimensions that a grid of shards leaves out are in one shard each (`whole`).
    """
    if isinstance(given, Mapping):
        own = given.get(name)
        if own is not None and not isinstance(own, Mapping) and name not in variable.dims:
            given = own
        elif isinstance(own, Mapping):
            given = {**given, **own}
    if not isinstance(given, Mapping):
        return given
    mine = {dim: size for dim, size in given.items() if dim in variable.dims}
    if whole and mine:
        lengths = [mine.get(dim, -1) for dim in variable.dims]
        sizes = zip(lengths, variable.shape, strict=True)
        return tuple(max(size, 1) if length == -1 else length for length, size in sizes)
    return mine or None
