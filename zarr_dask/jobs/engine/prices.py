"""Prices of requests to services, for plans and reports.

`PRICES` are list prices for the standard class of storage, in US dollars for 1,000 requests, as
they were published in 2025. They differ by region and contract, so anybody may give others. Bytes
that are stored, or sent out of a region, are not priced here. A value that is sent in parts counts
as one request.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType
from typing import Any

__all__ = ["PRICES", "Priced", "format_price", "price_of", "price_table"]

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
