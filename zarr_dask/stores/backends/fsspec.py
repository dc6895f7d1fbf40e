"""Any file system that fsspec supports: S3, GCS, Azure, HTTP and more.

Each process finds the file system in a cache, so the pickled form is a URL and its options. Only
fsspec's `FileNotFoundError` means that a value is absent, and only if S3 does not report that the
bucket is missing.

Requests are retried by `zarr_dask.stores.retry`. s3fs's own retries for values are switched off;
those of other file systems cannot be. The length of a response is checked: if a part is too short,
the value's size is requested, and the end of a value is found through its size. For S3, headers are
checked instead (`zarr_dask.stores.backends.fsspec_s3`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from glob import has_magic
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from zarr_dask._util.threads import map_waiting, request_slots
from zarr_dask.errors import (
    AccessDeniedError,
    ConditionalWriteError,
    ListingError,
    ReadOnlyError,
    StoreError,
    StoreUnavailableError,
    ZarrDaskError,
)
from zarr_dask.stores.backends import fsspec_s3
from zarr_dask.stores.backends.fsspec_azure import check_may_put, is_azure
from zarr_dask.stores.backends.fsspec_file_system import (
    RENEWAL,
    REQUEST_SECONDS,
    bucket_is_there,
    call_in_turn,
    call_method,
    file_system_at,
    has_no_folders,
    is_async,
    lies_in_one_zone,
    run_async,
    with_renewal,
)
from zarr_dask.stores.backends.fsspec_open_file import (
    RANGES,
    as_absence,
    is_read_only,
    read_file,
    reads_through_files,
)
from zarr_dask.stores.backends.fsspec_s3 import (
    LARGEST_SIZE,
    Page,
    UploadsPage,
    abort_upload,
    is_s3,
    list_uploads,
    lists,
)
from zarr_dask.stores.backends.fsspec_services import Service, read_parts, service_of
from zarr_dask.stores.backends.memory import MemoryStore, in_process_reference, this_process
from zarr_dask.stores.backends.reference_reads import is_reference, read_local_references
from zarr_dask.stores.base import (
    WHOLE,
    BoundedRange,
    Buffer,
    Listing,
    Range,
    ReadPolicy,
    TaggedBytes,
    VersionRequest,
    check_key,
    is_whole,
    join,
)
from zarr_dask.stores.conditional_get import check_obeys, check_one_put, put_on_tag
from zarr_dask.stores.error_mapping import (
    as_store_error,
    is_not_found,
    library_errors,
    statuses_of,
    words_of,
)
from zarr_dask.stores.fenced_deletes import check_may_delete
from zarr_dask.stores.key_names import in_order_of_removal
from zarr_dask.stores.listing import PagesSeen
from zarr_dask.stores.option_mapping import (
    WEB,
)
from zarr_dask.stores.retry import (
    DEFAULT,
    Attempts,
    RetryPolicy,
    call_with_retries,
    cas_put_with_retries,
    note_requests,
    upload_timeout,
)
from zarr_dask.stores.secrets import (
    HoldsCredentials,
    identity_of,
    redacted,
    reveal_credentials,
    seal_credentials,
    unseal_credentials,
)
from zarr_dask.stores.unfinished_uploads import UnfinishedUpload
from zarr_dask.stores.url_secrets import check_endpoints, split_credentials

__all__ = ["FsspecStore"]

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_LOST = {"NoSuchBucket", "ContainerNotFound"}  # codes of services for a missing bucket
# names in file systems for the tag of a value and for its modification time
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "generation", "VersionId")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_MULTIPART = 1 << 25  # size from which values may be sent in parts
_NO_INDEX = {403, 405}  # from nginx and others for the listing of a folder
_PART_RETRIES = 4
_PARTS_AT_ONCE = 4
# of libraries, for answers that are no listing; of Azure's, for pages without an end
_NO_LISTING = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
_BATCH = 1000  # keys deleted in one request

_Asked = TypeVar("_Asked")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class FsspecStore(HoldsCredentials):
    """Values below a URL, through fsspec.

    Parameters
    ----------
    url
        Root of the store, with its scheme.
    options
        The file system's own options, as JSON text so that the store can be hashed.
    policy
        The policy for retries.
    """

    url: str
    options: str = "{}"
    policy: RetryPolicy = DEFAULT

    coalescing: ClassVar[ReadPolicy] = ReadPolicy(
        gap=1 << 20, largest=1 << 24, max_concurrent_requests=64
    )

    @staticmethod
    def from_url(
        url: str, options: Mapping[str, Any], policy: RetryPolicy | None = None
    ) -> FsspecStore:
        """Return a store at `url`.

        Raises
        ------
        MissingDependencyError
            If the package that serves the scheme is not installed.
        StoreError
            If the scheme is not known, or the URL or endpoint holds credentials.
        """
        check_endpoints(options)
        place, login = split_credentials(url if url.endswith("://") else url.rstrip("/"))
        text = json.dumps({**login, **options}, sort_keys=True)
        store = FsspecStore(place, text, policy or DEFAULT)
        store._file_system()
        return store

    def with_policy(self, policy: RetryPolicy) -> FsspecStore:
        """Return a store at the same location with another retry policy."""
        return replace(self, policy=policy)

    @property
    def identity(self) -> str:
        """The URL and a digest of the options that are not credentials."""
        return identity_of(self.url, self.options)

    def settings(self) -> dict[str, Any]:
        """Return the options; they may hold secrets."""
        return dict(json.loads(self.options))

    def file_system(self) -> Any:
        """Return fsspec's file system, shared by all stores of this process with these options."""
        return self._file_system()[0]

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"  # options may hold credentials

    def __reduce__(self) -> tuple[Any, ...]:
        given = self.url, seal_credentials(self.options), self.policy
        return (
            (_same_memory, (this_process(), *given)) if self.is_in_memory else (_unpickled, given)
        )

    @property
    def is_in_memory(self) -> bool:
        """True if values are only in the memory of this process."""
        return urlsplit(self.url.rpartition("::")[2]).scheme == "memory"

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        fs, root = self._file_system()
        check_key(key)
        if is_s3(fs) or is_reference(fs):
            return self.get_ranges([(key, WHOLE)])[0]
        path = join(root, key)

        def read() -> bytes:
            try:
                return bytes(call_method(fs, "cat_file", path))
            except library_errors() as error:
                absence = as_absence(fs, path, error)
                if absence is error:
                    raise
                raise absence from error

        return self._do("read", key, read)

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        for key, _ in requests:
            check_key(key)
        return self._batch([(*request, None) for request in requests], self._ask)

    def get_versions(self, requests: Sequence[VersionRequest]) -> list[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`.

        Of services that take no conditions, the status of a value is compared before and after.
        """
        for key, _, _ in requests:
            check_key(key)
        service = self._known_service()
        if service is not None:
            return self._batch(requests, partial(self._ask_service, service))
        parts = {key for key, wanted, _ in requests if not is_whole(wanted)}
        tags = {key: tag for key, _, tag in requests if tag is not None}
        before = self._tags(parts - tags.keys()) | tags
        found = self.get_ranges([(key, wanted) for key, wanted, _ in requests])
        after = self._tags(tags)
        return [
            None
            if content is None
            else TaggedBytes(content, before.get(key))
            if tag is None or after[key] == tag
            else TaggedBytes(None, None)
            for (key, _, tag), content in zip(requests, found, strict=True)
        ]

    def _tags(self, keys: Collection[str]) -> dict[str, Hashable]:
        statuses = self._statuses(sorted(keys))
        return {k: None if one is None else _tag_of(one, None) for k, one in statuses.items()}

    def _batch(
        self,
        requests: Sequence[VersionRequest],
        ask: Callable[[Sequence[VersionRequest]], Sequence[_Result | Exception]],
    ) -> list[_Result]:
        """Return the results of requests; those with transient failures are repeated together."""
        attempts = Attempts(self.policy, self._service)
        found: dict[int, _Result] = {}
        left = [*range(len(requests))]
        while left:
            failed: list[tuple[int, StoreUnavailableError]] = []
            for number, value in zip(left, ask([requests[n] for n in left]), strict=True):
                if isinstance(value, StoreUnavailableError):
                    failed.append((number, value))
                elif isinstance(value, Exception):
                    raise value
                else:
                    found[number] = value
            if failed:
                slowest = max((e for _, e in failed), key=lambda e: e.retry_after or 0)
                attempts.pause(slowest, len(failed))
            left = [number for number, _ in failed]
        attempts.succeeded()
        return [found[number] for number in range(len(requests))]

    def _ask(self, requests: Sequence[VersionRequest]) -> list[Any]:
        """Return parts of values, or the exceptions of requesting them."""
        fs, root = self._file_system()
        if not is_s3(fs):
            return self._ask_ranges(fs, root, requests)
        found = self._ask_service(fsspec_s3, requests)
        return [one.content if isinstance(one, TaggedBytes) else one for one in found]

    def _ask_service(
        self, service: Service, requests: Sequence[VersionRequest]
    ) -> list[TaggedBytes | Exception | None]:
        sent, found = time.monotonic(), self._try_service(service, requests)
        if any(isinstance(one, AccessDeniedError) and one.expired for one in found):
            RENEWAL.forget_clients(sent)
            found = self._try_service(service, requests)
        return found

    def _try_service(
        self, service: Service, requests: Sequence[VersionRequest]
    ) -> list[TaggedBytes | Exception | None]:
        fs, root = self._file_system()
        asked = [(join(root, key), wanted, tag) for key, wanted, tag in requests]
        key = requests[0][0]
        found = self._by_turns(
            key, asked, lambda some: run_async(fs, read_parts(service, fs, some))
        )
        return [
            self._checked(key, wanted, tag, value) if isinstance(value, Exception) else value
            for (key, wanted, tag), value in zip(requests, found, strict=True)
        ]

    def _by_turns(
        self, key: str, asked: Sequence[_Asked], read: Callable[[Sequence[_Asked]], list[_Result]]
    ) -> list[_Result]:
        """Return the results of many requests, sent in batches as large as this process allows."""
        found: list[_Result] = []
        while left := asked[len(found) :]:

            def ask(at_once: int, left: Sequence[_Asked] = left) -> list[_Result]:
                return read(left[:at_once])

            # failures are among the results, so that nothing is known of the service yet
            found += self._do_several("read", key, ask, len(left), service=None) or ()
        return found

    def _checked(self, key: str, wanted: Range, tag: Hashable, error: Exception) -> Any:
        """Return what an exception means: an absent value, an empty range or a failure."""
        try:
            if HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE in statuses_of(error):
                status = self._status(key)
                if status is None:
                    return None
                if int(status["size"]) <= wanted.start or not status["size"]:
                    found = _tag_of(status, self._known_service())
                    return TaggedBytes(b"" if tag in {None, found} else None, found)
            if isinstance(error, _ABSENT) and is_not_found(error):
                self._check_bucket("read", key, error)
                return None
        except StoreError as failed:
            return failed
        return self._failed("read", key, error)

    def _ask_ranges(self, fs: Any, root: str, requests: Sequence[VersionRequest]) -> list[Any]:
        """Return parts of values from a file system that returns bytes without headers."""
        statuses = self._statuses(sorted({key for key, wanted, _ in requests if wanted.start < 0}))
        sizes = {key: None if one is None else int(one["size"]) for key, one in statuses.items()}
        asked = [
            Range(max((sizes[key] or 0) + wanted.start, 0), sizes[key] or 0)
            if wanted.start < 0
            else wanted
            for key, wanted, _ in requests
        ]
        parts = [
            (join(root, key), one.start, _last_asked(one))
            for (key, _, _), one in zip(requests, asked, strict=True)
        ]
        found = self._by_turns(requests[0][0], parts, partial(_read_parts, fs))
        return [
            None if wanted.start < 0 and sizes[key] is None else self._checked_part(key, one, value)
            for (key, wanted, _), one, value in zip(requests, asked, found, strict=True)
        ]

    def _checked_part(self, key: str, wanted: Range, value: Any) -> Any:
        """Return a part of a value, if it has the right length."""
        start, stop = wanted
        if isinstance(value, Exception):
            fs, root = self._file_system()
            value = as_absence(fs, join(root, key), value)
            found = self._checked(key, wanted, None, value)
            found = found.content if isinstance(found, TaggedBytes) else found
            behind = isinstance(found, Exception) and start == stop
            return (None if self.size(key) is None else b"") if behind else found
        content = bytes(value)
        if start == stop:
            return b""
        if isinstance(wanted, BoundedRange):
            return content[:stop]  # it is as long as it is, like one that is read without a bound
        if self._is_all(key, wanted, content):
            return content[start:stop]
        if stop is None:
            return content
        if len(content) == stop - start:
            return content
        size = self.size(key)  # the value may end here
        if size is not None and len(content) == max(min(size, stop) - start, 0):
            return content
        words = (
            f"could not read {key!r} in {self.url}: asked for bytes {start} to {stop}, got "
            f"{len(content)}: the service does not know ranges, or the value is replaced again and "
            "again."
        )
        return StoreError(words) if len(content) > stop - start else StoreUnavailableError(words)

    def _is_all(self, key: str, wanted: Range, content: bytes) -> bool:
        """True if the whole value was sent, by a file system that ignores ranges.

        This is determined by the value's size, once for each kind of file system that supports
        ranges.
        """
        kind = type(self._file_system()[0])
        more = wanted.stop is not None and len(content) > wanted.stop - wanted.start
        if not content or kind in RANGES.known or not (wanted.start or more):
            return False
        if len(content) == self.size(key):
            RANGES.ignored.add(kind)
            return True
        if not more and kind not in RANGES.ignored:
            RANGES.known.add(kind)
        return False

    def _check_bucket(self, doing: str, key: str, error: BaseException) -> None:
        """Raise if the bucket is missing, which file systems report like a missing key."""
        answer = getattr(error.__cause__, "response", None)
        told = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
        told = told or getattr(error.__cause__, "error_code", None)
        fs, _ = self._file_system()
        if doing == "read" and told not in {None, "NoSuchKey", *_LOST} and is_s3(fs):
            lost = self._is_lost(key, error)
        elif told is None:
            lost = not bucket_is_there(self.url, self._given(), int(time.monotonic()))
        else:
            lost = str(getattr(told, "value", told)) in _LOST
        if lost:
            raise StoreError(
                f"could not {doing} {key!r} in {self.url}: there is no such bucket "
                f"({redacted(words_of(error), self.settings())})"
            ) from self._public(error)

    def _is_lost(self, key: str, error: BaseException) -> bool:
        """True if there is no bucket, after a 404 response without a code of S3.

        A proxy in front of a service may answer 404 while the service is restarted.

        Raises
        ------
        StoreUnavailableError
            If the service lists the key.
        StoreError
            If this cannot be determined.
        """
        fs, root = self._file_system()
        try:
            listed = run_async(fs, lists(fs, join(root, key)))
        except FileNotFoundError:
            return True
        except library_errors() as failure:
            raise self._failed("read", key, failure) from self._public(failure)
        if listed:
            raise StoreUnavailableError(
                f"could not read {key!r} in {self.url}: the service lists it, and says that it is "
                f"not there ({redacted(str(error), self.settings())})."
            )
        return False

    @property
    def _is_web(self) -> bool:
        """True for HTTP, where a folder that is not found may be one without an index."""
        return urlsplit(self.url).scheme in WEB

    def _check_emptiness(self, prefix: str, found: Collection[Any]) -> None:
        """Raise for an empty listing of a missing bucket, or of a server without listings.

        An HTTP server may answer 404, or send something else than an index, for a folder with
        values.
        """
        if not found and self._is_web:
            raise self._unlisted(prefix)
        if not found:
            self._check_bucket("list", prefix, FileNotFoundError("nothing was listed"))

    def _unlisted(self, prefix: str) -> ListingError:
        return ListingError(
            f"{self.url}/{prefix} cannot be listed: the server shows no index of it. Open a node "
            "by its path, or a group that has consolidated metadata (zarr_dask.consolidate)."
        )

    # --- writing ----------------------------------------------------------------------------------

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        fs, root = self._writable(key)
        check_key(key)
        if is_azure(fs):
            check_may_put(join(root, key))
        value = b"".join(buffers)
        timeout = upload_timeout(self.policy.timeout, len(value))
        # a server may never respond to "Expect: 100-continue"
        seconds = min(2 * timeout, REQUEST_SECONDS)
        parts = _PARTS_AT_ONCE if is_s3(fs) and len(value) >= _MULTIPART else 1

        def put() -> None:
            note_requests("write")
            try:
                fs, root = self._putting(len(value))
                with request_slots(parts) as at_once:
                    given = {"max_concurrency": at_once} if parts > 1 else {}
                    call_method(fs, "pipe_file", join(root, key), value, seconds=seconds, **given)
            except ZarrDaskError:
                raise
            except library_errors() as error:  # absence too: the target does not exist
                raise self._failed("write", key, error) from self._public(error)

        call_with_retries(self.policy, lambda: with_renewal(put), self._service)

    def _putting(self, nbytes: int) -> tuple[Any, str]:
        """Return the file system for a value of some bytes, and the root on it."""
        fs, root = self._file_system()
        if not is_s3(fs):
            return fs, root
        retries = _PART_RETRIES if nbytes >= _MULTIPART else 0
        timeout = upload_timeout(self.policy.timeout, nbytes)
        return file_system_at(self.url, self._given(), timeout, retries)

    def check_conditional(self, key: str) -> None:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`: object stores support it.

        Those with the interface of S3 are tried, once in each process: some ignore conditions.

        Raises
        ------
        ConditionalWriteError
            If it is another file system, or a service that ignores conditions.
        """
        check_key(key)
        if self._known_service() is None:
            raise ConditionalWriteError(
                f"{self.url} cannot put a value on a condition through fsspec; write whole stored "
                "objects, or let one job alone write them."
            )
        if not is_s3(self.file_system()):
            return
        check_obeys(
            self.url,
            self._service,
            lambda key, tag: call_with_retries(
                self.policy, lambda: self._put_on(key, b"0", tag), self._service
            ),
            self.delete,
        )

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        found = self.get_versions([(key, wanted, None)])[0]
        if found is None or found.content is None:
            return None, None
        if found.tag is None:
            raise ConditionalWriteError(
                f"{self.url} states no ETag of {key!r}, so that nothing can be compared with it; "
                "write whole stored objects, or let one job alone write them."
            )
        return found.content, found.tag

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`: a put with ``If-Match``."""
        self._writable(key)
        check_key(key)
        check_one_put(self.url, key, sum(map(len, buffers)))
        value = b"".join(buffers)

        def put() -> bool:
            if not isinstance(tag, tuple):
                return self._put_on(key, value, None)
            return put_on_tag(
                partial(self._put_on, key, value), lambda: self._e_tag(key), tag[0], self._service
            )

        return cas_put_with_retries(self.policy, put, lambda: self.get(key), [value], self._service)

    def _put_on(self, key: str, value: bytes, tag: str | None) -> bool:
        """Put a value on a condition, by one attempt; return False if it does not hold."""
        return with_renewal(lambda: self._try_put_on(key, value, tag))

    def _try_put_on(self, key: str, value: bytes, tag: str | None) -> bool:
        timeout = upload_timeout(self.policy.timeout, len(value))
        fs, root = file_system_at(self.url, self._given(), timeout)
        service = self._known_service()
        if service is None:
            raise ConditionalWriteError(f"{self.url} cannot put a value on a condition.")
        note_requests("write")
        try:
            with request_slots():
                seconds = min(2 * timeout, REQUEST_SECONDS)
                put = service.put_if(fs, join(root, key), value, tag)
                done: bool = run_async(fs, put, seconds)
                return done
        except ZarrDaskError:
            raise
        except library_errors() as error:
            raise self._failed("write", key, error) from self._public(error)

    def _e_tag(self, key: str) -> str | None:
        found = self.validator(key)
        return str(found[0]) if isinstance(found, tuple) else None

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        _, root = self._writable(key)
        check_key(key)
        if self.size(key) is not None:  # a folder is not a value
            path = join(root, key)
            self._do("delete", key, lambda: self._delete_one(path))

    def _delete_one(self, path: str) -> None:
        check_may_delete()
        call_method(self.file_system(), "rm_file", path)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        fs, root = self._writable(prefix)
        if not has_no_folders(fs) and not self._is_web:
            folder = join(root, prefix.rstrip("/"))
            check_may_delete()
            self._do("delete", prefix, lambda: _remove_folder(fs, folder))
            return
        paths = [join(root, key) for key in self.list(prefix)]
        for some in in_order_of_removal(paths, _BATCH):
            if is_s3(fs):
                self._do("delete", prefix, partial(self._delete_several, some))
                continue
            # `rm` may take the bucket, too, and what is named as the folder
            map_waiting(lambda path: self._do("delete", path, lambda: self._delete_one(path)), some)

    def _delete_several(self, paths: Sequence[str]) -> None:
        check_may_delete()
        call_method(self.file_system(), "bulk_delete", paths)

    def _writable(self, key: str) -> tuple[Any, str]:
        """Return the file system, if values that are written to it persist.

        Raises
        ------
        ReadOnlyError
            If it is an archive, or references, which would change only in memory.
        """
        fs, root = self._file_system()
        if is_read_only(fs):
            raise ReadOnlyError(
                f"{self.url} can only be read through fsspec: {key!r} was not changed. Write into "
                "a folder or a bucket, or a local archive by zarr_dask.ZipWriter."
            )
        return fs, root

    # --- listing ----------------------------------------------------------------------------------

    @property
    def has_paged_listing(self) -> bool:
        """True for known services (`zarr_dask.stores.listing`); others are walked by folder."""
        return self._known_service() is not None

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        _, root = self._file_system()
        if self._known_service() is not None:
            return (key for key, _ in self.list_sizes(prefix))
        folder = join(root, prefix.rstrip("/"))
        found: Collection[str] = (
            self._do("list", prefix, lambda: self._below(prefix, folder, detail=False)) or ()
        )
        self._check_emptiness(prefix, found)
        self._check_listed_once(prefix, found)
        return (self._key_of(path, root, prefix) for path in found if not _is_of(folder, path))

    def list_sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.list_sizes`."""
        _, root = self._file_system()
        service = self._known_service()
        if service is not None:
            pages = self._pages(service, prefix, deep=True)
            return (entry for page in pages for entry in page.entries)
        folder = join(root, prefix.rstrip("/"))
        found: Collection[tuple[str, int | None]] = (
            self._do("list", prefix, lambda: self._below(prefix, folder, detail=True)) or ()
        )
        self._check_emptiness(prefix, found)
        self._check_listed_once(prefix, [path for path, _ in found])
        files = ((path, size) for path, size in found if not _is_of(folder, path))
        sizes = ((self._key_of(path, root, prefix), size) for path, size in files)
        return ((key, self._size_of(key, size)) for key, size in sizes)

    def _below(self, prefix: str, folder: str, *, detail: bool) -> Any:
        with self._checking_answer(prefix):
            return _files_below(self.file_system(), folder, detail=detail)

    def _check_listed_once(self, prefix: str, paths: Iterable[str]) -> None:
        """Raise if an object store lists the same path twice."""
        fs, root = self._file_system()
        if has_no_folders(fs):
            PagesSeen(prefix, self.url, root).see([*paths])

    def _key_of(self, path: str, root: str, prefix: str) -> str:
        """Return the key of a file that is listed."""
        folder = f"{root.rstrip('/')}/" if root else ""
        key = path.removeprefix(folder).removeprefix("/")
        is_below = path.startswith(folder) and key.startswith(prefix)
        if not is_below or not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise StoreError(
                f"could not list {prefix!r} in {self.url}: {path[:200]!r} is listed, which does "
                "not lie there. Try again; if it remains so, only those who run the service can "
                "mend it."
            )
        return key

    def _size_of(self, key: str, listed: Any) -> int:
        """Return the bytes of a file, as they are listed or, if they are not, as it says itself."""
        size = self.size(key) or 0 if listed is None else listed
        with suppress(ValueError, TypeError, OverflowError):
            if 0 <= int(size) <= LARGEST_SIZE:
                return int(size)
        raise StoreError(
            f"could not list {key!r} in {self.url}: {str(size)[:40]!r} is no number of bytes. Try "
            "again; if it remains so, only those who run the service can mend it."
        )

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        fs, root = self._file_system()
        service = self._known_service()
        if service is not None:
            pages = [*self._pages(service, prefix, deep=False)]
            keys = [key for page in pages for key, _ in page.entries]
            return Listing(sorted(keys), sorted(one for page in pages for one in page.prefixes))
        folder = join(root, prefix.rstrip("/"))

        def ask() -> Any:
            with self._checking_answer(prefix):
                return call_in_turn(fs, "ls", folder, detail=True, refresh=True)

        entries = self._do("list", prefix, ask)
        if self._is_web:
            self._check_emptiness(prefix, entries or ())
        keys, prefixes = [], []
        if has_no_folders(fs):
            entries = [entry for entry in entries or () if entry["name"].rstrip("/") != folder]
            names = [entry["name"].rstrip("/") for entry in entries]
            self._check_listed_once(prefix, names)
            for name in names:
                self._key_of(name, root, prefix)
        for entry in entries or ():
            last = entry["name"].rstrip("/").rpartition("/")[2]
            if last in {"", ".", ".."}:  # links of an index
                continue
            name = f"{prefix}{last}"
            if entry["type"] == "directory":
                prefixes.append(f"{name}/")
            else:
                keys.append(name)
        return Listing(sorted(keys), sorted(prefixes))

    def _pages(self, service: Service, prefix: str, *, deep: bool) -> Iterator[Page]:
        """Yield the pages of a service's listing below a prefix, with keys of this store."""
        fs, root = self._file_system()
        folder = join(root, prefix.rstrip("/"))
        token: str | None = None
        pages_seen = PagesSeen(prefix, self.url, fs.split_path(f"{root}/")[1].strip("/"))
        while True:
            ask = partial(self._page, service, prefix, folder, token, deep=deep)
            found = self._do("list", prefix, ask)
            if found is None:
                return
            pages_seen.see([*(key for key, _ in found.entries), *found.prefixes])
            entries = {key: size for key, size in found.entries if not key.endswith("/")}
            keys = pages_seen.below([*entries])
            sizes = zip(keys, entries.values(), strict=True)
            yield Page([*sizes], pages_seen.below(found.prefixes), found.token)
            token = found.token
            if token is None:
                return
            pages_seen.see_token(token)

    def _page(
        self, service: Service, prefix: str, folder: str, token: str | None, *, deep: bool
    ) -> Page:
        with self._checking_answer(prefix):
            fs = self.file_system()
            page: Page = run_async(fs, service.list_page(fs, folder, token, deep=deep))
            if not all(isinstance(one, str) for one in (*dict(page.entries), *page.prefixes)):
                raise TypeError("a name that is no text")
        return page

    @contextmanager
    def _checking_answer(self, prefix: str) -> Iterator[None]:
        """Raise if the answer to a request for a listing is none."""
        try:
            yield
        except _NO_LISTING as error:
            raise StoreError(
                f"could not list {prefix!r} in {self.url}: the service answers with something that "
                f"is no listing ({type(error).__name__}: {str(error)[:200]}). Check its address."
            ) from None

    def list_uploads(self, prefix: str) -> Sequence[UnfinishedUpload]:
        """See `zarr_dask.stores.unfinished_uploads.SupportsUploads`; only S3 keeps them."""
        return [*self._uploads(prefix)] if is_s3(self._file_system()[0]) else []

    def _uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        fs, root = self._file_system()
        folder = join(root, prefix.rstrip("/"))
        markers: tuple[str, str] | None = None
        pages_seen = PagesSeen(prefix, self.url, fs.split_path(f"{root}/")[1].strip("/"))
        while True:
            found = self._do("list", prefix, partial(self._uploads_page, prefix, folder, markers))
            if found is None:
                return
            pages_seen.see([f"{key}\n{upload}" for key, upload, _ in found.entries])
            keys = pages_seen.below([key for key, *_ in found.entries])
            for key, (_, upload, begun) in zip(keys, found.entries, strict=True):
                yield UnfinishedUpload(key, upload, begun)
            markers = found.markers
            if markers is None:
                return
            pages_seen.see_token("\n".join(markers))

    def _uploads_page(
        self, prefix: str, folder: str, markers: tuple[str, str] | None
    ) -> UploadsPage:
        with self._checking_answer(prefix):
            fs = self.file_system()
            page: UploadsPage = run_async(fs, list_uploads(fs, folder, markers))
        return page

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """See `zarr_dask.stores.unfinished_uploads.SupportsUploads`."""
        fs, root = self._writable(upload.key)
        path = join(root, upload.key)
        self._do(
            "delete", upload.key, lambda: run_async(fs, abort_upload(fs, path, upload.upload_id))
        )

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        status = self._status(key)
        return None if status is None else int(status["size"])

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.etag_of`: the ETag of a value, or its time and size."""
        status = self._status(key)
        return None if status is None else _tag_of(status, self._known_service())

    def _status(self, key: str) -> Mapping[str, Any] | None:
        """Return the status of a value; None if there is none, or a folder."""
        fs, root = self._file_system()
        path = join(root, key)
        for listed in (path, path.rpartition("/")[0]):  # its cache of either may be outdated
            fs.invalidate_cache(listed)

        def ask() -> Mapping[str, Any]:
            found: Mapping[str, Any] = call_method(self.file_system(), "info", path)
            return found

        status = self._do("inspect", key, ask)
        if status is None or status["type"] == "directory":
            return None
        if status["size"] is None:  # a server need not state it
            value = self.get(key)
            return None if value is None else {**status, "size": len(value)}
        return status

    def _statuses(self, keys: Sequence[str]) -> dict[str, Mapping[str, Any] | None]:
        """Return the same as `_status`, with concurrent requests if the file system supports it."""
        if len(keys) < 2 or not is_async(self._file_system()[0]):
            return {key: self._status(key) for key in keys}
        return dict(zip(keys, map_waiting(self._status, keys), strict=True))

    # --- requests ---------------------------------------------------------------------------------

    def _file_system(self) -> tuple[Any, str]:
        """Return the file system and the root on it."""
        return file_system_at(self.url, self._given(), self.policy.timeout)

    def _known_service(self) -> Service | None:
        """Return the requests to a service whose answers are seen; None for others."""
        service = service_of(self._file_system()[0])
        scheme, bucket = urlsplit(self.url)[:2]
        is_google = scheme in {"gs", "gcs"}
        is_zonal = is_google and lies_in_one_zone(f"{scheme}://{bucket}", self._given())
        return None if is_zonal else service

    def _given(self) -> str:
        """Return the options with credentials."""
        return reveal_credentials(self.options, self.url)

    def _do(self, doing: str, key: str, ask: Callable[[], _Result]) -> _Result | None:
        """Return the result of a request, with retries; None if there is no value."""
        return self._do_several(doing, key, lambda _: ask(), 1, self._service)

    def _do_several(
        self,
        doing: str,
        key: str,
        ask: Callable[[int], _Result],
        most: int,
        service: Hashable,
    ) -> _Result | None:
        """Do the same as `_do`, with up to `most` concurrent requests; `ask` gets their number."""

        def attempt() -> _Result | None:
            try:
                with request_slots(most) as at_once:
                    note_requests(doing, at_once)
                    return ask(at_once)
            except _ABSENT as error:
                if not is_not_found(error):
                    raise self._failed(doing, key, error) from self._public(error)
                self._check_bucket(doing, key, error)
                return None
            except ZarrDaskError:
                raise
            except library_errors() as error:
                raise self._failed(doing, key, error) from self._public(error)

        return call_with_retries(self.policy, lambda: with_renewal(attempt), service)

    @property
    def _service(self) -> Hashable:
        """Identifies the service in this process, for `call_with_retries`."""
        return urlsplit(self.url)[:2], hash(self.options)

    def _failed(self, doing: str, key: str, error: BaseException) -> StoreError:
        web = self._is_web
        if doing == "list" and web and statuses_of(error) & _NO_INDEX:
            return self._unlisted(key)
        words = redacted(words_of(error), self.settings())
        failed = as_store_error(f"could not {doing} {key!r} in {self.url}: {words}", error)
        failed.__cause__ = self._public(error)
        return failed

    def _public(self, error: BaseException) -> BaseException:
        """Return an error fit to be shown: itself, if neither it nor its causes hold a secret."""
        options, link = self.settings(), error
        while redacted(str(link), options) == str(link):
            if (link := link.__cause__ or link.__context__) is None:  # type: ignore[assignment]
                return error
        return OSError(f"{type(error).__name__}: {redacted(str(error), options)}")


def _unpickled(url: str, options: str, policy: RetryPolicy) -> FsspecStore:
    return FsspecStore(url, unseal_credentials(options, url), policy)


def _same_memory(
    process: str, url: str, options: str, policy: RetryPolicy
) -> FsspecStore | MemoryStore:
    return in_process_reference(process, url, partial(_unpickled, url, options, policy))


def _tag_of(status: Mapping[str, Any], service: Service | None) -> Hashable:
    """Return the tag of a value from its status; None if there is nothing to make it of."""
    names = _TAGS if service is None else (service.TAG, *_TAGS)
    tag = next((status[name] for name in names if status.get(name)), None)
    if service is not None and tag is not None:
        return str(tag), int(status["size"])
    changed = next((status[name] for name in _TIMES if status.get(name)), None)
    if tag is None and changed is None:
        return None
    return str(tag), str(changed), int(status["size"]), str(status.get("ino", ""))


def _is_of(folder: str, path: str) -> bool:
    """True if a path is that of a folder, or of an object that some tools make of one."""
    return path == folder or path.endswith("/")


def _files_below(fs: Any, folder: str, *, detail: bool) -> Any:
    """Return the paths of all files below a folder; with `detail` each with its size."""
    if is_reference(fs):  # whose `find` goes through all of a folder for each of its files
        of = fs.references
        return of.sizes_below(folder) if detail else of.keys_below(folder)
    found = call_in_turn(fs, "find", folder, detail=detail)
    return [(path, entry["size"]) for path, entry in found.items()] if detail else found


def _remove_folder(fs: Any, folder: str) -> None:
    """Remove a folder, and no other one that its name would match if it were a pattern."""
    if not has_magic(folder):
        fs.rm(folder, recursive=True)
        return
    found = fs.find(folder, withdirs=True, detail=True)
    for path in sorted({*found, folder}, reverse=True):
        if path != folder and found[path]["type"] != "directory":
            fs.rm_file(path)
            continue
        with suppress(FileNotFoundError):  # some folders go with their last file
            fs.rmdir(path)


def _read_parts(fs: Any, parts: Sequence[tuple[str, int, int | None]]) -> list[Any]:
    """Return parts of files, or the exceptions of reading them."""
    if reads_through_files(fs):
        return [read_file(fs, *part) for part in parts]
    if is_reference(fs) and (found := read_local_references(fs, parts)) is not None:
        return found
    paths, starts, ends = map(list, zip(*parts, strict=True))
    return list(call_method(fs, "cat_ranges", paths, starts, ends, on_error="return"))


def _last_asked(wanted: Range) -> int | None:
    """Return the end of a range, at least one byte on; file systems differ in empty ranges."""
    return None if wanted.stop is None else max(wanted.stop, wanted.start + 1)
