"""Stores and nodes of zarr-python, as they are passed to dask's functions for Zarr.

A local store is replaced by this package's own, which is faster. A memory store is shared with
zarr-python: both see each other's writes. Any other store is used through zarr-python's own
asynchronous interface.

zarr-python is never imported here: a caller that passes one of its objects has done so. Icechunk's
sessions are such stores, for Zarr v3 only: any key that is not one of v3 raises an error there. A
writable session is a `SessionStore`: tasks in other processes write to forks of it.

zarr-python reports a missing bucket as an empty one. So keys that are missing from its remote
stores are requested once more from the library below it, which tells what is missing.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from zarr_dask._util.threads import MAX_CONCURRENT_REQUESTS
from zarr_dask.errors import StoreError
from zarr_dask.stores.backends.fsspec_open_file import is_in_memory
from zarr_dask.stores.backends.local import LocalStore
from zarr_dask.stores.backends.memory import MemoryStore, in_process_reference, this_process
from zarr_dask.stores.base import (
    WHOLE,
    Buffer,
    Listing,
    Range,
    ReadPolicy,
    Store,
    check_key,
    join,
)
from zarr_dask.stores.error_mapping import library_errors
from zarr_dask.stores.key_names import in_order_of_removal
from zarr_dask.stores.secrets import redacted
from zarr_dask.stores.wrappers.base import ReadOnly

__all__ = [
    "SessionStore",
    "ZarrPythonStore",
    "answered_at_once",
    "place_in_zarr_python",
    "prototype",
    "store_of_zarr_python",
    "words_of",
]


_BRANCH = "main"
_PROBE = "probe"  # any key shows if there is a bucket
_NO_KEY = "invalid zarr key format"  # Icechunk's error for keys that are not of Zarr v3
_NO_PREFIX = "bad key prefix"  # and for prefixes without a node
_BEYOND = "is out of bounds"  # and for ranges that end behind a value
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_LOST = re.compile(r"\b(?:NoSuchBucket|ContainerNotFound)\b")
"""Error codes of services for a missing bucket."""


def place_in_zarr_python(given: Any) -> tuple[Any, str] | None:
    """Return the store and path of an array, group or location of zarr-python; None for others."""
    zarr = sys.modules.get("zarr")
    if zarr is None or not hasattr(zarr, "storage"):
        return None
    if isinstance(given, zarr.Array | zarr.Group | zarr.storage.StorePath):
        return given.store, given.path
    return None


def store_of_zarr_python(given: Any) -> Store | None:
    """Return the store for one of zarr-python, or for a dict filled by one; None for others.

    A session of Icechunk stands for its store, a repository for what its main branch holds now.
    """
    zarr = sys.modules.get("zarr")
    if zarr is None or not hasattr(zarr, "storage"):
        return None
    if isinstance(given, dict):
        first = next(iter(given.values()), None)
        buffers = isinstance(first, zarr.core.buffer.Buffer)
        return MemoryStore.over(_PrototypeBuffers.over(given)) if buffers else None
    repository: Any = getattr(sys.modules.get("icechunk"), "Repository", None)
    if repository is not None and isinstance(given, repository):
        try:
            given = given.readonly_session(_BRANCH)
        except _icechunk_errors() as error:
            raise StoreError(
                f"the repository has no branch {_BRANCH!r} to read ({words_of(error)}): pass a "
                "session, repository.readonly_session(...) or .writable_session(...)."
            ) from error
    session: Any = getattr(sys.modules.get("icechunk"), "Session", None)
    if session is not None and isinstance(given, session):
        given = given.store
    if not isinstance(given, zarr.abc.store.Store):
        return None
    store: Store
    if type(given) is zarr.storage.LocalStore:
        store = LocalStore(str(given.root.absolute()))
    elif type(given) is zarr.storage.MemoryStore:
        store = MemoryStore.over(_PrototypeBuffers.over(given._store_dict))  # noqa: SLF001  (no other way)
    else:
        store = _kind_of(given)(given)
    return ReadOnly(store) if given.read_only else store


def _kind_of(given: Any) -> type[ZarrPythonStore]:
    if _is_session(given):
        return SessionStore
    of_tifffile = type(given).__module__.partition(".")[0] == "tifffile"
    return DecodingStore if of_tifffile else ZarrPythonStore


class _PrototypeBuffers(MutableMapping[str, bytes]):
    """The values of a zarr-python memory store, which are of its own buffer type."""

    _living: ClassVar[weakref.WeakValueDictionary[int, _PrototypeBuffers]] = (
        weakref.WeakValueDictionary()
    )

    def __init__(self, buffers: MutableMapping[str, Any]) -> None:
        self.buffers = buffers
        self._living[id(buffers)] = self  # keeps the id of this mapping in use

    @staticmethod
    def over(buffers: MutableMapping[str, Any]) -> _PrototypeBuffers:
        """Return the only view of a mapping, so that equal locations have equal stores."""
        return _PrototypeBuffers._living.get(id(buffers)) or _PrototypeBuffers(buffers)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: str) -> bytes:
        return bytes(self.buffers[key].to_bytes())

    def __setitem__(self, key: str, value: bytes) -> None:
        self.buffers[key] = prototype().buffer.from_bytes(value)

    def __delitem__(self, key: str) -> None:
        del self.buffers[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.buffers))

    def __len__(self) -> int:
        return len(self.buffers)


def prototype() -> Any:
    """Return the classes of buffers that zarr-python's stores are asked to give."""
    return sys.modules["zarr"].core.buffer.default_buffer_prototype()


