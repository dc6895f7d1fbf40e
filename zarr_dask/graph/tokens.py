"""Tokens that show if a graph is the same in another process and at another time.

Names of layers prove nothing: users choose them, and dask generates random ones. The content of the
layers is compared, one layer at a time, so that an error can name the layer that differs. The code
of imported modules is ignored; that of functions of a script or a notebook is included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np
from dask.blockwise import Blockwise
from dask.tokenize import TokenizationError, tokenize
from dask.utils import key_split

from zarr_dask.errors import ResumeError
from zarr_dask.graph.plain import Plain

__all__ = ["layer_tokens"]

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_UNIQUE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def layer_tokens(array: da.Array) -> tuple[tuple[str, str], ...]:
    """Return a readable name and a token of its content for each layer of a graph, inputs first.

    The token of a layer covers those that it depends on; that of the array itself comes last.

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
    graph = array.__dask_graph__()
    tokens: dict[str, str] = {}
    order = [name for name in _inputs_first(array) if name != array.name]
    for name in (*order, array.name):
        known = {one: tokens[one] for one in graph.dependencies[name]}
        tokens[name] = _token(name, graph.layers[name], known)
    return tuple((_label(name), token) for name, token in tokens.items())


def _label(name: str) -> str:
    """Return a name of a layer for messages, which is the same in each process."""
    return _ADDRESS.sub("", key_split(name))


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


def _token(name: str, layer: Any, known: Mapping[str, str]) -> str:
    """Return the token of a layer, given those of the layers that it depends on."""
    names = {**_inner_names(layer), **known, name: "this layer"}
    # dask names each result of an impure function anew, so that it is taken for another one
    stable = {one: token for one, token in names.items() if not _UNIQUE.search(one)}
    try:
        with np.printoptions(legacy=False):  # tokens are made of texts
            content = Plain(stable)(_content(layer))
            return str(tokenize(content, ensure_deterministic=True))
    except TokenizationError as error:
        raise ResumeError(
            f"resume=True must know whether a job is the same one, but the layer "
            f"{_label(name)!r} of the graph holds something that looks different in each "
            f"process ({error}). Pass a name, such as resume='run-7', if you see to it that "
            "calls with this name write the same values."
        ) from error


def _inner_names(layer: Any) -> dict[str, str]:
    """Return names for the tasks in a layer that dask has named by tokens of its own.

    These differ where another package has told dask how to make tokens.
    """
    if isinstance(layer, Blockwise):
        return {}
    names = dict.fromkeys(key[0] if isinstance(key, tuple) else key for key in layer)
    texts = [name for name in names if isinstance(name, str)]
    return {name: f"{_label(name)} {number}" for number, name in enumerate(texts)}


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
