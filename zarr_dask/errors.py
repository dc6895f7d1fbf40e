"""All exceptions that this package raises on purpose.

::

    ZarrDaskError
    ├── NodeNotFoundError        (FileNotFoundError)  nothing readable at that path
    │   └── NodeKeyError         (KeyError)           a path that does not exist in the group
    ├── NodeExistsError          (FileExistsError)    a node exists already at that path
    ├── NodeTypeError            (TypeError)          an array instead of a group, or the reverse
    ├── LocationTypeError        (TypeError)          a value of a kind that names no store
    ├── MetadataError            (ValueError)         metadata that violate the rules of a format
    │   ├── UnknownDataTypeError
    │   ├── UnknownGridError
    │   └── UnknownCodecError
    ├── MetadataChangedError                          metadata changed since the node was opened
    ├── ArrayChangedError        (RuntimeError)       an object changed since a consistent opening
    ├── OmeVersionError          (ValueError)         OME-Zarr of an unsupported version
    ├── MigrationError           (ValueError)         metadata that another format cannot express
    ├── CopyError                (ValueError)         nodes that cannot be copied as requested
    ├── IngestError              (ValueError)         files that do not fit together, or are broken
    ├── GridError                (ValueError)         shapes that do not fit together
    ├── DataTypeError            (TypeError)          values that the array's data type cannot hold
    ├── SelectionError           (IndexError)         outside the array, or of an unsupported kind
    ├── CorruptObjectError       (ValueError)         stored bytes that do not decode
    │   └── ChecksumError                             bytes that do not match their checksum
    │       └── ManifestMismatchError                 another object than the manifest lists
    ├── ChunkMissingError        (FileNotFoundError)  an absent chunk under ``missing="error"``
    ├── StoreError               (OSError)            the store failed; never read as "absent"
    │   ├── StoreKeyError        (ValueError)         a key that no store may hold
    │   │   └── NodeNameError    (KeyError)           ``group[0]``: no name of a node
    │   ├── StoreArgumentError   (ValueError)         a URL or an option that no store takes
    │   ├── LinkError                                 a link that writing would have to follow
    │   ├── ListingError                              the store cannot say what it holds
    │   ├── StoreUnavailableError (ConnectionError)   a failure that may pass; retries did not help
    │   ├── AccessDeniedError    (PermissionError)    the service or system refuses the access
    │   ├── DamagedValueError                         a damaged entry of an archive
    │   ├── ObjectReplacedError                       replaced at each attempt to read it
    │   ├── ConditionalWriteError                     the store has no conditional writes
    │   ├── WrittenOnceError     (FileExistsError)    a second value for a key of an archive
    │   ├── CommitConflictError                       others have committed changes of the same
    │   ├── ReadOnlyError        (PermissionError)    writing through something opened for reading
    │   ├── CredentialsMissingError (PermissionError)  given only to another process
    │   └── StoreOutOfReachError (RuntimeError)       memory of a process, for tasks in another one
    ├── PartialWriteError        (ValueError)         a region that cuts through stored objects
    ├── DatasetMismatchError     (ValueError)         a dataset that does not fit the stored one
    │   └── LabelNotFoundError   (KeyError)           labels that the stored dataset does not have
    ├── SourceIsTargetError      (ValueError)         a job that would write over what it reads
    ├── ResumeError              (ValueError)         a job that is not the one to be resumed
    │   └── JobReplacedError                          a job whose journal is gone, or another one's
    ├── JournalError             (ValueError)         a record of a job that no job has written
    ├── JobRunningError          (RuntimeError)       what a process that lives is writing
    │   └── AppendConflictError                       another append to the array is under way
    ├── ManifestError            (ValueError)         no whole manifest, or one that says too little
    ├── ValuesDifferError        (ValueError)         a copy that is not what its source is
    ├── MemoryBudgetError        (ValueError)         ``max_mem`` below what one task needs
    ├── SharedObjectError        (ValueError)         two ranks that would write the same object
    ├── StepError                (ValueError)         a step out of order, or beyond the capacity
    ├── StepsMissingError        (RuntimeError)       steps that some ranks have not stored
    ├── RankError                (ValueError)         a rank that does not exist, or is in use
    ├── WriterNotFoundError      (FileNotFoundError)  no simulation output at that location
    ├── PlanError                (ValueError)         a file without a plan that can be executed
    ├── SchedulerError           (ConnectionError)    no scheduler responds, or it is lost
    ├── WorkerLostError          (RuntimeError)       workers died of a task, or none came back
    ├── WorkerSetupError         (RuntimeError)       workers that cannot run the job
    ├── DaskBackendError         (RuntimeError)       dask arrays of a kind without layers
    └── MissingDependencyError   (ImportError)        an optional package is not installed

    ZarrDaskWarning              (UserWarning)        something odd that was read all the same
    ├── ConsolidatedMetadataWarning                   they are out of date, or cannot be used
    ├── LinkWarning                                   a link out of the root, which is left out
    ├── MissingGroupWarning                           nodes below a path without a document
    ├── MixedFormatsWarning                           a node in a group of another format
    ├── OmeMetadataWarning                            OME-Zarr metadata against a recommendation
    └── StepNotShownWarning                           a step in incomplete stored objects

A message says what failed, where, what was found and expected, and what to do. The facts are also
fields, so that programs need not parse the sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

__all__ = [
    "ABSENT",
    "AccessDeniedError",
    "AppendConflictError",
    "ArrayChangedError",
    "ChecksumError",
    "ChunkMissingError",
    "CommitConflictError",
    "ConditionalWriteError",
    "ConsolidatedMetadataWarning",
    "CopyError",
    "CorruptObjectError",
    "CredentialsMissingError",
    "DamagedValueError",
    "DaskBackendError",
    "DataTypeError",
    "DatasetMismatchError",
    "GridError",
    "IngestError",
    "JobReplacedError",
    "JobRunningError",
    "JournalError",
    "LabelNotFoundError",
    "LinkError",
    "LinkWarning",
    "ListingError",
    "LocationTypeError",
    "ManifestError",
    "ManifestMismatchError",
    "MemoryBudgetError",
    "MetadataChangedError",
    "MetadataError",
    "MigrationError",
    "MissingDependencyError",
    "MissingGroupWarning",
    "MixedFormatsWarning",
    "NodeExistsError",
    "NodeKeyError",
    "NodeNameError",
    "NodeNotFoundError",
    "NodeTypeError",
    "ObjectReplacedError",
    "OmeMetadataWarning",
    "OmeVersionError",
    "PartialWriteError",
    "PlanError",
    "RankError",
    "ReadOnlyError",
    "ResumeError",
    "SchedulerError",
    "SelectionError",
    "SharedObjectError",
    "SourceIsTargetError",
    "StepError",
    "StepNotShownWarning",
    "StepsMissingError",
    "StoreArgumentError",
    "StoreError",
    "StoreKeyError",
    "StoreOutOfReachError",
    "StoreUnavailableError",
    "UnknownCodecError",
    "UnknownDataTypeError",
    "UnknownGridError",
    "ValidationProblem",
    "ValuesDifferError",
    "WorkerLostError",
    "WorkerSetupError",
    "WriterNotFoundError",
    "WrittenOnceError",
    "ZarrDaskError",
    "ZarrDaskWarning",
]


class ZarrDaskError(Exception):
    """Base of every exception raised on purpose by this package."""


class NodeNotFoundError(ZarrDaskError, FileNotFoundError):
    """No array or group at the requested path."""

    def __init__(self, where: str, looked_for: Sequence[str], hint: str = "") -> None:
        self.where = where
        self.looked_for = tuple(looked_for)
        self.hint = hint
        message = f"no Zarr array or group at {where}"
        if self.looked_for:
            others = " or metadata of another format" if len(self.looked_for) > 1 else ""
            message += f": there is no {self.looked_for[0]!r}{others}"
        message += "."
        super().__init__(f"{message} {hint}".rstrip())

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.where, self.looked_for, self.hint)


class NodeKeyError(NodeNotFoundError, KeyError):
    """No array or group at a path below an open group: ``group[path]``."""


class NodeExistsError(ZarrDaskError, FileExistsError):
    """A node cannot be created because its path is taken."""


class NodeTypeError(ZarrDaskError, TypeError):
    """An array instead of the requested group, or the reverse."""


class LocationTypeError(ZarrDaskError, TypeError):
    """A value of a kind that cannot name a store, such as None or a number."""


@dataclass(frozen=True, slots=True)
class ValidationProblem:
    """One violation of the rules for metadata."""

    field: str
    """Position in the metadata, as a dotted path such as ``codecs[1].configuration.level``."""
    found: object
    """Value that was found; `ABSENT` if there is none."""
    expected: str
    """Description of the values that the format allows."""
    kind: str = "value"
    """``value``, ``codec``, ``data_type`` or ``grid``: determines the error class for an unknown
    name; ``rule`` if what is expected is a sentence.
    """

    def __str__(self) -> str:
        found = "absent" if self.found is ABSENT else f"got {_shorten(self.found)}"
        joint = "; " if self.kind == "rule" else ", expected "
        return f"{self.field}: {found}{joint}{self.expected}"


class _Absent:
    """Marks a field that is missing from the metadata; `None` is a JSON value (null)."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


