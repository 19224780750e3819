"""Why a member does not run and what to do: for each cause that the runtime knows, in its own words."""

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

SOON = datetime(2026, 11, 21, tzinfo=UTC)


def of(status: str = "error", error: object = "", tail: str = "", **facts: Any) -> Diagnosis | None:
    sentence = f"member 'weather' could not be started: {error}" if error else ""
    last_error = f"{sentence}{TAIL_MARK}{tail}" if tail else sentence
    return diagnose(Facts("weather", "far/weather", status, last_error=last_error, **facts))


def certain(*arguments: Any, **facts: Any) -> Diagnosis:
    found = of(*arguments, **facts)
    assert found is not None
    return found


@pytest.mark.parametrize("status", ["connected", "starting", "stopping"])
def test_what_runs_or_is_about_to_needs_no_explanation(status: str) -> None:
    assert of(status) is None


@pytest.mark.parametrize(
    ("fault", "cause", "remedy"),
    [
        ("command: is required", "guild-member.json: command is required.", "Fix command in far/"),
        ("args.1: must be a string", "guild-member.json: args.1 must be a string.", "Fix args.1 in far/"),
        ("not JSON: line 3", "guild-member.json: not JSON: line 3.", "Fix far/weather/guild-member.json."),
    ],
)
def test_a_manifest_that_cannot_be_used_is_named_with_its_key(fault: str, cause: str, remedy: str) -> None:
    found = certain(manifest_error=f"far/weather/guild-member.json: {fault}")
    assert found.cause == cause
    assert found.remedy.startswith(remedy)
    assert "within a second" in found.remedy


def test_a_member_that_runs_on_with_the_manifest_before_says_so() -> None:
    assert "it runs on" in certain("connected", manifest_error="far/weather/guild-member.json: not JSON").remedy


def test_a_faulty_manifest_is_told_without_a_runtime_too() -> None:
    assert certain("error", manifest_error="x", runtime_is_alive=False).cause == "guild-member.json: x."


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("command not found: 'uvx'", "Install uvx, or give its full path as command in far/weather/guild-member.json."),
        ("permission denied: './run' is not executable", "chmod +x ./run"),
        ("its folder /x/weather is gone", "Put the folder far/weather back."),
        (NoFreePortError(20000, 20001), "GUILD_HALL_PORT_RANGE"),
        (NotListeningError(5), "${PORT} in args or env"),
        (StartTimeoutError(5, "no complete answer within 5 s"), "does not answer initialize"),
        ("tools/list failed: not an object", "Fix its tools/list"),
        ("headers.Authorization: environment variable KEY is not set", "Put the secret where headers in"),
        (HttpStatusError(401), "look at headers in"),
        (HttpStatusError(404), "Nothing is served at that path"),
        (ExitedEarlyError(0), "a server runs until it is stopped"),
        (ExitedEarlyError(-9), "memory ran out"),
        (ExitedEarlyError(3), "Restart it."),
    ],
)
def test_each_cause_has_advice_of_its_own(error: object, remedy: str) -> None:
    assert remedy in certain("error", error).remedy


@pytest.mark.parametrize(
    ("tail", "remedy"),
    [
        ("Traceback\nModuleNotFoundError: No module named 'httpx2.core'", "Install the Python module httpx2.core"),
        ("Error: Cannot find module 'express'\nRequire stack:", "Install the package express, with npm install in"),
        ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported", "Install the package zod"),
        ("OSError: [Errno 98] Address already in use", "listens on a port that another program has"),
        ("python3: can't open file '/x/server.py': [Errno 2]", "there is no /x/server.py"),
        ("  File 'x', line 3\nSyntaxError: invalid syntax", "Fix the line that its log names"),
        ("something else", "Read its log"),
    ],
)
def test_what_the_member_wrote_last_says_more_than_its_exit_code(tail: str, remedy: str) -> None:
    found = certain("error", ExitedEarlyError(1), tail)
    assert remedy in found.remedy
    assert found.cause == "Ended with exit code 1 before the handshake was done."
    assert found.last_words == tail.splitlines()[-1].strip()
    assert found.log_helps


def test_an_exit_that_nobody_asked_for_is_told_without_the_members_name() -> None:
    sentence = "member 'weather' exited without being asked, with signal SIGSEGV"
    found = diagnose(Facts("weather", "weather", "error", last_error=sentence))
    assert found is not None
    assert found.cause == "Exited without being asked, with signal SIGSEGV."


def test_whether_it_is_tried_again_is_said() -> None:
    assert "does not try again automatically" in certain("error", ExitedEarlyError(1)).remedy
    assert "not tried again" not in certain("error", ExitedEarlyError(1), next_restart_at=SOON).remedy


def test_a_disabled_and_a_stopped_member_say_how_to_have_them_back() -> None:
    assert "Enable it" in certain("disconnected", enabled=False).remedy
    assert "Start it" in certain("disconnected", should_run=False).remedy
    assert of("disconnected") is None


def test_without_a_runtime_the_banner_explains_all() -> None:
    assert of("disconnected", ExitedEarlyError(1), runtime_is_alive=False, should_run=False) is None


def test_members_words_stay_one_bounded_line_without_colours() -> None:
    found = certain("error", "x" * 5000, "\x1b[31mred\x1b[0m " + "y" * 5000)
    assert max(map(len, [found.cause, found.remedy, found.last_words])) <= MAX_LINE + 1
    assert found.last_words.startswith("red y")


def test_words_that_look_like_placeholders_are_told_as_they_are() -> None:
    assert "Install {file}{0}, or" in certain("error", "command not found: '{file}{0}'").remedy
