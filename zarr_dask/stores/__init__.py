"""Stores: bytes by key, and options as wrappers around them."""

from zarr_dask.stores.base import WHOLE, Buffer, Listing, Range, Store
from zarr_dask.stores.cache import Cache
from zarr_dask.stores.local import LocalStore
from zarr_dask.stores.memory import MemoryStore
from zarr_dask.stores.retry import Retrying, RetryPolicy
from zarr_dask.stores.urls import Location, open_store
from zarr_dask.stores.wrappers import Faulty, ReadOnly, Recording
from zarr_dask.stores.zip import ZipStore
from zarr_dask.stores.zip_writer import ZipWriter

__all__ = [
    "WHOLE",
    "Buffer",
    "Cache",
    "Faulty",
    "Listing",
    "LocalStore",
    "Location",
    "MemoryStore",
    "Range",
    "ReadOnly",
    "Recording",
    "RetryPolicy",
    "Retrying",
    "Store",
    "ZipStore",
    "ZipWriter",
    "open_store",
]
