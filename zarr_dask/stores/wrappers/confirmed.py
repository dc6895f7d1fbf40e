"""Puts that are confirmed by a look at the store, which may acknowledge what it has not kept.

`Confirmed` is for metadata, whoever changes them: each put is followed by one request. Stored
objects of a job are confirmed by the job, which has their tags (``confirm=True``), and the metadata
that it writes by this wrapper.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from zarr_dask.errors import StoreError
from zarr_dask.stores.base import Buffer, Store
from zarr_dask.stores.put_tags import Version, noting_tags, version_at
from zarr_dask.stores.wrapper import StoreWrapper
from zarr_dask.stores.wrappers.base import ForwardedReads

__all__ = ["Confirmed", "confirmed_if", "is_confirmed"]

_READ_BACK = 1 << 20
"""Bytes of the largest value that is read back; of larger ones length and ETag are compared."""


@dataclass(frozen=True)
class Confirmed(ForwardedReads):
    """A wrapper that looks at each value right after it was put.

    Values of at most 1 MiB, as metadata are, are read back and compared. Of larger ones the length
    is compared, and the ETag if the put had one. A conditional put, as of attributes, may have been
    followed by one of another process, which is no error: what differs is one where it is a part of
    what was put, what was there before, or no metadata.

    Before an append writes its first object, the metadata that it has read are put once more on the
    condition that no others are there: a store that answers with older ones for a while would let
    it write over the elements of an append that has ended.

    Parameters
    ----------
    store
        Any store.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> from zarr_dask.stores import Confirmed, MemoryStore
    >>> group = zd.create_group(Confirmed(MemoryStore()))
    >>> group.attrs["title"] = "run 7"  # is in the store, or an error
    """

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Put a value and look at it; see `zarr_dask.stores.base.Store.set`.

        Raises
        ------
        StoreError
            If there is none, or another one.
        """
        with noting_tags() as tags:
            self.store.set(key, buffers)
        nbytes = sum(map(len, buffers))
        if nbytes > _READ_BACK:
            tag = next(iter(tags.values()), "")
            found = version_at(self.store, key, tag)
            if found is None or not found.may_be(nbytes, tag):
                raise self._lost(key, nbytes, found)
            return
        value = self.store.get(key)
        if value is None or b"".join(buffers) != value:
            raise self._lost(key, nbytes, None if value is None else Version(len(value)))

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """Put a value on a condition and look at it; see `ConditionalStore`.

        Raises
        ------
        StoreError
            If there is none, a part of it, or the value that was there before.
        """
        if not super().set_if(key, buffers, tag):
            return False
        value, now = self.get_tagged(key)
        text = b"".join(buffers)
        if value is None:
            raise self._lost(key, len(text), None)
        if value != text and (now == tag or _is_damaged(value, text)):
            raise self._lost(key, len(text), Version(len(value)), is_old=now == tag)
        return True

    def _lost(
        self, key: str, nbytes: int, found: Version | None, *, is_old: bool = False
    ) -> StoreError:
        got = "no such value" if found is None else f"{found.nbytes:,} bytes"
        if found is not None and (is_old or found.nbytes >= nbytes):
            got += " that were not put" if not is_old else " that were there before"
        return StoreError(
            f"{self.url}: the store acknowledged {key!r}, expected {nbytes:,} bytes, got {got}. It "
            "has lost, cut or misplaced them, or another process has changed or removed them at "
            "the same time. Look at the store, then repeat the call."
        )


def _is_damaged(value: Buffer, text: bytes) -> bool:
    """True if no process has put a value after a text: it is a part of that, or no metadata."""
    return text.startswith(value) or (_is_json(text) and not _is_json(value))


def _is_json(text: Buffer) -> bool:
    try:
        json.loads(bytes(text))
    except (ValueError, RecursionError):
        return False
    return True


def is_confirmed(store: Store) -> bool:
    """True if a store is wrapped by `Confirmed`, whatever wraps that."""
    while isinstance(store, StoreWrapper) and not isinstance(store, Confirmed):
        store = store.store
    return isinstance(store, Confirmed)


def confirmed_if(wanted: bool, store: Store) -> Store:
    """Return a store whose puts are confirmed if that is wanted; else the store itself."""
    return Confirmed(store) if wanted else store
