"""Draw the pictures of docs/assets that no tutorial makes: python -m tools.docs_picture [JSON ...].

blocks.svg has blocks of Dask over stored objects, and who writes what. speed.svg has the times of
speed.json, as has a table of docs/developers/performance.md. What ``make bench ARGS='--json
last.json'`` has written replaces the cases of speed.json that it measured, and with them both.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
TIMES = DOCS / "assets" / "speed.json"
PAGE = DOCS / "developers" / "performance.md"
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


def taken(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the times of reading and writing in what the benchmarks have written as JSON."""
    found = []
    for one in results:
        times = {contender["name"]: contender for contender in one["contenders"]}
        peers = [name for name in times if name != "floor" and not name.startswith("zarr_dask")]
        if re.match("(read|write)-", one["name"]) and one["unit"] == "ms":
            best = min(peers, key=lambda name: times[name]["best"])
            found.append(
                {
                    "case": one["name"],
                    "zarr_dask": round(times["zarr_dask"]["best"]),
                    "paired": round(times["zarr_dask"]["paired"], 2),
                    "reach": one["reach"].removesuffix(" floor"),
                    "floor": round(times["floor"]["best"]),
                    "peer": best,
                    "best": round(times[best]["best"]),
                }
            )
    return found


def rows(times: list[dict[str, Any]]) -> str:
    """Return the lines of these cases in the table of the page on performance."""
    lines = []
    for one in times:
        ratio = one["zarr_dask"] / one["floor"]
        bold = "**" if ratio > float(one["reach"].split()[0]) else ""
        lines.append(
            f"| `{one['case']}` | {one['zarr_dask']} ms | {one['paired']:.2f} x | "
            f"{bold}{ratio:.2f}{bold} x | {one['reach']} | {one['floor']} ms | "
            f"{one['peer']} {one['best']} ms |"
        )
    return "\n".join(lines) + "\n"


def speed(times: list[dict[str, Any]]) -> str:
    """Return the times of reading and writing as SVG, as multiples of those of the floor."""
    height = 60 + 34 * len(times)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" role="img" '
        'font-family="system-ui, sans-serif" fill="#263238">'
        "<title>Times of zarr_dask and of the best other library, as multiples of a hand-written "
        "loop; shorter is better.</title>",
        _box(1, 1, 718, height - 2, 'fill="#ffffff" stroke="#cfd8dc" rx="12"'),
        _text(20, 28, "Time, as a multiple of a hand-written loop (the line)", 14),
    ]
    unit = 130.0
    for number, one in enumerate(times):
        y = 44 + 34 * number
        lines.append(_text(20, y + 16, one["case"], 12))
        for offset, time, name, colour in (
            (0, one["zarr_dask"], "zarr_dask", COLOURS[0]),
            (13, one["best"], one["peer"], COLOURS[1]),
        ):
            width = time / one["floor"] * unit
            lines.append(_box(190, y + offset, width, 11, f'fill="{colour}"'))
            label = f"{name} {time / one['floor']:.2f}"
            lines.append(_text(196 + width, y + offset + 10, label, 10, 'fill="#546e7a"'))
    x = 190 + unit
    lines.append(f'<line x1="{x}" y1="38" x2="{x}" y2="{height - 16}" stroke="#37474f"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


_ROWS = re.compile(r"(?m)(?:^\| `(?:read|write)-[\w-]+` \| .*\n)+(?=\| `one-chunk`)")


def made(times: list[dict[str, Any]]) -> dict[Path, str]:
    """Return what follows from the times: both pictures, and the page with its table."""
    page = _ROWS.sub(lambda _: rows(times), PAGE.read_text(encoding="utf-8"))
    assets = DOCS / "assets"
    return {assets / "blocks.svg": picture(), assets / "speed.svg": speed(times), PAGE: page}


def kept() -> list[dict[str, Any]]:
    """Return the times that the site shows."""
    return json.loads(TIMES.read_text(encoding="utf-8"))


def main(arguments: list[str]) -> None:
    """Replace times by those of the files that are named, and make what follows from them."""
    new = {
        one["case"]: one
        for name in arguments
        for one in taken(json.loads(Path(name).read_text(encoding="utf-8")))
    }
    times = [new.get(one["case"], one) for one in kept()]
    lines = ",\n".join(json.dumps(one) for one in times)
    TIMES.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    for path, text in made(times).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
