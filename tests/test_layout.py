"""Tests lie where what they test lies, import from tests/support only; docstrings say things."""

import ast
import re

from tests.support.paths import ROOT

TESTS = ROOT / "tests"
PACKAGE = ROOT / "zarr_dask"
ELSEWHERE = {"product", "benchmarks", "examples", "tools", "support"}


def test_every_folder_is_one_of_the_package():
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    mirrored = {one for one in folders if one.parts and one.parts[0] not in ELSEWHERE}
    assert not [str(one) for one in mirrored if not (ROOT / "zarr_dask" / one).is_dir()]


def test_no_test_module_imports_another():
    found = []
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "."]
            else:
                continue
            of_tests = [name for name in names if name.split(".")[0] == "tests"]
            found += [
                f"{path.relative_to(ROOT)} imports {name}"
                for name in of_tests
                if not name.startswith("tests.support")
            ]
    assert not found


def test_what_comes_first_exists():
    named = re.findall(r'^    "(tests/.+)",$', (TESTS / "conftest.py").read_text(), re.MULTILINE)
    assert len(named) > 10

    def there(module: str, function: str = "") -> bool:
        path = ROOT / module
        return path.exists() and (not function or f"def {function}(" in path.read_text("utf-8"))

    missing = [name for name in named if not there(*name.split("::"))]
    assert not missing


def test_no_docstring_of_the_package_begins_with_a_question_word():
    words = ("What", "Whether", "How", "Which", "Where", "Who", "Whoever")
    begins = re.compile(rf'^ *"""({"|".join(words)})\b', re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {match.group().strip()}"
        for path in (ROOT / "zarr_dask").rglob("*.py")
        for match in begins.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_tables_of_packages_name_their_modules():
    found = []
    for path in (ROOT / "zarr_dask").rglob("__init__.py"):
        rows = re.findall(r"^`(\w+)`  ", path.read_text(encoding="utf-8"), re.MULTILINE)
        modules = {one.stem for one in path.parent.iterdir()}
        found += [f"{path.relative_to(ROOT)}: {name}" for name in rows if name not in modules]
    assert not found


MAP = ("decisions", "images", "jobs", "limits", "reads", "writes")


def test_the_map_names_modules_and_folders_that_exist():
    pages = ("architecture", *(f"developers/{name}" for name in MAP))
    text = "".join((ROOT / "docs" / f"{one}.md").read_text(encoding="utf-8") for one in pages)
    named = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    assert len(named) > 50
    below = [f"/{path.relative_to(PACKAGE).as_posix()}" for path in PACKAGE.rglob("*")]
    missing = [one for one in named if not any(p.endswith(f"/{one.rstrip('/')}") for p in below)]
    assert not [one for one in missing if not (ROOT / one).exists()]
