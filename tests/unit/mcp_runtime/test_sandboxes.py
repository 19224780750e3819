"""The policy for a member's sandbox: what it lists, and what it never lists. Processes with small policies too."""

from __future__ import annotations

import dataclasses
import errno
import json
import mmap
import os
import resource
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, cast

import pytest
from django.conf import settings

from mcp_runtime.members import sandboxes
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.manifest.declaration import Manifest, ProcessLimits
from mcp_runtime.members.sandboxes import Sandboxes
from mcp_runtime.members.start_options import StartOptions
from mcp_runtime.members.usage import excess, memory_of
from mcp_runtime.protocol.errors import SpawnError
from mcp_runtime.sandbox import landlock, system_calls, variables
from mcp_runtime.sandbox.capabilities import PROTECTIONS, Capabilities, probe
from mcp_runtime.sandbox.command import (
    EXIT_NOT_EXECUTABLE,
    EXIT_NOT_FOUND,
    EXIT_NOT_PROTECTED,
    EXIT_USAGE,
    ISOLATED,
    PROGRAM,
    command_line,
)
from mcp_runtime.sandbox.policy import Policy
from mcp_runtime.system.control_groups import ControlGroups
from mcp_runtime.system.runtime_id import RuntimeId

if os.environ.get("COVERAGE_PROCESS_CONFIG"):
    ISOLATED.clear()  # without the installed packages it could not be measured
MODERN = Capabilities(7, has_filter=True, has_mounts=True)
NOTHING: Policy = {
    "landlock": 0,
    "has_filter": False,
    "read": [],
    "write": [],
    "mounts": [],
    "port": 0,
    "ruleset": -1,
    "limits": {},
    "group": "",
    "temporary": "",
}


def manifest(**values: Any) -> Manifest:
    fields: dict[str, Any] = {"command": sys.executable, "sandbox": "on", **values}
    return Manifest(name="anna", version="1", **fields)


class Place:
    """A home with a key, a data folder and a members folder, and the sandboxes for them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.data, self.members = root / "home", root / "home" / "hall" / "var", root / "members"
        self.folder = self.members / "anna"
        for folder in (self.home / ".ssh", self.home / ".nvm" / "versions", self.data, self.folder / "sub"):
            folder.mkdir(parents=True)
        (self.folder / "link").symlink_to(self.home / ".ssh")
        monkeypatch.setenv("HOME", str(self.home))

    def sandboxes(self, machine: Capabilities = MODERN) -> Sandboxes:
        # Without ports: the ruleset for them needs a kernel.
        return Sandboxes(
            self.data,
            [self.members],
            [],
            dataclasses.replace(machine, landlock=min(machine.landlock, 3)),
            ControlGroups(None),
        )

    def policy(self, **values: Any) -> Policy:
        policy = self.sandboxes().policy(manifest(**values), self.folder, 20_000)
        assert policy is not None
        return policy


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def is_allowed(path: Path, places: list[str]) -> bool:
    return any(path.resolve().is_relative_to(place) for place in places)


# The policy -------------------------------------------------------------------------------------------------------


def test_a_member_without_sandbox_and_limits_has_no_policy(place: Place) -> None:
    assert place.sandboxes().policy(manifest(sandbox="off"), place.folder, 20_000) is None
    assert place.sandboxes().environment(manifest(sandbox="off")) == {}


def test_limits_hold_without_a_sandbox_too(place: Place) -> None:
    limits = ProcessLimits(memory_mb=100, open_files=50, cpu_seconds=60, file_mb=10)
    policy = place.policy(sandbox="off", limits=limits)
    assert {**policy, "limits": {}} == NOTHING
    assert policy["limits"] == {
        "RLIMIT_DATA": 100_000_000,
        "RLIMIT_NOFILE": 50,
        "RLIMIT_CPU": 60,
        "RLIMIT_FSIZE": 10_000_000,
    }


def test_a_member_may_read_programs_and_its_own_folder_and_no_private_place(place: Place) -> None:
    read = place.policy()["read"]
    for path in (
        Path("/usr/bin/env"),
        Path(sys.executable),
        place.folder / "server.py",
        place.home / ".nvm" / "versions",
    ):
        assert is_allowed(path, read), path
    for path in (
        *(place.home / ".ssh", place.home, place.data, place.data / "secret-key", place.members / "berta"),
        *(
            Path("/etc/shadow"),
            Path("/etc/ssh"),
            Path("/root"),
            Path("/tmp"),
            Path("/proc/1/environ"),
            Path("/dev/shm"),
        ),
    ):
        assert not is_allowed(path, read), path


def test_a_private_place_within_a_folder_of_programs_stays_private(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the hall were installed in /opt, with its data folder there."""
    programs = tmp_path / "opt"
    for folder in ("tool", "hall/var", "hall/code", "hall/members"):
        (programs / folder).mkdir(parents=True)
    (programs / "hall" / "link").symlink_to(place.home / ".ssh")
    monkeypatch.setattr(sandboxes, "SYSTEM", (str(programs),))
    halls = Sandboxes(programs / "hall" / "var", [programs / "hall" / "members"], [], Capabilities(3, True, True))
    policy = halls.policy(manifest(), place.folder, 0)
    assert policy is not None
    for folder in ("tool", "hall/code"):
        assert is_allowed(programs / folder, policy["read"])
    for folder in ("hall/var", "hall/members", "hall"):
        assert not is_allowed(programs / folder, policy["read"])
    assert not is_allowed(place.home / ".ssh", policy["read"])