_NEAR = ReadPolicy(gap=1 << 20, largest=1 << 24)
_FAR = replace(_NEAR, max_concurrent_requests=MAX_CONCURRENT_REQUESTS)
_SERVICES = {"S3Store", "GCSStore", "AzureStore", "HTTPStore"}
"""Stores of obstore whose values are not on this machine."""


def _is_far(store: Any) -> bool:
    """True if requests of a store take long; of Icechunk's storage nothing is told here."""
    inner = type(getattr(_innermost(store), "store", None))
    return inner.__module__.startswith("obstore") and inner.__name__ in _SERVICES


async def _size_in_icechunk(store: Any, key: str) -> int:
    """Return the size of a value without a request for it; 0 if it is not known to exist."""
    # Icechunk 1 says by a KeyError that there is no node
    absent: tuple[type[Exception], ...] = (*_icechunk_errors(), *_ABSENT, KeyError)
    try:
        return int(await store.getsize(key))
    except absent:
        return 0


def _innermost(store: Any) -> Any:
    """Return the store behind wrappers of zarr-python."""
    while hasattr(store, "_store"):
        store = store._store  # noqa: SLF001
    return store


def _is_of_icechunk(store: Any) -> bool:
    """True if a store is one of Icechunk, wrapped or not."""
    kind = getattr(sys.modules.get("icechunk"), "IcechunkStore", None)
    while isinstance(kind, type) and store is not None:
        if isinstance(store, kind):
            return True
        store = getattr(store, "_store", None)
    return False


def _is_obstores_memory(store: Any) -> bool:
    inner = type(getattr(store, "store", None))
    return inner.__module__.startswith("obstore") and inner.__name__ == "MemoryStore"


def _same_memory(process: str, url: str, store: Any) -> ZarrPythonStore | MemoryStore:
    return in_process_reference(process, url, partial(ZarrPythonStore, store))


