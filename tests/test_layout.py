"""Tests lie where what they test lies, import from tests/support only; docstrings say things."""

import ast
import re

from tests.support.paths import ROOT

TESTS = ROOT / "tests"
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
    assert not [name for name in named if not (ROOT / name).exists()]


def test_no_docstring_of_the_package_begins_with_a_question_word():
    words = ("What", "Whether", "How", "Which", "Where", "Who", "Whoever")
    begins = re.compile(rf'^ *"""({"|".join(words)})\b', re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {match.group().strip()}"
        for path in (ROOT / "zarr_dask").rglob("*.py")
        for match in begins.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found
