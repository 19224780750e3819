"""A member of the storm writes each effect to disk before it responds."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.storm.hall import MEMBER
from tests.storm.ledger import read_effects


def responses_and_exit_code(kind: str, ledger: Path, *keys: str) -> tuple[list[dict[str, object]], int]:
    """The responses of a member on stdin and stdout to calls with these keys, and its exit code."""
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
    responses = []
    for call in calls:  # one after the other, because the member ends with its stdin
        process.stdin.write(json.dumps(call) + "\n")
        process.stdin.flush()
        if line := process.stdout.readline():
            responses.append(json.loads(line))
    process.communicate(timeout=10)
    return responses, process.returncode


def key_with(turn: int, of: int) -> str:
    """A key whose checksum selects this turn of the member."""
    return next(key for key in map(str, range(10_000)) if zlib.crc32(key.encode()) % of == turn)


def test_each_call_takes_effect_once_before_it_is_answered(tmp_path: Path) -> None:
    responses, _ = responses_and_exit_code("stdio", tmp_path / "a.ledger", "one", "two", "two")
    assert [response["result"]["content"][0]["text"] for response in responses] == ["one", "two", "two"]  # type: ignore[index]
    assert {key: len(effects_of_key) for key, effects_of_key in read_effects(tmp_path).items()} == {"one": 1, "two": 2}


@pytest.mark.parametrize(("turn", "effects", "code"), [(0, 0, 3), (1, 1, 0)])
def test_a_flaky_member_ends_before_or_after_the_effect(tmp_path: Path, turn: int, effects: int, code: int) -> None:
    responses, exit_code = responses_and_exit_code("flaky", tmp_path / "a.ledger", key_with(turn, 60))
    assert (responses, exit_code, len(read_effects(tmp_path))) == ([], code, effects)


def test_a_lying_member_takes_effect_but_responds_wrongly(tmp_path: Path) -> None:
    responses, _ = responses_and_exit_code(
        "lying", tmp_path / "a.ledger", key_with(0, 8), key_with(1, 8), key_with(7, 8)
    )
    assert responses[0]["id"] == "another"
    assert "result" not in responses[1]
    assert responses[2]["result"]
    assert len(read_effects(tmp_path)) == 3
