"""The hall under attack: `manage.py up` with its own folder and ports, and hostile members beside an honest one."""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.hall import ROOT, BenchHall, family, is_member, wait_until
from tests.attack.client import Client

MEMBER = Path(__file__).parent / "members" / "member.py"
# Arguments that a shell between manifest and process would run.
SHELL_WORDS = ["$(touch pwned-1)", ";touch pwned-2", "`touch pwned-3`", "| touch pwned-4", "${IFS}"]
# The members, and the modes of their program.
MEMBERS = {
    "neighbour": [],
    "hostile": SHELL_WORDS,
    "lists": ["hostile-lists"],
    "shared": [],
    "spare": [],
    "modern": ["modern"],
    "twin": ["tools=x__echo,echo"],
    "twin__x": ["tools=echo,_echo"],
}
SHIPPED_MEMBERS = ["example", "notes"]
CLIENTS = 64
MAKE_PRINCIPALS = """
import json
from django.contrib.auth.models import Permission, User
from roster.models import Token
root = User.objects.create_superuser("root-of-attack")
permissions = Permission.objects.filter(codename="invoke_tool")
def token(name, **options):
    user, made = User.objects.get_or_create(username=name)
    user.user_permissions.set(permissions)
    return Token.make(user=user, **Token.UNLIMITED, **options)[1]
names = ["attacker", "victim", "neighbour", *[f"client-{n}" for n in range(%d)]]
tokens = {name: token(name) for name in names}
tokens["root"] = Token.make(user=root, **Token.UNLIMITED)[1]
tokens["victim's other"] = token("victim")
fuzzer = User.objects.create_superuser("fuzzer")
tokens["fuzzer"] = Token.make(user=fuzzer, **Token.UNLIMITED)[1]
print(json.dumps(tokens))
"""


class Canary:
    """A local address that nobody should request. `requests` has the paths and headers of all requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        requests = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                requests.append(f"{self.path} {self.headers}")
                self.send_response(200)
                self.end_headers()

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Hall(BenchHall):
    """`tokens`: the token of each principal. `log`: the output on the operator's console."""

    def __init__(self) -> None:
        super().__init__(0, prepare=False)
        self.canary = Canary()
        self.environment["GUILD_HALL_MAX_IN_FLIGHT"] = "64"
        self.log = self.folder / "log"
        self.shell_words = SHELL_WORDS
        for name, modes in MEMBERS.items():
            self.add_program(name, "${PORT}", *modes)
        self.add_program("pipe", "stdio", transport="stdio")
        for name in SHIPPED_MEMBERS:
            shutil.copytree(ROOT / "guild-members" / name, self.folder / "members" / name)
        self.names = [*MEMBERS, *SHIPPED_MEMBERS, "pipe"]
        self.tokens: dict[str, str] = {}

    def add_program(self, name: str, *argv: str, **manifest: Any) -> None:
        self.add(name, "member.py", *argv, max_concurrency=64, env={"CANARY": self.canary.address}, **manifest)
        shutil.copy(MEMBER, self.folder / "members" / name / "member.py")

    def up(self) -> None:
        self._start([sys.executable, "manage.py", "up"])
        wait_until(self._answers, 60, "the web answers")
        self.tokens = json.loads(self.manage("shell", "-v0", "-c", MAKE_PRINCIPALS % CLIENTS).splitlines()[-1])
        self.wait_connected(self.tokens["root"])
        wait_until(self._lists_all_members, 30, "the gateway lists the tools of every member")

    def _lists_all_members(self) -> bool:
        with contextlib.suppress(OSError, KeyError), self.client("root").begin() as client:
            reply = client.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
            tools = {tool["name"].partition("__")[0] for tool in reply.messages[-1]["result"]["tools"]}
            return tools >= set(self.names) - {"twin__x"}  # its names begin with the same words as those of `twin`
        return False

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command. Any exit code is allowed."""
        argv = (sys.executable, "manage.py", *argv)
        return subprocess.run(argv, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=120)

    # Principals -------------------------------------------------------------------------------------------------------

    def client(self, principal: str, path: str = "/mcp", seconds: float = 40.0) -> Client:
        """A client of the gateway."""
        return Client(self.gateway_port, self.tokens[principal], path, seconds)

    def web(self, principal: str, seconds: float = 40.0) -> Client:
        """A client of REST. It is anonymous if the name is empty."""
        return Client(self.port, self.tokens.get(principal, ""), seconds=seconds)

    def marks(self, member: str = "neighbour") -> list[str]:
        """The texts of all calls of the tool `mark` that ran."""
        path = self.folder / "members" / member / "marks.log"
        return path.read_text().splitlines() if path.exists() else []

    # Processes --------------------------------------------------------------------------------------------------------

    @property
    def processes(self) -> list[psutil.Process]:
        return [process for root in self._processes for process in family(psutil.Process(root.pid))]

    def memory(self) -> int:
        """The memory of web, guard and worker, in bytes."""
        total = 0
        for process in self.processes:
            with contextlib.suppress(psutil.Error):
                total += 0 if is_member(process) else process.memory_info().rss
        return total

    def pid_of(self, member: str) -> int | None:
        """The pid of a member, or None if it is not connected."""
        with self.web("root") as client:
            row = json.loads(client.rest("GET", f"/api/members/{member}/").body)
        return int(row["pid"]) if row["status"] == "connected" else None


@contextlib.contextmanager
def hall_under_attack() -> Iterator[Hall]:
    hall = Hall()
    try:
        hall.up()
        yield hall
    finally:
        hall.end()
        hall.canary.close()


def eventually(condition: Callable[[], object], seconds: float) -> bool:
    """Whether the condition became true in time."""
    try:
        wait_until(condition, seconds, "")
    except SystemExit:
        return False
    return True
