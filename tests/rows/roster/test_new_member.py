from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.control.members import sync_roster
from mcp_runtime.members.manifest.files import read_all
from mcp_runtime.protocol.errors import ToolError
from mcp_runtime.rows import lease
from roster.models import GuildMember
from tests.conftest import ROOT
from tests.support.member_process import running

pytestmark = pytest.mark.django_db


@pytest.fixture
def members_dir(tmp_path: Path, settings: Any) -> Path:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path / "members"
    (tmp_path / "members").mkdir()
    return tmp_path / "members"


def new_member(name: str) -> str:
    output = StringIO()
    call_command("new_member", name, stdout=output, no_color=True)
    return output.getvalue()


def refusal_text(name: str) -> str:
    with pytest.raises(CommandError) as error:
        new_member(name)
    return str(error.value)


def test_the_new_member_starts_and_can_be_called(members_dir: Path) -> None:
    new_member("weather")
    with running(members_dir / "weather") as member:
        client = JsonRpcClient(member.url)
        assert client.initialize().server_info == {"name": "weather", "version": "0.1.0"}
        assert [tool["name"] for tool in client.list_tools().tools] == ["hello"]
        assert client.invoke_tool("hello", {"name": "Ada"})["content"] == [{"type": "text", "text": "Hello, Ada!"}]
        with pytest.raises(ToolError):
            client.invoke_tool("hello", {"nobody": 1})
        assert member.ask("tools/chat")["error"]["code"] == -32601
        assert member.post({}, Origin="https://evil.example").status_code == 403


def test_the_manifest_of_the_new_member_is_valid(members_dir: Path) -> None:
    new_member("weather")
    (file,) = read_all(members_dir)
    assert file.manifest is not None
    assert (file.directory, file.manifest.name, file.warnings) == ("weather", "weather", ())


def test_the_command_leaves_no_placeholder_and_creates_nothing_else(members_dir: Path) -> None:
    new_member("weather")
    assert [entry.name for entry in members_dir.iterdir()] == ["weather"]
    files = {path.name: path.read_text() for path in (members_dir / "weather").iterdir()}
    assert sorted(files) == ["README.md", "guild-member.json", "server.py"]
    assert not [name for name, text in files.items() if "MEMBER_NAME" in text]


def test_the_output_names_the_next_commands(members_dir: Path) -> None:
    output = new_member("weather")
    for verb in ("check_members", "member restart weather", "invoke weather hello", "logs weather -f"):
        assert f"guildhall {verb}" in output


@pytest.mark.parametrize(
    "name", ["", "a b", "../x", "-x", ".x", "x/y", "n" * 65, "caf\N{LATIN SMALL LETTER E WITH ACUTE}"]
)
def test_a_bad_name_is_refused(members_dir: Path, name: str) -> None:
    if name.startswith("-"):
        with pytest.raises(CommandError):
            call_command("new_member", "--", name)
    else:
        assert "must be 1 to 64 letters" in refusal_text(name)
    assert list(members_dir.iterdir()) == []


def test_a_name_in_use_is_refused_in_upper_and_lower_case(members_dir: Path) -> None:
    new_member("weather")
    before = (members_dir / "weather" / "server.py").stat().st_mtime_ns
    assert refusal_text("weather") == f"{members_dir}/weather exists already"
    assert refusal_text("Weather") == f"{members_dir}/Weather exists already"
    assert (members_dir / "weather" / "server.py").stat().st_mtime_ns == before


def test_the_name_of_a_member_in_another_folder_is_refused(members_dir: Path) -> None:
    new_member("weather")
    (members_dir / "weather").rename(members_dir / "moved")
    assert refusal_text("Weather") == f"the member in {members_dir}/moved is called weather already"


def test_a_missing_members_folder_is_created(members_dir: Path) -> None:
    members_dir.rmdir()
    new_member("weather")
    assert (members_dir / "weather" / "guild-member.json").is_file()


def test_a_members_folder_that_cannot_be_created_is_an_error_with_its_path(members_dir: Path, settings: Any) -> None:
    settings.GUILD_HALL_MEMBERS_DIR = members_dir / "not" / "there"
    assert refusal_text("weather") == f"cannot write to {members_dir}/not/there: No such file or directory"


def test_the_output_names_the_new_folder_before_the_next_commands(members_dir: Path) -> None:
    first, second, *_ = new_member("weather").splitlines()
    assert first == f"Made member weather in {members_dir}/weather."
    assert second == "A hall that runs starts it automatically. Next:"


def test_a_folder_that_cannot_be_written_leaves_nothing_behind(
    members_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", refuse)
    assert refusal_text("weather") == f"cannot write to {members_dir}: No space left on device"
    assert list(members_dir.iterdir()) == []


@pytest.mark.django_db(transaction=True)
def test_in_a_hall_that_runs_the_new_member_can_be_called_at_once(members_dir: Path, monkeypatch: Any) -> None:
    """A hall of one thread, where every member that a sync finds is connected at once."""
    lease.take()
    real_sync = sync_roster

    def sync_and_connect() -> Any:
        report = real_sync()
        GuildMember.objects.update(status=GuildMember.Status.CONNECTED)
        return report

    monkeypatch.setattr("roster.management.commands.new_member.sync_roster", sync_and_connect)
    assert "It is connected" in new_member("weather")


def test_the_command_needs_no_database(tmp_path: Path) -> None:
    (tmp_path / "members").mkdir()
    folders = {"GUILD_HALL_DATA_DIR": str(tmp_path / "data"), "GUILD_HALL_MEMBERS_DIR": str(tmp_path / "members")}
    environment = {**os.environ, **folders, "DATABASE_URL": ""}
    argv = [sys.executable, "manage.py", "new_member", "weather"]
    process = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, timeout=60)
    assert process.returncode == 0, process.stderr.decode()
    assert json.loads((tmp_path / "members" / "weather" / "guild-member.json").read_text())["name"] == "weather"
    assert not (tmp_path / "data" / "guildhall.sqlite3").exists()
