"""Keywords of public functions: other names for them, and what unknown ones were meant to be."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from inspect import Parameter, cleandoc, signature
from itertools import groupby, pairwise
from typing import ParamSpec, TypeVar

__all__ = [
    "closest",
    "did_you_mean",
    "explained_by",
    "takes_habits",
    "takes_options_of",
    "unknown_keyword",
]

P = ParamSpec("P")
T = TypeVar("T")

_OTHERS: Mapping[str, tuple[str, ...]] = {
    "append_dim": ("append",),
    "attrs": ("attributes",),
    "arrays": ("variables",),
    "axis": ("append", "axes"),
    "chunk_shape": ("chunks",),
    "checksum": ("deep",),
    "checksums": ("deep",),
    "chunksize": ("chunks",),
    "clobber": ("overwrite",),
    "cluster": ("client",),
    "component": ("path",),
    "compression": ("codecs",),
    "compression_opts": ("codecs",),
    "compressor": ("codecs",),
    "compressors": ("codecs",),
    "coords": ("attributes",),
    "dim_names": ("dimension_names",),
    "dimensions": ("dimension_names",),
    "dimension_separator": ("chunk_key_encoding",),
    "dims": ("dimension_names",),
    "dst": ("target", "url"),
    "encoding": ("codecs",),
    "executor": ("client",),
    "dim": ("concat", "append"),
    "fillvalue": ("fill_value",),
    "fix": ("sweep",),
    "full": ("deep",),
    "exist_ok": ("overwrite",),
    "exists_ok": ("overwrite",),
    "group": ("path", "component"),
    "if_exists": ("overwrite",),
    "inner_chunks": ("chunks",),
    "location": ("url",),
    "max_memory": ("max_mem",),
    "memory_limit": ("max_mem",),
    "metadata": ("attributes",),
    "mode": ("overwrite",),
    "n_levels": ("levels",),
    "name": ("path", "component"),
    "node": ("url",),
    "object_codec": ("codecs",),
    "options": ("storage_options",),
    "out_chunks": ("chunks",),
    "output": ("target", "dst", "url"),
    "path": ("component",),
    "repair": ("sweep",),
    "safe_chunks": ("partial",),
    "scaler": ("method",),
    "scheduler": ("client",),
    "shard_shape": ("shards",),
    "source": ("src", "url"),
    "src": ("source", "url"),
    "shuffle": ("codecs",),
    "store": ("url",),
    "target": ("dst", "url"),
    "target_chunks": ("chunks",),
    "target_store": ("target", "dst"),
    "to": ("format", "dst"),
    "tmp": ("temp",),
    "temp_store": ("temp",),
    "zarr_format": ("format", "version"),
    "workers": ("client",),
    "zarr_version": ("format",),
}
"""Names that users bring from other libraries, and what they are called here."""

_ABSENT: Mapping[str, str] = {
    **dict.fromkeys(
        ("arrays", "drop", "drop_variables", "exclude", "include", "only"),
        "path= names one node, and rechunk takes a mapping from arrays to chunks",
    ),
    **dict.fromkeys(
        ("create", "delete_existing"),
        "mode='a' creates what is not there, mode='w' replaces what is",
    ),
    **dict.fromkeys(
        ("log", "verbose"), "logging.getLogger('zarr_dask') tells what is done, progress= how far"
    ),
    **dict.fromkeys(
        ("max_retries", "retries", "retry"),
        "failed requests are repeated; storage_options={'retry': {...}} says for how long",
    ),
    **dict.fromkeys(
        ("level", "clevel", "cname"),
        "it belongs to a codec, as in codecs=[{'name': 'zstd', 'configuration': {'level': 5}}]",
    ),
    **dict.fromkeys(
        ("anon", "endpoint_url", "key", "profile", "secret", "token"),
        "storage_options={'anon': True} and others say how a store is reached",
    ),
    "align_chunks": "blocks that do not fit the chunks are regrouped",
    **dict.fromkeys(
        ("combine", "compat", "data_vars", "join", "parallel", "preprocess"),
        "differences between the files are listed, and settle= says what to do about them",
    ),
    **dict.fromkeys(
        ("coordinate_transformations", "axes_units"),
        "scale=, translation= and units= have what they say",
    ),
    "max_layer": "levels= is the number of levels, level 0 included",
    "overwrite_encoded_chunks": "chunks= of the call that writes decides",
    **dict.fromkeys(
        ("long_name", "standard_name", "units"),
        "it is an attribute, as in attributes={'units': 'm'}",
    ),
    "verify": "zarr_dask.verify(url) checks what is stored, zarr_dask.compare(x, url) its values",
    "array_dims": "names of dimensions are copied",
    "inline_array": "the location is a part of each task, and no task of its own",
    "open": "mode='r' opens what exists",
    **dict.fromkeys(
        ("recheck_cached_data", "recheck_cached_metadata"),
        "values are read anew, and what is kept is checked",
    ),
    "write": "mode='r+' opens for writing",
    "zarr_array": "the array comes first, then the place: to_zarr(x, url)",
    "config": "objects of fill values only are never stored, and order= is given by itself",
    "context": "storage_options= and read=zarr_dask.ReadOptions(...) have the options",
    "meta": "the type of the blocks is that of the stored array",
    "unlimited_dims": "every dimension may grow, by append_dim=",
    **dict.fromkeys(
        ("use_consolidated", "use_consolidated_for_children"),
        "read=zarr_dask.ReadOptions(consolidated=False) passes them over",
    ),
    **dict.fromkeys(
        ("filters", "serializer"),
        "codecs= has all of them in the order of encoding, as codecs=[filter, 'bytes', 'zstd']",
    ),
    "write_data": "with data= the values are written, with shape= and dtype= there are none",
    "fields": "array[...]['name'] is a field of structured elements",
    "prototype": "values are read into NumPy arrays",
    "chunk_store": "metadata and chunks lie in one store",
    "meta_array": "values are read into NumPy arrays",
    "cache_attrs": "attributes are not fetched again once a node is open",
    "asarray": "blocks are NumPy arrays",
    "compute_kwargs": "dask.config.set(scheduler=..., num_workers=...) holds for it",
    "consolidated": "zarr_dask.consolidate writes consolidated metadata after the write",
    "engine": "this package reads; xarray.open_dataset(url, engine=...) chooses another one",
    "tolerance": "values are compared exactly; numpy.testing.assert_allclose has tolerances",
    "atol": "values are compared exactly; numpy.testing.assert_allclose has tolerances",
    "rtol": "values are compared exactly; numpy.testing.assert_allclose has tolerances",
    "variables": "a dataset is indexed, as in dataset[['t']], and reads no more than that",
    "lock": "every stored object has one writing task, so that no lock is needed",
    **dict.fromkeys(
        ("max_workers", "n_jobs", "n_workers", "num_workers"),
        "dask.config.set(num_workers=4), or a cluster, says how many run at a time",
    ),
    "client": "a distributed.Client that was made is used, or that of client.as_current()",
    "read": "zarr_dask.from_zarr(url, read=...) reads, and what it gives is written",
    "scheduler": "dask.config.set(scheduler=...), or an active distributed.Client, decides",
    "threads": "dask.config.set(num_workers=4), or a cluster, says how many tasks run at a time",
    "dtype": "array.astype(...) converts a dask array before it is written or after it is read",
    "maxshape": "every dimension may grow, by append and resize",
    "isel": "a dataset is indexed, as in dataset.isel(time=slice(0, 5)); what is copied or written "
    "has region={'time': slice(0, 5)}",
    "sel": "a dataset is indexed, as in dataset.sel(time=slice(a, b)); for what is copied or "
    "written, region=zarr_dask.find_region(url, {'time': slice(a, b)}) finds a part",
    "region": "what is opened is indexed, as in array[0:5] or dataset.isel(time=slice(0, 5)), and "
    "reads no more than that",
    "synchronizer": "every stored object has one writing task, so that no lock is needed",
    "zarr_array_kwargs": "what it holds is given directly, such as chunks= and attributes=",
    "zarr_read_kwargs": "zarr_dask.from_zarr opens what was written",
    "write_empty_chunks": "chunks that hold nothing but the fill value are never stored",
}
"""Names of other libraries that nothing here is called by, and the reason."""


_DRY = frozenset({"dry", "dry_run", "dryrun"})
_PLANS = {
    "to_zarr": "plan_write",
    "write_dataset": "plan_dataset",
    **{
        name: f"plan_{name}"
        for name in (
            *("add_level", "convert", "copy", "ingest", "rechunk", "update"),
            *("write", "write_labels", "write_plate"),
        )
    },
}
"""Functions, and those that plan what they do."""


def closest(name: object, known: Iterable[str], *, closeness: float = 0.6) -> str | None:
    """Return the most similar of some names, one that differs in case first; None if none is.

    Examples
    --------
    >>> closest("A", ["s", "a"]), closest("volume", ["pressure"])
    ('a', None)
    """
    from difflib import get_close_matches

    text, names = str(name), list(known)
    folded = {other.casefold(): other for other in names}
    if text.casefold() in folded and text not in names:
        return folded[text.casefold()]
    if found := get_close_matches(text, names, 1, closeness):
        return found[0]
    near = get_close_matches(text.casefold(), folded, 1, closeness)
    return folded[near[0]] if near else None


def did_you_mean(name: object, known: Iterable[str], *, closeness: float = 0.6) -> str:
    """Return a question that names the most similar of some names; "" if none is similar.

    Examples
    --------
    >>> did_you_mean("tmp", ["salt", "temp"])
    " Did you mean 'temp'?"
    """
    found = closest(name, known, closeness=closeness)
    return f" Did you mean {found!r}?" if found is not None else ""


def unknown_keyword(function: str, name: str, known: Collection[str]) -> TypeError:
    """Return the error for a keyword that a function does not take.

    Examples
    --------
    >>> str(unknown_keyword("to_zarr", "chuncks", ["chunks", "shards"]))
    "to_zarr() takes no 'chuncks'. Did you mean 'chunks'?"
    >>> str(unknown_keyword("create_array", "dims", ["dimension_names"]))
    "create_array() takes no 'dims'. Did you mean 'dimension_names'?"
    """
    message = f"{function}() takes no {name!r}."
    mine = [other for other in _OTHERS.get(name, ()) if other in known]
    if name == "group" and "settle" in known:
        kept = "Groups of the files are kept, and variables=['group/name'] takes some of them"
        return TypeError(f"{message} {kept}; path= is the place in the store.")
    if mine:
        return TypeError(f"{message} Did you mean {mine[0]!r}?")
    if name in _ABSENT:
        return TypeError(f"{message} It needs none: {_ABSENT[name]}.")
    if name == "overwrite" and "mode" in known:
        return TypeError(f"{message} mode='w' replaces what is there.")
    if name in _DRY and function in _PLANS:
        return TypeError(f"{message} The plan shows what it would do: {_PLANS[function]}(...).")
    hint = did_you_mean(name, known) or f" It takes {', '.join(sorted(known))}."
    return TypeError(message + hint)


def takes_habits(
    also: Collection[str] = (), unless: Callable[[object], bool] | None = None, /, **names: str
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function take other names of its keywords, and say what an unknown one should be.

    Parameters
    ----------
    also
        Keywords that the function takes besides those of its signature.
    unless
        True for a first argument with which the function takes all keywords.
    **names
        Other names of keywords, with the name in the signature. Both at once are refused.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameters = signature(function).parameters.values()
        known = {p.name for p in parameters if p.kind is not Parameter.VAR_KEYWORD} | {*also}
        known -= {"self", "cls"}
        positions = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
        named = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY] or sorted(also)
        named.sort(key=lambda name: (name != "shape", name != "chunks"))
        is_open = any(p.kind is Parameter.VAR_POSITIONAL for p in parameters) or not named

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if len(args) > len(positions) and not is_open:
                taken = ", ".join(name for name in positions if name not in {"self", "cls"})
                raise TypeError(
                    f"{function.__name__}() takes {taken} by position; name the "
                    f"other arguments, as {named[0]}=..."
                )
            if not known.issuperset(kwargs) and not (args and unless and unless(args[0])):
                given = {*positions[: len(args)], *kwargs}
                for name in [name for name in kwargs if name not in known]:
                    if name not in names:
                        raise unknown_keyword(function.__name__, name, known)
                    if names[name] in given:
                        way = "" if names[name] in kwargs else " by position"
                        raise TypeError(
                            f"{function.__name__}() got {names[name]}={way} and {name}=, which are "
                            "two names of one thing; give one."
                        )
                    kwargs[names[name]] = kwargs.pop(name)
            return function(*args, **kwargs)

        return call

    return decorate


_AS_FOR = re.compile(r"^(?:As for|Of a new array; see) `(?:\w+\.)*(\w+)`\.?$")


def explained_by(*others: Callable[..., object]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Put the explanations of other functions where a docstring refers to them.

    An entry of the parameters that says nothing but "As for `open`.", or "Of a new array; see
    `create_array`.", is replaced by the entries of that function, so that `help` explains every
    argument and the text is written once.
    """
    known = {other.__name__: _entries(other.__doc__ or "") for other in others}

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        lines = cleandoc(function.__doc__ or "").splitlines()
        said: list[str] = []
        number = 0
        while number < len(lines):
            found = _AS_FOR.match(lines[number + 1].strip()) if number + 1 < len(lines) else None
            texts = known.get(found[1], {}) if found else {}
            names = [name.strip() for name in lines[number].split(",")]
            if found and not lines[number].startswith(" ") and all(name in texts for name in names):
                for name in names:
                    said += [name, *texts[name]]
                number += 2
                continue
            said.append(lines[number])
            number += 1
        function.__doc__ = "\n".join(said)
        return function

    return decorate


