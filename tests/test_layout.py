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
    imported = re.compile(r"^ *(?:from|import) +(tests\b[\w.]*|\.[\w.]*)", re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in TESTS.rglob("*.py")
        for name in imported.findall(path.read_text(encoding="utf-8"))
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


def test_docstrings_of_large_packages_name_all_of_their_modules():
    found = []
    for path in PACKAGE.rglob("__init__.py"):
        modules = {one.stem for one in path.parent.glob("*.py")} - {"__init__", "__main__"}
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        named = set(re.findall(r"`(\w+)`", docstring))
        if len(modules) > 8:
            found += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(modules - named)]
    assert not found


def test_docstrings_of_modules_name_what_exists():
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    known = {part for path in texts for part in path.relative_to(ROOT).with_suffix("").parts}
    known |= {
        name
        for text in texts.values()
        for name in re.findall(r"^ *(?:class|def) (\w+)", text, re.MULTILINE)
    }
    found = []
    for path, text in texts.items():
        docstring, _, code = text.removeprefix('"""').partition('"""')
        named = re.findall(r"(?<!`)`([\w.]+)`(?!`)", docstring)
        gone = [one for one in named if not {one.split(".")[-1], one.split(".")[0]} & known]
        words = set(re.findall(r"\w+", code)) if gone else set()
        found += [
            f"{path.relative_to(ROOT)}: {one}"
            for one in gone
            if not {one.split(".")[-1], one.split(".")[0]} & words
        ]
    assert not found


def test_docstrings_name_paths_that_exist():
    """`zarr_dask.folder.module.name`, as far as modules go; the name stands in that module."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"(?<!`)`~?(zarr_dask(?:\.\w+)+)`(?!`)", text):
            at, parts = PACKAGE, name.split(".")[1:]
            while parts and (at / parts[0]).is_dir():
                at /= parts.pop(0)
            if parts and (at / f"{parts[0]}.py").exists():
                at /= f"{parts.pop(0)}.py"
            at = at if at.suffix else at / "__init__.py"
            if parts and not re.search(rf"\b{parts[0]}\b", at.read_text(encoding="utf-8")):
                found.append(f"{path.relative_to(ROOT)}: {name}")
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
