"""Zarr arrays as lazy dask arrays, and parallel writes that lose nothing.

>>> import zarr_dask as zd
>>> a = zd.create_array({}, shape=(6, 4), dtype="int32", chunks=(2, 4))
>>> a[...] = 7
>>> int(a.to_dask().sum().compute())
168
"""

from __future__ import annotations

import logging as _logging
from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from zarr_dask import errors
from zarr_dask._util.keywords import did_you_mean as _did_you_mean
from zarr_dask._util.xarray_accessor import register_accessor as _register_accessor

if TYPE_CHECKING:
    from zarr_dask import codecs, ome, stores
    from zarr_dask._util.show_versions import show_versions
    from zarr_dask.array.array import Array
    from zarr_dask.array.view import View
    from zarr_dask.codecs.registry import register_codec
    from zarr_dask.dtypes.registry import register_data_type
    from zarr_dask.formats.base import Limits, ReadOptions
    from zarr_dask.graph.write import WriteCollection
    from zarr_dask.hierarchy.consolidate import consolidate
    from zarr_dask.hierarchy.create_node import create_array, delete
    from zarr_dask.hierarchy.group import Group, create_group
    from zarr_dask.hierarchy.open_node import (
        open,  # noqa: A004  (zd.open, as users expect)
        open_array,
        open_group,
    )
    from zarr_dask.hierarchy.values import (
        array,
        empty,
        empty_like,
        full,
        full_like,
        load,
        ones,
        ones_like,
        save,
        zeros,
        zeros_like,
    )
    from zarr_dask.jobs.copy.plan import CopyPlan
    from zarr_dask.jobs.dispatch import copy, plan_copy, plan_rechunk, rechunk
    from zarr_dask.jobs.dispatch_write import plan_write, to_zarr
    from zarr_dask.jobs.engine.credentials import credentials_initializer, share_credentials
    from zarr_dask.jobs.engine.predict import CostModel
    from zarr_dask.jobs.engine.report import JointReport, Progress, RechunkReport
    from zarr_dask.jobs.ingest.ingest import (
        AppendReport,
        IngestPlan,
        IngestReport,
        ingest,
        plan_ingest,
    )
    from zarr_dask.jobs.ingest.reference import reference
    from zarr_dask.jobs.inventory.inventory import Inventory, inventory
    from zarr_dask.jobs.migrate.migrate import migrate, plan_migration
    from zarr_dask.jobs.migrate.plan import MigrationPlan, MigrationReport
    from zarr_dask.jobs.plan_file import load_plan
    from zarr_dask.jobs.read import from_zarr
    from zarr_dask.jobs.rechunk.dask_source import DaskRechunkPlan, DaskRechunkReport
    from zarr_dask.jobs.rechunk.joint_plan import JointRechunkPlan
    from zarr_dask.jobs.rechunk.plan import RechunkPlan
    from zarr_dask.jobs.simulation.decomposition import Decomposition, decompose
    from zarr_dask.jobs.simulation.rank_writer import Writer
    from zarr_dask.jobs.verify.compare import ArrayComparison, Comparison, compare
    from zarr_dask.jobs.verify.digest import digest
    from zarr_dask.jobs.verify.report import VerifyReport
    from zarr_dask.jobs.verify.scan import Finding
    from zarr_dask.jobs.verify.verify import verify
    from zarr_dask.jobs.write.joint_plan import JointWritePlan
    from zarr_dask.jobs.write.running import WritePlan
    from zarr_dask.jobs.write.target import WriteReport
    from zarr_dask.journal.manifest import Manifest
    from zarr_dask.stores.backends.zip_writer import ZipWriter
    from zarr_dask.stores.registry import register_store
    from zarr_dask.stores.retry import RetryPolicy
    from zarr_dask.stores.secrets import CredentialsInitializer
    from zarr_dask.xarray import open_dataset, open_datatree
    from zarr_dask.xarray.find_regions import find_region, regions
    from zarr_dask.xarray.plan import DatasetPlan, DatasetReport
    from zarr_dask.xarray.read import open_mfdataset, open_zarr
    from zarr_dask.xarray.write import create_dataset, plan_dataset, write_dataset

    __version__: str