@dataclass(frozen=True, eq=False)
class ZarrPythonStore:
    """Any store of zarr-python, used through its own interface.

    Parameters
    ----------
    store
        The store; picklable if it is.
    """

    store: Any
    _text: str = field(init=False, repr=False)
    """The store as text. It is asked for once: while a value is put, a session of Icechunk holds a
    lock for it, and who waits for that keeps the interpreter's, which the put needs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_text", str(self.store))

    @property
    def coalescing(self) -> ReadPolicy:
        """See `zarr_dask.stores.base.Store.coalescing`; many requests at a time for what is far."""
        return _FAR if _is_far(self.store) or _is_of_icechunk(self.store) else _NEAR

    @property
    def url(self) -> str:
        """The store's own name."""
        return self._text

    @property
    def identity(self) -> str:
        """The store's own name, and its type."""
        return f"{type(self.store).__name__}:{self._text}"

    def __reduce__(self) -> tuple[Any, ...]:
        innermost = _innermost(self.store)
        if hasattr(getattr(innermost, "fs", None), "protocol") and self.is_in_memory:
            return _same_memory, (this_process(), self.url, self.store)
        if self.is_in_memory:
            raise StoreError(
                f"{self.url} lives in this process: what another one wrote into a copy of it would "
                "be lost. Use a local or remote store to share data between processes."
            )
        return ZarrPythonStore, (self.store,)

    @property
    def is_in_memory(self) -> bool:
        """True if values are only in the memory of this process."""
        innermost = _innermost(self.store)
        if hasattr(innermost, "_store_dict") or _is_obstores_memory(innermost):
            return True
        fs = getattr(innermost, "fs", None)
        return hasattr(fs, "protocol") and is_in_memory(fs)

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.get_ranges([(key, WHOLE)])[0]

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        for key, _ in requests:
            check_key(key)
        keys = ", ".join(sorted({key for key, _ in requests}))
        found = list(self._run(_fetched(self.store, requests), "read", keys))
        if None in found and self._is_there(requests[found.index(None)][0]):
            found = list(self._run(_fetched(self.store, requests), "read", keys))
            if None in found and self._is_there(requests[found.index(None)][0]):
                missing = requests[found.index(None)][0]
                raise StoreError(
                    f"cannot read {missing!r} in {self.url}: it is there, but its store says that "
                    "it is not when a part of it is asked for."
                )
        return found

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        check_key(key)
        value = prototype().buffer.from_bytes(b"".join(buffers))
        self._run(self.store.set(key, value), "write", key)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        if self.size(key) is not None:  # file stores would remove a whole folder
            self._run(self.store.delete(key), "delete", key)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        for keys in in_order_of_removal([*self.list(prefix)], 1):
            self.delete(keys[0])

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        found, above = None, prefix
        while found is None:  # Icechunk lists below nodes, not below a node's "c/"
            found = self._run(_gathered(partial(self.store.list_prefix, above)), "list", above)
            if not above:
                break
            above = above.rstrip("/").rpartition("/")[0]
            above = f"{above}/" if above else ""
        if not found:
            self._check_bucket("list", prefix)
        return (key for key in found or () if key.startswith(prefix))

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        keys: set[str] = set()
        prefixes: set[str] = set()
        folder = prefix.rstrip("/")
        names = self._run(_gathered(lambda: self.store.list_dir(prefix)), "list", prefix)
        if not names:
            self._check_bucket("list", prefix)
        nodes_only = _is_of_icechunk(self.store)  # Icechunk fails if "c" is requested as a value
        for name in names or ():
            key = join(folder, name.strip("/"))
            is_folder = next(self.list(f"{key}/"), None) is not None
            if is_folder:
                prefixes.add(f"{key}/")
            # the name alone does not tell if it is a key; some stores list empty prefixes
            if not (is_folder and nodes_only) and self.size(key) is not None:
                keys.add(key)
        return Listing(sorted(keys), sorted(prefixes))

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        if _is_of_icechunk(self.store):
            known: int = self._run(_size_in_icechunk(self.store, key), "look for", key)
            if known:
                return known
        if self.get_ranges([(key, Range(0, 1))])[0] is None:  # `exists` is also true for folders
            return None
        return int(self._run(self.store.getsize(key), "look for", key))

    def _is_there(self, key: str) -> bool:
        """True if a value exists although it was reported missing; it may be new."""
        return self._check_bucket("read", key)

    def _check_bucket(self, verb: str, key: str) -> bool:
        """Raise if a key is missing because the bucket is; return True if its value exists."""
        ask = _asked_again(self.store, key)
        if ask is None:
            return False
        is_there, lost = self._run(_looked_for(ask), verb, key)
        if lost is not None:
            raise StoreError(f"cannot {verb} {key!r} in {self.url}: {lost}") from lost
        return bool(is_there)

    def _run(self, what: Coroutine[Any, Any, Any], verb: str, key: str) -> Any:
        """Wait for a coroutine on zarr-python's event loop in this process."""
        with self.reporting(verb, key):
            return sys.modules["zarr"].core.sync.sync(what)

    @contextmanager
    def reporting(self, verb: str, key: str) -> Iterator[None]:
        """Give errors of the store and its libraries a type, and the key."""
        try:
            yield
        except (*library_errors(), *_obstore_errors()) as error:
            words = redacted(words_of(error), {}) or type(error).__name__
            raise StoreError(f"cannot {verb} {key!r} in {self.url}: {words}") from error
        except _icechunk_errors() as error:
            raise StoreError(f"cannot {verb} {key!r} in {self.url}: {words_of(error)}") from error


