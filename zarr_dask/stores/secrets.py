"""Credentials in storage options: recognising them, keeping them out of pickles and messages.

Credentials that are passed in Python stay in that process. They are in no task name, repr, plan,
journal, error or pickle. A store is pickled with a reference in their place. The reference is
looked up in the vault of the unpickling process. Another process has them if they were shared: with
the workers of a cluster by `zarr_dask.share_credentials`, with processes that are being started by
`CredentialsInitializer`. Forked children have those of their parent.

A reference is a slow digest, so that a short password cannot be guessed from it.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import scrypt, sha256
from typing import Any
from urllib.parse import quote, quote_plus

from zarr_dask.errors import CredentialsMissingError

__all__ = [
    "NOT_PICKLED",
    "CredentialsInitializer",
    "HoldsCredentials",
    "identity_of",
    "is_reference",
    "keep_credentials",
    "known_credentials",
    "public_options",
    "redacted",
    "references_of",
    "reveal_credentials",
    "seal_credentials",
    "unseal_credentials",
]

_CREDENTIAL = re.compile(
    r"key|secret|token|pass|cred|sas|auth|header|cookie|cert|login|user|session|connection_string"
)
_REFERENCE = "zarr_dask_credentials"
"""The option that replaces those left out; no file system has an option of this name."""
_WORDS = {"", "anon", "browser", "cache", "cloud", "google_default"}
"""Values that gcsfs accepts as a token and that are no secrets."""
NOT_PICKLED = (
    AttributeError,
    NotImplementedError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    pickle.PicklingError,
)
"""Errors raised by objects that cannot be pickled."""
_MOST_KEPT = 1024
"""Number of credentials that a process keeps; the least recently used are dropped first."""
_SIGNED = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")
_SHORTEST = 6  # a shorter text may be part of any word


def public_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that tell the location and how to read it, and hold no credentials.

    Examples
    --------
    >>> public_options({"key": "k", "client_kwargs": {"region_name": "r", "token": "t"}})
    {'client_kwargs': {'region_name': 'r'}}
    """
    kept = {}
    for name, value in options.items():
        if not _CREDENTIAL.search(name.lower()):
            kept[name] = public_options(value) if isinstance(value, Mapping) else value
    return kept


@lru_cache(maxsize=256)
def identity_of(url: str, options: str) -> str:
    """Return the identity of a location: its URL, and a digest of the options that matter.

    Other credentials do not change it, so that a job can be resumed with a new token.

    Examples
    --------
    >>> identity_of("s3://b/a", '{"key": "x"}') == identity_of("s3://b/a", "{}")
    True
    """
    public = json.dumps(public_options(json.loads(options)), sort_keys=True)
    return f"{url}#{sha256(public.encode()).hexdigest()[:16]}"


def redacted(text: str, options: Mapping[str, Any]) -> str:
    """Return a message of a service without the given credentials and without queries of URLs.

    Examples
    --------
    >>> redacted("bad key AKIA123 at https://host/a?sig=x", {"key": "AKIA123"})
    'bad key *** at https://host/a'
    >>> redacted("no such token in /info?token=a%2Fbcd%3D%3D", {"token": "a/bcd=="})
    'no such token in /info?token=***'
    """
    text = _SIGNED.sub(r"\1", text)
    given = _credentials(options)
    # libraries also show them as they are encoded in requests
    spellings = given | {way(value) for value in given for way in (_quoted, quote, quote_plus)}
    for value in sorted(spellings, key=len, reverse=True):
        text = text.replace(value, "***")
    return text


def _quoted(value: str) -> str:
    return quote(value, safe="")


def _credentials(options: Mapping[str, Any], *, all_of_them: bool = False) -> set[str]:
    found: set[str] = set()
    for name, value in options.items():
        secret = all_of_them or bool(_CREDENTIAL.search(name.lower()))
        if isinstance(value, Mapping):
            found |= _credentials(value, all_of_them=secret)
        elif secret and isinstance(value, str) and len(value) >= _SHORTEST:
            found |= {value, *re.findall(r"(?:AccountKey|SharedAccessSignature)=([^;]+)", value)}
    return found


# --- pickling -------------------------------------------------------------------------------------


def seal_credentials(options: str) -> str:
    """Return options as they are pickled, with a reference in place of credentials.

    Only a process that is being started by this one (`multiprocessing`) receives the credentials.

    Examples
    --------
    >>> "hunter2" in seal_credentials('{"anon": false, "password": "hunter2"}')
    False
    >>> seal_credentials('{"anon": true, "token": "anon"}')
    '{"anon": true, "token": "anon"}'
    """
    text, reference, secret = _packed(options)
    if reference:
        if secret:  # else it was received from another process, and only its reference is known
            _VAULT.keep(reference, secret)
        _NOTED.add(reference)
        if _is_starting_a_process():
            return unseal_credentials(options, "")
    return text


def is_reference(options: str) -> bool:
    """True if options hold a reference in place of credentials."""
    return _REFERENCE in options


