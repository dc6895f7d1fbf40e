"""Checks of options and blocks whose wrong type would do something else, or fail much later.

The text "no" is true in Python, and "4" is not a number. Every function that takes an option checks
it by name before anything is written.
"""

from __future__ import annotations

import sys
from functools import cache
from os import PathLike
from typing import Any, ClassVar, Self, get_args

import numpy as np

from zarr_dask._util.keywords import did_you_mean
from zarr_dask.errors import DataTypeError

__all__ = [
    "MadeBy",
    "check_bools",
    "check_choice",
    "check_count",
    "check_resume",
    "check_type",
    "check_unmasked",
    "to_numpy",
]


class MadeBy:
    """Class whose instances functions make; it names them if it is called with a location."""

    _made_by: ClassVar[str] = ""
    """Functions that make instances, as a sentence without its end."""

    def __new__(cls, *args: Any, **_: Any) -> Self:
        """Make an instance of what has been read.

        Raises
        ------
        TypeError
            If it is called with a location or values, as a user would.
        """
        if args and isinstance(args[0], _OF_USERS):
            raise TypeError(f"zarr_dask.{cls.__name__} is not called: zarr_dask.{cls._made_by}.")
        return super().__new__(cls)


_OF_USERS = (str, PathLike, dict, list, tuple, np.ndarray, int, float, type(None))


def check_bools(**flags: object) -> None:
    """Raise if an argument is neither True nor False; the message names it.

    Raises
    ------
    TypeError
        If one is something else.

    Examples
    --------
    >>> check_bools(overwrite="no")
    Traceback (most recent call last):
    TypeError: overwrite='no': expected True or False.
    """
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name}={value!r}: expected True or False.")


def _is_masked_array(values: object) -> bool:
    """True for a masked array of NumPy.

    A process that has none may not have imported their module, which takes it ten milliseconds.
    """
    return isinstance(values, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def check_unmasked(values: Any, what: str) -> None:
    """Raise if elements are masked: what lies under a mask would be stored as if it were a value.

    Raises
    ------
    DataTypeError
        If an element is masked.
    """
    if _is_masked_array(values) and np.ma.is_masked(values):
        raise DataTypeError(
            f"{what}: {np.ma.count_masked(values)} elements are masked, and a mask cannot be "
            "stored. Fill them first: values.filled(fill_value)."
        )


def check_resume(resume: object) -> None:
    """Raise if `resume` is not True, False, or the name of a job.

    Raises
    ------
    TypeError
        If it is neither True nor False nor a text.
    ValueError
        If the text is empty.

    Examples
    --------
    >>> check_resume(1)
    Traceback (most recent call last):
    TypeError: resume=1: expected True, False, or a name for the job.
    """
    error = f"resume={resume!r}: expected True, False, or a name for the job."
    if not isinstance(resume, bool | np.bool_ | str):
        raise TypeError(error)
    if isinstance(resume, str) and not resume:
        raise ValueError(error)


def check_choice(name: str, value: object, choices: Any) -> None:
    """Refuse what is none of the values of a ``Literal``.

    Raises
    ------
    ValueError
        If it is something else.

    Examples
    --------
    >>> from typing import Literal
    >>> check_choice("mode", "x", Literal["a", "w"])
    Traceback (most recent call last):
    ValueError: Cannot use mode='x': expected one of ['a', 'w'].
    """
    known = _values_of(choices)
    if value not in known:
        hint = did_you_mean(value, map(str, known))
        raise ValueError(f"Cannot use {name}={value!r}: expected one of {list(known)}.{hint}")


_values_of = cache(get_args)


def check_count(name: str, value: object, otherwise: str | None) -> None:
    """Raise if a value is not a whole number of at least 1, or None if `otherwise` explains it.

    Raises
    ------
    TypeError
        If it is not a whole number.
    ValueError
        If it is below 1.

    Examples
    --------
    >>> check_count("threads", "4", "one per core")
    Traceback (most recent call last):
    TypeError: threads='4': expected a whole number of at least 1, or None for one per core.
    """
    if value is None and otherwise is not None:
        return
    error = f"{name}={value!r}: expected a whole number of at least 1"
    error += f", or None for {otherwise}." if otherwise else "."
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(error)
    if value < 1:
        raise ValueError(error)


def check_type(name: str, value: object, kinds: Any, expected: str) -> None:
    """Raise if a value is neither None nor of one of the given types.

    Raises
    ------
    TypeError
        If it is something else.

    Examples
    --------
    >>> check_type("manifest", 3, str, "a path or URL")
    Traceback (most recent call last):
    TypeError: manifest=3: expected a path or URL, or None.
    """
    if value is not None and not isinstance(value, kinds):
        raise TypeError(f"{name}={value!r}: expected {expected}, or None.")


def to_numpy(block: Any, what: str) -> np.ndarray:
    """Return a block as a NumPy array.

    Parameters
    ----------
    block
        Result of a task or a rank.
    what
        Name of the block, for messages.

    Raises
    ------
    DataTypeError
        If it is masked, or of a type that is not converted to a NumPy array implicitly.
    """
    if _is_masked_array(block):
        raise DataTypeError(
            f"{what} is masked, and a mask cannot be stored; fill it first (numpy.ma.filled, "
            "dask.array.ma.filled)."
        )
    try:
        found = np.asarray(block)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _unconverted(what, block, error) from error
    if found.shape != getattr(block, "shape", found.shape):  # scipy's sparse ones
        raise _unconverted(what, block, f"of shape {block.shape} it makes {found.shape}")
    return found


def _unconverted(what: str, block: Any, why: object) -> DataTypeError:
    kind = f"{type(block).__module__.partition('.')[0]}.{type(block).__qualname__}"
    return DataTypeError(
        f"{what} is of the kind {kind}, which does not become a NumPy array ({why}). Convert it "
        "first, for instance by map_blocks with cupy.asnumpy or the todense of a sparse one."
    )
