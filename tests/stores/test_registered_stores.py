"""Stores of other packages by the scheme of a URL."""

import pytest

import zarr_dask as zd
from zarr_dask.errors import StoreError
from zarr_dask.stores import MemoryStore, Retrying, open_store


class Shelf(MemoryStore):
    given = None

    @classmethod
    def from_url(cls, url, storage_options):
        cls.given = (url, storage_options)
        return {} if url.endswith("nothing") else cls()


zd.register_store("tests-shelf", Shelf)


def test_from_url_gets_the_url_and_the_options():
    store = open_store("TESTS-shelf://x/y?z", {"depth": 3, "retry": {"attempts": 2}})
    assert Shelf.given == ("tests-shelf://x/y?z", {"depth": 3})
    assert isinstance(store, Retrying)
    assert isinstance(store.store, Shelf)
    assert isinstance(open_store("tests-shelf://x"), Shelf)


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("tests-shelf://nothing", {}, "returned dict, expected a store"),
        ("tests-shelf://x", {"depth": object()}, "depth"),
        ("tests-shelf://x", {"retry": {"attempt": 2}}, "attempt"),
    ],
)
def test_what_is_refused(url, options, says):
    with pytest.raises((StoreError, TypeError, ValueError), match=says):
        open_store(url, options)


@pytest.mark.parametrize(
    ("scheme", "cls", "says"),
    [
        ("s3", Shelf, "served by this package"),
        ("file", Shelf, "served by this package"),
        ("a b", Shelf, "in lower case"),
        ("mydb", MemoryStore, "from_url"),
        ("tests-shelf", type("Other", (Shelf,), {}), "choose another name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_schemes_that_cannot_be_registered(scheme, cls, says):
    with pytest.raises((TypeError, ValueError), match=says):
        zd.register_store(scheme, cls)
