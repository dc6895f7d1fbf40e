"""The layers of docs/architecture.md, enforced on the source and on what an import really loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "zarr_dask"

LAYERS = [
    # From the bottom up, one folder a line: a folder imports itself and those above its line.
    "errors.py",  # the tree of exceptions
    "_util",  # arguments, warnings, text, buffers, threads
    "grid",  # chunks, stored objects and blocks: arithmetic of borders
    "indexing",  # indices as values
    "dtypes",  # data types and fill values
    "stores",  # bytes by key
    "codecs",  # chunk <-> bytes
    "formats",  # metadata documents <-> ArrayMeta; the only place that knows versions
    "graph",  # opaque sources and targets -> dask
    "journal",  # what jobs leave behind: journals, receipts, manifests, locks
    "array",  # one array: reading, writing, views
    "hierarchy",  # groups and nodes
    "jobs/engine",  # what all jobs share
    "jobs/simulation",
    "jobs/write",
    "jobs/verify",
    "jobs/rechunk",
    "jobs/migrate",
    "jobs/copy",
    "jobs/ingest",  # many files into one store
    "jobs/inventory",
    "jobs",  # reading into dask, files of plans
    "ome",  # images
    "xarray",  # datasets
    "__init__.py",  # the public face
    "testing",  # kits for third parties
    "cli",  # the command line
    "__main__.py",  # python -m zarr_dask
]
MAY_NAME_DASK = {"graph", "jobs/engine"}  # and what lies above jobs/
HEAVY = {
    "dask",
    "distributed",
    "fsspec",
    "ml_dtypes",
    "xarray",
    "matplotlib",
}  # loaded only when asked for


class Import(NamedTuple):
    """One import statement. Modules are named without the package: `jobs.run`, "" the package."""

    source: str
    target: str  # a module of the package or, if not `ours`, the first name of another
    ours: bool
    when: str  # "load" of `source`, "call" of a function, or "types" (for type checkers only)


def read(package: Path) -> dict[str, ast.Module]:
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = parse(path.read_text(encoding="utf-8"))
    return modules


@cache
def parse(source: str) -> ast.Module:
    return ast.parse(source)


def find_imports(package: Path) -> list[Import]:
    modules = read(package)
    found = set()
    for source, tree in modules.items():
        for node, when in import_statements(tree):
            for name in imported_names(package, source, node):
                first, _, inner = name.partition(".")
                while inner and inner not in modules:  # the name of a function or class in a module
                    inner = inner.rpartition(".")[0]
                ours = first == package.name
                found.add(Import(source, inner if ours else first, ours, when))
    return sorted(found)


@cache
def import_statements(tree: ast.Module) -> list[tuple[ast.Import | ast.ImportFrom, str]]:
    """Each with when it is done; found once, since every rule asks for them."""
    found = []

    def visit(node: ast.AST, when: str) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, when))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            when = "call"
        elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            when = "types"
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            for child in getattr(node, part, ()):  # statements; expressions import nothing
                visit(child, when)

    visit(tree, "load")
    return found


def imported_names(package: Path, source: str, node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = [node.module] if node.module else []
    if node.level:
        is_package = (package / source.replace(".", "/") / "__init__.py").exists()
        parents = [package.name, *filter(None, source.split("."))]
        base = parents[: len(parents) + is_package - node.level] + base
    return [".".join([*base, alias.name]) for alias in node.names]


def folder(module: str) -> str:
    """The entry of LAYERS that a module belongs to; its top folder if there is none."""
    parts = module.split(".")
    nested = "/".join(parts[:2])
    if nested in LAYERS or (parts[0] == "jobs" and len(parts) > 2):
        return nested
    return parts[0] if parts[0] in LAYERS else f"{parts[0] or '__init__'}.py"


def without_layer(package: Path) -> list[str]:
    """Modules that LAYERS does not place: of the root only errors.py and __main__.py."""
    return [f"module {name} has no layer" for name in read(package) if folder(name) not in LAYERS]


def upward(package: Path) -> list[str]:
    """Imports of a higher folder. So folders have no cycles either."""
    return [
        f"{one.source} imports {one.target or package.name}"
        for one in find_imports(package)
        if one.ours and {folder(one.source), folder(one.target)} <= {*LAYERS}
        if LAYERS.index(folder(one.target)) > LAYERS.index(folder(one.source))
    ]


def cycles(package: Path) -> list[str]:
    """One circle of modules that import each other, if there is any."""
    graph: dict[str, list[str]] = {}
    for one in find_imports(package):
        if one.ours and one.source != one.target:
            graph.setdefault(one.source, []).append(one.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def dask_elsewhere(package: Path) -> list[str]:
    """Imports of dask outside the modules that are for it."""
    return [
        f"{one.source or package.name} imports {one.target}"
        for one in find_imports(package)
        if one.target in {"dask", "distributed"} and not one.ours and one.when != "types"
        if folder(one.source) not in MAY_NAME_DASK
        if LAYERS.index(folder(one.source)) < LAYERS.index("jobs")
    ]


def heavy_at_load(package: Path) -> list[str]:
    """Imports of heavy libraries that run when the package or its CLI is imported."""
    found = [one for one in find_imports(package) if one.when == "load"]
    loaded: set[str] = set()
    new = {"", "cli"}
    while new:
        loaded |= new
        targets = {one.target for one in found if one.ours and one.source in new}
        new = targets.union(name.rpartition(".")[0] for name in targets) - loaded
    return [
        f"{one.source or package.name} imports {one.target} when it is loaded"
        for one in found
        if not one.ours and one.target in HEAVY and one.source in loaded
    ]


def version_literals(package: Path) -> list[str]:
    """Places outside formats/ that compare a `zarr_format` with a number."""
    return [
        f"{name}:{node.lineno}: {ast.unparse(node)}"
        for name, tree in read(package).items()
        if name.partition(".")[0] != "formats"
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and "zarr_format" in ast.unparse(node)
        if any(isinstance(leaf, ast.Constant) and leaf.value in {2, 3} for leaf in ast.walk(node))
    ]


def stores_named(package: Path) -> list[str]:
    """Concrete stores named outside stores/: all others take what a store can do from the store."""
    trees = read(package)
    concrete = {
        node.name
        for name, tree in trees.items()
        if name.startswith(("stores.backends.", "stores.wrappers."))
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    return [
        f"{name} names {word}"
        for name, tree in trees.items()
        if folder(name) not in {"stores", "__init__.py", "testing"}
        for word in sorted(concrete & names_in(tree))
    ]


@cache
def names_in(tree: ast.Module) -> frozenset[str]:
    """Names that a module loads, imports or writes as a text of their own."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return frozenset(found)


