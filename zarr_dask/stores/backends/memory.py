"""Values in the memory of this process.

A `MemoryStore` pickles as an identity. Unpickled in the same process it is the same store; in
another process every use of it raises.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, MutableMapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from zarr_dask.errors import ConditionalWriteError, StoreError, StoreOutOfReachError
from zarr_dask.stores.base import WHOLE, Buffer, Listing, Range, ReadPolicy, check_key
from zarr_dask.stores.compare_and_swap import content_tag

__all__ = ["MemoryStore", "in_process_reference", "this_process", "unreachable_store"]


class MemoryStore:
    """A mapping from keys to bytes.

    Parameters
    ----------
    values
        The mapping that holds the values; a new dict by default.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore, Range
    >>> store = MemoryStore()
    >>> store.set("a/b", [b"12", b"34"])
    >>> store.get_ranges([("a/b", Range(1, 3)), ("a/b", Range(-1)), ("c", Range(0))])
    [b'23', b'4', None]
    """

    coalescing: ClassVar[ReadPolicy] = ReadPolicy(gap=1 << 16, largest=1 << 26)
    has_cheap_recursive_listing: ClassVar[bool] = True
    is_in_memory: ClassVar[bool] = True

    def __init__(self, values: MutableMapping[str, bytes] | None = None) -> None:
        self.values: MutableMapping[str, bytes] = {} if values is None else values
        self.identity = os.urandom(8).hex()
        self._lock = threading.Lock()
        _LIVING[self.identity] = self

    @staticmethod
    def over(values: MutableMapping[str, bytes]) -> MemoryStore:
        """Return the store over a mapping; the same one as long as it is referenced."""
        for store in list(_LIVING.values()):
            if store.values is values:
                return store
        return MemoryStore(values)

    @property
    def url(self) -> str:
        """``memory://`` and the identity of the store."""
        return f"memory://{self.identity}"

    @property
    def lasting_name(self) -> str:
        """A name that stays the same for a mapping as long as it exists, for any number of stores.

        A dict has one while its process lives, a mapping over a file system has its URL. Other
        mappings have only a generic name, because those over files are new objects in each process.
        """
        held = getattr(self.values, "buffers", self.values)
        fs, root = getattr(held, "fs", None), getattr(held, "root", None)
        if fs is not None and root is not None:
            return str(fs.unstrip_protocol(root))
        return f"memory-{os.getpid()}-{id(held)}" if type(held) is dict else "memory"

    def __repr__(self) -> str:
        return f"MemoryStore({self.identity}, {len(self.values)} values)"

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return _same_store, (self.identity, os.getpid())

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        check_key(key)
        value: Any = self.values.get(key)
        if value is not None and type(value) is not bytes:
            self._check_value(key, value)
        return cast("Buffer | None", value)

    def _check_value(self, key: str, value: Any) -> None:
        """Raise if a value is not bytes; arrays of bytes, as in some mappings, are accepted."""
        try:
            memoryview(value)
        except TypeError:
            raise self._no_store(f"the value of {key!r}", value) from None

    def _no_store(self, what: str, found: object) -> StoreError:
        return StoreError(
            f"{self.url}: {what} is of the type {type(found).__name__}; a mapping is a store if "
            "its keys are texts and its values bytes."
        )

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.get(key)

    def get_start(self, key: str, nbytes: int) -> Buffer | None:
        """See `zarr_dask.stores.base.get_start`; no other memory is needed to look at a value."""
        value = self.get(key)
        return value if value is None or len(value) <= nbytes else memoryview(value)[:nbytes]

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        found: list[Buffer | None] = []
        for key, wanted in requests:
            value = self.get(key)
            found.append(None if value is None else value[wanted.start : wanted.stop])
        return found

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        check_key(key)
        self.values[key] = b"".join(buffers)

    def check_conditional(self, key: str) -> None:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        check_key(key)
        if hasattr(self.values, "fs"):
            raise ConditionalWriteError(
                f"{self.url} is a mapping over a file system, where nothing can be put on the "
                "condition that nobody has put another value meanwhile. Give the path or URL."
            )

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        (value,) = self.get_ranges([(key, wanted)])
        return value, content_tag(value)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        with self._lock:
            if content_tag(self.get(key)) != tag:
                return False
            self.set(key, buffers)
        return True

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        check_key(key)
        with self._lock:  # not between the look and the put of a conditional one
            self.values.pop(key, None)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        from zarr_dask.stores.key_names import in_order_of_removal

        with self._lock:
            for keys in in_order_of_removal(self.list(prefix), 1):
                self.values.pop(keys[0], None)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        keys: tuple[Any, ...] = tuple(self.values)
        try:
            return iter([key for key in keys if key.startswith(prefix)])
        except AttributeError:
            odd = next(key for key in keys if not isinstance(key, str))
            raise self._no_store(f"the key {odd!r}", odd) from None

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        return Listing.below(prefix, self.list(prefix))

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        value = self.get(key)
        return None if value is None else len(value)


_LIVING: weakref.WeakValueDictionary[str, MemoryStore] = weakref.WeakValueDictionary()


def _same_store(identity: str, process: int) -> MemoryStore:
    living = _LIVING.get(identity) if process == os.getpid() else None
    if living is not None:
        return living
    return unreachable_store(
        f"the memory store {identity} lives in another process or is gone; use a local "
        "or remote store to share data between processes."
    )


def unreachable_store(message: str) -> MemoryStore:
    """Return a store that raises an error with the message whenever it is used."""
    return MemoryStore(_UnreachableStore(message))


class _ProcessName:
    """A unique name of this process, also across machines and forks."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.name = os.urandom(8).hex()


_PROCESS = _ProcessName()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROCESS.renew)
_Made = TypeVar("_Made")


def this_process() -> str:
    """Return the name of this process, to be passed to `in_process_reference`."""
    return _PROCESS.name


def in_process_reference(process: str, url: str, make: Callable[[], _Made]) -> _Made | MemoryStore:
    """Return a store in its own process; in others, one that raises an error when it is used.

    Parameters
    ----------
    process
        Name of the process, from `this_process`.
    url
        URL of the store, for messages.
    make
        Creates the store, in its process.
    """
    if process == _PROCESS.name:
        return make()
    return unreachable_store(
        f"{url} is in the memory of another process; use a local or remote store to share data "
        "between processes."
    )


class _UnreachableStore(MutableMapping[str, bytes]):
    """The values of a store in another process: every access raises.

    Unpickling must not raise: in a worker that would end the connection to the scheduler, and the
    job would hang.
    """

    def __init__(self, message: str) -> None:
        self._message = message

    def _refuse(self) -> StoreError:
        return StoreOutOfReachError(self._message)

    def __getitem__(self, key: str) -> bytes:
        raise self._refuse()

    def __setitem__(self, key: str, value: bytes) -> None:
        raise self._refuse()

    def __delitem__(self, key: str) -> None:
        raise self._refuse()

    def __iter__(self) -> Iterator[str]:
        raise self._refuse()

    def __len__(self) -> int:
        return 0

    def get(self, key: str, default: object = None) -> bytes:  # noqa: ARG002
        """Raise `StoreOutOfReachError`."""
        raise self._refuse()
