"""``--price``: what the requests of a command cost, beside its plan and in its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zarr_dask.cli.output import echo

if TYPE_CHECKING:
    from zarr_dask.jobs.engine.prices import Priced

__all__ = ["price_option", "say_price"]

_META = "zarr_dask.price"


class _PricesType(click.ParamType[Any]):
    """The name of a table of prices, or a JSON file with one."""

    name = "PRICES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        from zarr_dask.jobs.engine.prices import PRICES, price_table

        if not isinstance(value, str) or value in PRICES:
            return value
        try:
            return price_table(json.loads(Path(value).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            self.fail(
                f"{value!r} is none of {', '.join(PRICES)}, and no JSON file with US dollars for "
                f'1,000 requests by kind, as in {{"read": 0.0004, "write": 0.005}}: {error}',
                param,
                ctx,
            )


def _keep(context: click.Context, _: click.Parameter, value: str | Mapping[str, float]) -> None:
    context.meta[_META] = value


price_option = click.option(
    "--price",
    metavar="PRICES",
    type=_PricesType(),
    expose_value=False,
    callback=_keep,
    help="Say what the requests cost, by list prices of s3, gs or az, or by a JSON file with US "
    "dollars for 1,000 requests by kind. Bytes are not priced.",
)
"""The option; its value is found by `say_price`."""


def say_price(subject: Priced) -> dict[str, float]:
    """Print the price of a plan or report, if asked for; return it as a member for JSON."""
    context = click.get_current_context(silent=True)
    prices = None if context is None else context.meta.get(_META)
    if prices is None:
        return {}
    from zarr_dask.jobs.engine.plan import format_requests
    from zarr_dask.jobs.engine.prices import format_price

    price = subject.price(prices)
    echo(f"  price   {format_price(price)} for requests ({format_requests(subject.requests)})")
    return {"price": price}
