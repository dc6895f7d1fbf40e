"""An extension of griffe: functions of the public API as ``help`` shows them.

Docstrings and signatures are completed when the package is imported (`explained_by`,
`takes_options_of`), so that an argument is explained in one place. Pages are made from the source,
which has only references to that place; the extension puts in what was completed.
"""

from __future__ import annotations

from inspect import Parameter, cleandoc, isfunction, signature
from typing import Any

import griffe

import zarr_dask as zd

__all__ = ["AsImported"]

_KINDS = {
    Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


class AsImported(griffe.Extension):
    """Completes public functions of the package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Complete the functions of a package that was read."""
        if pkg.name != zd.__name__:
            return
        for name in zd.__all__:
            found = getattr(zd, name)
            if isfunction(found) and hasattr(found, "__wrapped__"):
                inside = found.__module__.partition(".")[2]
                _complete(pkg[f"{inside}.{found.__name__}"], found)


def _complete(function: Any, found: Any) -> None:
    if function.docstring is not None:
        function.docstring.value = cleandoc(found.__doc__ or "")
    known = {one.name: one for one in function.parameters}
    function.parameters = griffe.Parameters(
        *(known.get(one.name) or _parameter(one) for one in signature(found).parameters.values())
    )


def _parameter(one: Parameter) -> griffe.Parameter:
    has_default = one.default is not Parameter.empty
    return griffe.Parameter(
        one.name,
        annotation=None if one.annotation is Parameter.empty else str(one.annotation),
        kind=_KINDS[one.kind],
        default=repr(one.default) if has_default else None,
    )