__all__ = [
    "AppendReport",
    "Array",
    "ArrayComparison",
    "Comparison",
    "CopyPlan",
    "CostModel",
    "CredentialsInitializer",
    "DaskRechunkPlan",
    "DaskRechunkReport",
    "DatasetPlan",
    "DatasetReport",
    "Decomposition",
    "Finding",
    "Group",
    "IngestPlan",
    "IngestReport",
    "Inventory",
    "JointRechunkPlan",
    "JointReport",
    "JointWritePlan",
    "Limits",
    "Manifest",
    "MigrationPlan",
    "MigrationReport",
    "Progress",
    "ReadOptions",
    "RechunkPlan",
    "RechunkReport",
    "RetryPolicy",
    "VerifyReport",
    "View",
    "WriteCollection",
    "WritePlan",
    "WriteReport",
    "Writer",
    "ZipWriter",
    "array",
    "codecs",
    "compare",
    "consolidate",
    "copy",
    "create_array",
    "create_dataset",
    "create_group",
    "credentials_initializer",
    "decompose",
    "delete",
    "digest",
    "empty",
    "empty_like",
    "errors",
    "find_region",
    "from_zarr",
    "full",
    "full_like",
    "ingest",
    "inventory",
    "load",
    "load_plan",
    "migrate",
    "ome",
    "ones",
    "ones_like",
    "open",
    "open_array",
    "open_dataset",
    "open_datatree",
    "open_group",
    "open_mfdataset",
    "open_zarr",
    "plan_copy",
    "plan_dataset",
    "plan_ingest",
    "plan_migration",
    "plan_rechunk",
    "plan_write",
    "rechunk",
    "reference",
    "regions",
    "register_codec",
    "register_data_type",
    "register_store",
    "save",
    "share_credentials",
    "show_versions",
    "stores",
    "to_zarr",
    "verify",
    "write_dataset",
    "zeros",
    "zeros_like",
]

_LATER = {
    "open_array": "zarr_dask.hierarchy.open_node",
    "open_group": "zarr_dask.hierarchy.open_node",
    "show_versions": "zarr_dask._util.show_versions",
    "Array": "zarr_dask.array.array",
    "View": "zarr_dask.array.view",
    "register_codec": "zarr_dask.codecs.registry",
    "register_data_type": "zarr_dask.dtypes.registry",
    "Limits": "zarr_dask.formats.base",
    "ReadOptions": "zarr_dask.formats.base",
    "Group": "zarr_dask.hierarchy.group",
    "consolidate": "zarr_dask.hierarchy.consolidate",
    "create_array": "zarr_dask.hierarchy.create_node",
    "create_group": "zarr_dask.hierarchy.group",
    "delete": "zarr_dask.hierarchy.create_node",
    "open": "zarr_dask.hierarchy.open_node",
    "array": "zarr_dask.hierarchy.values",
    "empty": "zarr_dask.hierarchy.values",
    "empty_like": "zarr_dask.hierarchy.values",
    "full": "zarr_dask.hierarchy.values",
    "full_like": "zarr_dask.hierarchy.values",
    "load": "zarr_dask.hierarchy.values",
    "ones": "zarr_dask.hierarchy.values",
    "ones_like": "zarr_dask.hierarchy.values",
    "save": "zarr_dask.hierarchy.values",
    "zeros": "zarr_dask.hierarchy.values",
    "zeros_like": "zarr_dask.hierarchy.values",
    "Manifest": "zarr_dask.journal.manifest",
    "ZipWriter": "zarr_dask.stores.backends.zip_writer",
    "register_store": "zarr_dask.stores.registry",
    "ArrayComparison": "zarr_dask.jobs.verify.compare",
    "Comparison": "zarr_dask.jobs.verify.compare",
    "CopyPlan": "zarr_dask.jobs.copy.plan",
    "CredentialsInitializer": "zarr_dask.stores.secrets",
    "DaskRechunkPlan": "zarr_dask.jobs.rechunk.dask_source",
    "DaskRechunkReport": "zarr_dask.jobs.rechunk.dask_source",
    "Finding": "zarr_dask.jobs.verify.scan",
    "JointRechunkPlan": "zarr_dask.jobs.rechunk.joint_plan",
    "JointReport": "zarr_dask.jobs.engine.report",
    "JointWritePlan": "zarr_dask.jobs.write.joint_plan",
    "MigrationPlan": "zarr_dask.jobs.migrate.plan",
    "MigrationReport": "zarr_dask.jobs.migrate.plan",
    "Decomposition": "zarr_dask.jobs.simulation.decomposition",
    "Progress": "zarr_dask.jobs.engine.report",
    "RechunkPlan": "zarr_dask.jobs.rechunk.plan",
    "RechunkReport": "zarr_dask.jobs.engine.report",
    "RetryPolicy": "zarr_dask.stores.retry",
    "WriteCollection": "zarr_dask.graph.write",
    "Inventory": "zarr_dask.jobs.inventory.inventory",
    "VerifyReport": "zarr_dask.jobs.verify.report",
    "WritePlan": "zarr_dask.jobs.write.running",
    "WriteReport": "zarr_dask.jobs.write.target",
    "CostModel": "zarr_dask.jobs.engine.predict",
    "compare": "zarr_dask.jobs.verify.compare",
    "copy": "zarr_dask.jobs.dispatch",
    "credentials_initializer": "zarr_dask.jobs.engine.credentials",
    "digest": "zarr_dask.jobs.verify.digest",
    "Writer": "zarr_dask.jobs.simulation.rank_writer",
    "from_zarr": "zarr_dask.jobs.read",
    "AppendReport": "zarr_dask.jobs.ingest.ingest",
    "IngestPlan": "zarr_dask.jobs.ingest.ingest",
    "IngestReport": "zarr_dask.jobs.ingest.ingest",
    "ingest": "zarr_dask.jobs.ingest.ingest",
    "migrate": "zarr_dask.jobs.migrate.migrate",
    "plan_ingest": "zarr_dask.jobs.ingest.ingest",
    "DatasetPlan": "zarr_dask.xarray.plan",
    "DatasetReport": "zarr_dask.xarray.plan",
    "create_dataset": "zarr_dask.xarray.write",
    "open_dataset": "zarr_dask.xarray",
    "plan_dataset": "zarr_dask.xarray.write",
    "write_dataset": "zarr_dask.xarray.write",
    "open_datatree": "zarr_dask.xarray",
    "find_region": "zarr_dask.xarray.find_regions",
    "regions": "zarr_dask.xarray.find_regions",
    "open_mfdataset": "zarr_dask.xarray.read",
    "open_zarr": "zarr_dask.xarray.read",
    "decompose": "zarr_dask.jobs.simulation.decomposition",
    "plan_copy": "zarr_dask.jobs.dispatch",
    "plan_migration": "zarr_dask.jobs.migrate.migrate",
    "load_plan": "zarr_dask.jobs.plan_file",
    "plan_rechunk": "zarr_dask.jobs.dispatch",
    "plan_write": "zarr_dask.jobs.dispatch_write",
    "rechunk": "zarr_dask.jobs.dispatch",
    "reference": "zarr_dask.jobs.ingest.reference",
    "share_credentials": "zarr_dask.jobs.engine.credentials",
    "inventory": "zarr_dask.jobs.inventory.inventory",
    "to_zarr": "zarr_dask.jobs.dispatch_write",
    "verify": "zarr_dask.jobs.verify.verify",
}


