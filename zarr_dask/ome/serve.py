"""A local web server that shows images in a viewer: neuroglancer, as its Python package brings it.

Viewer and data are below one path that cannot be guessed, on the loopback interface alone: other
pages that the browser has open may not read what the server does. Data are the stored objects of
the hierarchy, whole or by ranges, so any viewer in a browser can be given their URL.
"""

from __future__ import annotations

import json
import mimetypes
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import numpy as np

from zarr_dask.errors import MissingDependencyError, StoreError, StoreKeyError, ZarrDaskError
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.open_node import open_group
from zarr_dask.ome.model import Channel, Metadata, from_attributes
from zarr_dask.ome.picture import full_range
from zarr_dask.ome.plates import open_plate
from zarr_dask.ome.png import png
from zarr_dask.ome.stored_image import Image, image_of
from zarr_dask.ome.thumbnail import thumbnail
from zarr_dask.ome.validate_metadata import series_of
from zarr_dask.stores.base import Range, join

__all__ = ["ImageServer", "serve"]

_MOST_CHANNELS = 16
_MOST_SAMPLED = 1 << 26
"""Maximum bytes of a level that the range of values is taken from."""
_SIZE = 1024
"""Pixels of the picture of a plate."""
_COLOURS = ("#FF0000", "#00FF00", "#0000FF", "#FF00FF", "#00FFFF", "#FFFF00", "#FFFFFF", "#FF8000")


@dataclass(frozen=True)
class ImageServer:
    """Served images, and the addresses for a browser."""

    group: Group
    origin: str
    """Scheme, host and port."""
    viewer: Path
    """Folder of the viewer's files."""
    token: str = field(default_factory=token_urlsafe)
    closed: threading.Event = field(default_factory=threading.Event)
    """Set when the server ends."""

    @property
    def url(self) -> str:
        """Page of the image, or of the images of a plate, a well or a collection."""
        return f"{self.origin}/{self.token}/"

    @property
    def data(self) -> str:
        """URL of the hierarchy, for any viewer."""
        return f"{self.url}data"

    @cached_property
    def metadata(self) -> Metadata:
        """Metadata of the group."""
        return from_attributes(self.group.attributes, where=self.group.where)

    @cached_property
    def images(self) -> Sequence[str]:
        """Paths of the images below the group; "" for the group itself."""
        if self.metadata.plate is not None:
            plate = open_plate(self.group)
            return [f"{path}/{one.path}" for path in plate for one in plate[path].fields.images]
        if self.metadata.well is not None:
            return [one.path for one in self.metadata.well.images]
        if self.metadata.layout is not None and not self.metadata.multiscales:
            return series_of(self.group)
        return [""]

    def page(self) -> str:
        """Return the page that lists images, above a picture of them."""
        links = "".join(
            f'<li><a href="v/{number}/">{escape(path)}</a></li>'
            for number, path in enumerate(self.images)
        )
        title = escape(self.group.where)
        return (
            f'<!doctype html><meta charset="utf-8"><title>{title}</title><h1>{title}</h1>'
            f'<img src="picture.png" alt="{title}"><ul>{links}</ul>'
        )

    def picture(self) -> bytes:
        """Return a picture of the images, as PNG."""
        return png(thumbnail(self.group, size=_SIZE))

    def state(self, number: int) -> dict[str, Any]:
        """Return the state in which the viewer shows an image.

        Raises
        ------
        StoreKeyError
            If there is no such image.
        """
        if not 0 <= number < len(self.images):
            raise StoreKeyError(f"{self.group.where} has no image {number}.")
        path = self.images[number]
        node = self.group[path] if path else self.group
        if not isinstance(node, Group):
            raise StoreKeyError(f"{node.where} is an array, where an image must be.")
        return _state(image_of(node), f"{self.data}/{quote(path)}" if path else self.data)


def _state(image: Image, source: str) -> dict[str, Any]:
    """Return the state of the viewer: a layer for each channel and each label image."""
    layers = [_layer(image, source, index) for index in range(_channels(image))]
    layers += [
        {"type": "segmentation", "name": name, "source": f"zarr://{source}/labels/{quote(name)}"}
        for name in image.labels
    ]
    is_flat = "z" not in image.axes
    first = image.levels[0]
    lengths = dict(zip(first.axes, first.shape, strict=True))
    fits = max(lengths.get("x", 1) / _SEEN[0], lengths.get("y", 1) / _SEEN[1])
    return {
        **_dimensions(image),
        "crossSectionScale": fits if is_flat else 2 * fits,
        "layers": layers,
        "layout": "xy" if is_flat else "4panel",
        "showAxisLines": not is_flat,
        "title": image.multiscale.name or image.group.where,
    }


def _dimensions(image: Image) -> dict[str, Any]:
    """Return the axes as the viewer names them, x first, if it knows their units."""
    first = image.levels[0]
    found = dict(zip(first.axes, zip(first.scale, first.units, strict=True), strict=True))
    told = {name: found[name] for name in "xyzt" if name in found}
    if any(unit is not None and unit not in _UNITS for _, unit in told.values()):
        return {}
    sizes = {name: (scale, _UNITS[unit or ""]) for name, (scale, unit) in told.items()}
    return {
        "dimensions": {name: [size * factor, si] for name, (size, (factor, si)) in sizes.items()},
        "displayDimensions": [name for name in "xyz" if name in told],
    }


