"""Contents of graphs, without all that differs from process to process.

Tokens of dask are made of pickles. These hold sets in the order of this process, the modules that
it has imported, and numbers of classes that it has given. So functions and classes of a script or a
notebook, sets, and plain objects are taken apart here before they get their token.
"""

from __future__ import annotations

import copyreg
import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from dask._task_spec import Alias, DataNode, Task, TaskRef
from dask.tokenize import normalize_object, normalize_token, tokenize
from tlz import compose

__all__ = ["Plain"]

_OF_PROCESS = {
    "__dict__",
    "__firstlineno__",
    "__module__",
    "__slotnames__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
}
"""Members of classes that say nothing of what they do."""
_COMPILED = (BuiltinFunctionType, np.ufunc, type(np.where))
"""Types of functions without code of Python; those of NumPy that arrays may override have one."""
_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__")
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}


class Plain:
    """Turns what a graph holds into values whose tokens are the same in each process.

    Parameters
    ----------
    names
        Texts to replace: names of layers, by their tokens.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._open: dict[int, int] = {}
        """Numbers of what is being taken apart, which may hold itself."""
        self._codes: dict[CodeType, Any] = {}

    def __call__(self, value: Any) -> Any:
        """Return a value without what differs from process to process."""
        kind = type(value)
        if kind is str:
            return self._names.get(value, value)
        if kind is tuple:  # of which most are keys of tasks
            return [one if type(one) is int else self(one) for one in value]
        if value is None or isinstance(value, int | float | complex | str | bytes):
            return value
        found = self._taking(value)
        if found is None:
            return value
        number = self._open.get(id(value))
        if number is not None:
            return ("again", number)
        self._open[id(value)] = len(self._open)
        try:
            return found(value)
        finally:
            del self._open[id(value)]

    def _taking(self, value: Any) -> Callable[[Any], Any] | None:
        """Return what takes a value apart; None if its token is the same everywhere."""
        kind = type(value)
        found = _KINDS.get(kind)
        if found is not None:
            method: Callable[[Any], Any] = getattr(self, found)
            return method
        if isinstance(value, Task):
            return self._task
        if isinstance(value, _COMPILED):  # packages beside dask give tokens of their own to these
            return _name_of if _is_importable(value) else self._compiled
        if isinstance(value, FunctionType):
            return _name_of if _is_importable(value) else self._function
        if isinstance(value, type):
            return _name_of if _is_importable(value) else self._class
        return self._object if _is_plain_object(value) else None

    def _dict(self, value: Mapping[Any, Any]) -> Any:
        items = [(self(key), self(item)) for key, item in value.items()]
        return ("dict", sorted(items, key=lambda pair: str(pair[0])))

    def _sequence(self, value: list[Any]) -> Any:
        return "list", *map(self, value)

    def _slice(self, value: slice) -> Any:
        return "slice", *map(self, (value.start, value.stop, value.step))

    def _set(self, value: Any) -> Any:
        tokens = sorted(tokenize(self(one), ensure_deterministic=True) for one in value)
        return type(value).__name__, tokens

    def _partial(self, value: partial[Any]) -> Any:
        return "partial", *map(self, (value.func, value.args, value.keywords))

    def _chain(self, value: Any) -> Any:
        return "chain", self(value.first), *map(self, value.funcs)

    def _task(self, value: Task) -> Any:
        return type(value).__name__, *map(self, (value.key, value.func, value.args, value.kwargs))

    def _alias(self, value: Alias) -> Any:
        return "alias", self(value.key), self(value.target)

    def _data(self, value: DataNode) -> Any:
        return "data", self(value.key), self(value.value)

    def _reference(self, value: TaskRef) -> Any:
        return "reference", self(value.key)

    def _function(self, value: FunctionType) -> Any:
        known = value.__globals__
        module = sys.modules.get(value.__module__)
        if value.__module__ != "__main__" and module is not None and vars(module) is known:
            known = {}  # what an imported module holds counts by its name, as its functions do
        names = sorted({*_globals_of(value.__code__)} & known.keys())
        return (
            "function",
            value.__qualname__,
            self._code(value.__code__),
            self(value.__defaults__),
            self(value.__kwdefaults__),
            [self(_content(cell)) for cell in value.__closure__ or ()],
            [(name, _named(known[name]) or self(known[name])) for name in names],
            self(vars(value)),
        )

    def _compiled(self, value: Any) -> Any:
        owner = getattr(value, "__self__", None)  # of a method
        if owner is None or isinstance(owner, ModuleType):
            return value
        return "method", value.__name__, self(owner)

    def _code(self, code: CodeType) -> Any:
        if code not in self._codes:
            constants = [
                self._code(one) if isinstance(one, CodeType) else self(one)
                for one in code.co_consts
            ]
            self._codes[code] = (
                code.co_code,
                constants,
                code.co_names,
                code.co_varnames,
                code.co_freevars,
                code.co_cellvars,
                (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
                getattr(code, "co_exceptiontable", b""),
            )
        return self._codes[code]

    def _class(self, value: type) -> Any:
        members = {name: one for name, one in vars(value).items() if name not in _OF_PROCESS}
        return "class", value.__qualname__, self(value.__bases__), self._dict(members)

    def _bound(self, value: Any) -> Any:
        return type(value).__name__, self(value.__func__)

    def _property(self, value: property) -> Any:
        return "property", *map(self, (value.fget, value.fset, value.fdel))

    def _object(self, value: Any) -> Any:
        return "object", self(type(value)), self._dict(vars(value))


_KINDS = {
    dict: "_dict",
    list: "_sequence",
    slice: "_slice",
    set: "_set",
    frozenset: "_set",
    partial: "_partial",
    type(compose(str, str)): "_chain",
    Alias: "_alias",
    DataNode: "_data",
    TaskRef: "_reference",
    staticmethod: "_bound",
    classmethod: "_bound",
    property: "_property",
}
"""Methods of `Plain` that take values of these types apart."""


def _named(value: Any) -> Any:
    """Return the name of a module, of which only that counts."""
    return ("module", value.__name__) if isinstance(value, ModuleType) else None


def _content(cell: Any) -> Any:
    try:
        found = cell.cell_contents
    except ValueError:
        return "empty cell"
    return _named(found) or found


def _globals_of(code: CodeType) -> Iterator[str]:
    """Yield the global names that code uses, that of functions in it included."""
    for step in dis.get_instructions(code):
        if step.opname in _GLOBAL:
            yield step.argval
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _globals_of(one)


def _is_importable(value: Any) -> bool:
    """True if other processes import a function or class by its name."""
    module, names = _path_of(value)
    if module is None or module == "__main__":
        return False
    found: Any = sys.modules.get(module)
    for name in names.split("."):
        found = getattr(found, name, None)
    return found is value


def _name_of(value: Any) -> Any:
    return "imported", *_path_of(value)


def _path_of(value: Any) -> tuple[str | None, str]:
    """Return the module and the name in it of a function or class; ufuncs are those of NumPy."""
    if isinstance(value, np.ufunc):  # some versions do not tell where one comes from
        return "numpy", value.__name__
    return getattr(value, "__module__", None), value.__qualname__


def _is_plain_object(value: Any) -> bool:
    """True if a pickle of a value would hold its class and its attributes, and no more."""
    kind = type(value)
    return (
        isinstance(getattr(value, "__dict__", None), dict)
        and not isinstance(value, type | FunctionType | ModuleType)
        and not hasattr(kind, "__dask_tokenize__")
        and not is_dataclass(kind)
        and normalize_token.dispatch(kind) is normalize_object
        and kind not in copyreg.dispatch_table
        and all(getattr(kind, name) is getattr(object, name) for name in _PICKLING)
        and not any(getattr(one, "__slots__", ()) for one in kind.__mro__)
        and not any(hasattr(kind, name) for name in ("__getnewargs__", "__getnewargs_ex__"))
        and all(one is object or one.__flags__ & 1 << 9 for one in kind.__mro__)
    )
