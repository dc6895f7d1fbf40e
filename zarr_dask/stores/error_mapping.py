"""Classification of errors of other libraries: which ones are transient.

The libraries behind fsspec have exceptions of their own, some of which are not even ``OSError``.
They are identified without importing a library: one that is not loaded has raised nothing.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from zarr_dask.errors import AccessDeniedError, StoreError, StoreUnavailableError

__all__ = [
    "BARE_REDIRECT",
    "EXPIRED_CODES",
    "address_error",
    "as_store_error",
    "codes_of",
    "denied_error",
    "is_not_found",
    "library_errors",
    "permanent_reason",
    "retry_after",
    "statuses_of",
    "words_of",
]

BARE_REDIRECT = "redirect without LOCATION"
"""In obstore's message where a service wants to be asked elsewhere, and does not tell where."""
EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
"""Codes of services for credentials that have expired; S3 answers with status 400."""
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_ABSENT = {404, 410}
_THROTTLED = {429, 503}
_THROTTLED_CODES = {"SlowDown", "ServerBusy", "Throttling", "ThrottlingException"}
_PASSING_CODES = {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable"}
_PASSING_CODES |= _THROTTLED_CODES
_BASES = (
    ("aiohttp", "ClientError"),
    ("asyncssh", "Error"),
    ("azure.core.exceptions", "AzureError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("fsspec.implementations.reference", "ReferenceNotReachable"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("http.client", "HTTPException"),
    ("json.decoder", "JSONDecodeError"),
    ("paramiko", "SSHException"),
    ("zipfile", "BadZipFile"),
)
_CUT = (
    StoreUnavailableError,
    ConnectionError,
    EOFError,
    TimeoutError,
    socket.gaierror,
)
_NO_ROUTE = {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH}
_TOLD_NAMES = {"SSLError", "TooManyRedirects"}
# by name, because the library need not be loaded; names survive moved modules
_CUT_NAMES = {
    "BadStatusLine",
    "ChecksumMismatch",
    "ChunkedEncodingError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "EndpointConnectionError",
    "FlexibleChecksumError",
    "HTTPClientError",
    "IncompleteRead",
    "IncompleteReadError",
    "ProxyError",  # gcsfs's word for status 502
    "ReadTimeoutError",
    "ResponseParserError",
    "ResponseStreamingError",
    "ServerDisconnectedError",
    "ServiceRequestError",
    "ServiceResponseError",
}
_WEB_NAMES = {"ClientConnectionError", "ClientError", "SSLError"}  # aiohttp's; certificates
_DENIED = {401, 403}
_FORBIDDEN = "Forbidden: "  # gcsfs's word for status 403, in an OSError
_UNREACHABLE = (ConnectionError, TimeoutError, socket.gaierror)
_UNREACHABLE_NAMES = {
    "ClientConnectionError",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "EndpointConnectionError",
    "ReadTimeoutError",
    "ServerDisconnectedError",
    "ServiceRequestError",
}
# in messages of resolvers and of TLS, on all systems: what no repetition cures
_WRONG_ADDRESS = (
    "Name or service not known",
    "No address associated with hostname",
    "Name does not resolve",
    "nodename nor servname",
    "No such host is known",
    "getaddrinfo failed",
)
# in messages of OpenSSL and of rustls
_CERTIFICATES = (
    (("has expired", "Expired"), "it has expired"),
    (("not yet valid", "NotValidYet"), "it is not valid yet"),
    (("mismatch", "NotValidForName", "not valid for"), "it is for another host"),
    (("self-signed", "self signed", "CaUsedAsEndEntity"), "nobody has signed it but itself"),
    (("unable to get local issuer", "UnknownIssuer"), "its issuer is not known here"),
)
_TOO_MANY_REDIRECTS = ("TooManyRedirects", "following redirect")
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError"}  # botocore's


def library_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that the loaded libraries raise for responses of services.

    Many are not `OSError`. Any other exception is a bug in a program, and is not converted.
    """
    found: list[type[Exception]] = [OSError, EOFError, NotImplementedError]
    for module, name in _BASES:
        error = getattr(sys.modules.get(module), name, None)
        if isinstance(error, type) and issubclass(error, Exception):
            found.append(error)
    return tuple(found)


def as_store_error(message: str, error: BaseException) -> StoreError:
    """Return the store error for a library's error.

    Parameters
    ----------
    message
        The operation that failed, the location and the reason.
    error
        The exception that the library has raised.

    Returns
    -------
    StoreError
        A `StoreUnavailableError` if it may be transient.

    Examples
    --------
    >>> as_store_error("could not read 'a': cut off", ConnectionResetError("cut off"))
    StoreUnavailableError("could not read 'a': cut off")
    >>> as_store_error("could not read 'a': no", PermissionError("no"))
    AccessDeniedError("could not read 'a': no")
    """
    causes = [*_causes(error)]
    if any(_names(one) & _NO_CREDENTIALS for one in causes):
        return AccessDeniedError(
            f"{message}. Give credentials by the environment, a profile or storage_options; what "
            'is public is read with storage_options={"anon": True}.'
        )
    statuses, codes = statuses_of(error), codes_of(error)
    refused = bool(statuses) and not statuses & _PASSING
    cut = any(map(_is_cut, causes))
    told = cut or any(_names(one) & _TOLD_NAMES for one in causes)
    said = " ".join(f"{type(one).__name__} {one}" for one in causes)
    if told and not statuses and (reason := permanent_reason(said)):
        return address_error(message.rstrip("."), reason)
    if codes & EXPIRED_CODES:
        return denied_error(message, codes)
    if not (codes & _PASSING_CODES or statuses & _PASSING or (cut and not refused)):
        denied = statuses & _DENIED if statuses else isinstance(error, PermissionError)
        denied = denied or str(error).startswith(_FORBIDDEN)
        return AccessDeniedError(message) if denied else StoreError(message)
    passing = StoreUnavailableError(message)
    passing.throttled = bool(statuses & _THROTTLED or codes & _THROTTLED_CODES)
    passing.unreachable = not statuses and any(map(_is_unreachable, causes))
    passing.retry_after = next((r for r in map(_told, causes) if r is not None), None)
    return passing


def denied_error(message: str, codes: Collection[str]) -> AccessDeniedError:
    """Return the error of a refused request whose answer had these codes."""
    error = AccessDeniedError(message)
    error.expired = not EXPIRED_CODES.isdisjoint(codes)
    return error


def address_error(message: str, reason: str) -> StoreError:
    """Return the error of a connection that will never succeed, for a reason."""
    error = StoreError(f"{message}: {reason}.")
    error.unreachable = True
    return error


def words_of(error: BaseException) -> str:
    """Return the message of an error; codes of the service where it has sent no message.

    Of a library that fails while it reads such an answer, the message is that of the answer.

    Examples
    --------
    >>> words_of(ValueError("no")), words_of(ValueError())
    ('no', 'ValueError')
    """
    known = library_errors()
    error = next((one for one in _causes(error) if isinstance(one, known)), error)
    words = str(error)
    if words not in {"", "None"} and not words.endswith("] None"):  # as s3fs has it
        return words
    codes = ", ".join(sorted(codes_of(error)))
    return f"the service says {codes}" if codes else type(error).__name__


def permanent_reason(said: str) -> str:
    """Return the reason why a connection will never succeed; "" if it may.

    Parameters
    ----------
    said
        The messages of the error and its causes.

    Examples
    --------
    >>> permanent_reason("[Errno -2] Name or service not known")
    'there is no host of that name: check the address'
    >>> permanent_reason("Connection refused")
    ''
    """
    if any(words in said for words in _WRONG_ADDRESS):
        return "there is no host of that name: check the address"
    if "WRONG_VERSION_NUMBER" in said or "InvalidContentType" in said:
        return "what listens there does not speak TLS: use http:// in the address"
    if "ertificate" in said or "CERTIFICATE" in said:
        why = next((why for words, why in _CERTIFICATES if any(w in said for w in words)), "")
        return f"its certificate cannot be trusted{why and f': {why}'}"
    if any(words in said for words in _TOO_MANY_REDIRECTS):
        return "it redirects without end: check the address"
    if BARE_REDIRECT in said:
        return "its address is another one: give the region of the bucket, or its endpoint_url"
    return ""


def is_not_found(error: BaseException) -> bool:
    """True if an error that reports absence was not caused by another failure.

    fsspec's HTTP reports absence for any failure while it looks up the size of a value.

    Examples
    --------
    >>> refused = FileNotFoundError("http://host/a")
    >>> refused.__cause__ = ConnectionResetError("cut off")
    >>> is_not_found(refused), is_not_found(FileNotFoundError("http://host/a"))
    (False, True)
    """
    if not isinstance(error, FileNotFoundError):  # a folder
        return True
    if statuses := statuses_of(error):
        return bool(statuses & _ABSENT)
    return not any(
        _is_cut(one) or isinstance(one, PermissionError) or _names(one) & _WEB_NAMES
        for one in _causes(error)
    )


def retry_after(told: str | None) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks for, as a number or as a date.

    Examples
    --------
    >>> retry_after("3"), retry_after("soon"), retry_after(None)
    (3.0, None, None)
    """
    if not told:
        return None
    if told.strip().isdigit():
        return float(told)
    try:
        then = parsedate_to_datetime(told)
    except ValueError:
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max((then - datetime.now(UTC)).total_seconds(), 0.0)


def statuses_of(error: BaseException) -> set[int]:
    """Return the HTTP statuses of the responses that caused an error."""
    return {status for one in _causes(error) if (status := _status(one)) is not None}


def codes_of(error: BaseException) -> set[str]:
    """Return S3's error codes of the responses that caused an error."""
    codes = (_answer(one).get("Error", {}).get("Code") for one in _causes(error))
    return {str(code) for code in codes if code}


def _status(error: BaseException) -> int | None:
    told = _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    names = ("status", "status_code", *(("code",) if type(error).__name__ == "HttpError" else ()))
    for status in (told, *(getattr(error, name, None) for name in names)):
        if isinstance(status, int) and 300 <= status < 600:
            return status
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _is_cut(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _NO_ROUTE:
        return True
    return isinstance(error, _CUT) or bool(_names(error) & _CUT_NAMES)


def _is_unreachable(error: BaseException) -> bool:
    inner = getattr(error, "os_error", None)  # of aiohttp's ClientConnectorError
    found = isinstance(error, _UNREACHABLE) or getattr(error, "errno", None) in _NO_ROUTE
    found = found or isinstance(inner, _UNREACHABLE)
    return found or bool(_names(error) & _UNREACHABLE_NAMES)


def _answer(error: BaseException) -> Mapping[str, Any]:
    """Return botocore's dictionary of the response."""
    found = getattr(error, "response", None)
    return found if isinstance(found, Mapping) else {}


def _told(error: BaseException) -> float | None:
    headers = _answer(error).get("ResponseMetadata", {}).get("HTTPHeaders")
    if headers is None:
        headers = getattr(getattr(error, "response", None), "headers", None)
    if headers is None:
        headers = getattr(error, "headers", None)
    if not hasattr(headers, "get"):
        return None
    return retry_after(headers.get("retry-after") or headers.get("Retry-After"))