_UNITS = {
    "": (1.0, ""),
    "angstrom": (1e-10, "m"),
    "nanometer": (1e-9, "m"),
    "micrometer": (1e-6, "m"),
    "millimeter": (1e-3, "m"),
    "centimeter": (1e-2, "m"),
    "meter": (1.0, "m"),
    "microsecond": (1e-6, "s"),
    "millisecond": (1e-3, "s"),
    "second": (1.0, "s"),
    "minute": (60.0, "s"),
    "hour": (3600.0, "s"),
}
"""Factors to the units of the viewer, and these."""
_SEEN = (900, 600)
"""Pixels of the part of a window that shows an image, as they are at least in most windows."""


def _channel_axis(image: Image) -> int | None:
    found = [i for i, axis in enumerate(image.multiscale.axes) if axis.type == "channel"]
    return found[0] if found else None


def _channels(image: Image) -> int:
    axis = _channel_axis(image)
    return 1 if axis is None else min(image.levels[0].shape[axis], _MOST_CHANNELS)


def _layer(image: Image, source: str, index: int) -> dict[str, Any]:
    axis, omero = _channel_axis(image), image.metadata.omero
    told = omero.channels[index] if omero and index < len(omero.channels) else None
    name = (told.label if told else None) or f"channel {index}"
    low, high = _window(image, axis, index, told)
    colour = f"#{told.color}" if told and re.fullmatch("[0-9A-Fa-f]{6}", told.color or "") else ""
    colour = colour or ("#FFFFFF" if _channels(image) == 1 else _COLOURS[index % len(_COLOURS)])
    is_inverted = told is not None and told.extra.get("inverted") is True
    shade = "(1.0 - normalized())" if is_inverted else "normalized()"
    layer: dict[str, Any] = {
        "type": "image",
        "name": name,
        "source": f"zarr://{source}",
        "blend": "additive",
        "opacity": 1,
        "visible": told is None or told.active is not False,
        "shader": (
            f"#uicontrol invlerp normalized(range=[{low:.9g}, {high:.9g}])\n"
            f'#uicontrol vec3 color color(default="{colour}")\n'
            f"void main() {{ emitRGB(color * {shade}); }}\n"
        ),
    }
    if axis is not None:
        name_of_axis = image.axes[axis]
        layer |= {"localDimensions": {f"{name_of_axis}'": [1, ""]}, "localPosition": [index]}
    return layer


def _window(
    image: Image, axis: int | None, index: int, told: Channel | None
) -> tuple[float, float]:
    """Return the values shown as black and white: the window, or nearly all of a small level."""
    window = None if told is None else told.window
    dtype = image.levels[0].array.dtype
    if window is not None and window.start < window.end:
        limits = float(window.start), float(window.end)
        if limits != full_range(dtype):  # in which most images are black
            return limits
    array = min((level.array for level in image.levels), key=lambda array: array.size)
    if not array.size or array.nbytes > _MOST_SAMPLED:
        return (0.0, float(np.iinfo(array.dtype).max)) if array.dtype.kind in "iu" else (0.0, 1.0)
    chosen = tuple(index if i == axis else slice(None) for i in range(array.ndim))
    values = np.asarray(array[chosen])
    low, high = (float(one) for one in np.nanpercentile(values.real, (0.5, 99.8)))
    return (low, high) if low < high else (low, low + 1)


