"""Which hall a command is for, if the terminal does not say it: halls leave their variables, and a lock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from mcp_runtime.system import running_halls
from tests.conftest import ROOT
from tests.support import terminal

HOLD = (
    "import os, sys; from pathlib import Path; from mcp_runtime.system import running_halls; "
    "running_halls.announce(Path(sys.argv[1]), Path(sys.argv[2])); "
    # Like `up`, the process becomes another program, which still holds the lock.
    "os.execv(sys.executable, [sys.executable, '-c', 'print(1, flush=True); input()'])"
)
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def _terminal(tmp_path: Path) -> Iterator[None]:
    """A terminal without variables, of a user without halls.

    Tests set variables without `monkeypatch`: it is undone after this, and would delete those of this process.
    """
    with mock.patch.dict(os.environ, {**terminal.environment(), "XDG_STATE_HOME": str(tmp_path / "state")}, clear=True):
        os.environ.pop("GUILD_HALL_ENV_FILE")
        yield


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process that announces a hall and runs until its stdin closes."""
    processes = []

    def start(name: str, project: Path = ROOT, **variables: str) -> subprocess.Popen[str]:
        data_dir = tmp_path / name
        data_dir.mkdir(mode=0o700, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(data_dir), str(project)],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            umask=0o077,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def test_the_only_running_hall_is_chosen_with_all_its_variables(start: Start, tmp_path: Path) -> None:
    start(
        "var", GUILD_HALL_PORT="8123", GUILD_HALL_ADMIN_PASSWORD="pw", GUILD_HALL_MEMBERS_DIR="m", REDIS_URL="redis://h"
    )
    os.environ["GUILD_HALL_GATEWAY_PORT"] = "9"  # of another hall. Variables of two halls are not mixed
    running_halls.choose("", ROOT)
    assert os.environ["GUILD_HALL_DATA_DIR"] == str(tmp_path / "var")
    assert os.environ["GUILD_HALL_PORT"] == "8123"
    assert os.environ["REDIS_URL"] == "redis://h"
    assert os.environ["GUILD_HALL_MEMBERS_DIR"] == str(tmp_path / "m")
    assert "GUILD_HALL_GATEWAY_PORT" not in os.environ
    assert "pw" not in (tmp_path / "var" / running_halls.FILE).read_text()


def test_a_relative_database_is_found_from_another_folder(start: Start, tmp_path: Path) -> None:
    start("var", DATABASE_URL="sqlite:///hall.sqlite3")
    running_halls.choose("", ROOT)
    assert os.environ["DATABASE_URL"] == f"sqlite:///{tmp_path / 'hall.sqlite3'}"


@pytest.mark.parametrize("name", ["GUILD_HALL_DATA_DIR", "DATABASE_URL"])
def test_a_terminal_that_names_a_hall_keeps_it(start: Start, name: str) -> None:
    start("var", GUILD_HALL_PORT="8123")
    os.environ[name] = "mine"
    running_halls.choose("", ROOT)
    assert os.environ[name] == "mine"
    assert "GUILD_HALL_PORT" not in os.environ


def test_several_halls_are_named_and_one_can_be_chosen(start: Start, tmp_path: Path) -> None:
    start("a", GUILD_HALL_PORT="8001")
    start("b", GUILD_HALL_PORT="8002")
    with pytest.raises(running_halls.HallChoiceError) as caught:
        running_halls.choose("", ROOT)
    assert f"{tmp_path / 'a'}, {tmp_path / 'b'}" in str(caught.value)
    assert "--hall" in str(caught.value)
    running_halls.choose(str(tmp_path / "b"), ROOT)
    assert os.environ["GUILD_HALL_PORT"] == "8002"


def test_a_hall_that_was_killed_is_found_only_by_its_name(start: Start, tmp_path: Path) -> None:
    end(start("var", GUILD_HALL_PORT="8123"))
    running_halls.choose("", ROOT)
    assert "GUILD_HALL_DATA_DIR" not in os.environ
    running_halls.choose(str(tmp_path / "var"), ROOT)
    assert os.environ["GUILD_HALL_PORT"] == "8123"


def test_a_hall_of_another_folder_of_guild_hall_is_not_chosen(start: Start, tmp_path: Path) -> None:
    start("var", tmp_path)
    running_halls.choose("", ROOT)
    assert "GUILD_HALL_DATA_DIR" not in os.environ


def test_the_link_to_a_data_folder_that_is_gone_is_deleted(start: Start, tmp_path: Path) -> None:
    end(start("var"))
    (tmp_path / "var" / running_halls.FILE).unlink()
    (tmp_path / "var").rmdir()
    assert [*running_halls.links_folder().iterdir()]
    assert running_halls.running_halls() == []
    assert not [*running_halls.links_folder().iterdir()]


def test_several_terminals_can_look_at_the_same_time(start: Start) -> None:
    end(start("var"))
    path = next(running_halls.links_folder().iterdir()).resolve() / running_halls.FILE
    with path.open() as file:
        running_halls.fcntl.flock(file, running_halls.fcntl.LOCK_SH)  # as another terminal does
        assert running_halls.running_halls() == []


# Who can make a terminal believe something -----------------------------------------------------------------------


