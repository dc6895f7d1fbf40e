"""Tags that a store returns for puts, to be compared with those that it lists later.

An object store answers a put with the ETag of the value that is there now. A job that keeps them
finds what has landed on its objects afterwards, of the same size too, by one listing
(`zarr_dask.journal.receipts.collect`).

A tag says nothing where there is none: in files, through fsspec, for a value that the service has
copied itself. Neither does one of another length than the listed one: some services compute the tag
of a value that was sent in parts in two ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from zarr_dask.stores.base import Store, SupportsListTags, etag_of, list_sizes

__all__ = ["Version", "bare_tag", "note_tag", "noting_tags", "version_at", "versions_below"]


class Version(NamedTuple):
    """A value as a listing shows it."""

    nbytes: int
    tag: str = ""
    """Its ETag; empty if the listing has none."""

    def may_be(self, nbytes: int, tag: str) -> bool:
        """True unless size or tag show that another value was put.

        Examples
        --------
        >>> listed = Version(4, "d41d8")
        >>> listed.may_be(4, "d41d8"), listed.may_be(4, "0cc17"), listed.may_be(4, "")
        (True, False, True)
        """
        is_comparable = len(tag) == len(self.tag)
        return self.nbytes == nbytes and (not is_comparable or tag == self.tag)


def bare_tag(e_tag: str | None) -> str:
    """Return an ETag without its quotes, which some listings leave out.

    Examples
    --------
    >>> bare_tag('"d41d8"'), bare_tag('W/"d41d8"'), bare_tag(None)
    ('d41d8', 'd41d8', '')
    """
    return (e_tag or "").removeprefix("W/").strip('"')


def versions_below(store: Store, prefix: str) -> dict[str, Version]:
    """Return what one listing says of all values below a prefix, by key below it."""
    start = len(prefix)
    if isinstance(store, SupportsListTags) and (listed := store.list_tags(prefix)) is not None:
        found = dict(listed)
        if None not in found.values():
            return {
                key[start:]: Version(tag[1], bare_tag(tag[0]))
                for key, tag in found.items()
                if tag is not None
            }
    return {key[start:]: Version(nbytes) for key, nbytes in list_sizes(store, prefix)}


def version_at(store: Store, key: str, tag: str) -> Version | None:
    """Return what one request says of a value; None if it is absent.

    Parameters
    ----------
    store, key
        Where it is.
    tag
        What the store has returned for its put; empty if it returns none.
    """
    found = etag_of(store, key) if tag else None
    if isinstance(found, tuple):  # a store that returns tags has them
        e_tag, nbytes = found
        return Version(int(nbytes), bare_tag(e_tag))
    size = store.size(key)
    return None if size is None else Version(size)


_TAGS: ContextVar[dict[str, str] | None] = ContextVar("zarr_dask_put_tags", default=None)


@contextmanager
def noting_tags() -> Iterator[dict[str, str]]:
    """Gather the tags of what is put in this context, by URL; complete when all puts have ended.

    Those that are gathered within another such context are in both.
    """
    tags: dict[str, str] = {}
    around = _TAGS.get()
    token = _TAGS.set(tags)
    try:
        yield tags
    finally:
        _TAGS.reset(token)
        if around is not None:
            around.update(tags)


def note_tag(url: str, key: str, e_tag: str | None) -> None:
    """Say which tag the store has returned for a put."""
    tags = _TAGS.get()
    if tags is not None:
        tags[f"{url}/{key}"] = bare_tag(e_tag)
