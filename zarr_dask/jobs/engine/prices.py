"""Requests of plans and reports: their prices, and what a call took in time and requests.

`PRICES` are list prices for the standard class of storage, in US dollars for 1,000 requests, as
they were published in 2025. They differ by region and contract, so callers may give others. Bytes
that are stored, or sent out of a region, are not priced here. A value that is sent in parts counts
as one request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import isfinite
from time import perf_counter
from types import MappingProxyType
from typing import Any

from zarr_dask.jobs.engine.plan import format_requests, pluralize
from zarr_dask.stores.retry import counting_requests

__all__ = [
    "PRICES",
    "Measured",
    "Measurement",
    "Priced",
    "Traffic",
    "format_price",
    "measuring",
    "price_of",
    "price_table",
]


KINDS = ("read", "write", "copy", "inspect", "list", "delete")
"""Kinds of requests that reports count."""


def _table(read: float, write: float, listing: float) -> Mapping[str, float]:
    return MappingProxyType(
        {
            "read": read,
            "inspect": read,
            "write": write,
            "copy": write,
            "list": listing,
            "delete": 0.0,
        }
    )


PRICES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "s3": _table(0.0004, 0.005, 0.005),
        "gs": _table(0.0004, 0.005, 0.005),
        "az": _table(0.0005, 0.0065, 0.0065),
    }
)
"""Tables by the scheme of the service: US dollars for 1,000 requests of each kind."""


def price_table(prices: str | Mapping[str, float]) -> Mapping[str, float]:
    """Return a table of prices.

    Parameters
    ----------
    prices
        The name of one of `PRICES`, or a table of the same form; kinds that it lacks cost nothing.

    Raises
    ------
    ValueError
        If there is no such table, or it has other kinds, or something else than prices.
    """
    if isinstance(prices, str):
        if prices not in PRICES:
            raise ValueError(
                f"prices={prices!r}: expected one of {', '.join(PRICES)}, or US dollars for 1,000 "
                "requests by kind, as in {'read': 0.0004, 'write': 0.005}."
            )
        return PRICES[prices]
    given: Any = prices
    wrong = not isinstance(given, Mapping) or [
        kind for kind, price in given.items() if kind not in KINDS or not _is_price(price)
    ]
    if wrong:
        raise ValueError(
            f"prices={prices!r}: expected a price of 0 or more for some of the kinds "
            f"{', '.join(KINDS)}, in US dollars for 1,000 requests."
        )
    return prices


def _is_price(price: object) -> bool:
    is_number = isinstance(price, int | float) and not isinstance(price, bool)
    return is_number and isfinite(price) and price >= 0  # type: ignore[arg-type, operator]


def price_of(requests: Mapping[str, int], prices: str | Mapping[str, float]) -> float:
    """Return what requests cost, in US dollars.

    Examples
    --------
    >>> price_of({"read": 10_000, "write": 1_000}, "s3")
    0.009
    """
    table = price_table(prices)
    total = sum(count * table.get(kind, 0.0) / 1000 for kind, count in requests.items())
    return round(total, 12)


def format_price(dollars: float) -> str:
    """Return a price as text.

    Examples
    --------
    >>> format_price(12.345), format_price(0.0123), format_price(0)
    ('12.35 USD', '0.0123 USD', '0 USD')
    """
    return f"{dollars:.2f} USD" if dollars >= 1 else f"{dollars:.3g} USD"


class Priced:
    """A plan or report that knows its requests by kind."""

    __slots__ = ()

    requests: Any
    """Requests by kind."""

    def price(self, prices: str | Mapping[str, float] = "s3") -> float:
        """Return what the requests cost, in US dollars; bytes are not priced.

        Parameters
        ----------
        prices
            The name of a table of list prices (``"s3"``, ``"gs"``, ``"az"``), or a table: US
            dollars for 1,000 requests by kind, such as ``{"read": 0.0004, "write": 0.005}``.

        Raises
        ------
        ValueError
            If there is no such table, or it has something else than prices.
        """
        return price_of(self.requests, prices)


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
