"""A tutorial runs where only those packages can be imported that it says to install."""

import os
import re
import subprocess
import sys
from importlib import metadata
from importlib.machinery import PathFinder

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT
from tools import docs_pages

TUTORIALS = {
    name: path.read_text(encoding="utf-8")
    for name, path in docs_pages.pages().items()
    if name.startswith("tutorials/") and not name.endswith("/index.md")
}


def said(text):
    """Return what the first lines of a tutorial say to install."""
    return re.search(r"You need `pip install ([^`]*)`", text)[1].replace('"', "").split()


def with_their_own(requirements):
    """Return the names of all distributions that pip would install."""
    left, seen = [Requirement(one) for one in requirements], set()
    while left:
        one = left.pop()
        for extra in ("", *one.extras):
            name = canonicalize_name(one.name)
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                wanted = metadata.requires(name) or ()
            except metadata.PackageNotFoundError:  # for another Python or system
                continue
            further = map(Requirement, wanted)
            left += [
                found
                for found in further
                if found.marker is None or found.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in seen}


class Installed(PathFinder):
    """Finds only modules of some distributions."""

    hidden = frozenset()

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if path is None and fullname in cls.hidden:
            return None
        return PathFinder.find_spec(fullname, path, target)


def run_with(name, requirements):
    """Run a page in this process, which has imported little so far."""
    there = with_their_own(requirements)
    Installed.hidden = {
        module
        for module, owners in metadata.packages_distributions().items()
        if not there & {canonicalize_name(owner) for owner in owners}
    }
    sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
    for module in [one for one in sys.modules if one.partition(".")[0] in Installed.hidden]:
        del sys.modules[module]
    docs_pages.run(name, ".")


def run_apart(name, requirements, folder):
    code = f"from tests.product.test_docs_needs import run_with; run_with({name!r}, {requirements})"
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_needs_what_it_says(name, tmp_path):
    ran = run_apart(name, said(TUTORIALS[name]), tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_a_package_that_is_not_named_is_missed(tmp_path):
    ran = run_apart("tutorials/images.md", ["zarr-dask"], tmp_path)
    assert "pip install 'zarr-dask[ome]'" in ran.stderr
