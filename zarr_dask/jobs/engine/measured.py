"""The time and requests of a call, as its report has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from zarr_dask.jobs.engine.plan import pluralize
from zarr_dask.jobs.engine.prices import Priced
from zarr_dask.jobs.engine.task_result import format_requests
from zarr_dask.stores.retry import counting_requests

__all__ = ["Measured", "Measurement", "Traffic", "measuring"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Time and requests of a call."""

    seconds: float = 0.0
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests to services by kind; files have none."""
    retried: int = 0
    """Requests that were retried."""
    waited: float = 0.0
    """Seconds that they have waited, of all threads together."""


class Measurement:
    """Time and requests since a call began."""

    def __init__(self) -> None:
        self.traffic = Traffic()


@contextmanager
def measuring() -> Iterator[Measurement]:
    """Measure the work of a context, its tasks included; known when the context has ended."""
    found = Measurement()
    begun = perf_counter()
    with counting_requests() as counted:
        yield found
    found.traffic = Traffic(
        perf_counter() - begun, dict(counted.requests), counted.count, counted.seconds
    )


class Measured(Priced):
    """A report with the time and requests of its call."""

    __slots__ = ()

    traffic: Traffic

    @property
    def seconds(self) -> float:
        """Time of the call."""
        return self.traffic.seconds

    @property
    def requests(self) -> Mapping[str, int]:
        """Requests by kind: ``read``, ``inspect``, ``list``, ...; files have none."""
        return self.traffic.requests

    @property
    def retried(self) -> int:
        """Requests that were retried because a store was busy or slow, or cut off a reply."""
        return self.traffic.retried

    @property
    def waited(self) -> float:
        """Seconds that retried requests have waited, of all threads together."""
        return self.traffic.waited

    def traffic_to_json(self) -> dict[str, Any]:
        """Return time and requests as JSON values."""
        return asdict(self.traffic)

    def traffic_lines(self) -> list[str]:
        """Return lines of text; none where no service was asked."""
        if not self.requests:
            return []
        again = f", {pluralize(self.retried, 'request')} tried again" if self.retried else ""
        waited = f", {self.waited:.3g} s waited" if self.waited else ""
        requests = format_requests(self.requests)
        return [f"  {self.seconds:.3g} s; requests: {requests}{again}{waited}"]
