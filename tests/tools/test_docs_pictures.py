"""Pictures of the documentation are what their code makes."""

import pytest

from tools import docs_pages, docs_picture, docs_pictures

PAGE = """
```python
from pathlib import Path

Path("{made}").write_text("picture")
```

![Something](../assets/shown.png)
"""


@pytest.mark.parametrize("made", ["shown.png", "another.png"])
def test_a_picture_is_made_by_the_page_that_shows_it(made, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(made=made), encoding="utf-8")
    monkeypatch.setattr(docs_pages, "pages", lambda: {"tutorials/page.md": page})
    folder = tmp_path / "assets"
    folder.mkdir()
    if made == "shown.png":
        docs_pictures.make(folder)
        assert (folder / made).read_text(encoding="utf-8") == "picture"
    else:
        with pytest.raises(FileNotFoundError, match=r"shown\.png"):
            docs_pictures.make(folder)


def test_pictures_and_table_are_those_of_the_times_that_are_kept():
    for path, text in docs_picture.made(docs_picture.kept()).items():
        assert path.read_text(encoding="utf-8") == text, "run python -m tools.docs_picture"


def test_times_are_taken_from_what_the_benchmarks_write():
    def contender(name, best):
        return {"name": name, "best": best, "paired": best / 100}

    case = {
        "name": "write-zstd-32",
        "unit": "ms",
        "reach": "1.10 x floor",
        "contenders": [
            contender("floor", 100.2),
            contender("zarr_dask", 120.4),
            contender("zarr_dask, fsync", 200.0),
            contender("tensorstore alone", 150.0),
            contender("dask + zarr-python", 140.0),
        ],
    }
    (found,) = docs_picture.taken([case, {**case, "name": "walk"}])
    assert docs_picture.rows([found]) == (
        "| `write-zstd-32` | 120 ms | 1.20 x | **1.20** x | 1.10 x | 100 ms "
        "| dask + zarr-python 140 ms |\n"
    )
