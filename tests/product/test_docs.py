"""The README and docs/: code runs, names and links hold, sentences are short."""

import ast
import logging
import re
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import PurePosixPath
from queue import Queue
from threading import Barrier

import pytest

import zarr_dask as zd
from tests.support.docs_samples import SAMPLES
from tools import docs_pages

PAGES = docs_pages.pages()
DEVELOPERS = ("developers/", "architecture.md")
USER_PAGES = [name for name in PAGES if not name.startswith(DEVELOPERS)]
COOKBOOK = "howto/failures.md"  # tests/product/test_docs_failures.py
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
BLOCKS = {name: list(docs_pages.blocks(text)) for name, text in TEXTS.items()}
RUN = [
    name
    for name, blocks in BLOCKS.items()
    if name != COOKBOOK and any(block.kind in {"python", "console", "sh"} for block in blocks)
]


@pytest.fixture
def logs_as_before():
    """Pages that show logs switch them on for the whole process."""
    loggers = [logging.getLogger(), logging.getLogger("zarr_dask")]
    before = [(one, one.level, list(one.handlers)) for one in loggers]
    yield
    for one, level, handlers in before:
        one.setLevel(level)
        one.handlers[:] = handlers


@pytest.mark.usefixtures("logs_as_before")
@pytest.mark.parametrize("name", RUN)
def test_a_page_runs_from_top_to_bottom(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace = {"__name__": "__page__"}
    for prepare in SAMPLES.get(name, ()):
        namespace |= prepare() or {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="(?!zarr_dask)")
        for block in BLOCKS[name]:
            docs_pages.execute(block, namespace, name)
    for picture in docs_pages.pictures(TEXTS[name]):  # `make docs` takes them from here
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


class Rank:
    """A communicator of ranks that are threads."""

    def __init__(self, rank, barrier, boxes):
        self.rank, self.size = rank, barrier.parties
        self.Barrier, self._boxes = barrier.wait, boxes

    def send(self, obj, dest, tag=0):
        self._boxes[self.rank, dest].put(obj)

    def recv(self, buf=None, source=0, tag=0):
        return self._boxes[source, self.rank].get(timeout=60)


@pytest.mark.parametrize(
    ("name", "function", "steps"),
    [("tutorials/simulation.md", "main", ()), ("howto/gather.md", "simulate", (20,))],
)
def test_the_script_for_ranks_runs_in_ranks(name, function, steps, tmp_path, monkeypatch):
    """And runs again, as a batch system may start it again."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__page__"}
    for block in BLOCKS[name]:
        if function not in namespace:
            docs_pages.execute(block, namespace, name)
    boxes = {pair: Queue() for pair in product(range(4), repeat=2)}
    for _ in range(2):
        ranks = [
            Rank(rank, barrier, boxes) for barrier in [Barrier(4, timeout=60)] for rank in range(4)
        ]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda rank: namespace[function](rank, *steps), ranks))
    if steps:
        zd.Writer.attach("run.zarr").finish()
    assert {array.shape[0] for _, array in zd.open("run.zarr").arrays() if array.ndim > 1} == {20}
    assert zd.verify("run.zarr", deep="decode").ok


def test_every_sample_is_of_a_page():
    assert SAMPLES.keys() <= PAGES.keys()


@pytest.mark.parametrize("name", PAGES)
def test_fences_are_closed_and_known(name):
    assert len(re.findall(r"(?m)^ *```", TEXTS[name])) == 2 * len(BLOCKS[name])
    kinds = {"python", "console", "sh", "text", "json", "toml", "diff", ""}
    assert {block.kind for block in BLOCKS[name]} <= kinds


def is_program(code):
    """True for Python of several words, or a call of zarr-dask."""
    if re.search(r"(?m)^(\$ )?zarr-dask ", code):
        return True
    try:
        return any(not isinstance(one, ast.Expr) for one in ast.parse(code).body)
    except SyntaxError:
        return False


@pytest.mark.parametrize("name", PAGES)
def test_no_code_is_hidden_from_these_tests_as_text(name):
    hidden = [one.line for one in BLOCKS[name] if one.kind in {"", "text"} and is_program(one.code)]
    assert not hidden


def test_every_public_name_has_its_entry():
    entries = Counter()
    for name, text in TEXTS.items():
        if name.startswith("reference/api/"):
            entries.update(re.findall(r"(?m)^::: zarr_dask\.([\w.]+)$", text))
    assert set(entries.values()) == {1}
    public = {*zd.__all__, *(f"ome.{name}" for name in zd.ome.__all__)}
    missing = public - entries.keys() - {"errors", "ome"}
    assert not missing, "add '::: zarr_dask.<name>' to a page of reference/api"
    for entry in entries:
        found = zd
        for part in entry.split("."):
            found = getattr(found, part)
        assert found.__doc__


def error_rows():
    rows = re.findall(
        r"(?m)^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", TEXTS["reference/errors.md"]
    )
    return {name: (re.findall(r"`(\w+)`", parents), when, do) for name, parents, when, do in rows}


def test_every_error_has_its_entry():
    classes = {
        name: found
        for name in zd.errors.__all__
        if isinstance(found := getattr(zd.errors, name), type)
        and issubclass(found, (Exception, Warning))
    }
    rows = error_rows()
    assert rows.keys() == classes.keys()
    for name, (parents, when, _) in rows.items():
        shown = {base.__name__ for base in classes[name].__mro__}
        assert set(parents) <= shown, name
        builtin = {b.__name__ for b in classes[name].__bases__} - {"ZarrDaskError", "_AtChunkError"}
        assert builtin <= set(parents), name
        assert when


@pytest.mark.parametrize("name", USER_PAGES)
def test_user_pages_name_no_internal_module(name):
    text = re.sub(r"(?m)^::: .*$", "", TEXTS[name])
    public = {"zarr_dask.stores", "zarr_dask.testing", "zarr_dask.errors", "zarr_dask.ome"}
    public |= {"zarr_dask.codecs", "zarr_dask.xarray"}
    named = set(re.findall(r"zarr_dask\.[a-z_]+(?=[./])", text)) - public
    files = set(re.findall(r"zarr_dask/\w+[./]\w+", text))
    imported = set(re.findall(r"from (zarr_dask\.[\w.]+) import", text))
    allowed = {"zarr_dask.codecs", "zarr_dask.stores"}
    allowed |= {"zarr_dask.testing.codecs", "zarr_dask.testing.stores"}
    assert not named | files | (imported - allowed)


def counted(name):
    return [len(sentence.split()) for sentence in docs_pages.prose(TEXTS[name])]


def test_sentences_are_short():
    lengths = [length for name in USER_PAGES for length in counted(name)]
    assert sum(lengths) / len(lengths) <= 20
    assert sum(length > 35 for length in lengths) / len(lengths) <= 0.03


@pytest.mark.parametrize("name", [name for name in USER_PAGES if name != "reference/compat.md"])
def test_no_page_has_long_sentences(name):
    long = [s for s in docs_pages.prose(TEXTS[name]) if len(s.split()) > 45]
    assert not long
    lengths = counted(name)
    assert not lengths or sum(lengths) / len(lengths) <= 22


@pytest.mark.parametrize("name", USER_PAGES)
def test_the_actor_of_a_sentence_is_named(name):
    prose = " ".join(docs_pages.prose(TEXTS[name]))
    assert not re.findall(r"(?i)\b(nobody|somebody|anybody|everybody|whoever|anew)\b", prose)


ODD = r"travels?|told by|as if it had|brings? along|go(?:es)? on|what is no|what dies|puts? up with"


@pytest.mark.parametrize("name", USER_PAGES)
def test_no_turn_of_phrase_needs_a_second_reading(name):
    prose = " ".join(docs_pages.prose(TEXTS[name]))
    assert not re.findall(rf"(?i)\b(?:{ODD})\b", prose)


@pytest.mark.parametrize("name", PAGES)
def test_names_of_code_in_sentences_are_set_as_code(name):
    """Renaming in code has changed words of sentences before."""
    prose = " ".join(docs_pages.prose(TEXTS[name]))
    found = set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b|\b[a-z]+(?:_[a-z]+)+\b", prose))
    assert found <= {"zarr_dask", "object_store", "NumPy", "TensorStore", "VirtualiZarr"}


@pytest.mark.parametrize("name", PAGES)
def test_relative_links_lead_to_files(name):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"`[^`\n]*`", "", TEXTS[name]))
    made = docs_pages.pictures(TEXTS[name])
    for link in links:
        if "://" not in link and PurePosixPath(link).name not in made:
            assert (PAGES[name].parent / link).exists(), link


def slug(heading):
    """Return the anchor that mkdocs makes of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain.lower()).strip())


@pytest.mark.parametrize("name", [name for name in PAGES if name != "README"])
def test_anchors_of_links_are_headings(name):
    for link, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)]+)\)", TEXTS[name]):
        path = (PAGES[name].parent / link).resolve() if link else PAGES[name]
        text = path.read_text(encoding="utf-8")
        if f'id="{anchor}"' in text or anchor in re.findall(r"(?m)^::: (\S+)$", text):
            continue
        headings = re.findall(r"(?m)^#+ (.*?)(?: *\{.*\})?$", text)
        assert anchor in map(slug, headings), f"{link}#{anchor}"


def test_how_to_guides_fit_on_a_page():
    for name, text in TEXTS.items():
        if name.startswith("howto/") and name != COOKBOOK:
            assert text.count("\n") <= 70, name
    assert TEXTS["README"].count("\n") <= 120
