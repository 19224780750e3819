"""Why a member does not run and what to do, for each cause that the runtime knows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mcp_runtime.protocol.errors import (
    ExitedEarlyError,
    HttpStatusError,
    NoFreePortError,
    NotListeningError,
    StartTimeoutError,
)
from roster.diagnosis import MAX_LINE, TAIL_MARK, Diagnosis, Facts, diagnose

RESTART_TIME = datetime(2026, 11, 21, tzinfo=UTC)


def diagnosis_of(status: str = "error", error: object = "", tail: str = "", **facts: Any) -> Diagnosis | None:
    sentence = f"member 'weather' could not be started: {error}" if error else ""
    last_error = f"{sentence}{TAIL_MARK}{tail}" if tail else sentence
    return diagnose(Facts("weather", "far/weather", status, last_error=last_error, **facts))


def existing_diagnosis(*arguments: Any, **facts: Any) -> Diagnosis:
    diagnosis = diagnosis_of(*arguments, **facts)
    assert diagnosis is not None
    return diagnosis


@pytest.mark.parametrize("status", ["connected", "starting", "stopping"])
def test_a_running_or_changing_member_has_no_diagnosis(status: str) -> None:
    assert diagnosis_of(status) is None


@pytest.mark.parametrize(
    ("fault", "cause", "remedy"),
    [
        ("command: is required", "guild-member.json: command is required.", "Fix command in far/"),
        ("args.1: must be a string", "guild-member.json: args.1 must be a string.", "Fix args.1 in far/"),
        ("not JSON: line 3", "guild-member.json: not JSON: line 3.", "Fix far/weather/guild-member.json."),
    ],
)
def test_the_diagnosis_of_an_invalid_manifest_names_the_key(fault: str, cause: str, remedy: str) -> None:
    diagnosis = existing_diagnosis(manifest_error=f"far/weather/guild-member.json: {fault}")
    assert diagnosis.cause == cause
    assert diagnosis.remedy.startswith(remedy)
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
        ("command not found: 'uvx'", "Install uvx, or give its full path as command in far/weather/guild-member.json."),
        ("permission denied: './run' is not executable", "chmod +x ./run"),
        (
            "its manifest requires the sandbox, and this machine",
            "or set sandbox to on in far/weather/guild-member.json",
        ),
        ("was ended: it had 9 processes, and processes in limits allows 5", "or raise limits in far/weather"),
        ("its folder /x/weather is gone", "Put the folder far/weather back."),
        (NoFreePortError(20000, 20001), "GUILD_HALL_PORT_RANGE"),
        (NotListeningError(5), "${PORT} in args or env"),
        (StartTimeoutError(5, "no complete answer within 5 s"), "does not answer initialize"),
        ("tools/list failed: not an object", "Fix its tools/list"),
        ("headers.Authorization: environment variable KEY is not set", "Put the secret where"),
        (HttpStatusError(401), "look at headers in"),
        (HttpStatusError(404), "Nothing is served at that path"),
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
        ("Traceback\nModuleNotFoundError: No module named 'httpx2.core'", "Install the Python module httpx2.core"),
        ("Error: Cannot find module 'express'\nRequire stack:", "Install the package express, with npm install in"),
        ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported", "Install the package zod"),
        ("OSError: [Errno 98] Address already in use", "listens on a port that another program has"),
        ("sandbox: command not found: 'uvx'", "Install uvx, or give its full path"),
        ("bridge: command not found: 'npx'", "Install npx, or give its full path"),
        (
            "Error: EACCES: permission denied, open '/home/x'",
            "put what it needs into its folder, or set sandbox to off",
        ),
        ("python3: can't open file '/x/server.py': [Errno 13] Permission denied", "turns its sandbox on"),
        ("python3: can't open file '/x/server.py': [Errno 2]", "there is no /x/server.py"),
        ("  File 'x', line 3\nSyntaxError: invalid syntax", "Fix the line that its log names"),
        ("something else", "Read its log"),
    ],
)
def test_the_last_output_of_a_member_decides_the_advice(tail: str, remedy: str) -> None:
    diagnosis = existing_diagnosis("error", ExitedEarlyError(1), tail)
    assert remedy in diagnosis.remedy
    assert diagnosis.cause == "Ended with exit code 1 before the handshake was done."
    assert diagnosis.last_words == tail.splitlines()[-1].strip()
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
    assert diagnosis.remedy.endswith("manage.py remove_node b")


def test_the_text_of_a_diagnosis_is_one_short_line_without_colours() -> None:
    diagnosis = existing_diagnosis("error", "x" * 5000, "\x1b[31mred\x1b[0m " + "y" * 5000)
    assert max(map(len, [diagnosis.cause, diagnosis.remedy, diagnosis.last_words])) <= MAX_LINE + 1
    assert diagnosis.last_words.startswith("red y")


def test_text_that_looks_like_a_placeholder_is_not_changed() -> None:
    assert "Install {file}{0}, or" in existing_diagnosis("error", "command not found: '{file}{0}'").remedy
