"""What a hierarchy is to be, operation by operation, and the search for an order that explains.

A history is linearisable if its operations can be put in one order, each within its own time, so
that a hierarchy without concurrency would have given the same answers. Reads look at documents and
stored objects one by one, each at a time of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

CHUNK = 2
FIRST = 4
"""Length of new arrays."""


class Event(NamedTuple):
    """An operation, when it ran, and its answer."""

    name: str
    path: str
    args: tuple[Any, ...]
    began: float
    ended: float
    error: str
    """Type of the error; empty if it was acknowledged."""
    answer: Any = None


class Node(NamedTuple):
    """An array: its attributes, its length, and all elements that are stored."""

    attributes: frozenset[tuple[str, int]]
    length: int
    elements: tuple[int, ...] = (0,) * 64

    def having(self, start: int, values: Sequence[int]) -> Node:
        found = list(self.elements)
        found[start : start + len(values)] = values
        return self._replace(elements=tuple(found))


State = tuple[tuple[str, Node], ...]
Step = Callable[[dict[str, Node]], "dict[str, Node] | tuple[dict[str, Node], ...] | None"]
"""What follows, or may follow, from a state; None if the step cannot have happened in it."""
Stages = list[list[Step]]
"""Steps of an operation; those of a stage in any order, stages one after the other."""


def _put(state: dict[str, Node], path: str, node: Node | None) -> dict[str, Node]:
    found = {**state}
    found.pop(path, None)
    return found if node is None else {**found, path: node}


def _changed(path: str, change: Callable[[Node], Node | None]) -> Step:
    """A step that changes a node that must be there."""

    def step(state: dict[str, Node]) -> dict[str, Node] | None:
        node = state.get(path)
        changed = None if node is None else change(node)
        return None if changed is None else _put(state, path, changed)

    return step


def _seen(path: str, is_right: Callable[[Node | None], bool]) -> Step:
    """A step that changes nothing."""
    return lambda state: state if is_right(state.get(path)) else None


def _made(path: str, node: Node) -> Step:
    return lambda state: None if path in state else _put(state, path, node)


def _removed(path: str) -> Step:
    return lambda state: _put(state, path, None) if path in state else None


def _optional(step: Step) -> Step:
    """A step that may have been left out."""

    def either(state: dict[str, Node]) -> tuple[dict[str, Node], ...]:
        done = step(state)
        if done is None:
            return (state,)
        return (state, *done) if isinstance(done, tuple) else (state, done)

    return either


def stages_of(event: Event, *, renames_at_once: bool) -> Stages:
    """Steps of an operation, as its answer says that they were."""
    path = event.path
    if event.error == "JobReplacedError" and event.name in {
        "create", "delete", "rename", "replace",
    }:  # fmt: skip
        # what took its claim over may have come after it was done, or halfway
        done = stages_of(event._replace(error=""), renames_at_once=renames_at_once)
        return [[_optional(step) for step in stage] for stage in done]
    if event.error and event.name == "replace":  # it may have removed what it was to replace
        return [[lambda state: (state, _put(state, path, None))]]
    if event.error == "MetadataChangedError" and event.name == "attributes":
        # where the node was renamed in between, they may have gone with it
        more = frozenset({(event.args[0], event.args[1])})
        return [[lambda state: (state, *_with_attributes(state, more))]]
    if event.error == "migrated" and event.name == "write":
        # it may have been put before the objects of its array were copied
        done = stages_of(event._replace(error=""), renames_at_once=renames_at_once)
        return [[_optional(step) for step in stage] for stage in done]
    if event.error == "NodeNotFoundError":
        return [[_seen(path, lambda node: node is None)]]
    if event.error == "NodeExistsError":
        target = event.args[0] if event.name == "rename" else path
        return [[_seen(target, lambda node: node is not None)]]
    if event.error:
        return []  # refused: nothing has changed
    make = {
        "create": _create,
        "replace": _replace,
        "swap": _swap,
        "write": _write,
        "append": _append,
        "resize": _resize,
        "attributes": _attributes,
        "delete": lambda event: [[_removed(event.path)]],
        "rename": _rename if renames_at_once else _rename_one_by_one,
        "read": _read,
        "migrate": lambda _: [],
    }
    return make[event.name](event)


def _new(event: Event, elements: Sequence[int] = ()) -> Node:
    number = event.args[0]
    return Node(frozenset({("id", number)}), FIRST).having(0, elements)


def _create(event: Event) -> Stages:
    return [[_made(event.path, _new(event))]]


def _replace(event: Event) -> Stages:
    new = _new(event, event.args * FIRST)
    gone: Step = lambda state: _put(state, event.path, None)  # noqa: E731
    return [[gone], [_made(event.path, new)]]


def _swap(event: Event) -> Stages:
    new = _new(event, event.args * FIRST)
    return [[lambda state: _put(state, event.path, new)]]


def _write(event: Event) -> Stages:
    chunk, value = event.args

    def write(node: Node) -> Node:
        start, stop = chunk * CHUNK, min((chunk + 1) * CHUNK, node.length)
        return node.having(start, [value] * (stop - start))  # as NumPy, which cuts slices

    return [[_changed(event.path, write)]]


def _append(event: Event) -> Stages:
    count, value = event.args

    def append(node: Node) -> Node:
        return node.having(node.length, [value] * count)._replace(length=node.length + count)

    return [[_changed(event.path, append)]]


def _resize(event: Event) -> Stages:
    length = event.args[0]

    def resize(node: Node) -> Node:
        kept = node.elements[: min(length, node.length)]
        return node._replace(length=length, elements=kept + (0,) * (64 - len(kept)))

    return [[_changed(event.path, resize)]]


def _attributes(event: Event) -> Stages:
    more = frozenset({(event.args[0], event.args[1])})
    return [[_changed(event.path, lambda node: node._replace(attributes=node.attributes | more))]]


def _with_attributes(
    state: dict[str, Node], more: frozenset[tuple[str, int]]
) -> Iterator[dict[str, Node]]:
    """Yield the states that are possible if some node has got attributes."""
    for path, node in state.items():
        yield _put(state, path, node._replace(attributes=node.attributes | more))


def _rename(event: Event) -> Stages:
    def rename(state: dict[str, Node]) -> dict[str, Node] | None:
        (target,) = event.args
        if event.path not in state or target in state:
            return None
        return _put(_put(state, target, state[event.path]), event.path, None)

    return [[rename]]


def _rename_one_by_one(event: Event) -> Stages:
    def copy(state: dict[str, Node]) -> dict[str, Node] | None:
        (target,) = event.args
        if event.path not in state or target in state:
            return None
        return _put(state, target, state[event.path])

    return [[copy], [_removed(event.path)]]


def _read(event: Event) -> Stages:
    attributes, values = event.answer

    def document(node: Node | None) -> bool:
        wanted = (frozenset(attributes.items()), len(values))
        return node is not None and (node.attributes, node.length) == wanted

    def chunk(start: int) -> Step:
        part = tuple(values[start : start + CHUNK])
        # the object, which may hold more than the length says
        return _seen(
            event.path,
            lambda node: node is not None and node.elements[start : start + len(part)] == part,
        )

    starts = range(0, len(values), CHUNK)
    return [[_seen(event.path, document)], [chunk(start) for start in starts]]


@dataclass(frozen=True)
class _Place:
    """How far an operation is."""

    stage: int = 0
    done: int = 0
    """Steps of the stage, as bits."""


def _is_in_the_way(event: Event, events: Sequence[Event]) -> bool:
    """True if a rename was refused because of what is no node yet, or any more, at its target.

    What another operation that makes a node there has put is left alone. So is what a write has
    put that came too late: after the array that it had opened was moved or deleted, as it says. And
    so is what a removal has left that was stopped when it had removed the metadata.
    """
    if (event.name, event.error) != ("rename", "NodeExistsError"):
        return False
    return any(
        other.path == event.args[0]
        and other.began < event.ended
        and (
            (other.name in {"create", "replace", "swap"} and event.began < other.ended)
            or (other.name, other.error) == ("write", "NodeNotFoundError")
            or (other.name in {"delete", "rename"} and other.error == "JobReplacedError")
        )
        for other in events
    )


def explained(events: Sequence[Event], *, renames_at_once: bool = True) -> bool:
    """True if some order of the operations gives their answers."""
    plans = [
        [] if _is_in_the_way(event, events) else stages_of(event, renames_at_once=renames_at_once)
        for event in events
    ]
    first = tuple(_Place() for _ in events)
    seen: set[tuple[tuple[_Place, ...], State]] = set()
    waiting: list[tuple[tuple[_Place, ...], State]] = [(first, ())]
    while waiting:
        places, state = waiting.pop()
        if (places, state) in seen:
            continue
        seen.add((places, state))
        open_ones = [n for n, place in enumerate(places) if place.stage < len(plans[n])]
        if not open_ones:
            return True
        last = min(events[n].ended for n in open_ones)
        for number in open_ones:
            if events[number].began > last:
                continue
            place = places[number]
            stage = plans[number][place.stage]
            for following, changed in _next(place, stage, dict(state)):
                found = (*places[:number], following, *places[number + 1 :])
                waiting.append((found, tuple(sorted(changed.items()))))
    return False


def _next(
    place: _Place, stage: Sequence[Step], state: dict[str, Node]
) -> Iterator[tuple[_Place, dict[str, Node]]]:
    if not stage:
        yield _Place(place.stage + 1), state
    for bit, step in enumerate(stage):
        if place.done >> bit & 1:
            continue
        changed = step(state)
        if changed is None:
            continue
        done = place.done | 1 << bit
        whole = done == (1 << len(stage)) - 1
        after = _Place(place.stage + 1) if whole else replace(place, done=done)
        for one in changed if isinstance(changed, tuple) else (changed,):
            yield after, one
