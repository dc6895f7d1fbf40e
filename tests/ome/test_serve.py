"""Images in a browser: what the server answers, and what is seen."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.browser import CHROMIUM, browser, picture
from tests.support.ome_images import pixels, put_plate
from zarr_dask.errors import MetadataError, MissingDependencyError
from zarr_dask.ome import serve as serving
from zarr_dask.ome.serve import serve

pytest.importorskip("neuroglancer")


GRID = {"chunks": (1, 32, 32), "shards": (1, 64, 64)}


@pytest.fixture
def image(tmp_path):
    """A red and a green channel that share one half of the image, and a label."""
    values = np.zeros((2, 96, 128), "u2")
    values[0, :, :64] = values[1, :48] = 900
    window = {"min": 0, "max": 1000, "start": 0, "end": 900}
    channels = [
        {"label": "red", "color": "FF0000", "window": window},
        {"label": "green", "color": "00FF00", "window": window},
    ]
    zd.ome.write(values, tmp_path / "image", axes="cyx", channels=channels, **GRID)
    return tmp_path / "image"


def get(url, method="GET", body=None, **headers):
    request = urllib.request.Request(url, data=body, method=method, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


def test_stored_objects_are_served_whole_and_by_ranges(image):
    key = "0/c/0/0/0"
    stored = (image / key).read_bytes()
    with serve(image) as server:
        status, body, headers = get(f"{server.data}/{key}")
        assert (status, body) == (200, stored)
        assert headers["Access-Control-Allow-Origin"] == "*"
        status, body, headers = get(f"{server.data}/{key}", "HEAD")
        assert (status, body, int(headers["Content-Length"])) == (200, b"", len(stored))
        for wanted, expected in (("2-5", stored[2:6]), ("-4", stored[-4:]), ("7-", stored[7:])):
            status, body, headers = get(f"{server.data}/{key}", Range=f"bytes={wanted}")
            assert (status, body) == (206, expected)
            assert headers["Content-Range"].endswith(f"/{len(stored)}")
        assert get(f"{server.data}/{key}", Range=f"bytes={len(stored)}-")[0] == 416
        assert get(f"{server.data}/{key}", "OPTIONS")[0] == 204
        read = zd.open_array(f"{server.data}/0")
        np.testing.assert_array_equal(read[...], zd.open_array(image, "0")[...])


def test_nothing_else_is_served(image):
    (image.parent / "secret").write_text("x")
    with serve(image) as server:
        paths = ("data/../secret", "data/%2e%2e/secret", "data//etc/passwd", "v/0/../../secret")
        for path in (*paths, "data/none", "data/", "v/0/none.js", "events/7", "other"):
            assert get(f"{server.url}{path}")[0] == 404, path
        assert get(f"{server.origin}/")[0] == 404
        assert get(f"{server.origin}/data/zarr.json")[0] == 404
        assert get(f"{server.url}other", "POST", b"{}")[0] == 404
        assert get(f"{server.url}state/0", "POST", b"[")[0] == 400
        changed = json.dumps({"c": "me", "g": "7", "s": {}, "pg": ""}).encode()
        assert json.loads(get(f"{server.url}state/0", "POST", changed)[1]) == {"g": "me/7"}


def test_the_state_of_the_viewer(image):
    zd.ome.write_labels(image, np.ones((96, 128), "u1"), "cells")
    with serve(image) as server:
        status, page, _ = get(server.url)
        assert (status, b"<script" in page) == (200, True)
        state = server.state(0)
    names = [(layer["name"], layer["type"]) for layer in state["layers"]]
    assert names == [("red", "image"), ("green", "image"), ("cells", "segmentation")]
    assert [layer.get("localPosition") for layer in state["layers"]] == [[0], [1], None]
    assert 'default="#00FF00"' in state["layers"][1]["shader"]
    assert "range=[0, 900]" in state["layers"][1]["shader"]


def test_without_display_settings_the_values_are_stretched(tmp_path):
    zd.ome.write(np.arange(100, 200, dtype="u2").reshape(10, 10), tmp_path / "image", axes="yx")
    with serve(tmp_path / "image") as server:
        (layer,) = server.state(0)["layers"]
    low, high = map(float, re.search(r"range=\[(.*), (.*)\]", layer["shader"]).groups())
    assert 100 <= low < 102
    assert 197 < high < 200


def test_a_plate_is_a_page_of_its_images(tmp_path):
    put_plate(tmp_path, "0.5", {"A/1": pixels(20, 20), "B/3": pixels(20, 20)})
    with serve(tmp_path) as server:
        page = get(server.url)[1].decode()
        assert [*re.findall(r'href="(.*?)">(.*?)<', page)] == [("v/0/", "A/1/0"), ("v/1/", "B/3/0")]
        assert get(f"{server.url}picture.png")[1].startswith(b"\x89PNG")
        assert server.state(1)["layers"][0]["source"] == f"zarr://{server.data}/B/3/0"


def test_a_well_is_a_page_of_its_fields(tmp_path):
    fields = [pixels(20, 20)] * 2
    zd.ome.write_plate({"A/1": fields}, tmp_path, axes="yx", positions={"A/1/1": {"x": 18}})
    with serve(tmp_path, "A/1") as server:
        page = get(server.url)[1].decode()
        assert [*re.findall(r'href="(.*?)">(.*?)<', page)] == [("v/0/", "0"), ("v/1/", "1")]
        assert get(f"{server.url}picture.png")[1].startswith(b"\x89PNG")
        assert server.state(1)["layers"][0]["source"] == f"zarr://{server.data}/1"


def test_names_of_channels_do_not_darken_an_image(tmp_path):
    """A window of all values of the type says nothing; inverted channels are shown inverted."""
    values = np.arange(100, 200, dtype="u2").reshape(1, 10, 10)
    channels = [{"label": "DAPI", "inverted": True}]
    zd.ome.write(values, tmp_path / "image", axes="cyx", channels=channels)
    with serve(tmp_path / "image") as server:
        (layer,) = server.state(0)["layers"]
    low, high = map(float, re.search(r"range=\[(.*), (.*)\]", layer["shader"]).groups())
    assert 100 <= low < 102
    assert 197 < high < 200
    assert "emitRGB(color * (1.0 - normalized()))" in layer["shader"]


def test_refused(tmp_path, image, monkeypatch):
    zd.create_group(tmp_path / "group")
    with pytest.raises(MetadataError), serve(tmp_path / "group"):
        pass
    monkeypatch.setattr(serving, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="view"), serve(image):
        pass


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no browser")
def test_what_is_seen(tmp_path, image):
    """Quarters of the image in their places: yellow and green, red and black."""
    expected = [[255, 255, 0], [0, 255, 0], [255, 0, 0], [0, 0, 0]]

    def is_right(shot):
        height, width, _ = shot.shape
        across = width // 4, width * 3 // 4
        places = [(y, x) for y in (height // 3, height * 3 // 4) for x in across]
        return [shot[place].tolist() for place in places] == expected

    with serve(image) as server, browser(tmp_path / "files") as port:
        picture(port, server.url, is_right)
