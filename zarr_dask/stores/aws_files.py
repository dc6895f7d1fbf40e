"""AWS's configuration files and the regions of buckets, without boto3."""

from __future__ import annotations

import os
from configparser import ConfigParser, Error
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from zarr_dask.errors import StoreError, StoreUnavailableError

__all__ = ["bucket_region", "profile_settings"]

_S3 = "https://s3.amazonaws.com"
_REGION = "x-amz-bucket-region"
_SECONDS = 10
_NOT_FOUND = 404


def profile_settings(profile: str | None) -> dict[str, str] | None:
    """Return what AWS's configuration files say of a profile; None if they do not have it.

    Parameters
    ----------
    profile
        Its name; None for the one of the environment, or "default".
    """
    name = profile or os.environ.get("AWS_PROFILE") or "default"
    config = _sections("AWS_CONFIG_FILE", "~/.aws/config")
    credentials = _sections("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    found = [
        sections[one]
        for sections, one in (
            (config, name if name == "default" else f"profile {name}"),
            (credentials, name),
        )
        if one in sections
    ]
    return {key: value for one in found for key, value in one.items()} if found else None


def _sections(variable: str, usual: str) -> dict[str, dict[str, str]]:
    """Return the sections of a file that the environment names, or of the usual one."""
    file = Path(os.environ.get(variable) or usual).expanduser()
    parser = ConfigParser(interpolation=None, strict=False, default_section="no section")
    try:
        parser.read(file, encoding="utf-8")
    except (OSError, UnicodeError, Error):
        return {}
    return {" ".join(name.split()): dict(parser[name]) for name in parser.sections()}


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirection: the response itself names the region."""

    def redirect_request(self, *_: object) -> None:
        return None


def _opener() -> OpenerDirector:
    return build_opener(_NoRedirects)


@lru_cache(maxsize=256)
def bucket_region(bucket: str) -> str:
    """Return the region of a bucket of AWS, which S3 tells anybody.

    Raises
    ------
    StoreUnavailableError
        If S3 does not respond.
    StoreError
        If there is no such bucket, or S3 does not tell its region.
    """
    hint = (
        "Give the region by storage_options={'client_kwargs': {'region_name': ...}}, AWS_REGION in "
        "the environment, or a profile; a service other than AWS by 'endpoint_url'."
    )
    request = Request(f"{_S3}/{quote(bucket)}", method="HEAD")  # noqa: S310  (a constant scheme)
    try:
        with _opener().open(request, timeout=_SECONDS) as response:
            status, region = response.status, response.headers.get(_REGION)
    except HTTPError as error:
        status, region = error.code, error.headers.get(_REGION)
    except (OSError, HTTPException) as error:
        unavailable = StoreUnavailableError(
            f"the region of the bucket {bucket!r} is not given, and S3 could not be asked for it: "
            f"{error}. {hint}"
        )
        unavailable.unreachable = True
        raise unavailable from error
    if region:
        return str(region)
    if status == _NOT_FOUND:
        raise StoreError(f"AWS has no bucket {bucket!r}. {hint}")
    raise StoreError(
        f"the region of the bucket {bucket!r} is not given, and S3 does not tell it (it answers "
        f"{status}). {hint}"
    )