_import_module("zarr_dask.array")  # the folder, whose name in here is that of a function
globals().pop("array")
_MODULES = frozenset({"codecs", "ome", "stores"})
_INSTEAD = {
    **dict.fromkeys(
        ("arange", "asarray", "linspace"),
        "zarr_dask.array(values, url) stores values, such as numpy.arange(10).",
    ),
    **dict.fromkeys(
        ("AsyncArray", "AsyncGroup"),
        "Tasks of dask read side by side: zarr_dask.from_zarr(url).",
    ),
    "append": "to_zarr(x, url, append=0) and open_array(url, mode='r+').append(values) append.",
    "check": "zarr_dask.verify(url) checks stored objects.",
    **dict.fromkeys(
        ("concat", "concatenate", "stack"),
        "dask.array has it, for arrays that zarr_dask.from_zarr opens.",
    ),
    "Blosc": "zarr_dask.codecs has the codecs, as zarr_dask.codecs.Blosc.",
    "config": "Options are arguments: storage_options=, and read=zarr_dask.ReadOptions(...).",
    "consolidate_metadata": "zarr_dask.consolidate(url) writes consolidated metadata.",
    "convert": (
        "zarr_dask.migrate(url) brings metadata to v3, copy(source, target, format=...) all, "
        "ingest(files, url) NetCDF and HDF5."
    ),
    "copy_all": "zarr_dask.copy(source, target) copies a hierarchy.",
    "copy_store": "zarr_dask.copy(source, target) copies a hierarchy.",
    "create": "zarr_dask.create_array(url, shape=..., dtype=...) creates an array.",
    "create_hierarchy": "zarr_dask.create_group and create_array create nodes.",
    **dict.fromkeys(
        ("DirectoryStore", "LocalStore"),
        "A path is a store; zarr_dask.stores.LocalStore names one.",
    ),
    "exists": (
        "name in zarr_dask.open_group(url) tells; opening what is absent raises "
        "zarr_dask.errors.NodeNotFoundError."
    ),
    **dict.fromkeys(
        (
            "apply_gufunc",
            "apply_ufunc",
            "argtopk",
            "blockwise",
            "from_delayed",
            "from_tiledb",
            "gufunc",
            "map_overlap",
            "optimize",
            "overlap",
            "reshape_blockwise",
            "shuffle",
            "to_tiledb",
            "topk",
            "unify_chunks",
        ),
        "It is dask's, or xarray's: zarr_dask.from_zarr(url) opens a dask array.",
    ),
    **dict.fromkeys(
        (
            *("Coordinates", "DataArray", "DataTree", "Dataset", "Variable"),
            *("align", "corr", "date_range", "infer_freq"),
        ),
        "It is xarray's: zarr_dask.open_dataset(url) opens a dataset of xarray.",
    ),
    **dict.fromkeys(
        ("ExternalLink", "HardLink", "SoftLink"),
        "A node has one path; zarr_dask.copy(source, target) copies it.",
    ),
    **dict.fromkeys(
        ("VirtualLayout", "VirtualSource", "virtual_chunked"),
        "zarr_dask.reference(files, url) makes one hierarchy of the chunks of many files.",
    ),
    **dict.fromkeys(
        ("check_dtype", "enum_dtype", "opaque_dtype", "special_dtype", "vlen_dtype"),
        "dtype='string' and dtype='bytes' have any length, others are as in NumPy.",
    ),
    **dict.fromkeys(
        ("Dim", "IndexDomain", "IndexTransform"),
        "array.lazy[selection] is a view, which reads nothing until it is asked to.",
    ),
    **dict.fromkeys(
        ("Schema", "Spec"), "zarr_dask.create_array(url, shape=..., dtype=...) says what is made."
    ),
    **dict.fromkeys(
        ("Batch", "Context", "Transaction"),
        "Options are arguments: storage_options=; zarr_dask.to_zarr writes as a whole.",
    ),
    "KvStore": "zarr_dask.stores has the stores; a URL or a path is one.",
    "is_hdf5": "zarr_dask.plan_ingest(files, url) reads the headers of files.",
    "Client": "distributed.Client starts or finds a cluster; jobs use the active one.",
    "File": "zarr_dask.open_group(url, mode='a') opens or creates a group.",
    "from_array": "zarr_dask.create_array(url, data=values) stores values in memory.",
    **dict.fromkeys(
        ("FSStore", "FsspecStore", "ObjectStore"),
        "A URL is a store, with storage_options=; stores of fsspec and obstore are taken as well.",
    ),
    "group": "zarr_dask.open_group(url, mode='a') opens or creates a group.",
    "info": "zarr_dask.open(url).info says what a node is.",
    "is_zarr": "Opening what is absent raises zarr_dask.errors.NodeNotFoundError.",
    **dict.fromkeys(
        ("combine_by_coords", "combine_nested", "merge"),
        "xarray has it, for datasets that zarr_dask.open_dataset or open_mfdataset opens.",
    ),
    "load_dataset": "zarr_dask.open_dataset(url).load() reads a dataset into memory.",
    "LRUStoreCache": "zarr_dask.stores.Cache(store, max_bytes=...) keeps what was read.",
    "ls": "list(zarr_dask.open_group(url)) has the names of nodes, .tree() draws them.",
    "map_blocks": "zarr_dask.from_zarr(url).map_blocks(function) is lazy.",
    "MemoryStore": "A dict is a store in memory; zarr_dask.stores.MemoryStore names one.",
    **dict.fromkeys(
        ("move", "rename"),
        "zarr_dask.open_group(url, mode='r+').rename(old, new) moves a node within a group.",
    ),
    "open_consolidated": (
        "zarr_dask.open(url) uses consolidated metadata where there are any; "
        "read=zarr_dask.ReadOptions(consolidated=False) does not."
    ),
    **dict.fromkeys(
        ("load_dataarray", "open_dataarray"),
        "zarr_dask.open_dataset(url)[name] is a DataArray.",
    ),
    "open_groups": "zarr_dask.open_datatree(url) opens all groups as datasets.",
    "open_like": "zarr_dask.zeros_like(other, url) creates an array like another one.",
    "owners": "zarr_dask.decompose(grid, decomposition) says which rank has which part of a step.",
    **dict.fromkeys(
        ("plan_to_zarr", "plan_save"), "zarr_dask.plan_write(x, url) plans what to_zarr does."
    ),
    "plan_write_dataset": "zarr_dask.plan_dataset(ds, url) plans what write_dataset does.",
    "print_debug_info": "zarr_dask.show_versions() prints the versions of packages.",
    "random": "dask.array.random makes values, zarr_dask.to_zarr(x, url) writes them.",
    "read": "zarr_dask.open_array(url)[...] reads values, from_zarr(url) opens them lazily.",
    "read_zarr": "zarr_dask.from_zarr(url) opens an array as a dask array.",
    **dict.fromkeys(("remove", "rm"), "zarr_dask.delete(url) deletes a node."),
    "repair": "zarr_dask.verify(url) says what each finding takes; sweep=True removes leftovers.",
    "require_group": "zarr_dask.open_group(url, mode='a') opens or creates a group.",
    **dict.fromkeys(
        ("MultiZarrToZarr", "SingleHdf5ToZarr"),
        "zarr_dask.reference(files, url) refers to files as they are, ingest copies them.",
    ),
    **dict.fromkeys(
        ("save_mfdataset", "write_datasets"),
        "zarr_dask.write_dataset(ds, url, group=name) writes datasets one by one, or a DataTree.",
    ),
    "save_array": "zarr_dask.save(url, values) saves an array.",
    **dict.fromkeys(
        ("save_group", "savez", "savez_compressed"),
        "zarr_dask.save(url, name=values) saves a group.",
    ),
    "set_default_codecs": "codecs= of each call says how chunks are stored.",
    "status": "The command 'zarr-dask status URL' lists the jobs of a hierarchy.",
    "storage": "zarr_dask.stores has the stores.",
    "store": "zarr_dask.to_zarr(x, url) writes dask arrays; zarr_dask.stores has the stores.",
    "survey": "zarr_dask.inventory(url) lists nodes, zarr_dask.plan_ingest(files, url) files.",
    **dict.fromkeys(
        ("ProcessSynchronizer", "ThreadSynchronizer"),
        "Every stored object has one writing task, so that no lock is needed.",
    ),
    **dict.fromkeys(
        ("to_hdf5", "to_netcdf"),
        "zarr_dask.open_dataset(url).to_netcdf(file) writes a file of NetCDF.",
    ),
    "tree": "zarr_dask.open_group(url).tree() draws the hierarchy.",
    "validate": "zarr_dask.verify(url) checks stored objects.",
    **dict.fromkeys(
        ("doctor", "version"),
        "zarr_dask.show_versions() prints versions; zarr_dask.__version__ is this one's.",
    ),
    **dict.fromkeys(
        ("write", "write_array", "write_zarr"),
        "zarr_dask.to_zarr(x, url) writes dask arrays, save(url, values) those in memory.",
    ),
    "ZipStore": "zarr_dask.stores.ZipStore reads an archive, zarr_dask.ZipWriter writes one.",
}
"""Names of other libraries, and what to write instead."""


