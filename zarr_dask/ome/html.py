"""Images and plates in notebooks: HTML tables with a small picture.

Names are untrusted: all are escaped, and long lists are truncated.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from zarr_dask._util.display import html_table
from zarr_dask.errors import ZarrDaskError
from zarr_dask.ome.levels import Level
from zarr_dask.ome.model import Metadata, Multiscale, PlateLayout
from zarr_dask.ome.picture import picture
from zarr_dask.ome.png import png

__all__ = ["image_html", "plate_html"]

_SIDE = 192
"""Pixels of the longer side of a picture."""
_PLATE_SIDE = 384
_BUDGET = 1 << 25
"""Maximum decoded bytes read for a picture, which is drawn whenever a notebook shows the image."""
_MOST = 20
"""Maximum number of levels and names that are listed."""


def image_html(
    title: str,
    metadata: Metadata,
    multiscale: Multiscale,
    levels: Sequence[Level],
    labels: Sequence[str],
) -> str:
    """Return axes, levels, channels and label images of an image as HTML, with a picture."""
    axes = (f"{axis.name} ({axis.unit})" if axis.unit else axis.name for axis in multiscale.axes)
    facts: dict[str, object] = {
        "version": metadata.version,
        "name": multiscale.name or "none",
        "axes": ", ".join(axes),
        "data type": levels[0].array.meta.data_type.label,
    }
    for level in levels[:_MOST]:
        array = level.array
        sizes = " x ".join(f"{size:g}" for size in level.scale)
        name = f"level {array.path.rpartition('/')[2]}"
        facts[name] = f"{array.shape}, pixels of {sizes}, chunks {array.meta.grids}"
    if len(levels) > _MOST:
        facts["levels"] = f"{len(levels)} in all"
    if metadata.omero is not None:
        named = [one.label or str(i) for i, one in enumerate(metadata.omero.channels)]
        facts["channels"] = _listed(named)
    if labels:
        facts["labels"] = _listed(labels)

    def draw() -> np.ndarray:
        return picture(metadata, multiscale, levels, size=_SIDE, max_bytes=_BUDGET)

    return f"<div>{html_table(title, facts)}{_drawn(draw, 'the image, small')}</div>"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def _drawn(draw: Callable[[], np.ndarray], what: str) -> str:
    """Return a picture as HTML, or the error if it fails, so that the table is shown anyway."""
    try:
        pixels = draw()
        data = b64encode(png(pixels)).decode()
    except (ZarrDaskError, OSError, MemoryError) as error:
        return f"<p>no picture: {escape(str(error).partition(chr(10))[0])}</p>"
    height, width, _ = pixels.shape
    return (
        f'<img alt="{what}" width="{width}" height="{height}" src="data:image/png;base64,{data}">'
    )


_MOST_LINES = 48
"""Maximum rows and columns of a plate that are shown: those of a plate of 1536 wells."""


def plate_html(
    title: str, version: str, layout: PlateLayout, draw: Callable[[int, int], np.ndarray]
) -> str:
    """Return a plate as an HTML table, with a mark for each existing well, and a picture.

    Parameters
    ----------
    title, version, layout
        Metadata of the plate.
    draw
        Draws a picture, given the pixels of its longer side and the decoded bytes to read.
    """
    rows = [row.name for row in layout.rows]
    columns = [column.name for column in layout.columns]
    facts: dict[str, object] = {
        "version": version,
        "name": layout.name or "none",
        "wells": f"{len(layout.wells)} in {len(rows)} rows and {len(columns)} columns",
    }
    if layout.field_count is not None:
        facts["fields"] = f"at most {layout.field_count} of a well"
    if layout.acquisitions:
        facts["acquisitions"] = _listed([one.name or str(one.id) for one in layout.acquisitions])
    if len(rows) > _MOST_LINES or len(columns) > _MOST_LINES:
        facts["shown"] = f"the first {_MOST_LINES} rows and columns"
    there = {(well.row, well.column) for well in layout.wells}
    head = "".join(f"<th>{escape(name)}</th>" for name in columns[:_MOST_LINES])
    lines = [
        f"<tr><th>{escape(name)}</th>"
        + "".join(
            f"<td>{'●' if (row, column) in there else ''}</td>"
            for column in range(len(columns[:_MOST_LINES]))
        )
        + "</tr>"
        for row, name in enumerate(rows[:_MOST_LINES])
    ]
    grid = f"<table><tr><th></th>{head}</tr>{''.join(lines)}</table>"
    shown = _drawn(lambda: draw(_PLATE_SIDE, _BUDGET), "the plate, small")
    return f"<div>{html_table(title, facts)}{grid}{shown}</div>"
