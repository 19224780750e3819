"""The rules that the sandbox gives to the kernel, which only records them here. So any machine runs these tests."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from mcp_runtime.sandbox import capabilities, landlock, mounts, program, system_calls, variables
from mcp_runtime.sandbox.capabilities import Capabilities

RULESET = 900  # a descriptor that is never opened


class Kernel:
    """Records calls of the C library. `errors` has the calls that fail, by their names or numbers."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.errors: set[object] = set()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.record(name, *arguments)

    def record(self, name: str, *arguments: Any) -> int:
        values = [getattr(argument, "value", argument) for argument in arguments]
        key, values = (values[0], values[1:]) if name == "syscall" else (name, values)
        self.calls.append((key, *values))
        if key in self.errors:
            return -1
        return RULESET if key == landlock.CREATE_RULESET else 0

    def of(self, key: object) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == key]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(landlock, "libc", lambda: kernel)
    monkeypatch.setattr(mounts, "libc", lambda: kernel)
    real_close = os.close
    monkeypatch.setattr(os, "close", lambda number: None if number == RULESET else real_close(number))
    return kernel


def path_rules(kernel: Kernel) -> list[int]:
    """The rights of the rules for files, in their order."""
    rules = [call for call in kernel.of(landlock.ADD_RULE) if call[1] == landlock.PATH_BENEATH]
    return [int(struct.unpack("=Qi", call[2])[0]) for call in rules]


def port_rules(kernel: Kernel) -> dict[int, int]:
    """The rights of the rules for ports, by port."""
    rules = [call for call in kernel.of(landlock.ADD_RULE) if call[1] == landlock.NET_PORT]
    return {port: rights for rights, port in (struct.unpack("=QQ", call[2]) for call in rules)}


