"""The data folder contains password hashes and keys. Only its owner can read it, or the hall does not start."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from guildhall import data_folder
from mcp_runtime.agents import process
from tests.conftest import ROOT, eventually

Manage = Callable[..., subprocess.CompletedProcess[str]]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    """A command of a hall whose data folder is `var`, run by a user with the usual umask."""

    def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *argv],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "GUILD_HALL_DATA_DIR": str(tmp_path / "var"), **environment},
            umask=0o022,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_a_readable_data_folder_is_closed_with_one_message(manage: Manage, tmp_path: Path) -> None:
    (tmp_path / "var").mkdir(mode=0o755)
    (tmp_path / "var").chmod(0o755)
    first, second = manage("check"), manage("check")
    assert first.returncode == 0, first.stderr
    assert mode(tmp_path / "var") == 0o700
    assert f"other users of this machine could read the data folder {tmp_path / 'var'}" in first.stderr
    assert "could read" not in second.stderr


def test_a_data_folder_behind_a_link_is_closed_too(manage: Manage, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real").chmod(0o777)
    (tmp_path / "var").symlink_to("real")
    assert manage("check").returncode == 0
    assert mode(tmp_path / "real") == 0o700


def test_new_files_of_the_hall_are_readable_only_by_its_user(manage: Manage, tmp_path: Path) -> None:
    other_database = tmp_path / "database" / "hall.sqlite3"
    other_database.parent.mkdir()
    assert manage("prepare").returncode == 0
    process = manage("prepare", DATABASE_URL=f"sqlite:///{other_database}")
    assert process.returncode == 0, process.stderr

    paths = [path for path in (tmp_path / "var").rglob("*") if not path.is_symlink()]
    assert {path.name for path in paths} >= {"guildhall.sqlite3", "secret-key", "local-token", "static"}
    assert [path for path in [*paths, other_database] if mode(path) & 0o077] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_root_closes_a_data_folder_for_the_user_it_belongs_to(manage: Manage, tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var").chmod(0o755)
    os.chown(tmp_path / "var", 65534, 65534)
    process = manage("check")
    assert process.returncode == 0, process.stderr
    assert mode(tmp_path / "var") == 0o700
    assert (tmp_path / "var").stat().st_uid == 65534


def test_a_readable_data_folder_of_another_user_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var").chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(ImproperlyConfigured, match="belongs to another user") as raised:
        data_folder.private_folder(tmp_path / "var")
    assert f"sudo chown 65534 {tmp_path / 'var'} && sudo chmod 700 {tmp_path / 'var'}" in str(raised.value)
    assert list((tmp_path / "var").iterdir()) == []


def test_the_owner_of_the_data_folder_must_be_the_user_of_the_hall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o750)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ImproperlyConfigured, match="belongs to another user"):
        data_folder.private_folder(tmp_path)
    assert mode(tmp_path) == 0o750


def test_a_file_system_without_modes_gives_only_a_warning_of_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Any
) -> None:
    def refuse_chmod(path: Path, file_mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    tmp_path.chmod(0o755)
    for chmod in (refuse_chmod, lambda path, file_mode: None):
        monkeypatch.setattr(Path, "chmod", chmod)
        assert data_folder.private_folder(tmp_path) == tmp_path
    assert capsys.readouterr().err == ""
    settings.GUILD_HALL_DATA_DIR = tmp_path
    assert "roster.W002" in [warning.id for warning in run_checks()]


def test_the_secret_key_is_created_on_a_file_system_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_link(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse_link)
    key = data_folder.secret_key_in(tmp_path / "secret-key")
    assert len(key) > 40
    assert data_folder.secret_key_in(tmp_path / "secret-key") == key
    assert [path.name for path in tmp_path.iterdir()] == ["secret-key"]


def test_a_private_data_folder_gives_no_warning(settings: Any) -> None:
    assert "roster.W002" not in [warning.id for warning in run_checks()]


def test_the_folder_of_a_new_member_has_the_users_own_modes(manage: Manage, tmp_path: Path) -> None:
    (tmp_path / "members").mkdir()
    assert manage("new_member", "one", GUILD_HALL_MEMBERS_DIR=str(tmp_path / "members")).returncode == 0
    assert mode(tmp_path / "members" / "one") == 0o755
    assert mode(tmp_path / "members" / "one" / "server.py") == 0o644


def test_an_agent_keeps_the_users_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUILD_HALL_USER_UMASK", "027")
    program = tmp_path / "program.py"
    program.write_text("import os, sys; open('umask', 'w').write(f'{os.umask(0):03o}')")
    monkeypatch.setattr(process, "HOST", program)
    job = process.Job(prompt="", servers={})
    agent_process = process.AgentProcess.spawn(job, directory=tmp_path / "agent", tag="hall/1/agent", environment={})
    eventually(lambda: (tmp_path / "agent" / "umask").exists() and (tmp_path / "agent" / "umask").read_text() == "027")
    agent_process.close()
