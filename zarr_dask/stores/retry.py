"""Retries of requests that failed for a transient reason.

A store raises `zarr_dask.errors.StoreUnavailableError` for transient failures: no response in time,
a lost connection, half a response, a service that is too busy. Stores behind a network retry each
request by their `RetryPolicy`, whatever library serves them; `Retrying` does the same for any other
store.

Waits grow with every attempt and are random, so that many processes do not return all at once. The
service's own ``Retry-After`` is obeyed. A process has a budget of retries: a successful request
gives back the retries that it has taken and one more, so that only retries in vain use it up. So
when a service is down, many threads stop hammering it after a while.

The default policy outlasts an outage of a minute in jobs, and is shortened in calls that a user
waits for (`zarr_dask.stores.patience`). A policy that is given holds in every term. A service that
reports too many requests gets fewer at a time (`zarr_dask._util.threads.request_slots`).

`counting_retries` counts the requests of some work and their retries, for reports.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from math import ceil, log2
from random import SystemRandom
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from zarr_dask._util.threads import slow_down
from zarr_dask.errors import StoreError, StoreUnavailableError
from zarr_dask.stores.base import (
    WHOLE,
    Buffer,
    Listing,
    Range,
    TaggedBytes,
    VersionRequest,
    etag_of,
    get_ranges_if_match,
    list_sizes,
)
from zarr_dask.stores.compare_and_swap import as_cas_store
from zarr_dask.stores.patience import SERVICES, in_task, is_foreground, is_task
from zarr_dask.stores.wrapper import StoreWrapper

__all__ = [
    "DEFAULT",
    "FOREGROUND",
    "NEVER",
    "UNREACHED",
    "Attempts",
    "Retries",
    "RetryPolicy",
    "Retrying",
    "call_with_retries",
    "cas_put_with_retries",
    "counting_requests",
    "counting_retries",
    "current_count",
    "described_policy",
    "note_requests",
    "note_retries",
    "parse_retry_policy",
    "upload_timeout",
]

_THROTTLED_WAIT = 5  # times the first wait, if a busy service does not say how long
_SMALL = 1 << 20  # bytes that are sent in no time
_SLOWEST = 1 << 17  # minimum speed in bytes per second of sending larger values
_RANDOM = SystemRandom()  # the default one has the same state in forked processes

_Result = TypeVar("_Result")
_AnyResult = TypeVar("_AnyResult")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits for the number and duration of retries of a request.

    Parameters
    ----------
    attempts
        Attempts of one request at most, including the first; 1 for no retries.
    seconds
        Seconds after which no further attempt is begun.
    wait
        Largest wait in seconds before the second attempt; it doubles with every attempt.
    longest_wait
        Largest wait in seconds between two attempts, unless the service asks for more.
    timeout
        Seconds to wait for a response, and for each part of it.
    budget
        Retries in vain in a process before it stops retrying.

    Raises
    ------
    ValueError
        If a number is negative, or there would be no attempt at all.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> patient = zd.RetryPolicy(attempts=20, seconds=600)
    >>> options = {"anon": True, "retry": patient}
    >>> array = zd.open("s3://bucket/a.zarr", storage_options=options)  # doctest: +SKIP
    """

    attempts: int = 100
    seconds: float = 180.0
    wait: float = 0.1
    longest_wait: float = 10.0
    timeout: float = 30.0
    budget: int = 10_000

    def __post_init__(self) -> None:
        bad = [one.name for one in fields(self) if getattr(self, one.name) < 0]
        if bad or self.attempts < 1 or self.timeout == 0:
            raise ValueError(
                f"{self} makes no sense: expected at least one attempt, a timeout above 0, and no "
                "negative numbers."
            )


DEFAULT = RetryPolicy()
"""The default policy of stores behind a network; shortened in calls that a user waits for."""

FOREGROUND = RetryPolicy(attempts=10, seconds=6, longest_wait=1)
"""Replaces `DEFAULT` in calls that a user waits for.

Several attempts, because each may meet another connection that was kept and has died since.
"""

UNREACHED = RetryPolicy(attempts=4, seconds=2)
"""Replaces `DEFAULT` outside of tasks where nothing responds, and nothing ever has."""

NEVER = RetryPolicy(attempts=1)
"""No retries."""


