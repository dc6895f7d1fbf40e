"""An HTTP proxy on loopback that misbehaves on request, between a client and a real server.

Which requests something happens to is drawn from a seed and the number of the request; what
happens comes in turns, so that each kind happens as often as it should. It can wait, cut the
connection before the server has heard of the request or after it has answered, send too little of
an answer, say that an answer is shorter than it is, and refuse requests as an overloaded service
does. It also counts requests, and can make each of them take a given time.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The token has expired</Message></Error>"
FAILED = b"<Error><Code>PreconditionFailed</Code><Message>It failed</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
FAULTS = {
    "delayed": 3,
    "reset before": 2,
    "reset after": 2,
    "truncated": 2,
    "throttled": 2,
    "unavailable": 2,
    "failed": 1,
    "shortened": 1,
}
"""What can happen to a request, and how often compared to the others."""
REFUSED = {
    "throttled": 429,
    "unavailable": 503,
    "failed": 500,
    "bad gateway": 502,
    "astray": 404,
    "denied": 403,
    "expired": 400,
}
"""Those that are answered at once. "astray", which is not drawn unless it is asked for, is what a
gateway says of a service that it does not know at the moment."""
ENDLESS = (
    b"<IsTruncated>false</IsTruncated>",
    b"<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>",
)
"""What an "endless" listing says instead, which is not drawn unless it is asked for, either."""
AGAIN = re.compile("&?continuation-token=again")
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Seen(NamedTuple):
    """One request."""

    method: str
    path: str
    """With its query, unquoted."""
    range: str
    fault: str


@dataclass
class Faults:
    """What happens to requests; may be changed while the proxy runs."""

    seed: int = 0
    rate: float = 0.0
    """Share of requests that something happens to."""
    kinds: Mapping[str, int] = field(default_factory=lambda: dict(FAULTS))
    delay: float = 0.02
    """Seconds that a delayed request waits."""
    hang: float = 5.0
    """Seconds that nothing is said in, of what hangs."""
    unquoted: bool = False
    """True for the habit of a gateway that takes conditions without quotes only."""
    retry_after: str = ""
    """Header of throttled answers."""
    latency: float = 0.0
    """Seconds that every request takes longer."""
    only: str = ""
    """Part of the paths that something happens to."""
    methods: str = "GET PUT POST HEAD DELETE"
    """Those that something happens to."""
    shortened: str = "/c/"
    """Part of the paths whose answers may be shortened: of values that are checked by a codec."""
    lie: Callable[[str], object] | None = None
    """Called with the path of what the server has put, before the client hears of it."""
    times: int = 1 << 60
    """How often something happens at most."""

    now: Counter = field(default_factory=Counter)
    """Requests in flight, by method."""
    most: Counter = field(default_factory=Counter)
    """The most requests of a method that were in flight at a time, and under "" of all methods."""
    seen: list[Seen] = field(default_factory=list)
    happened: Counter = field(default_factory=Counter)
    queue: list[str] = field(default_factory=list)
    """Kinds that come next."""
    queue_of: Mapping[str, int] | None = None
    """The `kinds` that the queue was made of."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def draw(self, method: str, path: str, wanted: str) -> str:
        """What happens to the next request; "" for nothing."""
        with self.lock:
            lot = random.Random(f"{self.seed}/{len(self.seen)}")
            hit = lot.random() < self.rate and self.only in path and method in self.methods
            fault = self._next_kind(lot, path) if hit and self.times > 0 else ""
            self.times -= bool(fault)
            self.seen.append(Seen(method, path, wanted, fault))
            if fault:
                self.happened[fault] += 1
        return fault

    def _next_kind(self, lot: random.Random, path: str) -> str:
        """The next kind in turn that can happen to a path; those that cannot stay in the queue.

        Each round has every kind as often as `kinds` says, in an order that is drawn.
        """
        if self.queue_of is not self.kinds:
            self.queue_of, self.queue = self.kinds, []
        able = [kind for kind in self.queue if kind != "shortened" or self.shortened in path]
        if not able:
            more = [kind for kind, times in self.kinds.items() for _ in range(times)]
            lot.shuffle(more)
            self.queue += more
            able = [kind for kind in more if kind != "shortened" or self.shortened in path]
        if able:
            self.queue.remove(able[0])
        return able[0] if able else ""

    @contextmanager
    def in_flight(self, method: str) -> Iterator[None]:
        """Count a request while it is answered."""
        with self.lock:
            self.now[method] += 1
            self.most[method] = max(self.most[method], self.now[method])
            self.most[""] = max(self.most[""], self.now.total())
        try:
            yield
        finally:
            with self.lock:
                self.now[method] -= 1

    def counted(self) -> list[Seen]:
        """The requests since this was last asked for."""
        with self.lock:
            found, self.seen = self.seen, []
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer is one packet
    faults: Faults
    upstream: tuple[str, int]

    def setup(self) -> None:
        super().setup()
        self.server_connection = http.client.HTTPConnection(*self.upstream, timeout=60)

    def finish(self) -> None:
        self.server_connection.close()
        with suppress(OSError):  # the client has gone, or was cut off
            super().finish()

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def handle_any(self) -> None:
        with self.faults.in_flight(self.command):
            self.answer_any()

    def answer_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        target = unquote(self.path)
        fault = self.faults.draw(self.command, target, self.headers.get("Range", ""))
        if self.faults.latency:
            time.sleep(self.faults.latency)
        if fault == "delayed":
            time.sleep(self.faults.delay)
        elif fault == "reset before":
            self.reset()
            return
        elif fault == "hung":
            time.sleep(self.faults.hang)
            self.reset()
            return
        elif fault in REFUSED:
            self.refuse(REFUSED[fault])
            return
        if self.faults.unquoted and self.command == "PUT" and self.headers["If-Match"]:
            tag = self.headers["If-Match"]
            if tag.startswith('"'):
                self.refuse(412)
                return
            self.headers.replace_header("If-Match", f'"{tag}"')
        status, headers, content = self.ask(body)
        if self.faults.lie is not None and self.command == "PUT":
            self.faults.lie(target)
        if fault == "reset after":
            self.reset()
            return
        self.reply(status, headers, content, fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

    def ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """What the server says."""
        connection = self.server_connection
        path = AGAIN.sub("", self.path)  # the server would not know that page
        connection.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in {"connection", "expect"}:
                connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        content = answer.read()
        if answer.will_close:
            connection.close()
        return answer.status, answer.getheaders(), content

    def reply(
        self, status: int, headers: list[tuple[str, str]], content: bytes, fault: str
    ) -> None:
        if fault == "endless":
            content = content.replace(*ENDLESS)
        self.send_response_only(status)
        lengths = [value for name, value in headers if name.lower() == "content-length"]
        length = int(lengths[0]) if self.command == "HEAD" and lengths else len(content)
        cut = len(content) // 2
        if fault == "shortened" and len(content) > 1:
            length = cut
        for name, value in headers:
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if fault == "truncated" and content:
            self.wfile.write(content[:cut])
            self.wfile.flush()
            self.reset()
        elif self.command != "HEAD":
            self.wfile.write(content[:length])

    def refuse(self, status: int) -> None:
        self.send_response_only(status)
        if self.faults.retry_after and status != 500:
            self.send_header("Retry-After", self.faults.retry_after)
        said = {500: b"oops", 404: b"", 403: DENIED, 412: FAILED, 400: EXPIRED}.get(
            status, SLOW_DOWN
        )
        content = b"" if self.command == "HEAD" else said
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def reset(self) -> None:
        """Cut the connection so that the other side gets an error, not an end."""
        self.close_connection = True
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A client that has gone is no news."""


class Proxy(NamedTuple):
    """Where it is, and what it does."""

    port: int
    faults: Faults

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def fault_proxy(upstream: str, port: int = 0, **faults: object) -> Iterator[Proxy]:
    """A proxy in front of a server, which behaves until told otherwise."""
    parts = urlsplit(upstream)
    state = Faults(**faults)
    handler = type(
        "Handler", (_Handler,), {"faults": state, "upstream": (parts.hostname, parts.port)}
    )
    with _Server(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield Proxy(server.server_port, state)
        finally:
            server.shutdown()
            thread.join()