VERSIONED = {"V1", "V2", "V3", "v1", "v2", "v3", "v3draft", "DRAFT"}
DOCUMENTS = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata", "meta", "attrs"}


def formats_named(package: Path) -> list[str]:
    """Names of format versions and of their documents outside formats/."""
    return [
        f"{name} names {word}"
        for name, tree in read(package).items()
        if folder(name) not in {"formats", "testing"}
        for word in sorted((VERSIONED | DOCUMENTS - {"meta", "attrs"}) & names_in(tree))
    ]


def classes_twice(package: Path) -> list[str]:
    """Names of classes that mean two different things."""
    places: dict[str, list[str]] = {}
    for name, tree in read(package).items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    return [f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1]


ROLES = {"plan", "joint_plan", "base", "report", "write", "read", "plot", "html", "job", "registry"}
"""Names that modules of several folders share, because they play the same part in each."""


def modules_twice(package: Path) -> list[str]:
    """Names of modules that mean two different things."""
    places: dict[str, list[str]] = {}
    for name in read(package):
        if name and folder(name) != "cli" and not (package / name.replace(".", "/")).is_dir():
            places.setdefault(name.rpartition(".")[2], []).append(name)
    return [
        f"{name}: {', '.join(found)}"
        for name, found in places.items()
        if len(found) > 1 and name not in ROLES
    ]


