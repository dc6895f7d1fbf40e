"""A real S3 server on loopback for tests: moto's, in a process of its own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

# One request at a time: moto looks at a condition and puts the value in two steps.
SERVE = """
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app))
print(server.server_port, flush=True)
server.serve_forever()
"""
KEY, SECRET = "AKIAEXAMPLE", "a-secret-that-nobody-may-see"


class S3Server(NamedTuple):
    """Where it is, and how it is stopped."""

    port: int
    process: subprocess.Popen

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, Any]:
        """Storage options in fsspec's words."""
        client = {"endpoint_url": self.endpoint, "region_name": "us-east-1"}
        return {"key": KEY, "secret": SECRET, "client_kwargs": client}

    @property
    def admin(self) -> Any:
        """A client of the service's own."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server, ready; its bucket is called "bucket"."""
    # pages of listings that are soon full
    environment = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": "50"}
    with subprocess.Popen(
        [sys.executable, "-c", SERVE],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        try:
            assert select.select([process.stdout], [], [], 40)[0], "the server does not start"
            server = S3Server(int(process.stdout.readline()), process)
            server.admin.create_bucket(Bucket="bucket")
            yield server
        finally:
            process.kill()
