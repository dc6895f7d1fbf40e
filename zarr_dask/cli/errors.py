"""Shared by all commands: errors as one message, warnings as one line, and exit codes."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from zarr_dask.cli.output import say_error, terminal_safe, wrapped
from zarr_dask.cli.settings import ToStandardError, settings
from zarr_dask.errors import ZarrDaskError

__all__ = [
    "BROKEN_PIPE",
    "FAILED",
    "FINDING",
    "OWN_PROCESS",
    "Decorated",
    "ErrorHandlingGroup",
    "Failure",
    "Interrupted",
    "Terminated",
    "as_options",
]

OWN_PROCESS = "own process"
"""Object of the context of a command that is a process of its own."""
FINDING = 1
"""Exit code if something differs, is damaged, missing, or breaks a rule."""
FAILED = 3
"""Exit code if a command could not do what it was asked to."""
BROKEN_PIPE = 141
"""Exit code if the reader of standard output has left, as in shells."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Failure(click.ClickException):
    """A failed command, as a message wrapped to the width of the terminal."""

    exit_code = FAILED

    def show(self, file: Any = None) -> None:
        """Print the message."""
        first, *rest = terminal_safe(self.message).splitlines() or [""]
        lines = [wrapped(first, "  ", "Error: ").removeprefix("Error: ")]
        lines += [wrapped(line.lstrip(), "    ", "  ") for line in rest]
        click.echo(click.style("Error: ", fg="red") + "\n".join(lines), file=file, err=file is None)


class Interrupted(click.ClickException):
    """Ctrl-C, with its usual exit code."""

    exit_code = 130

    def show(self, file: Any = None) -> None:
        """Print the interruption, and the state of the job."""
        click.echo(f"Interrupted{self.message}", file=file, err=file is None)


class Terminated(Interrupted):
    """SIGTERM."""

    exit_code = 143


