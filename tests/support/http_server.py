"""HTTP servers on a free port of this machine, with the habits that real ones have."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import unquote, urlsplit


class Files(BaseHTTPRequestHandler):
    """Serves `values`, keys being paths; knows ranges."""

    protocol_version = "HTTP/1.1"  # connections are kept open
    disable_nagle_algorithm = True
    values: ClassVar[dict[str, bytes]]
    seen: ClassVar[list[tuple[str, str, str | None]]]
    knows_ranges = True

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        wanted = self.headers.get("Range")
        self.seen.append((self.command, path, wanted))
        value = self.values.get(path)
        if value is None:
            if any(key.startswith(f"{path}/") for key in self.values):
                self.answer(301, headers=[("Location", f"{self.path}/")])
            else:
                self.answer(404, b"<html>not found</html>")
        elif wanted is None or not self.knows_ranges:
            self.answer(200, value)
        else:
            self.answer_part(value, re.fullmatch(r"bytes=(\d*)-(\d*)", wanted))

    def answer_part(self, value, wanted):
        size = len(value)
        if wanted[1]:
            start, last = int(wanted[1]), min(int(wanted[2] or size - 1), size - 1)
        else:
            start, last = max(size - int(wanted[2]), 0), size - 1
        if start >= size:
            self.answer(416, headers=[("Content-Range", f"bytes */{size}")])
            return
        told = f"bytes {start}-{last}/{size}"
        self.answer(206, value[start : last + 1], [("Content-Range", told)])

    do_HEAD = do_GET  # noqa: N815


class WithoutRanges(Files):
    """Answers every request with the whole value, as Python's own server does."""

    knows_ranges = False


@contextmanager
def serving(handler, values, tls=None):
    """A URL below which `values` are served, and what was asked for."""
    seen = []
    bound = type(handler.__name__, (handler,), {"values": values, "seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), bound) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # a client that has gone is no news
        if tls is not None:
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()
