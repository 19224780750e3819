"""For a proposed member a real hall starts no process and opens no connection, and after the approval it does both.

The hall is on a host of its own, whose only way out is a network card that counts what is sent. strace sees each
process of the hall, and each address to which they connect.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from django.db import connection

from roster.models import MemberProposal, Node
from tests.conftest import eventually, needs_program, skip_at_home
from tests.support.hall import PATIENCE, Hall, web_responds
from tests.support.leases import current_lease_id
from tests.support.networks import Network, NoNamespacesError
from tests.support.strace import Strace

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="the host of the hall reaches no database server"),
]
PASSWORD = re.compile(r"log in as  admin  with the password  (\S+)")
BEATS = 5  # of the runtime, which looks at all members in between
PAGE = "/admin/roster/guildmember/proposals/"
NPX_LINE = "npx -y @playwright/mcp@0.0.41"
UVX_LINE = "uvx mcp-server-time@2025.8.4 --local-timezone Europe/Amsterdam"
ADDRESS = "https://mcp.example.com/mcp"
SERVER_JSON = {
    "name": "io.github.anna/weather",
    "description": "Forecasts for cities",
    "version": "1.2.0",
    "packages": [
        {"registryType": "npm", "identifier": "@anna/weather", "version": "1.2.0", "transport": {"type": "stdio"}}
    ],
    "remotes": [{"type": "streamable-http", "url": "https://weather.example.com/mcp"}],
}


def configuration(network: Network) -> str:
    """Ten servers, of all kinds that a hall can start or call."""
    programs = {
        "files": ["npx", "-y", "@modelcontextprotocol/server-filesystem@2025.8.21", "/srv"],
        "newest": ["npx", "-y", "server-without-a-version"],
        "clock": ["uvx", "mcp-server-time@2025.8.4"],
        "fetch": ["uvx", "--from", "mcp-server-fetch==2025.4.7", "mcp-server-fetch"],
        "node": ["node", "/srv/server.js"],
        "python": ["python3", "/srv/server.py"],
        "touch": ["/usr/bin/touch", "/srv/marker"],
    }
    urls = {
        "near": "http://127.0.0.1:9/mcp",
        "neighbour": f"http://{network.address}:9/mcp",
        "far": "https://far.example.com/mcp",
    }
    servers: dict[str, Any] = {name: {"command": argv[0], "args": argv[1:]} for name, argv in programs.items()}
    servers |= {name: {"url": url} for name, url in urls.items()}
    return json.dumps({"mcpServers": servers})


class WatchedHall(Hall):
    """A hall on a host of its own, with strace around it. Its npm, uv, npx and uvx fetch nothing."""

    def __init__(self, folder: Path, network: Network) -> None:
        super().__init__(folder)
        self.network, self.host = network, network.hosts[0]
        self.host.send_all_to(network.address)
        self.strace = Strace(folder / "strace")
        self._sent_before = 0
        self._programs = folder / "programs"
        self._programs.mkdir()
        for name in ("npm", "uv", "npx", "uvx"):
            (self._programs / name).write_text("#!/bin/sh\nexec sleep 600\n")
            (self._programs / name).chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        hosts = {"GUILD_HALL_PLAIN_HTTP_HOSTS": self.network.address}
        values = {**super().environment(**more), **hosts, "REDIS_URL": "", "CELERY_BROKER_URL": ""}
        return {**values, "PATH": f"{self._programs}:{values['PATH']}"}

    def popen(self, argv: list[str], *, umask: int = -1, **environment: str) -> subprocess.Popen[bytes]:
        return super().popen(self.host.command(self.strace.command(argv)), umask=umask, **environment)

    def command(self, *argv: str, input: str = "") -> str:
        """Run a command on the host, which may do no more than read and write rows. Returns its output."""
        strace, sent = Strace(self.data_dir.parent / "strace-of-command"), self.host.sent_packets
        process = subprocess.run(
            self.host.command(strace.command([sys.executable, "manage.py", *argv])),
            cwd=self.root,
            env=self.environment(),
            input=input,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert strace.programs == [sys.executable], process.stderr
        assert (strace.forks, strace.connections, self.host.sent_packets - sent) == ([], [], 0)
        return process.stdout or process.stderr

    def count_from_here(self) -> None:
        self.strace.forget()
        self._sent_before = self.host.sent_packets

    @property
    def started(self) -> list[str]:
        return [*self.strace.forks, *self.strace.programs]

    @property
    def sent_packets(self) -> int:
        return self.host.sent_packets - self._sent_before

    @property
    def connections(self) -> list[tuple[str, int]]:
        """The addresses to which the hall connected. The parts of the hall may connect to each other."""
        own = {("127.0.0.1", port) for port in (self.web_port, self.gateway_port, self.node_port)}
        return [address for address in self.strace.connections if address not in own]


class Person:
    """The first user of a hall, with a browser and a token. Their connections begin on the host of the hall."""

    def __init__(self, hall: WatchedHall, token: str) -> None:
        self._hall, self._browser = hall, requests.Session()
        self._headers = {"Authorization": f"Bearer {token}"}

    def rest(self, path: str, method: str = "GET", **body: Any) -> requests.Response:
        with self._hall.host.inside():
            url = f"{self._hall.url}/api/{path}"
            return requests.request(method, url, json=body or None, headers=self._headers, timeout=30)

    def page(self, path: str, **form: str) -> str:
        """The page. With a form, what the browser shows after the form of this page was sent."""
        url = f"{self._hall.url}{path}"
        with self._hall.host.inside():
            response = self._browser.get(url, timeout=30)
            if form:
                field = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', response.text)
                assert field, response.text
                data, headers = {"csrfmiddlewaretoken": field[1], **form}, {"Origin": self._hall.url}
                response = self._browser.post(response.url, data=data, headers=headers, timeout=30)
        assert response.status_code == 200, response.text
        return response.text


@pytest.fixture
def network() -> Iterator[Network]:
    needs_program("strace")
    try:
        network = Network(1)
    except NoNamespacesError as error:
        skip_at_home(str(error))
    yield network
    network.remove()


@pytest.fixture
def watched_hall(hall: Hall, network: Network, tmp_path: Path) -> Iterator[WatchedHall]:
    """A hall without members, which is ready and has nothing to do."""
    folder = tmp_path / "host"
    folder.mkdir()
    watched = WatchedHall(folder, network)
    try:
        watched.up()
        eventually(lambda: inside(watched, web_responds), within=PATIENCE, what=watched.output())
        eventually(current_lease_id, within=PATIENCE)
        yield watched
    finally:
        watched.end()


def inside(hall: WatchedHall, ask: Callable[[Hall], bool]) -> bool:
    with hall.host.inside():
        return ask(hall)


@pytest.fixture
def person(watched_hall: WatchedHall) -> Person:
    token = watched_hall.manage("create_token", "admin").stdout.splitlines()[-1]
    person = Person(watched_hall, token)
    password = PASSWORD.search(watched_hall.output())
    assert password, watched_hall.output()
    person.page("/admin/login/", username="admin", password=password[1], next="/admin/")
    assert "Add a member" in person.page(PAGE)
    return person


def wait_for_beats(hall: WatchedHall) -> None:
    beats = Node.objects.values_list("beat", flat=True)
    until = beats.get() + BEATS
    eventually(lambda: beats.get() >= until, within=PATIENCE, what=hall.output())


def propose_from_every_source(hall: WatchedHall, person: Person) -> None:
    assert person.rest("members/", "POST", source=NPX_LINE).status_code == 201
    assert person.rest("members/", "POST", source=json.dumps(SERVER_JSON)).status_code == 201
    output = hall.command("add_member", UVX_LINE, "--json")
    assert len(json.loads(output)["proposals"]) == 1
    output = hall.command("add_member", "-", "--json", input=configuration(hall.network))
    assert len(json.loads(output)["proposals"]) == 10, output
    assert "Proposed, and not approved yet" in person.page(PAGE, source=ADDRESS, name="")
    person.page(PAGE, source=json.dumps(SERVER_JSON), name="weather-again", way="2")
    assert MemberProposal.objects.filter(approved_at=None).count() == 15


def look_at_everything(hall: WatchedHall, person: Person) -> None:
    names = list(MemberProposal.objects.values_list("name", flat=True))
    assert all(name in person.page(PAGE) for name in names)
    for name in names:
        assert person.rest(f"proposals/{name}/").json()["name"] == name
    for path in ("proposals/", "roster/", "members/", "openapi.json"):
        person.rest(path)
    for path in ("/admin/", "/admin/roster/guildmember/", "/admin/roster/auditentry/", f"{PAGE}?registry=weather"):
        person.page(path)
    # The registry is not configured.
    assert person.rest("registry/?search=weather").status_code >= 400
    assert person.rest("members/", "POST", source="io.github.anna/weather").status_code >= 400
    for argv in (["registry", "weather"], ["add_member", "io.github.anna/weather"], ["roster"], ["check_members"]):
        hall.command(*argv)
    hall.command("explain_access", "admin", f"{names[0]}/echo")


def discard_some(hall: WatchedHall, person: Person) -> None:
    assert person.rest("proposals/newest/", "DELETE").status_code == 204
    assert "discarded" in hall.command("add_member", "node", "--discard")
    assert "discarded" in person.page(PAGE, discard="python").lower()
    assert MemberProposal.objects.filter(approved_at=None).count() == 12


def test_a_proposed_member_starts_no_process_and_sends_nothing_before_its_approval(
    watched_hall: WatchedHall, person: Person
) -> None:
    hall = watched_hall
    hall.count_from_here()
    propose_from_every_source(hall, person)
    wait_for_beats(hall)
    look_at_everything(hall, person)
    discard_some(hall, person)
    wait_for_beats(hall)
    assert (hall.started, hall.connections, hall.sent_packets) == ([], [], 0)
    assert list(hall.members_dir.iterdir()) == []

    # The same counters see what an approval does.
    for name in ("files", "clock", "neighbour"):
        digest = person.rest(f"proposals/{name}/").json()["digest"]
        assert person.rest(f"proposals/{name}/approve/", "POST", digest=digest).status_code == 202
    for program in ("npm", "uv"):  # they install the packages of an approved member
        eventually(
            lambda program=program: any(path.endswith(f"/{program}") for path in hall.strace.programs),
            within=PATIENCE,
            what=hall.output(),
        )
    eventually(lambda: (hall.network.address, 9) in hall.connections, within=PATIENCE, what=hall.output())
    assert hall.sent_packets > 0
    assert len(hall.strace.forks) >= 2
