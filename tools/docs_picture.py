"""Draw docs/assets/blocks.svg: blocks of Dask over stored objects, and who writes what.

python -m tools.docs_picture
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "assets" / "blocks.svg"
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


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
