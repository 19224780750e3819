"""Nodes on hosts of their own, with network cables that can be cut. Each host is a network namespace of this machine.

This needs root, and the command `ip` of iproute2. A network address translation or a packet filter is not needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from django.db import connection

from tests.storm.proxy import Proxy
from tests.support.hall import database_url
from tests.support.nodes import Machine

# The hardware address of no host. What is sent there is lost, and the sender is not told.
NOWHERE = "02:00:00:00:00:ff"
SWITCH = "02:00:00:00:00:01"
CLONE_NEWNET = 0x40000000


class NoNamespacesError(Exception):
    """This machine gives tests no network namespaces."""


def ip(*words: str, namespace: str = "") -> None:
    options = ["-n", namespace] if namespace else []
    result = subprocess.run(["ip", *options, *words], capture_output=True, text=True, timeout=10, check=False)
    if result.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {result.stderr.strip()}")


class Network:
    """A switch with this machine and so many hosts. Raises NoNamespacesError.

    The database of the test is at `database_url`, for the hosts.
    """

    def __init__(self, size: int) -> None:
        if shutil.which("ip") is None or shutil.which("nsenter") is None:
            raise NoNamespacesError("the commands ip (iproute2) and nsenter (util-linux) are not installed")
        pid = os.getpid()
        self.name = f"hall{pid}"
        # A network for measurements (RFC 2544), which nobody routes.
        self._prefix = f"198.{18 + pid // 256 % 2}.{pid % 256}"
        self.address = f"{self._prefix}.1"
        self.hosts: list[Host] = []
        self._repairs: list[tuple[str, list[str]]] = []  # commands that undo the faults, each with its namespace
        self._relay: Proxy | None = None
        for number in range(2, size + 2):
            self.hosts.append(Host(f"{self.name}-{number}", f"{self._prefix}.{number}", f"{self.name}p{number}"))
        try:
            # With an address of its own. Otherwise it has that of a port, and changes it when a port is added.
            ip("link", "add", self.name, "address", SWITCH, "type", "bridge")
            ip("address", "add", f"{self.address}/24", "dev", self.name)
            ip("link", "set", self.name, "up")
            for host in self.hosts:
                host.plug_in(self.name)
        except OSError as error:
            self.remove()
            raise NoNamespacesError(f"network namespaces do not work here: {error}") from error
        values = connection.settings_dict
        host, port = values["HOST"] or "127.0.0.1", int(values["PORT"] or 5432)
        self._relay = Proxy(host, port, self.address)
        self.database_url = database_url().replace(f"{host}:{port}", self._relay.address, 1)

    def remove(self) -> None:
        """Remove everything, as far as it exists."""
        if self._relay is not None:
            self._relay.close()
        for host in self.hosts:
            subprocess.run(["ip", "link", "delete", host.port], capture_output=True, timeout=10, check=False)
            subprocess.run(["ip", "netns", "delete", host.name], capture_output=True, timeout=10, check=False)
        subprocess.run(["ip", "link", "delete", self.name], capture_output=True, timeout=10, check=False)

    # Faults -------------------------------------------------------------------------------------------------------

    def cut(self, host: Host) -> None:
        """Cut the cable of the host."""
        self._do("", ["link", "set", host.port, "down"], undo=["link", "set", host.port, "up"])

    def lose_requests(self, host: Host) -> None:
        """Lose all that the host sends. It receives everything."""
        for other in self._others(host):
            self._lose(host, other)

    def lose_answers(self, host: Host) -> None:
        """Lose all that is sent to the host. What it sends arrives."""
        for other in self._others(host):
            self._lose(other, host)

    def separate(self, one: Host, other: Host) -> None:
        """Lose all that the two hosts send to each other."""
        self._lose(one, other)
        self._lose(other, one)

    def heal(self) -> None:
        while self._repairs:
            namespace, words = self._repairs.pop()
            ip(*words, namespace=namespace)

    def _others(self, host: Host) -> list[Host | None]:
        """All at the switch, with None for this machine."""
        return [None, *(other for other in self.hosts if other is not host)]

    def _lose(self, sender: Host | None, receiver: Host | None) -> None:
        address = self.address if receiver is None else receiver.address
        place = ["dev", self.name if sender is None else "eth0"]
        entry = ["neighbour", "replace", address, "lladdr", NOWHERE, *place, "nud", "permanent"]
        undo = ["neighbour", "delete", address, *place]
        self._do("" if sender is None else sender.name, entry, undo=undo)

    def _do(self, namespace: str, words: list[str], *, undo: list[str]) -> None:
        ip(*words, namespace=namespace)
        self._repairs.append((namespace, undo))


class Host:
    """A network namespace with an interface, whose cable ends at `port` of the switch."""

    def __init__(self, name: str, address: str, port: str) -> None:
        self.name, self.address, self.port = name, address, port

    def plug_in(self, switch: str) -> None:
        ip("netns", "add", self.name)
        ip("link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", self.port, "master", switch, "up")
        ip("link", "set", "lo", "up", namespace=self.name)
        ip("address", "add", f"{self.address}/24", "dev", "eth0", namespace=self.name)
        ip("link", "set", "eth0", "up", namespace=self.name)

    def command(self, argv: list[str]) -> list[str]:
        """The command in this namespace. Its process is the one that is started."""
        return ["nsenter", f"--net=/run/netns/{self.name}", *argv]

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread opens its connections in the namespace."""
        with open("/proc/thread-self/ns/net") as outside, open(f"/run/netns/{self.name}") as namespace:
            _enter(namespace.fileno())
            try:
                yield
            finally:
                _enter(outside.fileno())

    def send_all_to(self, gateway: str) -> None:
        """Give it a way to all addresses of IPv4, over the switch. It sends nothing on its own account."""
        ip("neighbour", "add", gateway, "lladdr", SWITCH, "dev", "eth0", "nud", "permanent", namespace=self.name)
        ip("route", "add", "default", "via", gateway, namespace=self.name)
        with self.inside():
            Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6").write_text("1")  # it would look for routers

    @property
    def sent_packets(self) -> int:
        """The packets that left the host so far, also those that nobody answers."""
        command = ["ip", "-n", self.name, "-s", "-j", "link", "show", "eth0"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return int(json.loads(shown.stdout)[0]["stats64"]["tx"]["packets"])


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class HostedMachine(Machine):
    """A node on a host of its own. It has no broker, so it asks the database."""

    def __init__(self, folder: Path, name: str, network: Network, host: Host) -> None:
        super().__init__(folder, name)
        self._network = network
        self.host = host
        self.address = host.address

    def environment(self, **more: str) -> dict[str, str]:
        return {
            **super().environment(**more),
            "DATABASE_URL": self._network.database_url,
            "REDIS_URL": "",
            "CELERY_BROKER_URL": "",
            "GUILD_HALL_HOST": self.address,
            "GUILD_HALL_PLAIN_HTTP_HOSTS": ",".join(host.address for host in self._network.hosts),
        }

    def popen(self, argv: list[str], *, umask: int = -1, **environment: str) -> subprocess.Popen[bytes]:
        return super().popen(self.host.command(argv), umask=umask, **environment)
