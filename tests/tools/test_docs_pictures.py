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


def test_drawings_are_those_of_the_code_and_of_the_table_of_benchmarks():
    for name, drawn in docs_picture.drawings().items():
        kept = docs_pages.DOCS / "assets" / name
        assert kept.read_text(encoding="utf-8") == drawn, "run python -m tools.docs_picture"
