"""Attributes of a node: a mapping that writes, and a copy that refuses to be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from zarr_dask.formats.base import Format, NodeMeta, ReadOptions, where
from zarr_dask.stores.base import Store

__all__ = ["Attributes", "FixedDict", "FixedList", "fixed"]


class Changeable(Protocol):
    """A node whose attributes can be changed."""

    @property
    def store(self) -> Store:
        """Store that holds the node."""
        ...

    @property
    def path(self) -> str:
        """Path below the root of the store."""
        ...

    @property
    def meta(self) -> NodeMeta:
        """Parsed metadata of the node."""
        ...

    @property
    def node_format(self) -> Format:
        """Format in which the metadata are written."""
        ...

    @property
    def options(self) -> ReadOptions:
        """Options of reading."""
        ...

    def update_attributes(self, attributes: Mapping[str, Any]) -> Any:
        """Add or replace attributes in the store."""
        ...


class Attributes(MutableMapping[str, Any]):
    """The attributes of an open node; assignment and deletion write them to the store.

    Each change is one request on condition that nobody else has changed the metadata meanwhile;
    attributes of others stay. `update` changes several at once; `put` replaces all of them, as
    ``node.attrs = {...}`` does. Lists and mappings in attributes cannot be changed in place,
    because that would not be stored: assign the whole attribute.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(4,), dtype="i2")
    >>> a.attrs["units"] = "m"
    >>> a.attrs.update(title="depth", valid_range=[0, 10])
    >>> del a.attrs["title"]
    >>> zd.open(a.store).attrs
    {'units': 'm', 'valid_range': [0, 10]}
    """

    __slots__ = ("_node",)

    def __init__(self, node: Changeable) -> None:
        self._node = node

    def __getitem__(self, name: str) -> Any:
        attributes = self._node.meta.attributes
        if name not in attributes:
            raise KeyError(self._absent(name))
        return fixed(attributes[name])

    def _absent(self, name: str) -> str:
        node = self._node
        known = ", ".join(map(repr, list(node.meta.attributes)[:20])) or "none"
        return f"{where(node.store, node.path)} has no attribute {name!r}; it has {known}."

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._node.meta.attributes))

    def __len__(self) -> int:
        return len(self._node.meta.attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        self._node.update_attributes({name: value})

    def __delitem__(self, name: str) -> None:
        self._remove([name])

    def _remove(self, names: list[str]) -> None:
        """Remove attributes from the store by one request."""
        from zarr_dask.formats.concurrent_edit import change_attributes

        missing = [name for name in names if name not in self]
        if missing:
            raise KeyError(self._absent(missing[0]))

        def without(present: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in present.items() if name not in names}

        node = self._node
        change_attributes(
            node.store, node.path, node.node_format, without, node.options, warns=True
        )

    if not TYPE_CHECKING:  # a type checker knows which methods there are

        def __getattr__(self, name: str) -> NoReturn:
            hint = ""
            if name in {"asdict", "copy"}:
                hint = " dict(node.attrs) is a copy."
            elif name in {"create", "modify", "set", "setncattr"}:
                hint = " node.attrs[name] = value stores one."
            raise AttributeError(f"{type(self).__name__!r} object has no {name!r}.{hint}")

    def clear(self) -> None:
        """Remove all attributes by one request."""
        self._remove(list(self))

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return an attribute, after storing the default if there is none; as `dict.setdefault`."""
        if name not in self:
            self[name] = default
        return self[name]

    def put(self, attributes: Mapping[str, Any]) -> None:
        """Replace all attributes by one request, as ``node.attrs = attributes`` does.

        The one in which formats v1 and v2 store the names of dimensions stays unless it is given.
        """
        from zarr_dask.formats.concurrent_edit import change_attributes

        node = self._node
        if isinstance(attributes, Attributes) and attributes._node is node:  # noqa: SLF001
            return  # as after ``node.attrs |= {...}``
        kept = node.node_format.names_attribute

        def instead(present: dict[str, Any]) -> dict[str, Any]:
            return {name: present[name] for name in present if name == kept} | dict(attributes)

        change_attributes(
            node.store, node.path, node.node_format, instead, node.options, warns=True
        )

    def update(self, *others: Any, **more: Any) -> None:
        """Add or replace attributes by one request, as `dict.update` does."""
        self._node.update_attributes(dict(*others, **more))

    def asdict(self) -> dict[str, Any]:
        """Return a copy as a plain dict."""
        return dict(fixed(self._node.meta.attributes).copy())

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return self.asdict() | dict(other)

    def __ior__(self, other: Mapping[str, Any]) -> Self:
        self.update(other)
        return self

    def __repr__(self) -> str:
        return repr(self.asdict())

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(repr(self))}</pre>"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.asdict(),)


def _refuse(kind: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise TypeError(
            f"this {kind} is a copy of attributes, and a change of it would not be stored. Assign "
            "through attrs, as node.attrs['units'] = 'm', nested values as a whole; dict(...) or "
            "list(...) makes a copy to change."
        )

    return refuse


class FixedDict(dict[str, Any]):
    """A copy of attributes that raises on assignment, instead of losing the value."""

    __slots__ = ()

    def copy(self) -> dict[str, Any]:
        """Return a plain dict, to be changed."""
        return {name: _plain(value) for name, value in self.items()}

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    __setitem__ = __delitem__ = __ior__ = _refuse("dict")
    update = setdefault = pop = popitem = clear = _refuse("dict")


class FixedList(list[Any]):
    """A copy of a list in attributes that raises on assignment, instead of losing the value."""

    __slots__ = ()

    def copy(self) -> list[Any]:
        """Return a plain list, to be changed."""
        return [_plain(value) for value in self]

    def __deepcopy__(self, memo: object) -> list[Any]:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self.copy(),)

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse("list")
    append = extend = insert = remove = _refuse("list")
    pop = clear = sort = reverse = _refuse("list")


def fixed(value: Any) -> Any:
    """Return a copy of a JSON value that cannot be changed.

    Examples
    --------
    >>> fixed({"a": [1]})["a"].append(2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TypeError: this list is a copy of attributes, and a change of it would not be stored. ...
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return FixedDict({name: fixed(inner) for name, inner in value.items()})
    if isinstance(value, list | tuple):
        return FixedList([fixed(inner) for inner in value])
    return value


_PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types of most values, which are not looked into: an `isinstance` takes longer than a copy."""


def _plain(value: Any) -> Any:
    return value.copy() if isinstance(value, FixedDict | FixedList) else value
