"""Repositories of Icechunk by URL: a branch, a tag or a snapshot; branches can be written, too.

``icechunk:///data/repo@branch.main``, ``icechunk+s3://bucket/repo@tag.v1``, ``@<snapshot id>``;
the branch main without any of them. An open store is named by its snapshot, which plans keep. A
job that writes opens a session of the branch (`BranchSession`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

from zarr_dask.errors import MissingDependencyError, ReadOnlyError, StoreError
from zarr_dask.stores.backends.icechunk_session import BranchSession, PlaceBeside
from zarr_dask.stores.backends.zarr_python import ZarrPythonStore
from zarr_dask.stores.base import Store
from zarr_dask.stores.wrappers.base import ReadOnly

if TYPE_CHECKING:
    from icechunk import Storage

__all__ = ["IcechunkURL", "IcechunkVersion"]

_S3_OPTIONS = ("region", "endpoint_url", "allow_http", "force_path_style", "requester_pays")
_OPTIONS_BESIDE = ("region", "endpoint_url", "requester_pays")
"""Options that have the same names for objects beside the repository."""
_ANONYMOUS = "anonymous"
_MESSAGE = "message"


class IcechunkURL:
    """Opens URLs of Icechunk; see `zarr_dask.stores.registry.register_store`."""

    @classmethod
    def from_url(cls, url: str, storage_options: Mapping[str, Any]) -> Store:
        """Return the store of a session for reading.

        Credentials come from the environment: a session holds its own, and is sent to workers.

        Raises
        ------
        MissingDependencyError
            If Icechunk is not installed.
        StoreError
            If there is no such repository, branch, tag or snapshot, or an option is unknown.
        """
        try:
            import icechunk
        except ImportError as error:
            raise MissingDependencyError(
                f"{url} is a repository of Icechunk: install it (pip install icechunk)."
            ) from error
        place, at, reference = url.rpartition("@")
        try:
            storage = _storage(place if at else url, storage_options)
            repository = icechunk.Repository.open(storage)
            session = repository.readonly_session(**_version(reference if at else ""))
        except (icechunk.IcechunkError, ValueError) as error:
            raise StoreError(
                f"{url} cannot be opened: {str(error).splitlines()[0]}. Expected a repository "
                "(icechunk.Repository.create makes one), and @branch.NAME, @tag.NAME or @SNAPSHOT "
                "behind it. What lies in it is named apart: path= in Python, PATH after URL on the "
                "command line."
            ) from error
        text = json.dumps(dict(storage_options), sort_keys=True)
        version = (place, reference) if at else (url, "")
        return ReadOnly(IcechunkVersion(session.store, version[0], text, version[1], repository))


@dataclass(frozen=True, eq=False)
class IcechunkVersion(ZarrPythonStore):
    """The content of a repository in one snapshot.

    Parameters
    ----------
    store
        The store of a session for reading.
    place
        URL of the repository.
    options
        Storage options, as JSON text.
    reference
        The branch, tag or snapshot, as it follows the "@"; empty for the branch main.
    repository
        The repository, in the process that has opened it.
    """

    place: str = ""
    options: str = "{}"
    reference: str = ""
    repository: Any = field(default=None, repr=False)

    how_to_write: ClassVar = (
        "The URL of a branch is written by functions that commit at their end, such as to_zarr; to "
        "change open nodes, pass the store of a session of Icechunk, and commit that."
    )

    @property
    def url(self) -> str:
        """The URL of the snapshot: a branch may have another one later."""
        return f"{self.place}@{self.store.session.snapshot_id}"

    @property
    def identity(self) -> str:
        """The URL of the snapshot, which never changes."""
        return self.url

    def description(self) -> dict[str, Any]:
        """See `zarr_dask.stores.config.DescribedStore`; there are no secrets among the options."""
        options = json.loads(self.options)
        return {"url": self.url, **({"options": options} if options else {})}

    def __reduce__(self) -> tuple[Any, ...]:
        return IcechunkVersion, (self.store, self.place, self.options, self.reference)

    def session_to_write(self) -> BranchSession:
        """See `zarr_dask.stores.sessions.session_to_write`.

        Raises
        ------
        ReadOnlyError
            If it is no branch.
        """
        import icechunk

        branch = _version(self.reference).get("branch")
        if branch is None:
            raise ReadOnlyError(
                f"{self.place}@{self.reference} never changes: it is a tag or a snapshot. Write to "
                f"a branch, {self.place}@branch.NAME."
            )
        options = json.loads(self.options)
        repository = self.repository or icechunk.Repository.open(_storage(self.place, options))
        place = (self.place, branch, self.store)
        return BranchSession(repository, *place, options, self.place_beside)

    @property
    def place_beside(self) -> PlaceBeside | None:
        """See `zarr_dask.stores.open.sibling_location`; None for what is no branch."""
        branch = _version(self.reference).get("branch")
        if branch is None:
            return None
        mark = f"@{quote(branch, safe='')}"
        parts, options = urlsplit(self.place), json.loads(self.options)
        if not parts.scheme.endswith("+s3"):
            return unquote(parts.path), mark, {}
        given = {name: options[name] for name in _OPTIONS_BESIDE if name in options}
        if options.get(_ANONYMOUS):
            given["anon"] = True
        return f"s3://{parts.netloc}{parts.path.rstrip('/')}", mark, given


def _version(reference: str) -> dict[str, Any]:
    kind, dot, name = reference.partition(".")
    if not reference:
        return {"branch": "main"}
    return {kind: name} if dot and kind in {"branch", "tag"} else {"snapshot_id": reference}


def _storage(place: str, options: Mapping[str, Any]) -> Storage:
    """Return where a repository is.

    Raises
    ------
    StoreError
        If an option is unknown, or no path is given.
    """
    import icechunk

    parts = urlsplit(place)
    known = (*_S3_OPTIONS, _ANONYMOUS) if parts.scheme.endswith("+s3") else ()
    unknown = sorted(set(options) - {*known, _MESSAGE})
    if unknown:
        raise StoreError(
            f"{place}: unknown storage_options {', '.join(unknown)}; expected some of "
            f"{', '.join((*known, _MESSAGE))}. Credentials come from the environment; with others, "
            "pass the store of a session of repository."
        )
    path = unquote(parts.path)
    if not known:
        if parts.netloc:
            raise StoreError(
                f"{place} names a host, {parts.netloc!r}: the URL of a repository on this machine "
                f"has three slashes, as icechunk://{Path(parts.netloc + path).absolute()}."
            )
        return icechunk.local_filesystem_storage(path)
    given: dict[str, Any] = {} if options.get(_ANONYMOUS) else {"from_env": True}
    given |= {name: value for name, value in options.items() if name != _MESSAGE}
    return icechunk.s3_storage(bucket=parts.netloc, prefix=path.strip("/"), **given)
