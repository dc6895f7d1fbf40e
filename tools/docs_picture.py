"""Draw the pictures of docs/assets that no tutorial makes: python -m tools.docs_picture.

blocks.svg has blocks of Dask over stored objects, and who writes what. speed.svg has the times of
docs/developers/performance.md, a table that ``make bench ARGS='--markdown last.md'`` makes.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
SIZE = 240
BLOCKS = (0, 96, 168, SIZE)
SHARDS = (0, 120, SIZE)
COLOURS = ("#26a69a", "#ffb74d", "#64b5f6", "#ba68c8")


def _box(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {style}/>'


def _text(x: float, y: float, text: str, size: int = 15, style: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" {style}>{text}</text>'


def _writers(low: float, high: float) -> int:
    return sum(start < high and stop > low for start, stop in pairwise(BLOCKS))


def _panel(x: float, y: float, *, safe: bool) -> list[str]:
    """Draw the grid of stored objects with the blocks over it."""
    drawn, labels = [], []
    for row, (top, bottom) in enumerate(pairwise(SHARDS)):
        for column, (left, right) in enumerate(pairwise(SHARDS)):
            number = 2 * row + column
            count = _writers(top, bottom) * _writers(left, right)
            fill = COLOURS[number] if safe else "#ef9a9a"
            drawn.append(
                _box(
                    x + left + 2,
                    y + top + 2,
                    right - left - 4,
                    bottom - top - 4,
                    f'fill="{fill}" fill-opacity="0.75" rx="6"',
                )
            )
            labels.append(
                _text(
                    x + (left + right) / 2,
                    y + (top + bottom) / 2 + 5,
                    f"task {number + 1}" if safe else f"{count} writers",
                    style='text-anchor="middle" font-weight="bold" stroke="#fff" stroke-width="4" '
                    'stroke-opacity="0.8" paint-order="stroke"',
                )
            )
    style = 'stroke="#37474f" stroke-width="1.5" stroke-dasharray="5 4"'
    for at in BLOCKS:
        drawn.append(f'<line x1="{x + at:g}" y1="{y}" x2="{x + at:g}" y2="{y + SIZE}" {style}/>')
        drawn.append(f'<line x1="{x}" y1="{y + at:g}" x2="{x + SIZE}" y2="{y + at:g}" {style}/>')
    drawn += labels
    return drawn


def picture() -> str:
    """Return the picture as SVG."""
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 370" role="img" '
        'font-family="system-ui, sans-serif" fill="#263238">'
        "<title>Nine Dask blocks over four shards: with several writers for each shard values can "
        "be lost; zarr_dask gives every shard one task.</title>"
    )
    caption = 'fill="#546e7a"'
    lines = [
        head,
        _box(1, 1, 718, 368, 'fill="#ffffff" stroke="#cfd8dc" rx="12"'),
        _text(70, 38, "Each block writes what it meets", 17, 'font-weight="bold"'),
        *_panel(70, 58, safe=False),
        _text(70, 325, "Blocks that meet in one shard race.", style=caption),
        _text(70, 346, "The last write wins; values are lost.", style=caption),
        _text(410, 38, "zarr_dask: one task per shard", 17, 'font-weight="bold"'),
        *_panel(410, 58, safe=True),
        _text(410, 325, "Blocks (dashed) are regrouped first.", style=caption),
        _text(410, 346, "Every stored object has one writer.", style=caption),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


_ROW = re.compile(
    r"(?m)^\| `((?:read|write)-[\w-]+)` \| (\d+) ms \|.*?\| (\d+) ms \| (.+?) (\d+) ms \|$"
)


def speed(table: str) -> str:
    """Return the times of reading and writing as SVG, as multiples of those of the floor."""
    rows = _ROW.findall(table)
    height = 60 + 34 * len(rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" role="img" '
        'font-family="system-ui, sans-serif" fill="#263238">'
        "<title>Times of zarr_dask and of the best other library, as multiples of a hand-written "
        "loop; shorter is better.</title>",
        _box(1, 1, 718, height - 2, 'fill="#ffffff" stroke="#cfd8dc" rx="12"'),
        _text(20, 28, "Time, as a multiple of a hand-written loop (the line)", 14),
    ]
    unit = 130.0
    for number, (case, ours, floor, peer, best) in enumerate(rows):
        y = 44 + 34 * number
        lines.append(_text(20, y + 16, case, 12))
        for offset, time, name, colour in (
            (0, ours, "zarr_dask", COLOURS[0]),
            (13, best, peer, COLOURS[1]),
        ):
            width = int(time) / int(floor) * unit
            lines.append(_box(190, y + offset, width, 11, f'fill="{colour}"'))
            label = f"{name} {int(time) / int(floor):.2f}"
            lines.append(_text(196 + width, y + offset + 10, label, 10, 'fill="#546e7a"'))
    x = 190 + unit
    lines.append(f'<line x1="{x}" y1="38" x2="{x}" y2="{height - 16}" stroke="#37474f"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def drawings() -> dict[str, str]:
    """Return both as SVG, by the names of their files."""
    table = (DOCS / "developers" / "performance.md").read_text(encoding="utf-8")
    return {"blocks.svg": picture(), "speed.svg": speed(table)}


if __name__ == "__main__":
    for name, drawn in drawings().items():
        (DOCS / "assets" / name).write_text(drawn, encoding="utf-8")
