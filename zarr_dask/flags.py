"""Truth values that a caller gives: a text such as "no" is one to Python, and the wrong one."""

from __future__ import annotations

import numpy as np

__all__ = ["check_flags"]


def check_flags(**flags: object) -> None:
    """Refuse arguments that are neither True nor False, by their names.

    Raises
    ------
    TypeError
        If one is something else.

    Examples
    --------
    >>> check_flags(overwrite="no")
    Traceback (most recent call last):
    TypeError: overwrite='no': expected True or False.
    """
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name}={value!r}: expected True or False.")