RULES = [
    without_layer,
    upward,
    cycles,
    dask_elsewhere,
    heavy_at_load,
    version_literals,
    stores_named,
    formats_named,
    classes_twice,
    modules_twice,
]


@pytest.mark.parametrize("rule", RULES)
def test_package_keeps(rule):
    assert rule(PACKAGE) == []


OFFENCES = {
    "module news has no layer": ("news.py", ""),
    "module jobs.news.plan has no layer": ("jobs/news/plan.py", ""),
    "grid.grid imports stores.base": ("grid/grid.py", "def f():\n    from pkg.stores import base"),
    "errors imports pkg": ("errors.py", "from . import open"),
    "jobs.engine.execute imports jobs.write.plan": (
        "jobs/engine/execute.py",
        "def f():\n    from pkg.jobs.write.plan import plan",
    ),
    "stores <- stores.base <- stores": ("stores/base.py", "from . import get"),
    "array.array imports dask": ("array/array.py", "def f():\n    import dask.array as da"),
    "formats.v3 imports fsspec when it is loaded": ("formats/v3.py", "import fsspec"),
    "graph.read imports dask when it is loaded": ("graph/read.py", "from dask.array import Array"),
    "array.array:1: zarr_format in (2, 3)": ("array/array.py", "zarr_format in (2, 3)"),
    "array.array:1: meta['zarr_format'] == 2": ("array/array.py", "meta['zarr_format'] == 2"),
    "array.array names LocalStore": ("array/array.py", "isinstance(store, LocalStore)"),
    "jobs.write.plan names .zarray": ("jobs/write/plan.py", "key = '.zarray'"),
    "jobs.write.plan names v2": ("jobs/write/plan.py", "if name == 'v2':\n    pass"),
    "Base: array.array, stores.base": ("array/array.py", "class Base:\n    pass"),
    "grid: array.grid, grid.grid": ("array/grid.py", ""),
}


@pytest.mark.parametrize("message", OFFENCES)
def test_rules_find(message, tmp_path):
    package = tmp_path / "pkg"
    sources = {
        "__init__.py": "from pkg.array.array import open\nfrom .graph.read import read",
        "array/__init__.py": "",
        "array/array.py": "if TYPE_CHECKING:\n    import dask",
        "cli/__init__.py": "from pkg import formats\ndef main():\n    import distributed",
        "errors.py": "",
        "formats/__init__.py": "from .v3 import read",
        "formats/v3.py": "from ..stores import get\nzarr_format == 3\ndocument = 'zarr.json'",
        "graph/__init__.py": "",
        "graph/read.py": "def read():\n    import dask",
        "grid/__init__.py": "",
        "grid/grid.py": "",
        "jobs/__init__.py": "",
        "jobs/engine/__init__.py": "",
        "jobs/engine/workers.py": "import dask",
        "jobs/write/__init__.py": "",
        "jobs/write/plan.py": "",
        "stores/__init__.py": "from pkg.stores import base, backends",
        "stores/base.py": "class Base:\n    pass",
        "stores/backends/__init__.py": "",
        "stores/backends/local.py": "from ..base import Store\nclass LocalStore:\n    pass",
    }
    for name, text in sources.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    assert [found for rule in RULES for found in rule(package)] == []
    name, text = OFFENCES[message]
    (package / name).parent.mkdir(parents=True, exist_ok=True)
    (package / name).write_text(text)
    assert message in [found for rule in RULES for found in rule(package)]