class HintingGroup(click.Group):
    """Commands, with hints for those of other programs."""

    def hints(self) -> Mapping[str, str]:
        """Return names of commands elsewhere, and what to use here."""
        return {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; see `click.Group.resolve_command`.

        Raises
        ------
        click.UsageError
            If there is no such command.
        """
        hint = self.hints().get(args[0])
        if hint is not None and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(f"No such command {args[0]!r}. Use {hint}.")
        return super().resolve_command(ctx, args)


class ErrorHandlingGroup(HintingGroup):
    """Commands that print errors as messages."""

    def hints(self) -> Mapping[str, str]:
        """Return names of commands elsewhere, and what to use here."""
        return _HABITS

    def main(self, args: Any = None, *more: Any, **options: Any) -> Any:
        """Run the program; see `click.Command.main`. A crash is a failure, not a finding."""
        logger = logging.getLogger("zarr_dask")
        level = logger.level  # which --verbose changes while arguments are parsed
        try:
            options.setdefault("obj", OWN_PROCESS if args is None else None)
            return super().main(args, *more, **options)
        except Exception:
            if not options.get("standalone_mode", True):
                raise
            traceback.print_exc()
            raise SystemExit(FAILED) from None
        finally:
            logger.setLevel(level)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; see `HintingGroup.resolve_command`. A place gets a hint, too.

        Raises
        ------
        click.UsageError
            If there is no such command.
        """
        is_known = args[0] in self.hints() or self.get_command(ctx, args[0]) is not None
        if not is_known and (Path(args[0]).exists() or "://" in args[0]):
            raise click.UsageError(f"{args[0]!r} is a place: use zarr-dask info {args[0]}.")
        resolved = super().resolve_command(ctx, args)
        _refuse_parted_lengths(args)
        return resolved

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; see `click.Group.invoke`."""
        with _logs_and_warnings():
            try:
                return super().invoke(ctx)
            except ZarrDaskError as error:
                if settings().traceback:
                    raise
                notes = getattr(error, "__notes__", ())  # they may have the remedy
                message = as_options("\n".join([str(error), *notes]))
                say_error(type(error).__name__, message, FAILED)
                raise Failure(message) from error
            except click.FileError as error:
                say_error("FileError", error.format_message(), FAILED)
                raise Failure(error.format_message()) from error
            except click.ClickException as error:
                kind = type(error).__name__
                if isinstance(error, click.NoSuchOption):
                    error = _with_option_meant(error)
                elif isinstance(error, click.MissingParameter):
                    error = _with_target_meant(error)
                elif type(error) is click.UsageError:
                    error = click.UsageError(error.message + _meant_by_argument(error), error.ctx)
                say_error(kind, error.format_message(), error.exit_code)
                raise error from None
            except KeyboardInterrupt as interrupt:
                raise Interrupted(".") from interrupt
            except OSError as error:
                ended = _output_failed(error)
                raise ended from (None if ended is error else error)


def _output_failed(error: OSError) -> Exception:
    """Return how a command ends that cannot print; all other errors are crashes."""
    if error.errno not in (errno.EPIPE, errno.ENOSPC):
        return error
    # what is still buffered must not fail again at exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return click.exceptions.Exit(BROKEN_PIPE)
    return Failure(f"could not write the output: {error}.")


def _refuse_parted_lengths(args: list[str]) -> None:
    """Refuse lengths with blanks between them: the second one would be taken for a path."""
    for option, first, second in zip(args, args[1:], args[2:], strict=False):
        if option in _GRIDS and _LENGTH.fullmatch(first) and _LENGTH.fullmatch(second):
            raise click.UsageError(
                f"{option} {first} {second}: lengths have commas between them, as in {option} "
                f"{first},{second}. A path {second!r} goes before {option}."
            )


_GRIDS = frozenset({"--shape", "--chunks", "--shards"})
_LENGTH = re.compile("-?[0-9]+")
_HABITS = {
    **dict.fromkeys(("attr", "attrs"), "info"),
    "attributes": "info",
    "cat": "head",
    "check": "verify",
    **dict.fromkeys(("clean", "gc", "prune", "vacuum"), "verify --sweep, which removes leftovers"),
    **dict.fromkeys(
        ("gdal_translate", "nccopy", "ncks", "translate"),
        "'ingest' for NetCDF and HDF5, 'ome convert' for TIFF, 'copy --codecs' or rechunk for Zarr",
    ),
    "checksum": "digest",
    "append": "'ingest' for files, to_zarr(x, url, append=0) in Python for values",
    "chmod": "the tools of the store",
    "consolidate-metadata": "consolidate",
    "cp": "copy",
    "convert": "'ingest' for NetCDF and HDF5, 'ome convert' for TIFF, 'migrate' for formats",
    **dict.fromkeys(("cmp", "diff", "h5diff"), "compare"),
    "du": "inventory, or info of one array",
    **dict.fromkeys(("dump", "print"), "info for the metadata, head for values"),
    "export": "'copy' for another Zarr store; xarray.Dataset.to_netcdf writes NetCDF",
    "find": "ls --recursive, or tree",
    "fsck": "verify",
    "get": "info, or head for values",
    **dict.fromkeys(("h5dump", "header", "ncdump"), "info for the metadata, head for values"),
    **dict.fromkeys(("dir", "h5ls", "ncinfo"), "tree, or ls"),
    **dict.fromkeys(("describe", "gdalinfo"), "info"),
    "jobs": "status URL",
    **dict.fromkeys(("hash", "sha256sum", "md5sum"), "digest"),
    "help": "--help",
    "import": "'ingest' for NetCDF and HDF5, 'ome convert' for TIFF",
    "list": "ls",
    "md5": "digest",
    **dict.fromkeys(("init", "mb", "mkdir", "new", "touch"), "create"),
    "mv": "copy, then delete",
    **dict.fromkeys(
        ("abort", "cancel", "kill", "stop"), "Ctrl-C where it runs; --resume continues it later"
    ),
    "remove-metadata": "migrate --remove-old",
    **dict.fromkeys(("sbatch", "slurm", "submit"), "'plan --output', then script"),
    "serve": "'ome view' for images; any web server hands out a folder",
    "plot": "plan --plot, or 'ome thumbnail'",
    "restart": "the same command again with --resume",
    **dict.fromkeys(("stats", "summary"), "inventory, or info of one array"),
    "open": "info",
    "repair": "verify, which says what each finding takes; --sweep removes leftovers",
    **dict.fromkeys(("compress", "repack", "recompress"), "'copy --codecs', or rechunk"),
    **dict.fromkeys(
        ("ncatted", "set", "set-attr", "set-attrs", "setattr"),
        "node.attrs[name] = value in Python, or create --attribute",
    ),
    "survey": "ls --recursive, tree, or inventory",
    **dict.fromkeys(("to-xarray", "to-netcdf"), "xarray.open_dataset(url, engine='zarr_dask')"),
    **dict.fromkeys(("kerchunk", "reference"), "zarr_dask.reference(files, url) in Python"),
    "tail": "head --region, with -5: for the last five",
    "resume": "the same command again with --resume",
    "rsync": "copy, with --resume if it was interrupted",
    "size": "inventory, or info of one array",
    "stat": "info",
    "sync": "copy, with --resume if it was interrupted",
    "unzip": "copy: a zip archive is a source like a folder",
    "upgrade": "migrate",
    "view": "'ome view' for images, 'head' for values",
    "zip": "copy, with a DST that ends in .zip",
    **dict.fromkeys(("rb", "remove", "rm", "rmdir"), "delete"),
    "show": "info",
    "validate": "verify",
    "version": "--version",
}
"""Names of commands elsewhere, and those here."""
_OF_IMAGES = {
    "append": "zarr_dask.ome.append(url, values, axis='t') in Python",
    "check": "ome validate",
    **dict.fromkeys(("create", "write"), "ome pyramid for arrays, ome convert for TIFF"),
    **dict.fromkeys(("import", "from-tiff"), "ome convert"),
    **dict.fromkeys(("label", "labels"), "zarr_dask.ome.write_labels(url, values, name) in Python"),
    **dict.fromkeys(("migrate", "upgrade"), "ome convert"),
    "open": "ome view, or ome info",
    "plate": "ome info, or zarr_dask.ome.write_plate(wells, url) in Python",
    "serve": "ome view",
    "show": "ome view, or ome info",
}
"""Commands for images elsewhere, and those here."""


class ImageGroup(HintingGroup):
    """The commands for images."""

    def hints(self) -> Mapping[str, str]:
        """Return names of commands elsewhere, and what to use here."""
        return _OF_IMAGES


_OPTIONS: dict[str, tuple[str, ...]] = {
    "-c": ("--chunks", "--codecs"),
    "-ot": ("--dtype",),
    "--compress": ("--codecs",),
    "--quick": ("--deep",),
    "-f": ("--format", "--overwrite"),
    "-j": ("--workers",),
    "-m": ("--max-mem",),
    "-n": ("--dry-run", "--workers"),
    "-p": ("--workers", "--path", "--partition"),
    "-r": (),
    "-s": ("--shape", "--shards"),
    "-w": ("--workers",),
    **dict.fromkeys(("-A", "-P", "--charge", "--project"), ("--account",)),
    **dict.fromkeys(("-W", "-t", "--walltime"), ("--time",)),
    "--kubernetes": ("--k8s",),
    "--queue": ("--partition",),
    "-d": ("--sel", "--region", "--codecs"),
    **dict.fromkeys(("--concat-dim", "--dim", "--dimension"), ("--concat", "--dims")),
    **dict.fromkeys(("-z", "--clevel", "--compression-level", "--deflate"), ("--codecs",)),
    **dict.fromkeys(("--gzip", "--shuffle", "--zlib", "--zstd"), ("--codecs",)),
    **dict.fromkeys(("--checkers", "--transfers"), ("--workers",)),
    "--remove-v2-metadata": ("--remove-old",),
    "--attr": ("--attribute",),
    "--attrs": ("--attribute",),
    "--blocksize": ("--chunks",),
    "--checksum": ("--deep", "--digest", "--verify"),
    "--chunk": ("--chunks",),
    "--chunk-size": ("--chunks",),
    "--clobber": ("--overwrite",),
    "--cluster": ("--scheduler",),
    "--codec": ("--codecs",),
    "--compression": ("--codecs",),
    "--compressor": ("--codecs",),
    "--continue": ("--resume",),
    "--debug": ("--verbose", "--traceback"),
    "--depth": ("--level",),
    "--dim-names": ("--dims",),
    "--dimension-names": ("--dims",),
    "--dimensions": ("--dims",),
    "--endpoint": ("--endpoint-url",),
    "--exclude": ("--array",),
    "--force": ("--overwrite", "--yes"),
    "--include": ("--array",),
    "--decode": ("--deep",),
    "--fill": ("--fill-value",),
    "--fix": ("--sweep",),
    "--full": ("--deep",),
    "--jobs": ("--workers",),
    "--log-level": ("--verbose", "--quiet"),
    "--max-depth": ("--level",),
    "--mem": ("--max-mem",),
    "--memory": ("--max-mem", "--mem"),
    "--memory-limit": ("--max-mem",),
    "--max-memory": ("--max-mem",),
    "--n-workers": ("--workers",),
    "--no-sign-request": ("--anon",),
    "--nworkers": ("--workers",),
    "--overwrite-existing": ("--overwrite",),
    "--processes": ("--workers",),
    "--repair": ("--sweep",),
    "--replace": ("--overwrite",),
    "--lines": ("--number",),
    "--rows": ("--number",),
    "--s3-endpoint": ("--endpoint-url",),
    "--select": ("--sel", "--region"),
    "--shard": ("--shards",),
    "--shard-size": ("--shards",),
    "--silent": ("--quiet",),
    "--slice": ("--region",),
    "--target-chunks": ("--chunks",),
    "--temp-store": ("--temp",),
    "--tmp": ("--temp",),
    "--to": ("--format",),
    "--tmpdir": ("--temp",),
    "--type": ("--dtype",),
    "--var": ("--array",),
    "--variable": ("--array",),
    "--zarr-format": ("--format",),
    "--zarr-version": ("--format",),
    **dict.fromkeys(("--ngff-version", "--ome-version", "--version"), ("--to",)),
}
"""Options elsewhere, and those here that may be meant."""
_SAID = {
    **dict.fromkeys(
        ("--array", "--dataset", "--group", "--name", "--node", "--path", "--var", "--variable"),
        "a node in URL is the second argument, PATH",
    ),
    "-a": "nothing is hidden",
    **dict.fromkeys(
        ("--histogram", "--stats"), "zarr-dask head prints values, and no command computes"
    ),
    **dict.fromkeys(("-j", "-json"), "for JSON it is --json, of every command"),
    **dict.fromkeys(("--if-exists", "--skip-existing"), "--overwrite replaces what exists"),
    "--delete": "objects that SRC lacks are not removed; --overwrite replaces DST",
    **dict.fromkeys(
        ("--exclude", "--include"), "one node is copied: SRC/PATH to DST/PATH; several by rechunk"
    ),
    **dict.fromkeys(
        ("--human-readable", "--summarize"),
        "zarr-dask info counts the objects and bytes of an array",
    ),
    "--force": "nothing that exists is replaced",
    "--install-completion": "zarr-dask completion prints what the shell reads, and says where",
    **dict.fromkeys(("-y", "--yes"), "nothing is asked; --overwrite replaces what exists"),
    "--checksum": "zarr-dask verify --deep decode reads everything, zarr-dask digest is a checksum",
    "--dry-run": "zarr-dask plan prints what rechunk would do, zarr-dask copy takes --dry-run",
    "--format": "for JSON it is --json",
    "--output": "the target is the second argument, and > FILE keeps what is printed",
    "--output-format": "for JSON it is --json",
    "--password": "credentials come from the environment or from files of the service",
    **dict.fromkeys(("-P", "--progress"), "progress is shown unless --quiet is given"),
    **dict.fromkeys(
        ("--factors", "--levels", "--method", "--scale", "--translation", "--units"),
        "zarr-dask ome pyramid SRC DST takes it, for TIFF files too",
    ),
    "--no-progress": "--quiet shows none",
    **dict.fromkeys(
        ("--atol", "--rtol", "--tolerance"),
        "values are compared exactly; numpy.testing.assert_allclose has tolerances",
    ),
    **dict.fromkeys(
        ("--md5", "--sha256"), "there is one digest of values, the same in any layout and format"
    ),
    "--recursive": "what lies below is always included",
    "-r": "what lies below is always included",
    "-R": "what lies below is always included",
    "-o": "the target is the second argument, and > FILE keeps what is printed",
    "--overwrite": "nothing that exists is replaced",
    "--requester-pays": "use --storage-option requester_pays=true",
    "--threads": "a command runs as many tasks as there are cores, in --workers processes",
}
"""Options elsewhere that have none here, and what is done instead."""
_OF_SCRIPTS = {
    **dict.fromkeys(
        ("-c", "--cpus", "--cpus-per-task", "--threads"),
        "jobs have as many cores as the plan has --threads: zarr-dask plan takes them",
    ),
    **dict.fromkeys(("-o", "--output"), "> FILE keeps what is printed"),
    **dict.fromkeys(
        ("--condor", "--flux", "--htcondor", "--sge", "--torque"),
        "systems are --slurm, --pbs, --lsf and --k8s; elsewhere submit "
        "zarr-dask run PLAN --stage S --part I/N for each part, then zarr-dask finish PLAN",
    ),
}
"""Options of batch systems, and what is done instead."""


def _with_option_meant(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return the error for an unknown option with the name of the one that is meant."""
    name, context = error.option_name, error.ctx
    known = {option for param in context.command.params for option in param.opts} if context else ()
    meant = [option for option in _OPTIONS.get(name, ()) if option in known]
    if meant:
        words = " or ".join(map(repr, meant))
        return click.NoSuchOption(name, f"{error.message} Did you mean {words}?", None, context)
    if context is not None and context.command.name == "script":
        said = _OF_SCRIPTS.get(name, f"options of the system are handed on: --option={name}=VALUE")
        return click.NoSuchOption(name, f"{error.message} Here, {said}.", None, context)
    if name in _SAID:
        return click.NoSuchOption(name, f"{error.message} Here, {_SAID[name]}.", None, context)
    return error


def _meant_by_argument(error: click.UsageError) -> str:
    """Return a hint for an argument too many: lengths, another location, or a format."""
    found = _TOO_MANY.search(error.message)
    command = error.ctx.command if error.ctx is not None else None
    if found is None or command is None:
        return ""
    if _LENGTHS.fullmatch(found[1]) and any("--chunks" in one.opts for one in command.params):
        return f" Lengths are given by an option: --chunks {found[1]}."
    if command.name in {"copy", "rechunk"}:
        return " SRC and DST are one node each: SRC/NAME is the one of a name."
    if command.name == "migrate":
        return " The format is given by an option: migrate SRC DST --format v3."
    if any(param.name == "path" for param in command.params):
        return " The command takes one location, URL, and the PATH of a node below it."
    return ""


def _with_target_meant(error: click.MissingParameter) -> click.MissingParameter:
    """Return the error with a hint if the target was given by an option that keeps the plan."""
    if error.ctx is None or not error.ctx.params.get("output"):
        return error
    hint = "The target is the last argument; --output is a file for the plan."
    return click.MissingParameter(hint, error.ctx, error.param)


_TOO_MANY = re.compile(r"unexpected extra arguments? \((.*)\)")
_LENGTHS = re.compile(r"(\w+=)?-?\d+(,(\w+=)?-?\d+)*")


@contextmanager
def _logs_and_warnings() -> Iterator[None]:
    """Print warnings and logs on standard error."""
    logger, handler = logging.getLogger("zarr_dask"), ToStandardError()
    handler.setLevel(logging.ERROR if settings().quiet else logging.NOTSET)
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    finally:
        logger.removeHandler(handler)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    sys.stderr.write(
        f"Warning: {terminal_safe(as_options(str(message)))}\n"
    )  # above progress bars, if any


_PHRASES = {
    'storage_options={"anon": True}': "--anon",
    "or open it with mode='r+' to write into it": "or choose another location",
    "storage_options={'client_kwargs': {'region_name': ...}}": "--region",
    "by 'endpoint_url'": "by --endpoint-url",
    "zarr_dask.consolidate": "zarr-dask consolidate",
    "; open_array opens it": "",
    "; open_group opens it, and path= names an array": "; PATH, after URL, names an array",
    "create_group writes the document": "zarr-dask create writes it",
    "deep='decode'": "--deep decode",
    "expected axes=, a name": "expected --axes, a name",
    "as zarr_dask.ome.write makes them": "as zarr-dask ome pyramid and ome convert make them",
    "(manifest=)": "(--manifest)",
    "give it as concat=, a name": "give it as --concat NAME",
    " zarr_dask.create_array and create_group make nodes.": " zarr-dask create makes a node.",
    "zarr_dask.ome.convert writes it": "zarr-dask ome convert writes it",
    "zarr_dask.ingest writes it": "zarr-dask ingest writes it",
}
"""Advice for users of Python, and what users of the command line do instead."""
_NAMES = {
    "overwrite": "overwrite",
    "remove_old": "remove-old",
    "resume": "resume",
    "sweep": "sweep",
    "verify": "verify",
}


def as_options(message: str) -> str:
    """Replace Python arguments in an error message by options of the command."""
    named = message
    for python, words in _PHRASES.items():
        named = named.replace(python, words)
    for name, option in _NAMES.items():
        named = re.sub(rf"(?<![\w/.-]){name}=True", f"--{option}", named)
    named = re.sub(
        r"zarr_dask\.copy\(source, target, format='(\w+)'\)",
        r"zarr-dask copy SRC DST --format \1",
        named,
    )
    named = re.sub(r"open\('([^']+)', path='([^']+)'\)", r"URL and PATH are \1 and \2", named)
    named = re.sub(r"settle=\{'([^']+)': '?([^'}]+)'?\}", r"--settle \1=\2", named)
    named = re.sub(r"(?<![\w/-])max_mem\b=?", "--max-mem", named)
    named = re.sub(
        r"(?<![\w/.-])(target_options|storage_options)\b(?! *\[)",
        lambda found: "--" + found[1].removesuffix("s").replace("_", "-"),
        named,
    )
    return re.sub(r"(?<![\w/.-])dst(?![\w/-]|\.\w)", "DST", named)
