from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from roster.models import MemberProposal, Secret
from tests.support.bundles import bundle, manifest, server

pytestmark = pytest.mark.django_db

CANARY = "canary-4711-abc"
TEXT = json.dumps({"mcpServers": {"notes": {"command": "serve", "args": ["a b"], "env": {"API_KEY": CANARY}}}})


@pytest.fixture(autouse=True)
def key_path(settings: Any, tmp_path: Path) -> None:
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"


def run(*argv: str) -> str:
    output = io.StringIO()
    call_command("add_member", *argv, stdout=output)
    return output.getvalue()


def test_a_file_is_proposed_and_shown_before_the_approval(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(TEXT)
    text = run(str(tmp_path / "mcp.json"))
    row = MemberProposal.objects.get()
    for part in ("serve 'a b'", "API_KEY=${secret:notes-API_KEY}", "notes/guild-member.json", row.digest, "sandbox"):
        assert part in text
    assert f"add_member notes --approve --digest {row.digest}" in text
    assert CANARY not in text
    assert row.approved_at is None


def test_standard_input_a_command_line_and_a_url_are_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert "notes" in run("-")
    assert "npx -y thing-mcp" in run("npx -y thing-mcp", "--name", "thing")
    assert "https://mcp.example.com/mcp" in run("https://mcp.example.com/mcp")
    assert set(MemberProposal.objects.values_list("name", flat=True)) == {"notes", "thing", "example"}


def test_a_long_command_line_is_no_name_of_a_file() -> None:
    path = "/" + "word-" * 60
    assert path in run(f"npx -y thing-mcp --text {path}", "--name", "thing")
    assert MemberProposal.objects.get().manifest["args"][-1] == path


def test_the_result_as_json_has_everything_for_the_approval() -> None:
    text = json.dumps({"mcpServers": {"notes": {"command": "serve"}, "box": {"command": "docker", "args": ["run"]}}})
    result = json.loads(run(text, "--json"))
    (proposal,) = result["proposals"]
    assert proposal["argv"] == ["serve"]
    assert "containers" in result["refused"][0]
    approved = json.loads(run("notes", "--approve", "--digest", proposal["digest"], "--json"))
    assert approved["digest"] == proposal["digest"] == MemberProposal.objects.exclude(approved_at=None).get().digest


def test_an_approval_shows_what_it_is_about() -> None:
    run(TEXT)
    text = run("notes", "--approve")
    assert "serve 'a b'" in text
    assert "is approved" in text


def test_one_that_is_refused_in_part_says_so() -> None:
    text = run('{"mcpServers": {"a": {"command": "x"}, "b": {"command": "docker"}}}')
    assert "Not proposed: mcpServers.b" in text


def test_discarding_deletes_the_proposal_and_its_secrets() -> None:
    run(TEXT)
    assert "discarded" in run("notes", "--discard")
    assert MemberProposal.objects.count() == Secret.objects.count() == 0


def test_characters_that_move_the_cursor_are_not_printed() -> None:
    text = run(
        json.dumps({"command": "serve", "args": ["\x1b[2Jx\u202e", "a\n  sandbox        on"]}), "--name", "notes"
    )
    assert "\x1b" not in text
    assert text.count("\n  sandbox") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["docker run x"], "containers"),
        (["nobody", "--approve"], "nobody proposes"),
        (["nobody", "--discard"], "nobody proposes"),
        (["npx a", "--name", "../x"], "no letter|name"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(argv: list[str], message: str) -> None:
    if "--name" in argv:
        run(*argv)
        assert MemberProposal.objects.get().name == "x"
        return
    with pytest.raises(CommandError, match=message):
        run(*argv)


def test_a_wrong_digest_is_refused() -> None:
    run(TEXT)
    with pytest.raises(CommandError, match="another digest"):
        run("notes", "--approve", "--digest", "0" * 64)


def test_a_source_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match="UTF-8"):
        run(str(tmp_path / "x"))


def test_a_bundle_is_recognized_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bundle()
    (tmp_path / "download").write_bytes(content)
    text = run(str(tmp_path / "download"))
    row = MemberProposal.objects.get()
    for part in (hashlib.sha256(content).hexdigest(), "server/index.js", "Anna (as it claims)", row.digest):
        assert part in text
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    run("-", "--name", "second")
    assert set(MemberProposal.objects.values_list("name", flat=True)) == {"echo", "second"}


def test_a_bundle_that_needs_values_says_which_and_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "echo.mcpb"
    asking = {"user_config": {"folder": {"type": "directory", "multiple": True, "required": True}}}
    path.write_bytes(bundle(manifest(server=server(args=["${user_config.folder}"]), **asking)))
    output = io.StringIO()
    with pytest.raises(CommandError, match="folder: needs a value"):
        call_command("add_member", str(path), stdout=output)
    assert "--set folder=VALUE  required, may be repeated" in output.getvalue()
    run(str(path), "--set", "folder=/a", "--set", "folder=/b")
    assert MemberProposal.objects.get().manifest["args"] == ["/a", "/b"]


def test_a_file_that_is_called_a_bundle_and_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.mcpb").write_bytes(b"npx a")
    with pytest.raises(CommandError, match="is not a zip"):
        run(str(tmp_path / "x.mcpb"))
    with pytest.raises(CommandError, match="There is no file"):
        run(str(tmp_path / "missing.mcpb"))


def test_names_of_files_that_look_like_facts_stay_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bundle(files={"server/index.js": b"", "x  sandbox        off": b""}))
    assert run(str(tmp_path / "a")).count("\n  sandbox") == 1
