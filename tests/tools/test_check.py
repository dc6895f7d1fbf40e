"""``make check`` finds the tests of what has changed."""

import pytest

from tools.check import select

PRESENT = [
    "tests/test_layers.py",
    "tests/test_errors.py",
    "tests/stores/test_open.py",
    "tests/stores/backends/test_http.py",
    "tests/stores/backends/test_zip.py",
    "zarr_dask/stores/backends/http.py",
    "zarr_dask/errors.py",
]
LAYERS = ["tests/test_layers.py"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([], []),
        (["docs/stores.md", "Makefile"], []),
        (["tests/stores/backends/test_zip.py"], ["tests/stores/backends/test_zip.py"]),
        (["zarr_dask/errors.py"], ["zarr_dask/errors.py", "tests/test_errors.py"]),
        (
            ["zarr_dask/stores/backends/http.py", "tests/stores/test_open.py"],
            [
                "zarr_dask/stores/backends/http.py",
                "tests/stores/test_open.py",
                "tests/stores/backends/test_http.py",
                "tests/stores/backends/test_zip.py",
            ],
        ),
    ],
    ids=["nothing", "no code", "a test", "a module of the root", "a module of a folder"],
)
def test_the_nearest_come_first(changed, expected):
    assert select(changed, PRESENT) == [*expected, *LAYERS]
