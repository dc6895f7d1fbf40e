"""As little of S3 as benchmarks need, in memory, each request a given time longer.

A server that is as fast as possible, so that what is measured is the client. It keeps equal values
once, knows ranges, tags and listings, and checks no signatures.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

_DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


class Bucket:
    """Values by key."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.values: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.once: dict[str, bytes] = {}

    def answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        parts = urlsplit(target)
        key = unquote(parts.path).partition("/bucket")[2].removeprefix("/")
        if not key and method == "POST":  # what is deleted is named in the body
            names = re.findall(rb"<Key>([^<]*)</Key>", body)
            for name in names:
                self.values.pop(name.decode(), None)
            told = b"".join(b"<Deleted><Key>%s</Key></Deleted>" % name for name in names)
            text = b"<DeleteResult>%s</DeleteResult>" % told
            return 200, [("Content-Type", "application/xml")], text
        if not key:
            return self.listing(parse_qs(parts.query)) if method == "GET" else (200, [], b"")
        if method == "PUT":
            tag = hashlib.blake2b(body, digest_size=16).hexdigest()
            self.values[key] = self.once.setdefault(tag, body)
            self.tags[key] = f'"{tag}"'
            return 200, [("ETag", self.tags[key])], b""
        if method == "DELETE":
            self.values.pop(key, None)
            return 204, [], b""
        return self.part(key, headers)

    def part(self, key: str, headers: dict[str, str]) -> tuple[int, list[tuple[str, str]], bytes]:
        value = self.values.get(key)
        if value is None:
            return 404, [], b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
        own = [("ETag", self.tags[key]), ("Last-Modified", _DATE), ("Accept-Ranges", "bytes")]
        if headers.get("if-match", self.tags[key]) != self.tags[key]:
            return 412, [], b"<Error><Code>PreconditionFailed</Code></Error>"
        told = headers.get("range", "")
        if not told:
            return 200, own, value
        first, _, last = told.removeprefix("bytes=").partition("-")
        size = len(value)
        start = int(first) if first else max(size - int(last), 0)
        stop = min(int(last) + 1, size) if first and last else size
        if start >= size:
            return 416, [("Content-Range", f"bytes */{size}")], b""
        own.append(("Content-Range", f"bytes {start}-{stop - 1}/{size}"))
        return 206, own, value[start:stop]

    def listing(self, query: dict[str, list[str]]) -> tuple[int, list[tuple[str, str]], bytes]:
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        keys, folders = [], set()
        for key in sorted(self.values):
            if not key.startswith(prefix):
                continue
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if found:
                folders.add(prefix + head + delimiter)
            else:
                keys.append(key)
        contents = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified>"
            f"<ETag>{self.tags[key]}</ETag><Size>{len(self.values[key])}</Size></Contents>"
            for key in keys
        )
        contents += "".join(
            f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"
            for folder in sorted(folders)
        )
        text = (
            '<?xml version="1.0"?><ListBucketResult><Name>bucket</Name>'
            f"<Prefix>{prefix}</Prefix><KeyCount>{len(keys)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"
        )
        return 200, [("Content-Type", "application/xml")], text.encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while line := await reader.readline():
                method, target, _ = line.decode("latin-1").split()
                headers = {}
                while (line := await reader.readline()) not in {b"\r\n", b""}:
                    name, _, value = line.decode("latin-1").partition(":")
                    headers[name.strip().lower()] = value.strip()
                if headers.get("expect"):
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if self.latency:
                    await asyncio.sleep(self.latency)
                status, own, content = self.answer(method, target, headers, body)
                own.append(("Content-Length", str(len(content))))
                lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
                lines += [f"{name}: {value}" for name, value in own]
                writer.write("\r\n".join([*lines, "", ""]).encode())
                if method != "HEAD":
                    writer.write(content)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _main(latency: float) -> None:
    bucket = Bucket(latency)
    server = await asyncio.start_server(bucket.serve, "127.0.0.1", 0, limit=1 << 22, backlog=500)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def s3_server(latency: float) -> Iterator[str]:
    """The endpoint of a server in a process of its own; its bucket is called "bucket"."""
    command = [sys.executable, str(Path(__file__)), str(latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1])))