class DecodingStore(ZarrPythonStore):
    """A store of tifffile, whose coroutines decode whole chunks and wait for nothing.

    They run in the thread that reads. zarr-python's event loop would decode the chunks of all
    threads one after the other.
    """

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        return [self._part(key, wanted) for key, wanted in requests]

    def _part(self, key: str, wanted: Range) -> Buffer | None:
        check_key(key)
        try:
            with self.reporting("read", key):
                found = answered_at_once(self.store.get(key, prototype()))
        except _ABSENT:
            return None
        except RuntimeError:  # with maxworkers=, it decodes in threads of its own
            return super().get_ranges([(key, wanted)])[0]
        return None if found is None else found[wanted.start : wanted.stop]


def answered_at_once(reading: Coroutine[Any, Any, Any]) -> memoryview | None:
    """Return the buffer of a coroutine of tifffile, which waits for nothing, in this thread.

    Raises
    ------
    RuntimeError
        If it waits for another thread.
    """
    try:
        reading.send(None)
    except StopIteration as ended:
        return None if ended.value is None else memoryview(ended.value.as_buffer_like())
    reading.close()
    raise RuntimeError("tifffile leaves the decoding to another thread")


class SessionStore(ZarrPythonStore):
    """The store of a writable Icechunk session; see `zarr_dask.stores.base.ForkableSession`.

    In another process it is a read-only snapshot of the time of sending, as changes there would be
    lost. Forks, which their owner merges, are writable everywhere.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        if _is_fork(self.store.session):
            return SessionStore, (self.store,)
        return ReadOnly, (self.fork(),)

    def fork(self) -> SessionStore:
        """See `zarr_dask.stores.base.ForkableSession.fork`."""
        try:
            return SessionStore(self.store.session.fork().store)
        except ValueError as error:  # versions before 2, if the session has changes
            raise StoreError(
                f"no fork of {self.url} can be given to other processes ({error}). Commit what was "
                "changed before, use a newer Icechunk, or compute with threads."
            ) from error

    def merge(self, forks: Sequence[Store]) -> None:
        """See `zarr_dask.stores.base.ForkableSession.merge`."""
        sessions = [fork.store.session for fork in forks if isinstance(fork, SessionStore)]
        changed = [session for session in sessions if session.has_uncommitted_changes]
        try:
            if changed:
                self.store.session.merge(*changed)
        except _icechunk_errors() as error:
            raise StoreError(f"cannot merge forks into {self.url}: {words_of(error)}") from error


def _is_session(given: Any) -> bool:
    """True if a store of zarr-python is that of a writable Icechunk session."""
    session: Any = getattr(given, "session", None)
    return hasattr(session, "merge") and hasattr(session, "fork") and not session.read_only


def _is_fork(session: Any) -> bool:
    kind = getattr(sys.modules.get("icechunk"), "ForkSession", None)
    return isinstance(kind, type) and isinstance(session, kind)


def _icechunk_errors() -> tuple[type[Exception], ...]:
    """Return Icechunk's own errors, if it is loaded."""
    error = getattr(sys.modules.get("icechunk"), "IcechunkError", None)
    return (error,) if isinstance(error, type) and issubclass(error, Exception) else ()