def parse_retry_policy(option: Any) -> RetryPolicy:
    """Return the policy given by ``storage_options["retry"]``.

    Parameters
    ----------
    option
        A policy, its fields as a mapping, or None or False for no retries.

    Raises
    ------
    StoreError
        If it is none of them, or has fields that a policy does not have.

    Examples
    --------
    >>> parse_retry_policy({"attempts": 3}).attempts, parse_retry_policy(False).attempts
    (3, 1)
    """
    if isinstance(option, RetryPolicy):
        return option
    if option is None or option is False:
        return NEVER
    try:
        return RetryPolicy(**option)
    except (TypeError, ValueError) as error:
        known = ", ".join(one.name for one in fields(RetryPolicy))
        raise StoreError(
            f"storage_options['retry'] is {option!r}: expected a RetryPolicy, an object with some "
            f"of its fields ({known}), or None for no retries."
        ) from error


def described_policy(policy: RetryPolicy) -> dict[str, Any]:
    """Return a policy as a JSON object for `parse_retry_policy`; empty for the default."""
    default = asdict(DEFAULT)
    return {name: value for name, value in asdict(policy).items() if value != default[name]}


def upload_timeout(timeout: float, nbytes: int) -> float:
    """Return the seconds to wait for a response from the start of sending a value.

    They are rounded up by doubling, so that there are only a few different ones.

    Examples
    --------
    >>> upload_timeout(30, 1000), upload_timeout(30, 4 << 20), upload_timeout(30, 64 << 20)
    (30, 120.0, 960.0)
    """
    if nbytes <= _SMALL:
        return timeout
    return timeout * 2.0 ** ceil(log2(1 + nbytes / _SLOWEST / timeout))


# --- attempts -------------------------------------------------------------------------------------


class _RetryBudget:
    """The number of retries in vain of this process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset the count; the new lock is free, also in a forked process."""
        self._lock = threading.Lock()
        self.spent = 0

    def take(self, most: int) -> bool:
        """Take one retry if fewer than `most` are taken; return True if it was."""
        with self._lock:
            allowed = self.spent < most
            self.spent += allowed
        return allowed

    def give_back(self, count: int) -> None:
        with self._lock:
            self.spent = max(self.spent - count, 0)


_BUDGET = _RetryBudget()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_BUDGET.forget)


