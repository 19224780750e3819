from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from roster.models import GuildMember, ManifestEdit

pytestmark = pytest.mark.django_db

MANIFEST = {"name": "notes", "version": "1", "transport": "stdio", "command": "serve", "args": ["a"], "env": {"A": "1"}}


@pytest.fixture(autouse=True)
def notes() -> GuildMember:
    return GuildMember.objects.create(name="notes", directory="notes", manifest=MANIFEST)


def run(*argv: str) -> str:
    output = io.StringIO()
    call_command("edit_member", *argv, stdout=output, stderr=output)
    return output.getvalue()


def run_json(*argv: str) -> Any:
    output = io.StringIO()
    call_command("edit_member", *argv, "--json", stdout=output, stderr=io.StringIO())
    return json.loads(output.getvalue())


def test_an_edit_is_proposed_approved_and_discarded() -> None:
    assert "Nobody has edited notes" in run("notes")
    text = run("notes", "--set", "timeout=60", "--set", "env.B=2", "--unset", "env.A", "--set", 'args=["b", "c"]')
    edit = ManifestEdit.objects.get()
    assert f"Edit {edit.pk} of notes, proposed" in text
    assert all(line in text.splitlines() for line in ("    +60", "    -30.0 (default)", '    -"a"', '    +"b"'))
    assert f"guildhall edit_member notes --approve {edit.pk}" in text
    text = run("notes", "--approve", str(edit.pk))
    assert "approved" in text
    assert "no runtime" in text.lower()
    assert run_json("notes")[0]["state"] == "approved"
    assert "is discarded" in run("notes", "--discard", str(edit.pk))
    assert run_json("notes") == []


def test_values_are_approved_at_once() -> None:
    facts = run_json("notes", "--set", "timeout=60", "--approve")
    assert (facts["state"], facts["changes"][0]["after"]) == ("approved", 60)


def test_an_edit_is_taken_back() -> None:
    edit = run_json("notes", "--set", "timeout=60", "--approve")
    ManifestEdit.objects.update(nodes={"main": ""})
    GuildMember.objects.update(manifest={**MANIFEST, "timeout": 60.0})
    assert f"--undo {edit['id']}" in run("notes")
    assert run_json("notes", "--undo", str(edit["id"]))["undoes"] == edit["id"]


def test_a_patch_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "patch.json").write_text('{"limits": {"memory_mb": 300}, "env": {"A": null}}')
    facts = run_json("notes", "--patch", str(tmp_path / "patch.json"), "--set", "limits.processes=5")
    assert {change["key"]: change["after"] for change in facts["changes"]} == {
        **{"limits.memory_mb": 300, "limits.processes": 5, "env.A": None},
    }


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--set", "timeout"], "KEY=VALUE"),
        (["--set", "timeout=soon"], "timeout: must be seconds"),
        (["--set", "nothing=1"], "nothing: is not a key"),
        (["--set", "timeout=5", "--set", "timeout.x=2"], "timeout is set as a whole"),
        (["--approve"], "--approve needs the number"),
        (["--undo", "7"], "there is no edit with the number 7"),
        (["--set", "timeout=5", "--undo", "7"], "without the number"),
        (["--patch", "/nowhere/patch.json"], "cannot be read"),
        (["--patch", "{bad}"], "not JSON"),
        (["--patch", "{list}"], "must be a JSON object"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, argv: list[str], reason: str) -> None:
    (tmp_path / "bad").write_text("{")
    (tmp_path / "list").write_text("[]")
    paths = {"bad": tmp_path / "bad", "list": tmp_path / "list"}
    with pytest.raises(CommandError, match=reason):
        run("notes", *(argument.format(**paths) if "{" in argument else argument for argument in argv))
    assert ManifestEdit.objects.count() == 0


def test_an_edit_of_another_member_is_refused() -> None:
    GuildMember.objects.create(name="other", directory="other", manifest={**MANIFEST, "name": "other"})
    edit = run_json("notes", "--set", "timeout=60")
    with pytest.raises(CommandError, match="of another member"):
        run("other", "--approve", str(edit["id"]))
