"""Files of pictures that commands draw; options are checked before the job begins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zarr_dask.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PictureType", "save_picture"]


class PictureType(click.Path):
    """A file in an existing folder, whose extension is a format that matplotlib writes."""

    name = "FILE"

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        try:
            from matplotlib.backend_bases import FigureCanvasBase
        except ImportError as error:
            raise MissingDependencyError(
                "plots need matplotlib: install zarr-dask[plots]."
            ) from error
        file = Path(os.fsdecode(super().convert(value, param, ctx)))
        known = sorted(FigureCanvasBase.filetypes)
        if file.suffix[1:].lower() not in known:
            names = ", ".join(f".{name}" for name in known)
            self.fail(f"{str(file)!r} must end in one of {names}.", param, ctx)
        if not file.parent.is_dir():
            self.fail(f"{str(file)!r}: there is no folder {str(file.parent)!r}.", param, ctx)
        return file


def save_picture(figure: Figure, file: Path) -> None:
    """Write a picture in the format given by the file's extension."""
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from error
