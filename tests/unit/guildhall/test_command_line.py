"""`guildhall` in a terminal: without a hall, with a wrong command line, in pipes, and its help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from guildhall import command_help, commands, entry_point
from tests.conftest import ROOT
from tests.support.terminal import PROGRAM, environment, guildhall

COMMANDS = ROOT / "roster" / "management" / "commands"
ONLY_IN_MANAGE = {"flush"}  # it deletes all rows


def test_each_command_is_in_one_group_of_the_help() -> None:
    modules = {path.stem for path in COMMANDS.glob("[a-z]*.py")} - ONLY_IN_MANAGE
    assert sorted(commands.NAMES) == sorted(modules)


def test_the_help_describes_all_commands_of_the_hall_and_none_of_django(tmp_path: Path) -> None:
    process = guildhall("help", env={"GUILD_HALL_DATA_DIR": str(tmp_path / "none")})
    assert (process.returncode, process.stderr) == (0, "")
    lines = process.stdout.splitlines()
    for name in commands.NAMES:
        (line,) = (line for line in lines if line.startswith(f"  {name} "))
        assert len(line.split()) > 3
    assert not [line for line in lines if line.split()[:1] in (["migrate"], ["runserver"], ["shell"])]
    assert lines[-1] == f"Data folder: {tmp_path / 'none'}"
    assert max(map(len, lines)) <= 120
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("words", [["roster", "--help"], ["help", "roster"]])
def test_the_help_of_a_command_has_no_options_of_django(words: list[str]) -> None:
    text = guildhall(*words).stdout
    assert text.startswith("usage: guildhall roster [-h] [--json]")
    assert "--settings" not in text


def test_a_description_is_the_first_sentence() -> None:
    assert command_help.description("create_token") == "Make a token for a user"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["rooster"], 2, "there is no command 'rooster'. Did you mean roster"),
        (["migrate"], 2, "Commands of Django are in manage.py."),
        (["--hal", "x", "roster"], 2, "there is no option --hal."),
        (["--hall"], 2, "--hall needs the data folder of a hall."),
        (["roster", "--jsn"], 2, "unrecognized arguments: --jsn"),
        (["completion", "tcsh"], 2, "completion {bash,zsh,fish}"),
        (["--hall", "/nowhere", "roster"], 3, "--hall /nowhere: there is no such folder."),
    ],
)
def test_a_wrong_command_line_says_what_to_write(words: list[str], code: int, sentence: str) -> None:
    process = guildhall(*words)
    assert (process.returncode, process.stdout) == (code, "")
    assert sentence in process.stderr
    assert "Traceback" not in process.stderr


# Without a hall ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["roster"], ["logs", "example"], ["invoke", "a", "b"], ["runtime", "--check"]])
def test_without_a_hall_a_command_prints_one_line_and_makes_nothing(tmp_path: Path, words: list[str]) -> None:
    process = guildhall(*words, env={"GUILD_HALL_DATA_DIR": str(tmp_path / "none")})
    assert (process.returncode, process.stdout) == (3, "")
    assert process.stderr.startswith(f"guildhall: There is no hall in {tmp_path / 'none'}. Start one with: make run.")
    assert len(process.stderr.splitlines()) == 1
    assert not [*tmp_path.iterdir()]


def test_manage_makes_nothing_either(tmp_path: Path) -> None:
    variables = environment(GUILD_HALL_DATA_DIR=str(tmp_path / "none"))
    argv = [sys.executable, "manage.py", "roster"]
    process = subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
    assert process.returncode == 3
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("GUILD_HALL_PORT", "many", "GUILD_HALL_PORT='many': give a whole number"),
        ("DATABASE_URL", "mysql://h/x", "DATABASE_URL: the address must begin with"),
        ("DATABASE_URL", "postgres://nobody@127.0.0.1:1/hall", "The database cannot be used"),
        ("DATABASE_URL", "sqlite:////nowhere/hall.sqlite3", "There is no hall in"),
        ("GUILD_HALL_ENV_FILE", "/nowhere", "there is no such file"),
    ],
)
def test_a_wrong_variable_is_one_line(tmp_path: Path, name: str, value: str, sentence: str) -> None:
    process = guildhall("roster", env={"GUILD_HALL_DATA_DIR": str(tmp_path / "none"), name: value})
    assert (process.returncode, process.stdout) == (3, "")
    assert sentence in process.stderr
    assert len(process.stderr.splitlines()) == 1


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "guildhall.sqlite3").write_bytes(b"no database" * 500)
    process = guildhall("roster", env={"GUILD_HALL_DATA_DIR": str(tmp_path)})
    assert process.returncode == 3
    assert "is damaged" in process.stderr
    assert len(process.stderr.splitlines()) == 1


def test_manifests_are_checked_without_a_hall(tmp_path: Path) -> None:
    process = guildhall("check_members", "guild-members", cwd=ROOT, env={"GUILD_HALL_DATA_DIR": str(tmp_path / "none")})
    assert process.returncode == 0, process.stderr
    assert not (tmp_path / "none").exists()


# Pipes ------------------------------------------------------------------------------------------------------------


def test_a_reader_that_ends_early_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = guildhall("help", capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (process.returncode, process.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_under_the_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        process = guildhall("help", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert process.returncode == 1
    assert process.stderr.splitlines() == ["guildhall: [Errno 28] No space left on device"]


# The script -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["bin", "folder with spaces", "long" * 40])
def test_the_script_runs_from_any_folder(tmp_path: Path, folder: str) -> None:
    python = tmp_path / folder / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    script = python.with_name("guildhall")
    entry_point.write(script, python)
    process = subprocess.run(
        [script, "completion", "bash"], cwd="/", env=environment(), capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr
    assert "complete -F _guildhall guildhall" in process.stdout


def test_the_script_of_a_folder_that_has_moved_says_what_to_do(tmp_path: Path) -> None:
    entry_point.write(tmp_path / "guildhall", Path(sys.executable))
    script = tmp_path / "guildhall"
    script.write_text(script.read_text().replace(repr(str(ROOT)), "'/nowhere'"))
    variables = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    process = subprocess.run([script], cwd="/", env=variables, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1
    assert "Run `make run`" in process.stderr


def test_the_program_is_quiet_at_ctrl_c() -> None:
    program = [*PROGRAM[:2], "from guildhall import command_line as c\ndef raise_it(_): raise KeyboardInterrupt\n"]
    program[2] += "c._run = raise_it\nc.main()"
    process = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")
