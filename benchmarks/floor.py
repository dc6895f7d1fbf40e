"""The plain loop: read, decode into place; encode, write, rename. No package of arrays involved."""

from __future__ import annotations

import os
import struct
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import google_crc32c
import numpy as np
from numcodecs import blosc, zstd

__all__ = ["read_blocks", "write_blocks"]


def _decode(codec: str, data, out: np.ndarray) -> None:
    (blosc.decompress if codec == "blosc" else zstd.decompress)(data, out)


def _encode(codec: str, chunk: np.ndarray) -> bytes:
    if codec == "blosc":
        return blosc.compress(chunk, b"lz4", 5, 1, 0)
    return zstd.compress(chunk, 1)


def _corners(n: int, step: int) -> list[tuple[int, int, int]]:
    return list(product(range(0, n, step), repeat=3))


def _at(corner, size: int) -> tuple[slice, ...]:
    return tuple(slice(c, c + size) for c in corner)


def read_blocks(root: Path, case, n: int, block: int, threads: int) -> list[np.ndarray]:
    """All blocks of the array, each in memory of its own, in C order."""

    def read(corner) -> np.ndarray:
        out = np.empty((block,) * 3, "f4")
        scratch = np.empty((case.chunk,) * 3, "f4")
        if case.shard:
            key = "/".join(str(c // case.shard) for c in corner)
            data = memoryview((root / "c" / key).read_bytes())
            count = (case.shard // case.chunk) ** 3
            index = struct.unpack_from(f"<{2 * count}Q", data, len(data) - 4 - 16 * count)
            for number, inner in enumerate(_corners(case.shard, case.chunk)):
                offset, nbytes = index[2 * number : 2 * number + 2]
                _decode(case.codec, data[offset : offset + nbytes], scratch)
                out[_at(inner, case.chunk)] = scratch
        else:
            for inner in _corners(block, case.chunk):
                key = "/".join(
                    str((c + i) // case.chunk) for c, i in zip(corner, inner, strict=True)
                )
                _decode(case.codec, (root / "c" / key).read_bytes(), scratch)
                out[_at(inner, case.chunk)] = scratch
        return out

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(read, _corners(n, block)))


def write_blocks(root: Path, case, values: np.ndarray, block: int, threads: int) -> None:
    """Write the array block by block, each stored object under another name first."""

    def put(path: Path, buffers: list) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.part")
        with temporary.open("wb", buffering=0) as file:
            if len(buffers) == 1:
                file.write(buffers[0])
            else:
                os.writev(file.fileno(), buffers)
        temporary.replace(path)

    def write(corner) -> None:
        part = values[_at(corner, block)]
        if case.shard:
            bodies, index, offset = [], [], 0
            for inner in _corners(block, case.chunk):
                body = _encode(case.codec, np.ascontiguousarray(part[_at(inner, case.chunk)]))
                bodies.append(body)
                index += [offset, len(body)]
                offset += len(body)
            encoded = struct.pack(f"<{len(index)}Q", *index)
            checksum = google_crc32c.value(encoded).to_bytes(4, "little")
            key = "/".join(str(c // block) for c in corner)
            put(root / "c" / key, [*bodies, encoded, checksum])
        else:
            for inner in _corners(block, case.chunk):
                body = _encode(case.codec, np.ascontiguousarray(part[_at(inner, case.chunk)]))
                key = "/".join(
                    str((c + i) // case.chunk) for c, i in zip(corner, inner, strict=True)
                )
                put(root / "c" / key, [body])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, _corners(values.shape[0], block)))
