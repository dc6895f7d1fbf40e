"""URLs with logins and queries in them: used, or refused, and shown to nobody."""

from __future__ import annotations

import json
import pickle
import traceback
from urllib.parse import urlsplit

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.http_server import Files, serving
from zarr_dask.errors import StoreError
from zarr_dask.stores import open_store
from zarr_dask.stores.config import to_config

SECRET = "a-secret-that-nobody-may-see"  # noqa: S105  (of no use)
HOST = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"http://{SECRET}@{HOST}/a", {"backend": "fsspec"}),
        (f"http://{SECRET}@{HOST}/a", {"backend": "obstore"}),
        (f"http://me:{SECRET}@{HOST}/a", {"backend": "obstore"}),
        (f"http://{HOST}/a?signature={SECRET}", {"backend": "fsspec"}),
        (f"http://{HOST}/a?signature={SECRET}", {"backend": "obstore"}),
        (f"filecache::http://{SECRET}@{HOST}/a", {}),
        (f"filecache::http://me:{SECRET}@{HOST}/a", {}),
        (f"simplecache::ftp://me:{SECRET}@{HOST}/a", {}),
        ("s3://bucket/a", {"anon": True, "endpoint_url": f"http://me:{SECRET}@{HOST}"}),
        ("s3://bucket/a", {"anon": True, "client_kwargs": {"endpoint_url": f"//{SECRET}@{HOST}"}}),
        ("az://bucket/a", {"account_name": "me", "endpoint_url": f"http://{HOST}/?sig={SECRET}"}),
        ("simplecache::s3://bucket/a", {"s3": {"endpoint_url": f"http://me:{SECRET}@{HOST}"}}),
    ],
)
def test_what_would_be_shown_is_refused(url, options):
    with pytest.raises(StoreError, match=r"storage_options|leave backend|by their own names") as e:
        open_store(url, options)
    assert SECRET not in "".join(traceback.format_exception_only(e.value))


class Signed(Files):
    """Answers nobody who has no signature."""

    def do_GET(self):  # noqa: N802
        if urlsplit(self.path).query == f"signature={SECRET}":
            super().do_GET()
        else:
            self.answer(403, b"no signature")

    do_HEAD = do_GET  # noqa: N815


def test_the_signed_url_of_an_archive(tmp_path):
    values = np.arange(12).reshape(3, 4)
    with zd.ZipWriter(tmp_path / "a.zip") as archive:
        zd.create_array(archive, shape=(3, 4), dtype="i8", chunks=(1, 4))[...] = values
    with serving(Signed, {"a.zip": (tmp_path / "a.zip").read_bytes()}) as (url, _):
        place = f"zip::{url}/a.zip"
        store = open_store(f"{place}?signature={SECRET}", {"retry": None})
        np.testing.assert_array_equal(zd.open_array(store)[...], values)
        again = pickle.loads(pickle.dumps(store))
        assert (again, again.identity) == (store, store.identity)
        np.testing.assert_array_equal(zd.open_array(again)[...], values)
        shown = (repr(store), store.url, store.identity, json.dumps(to_config(store)))
        for text in (*shown, pickle.dumps(store).decode("latin1")):
            assert SECRET not in text
        with pytest.raises(StoreError) as refused:
            open_store(f"{place}?signature={SECRET}1", {"retry": None}).get("zarr.json")
        assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_places_with_other_queries_are_others():
    """A query may say which of many files is meant, so that lazy arrays must have other names."""
    one, other = (open_store(f"simplecache::http://{HOST}/a?id={n}", {}) for n in (1, 2))
    assert one.url == other.url
    assert one.identity != other.identity
