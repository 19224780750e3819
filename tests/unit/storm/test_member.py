"""What a member of the storm did is on disk before anybody is told."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.storm.hall import MEMBER
from tests.storm.ledger import read_effects


def asked(kind: str, ledger: Path, *keys: str) -> tuple[list[dict[str, object]], int]:
    """What a member on stdin and stdout answers to calls with such keys, and its exit code."""
    calls = [
        {
            "jsonrpc": "2.0",
            "id": number,
            "method": "tools/call",
            "params": {"name": "effect", "arguments": {"key": key}},
        }
        for number, key in enumerate(keys)
    ]
    process = subprocess.Popen(
        [sys.executable, str(MEMBER), kind, str(ledger)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers = []
    for call in calls:  # one after the other: the end of its stdin is the end of the member
        process.stdin.write(json.dumps(call) + "\n")
        process.stdin.flush()
        if line := process.stdout.readline():
            answers.append(json.loads(line))
    process.communicate(timeout=10)
    return answers, process.returncode


def key_with(turn: int, of: int) -> str:
    """A key that meets what a member does at that turn."""
    return next(key for key in map(str, range(10_000)) if zlib.crc32(key.encode()) % of == turn)


def test_each_call_takes_effect_once_before_it_is_answered(tmp_path: Path) -> None:
    answers, _ = asked("stdio", tmp_path / "a.ledger", "one", "two", "two")
    assert [answer["result"]["content"][0]["text"] for answer in answers] == ["one", "two", "two"]  # type: ignore[index]
    assert {key: len(every) for key, every in read_effects(tmp_path).items()} == {"one": 1, "two": 2}


@pytest.mark.parametrize(("turn", "effects", "code"), [(0, 0, 3), (1, 1, 0)])
def test_a_flaky_member_ends_before_or_after_the_effect(tmp_path: Path, turn: int, effects: int, code: int) -> None:
    answers, ended_with = asked("flaky", tmp_path / "a.ledger", key_with(turn, 60))
    assert (answers, ended_with, len(read_effects(tmp_path))) == ([], code, effects)


def test_a_lying_member_did_what_it_does_not_say(tmp_path: Path) -> None:
    answers, _ = asked("lying", tmp_path / "a.ledger", key_with(0, 8), key_with(1, 8), key_with(7, 8))
    assert answers[0]["id"] == "another"
    assert "result" not in answers[1]
    assert answers[2]["result"]
    assert len(read_effects(tmp_path)) == 3
