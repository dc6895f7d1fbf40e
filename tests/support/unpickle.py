"""A script that opens a pickled store in a new process."""

from __future__ import annotations

UNPICKLE = """
import pickle, sys
from zarr_dask.errors import StoreError
try:
    store = pickle.loads(bytes.fromhex(sys.argv[1]))  # must not fail: see MemoryStore
    value = store.get("a")
except StoreError as error:
    print("StoreError:", error)
else:
    print("value:", bytes(value).decode())
"""
