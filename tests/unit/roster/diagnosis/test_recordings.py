"""What the hall says about faults of real servers. Each recording in tests/support/faults/outputs says how it was made.

`python -m tests.support.faults.collect` makes them again.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from roster.diagnosis import MAX_LINE, Diagnosis, Facts, diagnose
from roster.models import GuildMember
from tests.support.faults import OUTPUTS, Recording, local, remote

NAME = "weather"
FOLDER = "far/weather"
FILE = f"{FOLDER}/guild-member.json"
RESTART_TIME = datetime(2026, 11, 26, tzinfo=UTC)

# By recording: the line of output on the card, the beginning of the advice, and the key that the editor opens.
EXPECTED: dict[str, tuple[str, str, str]] = json.loads((Path(__file__).parent / "expected.json").read_text("utf-8"))
# Where the sentence of the runtime says less than the diagnosis, or is about the fault itself.
CAUSES = {
    "answer_without_newline": "Its answer on stdout has no newline at its end, so it is not complete.",
    "banner_on_stdout": "It writes to stdout what is no message of MCP (1 line), and did not answer initialize.",
    "command_not_found": "Command not found: 'bun'.",
    "content_length_framing": "It frames its messages on stdout in another way than MCP (1 line), and did not answer",
    "log_lines_on_stdout": "It writes to stdout what is no message of MCP (11 lines), and did not answer initialize.",
    "no_shebang": "'./server.py' has no first line that names its interpreter, such as #!/usr/bin/env python3.",
    "not_mcp_over_http": "Answered with HTTP status 501: a web page with the title 'Error response'.",
    "port_ignored": "Nothing listened on its port within 3 s of its start; it listens on port",
    "prompt_on_stdout": "It writes to stdout what is no message of MCP, and did not answer initialize.",
    "python_not_found": "Command not found: 'python'; did you mean 'python3'?",
    "python_not_found_over_http": "Command not found: 'python'; did you mean 'python3'?",
    "remote_login": "answered with text/html instead of JSON: a web page with the title 'Sign in · Example'.",
    "remote_refused": "Could not be reached at http://127.0.0.1:9/mcp: connection refused.",
    "windows_line_ends": "its lines end with CR and LF, as on Windows.",
}


def diagnosis_of(name: str, *, sees_manifest: bool = True, sees_log: bool = True) -> Diagnosis:
    """The diagnosis of a recording, as if its member had another name."""
    recording = Recording.read(name)
    own_name, manifest = name.replace("_", "-"), recording.manifest if sees_manifest else {}
    last_error = recording.last_error if sees_log else recording.last_error.partition(GuildMember.TAIL_MARK)[0]
    diagnosis = diagnose(
        Facts(
            NAME,
            FOLDER,
            "error",
            last_error=last_error.replace(f"/{own_name}/", f"/{FOLDER}/").replace(f"'{own_name}'", f"'{NAME}'"),
            next_restart_at=RESTART_TIME,
            command=manifest.get("command", ""),
            transport=manifest.get("transport", "stdio") if manifest else "",
            url=manifest.get("url", ""),
            sandbox=manifest.get("sandbox", ""),
        )
    )
    assert diagnosis is not None
    return diagnosis


def test_each_fault_has_a_recording_and_each_recording_a_diagnosis() -> None:
    names = {path.stem for path in OUTPUTS.glob("*.txt")}
    assert names == {*local.ALL, *remote.ALL} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_advice_names_what_to_do_about_a_real_fault(name: str) -> None:
    words, remedy, key = EXPECTED[name]
    diagnosis = diagnosis_of(name)
    filled = remedy.replace("<file>", FILE).replace("<folder>", FOLDER).replace("<name>", NAME)
    assert diagnosis.remedy.startswith(filled), diagnosis
    assert diagnosis.last_words.startswith(words)
    assert bool(diagnosis.last_words) is bool(words)
    assert diagnosis.key == key
    assert CAUSES.get(name, "") in diagnosis.cause
    assert diagnosis.remedy.count("`") % 2 == 0
    assert "{" not in diagnosis.remedy.replace("${", "")


@pytest.mark.parametrize("name", EXPECTED)
def test_every_diagnosis_is_short_and_without_marks_of_html_or_traces(name: str) -> None:
    diagnosis = diagnosis_of(name)
    assert max(map(len, (diagnosis.cause, diagnosis.remedy, diagnosis.last_words))) <= MAX_LINE
    assert diagnosis.cause
    assert not any(mark in diagnosis.cause for mark in ("<html", "<!DOCTYPE", "Traceback", "A complete log"))
    assert "A complete log" not in diagnosis.last_words


@pytest.mark.parametrize("name", EXPECTED)
def test_who_may_not_see_log_and_manifest_gets_a_diagnosis_without_them(name: str) -> None:
    diagnosis = diagnosis_of(name, sees_manifest=False, sees_log=False)
    assert (diagnosis.last_words, diagnosis.log_helps) == ("", False)
    sentence, _, tail = Recording.read(name).last_error.partition(GuildMember.TAIL_MARK)
    own_words = {word for line in tail.splitlines() for word in line.split("'")[1::2] if len(word) > 3}
    assert not [word for word in own_words if word in diagnosis.remedy and word not in sentence]