def test_the_keys_of_secrets_and_the_files_with_secrets_are_private_wherever_they_are(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if both were in /opt, which a member may read otherwise."""
    programs = tmp_path / "opt"
    for folder in ("secrets", "keys", "tool"):
        (programs / folder).mkdir(parents=True)
        (programs / folder / "file").write_text("")
    monkeypatch.setattr(sandboxes, "SYSTEM", (str(programs),))
    options = StartOptions(
        **{"hall_id": uuid.uuid4(), "runtime": RuntimeId.own(), "port_range": (1, 2), "max_result_bytes": 1},
        **{"members_dir": place.members, "data_dir": place.data, "secret_files_dir": programs / "secrets"},
        **{"private_paths": [programs / "keys" / "file"]},
    )
    halls = dataclasses.replace(place.sandboxes(), private_paths=options.unreadable_paths)
    policy = halls.policy(manifest(), place.folder, 0)
    assert policy is not None
    assert is_allowed(programs / "tool" / "file", policy["read"])
    for path in (programs / "secrets" / "file", programs / "keys" / "file", place.members / "berta"):
        assert not is_allowed(path, policy["read"]), path
    assert dataclasses.replace(options, secret_files_dir=None).unreadable_paths[0] == place.members
    assert {settings.GUILD_HALL_SECRETS_KEY_FILE, settings.GUILD_HALL_DATA_DIR} <= set(settings.PRIVATE_PLACES)


def test_a_member_may_write_into_its_subfolders_home_and_temporary_folder_and_not_beside_its_manifest(
    place: Place,
) -> None:
    policy = place.policy()
    own = place.data / "sandboxes" / "anna"
    assert set(policy["write"]) - set(sandboxes.DEVICES) == {
        *(str(own / "home"), str(own / "tmp"), str(place.folder / "sub"))
    }
    assert (own / "tmp").stat().st_mode & 0o077 == 0
    environment = place.sandboxes().environment(manifest())
    assert (environment["HOME"], environment["TMPDIR"]) == (str(own / "home"), str(own / "tmp"))


def test_the_virtual_environment_of_the_command_may_be_read(place: Place) -> None:
    environment = place.home / "project" / "venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text("version = 3.12\n")
    (environment / "bin" / "server").write_text("")
    read = place.policy(command=str(environment / "bin" / "server"))["read"]
    assert is_allowed(environment / "lib", read)
    assert not is_allowed(place.home / "project" / "other", read)


@pytest.mark.parametrize("target", ["home/hall/var/local-token", "home/.ssh/x", "members/berta/x", "home/notes/x", "x"])
def test_a_virtual_environment_that_the_member_writes_opens_no_other_place(
    place: Place, tmp_path: Path, target: str
) -> None:
    environment, secret = place.folder / "sub", tmp_path / target
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text("secret")
    (environment / "pyvenv.cfg").write_text(f"home = {secret}/x\n")
    (environment / "bin").mkdir()
    (environment / "bin" / "python").symlink_to(secret)  # the command itself
    (secret.parent / "pyvenv.cfg").write_text("")
    (environment / "link").symlink_to(secret.parent)  # its folder, which looks like a virtual environment
    for command in ("sub/bin/python", str(environment / "bin" / "python"), "sub/link/x", "sub/link/bin/x"):
        read = place.policy(command=command)["read"]
        assert not is_allowed(secret, read), command
        assert is_allowed(environment / "lib", read)


def test_a_command_in_a_private_place_opens_nothing_of_it(place: Place) -> None:
    other = place.members / "berta" / "venv"
    (other / "bin").mkdir(parents=True)
    (other / "pyvenv.cfg").write_text("")
    (other / "bin" / "server").symlink_to(place.home / ".ssh")
    (place.home / "tools").symlink_to(other / "bin")
    for command in (other / "bin" / "server", place.home / "tools" / "server", place.data / "local-token"):
        read = place.policy(command=str(command))["read"]
        for path in (other, place.home / ".ssh", place.data / "local-token", place.home / "tools"):
            assert not is_allowed(path, read), (command, path)


def test_a_data_folder_that_cannot_have_a_home_is_an_error(place: Place) -> None:
    (place.data / "sandboxes").write_text("in the way")
    with pytest.raises(SpawnError, match="its sandbox cannot be prepared"):
        place.policy()


# Control groups ---------------------------------------------------------------------------------------------------


class Groups:
    """Files as those of the kernel: the hall runs in /hall.service/main, and /hall.service was delegated to it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.parent, self.own = root / "cgroup", root / "cgroup" / "hall.service", root / "own"
        (self.parent / "main").mkdir(parents=True)
        (self.parent / "cgroup.controllers").write_text("cpu memory pids\n")
        (self.parent / "cgroup.subtree_control").write_text("")
        self.own.write_text("0::/hall.service/main\n")
        monkeypatch.setattr(os, "getxattr", self.attribute)
        self.delegate = b"1"

    def attribute(self, path: Path, name: str) -> bytes:
        assert path == self.parent
        if name != "user.delegate":
            raise OSError(errno.ENODATA, "no data")
        return self.delegate

    def find(self) -> ControlGroups:
        return ControlGroups.find(self.root, self.own)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    return Groups(tmp_path, monkeypatch)


def test_a_member_with_limits_joins_its_own_group_in_the_delegated_one(groups: Groups, place: Place) -> None:
    (groups.parent / "member-old").mkdir()
    halls = dataclasses.replace(place.sandboxes(), groups=groups.find())
    assert (groups.parent / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert not (groups.parent / "member-old").exists()
    group = groups.parent / "member-anna"
    for sandbox in ("on", "off"):
        policy = halls.policy(
            manifest(sandbox=sandbox, limits=ProcessLimits(memory_mb=50, processes=4)), place.folder, 0
        )
        assert policy is not None
        assert policy["group"] == str(group)
        limits = [(group / name).read_text() for name in ("memory.max", "pids.max", "memory.swap.max")]
        assert limits == ["50000000", str(4 * sandboxes.THREADS_OF_PROCESS), "0"]
    policy = halls.policy(manifest(sandbox="off", limits=ProcessLimits(processes=4)), place.folder, 0)
    assert (group / "memory.max").read_text() == "max"
    assert halls.policy(manifest(sandbox="off", limits=ProcessLimits(file_mb=4)), place.folder, 0)["group"] == ""  # type: ignore[index]


def test_a_group_that_was_not_delegated_is_not_used_even_if_it_belongs_to_the_user(groups: Groups) -> None:
    groups.delegate = b"0"
    assert groups.find() == ControlGroups(None, "no control group was delegated to the hall")
    assert (groups.parent / "cgroup.subtree_control").read_text() == ""


def test_each_reason_for_no_groups_is_a_sentence(groups: Groups, tmp_path: Path) -> None:
    (groups.parent / "cgroup.controllers").write_text("cpu memory")
    assert groups.find().reason == f"its control group {groups.parent} lacks pids"
    (groups.parent / "cgroup.controllers").write_text("memory pids")
    (groups.parent / "cgroup.subtree_control").unlink()
    (groups.parent / "cgroup.subtree_control").mkdir()
    assert groups.find().reason == f"its control group {groups.parent} cannot be used: Is a directory"
    groups.own.write_text("0::/\n")
    assert groups.find().reason == "no control group was delegated to the hall"
    groups.own.write_text("4:memory:/x\n")
    assert groups.find().reason == "this system has no control groups of version 2"
    assert ControlGroups.find(groups.root, tmp_path / "none").parent is None


def test_a_process_joins_its_group_before_the_command_runs(tmp_path: Path) -> None:
    assert run({"group": str(tmp_path)}, "true").returncode == 0
    assert (tmp_path / "cgroup.procs").read_text() == "0"
    assert run({"group": str(tmp_path / "none")}, "true").returncode == EXIT_NOT_PROTECTED


# The machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "gaps"),
    [
        (Capabilities(7, True, True), set()),
        (Capabilities(6, True, True), set()),
        (Capabilities(5, True, True), {"signals"}),
        (Capabilities(3, True, True), {"ports", "signals"}),
        (Capabilities(1, True, True), {"files", "ports", "signals"}),
        (Capabilities(0, True, True), {"files", "ports", "signals"}),
        (Capabilities(7, False, True), {"ports", "signals", "sockets"}),
        (Capabilities(7, True, False), {"attributes"}),
        (Capabilities(0, False, False), set(PROTECTIONS)),
    ],
)
def test_what_a_machine_cannot_enforce_has_a_reason(machine: Capabilities, gaps: set[str]) -> None:
    assert set(machine.gaps) == gaps
    assert all(machine.gaps.values())


def test_a_member_that_requires_the_sandbox_starts_only_on_a_machine_that_has_all_of_it(place: Place) -> None:
    required = manifest(sandbox="require")
    sandboxes.require(required, MODERN)
    with pytest.raises(SpawnError, match=r"cannot enforce all of it\. signals: it needs Landlock 6"):
        sandboxes.require(required, Capabilities(5, True, True))
    sandboxes.require(manifest(), Capabilities(0, False, True))
    with pytest.raises(SpawnError, match="ports: it needs Landlock 4"):
        place.policy(sandbox="require")


def test_a_member_with_a_sandbox_does_not_start_until_the_machine_says_what_it_can_enforce(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Capabilities(0, False, False, fault="the look at what this machine can enforce failed: it took long")
    answers: list[Capabilities] = []
    halls = dataclasses.replace(place.sandboxes(), machine=silent, on_answer=answers.append)
    monkeypatch.setattr("mcp_runtime.sandbox.capabilities.probe", lambda: silent)
    for sandbox in ("on", "require"):
        with pytest.raises(SpawnError, match=r"its manifest has a sandbox, and the look at .* failed: it took long"):
            halls.policy(manifest(sandbox=sandbox), place.folder, 0)
    assert halls.policy(manifest(sandbox="off"), place.folder, 0) is None
    answer = dataclasses.replace(MODERN, landlock=3)
    monkeypatch.setattr("mcp_runtime.sandbox.capabilities.probe", lambda: answer)
    for _ in range(2):
        policy = halls.policy(manifest(), place.folder, 0)
        assert policy is not None
        assert policy["landlock"] == 3
    assert answers == [answer]


def test_each_version_of_landlock_gets_only_the_rights_that_it_knows() -> None:
    assert [landlock.all_rights(version).bit_length() for version in (1, 2, 3, 4, 5, 7)] == [13, 14, 15, 15, 16, 16]


# The filter of system calls ---------------------------------------------------------------------------------------


def run_filter(machine: str, name: str, *arguments: int, architecture: int | None = None, number: int = -1) -> int:
    """The answer of the filter to a call, computed as the kernel does: an errno, or 0 if it is allowed."""
    own_architecture, numbers = system_calls.MACHINES[machine]
    data: dict[int, int] = {
        system_calls.NUMBER: numbers.get(name, 0) if number < 0 else number,
        system_calls.ARCHITECTURE: architecture or own_architecture,
    }
    for index in range(6):
        value = arguments[index] if index < len(arguments) else 0
        data[system_calls.ARGUMENTS + 8 * index] = value & 0xFFFF_FFFF
        data[system_calls.ARGUMENTS + 8 * index + 4] = value >> 32
    program, place, accumulator = system_calls.instructions(machine), 0, 0
    while True:
        code, if_true, if_false, value = program[place]
        place += 1
        if code == system_calls.RETURN:
            return 0 if value == system_calls.ALLOW else value & 0xFFFF
        if code == system_calls.LOAD:
            accumulator = data[value]
        elif code == system_calls.AND:
            accumulator &= value
        else:
            is_true = {
                system_calls.JUMP_EQUAL: accumulator == value,
                system_calls.JUMP_GREATER_EQUAL: accumulator >= value,
                system_calls.JUMP_ANY_BIT: bool(accumulator & value),
            }[code]
            place += if_true if is_true else if_false


@pytest.mark.parametrize("machine", system_calls.MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("socket", (2, 1, 0), 0),
        ("socket", (10, 1, 6), 0),
        ("socket", (16, 3, 0), 0),
        ("socket", (1, 1, 0), errno.EACCES),
        ("socket", (40, 1, 0), errno.EACCES),
        *(("socket", (family, 2, protocol), 0) for family in (2, 10) for protocol in (1, 17, 58)),
        *(("socket", (2, 1, protocol), errno.EPROTONOSUPPORT) for protocol in (132, 255, 256, 262)),
        ("socket", (10, 0x80801, 262), errno.EPROTONOSUPPORT),
        ("socketpair", (1, 1, 0), 0),
        ("socketpair", (1, 0x80001, 0), 0),
        ("socketpair", (1, 2, 0), errno.EACCES),
        ("socketpair", (1, 0x80802, 0), errno.EACCES),
        ("socketpair", (1, 3, 0), errno.EACCES),
        ("socketpair", (1, 0x80803, 0), errno.EACCES),
        ("socketpair", (1, 4, 0), errno.EACCES),
        ("socketpair", (1, 5, 0), 0),
        ("socketpair", (30, 1, 0), errno.EACCES),
        ("setsockopt", (3, 6, 1), 0),
        ("setsockopt", (3, 1, 31), 0),
        ("setsockopt", (3, 6, 31), errno.EPERM),
        ("sendto", (3, 1, 1, 0x4000), 0),
        ("sendto", (3, 1, 1, 0x2000_4000), errno.EOPNOTSUPP),
        ("sendmsg", (3, 1, 0), 0),
        ("sendmsg", (3, 1, 0x2000_0000), errno.EOPNOTSUPP),
        ("sendmmsg", (3, 1, 1, 0x2000_0000), errno.EOPNOTSUPP),
        ("setrlimit", (7, 1), 0),
        ("setrlimit", (15, 1), errno.EPERM),
        ("prlimit64", (0, 15, 0, 1), 0),
        ("prlimit64", (0, 7, 1, 0), 0),
        ("prlimit64", (0, 15, 0x1000, 0), errno.EPERM),
        ("prlimit64", (0, 15, 0x7F00_0000_0000, 0), errno.EPERM),
        ("prlimit64", (99, 7, 0, 1), 0),
        ("prlimit64", (99, 7, 0x1000, 0), errno.EPERM),
        ("prlimit64", (99, 0, 0x7F00_0000_0000, 0), errno.EPERM),
        ("setpriority", (0, 0, 19), 0),
        ("setpriority", (0, 99, 19), errno.EPERM),
        ("setpriority", (1, 0, 19), errno.EPERM),
        ("setpriority", (2, 0, 19), errno.EPERM),
        ("ioprio_set", (1, 0, 3), 0),
        ("ioprio_set", (1, 99, 3), errno.EPERM),
        ("ioprio_set", (3, 0, 3), errno.EPERM),
        ("sched_setaffinity", (0, 8, 1), 0),
        *((name, (99, 8, 1), errno.EPERM) for name in system_calls.ONLY_ITSELF),
        *((name, (), errno.EPERM) for name in system_calls.REFUSED),
    ],
)
def test_the_filter_refuses_only_what_leads_around_the_sandbox(
    machine: str, name: str, arguments: tuple[int, ...], answer: int
) -> None:
    assert run_filter(machine, name, *arguments) == answer


def test_the_filter_allows_other_calls_and_refuses_other_sets_of_numbers() -> None:
    assert run_filter("x86_64", "", number=1) == 0
    assert run_filter("x86_64", "", number=0x4000_0000 + 41) == errno.ENOSYS
    assert run_filter("x86_64", "socket", 1, architecture=0x4000_0003) == errno.EPERM


# The program ------------------------------------------------------------------------------------------------------


def run(policy: dict[str, Any], *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command with this policy. `env` is its environment, and never that of the program."""
    environment = options.pop("env", dict(os.environ))
    with sandboxes.entrance(cast(Policy, {**NOTHING, **policy}), list(argv), environment) as (line, descriptors):
        return subprocess.run(line, capture_output=True, text=True, timeout=30, pass_fds=descriptors, **options)


def python(policy: dict[str, Any], code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return run(policy, sys.executable, "-I", "-S", "-c", code, *argv)  # without coverage, which would write files


def test_the_program_becomes_the_command_with_its_arguments_and_exit_code() -> None:
    process = python({}, "import os, sys; print(sys.argv[1:], os.getpid()); sys.exit(7)", "a b", "--")
    assert process.stdout.startswith("['a b', '--']")
    assert process.returncode == 7


@pytest.mark.skipif("files" in probe().gaps, reason=str(probe().gaps.get("files")))
def test_limits_hold_for_the_command_and_cannot_be_raised_even_by_root() -> None:
    code = (
        "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "try: resource.setrlimit(resource.RLIMIT_CPU, (70, 70)); print('raised')\n"
        "except (ValueError, PermissionError, OSError): print('kept')"
    )
    policy = {"limits": {"RLIMIT_NOFILE": 64, "RLIMIT_CPU": 60}, "landlock": 3, "read": ["/"]}
    assert python(policy, code).stdout.splitlines() == ["(64, 64)", "kept"]


def test_a_limit_above_that_of_the_hall_becomes_that_of_the_hall() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])"
    assert int(python({"limits": {"RLIMIT_NOFILE": hard + 1}}, code).stdout) <= hard


def test_a_command_that_cannot_be_executed_has_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    process = run({}, "no-such-program")
    assert (process.returncode, process.stderr) == (
        EXIT_NOT_FOUND,
        "sandbox: command not found: 'no-such-program'\n",
    )
    (tmp_path / "file").write_text("")
    process = run({}, str(tmp_path / "file"))
    assert process.returncode == EXIT_NOT_EXECUTABLE
    assert "permission denied" in process.stderr
    (tmp_path / "file").chmod(0o755)
    process = run({}, str(tmp_path / "file"))
    assert (process.returncode, "Exec format error" in process.stderr) == (EXIT_NOT_EXECUTABLE, True)


def test_a_wrong_use_of_the_program_is_explained() -> None:
    process = subprocess.run([sys.executable, *ISOLATED, PROGRAM, "{}"], capture_output=True, text=True, timeout=30)
    assert process.returncode == EXIT_USAGE
    assert process.stderr.startswith("sandbox: usage: ")


def test_the_command_does_not_start_if_the_kernel_refuses_a_part_of_the_policy() -> None:
    """A descriptor that is no ruleset, and a kernel that is asked for more than it has."""
    process = python({"landlock": 7, "ruleset": 0}, "print('started')")
    assert (process.returncode, process.stdout) == (EXIT_NOT_PROTECTED, "")
    assert "the command was not started" in process.stderr


def test_the_temporary_folder_is_emptied_without_following_links(tmp_path: Path) -> None:
    temporary, kept = tmp_path / "tmp", tmp_path / "kept"
    (temporary / "folder").mkdir(parents=True)
    (temporary / "folder" / "file").write_text("")
    kept.mkdir()
    (kept / "file").write_text("")
    (temporary / "link").symlink_to(kept)
    assert run({"temporary": str(temporary)}, "true").returncode == 0
    assert list(temporary.iterdir()) == []
    assert (kept / "file").exists()


@pytest.mark.skipif("files" in probe().gaps, reason=str(probe().gaps.get("files")))
def test_an_old_version_of_landlock_protects_files_too(tmp_path: Path) -> None:
    """The rules of Linux 5.13, on a kernel that also knows later ones."""
    (tmp_path / "own").mkdir()
    (tmp_path / "secret").write_text("secret")
    code = (
        "import sys\n"
        "open(sys.argv[1] + '/own/note', 'w').close()\n"
        "try: print(open(sys.argv[1] + '/secret').read())\n"
        "except PermissionError: print('refused')"
    )
    read = ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", sys.prefix, sys.base_prefix]
    for version in (1, 2, 3):
        process = python({"landlock": version, "read": read, "write": [str(tmp_path / "own")]}, code, str(tmp_path))
        assert (process.stdout, process.stderr) == ("refused\n", "")


def test_the_environment_of_a_member_reaches_only_its_command(tmp_path: Path) -> None:
    """The dynamic loader would write its report for every program with these variables."""
    report, server = tmp_path / "report", tmp_path / "only-here"
    server.write_text("#!/bin/sh\necho $$ $LETTER\n")
    server.chmod(0o755)
    environment = {
        **{"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(report), "LETTER": "a=b\udcff\nc"},
        **{"PATH": f"{tmp_path}:{os.defpath}", "EMPTY": ""},
    }
    process = run({"group": str(tmp_path)}, "only-here", env=environment, errors="surrogateescape")
    pid = process.stdout.split()[0]
    assert process.stdout == f"{pid} a=b\udcff c\n"
    if sys.platform == "linux":
        text = Path(f"{report}.{pid}").read_text()
        assert "/bin/sh" in text
        assert "python" not in text


def test_the_file_with_the_variables_is_emptied_for_the_bridge_too() -> None:
    descriptor = variables.write({"TOKEN": "secret", "EMPTY": ""})
    other = os.dup(descriptor)
    assert variables.take(descriptor) == {"TOKEN": "secret", "EMPTY": ""}
    assert os.pread(other, 100, 0) == b""
    os.close(other)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_more_variables_than_a_system_accepts_are_an_error_of_the_start() -> None:
    large = {f"V{number}": "x" * 65_000 for number in range(130)}
    reason = r"its environment cannot be handed over: its variables are larger than 8,000,000 bytes together"
    with pytest.raises(SpawnError, match=reason), sandboxes.entrance(NOTHING, ["true"], large):
        pass


def test_a_policy_is_readable_json() -> None:
    assert json.loads(command_line(NOTHING, 5, ["true"])[-4]) == NOTHING


# Usage ------------------------------------------------------------------------------------------------------------


def live(max_processes: int = 0, max_memory: int = 0) -> LiveMember:
    values: dict[str, Any] = {"client": None, "process": None}
    return LiveMember(1, "anna", 0, endpoint="", max_processes=max_processes, max_memory=max_memory, **values)


@pytest.mark.skipif(sys.platform != "linux", reason="the hall reads /proc")
def test_a_member_exceeds_its_limits_with_all_its_processes_together() -> None:
    assert excess(live(max_processes=2), [1, 2]) == ""
    assert excess(live(max_processes=2), [1, 2, 3]) == "it had 3 processes, and processes in limits allows 2"
    own = memory_of(os.getpid())
    assert own > 1_000_000
    assert excess(live(max_memory=3 * own), [os.getpid()]) == ""
    assert "MB of memory" in excess(live(max_memory=3 * own), [os.getpid()] * 4)
    assert excess(live(), [os.getpid()] * 4) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="the hall reads /proc")
@pytest.mark.parametrize("kind", ["anonymous", "memfd"])
def test_shared_memory_counts_too(kind: str) -> None:
    descriptor = os.memfd_create("block") if kind == "memfd" else -1
    if kind == "memfd":
        os.ftruncate(descriptor, 50_000_000)
    before = memory_of(os.getpid())
    with mmap.mmap(descriptor, 50_000_000) as block:
        block.write(b"x" * 50_000_000)
        assert memory_of(os.getpid()) - before >= 49_000_000
    if kind == "memfd":
        os.close(descriptor)


def test_a_process_that_has_ended_uses_no_memory() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert memory_of(process.pid) == 0


def test_the_number_of_processes_has_a_default_only_in_a_sandbox() -> None:
    assert sandboxes.max_processes(manifest()) == sandboxes.DEFAULT_PROCESSES
    assert sandboxes.max_processes(manifest(sandbox="off")) == 0
    assert sandboxes.max_processes(manifest(sandbox="off", limits=ProcessLimits(processes=5))) == 5
    assert sandboxes.max_memory(manifest(limits=ProcessLimits(memory_mb=20))) == 20_000_000


def test_the_kernel_stops_processes_of_another_user_than_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert sandboxes.process_backstop(manifest()) == {}
    if sys.platform == "linux":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        backstop = sandboxes.process_backstop(manifest(limits=ProcessLimits(processes=5)))["RLIMIT_NPROC"]
        assert backstop > 5 * sandboxes.THREADS_OF_PROCESS
