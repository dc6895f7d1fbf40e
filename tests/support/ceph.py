"""A Ceph cluster on loopback, of one monitor, one daemon that keeps objects in memory, and RadosGW.

``tools/servers.sh radosgw`` unpacks Debian's packages; nothing runs as a service, and all files of
the cluster are in one folder.
"""

from __future__ import annotations

import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.object_stores import (
    INSTALLED,
    KEY,
    SECRET,
    S3Server,
    free_port,
    installed,
    libraries,
    running,
)

CONFIGURATION = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]
mon initial members = a
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {folder}/keyring
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
pid file =
crash dir = {folder}/crash
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data = {folder}/mon
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 2147483648
osd class dir = {lib}/rados-classes
erasure code dir = {lib}/ceph/erasure-code
plugin dir = {lib}/ceph
ms bind ipv6 = false
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw data = {folder}/rgw
mon warn on pool no redundancy = false
"""


@contextmanager
def ceph_server(folder: Path) -> Iterator[S3Server]:
    """The cluster, ready; its bucket is called "bucket"."""
    installed("radosgw", "usr/bin/radosgw")
    cluster = Cluster(folder)
    with ExitStack() as stack:
        stack.enter_context(cluster.monitor())
        stack.enter_context(cluster.daemon())
        server = stack.enter_context(cluster.gateway())
        server.admin.create_bucket(Bucket="bucket")
        yield server


class Cluster:
    """Its configuration and its keys, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.programs = INSTALLED / "radosgw/usr/bin"
        self.environment = libraries("radosgw")
        self.folder = folder
        self.fsid = str(uuid.uuid4())
        self.ports = {name: free_port() for name in ("v2", "v1", "port")}
        self.keyring = str(folder / "keyring")
        for name in ("mon", "osd", "rgw", "crash"):
            (folder / name).mkdir()
        lib = next((INSTALLED / "radosgw/usr/lib").glob("*/ceph")).parent
        at = {"folder": folder, "fsid": self.fsid, "lib": lib, **self.ports}
        (folder / "ceph.conf").write_text(CONFIGURATION.format(**at))
        self.at = ("-c", str(folder / "ceph.conf"))

    @contextmanager
    def monitor(self) -> Iterator[None]:
        every = ("--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *")
        make = ("--create-keyring", "--gen-key", "-n", "mon.", *every[:3])
        self.run("ceph-authtool", self.keyring, *make)
        for name in ("client.admin", "client.rgw", "osd.0"):
            self.run("ceph-authtool", self.keyring, "--gen-key", "-n", name, *every)
        addresses = f"[v2:127.0.0.1:{self.ports['v2']},v1:127.0.0.1:{self.ports['v1']}]"
        monmap = str(self.folder / "monmap")
        make = ("--create", "--addv", "a", addresses, "--fsid", self.fsid, monmap)
        self.run("monmaptool", *make)
        make = ("-i", "a", "--mkfs", "--monmap", monmap, "--keyring", self.keyring)
        self.run("ceph-mon", *self.at, *make)
        with self.running("ceph-mon", "-i", "a", port=self.ports["v2"]):
            yield

    @contextmanager
    def daemon(self) -> Iterator[None]:
        number = str(uuid.uuid4())
        self.command("osd", "new", number)
        self.run("ceph-osd", *self.at, "-i", "0", "--mkfs", "--osd-uuid", number)
        with self.running("ceph-osd", "-i", "0"):
            yield

    @contextmanager
    def gateway(self) -> Iterator[S3Server]:
        user = ("user", "create", "--uid", "test", "--display-name", "test")
        self.run("radosgw-admin", *self.at, *user, "--access-key", KEY, "--secret", SECRET)
        port = self.ports["port"]
        with self.running("radosgw", "-n", "client.rgw", port=port) as process:
            yield S3Server(port, process)

    def command(self, *arguments: str) -> None:
        """Ask the monitor, through Ceph's script for the system's own Python."""
        python = INSTALLED / "radosgw/usr/lib/python3/dist-packages"
        found = {**self.environment, "PYTHONPATH": str(python)}
        self.check(["/usr/bin/python3", str(self.programs / "ceph"), *self.at, *arguments], found)

    def run(self, program: str, *arguments: str) -> None:
        self.check([str(self.programs / program), *arguments], self.environment)

    def check(self, command: list[str], environment: dict[str, str]) -> None:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"

    def running(self, program: str, *arguments: str, port: int | None = None):
        command = [str(self.programs / program), "-f", *self.at, *arguments]
        return running(command, port, self.environment, signal.SIGTERM)
