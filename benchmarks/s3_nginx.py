"""As little of S3 as benchmarks need, by nginx, each request a given time longer.

Clients and server share the cores of one machine, so that a server in Python takes a large part of
everybody's time and makes fast clients look alike. Here nginx sends and receives, bodies into files
and files by ``sendfile``, and a few lines of Lua keep the keys. One worker serves all connections;
a request waits when all of it has arrived, and is answered afterwards.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["find_nginx", "s3_nginx"]

_HERE = Path(__file__).resolve().parent
_INSTALLED = _HERE.parent / ".servers" / "nginx-lua"
_ROOM = 4 << 30  # bytes that all values of the benchmarks fit in
_PATIENCE = 20.0  # seconds for nginx to start

_CONFIGURATION = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/errors;
{user}
load_module {modules}/ndk_http_module.so;
load_module {modules}/ngx_http_lua_module.so;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    lua_package_path "{here}/?.lua;{lua}/?.lua;;";
    client_max_body_size 0;
    client_body_temp_path {folder}/files;
    client_body_buffer_size 1m;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    default_type application/octet-stream;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000;
    server {{
        listen 127.0.0.1:{port} backlog=500;
        location / {{
            set $tag "";
            set $folder {folder}/files;
            client_body_in_file_only on;
            content_by_lua_block {{ require("s3_nginx").serve({latency}) }}
        }}
        location /file/ {{
            internal;
            etag off;
            add_header ETag $tag;
            alias {folder}/files/;
        }}
    }}
}}
"""


def find_nginx() -> Path | None:
    """The program, where `tools/servers.sh nginx-lua` has put it with its module for Lua."""
    program = _INSTALLED / "usr/sbin/nginx"
    return program if (_INSTALLED / ".installed").exists() and program.exists() else None


@contextmanager
def s3_nginx(latency: float) -> Iterator[str]:
    """The endpoint of a server in a process of its own; its bucket is called "bucket".

    Raises
    ------
    FileNotFoundError
        If nginx or its module is not installed.
    RuntimeError
        If it does not start.
    """
    program = find_nginx()
    if program is None:
        raise FileNotFoundError(f"no nginx in {_INSTALLED}: run tools/servers.sh nginx-lua.")
    with tempfile.TemporaryDirectory(prefix="zarr-dask-bench-", dir=_memory()) as folder:
        port = _free_port()
        given = Path(folder) / "conf"
        given.write_text(_configuration(folder, port, latency), encoding="utf-8")
        command = [str(program), "-p", folder, "-c", str(given), "-e", f"{folder}/errors"]
        with subprocess.Popen(command, env=_environment(), stdin=subprocess.DEVNULL) as process:
            try:
                _wait_for(process, port, Path(folder) / "errors")
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()


def _configuration(folder: str, port: int, latency: float) -> str:
    return _CONFIGURATION.format(
        folder=folder,
        port=port,
        latency=latency,
        here=_HERE,
        modules=_INSTALLED / "usr/lib/nginx/modules",
        lua=_INSTALLED / "usr/share/lua/5.1",
        user="user root;" if os.getuid() == 0 else "",
    )


def _memory() -> str | None:
    """A folder in memory with enough room; None for the usual one."""
    shared = "/dev/shm"  # noqa: S108  (a folder of its own is made there)
    return shared if Path(shared).is_dir() and shutil.disk_usage(shared).free > _ROOM else None


def _environment() -> dict[str, str]:
    """One in which unpacked packages find their libraries."""
    found = [*_INSTALLED.glob("usr/lib/*-linux-gnu*"), *_INSTALLED.glob("lib/*-linux-gnu*")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, found))}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], port: int, errors: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > until:
            said = errors.read_text(encoding="utf-8") if errors.exists() else ""
            raise RuntimeError(f"nginx does not start: {said}")
        time.sleep(0.02)
