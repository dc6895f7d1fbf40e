"""Tokens that show if a graph is the same in another process and at another time.

Names of layers prove nothing: users choose them, and dask generates random ones. The content of the
layers is compared, one layer at a time, so that an error can name the layer that differs. The code
of imported modules is ignored; that of functions of a script or a notebook is included.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
from dask.blockwise import Blockwise
from dask.tokenize import TokenizationError, tokenize
from dask.utils import key_split

from zarr_dask.errors import ResumeError

__all__ = ["layer_tokens"]


def layer_tokens(array: da.Array) -> tuple[tuple[str, str], ...]:
    """Return a readable name and a token of its content for each layer of a graph, inputs first.

    Raises
    ------
    ResumeError
        If a layer holds something whose token differs each time.

    Examples
    --------
    >>> import dask.array as da
    >>> x = da.arange(6, chunks=2) + 1
    >>> [name for name, _ in layer_tokens(x)]
    ['arange', 'add']
    >>> layer_tokens(x) == layer_tokens(da.arange(6, chunks=2) + 1)
    True
    """
    layers = array.__dask_graph__().layers
    return tuple((key_split(name), _token(name, layers[name])) for name in _inputs_first(array))


def _inputs_first(array: da.Array) -> list[str]:
    """Return the names of the layers, inputs first, in an order that is always the same."""
    dependencies = array.__dask_graph__().dependencies
    done: list[str] = []
    waiting = sorted(dependencies)
    while waiting:
        known = set(done)
        ready = [name for name in waiting if dependencies[name] <= known]
        done.extend(ready)
        waiting = [name for name in waiting if name not in set(ready)]
    return done


def _token(name: str, layer: Any) -> str:
    try:
        return str(tokenize(_content(layer), ensure_deterministic=True))
    except TokenizationError as error:
        raise ResumeError(
            f"resume=True must know whether a job is the same one, but the layer "
            f"{key_split(name)!r} of the graph holds something that looks different in each "
            f"process ({error}). Pass a name, such as resume='run-7', if you see to it that "
            "calls with this name write the same values."
        ) from error


def _content(layer: Any) -> tuple[Any, ...]:
    """Return the content of a layer's tasks, without materialising the tasks where possible."""
    if isinstance(layer, Blockwise):
        return (
            layer.output,
            layer.output_indices,
            layer.task,
            layer.indices,
            dict(layer.numblocks),
            layer.concatenate,
            dict(layer.new_axes),
            layer.output_blocks,
            dict(layer.io_deps),
        )
    return type(layer).__name__, dict(layer)
