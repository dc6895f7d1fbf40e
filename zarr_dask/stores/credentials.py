"""Which storage options let somebody in, and what can be told of the others.

Options travel to the processes that use them and nowhere else: they are in the messages that dask
sends to its workers, unless the workers find credentials in their environment. They are in no
name, no text of a value, no plan, no journal and no error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

__all__ = ["identity_of", "redacted", "without_credentials"]

_CREDENTIAL = re.compile(
    r"key|secret|token|pass|cred|sas|auth|header|cookie|cert|login|user|session|connection_string"
)
_SIGNED = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")
_SHORTEST = 6  # a shorter text may be part of any word


def without_credentials(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that say where something is and how it is read, and let nobody in.

    Examples
    --------
    >>> without_credentials({"key": "k", "client_kwargs": {"region_name": "r", "token": "t"}})
    {'client_kwargs': {'region_name': 'r'}}
    """
    kept = {}
    for name, value in options.items():
        if not _CREDENTIAL.search(name.lower()):
            kept[name] = without_credentials(value) if isinstance(value, Mapping) else value
    return kept


@lru_cache(maxsize=256)
def identity_of(url: str, options: str) -> str:
    """What tells a place from all others: its URL, and a digest of the options that matter.

    Other credentials do not make another place, so that a job goes on with the next hour's token.

    Examples
    --------
    >>> identity_of("s3://b/a", '{"key": "x"}') == identity_of("s3://b/a", "{}")
    True
    """
    public = json.dumps(without_credentials(json.loads(options)), sort_keys=True)
    return f"{url}#{sha256(public.encode()).hexdigest()[:16]}"


def redacted(text: str, options: Mapping[str, Any]) -> str:
    """A message of a service without the credentials that were given, nor queries of URLs.

    Examples
    --------
    >>> redacted("bad key AKIA123 at https://host/a?sig=x", {"key": "AKIA123"})
    'bad key *** at https://host/a'
    """
    text = _SIGNED.sub(r"\1", text)
    for value in sorted(_credentials(options), key=len, reverse=True):
        text = text.replace(value, "***")
    return text


def _credentials(options: Mapping[str, Any], *, all_of_them: bool = False) -> set[str]:
    found: set[str] = set()
    for name, value in options.items():
        secret = all_of_them or bool(_CREDENTIAL.search(name.lower()))
        if isinstance(value, Mapping):
            found |= _credentials(value, all_of_them=secret)
        elif secret and isinstance(value, str) and len(value) >= _SHORTEST:
            found |= {value, *re.findall(r"(?:AccountKey|SharedAccessSignature)=([^;]+)", value)}
    return found