def takes_options_of(
    source: Callable[..., object], *, but: Collection[str] = ()
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Show and explain the keywords of a class or function in place of ``**options``.

    The function passes its options on as they are. So an option is added and explained in one
    place, and `help`, completion and `takes_habits` see it in the signature of each function. It
    takes none of `but`.
    """
    theirs = signature(source).parameters.values()
    texts = _entries(source.__doc__ or "")

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        mine = signature(function)
        own = [p for p in mine.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        more = [p for p in mine.parameters.values() if p not in own and p.name != "options"]
        names = {p.name for p in own} | {*but}
        taken = [p for p in theirs if p.kind is Parameter.KEYWORD_ONLY and p.name not in names]
        rest = [p for p in theirs if p.kind is Parameter.VAR_KEYWORD]
        both = sorted([*own, *taken], key=lambda p: p.kind)
        function.__signature__ = mine.replace(  # type: ignore[attr-defined]
            parameters=[*both, *(rest or more)]
        )
        said: list[str] = []
        lines = cleandoc(function.__doc__ or "").splitlines()
        for before, line in pairwise(["", *lines]):
            if line.strip() == "**options":
                shown = [one.name for one in taken] + [f"**{one.name}" for one in rest]
                for text, alike in groupby(shown, key=texts.__getitem__):
                    said += [", ".join(alike), *text]
            elif before.strip() != "**options" or line.strip() != f"As for `{source.__name__}`.":
                said.append(line)
        function.__doc__ = "\n".join(said)
        return function

    return decorate


def _entries(docstring: str) -> dict[str, list[str]]:
    """Return the explanation of each parameter of a docstring, as lines."""
    found: dict[str, list[str]] = {}
    lines = cleandoc(docstring).splitlines()
    if "Parameters" not in lines:
        return {}
    names: list[str] = []
    for line in lines[lines.index("Parameters") + 2 :]:
        if not line.strip():
            break
        if line.startswith(" "):
            for name in names:
                found[name].append(line)
        else:
            names = [name.strip() for name in line.split(",")]
            found.update({name: [] for name in names})
    return found