def _readable(data_dir: Path) -> None:
    (data_dir / running_halls.FILE).chmod(0o644)


def _writable_folder(data_dir: Path) -> None:
    data_dir.chmod(0o777)


def _link(data_dir: Path) -> None:
    (data_dir / running_halls.FILE).rename(data_dir / "other")
    (data_dir / running_halls.FILE).symlink_to("other")


def _pipe(data_dir: Path) -> None:
    (data_dir / running_halls.FILE).unlink()
    os.mkfifo(data_dir / running_halls.FILE, 0o600)


def _text(data_dir: Path) -> None:
    (data_dir / running_halls.FILE).write_text('{"variables": [], "project": 1}')


@pytest.mark.parametrize("spoil", [_readable, _writable_folder, _link, _pipe, _text])
def test_a_file_that_others_could_have_written_is_ignored(
    start: Start, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    start("var", GUILD_HALL_PORT="8123")
    spoil(tmp_path / "var")
    running_halls.choose("", ROOT)
    assert "GUILD_HALL_PORT" not in os.environ


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("place", ["var", f"var/{running_halls.FILE}", "state/guildhall/halls"])
def test_what_belongs_to_another_user_is_ignored(start: Start, tmp_path: Path, place: str) -> None:
    start("var", GUILD_HALL_PORT="8123")
    os.chown(tmp_path / place, 12345, 12345)
    running_halls.choose("", ROOT)
    assert "GUILD_HALL_PORT" not in os.environ


def test_a_links_folder_that_others_can_write_is_ignored(start: Start) -> None:
    start("var", GUILD_HALL_PORT="8123")
    running_halls.links_folder().chmod(0o777)
    running_halls.choose("", ROOT)
    assert "GUILD_HALL_PORT" not in os.environ


def test_the_file_sets_only_variables_of_a_hall(start: Start, tmp_path: Path) -> None:
    start("var", GUILD_HALL_PORT="8123")
    path = tmp_path / "var" / running_halls.FILE
    path.write_text(path.read_text().replace("GUILD_HALL_PORT", "LD_PRELOAD"))
    running_halls.choose("", ROOT)
    assert os.environ["GUILD_HALL_DATA_DIR"] == str(tmp_path / "var")
    assert "LD_PRELOAD" not in os.environ


def test_a_hall_works_without_a_home_folder(start: Start, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    process = start("var")
    assert process.poll() is None
    assert running_halls.running_halls() == []


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(running_halls.HallChoiceError, match="there is no such folder"):
        running_halls.choose(str(tmp_path / "nowhere"), ROOT)


def test_the_secrets_of_members_are_in_no_file(start: Start, tmp_path: Path) -> None:
    start("hall", GUILD_HALL_MEMBER_KEY="hunter2", GUILD_HALL_MEMBERS_DIR=str(tmp_path))
    text = (tmp_path / "hall" / running_halls.FILE).read_text()
    assert ("hunter2" in text, "GUILD_HALL_MEMBERS_DIR" in text) == (False, True)


def test_a_second_runtime_of_a_hall_leaves_the_first_one_to_be_found(start: Start, tmp_path: Path) -> None:
    start("hall", GUILD_HALL_PORT="8001")
    running_halls.announce(tmp_path / "hall", ROOT)
    (hall,) = running_halls.running_halls()
    assert hall.variables["GUILD_HALL_PORT"] == "8001"
    assert [path.name for path in (tmp_path / "hall").iterdir()] == [running_halls.FILE]


def test_a_user_without_a_home_folder_has_a_hall_and_no_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    del os.environ["XDG_STATE_HOME"]
    monkeypatch.setattr(Path, "home", fail)
    running_halls.announce(tmp_path, ROOT)
    assert [path.name for path in tmp_path.iterdir()] == [running_halls.FILE]
    running_halls.choose("", ROOT)


def test_the_draft_of_a_killed_process_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / f"{running_halls.FILE}.123").write_text("password")
    running_halls.announce(tmp_path, ROOT)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [running_halls.FILE]


def test_a_draft_that_could_not_be_finished_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(running_halls.fcntl, "flock", fail)
    running_halls.announce(tmp_path, ROOT)
    assert list(tmp_path.iterdir()) == []


def test_a_named_hall_gets_nothing_of_this_terminal_and_of_this_folder(start: Start, tmp_path: Path) -> None:
    start("b", GUILD_HALL_PORT="8002")
    os.environ["DATABASE_URL"] = "postgres://a"
    running_halls.choose(str(tmp_path / "b"), ROOT)
    assert ("DATABASE_URL" in os.environ, os.environ["GUILD_HALL_ENV_FILE"]) == (False, os.devnull)
    (tmp_path / "never-ran").mkdir(mode=0o700)
    os.environ["DATABASE_URL"] = "postgres://a"
    running_halls.choose(str(tmp_path / "never-ran"), ROOT)
    assert "DATABASE_URL" not in os.environ


def test_a_named_hall_whose_file_is_not_to_be_trusted_is_refused(start: Start, tmp_path: Path) -> None:
    start("b")
    (tmp_path / "b" / running_halls.FILE).chmod(0o640)
    with pytest.raises(running_halls.HallChoiceError, match="not yours alone"):
        running_halls.choose(str(tmp_path / "b"), ROOT)
