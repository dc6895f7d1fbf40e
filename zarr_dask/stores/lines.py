"""Lines of a value, read piece by piece.

A file with holes costs its author nothing, so a value that a stranger has made is read no further
than to the first line that is too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from zarr_dask.stores.base import Range, Store, get_start, open_value

__all__ = ["lines_of"]

_PIECE = 1 << 20


def lines_of(store: Store, key: str, longest: int) -> Iterator[bytes] | None:
    r"""Return the lines of a value, which are read as they are taken; None if there is no value.

    Parameters
    ----------
    store, key
        Location of the value.
    longest
        Bytes of a line. Of the first one that is much longer, the beginning is the last line.

    Raises
    ------
    StoreError
        If the store fails; also raised while lines are taken.
    ObjectReplacedError
        If a value of more than a mebibyte is replaced while lines are taken.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore
    >>> list(lines_of(MemoryStore({"a": b"1\n2\n"}), "a", 80))
    [b'1', b'2', b'']
    """
    start = get_start(store, key, _PIECE)
    if start is None:
        return None
    first = bytes(start)
    return _split((first,) if len(first) < _PIECE else _pieces(store, key), longest)


def _pieces(store: Store, key: str) -> Iterator[bytes]:
    size = store.size(key) or 0
    with open_value(store, key) as value:
        for begin in range(0, size, _PIECE):
            found = value.get_ranges([Range(begin, min(begin + _PIECE, size))])
            yield from map(bytes, found or ())


def _split(pieces: Iterable[bytes], longest: int) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > longest:
            break
    yield rest
