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

PACKAGE = Path(__file__).resolve().parent.parent / "zarr_dask"

LAYERS = [
    {"blocks", "computed", "dimensions", "dtypes", "errors", "flags", "gather", "grid", "indexing"}
    | {"members", "notices", "points", "pool", "scratch", "selection"},
    {"stores"},
    {"codecs"},
    {"formats"},
    {"graph", "fingerprint"},
    {
        "array",
        "array_source",
        "create",
        "group",
        "hierarchy",
        "reading",
        "resizing",
        "standing",
        "tree",
    }
    | {"views", "walk", "writing"}
    | {"journal", "manifest", "node_place", "receipts", "site", "surroundings"},
    {"jobs"},
    {"cli", "xarray", "ome", "demo"},
]
TOP = len(LAYERS) - 1
FREE = {"", "testing"}  # the package itself gathers all layers; the test kits may use any
MAY_NAME_DASK = {"graph", "fingerprint", "jobs.run"}  # with what is in them; and layer 7
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
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            when = "types"
        for child in ast.iter_child_nodes(node):
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


def layer(module: str) -> int | None:
    top = module.partition(".")[0]
    return next((number for number, names in enumerate(LAYERS) if top in names), None)


def without_layer(package: Path) -> list[str]:
    """Modules that LAYERS does not place."""
    return [
        f"module {name} has no layer"
        for name in read(package)
        if layer(name) is None and name.partition(".")[0] not in FREE
    ]


def upward(package: Path) -> list[str]:
    """Imports of a higher layer; only the highest may import the package itself."""
    return [
        f"{one.source} imports {one.target or package.name}"
        for one in find_imports(package)
        if one.ours and (low := layer(one.source)) is not None
        if (TOP if (high := layer(one.target)) is None else high) > low
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
        if not any(f"{one.source}.".startswith(f"{name}.") for name in MAY_NAME_DASK)
        if layer(one.source) != TOP
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


RULES = [without_layer, upward, cycles, dask_elsewhere, heavy_at_load, version_literals]


@pytest.mark.parametrize("rule", RULES)
def test_package_keeps(rule):
    assert rule(PACKAGE) == []


OFFENCES = {
    "module news has no layer": ("news.py", ""),
    "grid imports stores.local": ("grid.py", "def f():\n    from pkg.stores import local"),
    "errors imports pkg": ("errors.py", "from . import open"),
    "stores <- stores.base <- stores": ("stores/base.py", "from . import get"),
    "array imports dask": ("array.py", "def f():\n    import dask.array as da"),
    "formats.v3 imports fsspec when it is loaded": ("formats/v3.py", "import fsspec"),
    "graph.read imports dask when it is loaded": ("graph/read.py", "from dask.array import Array"),
    "group:1: zarr_format in (2, 3)": ("group.py", "zarr_format in (2, 3)"),
    "group:1: meta['zarr_format'] == 2": ("group.py", "meta['zarr_format'] == 2"),
}


@pytest.mark.parametrize("message", OFFENCES)
def test_rules_find(message, tmp_path):
    package = tmp_path / "pkg"
    sources = {
        "__init__.py": "from pkg.array import open\nfrom .graph.read import read",
        "array.py": "if TYPE_CHECKING:\n    import dask",
        "cli.py": "from pkg import formats\ndef main():\n    import distributed",
        "formats/__init__.py": "from .v3 import read",
        "formats/v3.py": "from ..stores import get\nzarr_format == 3",
        "graph/__init__.py": "",
        "graph/read.py": "def read():\n    import dask",
        "jobs/engine/__init__.py": "",
        "jobs/engine/workers.py": "import dask",
        "stores/__init__.py": "from pkg.stores import base, local",
        "stores/base.py": "",
        "stores/backends/local.py": "from .base import Store",
    }
    for name, text in sources.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    assert [found for rule in RULES for found in rule(package)] == []
    name, text = OFFENCES[message]
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
zd.Writer.create(url + "-3", arrays, owners=zd.owners((4,), 2))
for rank in range(2):
    with zd.Writer.attach(url + "-3", rank) as writer:
        writer.put(0, {"u": [1, 2], "time": 0})
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


@pytest.mark.parametrize("code", LIGHT.values(), ids=LIGHT)
def test_light_uses_load_nothing_heavy(code, tmp_path):
    import zarr_dask as zd

    url = str(tmp_path / "array")
    zd.create_array(url, shape=(3,), dtype="int32", chunks=2)[...] = [1, 2, 3]
    report = f"import sys\nprint('loaded:', *sorted({HEAVY} & sys.modules.keys()))"
    run = subprocess.run(
        [sys.executable, "-c", f"url = {url!r}\n{code}\n{report}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "loaded:"
