"""Encoding of pictures as PNG, by Pillow."""

from __future__ import annotations

import io

import numpy as np

from zarr_dask.errors import MissingDependencyError

__all__ = ["png"]


def png(pixels: np.ndarray) -> bytes:
    r"""Encode a picture as a PNG file.

    Parameters
    ----------
    pixels
        Red, green and blue from 0 to 255, of the shape (height, width, 3) and the type uint8.

    Raises
    ------
    MissingDependencyError
        If Pillow is not installed.
    ValueError
        If they have another shape or type, or there are none.

    Examples
    --------
    >>> png(np.zeros((2, 3, 3), "u1"))[:8]
    b'\x89PNG\r\n\x1a\n'
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ValueError(f"{pixels.dtype} of {pixels.shape}: expected uint8 of (height, width, 3).")
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError(
            "pictures need the package pillow: pip install 'zarr-dask[ome]'"
        ) from error
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