class Retries:
    """Counts of requests, retried requests and waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self.seconds = 0.0
        """Seconds spent waiting for the next attempt, of all threads together."""
        self.requests: Counter[str] = Counter()
        """Requests by kind: read, write, inspect, list, delete; repeated ones count again."""

    def note(self, requests: int, waiting: float = 0.0) -> None:
        """Count some requests that are about to be retried; safe to call from many threads."""
        with self._lock:
            self.count += requests
            self.seconds += waiting

    def add(self, other: Retries) -> None:
        """Add what was counted elsewhere; safe to call from many threads."""
        with self._lock:
            self.count += other.count
            self.seconds += other.seconds
            self.requests.update(other.requests)

    def __getstate__(self) -> tuple[int, float, dict[str, int]]:
        """Return the counts alone: a lock belongs to one process."""
        return self.count, self.seconds, dict(self.requests)

    def __setstate__(self, counts: tuple[int, float, dict[str, int]]) -> None:
        self.__init__()  # type: ignore[misc]
        self.count, self.seconds, self.requests = counts[0], counts[1], Counter(counts[2])

    def note_request(self, kind: str, count: int) -> None:
        """Count some requests of a kind; safe to call from many threads."""
        with self._lock:
            self.requests[kind] += count


_COUNTED: ContextVar[Retries | None] = ContextVar("zarr_dask_retries", default=None)


def current_count() -> Retries | None:
    """Return the innermost count of this context, for work that is done elsewhere."""
    return _COUNTED.get()


@contextmanager
def counting_requests() -> Iterator[Retries]:
    """Do the same as `counting_retries`; whoever is waited for, a user or a task, stays so."""
    retries = Retries()
    token = _COUNTED.set(retries)
    try:
        yield retries
    finally:
        _COUNTED.reset(token)


@contextmanager
def counting_retries() -> Iterator[Retries]:
    """Count the requests within the context, and those that are retried.

    Requests within a nested count are not included. The stores' own threads count for the caller
    that waits for them. Retries made by a library itself are not known. The work of the context is
    that of a task (`zarr_dask.stores.patience.in_task`).

    Yields
    ------
    Retries
        The count so far.

    Examples
    --------
    >>> with counting_retries() as retries:
    ...     pass
    >>> retries.count
    0
    """
    with counting_requests() as retries, in_task():
        yield retries


def note_retries(requests: int, waiting: float = 0.0) -> None:
    """Count some requests that are about to be retried, after a wait of some seconds."""
    counted = _COUNTED.get()
    if counted is not None:
        counted.note(requests, waiting)


def note_requests(kind: str, count: int = 1) -> None:
    """Count some requests that are sent; a value that is sent in parts counts once."""
    counted = _COUNTED.get()
    if counted is not None:
        counted.note_request(kind, count)


class Attempts:
    """The attempts of one request.

    Parameters
    ----------
    policy
        The limits of number and duration.
    service
        Identifies the service in this process; None if it is not known.
    """

    def __init__(self, policy: RetryPolicy, service: Hashable = None) -> None:
        self._policy = policy
        self._service = service
        self._begun = time.monotonic()
        self._made = 1

    def pause(self, error: StoreUnavailableError, requests: int = 1) -> None:
        """Wait for the next attempt after a failed one.

        Parameters
        ----------
        error
            Its error.
        requests
            Number of requests that are retried together.

        Raises
        ------
        StoreUnavailableError
            If there is no further attempt.
        """
        policy = _limits(self._policy, error, self._service)
        waiting = self._next_wait(policy, error)
        passed = time.monotonic() - self._begun
        why = ""
        if self._made >= policy.attempts:
            why = f"given up after {self._made} attempts in {passed:.1f} s"
        elif passed + waiting > policy.seconds:
            why = (
                f"given up after {self._made} attempts in {passed:.1f} s: the next one would be in "
                f"{waiting:.1f} s, and RetryPolicy.seconds is {policy.seconds:g}"
            )
        elif not _BUDGET.take(policy.budget):
            why = f"given up: {policy.budget} retries of this process were in vain"
        if why and policy is UNREACHED:
            why += (
                "; nothing has answered there so far: check the address, and whether the service "
                "expects http:// or https://"
            )
        if why:
            raise error if policy.attempts == 1 else _given_up(error, why) from error.__cause__
        if error.throttled:
            slow_down()
        SERVICES.tell_wait(error, self._made, passed, waiting)
        self._made += 1
        note_retries(requests, waiting)
        time.sleep(waiting)

    def succeeded(self) -> None:
        """Give back the retries that were taken, and one more."""
        _BUDGET.give_back(self._made)
        SERVICES.note_response(self._service)
        if self._made > 1:
            SERVICES.tell_response(self._made, time.monotonic() - self._begun)

    def _next_wait(self, policy: RetryPolicy, error: StoreUnavailableError) -> float:
        waiting = min(policy.wait * 2.0 ** (self._made - 1), policy.longest_wait)
        if error.throttled and error.retry_after is None:
            waiting = max(waiting, min(policy.wait * _THROTTLED_WAIT, policy.longest_wait))
        return _RANDOM.uniform(0.5, 1) * waiting + (error.retry_after or 0)


def _limits(policy: RetryPolicy, error: StoreUnavailableError, service: Hashable) -> RetryPolicy:
    """Return the policy for a failed request: a given one as it is, the default one adapted."""
    if policy != DEFAULT or is_task():
        return policy
    if error.unreachable and not SERVICES.has_responded(service):
        return UNREACHED
    return FOREGROUND if is_foreground() else policy


def _given_up(error: StoreUnavailableError, why: str) -> StoreUnavailableError:
    final = StoreUnavailableError(f"{str(error).rstrip('.')} ({why}).")
    final.retry_after, final.throttled = error.retry_after, error.throttled
    final.unreachable = error.unreachable
    return final


def call_with_retries(
    policy: RetryPolicy, attempt: Callable[[], _Result], service: Hashable = None
) -> _Result:
    """Call `attempt` until it succeeds, and return its result.

    Parameters
    ----------
    policy
        The limits of number and duration.
    attempt
        Makes one attempt.
    service
        Identifies the service in this process; None if it is not known.

    Raises
    ------
    StoreUnavailableError
        If it has failed as often as the policy allows.
    Exception
        Any other error, at once.
    """
    attempts = None
    while True:
        try:
            result = attempt()
        except StoreUnavailableError as error:
            attempts = attempts or Attempts(policy, service)
            attempts.pause(error)
        else:
            SERVICES.note_response(service)
            if attempts is not None or _BUDGET.spent:
                (attempts or Attempts(policy)).succeeded()
            return result


def cas_put_with_retries(
    policy: RetryPolicy,
    put: Callable[[], bool],
    look: Callable[[], Buffer | None],
    buffers: Sequence[Buffer],
    service: Hashable = None,
) -> bool:
    """Put a value conditionally, and retry if that fails for a transient reason.

    An attempt whose response was lost may have put the value, and then the condition of the next
    one fails. So the value is read to find out.

    Parameters
    ----------
    policy
        The policy for retries.
    put
        Makes one attempt; returns True if the condition held.
    look
        Returns the current value.
    buffers
        The value to put.
    service
        As for `call_with_retries`.
    """
    doubtful = False

    def attempt() -> bool:
        nonlocal doubtful
        try:
            return put()
        except StoreUnavailableError:
            doubtful = True
            raise

    if call_with_retries(policy, attempt, service):
        return True
    return doubtful and call_with_retries(policy, look, service) == b"".join(buffers)


# --- around any store -----------------------------------------------------------------------------


@runtime_checkable
class _RetriesItself(Protocol):
    """A store that has a retry policy of its own."""

    policy: RetryPolicy

    def with_policy(self, policy: RetryPolicy) -> Self:
        """Return the same store with another policy."""
        ...


@dataclass(frozen=True)
class Retrying(StoreWrapper):
    """A wrapper that retries requests that failed for a transient reason.

    A store that retries by itself (those behind a network do) is given the policy instead. Of a
    batch, only the failed requests are repeated, one by one.

    Parameters
    ----------
    store
        Any store.
    policy
        The limits of number and duration.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore, Retrying, RetryPolicy
    >>> Retrying(MemoryStore({"a": b"1"}), RetryPolicy(attempts=3)).get("a")
    b'1'
    """

    policy: RetryPolicy = DEFAULT

    def __post_init__(self) -> None:
        if isinstance(self.store, _RetriesItself) and not isinstance(self.store, StoreWrapper):
            object.__setattr__(self, "store", self.store.with_policy(self.policy))
            object.__setattr__(self, "policy", NEVER)

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return call_with_retries(self.policy, lambda: self.store.get(key))

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        return self._batch(self.store.get_ranges, requests)

    def get_versions(self, requests: Sequence[VersionRequest]) -> list[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`."""
        return self._batch(lambda some: [*get_ranges_if_match(self.store, some)], requests)

    def _batch(
        self, ask: Callable[[Sequence[_AnyResult]], list[_Result]], requests: Sequence[_AnyResult]
    ) -> list[_Result]:
        if len(requests) == 1 or self.policy.attempts == 1:
            return call_with_retries(self.policy, lambda: ask(requests))
        try:
            return ask(requests)
        except StoreUnavailableError:
            note_retries(1)  # no more than one has failed
            return [self._one(ask, request) for request in requests]

    def _one(
        self, ask: Callable[[Sequence[_AnyResult]], list[_Result]], request: _AnyResult
    ) -> _Result:
        return call_with_retries(self.policy, lambda: ask([request]))[0]

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        call_with_retries(self.policy, lambda: self.store.set(key, buffers))

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        store = as_cas_store(self.store)
        return cas_put_with_retries(
            self.policy,
            lambda: store.set_if(key, buffers, tag),
            lambda: self.store.get(key),
            buffers,
        )

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        return call_with_retries(
            self.policy, lambda: as_cas_store(self.store).get_tagged(key, wanted)
        )

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.etag_of`."""
        return call_with_retries(self.policy, lambda: etag_of(self.store, key))

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        call_with_retries(self.policy, lambda: self.store.delete(key))

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        call_with_retries(self.policy, lambda: self.store.delete_prefix(prefix))

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`; all keys are in memory at a time."""
        return iter(call_with_retries(self.policy, lambda: [*self.store.list(prefix)]))

    def list_sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.SupportsListSizes`."""
        return iter(call_with_retries(self.policy, lambda: [*list_sizes(self.store, prefix)]))

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        return call_with_retries(self.policy, lambda: self.store.list_dir(prefix))

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        return call_with_retries(self.policy, lambda: self.store.size(key))
