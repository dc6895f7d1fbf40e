"""The looks of plans, reports and nodes: short forms, tables, trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NoReturn, Self

if TYPE_CHECKING:
    import numpy as np

__all__ = ["InWords", "Tree", "format_dtype", "format_shape", "html_table", "render_tree"]


class InWords:
    r"""A result or plan whose ``str`` says it in words: its `repr` is one short line of that.

    Examples
    --------
    >>> class Report(InWords):
    ...     def __str__(self):
    ...         return "verify a.zarr\n  nothing is wrong"
    >>> Report()
    <Report: verify a.zarr>
    """

    __slots__ = ()

    def __repr__(self) -> str:
        line = escape_control_chars(str(self).partition("\n")[0])
        short = line if len(line) <= _LINE else f"{line[: _LINE - 3]}..."
        return f"<{type(self).__name__}: {short}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            hint = ""
            if name in {"compute", "execute", "persist", "start", "submit"}:
                runs = hasattr(type(self), "run")
                hint = " plan.run() runs it." if runs else " The job has ended; this is its report."
            elif name in {"failed", "ok", "status", "success", "successful"}:
                hint = " A job that fails raises an error: where there is a report, all is stored."
                if hasattr(type(self), "equal"):
                    hint = " equal is True if nothing differs."
            elif name in {"describe", "explain", "summary"}:
                hint = " print(...) of it says everything."
            elif name in {"draw", "visualize"} and hasattr(type(self), "plot"):
                hint = " plot() draws it."
            elif name in {"dump", "save", "to_file", "write"} and hasattr(type(self), "to_json"):
                hint = " to_json() has it as JSON: a plan as text for a file, a report as values."
            raise AttributeError(f"{type(self).__name__!r} object has no {name!r}.{hint}")


_LINE = 120


class Tree(str):
    """The text of a hierarchy, one node a line, which a notebook shows as nested lists.

    Names from the store are escaped in both forms.
    """

    __slots__ = ("_html",)

    _html: str

    def __new__(cls, text: str, html: str = "") -> Self:
        """Make a tree of a text and its HTML."""
        tree = super().__new__(cls, text)
        tree._html = html or f"<pre>{escape(text)}</pre>"
        return tree

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[Tree], tuple[str, str]]:
        return type(self), (str(self), self._html)

    def _repr_html_(self) -> str:
        return self._html


def render_tree(root: str, labels: Mapping[str, tuple[str, str]]) -> Tree:
    """Draw a hierarchy.

    Parameters
    ----------
    root
        Name of the group at its top.
    labels
        Separator after the name of a node and its description, by path: parents before children.

    Examples
    --------
    >>> render_tree("/", {"a": ("", "/"), "a/b": ("  ", "(2,) int8"), "c": ("", "/")})
    /
    ├── a/
    │   └── b  (2,) int8
    └── c/
    """
    return Tree("\n".join(_lines(root, labels)), "".join(_list_items(root, labels)))


def _lines(root: str, labels: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    last = _last_ones(labels)
    yield escape_control_chars(root)
    indents = [""]  # by depth, of the nodes below the last one drawn
    for path, (joint, facts) in labels.items():
        depth = path.count("/")
        is_last = path in last
        name = escape_control_chars(path.rpartition("/")[2])
        branch = "└── " if is_last else "├── "
        yield f"{indents[depth]}{branch}{name}{joint}{escape_control_chars(facts)}"
        indents[depth + 1 :] = [indents[depth] + ("    " if is_last else "│   ")]


def _last_ones(labels: Mapping[str, object]) -> set[str]:
    """Return the path of the last child of each group."""
    return set({path.rpartition("/")[0]: path for path in labels}.values())


def _list_items(root: str, labels: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    yield f"<div><b>{_html(root)}</b>"
    depth = 0
    for path, (joint, facts) in labels.items():
        wanted = path.count("/") + 1
        yield "<ul>" * (wanted - depth) + "</ul>" * (depth - wanted)
        depth = wanted
        name = path.rpartition("/")[2]
        yield f"<li><b>{_html(name)}</b>{_html(joint)}{_html(facts)}</li>"
    yield "</ul>" * depth + "</div>"


def html_table(title: str, facts: Mapping[str, object]) -> str:
    """Return facts about a node as an HTML table."""
    rows = "".join(
        f"<tr><th>{_html(name)}</th><td>{_html(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table><caption>{_html(title)}</caption>{rows}</table>"


def format_shape(shape: Sequence[int], names: Sequence[str | None] | None) -> str:
    """Return a shape with the names of its dimensions, if they have any.

    Examples
    --------
    >>> format_shape((20, 8), ("time", None)), format_shape((20,), None)
    ('(time: 20, 8)', '(20,)')
    """
    if not any(names or ()):
        return str(tuple(shape))
    lengths = zip(names or (), shape, strict=True)
    return f"({', '.join(str(n) if name is None else f'{name}: {n}' for name, n in lengths)})"


def format_dtype(dtype: np.dtype[Any]) -> str:
    """Return the name by which NumPy takes a data type, as in ``x.astype("float32")``.

    Examples
    --------
    >>> import numpy as np
    >>> [format_dtype(np.dtype(name)) for name in ("f4", ">i2", "S2", "U3")]
    ['float32', 'int16', 'S2', 'U3']
    """
    return dtype.str[1:] if dtype.kind in "SU" else dtype.name


def escape_control_chars(text: str) -> str:
    r"""Escape characters of a text that would control a terminal or break the line.

    Examples
    --------
    >>> print(escape_control_chars("é\n"))
    é\n
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _html(text: str) -> str:
    return escape(escape_control_chars(text))
