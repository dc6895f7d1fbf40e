"""What a peer cannot do of the matrix, each with what the peer itself says or does.

`REFUSALS` are cases that the peer turns down with an error.  `DEFECTS` are cases that it takes
and gets wrong, by its own reading or by the specification.  Both are left out of what the two
sides share, and both are checked against the peer, so that the list is true or the tests fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from tests.support.interop import tensorstore_peer, zarr_python
from tests.support.interop.cases import Case

PEERS: dict[str, ModuleType] = {peer.NAME: peer for peer in (zarr_python, tensorstore_peer)}

Side = Literal["write", "read"]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Cases that a peer does not take."""

    peer: str
    what: str
    applies: Callable[[Case], bool]
    write: tuple[type[Exception], str] | None = None
    """Error of creating or writing; None where the peer writes such arrays."""
    read: tuple[type[Exception], str] | None = None
    """Error of opening or reading; None where the peer reads such arrays."""

    def error(self, side: Side) -> tuple[type[Exception], str] | None:
        """The error on one side."""
        return self.write if side == "write" else self.read


@dataclass(frozen=True, kw_only=True)
class Defect:
    """Cases that a peer takes but does not hand back as they are."""

    peer: str
    what: str
    side: Side
    applies: Callable[[Case], bool]


def _odd_nan(case: Case) -> bool:
    return case.fill in ("nan-payload", "nan-negative")


def _transposed_before_shards(case: Case) -> bool:
    """Whether the transposed chunk shape does not divide the shard shape as it is."""
    if case.shards is None or case.shards.order is None:
        return False
    inside = case.shards.nested or case.chunks
    permuted = [inside[axis] for axis in case.shards.order]
    return any(size % step for size, step in zip(case.shards.shape, permuted, strict=True))


# The same check, worded anew somewhere between 3.1.6 and 3.4.2, the versions that were tried.
_SHARDS_DO_NOT_DIVIDE = (
    (ValueError, r"Chunk edge length \d+ in dimension \d+ is not divisible by the shard's inner")
    if zarr_python.VERSION >= (3, 2)
    else (ValueError, r"The array's `chunk_shape` .* needs to be divisible by the shard's inner")
)

REFUSALS = (
    Refusal(
        peer="zarr-python",
        what="it divides the shard by the chunk without the transposition that stands before",
        applies=_transposed_before_shards,
        write=_SHARDS_DO_NOT_DIVIDE,
        read=_SHARDS_DO_NOT_DIVIDE,
    ),
    Refusal(
        peer="tensorstore",
        what="codecs over a whole shard",
        applies=lambda case: case.shards is not None and case.shards.after != "none",
        write=(ValueError, "is not compatible with subsequent bytes -> bytes codecs"),
        read=(ValueError, "is not compatible with subsequent bytes -> bytes codecs"),
    ),
    Refusal(
        peer="tensorstore",
        what="two dimensions of one name",
        applies=lambda case: case.id == "v3-names-same",
        write=(ValueError, 'Expected "dimension_names" of .* but received'),
        read=(ValueError, r'Dimension label\(s\) "x" not unique'),
    ),
    Refusal(
        peer="tensorstore",
        what="v2 compressor lz4",
        applies=lambda case: case.format == "v2" and case.codecs == "lz4",
        write=(ValueError, '"compressor": .* "lz4" is not registered'),
        read=(ValueError, '"compressor": .* "lz4" is not registered'),
    ),
    Refusal(
        peer="tensorstore",
        what="v2 compressor lzma",
        applies=lambda case: case.format == "v2" and case.codecs == "lzma",
        write=(ValueError, '"compressor": .* "lzma" is not registered'),
        read=(ValueError, '"compressor": .* "lzma" is not registered'),
    ),
    Refusal(
        peer="tensorstore",
        what="v2 compressor zstd with a checksum",
        applies=lambda case: case.format == "v2" and case.codecs == "zstd-checksum",
        write=(ValueError, '"compressor": Object includes extra members: "checksum"'),
        read=(ValueError, '"compressor": Object includes extra members: "checksum"'),
    ),
    Refusal(
        peer="tensorstore",
        what="v2 filters",
        applies=lambda case: case.filters != "none",
        write=(ValueError, '"filters": filters are not supported'),
        # Where there is no compressor, we write the last filter in its place if it is one of bytes.
        read=(ValueError, '"filters": filters are not supported|"[a-z0-9_]+" is not registered'),
    ),
    Refusal(
        peer="tensorstore",
        what="order F of arrays with less than two dimensions, which it rewrites as C",
        applies=lambda case: case.format == "v2" and case.order is not None and case.ndim < 2,
        write=(ValueError, 'Expected "order" of "F" but received: "C"'),
    ),
)

DEFECTS = (
    Defect(
        peer="zarr-python",
        what='a fill value of any NaN is written as "NaN", the canonical one',
        side="write",
        applies=_odd_nan,
    ),
    Defect(
        peer="zarr-python",
        what="the payload of a half-precision NaN is lost when the fill value is read",
        side="read",
        applies=lambda case: case.dtype.name == "float16" and case.fill == "nan-payload",
    ),
    Defect(
        peer="zarr-python",
        what="bitround (of numcodecs) turns order F to C, so that values change places",
        side="write",
        applies=lambda case: (
            case.filters == "bitround" and case.order is not None and case.ndim > 1
        ),
    ),
)


def cases_of(entry: Refusal, cases: list[Case], side: Side) -> list[Case]:
    """The cases whose error is that of the entry: no entry above it applies."""
    above = REFUSALS[: REFUSALS.index(entry)]
    earlier = [other for other in above if other.peer == entry.peer and other.error(side)]
    return [
        case
        for case in cases
        if entry.applies(case) and not any(other.applies(case) for other in earlier)
    ]


def refused(case: Case, peer: str, side: Side) -> bool:
    """Whether the peer turns the case down."""
    return any(
        entry.peer == peer and entry.error(side) is not None and entry.applies(case)
        for entry in REFUSALS
    )


def mishandled(case: Case, peer: str, side: Side) -> bool:
    """Whether the peer takes the case and gets it wrong."""
    return any(
        entry.peer == peer and entry.side == side and entry.applies(case) for entry in DEFECTS
    )


def shared(cases: list[Case], peer: str, side: Side) -> list[Case]:
    """What both can do: the peer writes it and we read (``"write"``), or the other way round."""
    return [
        case for case in cases if not refused(case, peer, side) and not mishandled(case, peer, side)
    ]