def reveal_credentials(options: str, place: str) -> str:
    """Return options with the reference replaced by the credentials.

    Parameters
    ----------
    options
        As returned by `seal_credentials`, or as they were given.
    place
        The location that they are for, for messages.

    Raises
    ------
    CredentialsMissingError
        If this process does not know the credentials.
    """
    if not is_reference(options):
        return options
    public = json.loads(options)
    secret = _VAULT.find(public.pop(_REFERENCE))
    if secret is None:
        raise CredentialsMissingError(
            f"{place} was opened with credentials in storage_options, which stay in the process "
            "that they were given to and are not known to this one. Let every process find them "
            "by itself (the environment, FSSPEC_... variables, a profile, a role) and leave them "
            "out of storage_options; or hand them over: zarr_dask.share_credentials(client, x) to "
            "the workers of a cluster, initializer=zarr_dask.credentials_initializer(x) to "
            "processes that are started, for those of dask as its configuration "
            "'multiprocessing.initializer'."
        )
    return json.dumps(_merged(public, json.loads(secret)), sort_keys=True)


def unseal_credentials(options: str, place: str) -> str:
    """Return options as `reveal_credentials` does; unchanged if their credentials are not known."""
    try:
        return reveal_credentials(options, place)
    except CredentialsMissingError:
        return options  # they may be shared before they are used


@lru_cache(maxsize=256)
def _packed(options: str) -> tuple[str, str, str]:
    """Return options without credentials, their reference, and the credentials; "" for none."""
    given = json.loads(options)
    if _REFERENCE in given:
        return options, given[_REFERENCE], ""
    public, secret = _parted(given)
    if not secret:
        return options, "", ""
    text = json.dumps(secret, sort_keys=True)
    digest = scrypt(text.encode(), salt=b"zarr_dask", n=1 << 14, r=8, p=1, dklen=16)
    public[_REFERENCE] = digest.hex()
    return json.dumps(public, sort_keys=True), digest.hex(), text


def _parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into public ones and secret ones."""
    public: dict[str, Any] = {}
    secret: dict[str, Any] = {}
    for name, value in options.items():
        if _CREDENTIAL.search(name.lower()) and not _is_harmless(value):
            secret[name] = value
        elif isinstance(value, Mapping):
            public[name], inner = _parted(value)
            if inner:
                secret[name] = inner
        else:
            public[name] = value
    return public, secret


def _is_harmless(value: Any) -> bool:
    """True if a value cannot be a secret, whatever the name of the option."""
    return value is None or isinstance(value, bool) or (isinstance(value, str) and value in _WORDS)


def _merged(public: Mapping[str, Any], secret: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that `_parted` has split."""
    whole = dict(public)
    for name, value in secret.items():
        inner = public.get(name)
        whole[name] = _merged(inner, value) if isinstance(inner, Mapping) else value
    return whole


def _is_starting_a_process() -> bool:
    """True if this process is pickling for a child process that it is starting."""
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None


class _RecordedReferences(threading.local):
    """The references that a thread has pickled, while they are being recorded."""

    references: set[str] | None = None

    def add(self, reference: str) -> None:
        if self.references is not None:
            self.references.add(reference)


_NOTED = _RecordedReferences()


@contextmanager
def _noting_references() -> Iterator[set[str]]:
    """Record the references to credentials in stores that this thread pickles meanwhile."""
    before = _NOTED.references
    _NOTED.references = set()
    try:
        yield _NOTED.references
    finally:
        _NOTED.references = before


class HoldsCredentials:
    """Base of stores that are pickled without their credentials."""

    __slots__ = ()


def references_of(*values: Any) -> set[str]:
    """Return the references to credentials of all stores within values, which must be small.

    The values are pickled to find out; those that cannot be pickled are ignored.
    """
    from cloudpickle import dumps

    with _noting_references() as references:
        for value in values:
            with suppress(*NOT_PICKLED):  # pickling raises again where a value is sent
                dumps(value)
    return references


# --- the vault of a process -----------------------------------------------------------------------


class _CredentialStore:
    """Credentials by their references, as JSON texts; in memory only."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, str] = OrderedDict()
        self.renew()

    def renew(self) -> None:
        """Replace the lock in a forked process, where no other thread holds it."""
        self._lock = threading.Lock()

    def keep(self, reference: str, secret: str) -> None:
        with self._lock:
            self._kept[reference] = secret
            self._kept.move_to_end(reference)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)

    def find(self, reference: str) -> str | None:
        with self._lock:
            if reference in self._kept:
                self._kept.move_to_end(reference)
            return self._kept.get(reference)


_VAULT = _CredentialStore()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_VAULT.renew)


def keep_credentials(secrets: Mapping[str, str]) -> None:
    """Store credentials that another process has shared, as texts by their references."""
    for reference, secret in secrets.items():
        _VAULT.keep(reference, secret)


def known_credentials(references: Iterable[str]) -> dict[str, str]:
    """Return the texts of the references that this process knows."""
    found = {reference: _VAULT.find(reference) for reference in references}
    return {reference: secret for reference, secret in found.items() if secret is not None}


@dataclass(frozen=True)
class CredentialsInitializer:
    """Credentials for a process that is being started, used as its initializer.

    Pickled for any other purpose, it holds only references.
    """

    references: tuple[str, ...]

    def __call__(self) -> None:
        """Do nothing: unpickling has stored the credentials in this process."""

    def __reduce__(self) -> tuple[Any, ...]:
        secrets = known_credentials(self.references) if _is_starting_a_process() else {}
        return _handed_over, (self.references, secrets)


def _handed_over(references: tuple[str, ...], secrets: Mapping[str, str]) -> CredentialsInitializer:
    keep_credentials(secrets)
    return CredentialsInitializer(references)
