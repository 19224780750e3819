"""`guildhall prompt` and `guildhall resource`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from mcp_runtime.control.extras import Kind, find_extra
from roster.models import GuildMember
from tests.conftest import eventually
from tests.support.extras import RESOURCES, TEMPLATES, Updates
from tests.support.gateway_world import Member, in_background

TEMPLATE = str(TEMPLATES[0]["uriTemplate"])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*argv: str) -> str:
        call_command(*argv)
        return capsys.readouterr().out

    return run


def test_prompts_and_resources_are_listed_with_their_states(run: Any, listed: GuildMember) -> None:
    assert run("prompt", "disable", "notes", "greet") == "Prompt greet of notes is disabled.\n"
    assert run("prompt", "list", "notes").splitlines() == [
        "PROMPT  STATE     ARGUMENTS      TITLE",
        "trip    enabled   city, season?  Plan a trip",
        "greet   disabled  -",
    ]
    assert run("prompt", "enable", "notes", "greet") == "Prompt greet of notes is enabled.\n"
    assert run("resource", "disable", "notes", TEMPLATE).startswith("Resource template db://{table}/rows{?page} of")
    assert not find_extra(listed, Kind.RESOURCE_TEMPLATE, TEMPLATE).is_enabled
    assert [line.split()[:2] for line in run("resource", "list", "notes").splitlines()[1:]] == [
        ["file:///a.txt", "enabled"],
        ["file:///b.txt", "enabled"],
        [TEMPLATE, "disabled"],
    ]
    found = json.loads(run("resource", "list", "notes", "--search", "second", "--json"))
    assert [each["definition"] for each in found] == [RESOURCES[1]]
    with pytest.raises(CommandError, match="lists no resource template 'x:y'"):
        run("resource", "enable", "notes", "x:y")


def test_a_prompt_is_got_and_completed(run: Any, notes: Member) -> None:
    assert run("prompt", "get", "notes", "trip", '{"city": "Rome"}') == "user: {'city': 'Rome'}\n"
    assert json.loads(run("prompt", "get", "notes", "greet", "--json"))["description"] == "A trip"
    assert run("prompt", "complete", "notes", "trip", "city", "Ro") == "trip\nRo\nNone\n"
    for arguments, sentence in (("[]", "must be a JSON object"), ("{", "are not JSON"), ("{}", "is required")):
        with pytest.raises(CommandError, match=sentence):
            run("prompt", "get", "notes", "trip", arguments)


def test_a_resource_is_read_as_text_and_into_a_file(run: Any, notes: Member, tmp_path: Path) -> None:
    assert run("resource", "read", "notes", "file:///a.txt") == "content of file:///a.txt\n"
    assert run("resource", "read", "notes", TEMPLATE, '{"table": "x"}') == "content of db://x/rows\n"
    path = tmp_path / "a.txt"
    run("resource", "read", "notes", "file:///a.txt", "--output", str(path))
    assert path.read_text() == "content of file:///a.txt"
    with pytest.raises(CommandError, match="File exists"):
        run("resource", "read", "notes", "file:///a.txt", "--output", str(path))
    assert run("resource", "complete", "notes", TEMPLATE, "table").splitlines()[0] == TEMPLATE


def test_an_update_is_printed(run: Any, notes: Member, updates: Updates) -> None:
    is_printed = threading.Event()

    def send_until_printed() -> None:
        """The member has the subscription a moment before the gateway has its answer, and passes updates on."""
        eventually(lambda: notes.messages("resources/subscribe"))
        while not is_printed.wait(0.2):
            updates.send("file:///a.txt")

    with in_background(send_until_printed):
        output = run("resource", "watch", "notes", "file:///a.txt", "--once", "--seconds", "30")
        is_printed.set()
    assert output.endswith(" UTC  updated\n")


def test_a_command_has_the_rights_of_its_user(run: Any, notes: Member) -> None:
    User.objects.create_user("ann")
    with pytest.raises(CommandError, match="needs the permission"):
        run("prompt", "get", "notes", "greet", "--user", "ann")
    with pytest.raises(CommandError, match="no user 'bob'"):
        run("resource", "read", "notes", "file:///a.txt", "--user", "bob")
