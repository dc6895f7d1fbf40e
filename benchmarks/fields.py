"""The data that everything is measured with, and how it is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

__all__ = ["LAYOUTS", "LayoutCase", "field"]


@lru_cache(maxsize=1)
def field(n: int = 512) -> np.ndarray:
    """A smooth field with noise in its last bits, float32: compresses about as simulations do."""
    x, y, z = np.ogrid[0:n, 0:n, 0:n]
    smooth = np.sin(x / 37) * np.cos(y / 23) + np.sin((x + z) / 61)
    noise = np.random.default_rng(0).normal(scale=1e-3, size=(n, n))
    values = (smooth + noise).astype("f4")
    values.flags.writeable = False  # every case is given the same one
    return values


@dataclass(frozen=True)
class LayoutCase:
    """A layout to read and write."""

    name: str
    codec: str
    chunk: int
    shard: int | None

    @property
    def slug(self) -> str:
        """The name of the layout as part of a name."""
        return f"{self.codec}-{self.chunk}" + (f"-in-{self.shard}" if self.shard else "")

    @property
    def codecs(self) -> list[dict]:
        if self.codec == "blosc":
            return [
                {
                    "name": "blosc",
                    "configuration": {
                        "cname": "lz4",
                        "clevel": 5,
                        "shuffle": "shuffle",
                        "typesize": 4,
                        "blocksize": 0,
                    },
                }
            ]
        return [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]


LAYOUTS = [
    LayoutCase(
        f"{codec}, {chunk}^3 chunks" + (f" in {shard}^3 shards" if shard else ""),
        codec,
        chunk,
        shard,
    )
    for codec in ("blosc", "zstd")
    for shard in (256, None)
    for chunk in (64, 32)
]