def _shorten(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class MetadataError(ZarrDaskError, ValueError):
    """Metadata violate the rules of their format; every violation is listed."""

    def __init__(self, where: str, problems: Sequence[ValidationProblem]) -> None:
        self.where = where
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        count = f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"
        super().__init__(f"{where}: {count} in the metadata:\n{lines}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.where, self.problems)

    @staticmethod
    def of(where: str, problems: Sequence[ValidationProblem]) -> MetadataError:
        """Return an error of the most specific class for these problems."""
        kinds = {problem.kind for problem in problems}
        by_kind = {
            "codec": UnknownCodecError,
            "data_type": UnknownDataTypeError,
            "grid": UnknownGridError,
        }
        error = by_kind.get(kinds.pop(), MetadataError) if len(kinds) == 1 else MetadataError
        return error(where, problems)


class UnknownDataTypeError(MetadataError):
    """A data type that this version does not know."""


class UnknownGridError(MetadataError):
    """A chunk grid or chunk key encoding that this version does not know."""


class UnknownCodecError(MetadataError):
    """A codec that this version does not know."""


class MetadataChangedError(ZarrDaskError):
    """The metadata of a node have changed since the node was opened."""


class ArrayChangedError(ZarrDaskError, RuntimeError):
    """A stored object is not the one that was there when the array was opened to be consistent."""


class MigrationError(ZarrDaskError, ValueError):
    """A hierarchy cannot be migrated completely, so nothing was migrated; every reason is listed.

    Parameters
    ----------
    where
        Store and path of the hierarchy.
    refusals
        Path of each node that cannot be migrated, and the reason.
    """

    def __init__(self, where: str, refusals: Sequence[tuple[str, ValidationProblem]]) -> None:
        self.where = where
        self.refusals = tuple(refusals)
        lines = "\n".join(f"  - {path or '/'}: {problem}" for path, problem in self.refusals)
        super().__init__(f"{where} cannot be migrated, and was left as it is:\n{lines}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.where, self.refusals)


class CopyError(ZarrDaskError, ValueError):
    """A hierarchy cannot be copied completely, so nothing was copied; every reason is listed.

    Parameters
    ----------
    where
        Store and path of the hierarchy.
    refusals
        Path of each node that cannot be copied, and the reason.
    """

    def __init__(self, where: str, refusals: Sequence[tuple[str, str]]) -> None:
        self.where = where
        self.refusals = tuple(refusals)
        lines = "\n".join(f"  - {path or '/'}: {reason}" for path, reason in self.refusals)
        super().__init__(f"{where} cannot be copied, and nothing was written:\n{lines}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.where, self.refusals)


class IngestError(ZarrDaskError, ValueError):
    """Files that cannot be ingested as requested; every difference is listed."""

    def __init__(self, message: str, differences: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.differences = tuple(differences)
        """Each with a file, a variable, what is wrong, and the arguments that settle it."""

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.message, self.differences)


class OmeVersionError(ZarrDaskError, ValueError):
    """OME-Zarr metadata of a version that this package does not read."""

    def __init__(self, where: str, version: str, supported: Sequence[str]) -> None:
        self.where = where
        self.version = version
        self.supported = tuple(supported)
        super().__init__(
            f"{where}: OME-Zarr metadata of version {version}; what is expected here is "
            f"{' and '.join(self.supported)}. zarr_dask.ome.migrate brings 0.1, 0.2 and 0.3 to "
            "0.5; zarr_dask.ome.open reads images of 0.6, and zarr_dask.ome.write copies them to "
            "0.5. Convert others with a program that knows them. The arrays themselves can be "
            "opened with zarr_dask.open."
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.where, self.version, self.supported)


class GridError(ZarrDaskError, ValueError):
    """Shapes that do not fit together: chunks in shards, blocks in regions."""


class DataTypeError(ZarrDaskError, TypeError):
    """Values of a kind that the array's data type cannot hold."""


class SelectionError(ZarrDaskError, IndexError):
    """A selection outside the array, or of an unsupported kind."""

    def of(self, where: str) -> SelectionError:
        """Return the same error with the array it is of; itself if that is named already."""
        text = str(self)
        return self if where in text else SelectionError(f"{where}: {text}")


class _AtChunkError(Exception):
    """A fault of one chunk; its location is completed step by step as the error is passed up."""

    def __init__(
        self,
        reason: str = "",
        where: str = "",
        key: str = "",
        coords: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        self.reason = reason
        self.where = where
        self.key = key
        self.coords = coords
        super().__init__(self._message())

    def _message(self) -> str:
        return self.reason

    @property
    def _object(self) -> str:
        return f"the stored object {self.key!r} (chunk {' / '.join(map(str, self.coords))})"

    def inside(self, coords: tuple[int, ...]) -> Self:
        """Return the same error, located in the shard that holds the chunk at `coords`."""
        return type(self)(self.reason, self.where, self.key, (coords, *self.coords))

    def at(self, where: str, key: str, coords: tuple[int, ...]) -> Self:
        """Return the same error, located in the array."""
        return type(self)(self.reason, where, key, (coords, *self.coords))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.reason, self.where, self.key, self.coords)


class CorruptObjectError(_AtChunkError, ZarrDaskError, ValueError):
    """Stored bytes do not decode to what the metadata declare.

    Parameters
    ----------
    reason
        Description of the fault.
    where
        Store and path of the array; filled in by the array that reads.
    key
        Key of the stored object.
    coords
        Coordinates of the chunk: of the stored object in the array's grid, then of the damaged
        chunk inside a shard, if there is one.
    """

    def _message(self) -> str:
        if not self.key:
            return self.reason
        return (
            f"{self.where}: {self._object} is corrupt: {self.reason}. Restore it from its source, "
            "or delete the key to read the fill value."
        )


class ChecksumError(CorruptObjectError):
    """Stored bytes do not match their checksum."""


class ManifestMismatchError(ChecksumError):
    """A stored object is not what the manifest says; read with `ReadOptions.verify`."""

    def _message(self) -> str:
        if not self.key:
            return self.reason
        return (
            f"{self.where}: {self._object} is not what its manifest says: {self.reason}. It was "
            "damaged, lost, exchanged, or written again by what keeps no manifest. Restore it, or "
            "write it again with manifest=."
        )


class ChunkMissingError(_AtChunkError, ZarrDaskError, FileNotFoundError):
    """A chunk is absent and the array is read with ``missing="error"``.

    Parameters
    ----------
    reason
        A possible reason why an existing chunk seems absent; empty if there is none.
    where
        Store and path of the array; filled in by the array that reads.
    key
        Key of the stored object.
    coords
        Coordinates of the chunk, as in `CorruptObjectError`.
    """

    def _message(self) -> str:
        if not self.key:
            return self.reason or "a chunk is absent"
        what = f"{self._object} is absent"
        if len(self.coords) > 1:
            what = f"chunk {self.coords[-1]} of the shard is absent from {self._object}"
        return (
            f'{self.where}: {what}, and reading with missing="error" takes that as lost data. '
            f'Read with missing="fill" to get the fill value instead. {self.reason}'.rstrip()
        )


class StoreError(ZarrDaskError, OSError):
    """A store operation failed; the original error is the ``__cause__``."""

    unreachable: bool = False
    """True if nothing has responded: the connection was refused, cut or timed out, or there is no
    such host.
    """


class StoreKeyError(StoreError, ValueError):
    """A key or path that could lead outside the store, or that no store can hold."""


class NodeNameError(StoreKeyError, KeyError):
    """A key of an open group that cannot be the path of a node, such as ``group[0]``."""


class StoreArgumentError(StoreError, ValueError):
    """A scheme of a URL, or an option, that no store takes."""


class LinkError(StoreError):
    """A link below the root of a store, which nothing that writes or deletes follows."""


class ListingError(StoreError):
    """The store cannot list its keys; an HTTP server, for instance."""


class AccessDeniedError(StoreError, PermissionError):
    """The service or the operating system refuses the access: credentials or permissions lack."""

    expired: bool = False
    """True if the credentials have expired, so that new ones may be found."""


class StoreUnavailableError(StoreError, ConnectionError):
    """A failure that may pass: no response, an incomplete one, or an overloaded service.

    A caller gets it only after the retries that the store's policy allows.
    """

    retry_after: float | None = None
    """Seconds to wait before the next request, as the service requires; None if it states none."""
    throttled: bool = False
    """True if the service reported too many requests."""


class DamagedValueError(StoreError):
    """A value that the store itself knows to be damaged, such as an entry of an archive."""

    by_checksum: bool = False
    """True if a checksum revealed the damage."""


class ObjectReplacedError(StoreError):
    """A value that was replaced at each attempt to read several parts of one version."""


class ConditionalWriteError(StoreError):
    """The store or its file system lacks the conditional writes that sharing objects requires."""


class WrittenOnceError(StoreError, FileExistsError):
    """A second value for a key of a store in which each key is written once."""


class CommitConflictError(StoreError):
    """Others have committed changes to what a job has changed; nothing of the job is committed."""


class ReadOnlyError(StoreError, PermissionError):
    """A write through a store or node that was opened for reading."""


class CredentialsMissingError(StoreError, PermissionError):
    """A store was opened with credentials in another process, which has not passed them on."""


class StoreOutOfReachError(StoreError, RuntimeError):
    """A store that a process which runs tasks does not see: in another one's memory, or host."""


class PartialWriteError(ZarrDaskError, ValueError):
    """A region covers stored objects only partly, so other writers may write to them as well."""


class DatasetMismatchError(ZarrDaskError, ValueError):
    """A dataset does not continue, or fit into, the one that it is to be written to."""


class LabelNotFoundError(DatasetMismatchError, KeyError):
    """Labels of a region that the stored dataset does not have."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotation marks


class SourceIsTargetError(ZarrDaskError, ValueError):
    """A job would overwrite data that it still has to read."""


class ResumeError(ZarrDaskError, ValueError):
    """A job cannot be resumed: it differs, cannot be identified, or has no journal."""


class JournalError(ZarrDaskError, ValueError):
    """A record of a job (its document, what its ranks say) holds what no job has written."""


class JobReplacedError(ResumeError):
    """A job that goes on after its journal was removed, or became that of another job."""

    is_same_job: bool = False
    """True if another process goes on with the same job, to which the journal belongs now."""


class JobRunningError(ZarrDaskError, RuntimeError):
    """A running job writes to the data to be replaced or removed, or makes a node above them."""


class AppendConflictError(JobRunningError):
    """Another append to the same array is under way; nothing was written."""


class ManifestError(ZarrDaskError, ValueError):
    """The manifest is missing or incomplete, or lacks the requested information."""


class ValuesDifferError(ZarrDaskError, ValueError):
    """A copy differs from its source, and was not made visible.

    Parameters
    ----------
    source, target
        Stores and paths of the two arrays.
    differing
        Number of elements that differ, or of stored objects if they were copied as bytes.
    first
        Coordinates of the first few differences (in the source; in the target if values were
        written), and both values as texts.
    what
        Name of the compared things, in the plural.
    """

    def __init__(
        self,
        source: str,
        target: str,
        differing: int,
        first: Sequence[tuple[tuple[int, ...], str, str]],
        what: str = "elements",
    ) -> None:
        self.source = source
        self.target = target
        self.differing = differing
        self.first = tuple(first)
        self.what = what
        shown = "".join(f"\n  - {at}: {a} and {b}" for at, a, b in self.first)
        super().__init__(
            f"{target} does not hold what {source} holds: {differing:,} {what} differ, the first "
            f"of them (coordinates, both values):{shown}\nNothing new was made "
            "visible. Either the source has changed since, or codecs lose something, or what was "
            "written is not what is stored. Copy it anew (without resume), or without verify=True "
            "if the difference is meant."
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.source, self.target, self.differing, self.first, self.what)


class MemoryBudgetError(ZarrDaskError, ValueError):
    """`max_mem` is below the need of the smallest possible task.

    Parameters
    ----------
    message
        The message.
    needed
        Bytes of `max_mem` that suffice, if known.
    """

    def __init__(self, message: str, needed: int | None = None) -> None:
        self.needed = needed
        super().__init__(message)


class SharedObjectError(ZarrDaskError, ValueError):
    """Two ranks of a simulation would write the same stored object.

    Parameters
    ----------
    key
        Key of the object, for the first step.
    ranks
        Two ranks that would write it.
    hint
        A decomposition that would fit.
    """

    def __init__(self, key: str, ranks: tuple[int, int], hint: str) -> None:
        self.key = key
        self.ranks = ranks
        self.hint = hint
        super().__init__(
            f"ranks {ranks[0]} and {ranks[1]} would both write the stored object {key!r}, and "
            f"every stored object must have one writer; nothing was created. {hint}"
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.key, self.ranks, self.hint)


class StepError(ZarrDaskError, ValueError):
    """A simulation step that is out of order, was not stored, or is beyond the capacity."""


class StepsMissingError(ZarrDaskError, RuntimeError):
    """Steps cannot be made visible because some ranks have not stored them.

    Parameters
    ----------
    where
        Store and path of the output.
    step
        The last step that was to become visible.
    missing
        Rank, array, and a description of the missing stored objects.
    """

    def __init__(self, where: str, step: int, missing: Sequence[tuple[int, str, str]]) -> None:
        self.where = where
        self.step = step
        self.missing = tuple(missing)
        shown = "".join(
            f"\n  - rank {rank}: {array}: {what}" for rank, array, what in self.missing[:_SHOWN]
        )
        more = len(self.missing) - _SHOWN
        rest = f"\n  - and {more} more" if more > 0 else ""
        super().__init__(
            f"{where}: the steps up to {step} cannot become visible, because not all of them are "
            f"stored; nothing was changed:{shown}{rest}\n"
            "Let these ranks put (or flush) them first. If they will not go on, "
            "publish(flush=True) shows the steps that all ranks have stored, and "
            "zarr_dask.Writer.abandon ends the output there."
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.where, self.step, self.missing)


_SHOWN = 10


class RankError(ZarrDaskError, ValueError):
    """The rank does not exist, is in use by a running process, or cannot do this."""


class WriterNotFoundError(ZarrDaskError, FileNotFoundError):
    """No simulation output exists at that location."""


class PlanError(ZarrDaskError, ValueError):
    """A file holds no plan, or one that does not fit the present data."""


class SchedulerError(ZarrDaskError, ConnectionError):
    """No dask scheduler responds at the given address, or the connection was lost."""


class WorkerLostError(ZarrDaskError, RuntimeError):
    """Workers died repeatedly of the same task, or there were none for minutes."""


class WorkerSetupError(ZarrDaskError, RuntimeError):
    """Workers lack the package, have another version, cannot write there, or are being started."""


class DaskBackendError(ZarrDaskError, RuntimeError):
    """dask is configured to make arrays that do not support layers of other packages."""


class MissingDependencyError(ZarrDaskError, ImportError):
    """A missing optional package; the message names the extra that installs it."""


class ZarrDaskWarning(UserWarning):
    """Base of the warnings of this package."""


class ConsolidatedMetadataWarning(ZarrDaskWarning):
    """Consolidated metadata differ from the metadata of the nodes, or cannot be used."""


class LinkWarning(ZarrDaskWarning):
    """A link leads out of the root of a store, so that what it leads to is not listed."""


class MissingGroupWarning(ZarrDaskWarning):
    """There are nodes below a path that has no metadata itself."""


class MixedFormatsWarning(ZarrDaskWarning):
    """A node was created in a group of another format, whose readers will not see it."""


class OmeMetadataWarning(ZarrDaskWarning):
    """OME-Zarr metadata do something that the specification advises against."""


class StepNotShownWarning(ZarrDaskWarning):
    """A published step is not shown because it lies in stored objects that are not yet complete."""


_ELSEWHERE = {
    **dict.fromkeys(("ArrayNotFoundError", "GroupNotFoundError"), "NodeNotFoundError"),
    **dict.fromkeys(
        ("ContainsArrayAndGroupError", "ContainsArrayError", "ContainsGroupError"),
        "NodeExistsError",
    ),
    **dict.fromkeys(("BoundsCheckError", "VindexInvalidSelectionError"), "SelectionError"),
    "ArrayIndexError": "SelectionError",
    "BaseZarrError": "ZarrDaskError",
    "ChunkNotFoundError": "ChunkMissingError",
    "CodecPipelineError": "CorruptObjectError",
    "DataTypeValidationError": "DataTypeError",
    "NegativeStepError": "SelectionError",
    "MetadataValidationError": "MetadataError",
    "NodeTypeValidationError": "NodeTypeError",
    "PathNotFoundError": "NodeNotFoundError",
    **dict.fromkeys(
        ("ZarrDeprecationWarning", "ZarrFutureWarning", "ZarrRuntimeWarning", "ZarrUserWarning"),
        "ZarrDaskWarning",
    ),
}
"""Exceptions of zarr-python, and those raised here for the same reason."""


def __getattr__(name: str) -> object:
    """Name the exception that is raised here where zarr-python raises another one."""
    message = f"module {__name__!r} has no attribute {name!r}."
    if name in _ELSEWHERE:
        message += f" It is called zarr_dask.errors.{_ELSEWHERE[name]} here."
    raise AttributeError(message)