# --- the server -----------------------------------------------------------------------------------

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_VIEWED = re.compile(r"v/\d{1,9}/([\w.-]*)")
_EVENTS = re.compile(r"events/(\d{1,9})")
_CHANGED = re.compile(r"state/(\d{1,9})")
_LONGEST = 1 << 24
"""Maximum bytes of a state that the viewer tells."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"  # connections are kept open
    disable_nagle_algorithm = True
    about: ImageServer

    def log_message(self, *_: object) -> None:
        """Say nothing of single requests."""

    def do_GET(self) -> None:
        """Answer with a page, a file of the viewer, or a stored object."""
        path = unquote(urlsplit(self.path).path)
        start = f"/{self.about.token}/"
        if not path.startswith(start):
            self._say(HTTPStatus.NOT_FOUND)
            return
        below = path.removeprefix(start)
        try:
            if below.startswith("data/"):
                self._send_object(below.removeprefix("data/"))
            elif viewed := _VIEWED.fullmatch(below):
                self._send_file(viewed[1] or "index.html")
            elif events := _EVENTS.fullmatch(below):
                self._send_state(int(events[1]))
            elif not below and list(self.about.images) == [""]:
                self._say(HTTPStatus.FOUND, {"Location": f"{self.about.url}v/0/"})
            elif not below:
                headers = {"Content-Type": "text/html; charset=utf-8"}
                self._say(HTTPStatus.OK, headers, self.about.page().encode())
            elif below == "picture.png":
                self._say(HTTPStatus.OK, {"Content-Type": "image/png"}, self.about.picture())
            else:
                self._say(HTTPStatus.NOT_FOUND)
        except StoreKeyError:
            self._say(HTTPStatus.NOT_FOUND)
        except ZarrDaskError as error:
            text = str(error).encode()
            self._say(HTTPStatus.BAD_GATEWAY, {"Content-Type": "text/plain; charset=utf-8"}, text)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        """Take note of nothing: what the user changes in the viewer stays there."""
        self.close_connection = True
        length = self.headers.get("Content-Length", "")
        path = urlsplit(self.path).path.removeprefix(f"/{self.about.token}/")
        if not _CHANGED.fullmatch(path) or not length.isdecimal() or int(length) > _LONGEST:
            self._say(HTTPStatus.NOT_FOUND)
            return
        try:
            told = json.loads(self.rfile.read(int(length)))
            body = json.dumps({"g": f"{told['c']}/{told['g']}"}).encode()
        except (ValueError, KeyError, TypeError, RecursionError):
            self._say(HTTPStatus.BAD_REQUEST)
            return
        self._say(HTTPStatus.OK, {"Content-Type": "application/json"}, body)

    def do_OPTIONS(self) -> None:
        """Allow pages of other origins, which must know the path, to ask for ranges."""
        headers = {
            "Access-Control-Allow-Headers": "Range, If-Match",
            "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS",
        }
        self._say(HTTPStatus.NO_CONTENT, headers)

    def _say(
        self, status: HTTPStatus, headers: Mapping[str, str] | None = None, body: Any = b""
    ) -> None:
        self.send_response(status)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Access-Control-Expose-Headers", "Content-Range, Content-Length")
        self.send_header("Cache-Control", "no-cache")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT and "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(memoryview(body).nbytes))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_object(self, path: str) -> None:
        """Send a stored object, or a range of it."""
        store, key = self.about.group.store, join(self.about.group.path, path)
        size = store.size(key) if path else None
        if size is None:
            self._say(HTTPStatus.NOT_FOUND)
            return
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        if wanted is None or not any(wanted.groups()):
            if self.command == "HEAD":
                self._say(HTTPStatus.OK, {**headers, "Content-Length": str(size)})
                return
            self._say(HTTPStatus.OK, headers, store.get(key) or b"")
            return
        first, last = wanted.groups()
        start = int(first) if first else max(size - int(last), 0)
        stop = min(int(last) + 1, size) if first and last else size
        if start >= stop:
            refused = {"Content-Range": f"bytes */{size}"}
            self._say(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, refused)
            return
        (part,) = store.get_ranges([(key, Range(start, stop))])
        if part is None:
            raise StoreError(f"{store.url}/{key} has been removed.")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self._say(HTTPStatus.PARTIAL_CONTENT, headers, part)

    def _send_state(self, number: int) -> None:
        """Send the state of the viewer, which takes the end of the answer for a lost connection."""
        self.close_connection = True
        told = [("c", {}), ("s", self.about.state(number))]
        lines = [
            f"data: {json.dumps({'k': k, 's': s, 'g': self.about.token})}\n\n" for k, s in told
        ]
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.end_headers()
        self.wfile.write("".join(lines).encode())
        self.about.closed.wait()

    def _send_file(self, name: str) -> None:
        """Send a file of the viewer."""
        file = self.about.viewer / name
        if not file.is_file():
            self._say(HTTPStatus.NOT_FOUND)
            return
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        self._say(HTTPStatus.OK, {"Content-Type": kind}, file.read_bytes())


def _viewer() -> Path:
    """Return the folder of the viewer's files.

    Raises
    ------
    MissingDependencyError
        If it is not installed.
    """
    found = find_spec("neuroglancer")
    for place in () if found is None else found.submodule_search_locations or ():
        folder = Path(place) / "static" / "client"
        if (folder / "index.html").is_file():
            return folder
    raise MissingDependencyError("the viewer is neuroglancer's: install zarr-dask[view].")


@contextmanager
def serve(
    url: Any,
    path: str = "",
    *,
    port: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[ImageServer]:
    """Serve an image, a plate or a collection to viewers in browsers of this machine.

    Parameters
    ----------
    url, path, storage_options
        As for `zarr_dask.ome.open`.
    port
        Port of the loopback interface; a free one by default.

    Yields
    ------
    ImageServer
        The server, which answers until the end of the ``with`` statement.

    Raises
    ------
    MissingDependencyError
        If the viewer is not installed.
    """
    viewer = _viewer()
    group = open_group(url, path, storage_options=storage_options)
    with ThreadingHTTPServer(("127.0.0.1", port), _Handler) as server:
        server.daemon_threads = True
        about = ImageServer(group, f"http://127.0.0.1:{server.server_port}", viewer)
        _ = about.images  # what is not OME-Zarr is refused at once
        server.RequestHandlerClass = type("Handler", (_Handler,), {"about": about})
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield about
        finally:
            about.closed.set()
            server.shutdown()
            thread.join()
