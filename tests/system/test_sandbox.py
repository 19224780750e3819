"""Hostile members in a sandbox. docs/sandbox.md names each escape, and the first tests here try all of them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mcp_runtime.sandbox.capabilities import PROTECTIONS, probe
from tests.conftest import ROOT, eventually
from tests.support.hall import Hall, call, is_live, member, wait_for_status
from tests.support.real_servers.__init__ import python

SERVER = ROOT / "tests" / "support" / "servers" / "hostile.py"
SECRET = "a secret that no member may read"


def need(*protections: str) -> None:
    """Skip the test on a machine that cannot enforce these protections."""
    if gaps := [f"{name}: {probe().gaps[name]}" for name in protections if name in probe().gaps]:
        pytest.skip("; ".join(gaps))


def add(hall: Hall, name: str, **manifest: Any) -> Path:
    values = {"sandbox": "on", "args": ["hostile.py", "${PORT}"], "start_timeout": 30, **manifest}
    folder = hall.add(name, **values)
    (folder / "sub").mkdir()
    shutil.copy(SERVER, folder)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home folder of the hall's user, with a key."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "id_ed25519").write_text(SECRET)
    return tmp_path / "home"


@pytest.fixture(params=["http", "stdio"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def running_hall(hall: Hall, home: Path, transport: str) -> Hall:
    """A hall with the members `good`, which has a secret, and `bad`, which is hostile and in a sandbox."""
    (hall.add("good") / "secret.txt").write_text(SECRET)
    args = ["hostile.py", "${PORT}"] if transport == "http" else ["hostile.py"]
    add(hall, "bad", transport=transport, args=args, limits={"memory_mb": 300, "open_files": 100, "file_mb": 10})
    hall.start(HOME=str(home))
    wait_for_status(hall, "good", "connected")
    wait_for_status(hall, "bad", "connected", within=30)
    return hall


@pytest.fixture
def unix_socket() -> Iterator[Path]:
    """A service on a Unix socket, as a session bus or a container engine. Beside it is one for datagrams, as a log."""
    path = Path(f"/tmp/hall-{os.getpid()}.socket")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        listener.bind(str(path))
        listener.listen()
        log.bind(f"{path}.log")
        yield path
    path.unlink()
    Path(f"{path}.log").unlink()


def attempt(tool: str, target: object, name: str = "bad") -> str:
    return text_of(name, tool, {"target": str(target)})


def text_of(name: str, tool: str, arguments: dict[str, Any]) -> str:
    """The text that the tool returns."""
    row = call(name, tool, arguments, within=30)
    assert row.status == "succeeded", row.error_message
    text: str = row.result["content"][0]["text"]
    return text


def test_no_escape_succeeds(running_hall: Hall, home: Path, tmp_path: Path, unix_socket: Path) -> None:
    """One hall for all escapes that end nothing, without those that the machine cannot refuse. Others have a test."""
    need("files")
    hall = running_hall
    bad, good = hall.members_dir / "bad", hall.members_dir / "good"
    key_file = next(hall.data_dir.glob("*key*"))
    worker, good_pid, good_port = hall.worker_pid, member("good").pid, member("good").port
    attempts: dict[str, list[tuple[str, object]]] = {
        "files": [
            ("read_file", key_file),
            ("list_folder", hall.data_dir),
            ("read_file", home / ".ssh" / "id_ed25519"),
            ("list_folder", home),
            ("read_file", good / "secret.txt"),
            ("list_folder", hall.members_dir),
            ("read_file", "/etc/shadow"),
            ("write_file", tmp_path / "outside.txt"),
            ("write_file", good / "server.py"),
            ("empty_file", good / "server.py"),
            ("write_file", bad / "guild-member.json"),
            ("empty_file", bad / "guild-member.json"),
            ("write_file", bad / "hostile.py"),
            ("read_through_link", home / ".ssh" / "id_ed25519"),
            ("read_through_link", key_file),
            ("read_process", worker),
            ("read_process", good_pid),
            ("trace", worker),
            ("trace", good_pid),
        ],
        "attributes": [
            ("change_attributes", hall.data_dir),
            ("change_attributes", good / "server.py"),
            ("change_attributes", home / ".ssh"),
        ],
        "signals": [
            ("send_signal", worker),
            ("send_signal", os.getpid()),
            ("slow_down", worker),
            ("slow_down", good_pid),
        ],
        "ports": [
            ("connect", good_port),
            ("connect", hall.gateway_port),
            ("listen", good_port),
            ("listen", hall.gateway_port),
        ],
        "sockets": [
            ("connect_to_unix_socket", unix_socket),
            ("send_to_unix_socket", f"{unix_socket}.log"),
            ("share_memory", 4_711),
        ],
        "limits": [("allocate_memory", 1_000), ("open_descriptors", 1_000), ("write_much", 100)],
    }
    possible = [pair for name, pairs in attempts.items() if name not in probe().gaps for pair in pairs]
    results = {(tool, str(target)): attempt(tool, target) for tool, target in possible}
    assert {key: text for key, text in results.items() if not text.startswith("refused")} == {}
    assert call("good", "echo", {"text": "hello"}).status == "succeeded"
    assert member("good").pid == good_pid


def test_the_variables_of_a_member_have_no_effect_before_the_sandbox_holds(
    hall: Hall, tmp_path: Path, transport: str
) -> None:
    """The dynamic loader writes its report into a file of any place, before a program runs."""
    need("files")
    args = ["hostile.py", "${PORT}"] if transport == "http" else ["hostile.py"]
    variables = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(tmp_path / "report"), "TOKEN": SECRET}
    add(hall, "bad", transport=transport, args=args, env=variables)
    hall.start()
    wait_for_status(hall, "bad", "connected", within=30)
    assert list(tmp_path.glob("report*")) == []
    environments = [process.environ() for process in hall.tagged_processes("bad")]
    assert sorted(environment.get("TOKEN", "") for environment in environments) == (
        [SECRET] if transport == "http" else ["", SECRET]
    )


def test_without_a_sandbox_the_same_attempts_succeed(hall: Hall, home: Path, tmp_path: Path, unix_socket: Path) -> None:
    """So the tests above test the sandbox, and not the hostile member."""
    (hall.add("good") / "secret.txt").write_text(SECRET)
    bad = add(hall, "bad", sandbox="off")
    hall.start(HOME=str(home))
    wait_for_status(hall, "good", "connected")
    wait_for_status(hall, "bad", "connected", within=30)
    attempts: list[tuple[str, object]] = [
        ("read_file", next(hall.data_dir.glob("*key*"))),
        ("read_file", home / ".ssh" / "id_ed25519"),
        ("read_file", hall.members_dir / "good" / "secret.txt"),
        ("write_file", tmp_path / "outside.txt"),
        ("write_file", bad / "hostile.py"),
        ("read_through_link", home / ".ssh" / "id_ed25519"),
        ("read_process", hall.worker_pid),
        ("allocate_memory", 400),
        ("open_descriptors", 500),
        ("write_much", 100),
        ("send_signal", hall.worker_pid),
        ("slow_down", hall.worker_pid),
        ("change_attributes", hall.data_dir),
        ("share_memory", 4_711),
        ("listen", hall.web_port),
        ("connect_to_unix_socket", unix_socket),
        ("send_to_unix_socket", f"{unix_socket}.log"),
        ("connect", member("good").port),
    ]
    results = {(tool, str(target)): attempt(tool, target) for tool, target in attempts}
    assert {key: text for key, text in results.items() if not text.startswith("escaped")} == {}


def test_a_member_in_a_sandbox_works_with_its_own_files(running_hall: Hall) -> None:
    need("files")
    bad = running_hall.members_dir / "bad"
    own_home = running_hall.data_dir / "sandboxes" / "bad" / "home"
    for tool, target in (
        ("read_file", bad / "hostile.py"),
        ("write_file", bad / "sub" / "note.txt"),
        ("write_file", own_home / "note.txt"),
        ("read_file", own_home / "note.txt"),
        ("write_file", own_home.with_name("tmp") / "note.txt"),
        ("allocate_memory", 50),
    ):
        assert attempt(tool, target).startswith("escaped"), (tool, target)
    assert (bad / "sub" / "note.txt").read_text() == "hostile"


def test_its_temporary_files_are_deleted_at_its_next_start(running_hall: Hall) -> None:
    note = running_hall.data_dir / "sandboxes" / "bad" / "tmp" / "note.txt"
    assert attempt("write_file", note).startswith("escaped")
    pid = member("bad").pid
    running_hall.manage("member", "restart", "bad")
    eventually(lambda: member("bad").status == "connected" and member("bad").pid != pid, within=30)
    assert not note.exists()


def test_a_fork_bomb_is_ended_and_the_other_member_serves_on(hall: Hall) -> None:
    add(hall, "bad", limits={"processes": 30}, restart="never", timeout=60)
    hall.add("good")
    hall.start()
    wait_for_status(hall, "good", "connected")
    wait_for_status(hall, "bad", "connected", within=30)
    pid = member("good").pid
    row = call("bad", "start_processes", {"target": "300"}, within=60)
    assert (row.status, row.error_kind) == ("failed", "transport")
    bad = wait_for_status(hall, "bad", "error")
    assert "processes in limits allows 30" in bad.last_error
    eventually(lambda: not hall.tagged_processes("bad"))
    assert call("good", "echo", {"text": "hello"}).status == "succeeded"
    assert member("good").pid == pid


@pytest.mark.parametrize("tool", ["hoard_memory", "hoard_shared_memory"])
def test_a_member_whose_processes_use_too_much_memory_together_is_ended(hall: Hall, tool: str) -> None:
    """Each process stays below the limit of the kernel."""
    add(hall, "bad", limits={"memory_mb": 150}, restart="never", timeout=60)
    hall.start()
    wait_for_status(hall, "bad", "connected", within=30)
    row = call("bad", tool, {"target": "60"}, within=60)
    assert (row.status, row.error_kind) == ("failed", "transport")
    assert "and memory_mb in limits allows 150" in wait_for_status(hall, "bad", "error", within=30).last_error
    eventually(lambda: not hall.tagged_processes("bad"))


def test_a_process_that_leaves_the_session_and_drops_its_environment_ends_with_the_member(running_hall: Hall) -> None:
    need("sockets")  # the filter of system calls protects the birthmark too
    file = running_hall.data_dir / "sandboxes" / "bad" / "tmp" / "pid"
    text = attempt("hide_process", file)
    hidden = psutil.Process(int(text.split()[1]))
    assert is_live(hidden)
    assert "changed" not in text
    running_hall.manage("member", "stop", "bad")
    wait_for_status(running_hall, "bad", "disconnected")
    eventually(lambda: not is_live(hidden))


def test_a_member_that_requires_more_than_the_machine_can_enforce_does_not_start(hall: Hall) -> None:
    """The worker believes that this kernel has no Landlock, as a kernel of 2020."""
    site = hall.members_dir.parent / "site"
    site.mkdir()
    # The program that probes the machine does not import this file, so the file changes what the worker believes.
    (site / "sitecustomize.py").write_text(
        "from mcp_runtime.sandbox import capabilities\n"
        "capabilities.probe = lambda: capabilities.Capabilities(0, True, True)\n"
    )
    add(hall, "bad", sandbox="require")
    add(hall, "lenient")
    hall.start(PYTHONPATH=f"{ROOT}{os.pathsep}{site}")
    row = wait_for_status(hall, "bad", "error", within=30)
    assert "its manifest requires the sandbox, and this machine cannot enforce all of it" in row.last_error
    assert "files: it needs Landlock 3" in row.last_error
    assert row.pid is None
    lenient = wait_for_status(hall, "lenient", "connected", within=30)
    assert lenient.node is not None
    assert set(lenient.node.sandbox_gaps) >= {"files", "ports", "signals"}
    assert "sandboxes of members lack the protection of ports here: it needs Landlock 4" in hall.output()


def test_a_member_that_requires_what_the_machine_has_starts(hall: Hall) -> None:
    need(*PROTECTIONS)
    add(hall, "bad", sandbox="require")
    hall.start()
    assert wait_for_status(hall, "bad", "connected", within=30).node.sandbox_gaps == {}  # type: ignore[union-attr]


def test_a_command_that_does_not_exist_is_named(hall: Hall) -> None:
    add(hall, "bad", command="no-such-program", restart="never")
    hall.start()
    assert "command not found: 'no-such-program'" in wait_for_status(hall, "bad", "error", within=30).last_error


# Real programs ----------------------------------------------------------------------------------------------------


def program(name: str) -> str:
    places = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    if not (path := shutil.which(name, path=places)):
        pytest.skip(f"{name} is not installed here")
    return path


def registry_environment() -> dict[str, str]:
    """What leads npm and uv to this machine's registries and certificates. No file of the user is visible to them."""
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")
    prefixes = ("UV_", "NPM_CONFIG_", "npm_config_")
    return {name: value for name, value in os.environ.items() if name in names or name.startswith(prefixes)}