IMPORT_AND_READ = """
import zarr_dask as zd
assert zd.open(url)[1:].tolist() == [2, 3]
"""
WRITE = """
import zarr_dask as zd
zd.create_array(url + "-2", shape=(3,), dtype="int32", chunks=2)[...] = [1, 2, 3]
"""
SIMULATE = """
import zarr_dask as zd
arrays = {"u": {"shape": (4,), "dtype": "f4"}, "time": {"shape": (), "dtype": "f8"}}
zd.Writer.create(url + "-3", arrays, owners=zd.decompose((4,), 2))
for rank in range(2):
    with zd.Writer.attach(url + "-3", rank) as writer:
        writer.write_step(0, {"u": [1, 2], "time": 0})
assert zd.Writer.attach(url + "-3").publish() == 1
"""
INFO = """
from zarr_dask.cli import main
try:
    main(["info", url])
except SystemExit as end:
    assert not end.code, end.code
"""


LIGHT = {"read": IMPORT_AND_READ, "write": WRITE, "simulate": SIMULATE, "info": INFO}


def assert_not_loaded(names: set[str], code: str, tmp_path: Path) -> None:
    """Run code on the `url` of an array in another process, which loads none of the modules."""
    import zarr_dask as zd

    url = str(tmp_path / "array")
    zd.create_array(url, shape=(3,), dtype="int32", chunks=2)[...] = [1, 2, 3]
    report = f"import sys\nprint('loaded:', *sorted({names} & sys.modules.keys()))"
    run = subprocess.run(
        [sys.executable, "-c", f"url = {url!r}\n{code}\n{report}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "loaded:"


@pytest.mark.parametrize("code", LIGHT.values(), ids=LIGHT)
def test_light_uses_load_nothing_heavy(code, tmp_path):
    assert_not_loaded(HEAVY, code, tmp_path)


CLUSTER = """
import distributed
import zarr_dask as zd
options = {"processes": False, "n_workers": 1, "dashboard_address": None}
with distributed.Client(**options) as client:
    zd.copy(url, url + "-copy", client=client)
assert zd.open(url + "-copy")[...].tolist() == [1, 2, 3]
"""


def test_a_copy_on_a_cluster_loads_no_dask_array(tmp_path):
    """It would load xarray and pandas, before the first task begins."""
    pytest.importorskip("distributed")
    assert_not_loaded({"dask.array", "xarray", "pandas"}, CLUSTER, tmp_path)


COUNT = """
import sys
import zarr_dask as zd
loaded = lambda: sum(name.partition(".")[0] == "zarr_dask" for name in sys.modules)
print(loaded())
assert "importlib.metadata" not in sys.modules
assert zd.open(url)[...].tolist() == [1, 2, 3]
unused = {"importlib.metadata", "numcodecs", "socket", "numpy.ma", "ssl", "urllib.request"}
unused |= {"hashlib", "difflib", "fractions", "html"}
assert not unused & sys.modules.keys(), unused & sys.modules.keys()
print(loaded())
compressed = zd.open(f"{url}-compressed")
assert "numcodecs" not in sys.modules  # until a chunk is decoded
assert compressed[...].tolist() == [1, 2, 3]
assert callable(zd.array) and zd.array is zd.array
"""


WRITE = """
import sys
import numpy as np
import zarr_dask as zd
spec = {"shape": (2,), "dtype": "i8"}
zd.Writer.create(f"{url}/run", {"u": spec}, owners=zd.decompose((2,), (1,)))
with zd.Writer.attach(f"{url}/run", 0) as writer:
    writer.write_step(0, {"u": np.arange(2)})
a = zd.create_array(f"{url}/array", data=[1, 2, 3])
a[:2] = 5
assert "numpy.ma" not in sys.modules
"""


def test_a_write_imports_no_masked_arrays(tmp_path):
    code = f"url = {str(tmp_path)!r}\n{WRITE}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_import_loads_few_modules(tmp_path):
    import zarr_dask as zd

    url = str(tmp_path / "array")
    zd.create_array(url, data=[1, 2, 3], codecs="bytes")
    zd.create_array(f"{url}-compressed", data=[1, 2, 3])
    run = subprocess.run(
        [sys.executable, "-c", f"url = {url!r}\n{COUNT}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    imported, reading = map(int, run.stdout.split())
    assert imported <= 10
    assert reading <= 85