def test_files_and_folders_get_the_rights_that_fit_them(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    read = [str(tmp_path), str(tmp_path / "file"), str(tmp_path / "missing")]
    landlock.restrict_self(7, read, [str(tmp_path), str(tmp_path / "link")], 20_000)
    folder_rights, file_rights, write_rights = path_rules(kernel)
    assert folder_rights == landlock.READ
    assert file_rights == landlock.READ & landlock.FILE_RIGHTS
    assert write_rights == landlock.all_rights(7) & ~(landlock.MAKE_CHAR | landlock.MAKE_BLOCK)
    assert port_rules(kernel) == {0: landlock.BIND_TCP, 20_000: landlock.BIND_TCP}
    ((attributes, size, _),) = kernel.of(landlock.CREATE_RULESET)
    assert struct.unpack("=QQQ", attributes) == (landlock.all_rights(7), landlock.BIND_TCP, landlock.SCOPES)
    assert size == 24
    assert kernel.of("prctl") == [(landlock.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)]
    assert kernel.of(landlock.RESTRICT_SELF) == [(RULESET, 0)]


@pytest.mark.parametrize(("version", "size", "ports"), [(1, 8, 0), (3, 8, 0), (4, 16, 2), (5, 16, 2), (6, 24, 2)])
def test_an_older_kernel_gets_no_rules_that_it_does_not_know(
    kernel: Kernel, version: int, size: int, ports: int
) -> None:
    landlock.restrict_self(version, ["/"], [], 20_000)
    assert kernel.of(landlock.CREATE_RULESET)[0][1] == size
    assert len(port_rules(kernel)) == ports


def test_all_ports_except_the_refused_ones_are_allowed_for_connections(kernel: Kernel) -> None:
    assert landlock.create_port_ruleset([(20_000, 30_000), (8000, 8000)]) == RULESET
    allowed = port_rules(kernel)
    assert len(allowed) == landlock.PORTS - 10_001 - 1
    assert not {8000, 20_000, 25_000, 30_000} & set(allowed)
    assert {1, 443, 19_999, 30_001, 65_535} <= set(allowed)
    assert set(allowed.values()) == {landlock.CONNECT_TCP}
    assert path_rules(kernel) == [landlock.REFER]  # or files could not be moved between folders


@pytest.mark.parametrize("call", [landlock.CREATE_RULESET, landlock.ADD_RULE, landlock.RESTRICT_SELF, "prctl"])
def test_a_rule_that_the_kernel_refuses_is_an_error(kernel: Kernel, call: object) -> None:
    kernel.errors.add(call)
    with pytest.raises(OSError, match=r"^(landlock_|no_new_privs|/: )|\] (landlock_|no_new_privs|/: )"):
        landlock.restrict_self(7, ["/"], [], 20_000)
    kernel.errors.add(landlock.ADD_RULE)
    with pytest.raises(OSError, match=r"landlock_create_ruleset|/: "):
        landlock.create_port_ruleset([])


def test_a_kernel_without_landlock_has_version_0(kernel: Kernel) -> None:
    kernel.errors.add(landlock.CREATE_RULESET)
    assert landlock.version() == 0


def test_root_sees_all_folders_as_read_only_except_its_own(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    mounts.restrict_self([str(tmp_path)])
    own = os.fsencode(tmp_path)
    assert kernel.of("unshare") == [(mounts.CLONE_NEWNS,)]
    assert [call[:2] for call in kernel.of("mount")] == [(None, b"/"), (own, own)]
    changes = [(path, flags, struct.unpack("=QQQQ", values)[:2]) for _, path, flags, values, _ in kernel.of(442)]
    assert changes == [(b"/", mounts.AT_RECURSIVE, (1, 0)), (own, 0, (0, 1))]


def test_a_view_that_the_system_refuses_is_an_error(kernel: Kernel) -> None:
    kernel.errors.add("unshare")
    with pytest.raises(OSError, match="unshare"):
        mounts.restrict_self([])


# The program, within this process ---------------------------------------------------------------------------------


def policy(**values: Any) -> str:
    nothing = {"landlock": 0, "has_filter": False, "read": [], "write": [], "mounts": [], "port": 0, "ruleset": -1}
    return json.dumps({**nothing, "limits": {}, "group": "", "temporary": "", **values})


def file_of_variables() -> str:
    return str(variables.write({"PATH": os.defpath}))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order in which the program applies the parts of a policy, which are not applied here."""
    steps: list[str] = []

    def note(name: str) -> Any:
        return lambda *_: steps.append(name)

    monkeypatch.setattr(program.mounts, "restrict_self", note("mounts"))
    monkeypatch.setattr(program, "drop_capabilities", note("capabilities"))
    monkeypatch.setattr(program.landlock, "restrict_self", note("landlock"))
    monkeypatch.setattr(program.landlock, "enforce", note("ports"))
    monkeypatch.setattr(program.system_calls, "restrict_self", note("filter"))
    monkeypatch.setattr(program, "empty_folder", note("temporary"))
    monkeypatch.setattr(program, "set_limit", note("limit"))
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "execvpe", note("command"))
    return steps


def test_the_command_starts_after_all_parts_of_the_policy(steps: list[str], tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    text = policy(
        landlock=7,
        has_filter=True,
        mounts=["/own"],
        ruleset=write_end,
        limits={"RLIMIT_NOFILE": 9},
        temporary="/own/tmp",
        group=str(tmp_path),
    )
    program.main([text, file_of_variables(), "--", "server"])
    assert steps == ["limit", "mounts", "capabilities", "landlock", "ports", "filter", "temporary", "command"]
    assert (tmp_path / "cgroup.procs").read_text() == "0"
    assert os.read(read_end, 1) == b""  # the descriptor of the ruleset is closed before the command runs
    os.close(read_end)


def test_without_landlock_root_loses_its_capabilities_too(steps: list[str]) -> None:
    program.main([policy(mounts=["/own"], has_filter=True), file_of_variables(), "--", "server"])
    assert steps == ["mounts", "capabilities", "filter", "command"]


def test_the_filter_is_given_to_the_kernel_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(system_calls.ctypes, "CDLL", lambda *_, **__: kernel)
    monkeypatch.setattr(os, "uname", lambda: type("Uname", (), {"machine": "x86_64"}))
    system_calls.restrict_self()
    (_, (option, mode, header, *_rest)) = kernel.of("prctl")
    assert (option, mode) == (system_calls.PR_SET_SECCOMP, system_calls.MODE_FILTER)
    assert struct.unpack("@HP", header)[0] == len(system_calls.instructions("x86_64"))
    kernel.errors.add("prctl")
    with pytest.raises(OSError, match="the filter of system calls"):
        system_calls.restrict_self()


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (FileNotFoundError(), 127, "sandbox: command not found: 'server'\n"),
        (NotADirectoryError(), 127, "sandbox: command not found: 'server'\n"),
        (PermissionError(), 126, "sandbox: permission denied: 'server' is not executable, or the sandbox"),
        (OSError(8, "Exec format error"), 126, "sandbox: command 'server' cannot be started: Exec format error\n"),
    ],
)
def test_a_command_that_cannot_start_has_its_own_message(
    steps: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: OSError,
    code: int,
    text: str,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "execvpe", fail)
    assert program.main([policy(), file_of_variables(), "--", "server"]) == code
    assert capsys.readouterr().err.startswith(text)


def test_a_part_that_fails_prevents_the_start(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(1, "not permitted")

    monkeypatch.setattr(program.system_calls, "restrict_self", fail)
    assert program.main([policy(has_filter=True), file_of_variables(), "--", "server"]) == 71
    assert "command" not in steps
    assert program.main(["nonsense"]) == 64


def test_root_keeps_only_what_is_about_files(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[int] = []

    def prctl(option: int, number: int, *_: int) -> int:
        if option == program.PR_CAPBSET_DROP:
            dropped.append(number)
            return 0
        return -1 if number == 41 else int(number != 5)  # 5 was dropped before

    library = type("Library", (), {"prctl": staticmethod(prctl)})
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: library)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program.drop_capabilities()
    assert dropped == [number for number in range(41) if number not in {*program.KEPT_CAPABILITIES, 5}]
    dropped.clear()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program.drop_capabilities()
    assert dropped == []


def test_the_probe_reports_each_part(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program.sys, "platform", "linux")
    monkeypatch.setattr(system_calls, "is_available", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert program.main(["--probe"]) == 0
    assert json.loads(capsys.readouterr().out) == {"landlock": RULESET, "has_filter": True, "has_mounts": True}
    kernel.errors.add("unshare")
    program.main(["--probe"])
    assert json.loads(capsys.readouterr().out)["has_mounts"] is False


ANSWER = '{"landlock": 7, "has_filter": true, "has_mounts": true}'


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["no-such-program"], "No such file or directory"),
        (["echo", "{}"], "the program for it gave an unreadable answer"),
        (["sleep", "60"], "it took longer than 0.05 s"),
        (["sh", "-c", "echo oops >&2; exit 3"], "the program for it ended with 3, 'oops'"),
    ],
)
def test_a_machine_that_gives_no_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, command: list[str], reason: str
) -> None:
    monkeypatch.setattr(capabilities.sys, "platform", "linux")
    machine = capabilities.Machine()
    monkeypatch.setattr(capabilities, "PROBE", command)
    monkeypatch.setattr(capabilities, "PROBE_SECONDS", 0.05 if command[0] == "sleep" else 20)
    fault = f"the look at what this machine can enforce failed: {reason}"
    assert machine.probe() == Capabilities(0, has_filter=False, has_mounts=False, fault=fault)
    assert machine.probe().gaps == dict.fromkeys(capabilities.PROTECTIONS, fault)
    monkeypatch.setattr(capabilities, "PROBE", ["echo", ANSWER])
    monkeypatch.setattr(capabilities, "PROBE_SECONDS", 20)
    assert machine.probe().fault == fault  # not so soon
    monkeypatch.setattr(machine, "next_try", 0.0)
    assert machine.probe() == Capabilities(7, has_filter=True, has_mounts=True)
    monkeypatch.setattr(capabilities, "PROBE", ["no-such-program"])
    assert machine.probe() == Capabilities(7, has_filter=True, has_mounts=True)


def test_another_system_than_linux_needs_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities.sys, "platform", "darwin")
    monkeypatch.setattr(capabilities, "PROBE", ["no-such-program"])
    assert capabilities.Machine().probe() == Capabilities(0, has_filter=False, has_mounts=False)


def test_the_temporary_folder_is_emptied_and_a_file_that_stays_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    program.empty_folder(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    program.empty_folder(str(tmp_path))
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(os, "unlink", lambda _: os.rmdir("/"))
    program.empty_folder(str(tmp_path))
    assert (tmp_path / "file").exists()


def test_a_limit_is_never_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(program.resource, "getrlimit", lambda _: (10, 100))
    monkeypatch.setattr(program.resource, "setrlimit", lambda _, pair: limits.append(pair))
    program.set_limit(1, 50)
    program.set_limit(1, 500)
    monkeypatch.setattr(program.resource, "getrlimit", lambda _: (10, program.resource.RLIM_INFINITY))
    program.set_limit(1, 500)
    assert limits == [(50, 50), (100, 100), (500, 500)]