def need_registry(command: list[str], home: Path) -> None:
    """Skip the test if the program cannot fetch its server without a sandbox."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **registry_environment()}
    try:
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip("the registry does not answer")
    if process.returncode:
        pytest.skip(f"the registry cannot be used: {process.stderr[-300:]}")


NODE_SERVER = """
const lines = require('readline').createInterface({input: process.stdin});
const {HOME, TMPDIR} = process.env, fs = require('fs');
fs.writeFileSync(TMPDIR + '/note', 'x');
lines.on('line', (line) => {
  const {id, method, params} = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: {protocolVersion: params && params.protocolVersion, capabilities: {tools: {}},
                 serverInfo: {name: 'node', version: '1'}},
    'tools/list': {tools: [{name: 'memory', inputSchema: {type: 'object'}}]},
    'tools/call': {content: [{type: 'text', text: String(process.memoryUsage().rss > 0)}]},
  };
  console.log(JSON.stringify({jsonrpc: '2.0', id, result: results[method] || {}}));
});
"""


def test_a_python_member_with_the_official_sdk_works_in_a_sandbox(hall: Hall) -> None:
    manifest = python("python_sdk.py")
    folder = add(hall, "sdk", **{**manifest, "args": ["python_sdk.py", *manifest["args"][1:]]})
    shutil.copy(manifest["args"][0], folder / "python_sdk.py")
    hall.start()
    wait_for_status(hall, "sdk", "connected", within=40)
    assert call("sdk", "add", {"a": 2, "b": 3}).result["content"][0]["text"] == "5"


def test_a_node_member_works_in_a_sandbox(hall: Hall) -> None:
    folder = add(hall, "node", transport="stdio", command=program("node"), args=["server.js"])
    (folder / "server.js").write_text(NODE_SERVER)
    hall.start()
    wait_for_status(hall, "node", "connected", within=30)
    assert attempt("memory", "", "node") == "true"


def test_an_npx_member_is_fetched_and_works_in_a_sandbox(hall: Hall, home: Path) -> None:
    package = "@modelcontextprotocol/server-everything"
    need_registry([program("npm"), "view", package, "version"], home)
    add(
        hall,
        "everything",
        transport="stdio",
        command=program("npx"),
        args=["-y", package],
        env=registry_environment(),
        start_timeout=120,
    )
    hall.start(HOME=str(home))
    wait_for_status(hall, "everything", "connected", within=120)
    assert "hello" in text_of("everything", "echo", {"message": "hello"})
    assert list((hall.data_dir / "sandboxes" / "everything" / "home" / ".npm").iterdir())
    assert not (home / ".npm" / "_npx").exists()


def test_a_uvx_member_is_fetched_and_works_in_a_sandbox(hall: Hall, home: Path) -> None:
    need_registry([program("uvx"), "--python", sys.executable, "mcp-server-time", "--help"], home)
    add(
        hall,
        "time",
        transport="stdio",
        command=program("uvx"),
        args=["--python", sys.executable, "mcp-server-time", "--local-timezone", "Europe/Paris"],
        env=registry_environment(),
        start_timeout=120,
    )
    hall.start(HOME=str(home))
    wait_for_status(hall, "time", "connected", within=120)
    assert "Asia/Tokyo" in text_of("time", "get_current_time", {"timezone": "Asia/Tokyo"})
