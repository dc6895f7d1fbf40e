"""Fuzzing that is guided by coverage: inputs that reach new lines of the package are kept.

Run as ``python -m tests.support.fuzz.guided CORPUS SECONDS [PART OF A TARGET'S NAME]``; it needs
atheris. CORPUS is a file of inputs by target, which the run begins with and adds to. What fails
goes to standard error, with the input.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

Corpus = dict[str, list[bytes]]
CORPUS = Path(__file__).with_name("corpus.json")
"""Small inputs that a long run has found."""
_WIDTH = 2
"""Bytes at the start of an input of atheris that number the target."""


def read_corpus(path: Path) -> Corpus:
    """Inputs by the name of their target."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    return {name: [base64.b64decode(item) for item in items] for name, items in found.items()}


def write_corpus(path: Path, corpus: Corpus) -> None:
    texts = {
        name: sorted(base64.b64encode(item).decode() for item in set(corpus[name]))
        for name in sorted(corpus)
    }
    path.write_text(json.dumps(texts, indent=0) + "\n")


def main(path: Path, seconds: int, wanted: str = "") -> int:
    """Run atheris in a process of its own, which it ends, and keep what it has found."""
    corpus = read_corpus(path)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "corpus.json")
        write_corpus(kept, corpus)
        inputs = Path(folder, "inputs")
        inputs.mkdir()
        command = [sys.executable, "-m", "tests.support.fuzz.guided", "in", folder]
        done = subprocess.run([*command, str(seconds), wanted], check=False)
        names = json.loads(Path(folder, "names.json").read_text())
        for file in inputs.iterdir():
            if not file.name.startswith("begun-"):
                number, payload = _parted(file.read_bytes(), len(names))
                corpus.setdefault(names[number], []).append(payload)
    write_corpus(path, corpus)
    return done.returncode


def _numbered(number: int, data: bytes) -> bytes:
    return number.to_bytes(_WIDTH, "big") + data


def _parted(data: bytes, count: int) -> tuple[int, bytes]:
    return int.from_bytes(data[:_WIDTH], "big") % count, data[_WIDTH:]


def fuzz(folder: Path, seconds: int, wanted: str) -> None:
    """Fuzz, beginning with the corpus in a folder; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["zarr_dask"], enable_loader_override=False):
        from tests.support.fuzz.records import record_targets
        from tests.support.fuzz.targets import all_targets
        from zarr_dask.errors import ZarrDaskError
    warnings.simplefilter("ignore")
    targets = [one for one in [*all_targets(), *record_targets()] if wanted in one.name]
    names = [target.name for target in targets]
    Path(folder, "names.json").write_text(json.dumps(names))

    def attempt(data: bytes) -> None:
        number, payload = _parted(data, len(targets))
        try:
            targets[number].decode(payload)
        except ZarrDaskError:
            return
        except BaseException:
            print(f"{names[number]}: {payload!r}", file=sys.stderr)
            raise

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        number, payload = _parted(data, len(targets))
        if seed % 3:
            sample = [payload or targets[number].samples[0]]
            with contextlib.suppress(ValueError, LookupError, TypeError):
                return _numbered(number, targets[number].hostile(str(seed), sample))[:most]
        return _numbered(number, atheris.Mutate(payload, max(most - _WIDTH, 1)))[:most]

    begun = [(t.name, item) for t in targets for item in t.samples]
    begun += [
        (name, item)
        for name, items in read_corpus(folder / "corpus.json").items()
        if name in names
        for item in items
    ]
    for place, (name, item) in enumerate(begun):
        file = Path(folder, "inputs", f"begun-{place}")
        file.write_bytes(_numbered(names.index(name), item))
    options = [f"-max_total_time={seconds}", "-rss_limit_mb=2000", "-timeout=20", "-max_len=4096"]
    options += [f"-artifact_prefix={folder}/inputs/", "-reduce_inputs=0", f"{folder}/inputs"]
    atheris.Setup([sys.argv[0], *options], attempt, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1] == "in":
        fuzz(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:4]))