def __getattr__(name: str) -> _Any:
    """Import what is used for the first time: thousands of processes may import the package."""
    takes_datasets = _LATER.get(name, "").startswith("zarr_dask.jobs.dispatch")
    if name in _LATER:
        _register_accessor()  # by which datasets are written; xarray may have come in the meantime
    if name in _LATER:
        try:
            found = getattr(_import_module(_LATER[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "xarray":
                raise
            raise errors.MissingDependencyError(
                f"{name} needs xarray, which is not installed: pip install 'zarr-dask[xarray]'"
            ) from error
        if not takes_datasets:  # each use of those looks for xarray
            globals()[name] = found
        return found
    if name in _MODULES:
        return _import_module(f"zarr_dask.{name}")
    if name == "__version__":
        globals()[name] = _installed_version()
        return globals()[name]
    if name.startswith("_"):  # asked for by tools, of every module; comparing names takes its time
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _INSTEAD:
        hint = f" {_INSTEAD[name]}"
    else:
        hint = _did_you_mean(name, __all__, closeness=0.75) or _of_numpy(name)
        hint = hint or _did_you_mean(name, __all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}")


def _of_numpy(name: str) -> str:
    """Return a hint for a name of NumPy; empty for another one."""
    numpy = _import_module("numpy")
    if name not in numpy.__all__:
        return ""
    found = getattr(numpy, name)
    if isinstance(found, type):
        return f" It is a type of NumPy: dtype=numpy.{name} takes it where arrays are made."
    if not callable(found):
        return f" It is NumPy's: numpy.{name}."
    return (
        f" Arrays compute nothing: numpy.{name} takes values, array[...], and dask.array takes "
        "zarr_dask.from_zarr(url)."
    )


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # 40 ms

    try:
        return version("zarr-dask")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0"


def __dir__() -> list[str]:
    """Return the public names alone."""
    return sorted([*__all__, "__doc__", "__file__", "__name__", "__path__", "__version__"])


_register_accessor()
_logging.getLogger(__name__).addHandler(_logging.NullHandler())
