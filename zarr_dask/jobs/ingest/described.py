"""Files as one hierarchy, described in a plan that is kept in a file: by their survey."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from zarr_dask.errors import PlanError
from zarr_dask.jobs.ingest.combine import Combination, combine, with_zero_fills
from zarr_dask.jobs.ingest.dataset_store import DatasetStore
from zarr_dask.jobs.ingest.differences import checked_settle, refuse
from zarr_dask.jobs.ingest.survey import read_survey
from zarr_dask.stores.base import Store
from zarr_dask.stores.config import from_config, to_config

__all__ = ["described", "files_of"]


def described(
    survey: tuple[Store, str],
    made: Combination,
    settle: Mapping[str, str],
    variables: Sequence[str] | None,
) -> dict[str, Any]:
    """Return how the files of a survey were put together, as a JSON object without secrets.

    Raises
    ------
    StoreError
        If the survey is kept where no other process finds it.
    """
    store, key = survey
    return {
        "survey": {"store": to_config(store), "key": key},
        "concat": made.concat,
        "order": [one.url for one in made.headers],
        "settle": dict(settle),
        "variables": None if variables is None else list(variables),
        "zero_fills": made.has_zero_fills,
    }


def files_of(
    description: Mapping[str, Any], identity: str, options: Mapping[str, Any] | None
) -> DatasetStore:
    """Return the files that `described` has described.

    Parameters
    ----------
    description
        What it returned.
    identity
        Identity of the files then.
    options
        Options of remote stores; keyed by scheme if they are for several services.

    Raises
    ------
    PlanError
        If the survey is gone, or not of the same files any more.
    """
    return _files(json.dumps(description), identity, json.dumps(dict(options or {})))


@lru_cache(maxsize=1)  # each array of a plan asks for them
def _files(description: str, identity: str, options: str) -> DatasetStore:
    given, own = json.loads(description), json.loads(options)
    store, key = from_config(given["survey"]["store"], own), str(given["survey"]["key"])
    survey = read_survey(store, key)
    known = {} if survey is None else {one.url: one for one in survey.headers}
    remedy = "Make the plan again."
    if survey is None or not {*given["order"]} <= {*known}:
        raise PlanError(f"the survey {store.url}/{key} is not that of the plan. {remedy}")
    settle = checked_settle(given["settle"])
    made = combine(
        [known[url] for url in given["order"]],
        concat=given["concat"],
        order=None,
        settle=settle,
        variables=given["variables"],
    )
    refuse(made.differences)
    if given.get("zero_fills"):
        made = with_zero_fills(made)
    scheme = given["order"][0].partition("://")[0]
    found = DatasetStore.of(made, own.get(scheme, own))
    if found.identity != identity:
        raise PlanError(f"files have changed since {store.url}/{key} was planned for. {remedy}")
    return found