def _obstore_errors() -> tuple[type[Exception], ...]:
    """Return obstore's errors, if it is loaded."""
    error = getattr(sys.modules.get("obstore.exceptions"), "BaseError", None)
    return (error,) if isinstance(error, type) and issubclass(error, Exception) else ()


def words_of(error: Exception) -> str:
    """Return the message of Icechunk or obstore, without the trace or debug text behind it."""
    return str(error).partition("\n\ncontext")[0].partition("\n\nDebug source")[0]


def _byte_request(wanted: Range) -> Any:
    requests = sys.modules["zarr"].abc.store
    if wanted == WHOLE:
        return None
    if wanted.start < 0:
        return requests.SuffixByteRequest(-wanted.start)
    if wanted.stop is None:
        return requests.OffsetByteRequest(wanted.start)
    return requests.RangeByteRequest(wanted.start, wanted.stop)


async def _fetched(store: Any, requests: Sequence[tuple[str, Range]]) -> list[bytes | None]:
    """Return parts of values, by one call each: some stores fail in `get_partial_values`."""
    import asyncio  # which local files do not need; loading it takes as long as NumPy

    return await asyncio.gather(*(_fetch(store, key, wanted) for key, wanted in requests))


async def _fetch(store: Any, key: str, wanted: Range) -> bytes | None:
    # Icechunk keeps metadata in memory, and ranges of it are wrong or fail
    whole = key.endswith(".json") and _is_of_icechunk(store)
    try:
        found = await store.get(key, prototype(), None if whole else _byte_request(wanted))
    except _ABSENT:
        return None
    except NotImplementedError:  # tifffile's stores refuse ranges
        if wanted == WHOLE:
            raise
        whole, found = True, await store.get(key, prototype(), None)
    except _icechunk_errors() as error:
        if _NO_KEY in str(error):
            return None  # an invalid key has no value
        if _BEYOND not in str(error):
            raise
        whole, found = True, await store.get(key, prototype(), None)
    if found is None:
        return None
    content = bytes(found.to_bytes())
    return content[wanted.start : wanted.stop] if whole else content


def _asked_again(store: Any, key: str) -> Callable[[], Awaitable[Any]] | None:
    """Return a request for a value without zarr-python; None for stores that are not buckets."""
    while hasattr(store, "_store"):
        store = store._store  # noqa: SLF001  (what a wrapper of zarr-python wraps)
    storage: Any = sys.modules["zarr"].storage
    object_store: Any = getattr(storage, "ObjectStore", ())
    if isinstance(store, storage.FsspecStore):
        cat_file = getattr(store.fs, "_cat_file", None)
        return None if cat_file is None else partial(cat_file, join(store.path, key or _PROBE))
    obstore = sys.modules.get("obstore")
    if obstore is None or not isinstance(store, object_store):
        return None
    return partial(obstore.get_async, store.store, key.rstrip("/") or _PROBE)


async def _looked_for(ask: Callable[[], Awaitable[Any]]) -> tuple[bool, OSError | None]:
    """Return a pair: True if a value exists, and the error if its bucket does not."""
    try:
        await ask()
    except _ABSENT as error:
        answer = getattr(error.__cause__, "response", None)
        told = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
        told = told or getattr(error.__cause__, "error_code", None) or error
        return False, error if _LOST.search(str(getattr(told, "value", told))) else None
    return True, None


async def _gathered(ask: Callable[[], AsyncIterator[str]]) -> list[str] | None:
    """Return a listing; None if there is no node below which it could list."""
    try:
        return [name async for name in ask()]
    except _icechunk_errors() as error:
        if not any(words in str(error) for words in (_NO_KEY, _NO_PREFIX)):
            raise
        return None
