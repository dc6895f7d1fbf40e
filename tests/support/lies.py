"""Lies of stores: what lies at a key after a PUT was acknowledged, and is not what was put."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from zarr_dask.stores.base import Store


class Put(NamedTuple):
    """One object that was put."""

    store: Store
    """The store behind the one that lies."""
    key: str
    value: bytes
    before: bytes
    """What an earlier job has put there."""
    other: str
    """Key of another object."""

    def holds(self, value: bytes) -> None:
        """Let the store hold something else at the key."""
        self.store.set(self.key, [value])


def _elsewhere(put: Put) -> None:
    put.store.delete(put.key)
    put.store.set(f"{put.key}0", [put.value])


def _middle(value: bytes, mask: int) -> bytes:
    at = len(value) // 2
    return value[:at] + bytes([value[at] ^ mask]) + value[at + 1 :]


OF_LENGTH: dict[str, Callable[[Put], object]] = {
    "lost": lambda put: put.store.delete(put.key),
    "empty": lambda put: put.holds(b""),
    "halved": lambda put: put.holds(put.value[: len(put.value) // 2]),
    "a byte less": lambda put: put.holds(put.value[:-1]),
    "a byte more": lambda put: put.holds(put.value + b"\0"),
    "twice": lambda put: put.holds(put.value * 2),
    "elsewhere": _elsewhere,
}
"""What a look at the length reveals."""
OF_BYTES: dict[str, Callable[[Put], object]] = {
    "zeroed": lambda put: put.holds(bytes(len(put.value))),
    "a bit flipped": lambda put: put.holds(_middle(put.value, 1)),
    "a byte flipped": lambda put: put.holds(_middle(put.value, 0xFF)),
    "half old": lambda put: put.holds(
        put.value[: len(put.value) // 2] + put.before[len(put.value) // 2 :]
    ),
    "the older": lambda put: put.holds(put.before),
    "another": lambda put: put.holds(bytes(put.store.get(put.other) or put.before)),
}
LIES = OF_LENGTH | OF_BYTES
