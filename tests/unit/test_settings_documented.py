"""docs/settings.md says what the environment may say: every variable, its default and bounds, wrong values refused."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.core.exceptions import ImproperlyConfigured

from tests.conftest import ROOT

PRODUCT = ("manage.py", "guildhall", "mcp_runtime", "roster")
VARIABLE = re.compile(r"GUILD_HALL_[A-Z_]+|DATABASE_URL|REDIS_URL")
# Set or read in words of their own, so that looking for calls of os.environ does not find them.
MARKS = {"GUILD_HALL_MEMBER"}

Load = Callable[..., dict[str, Any]]


class Row(NamedTuple):
    name: str
    default: str
    meaning: str
    allowed: str


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "settings.md").read_text()
    table_rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in table_rows]


SETTINGS = {row[0].strip("`"): Row(row[0].strip("`"), *row[1:]) for row in rows() if len(row) == 4}
INTERNAL = {row[0].strip("`") for row in rows() if len(row) == 2}
BOUNDED = {name: row for name, row in SETTINGS.items() if re.fullmatch(r"\d+ to \d+", row.allowed)}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """What settings.py comes to in an environment of these variables alone."""
    for name in [name for name in os.environ if VARIABLE.fullmatch(name)]:
        monkeypatch.delenv(name)

    def run(**environment: str) -> dict[str, Any]:
        for name, value in {"GUILD_HALL_DATA_DIR": str(tmp_path / "var"), **environment}.items():
            monkeypatch.setenv(name, value)
        return runpy.run_path(str(ROOT / "guildhall" / "settings.py"))

    return run


def manage(*argv: str, data_dir: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *argv],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "GUILD_HALL_DATA_DIR": str(data_dir), **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


# The table and the code know the same variables -------------------------------------------------------------------


def read_variables() -> Iterator[str]:
    """Every variable that the product asks the environment for, itself or through a helper of settings.py."""
    for place in PRODUCT:
        for path in [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                arguments = node.args if isinstance(node, ast.Call) else []
                arguments = [node.slice] if isinstance(node, ast.Subscript) else arguments
                first = arguments[0] if arguments else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str) and VARIABLE.fullmatch(first.value):
                    yield first.value


def test_every_variable_that_is_read_is_in_the_table_and_no_other() -> None:
    assert set(read_variables()) | MARKS == SETTINGS.keys() | INTERNAL


def test_no_variable_is_in_the_tables_twice() -> None:
    assert len(rows()) == len(SETTINGS) + len(INTERNAL)


# Defaults and bounds ----------------------------------------------------------------------------------------------


def test_defaults_are_as_documented(load: Load) -> None:
    values = load()
    documented = {name: row.default.strip("`") for name, row in BOUNDED.items()}
    assert documented.pop("GUILD_HALL_START_CONCURRENCY") == "twice the number of cores"
    assert values["GUILD_HALL_START_CONCURRENCY"] == 2 * (os.cpu_count() or 1)
    assert documented == {name: str(values[name]) for name in documented}
    assert SETTINGS["GUILD_HALL_HOST"].default == f"`{values['GUILD_HALL_HOST']}`"
    assert SETTINGS["GUILD_HALL_PORT_RANGE"].default == "`{}-{}`".format(*values["GUILD_HALL_PORT_RANGE"])
    assert values["GUILD_HALL_PORT_RANGE"] == (20000, 30000)
    assert values["GUILD_HALL_MEMBERS_DIR"] == ROOT / "guild-members"
    assert values["DATABASES"]["default"]["NAME"] == str(values["GUILD_HALL_DATA_DIR"] / "guildhall.sqlite3")
    assert values["REDIS_URL"] == ""


@pytest.mark.parametrize("name", BOUNDED)
def test_both_documented_bounds_are_allowed_and_nothing_beyond(load: Load, name: str) -> None:
    lowest, highest = map(int, BOUNDED[name].allowed.split(" to "))
    for value in (lowest, highest):
        assert load(**{name: str(value)})[name] == value
    for value in (lowest - 1, highest + 1):
        with pytest.raises(ImproperlyConfigured, match=f"^{name}="):
            load(**{name: str(value)})


def test_an_empty_value_counts_as_none(load: Load) -> None:
    names = SETTINGS.keys() - {"GUILD_HALL_ADMIN_PASSWORD", "GUILD_HALL_DATA_DIR"}
    assert load(**dict.fromkeys(names, " "))["GUILD_HALL_PORT"] == 8000


# Wrong values -----------------------------------------------------------------------------------------------------

# Refused by settings.py itself, whatever command is given.
WRONG = [
    *((name, value) for name in BOUNDED for value in ("many", "1.5", "-1")),
    *(("GUILD_HALL_PORT_RANGE", value) for value in ("20000", "19999-20010", "29990-30001", "20010-20000", "a-b")),
    ("GUILD_HALL_DATA_DIR", "/dev/null/var"),
    ("DATABASE_URL", "mysql://localhost/hall"),
    ("DATABASE_URL", "hall.sqlite3"),
    ("REDIS_URL", "localhost:6379"),
    ("REDIS_URL", "redis://localhost:port/0"),
    ("DATABASE_URL", "postgres://hall@localhost:port/hall"),
    ("DATABASE_URL", "sqlite://:memory:"),
    ("GUILD_HALL_ALLOWED_HOSTS", "https://hall.example.com"),
    ("GUILD_HALL_TRUSTED_ORIGINS", "hall.example.com"),
    *(("GUILD_HALL_PLAIN_HTTP_HOSTS", value) for value in ("http://mcp.example.com", "mcp.example.com/x", "*")),
]
# Refused by the system checks, which every command but the authors' own runs first.
WRONG_TOGETHER = [
    ("GUILD_HALL_MEMBERS_DIR", {"GUILD_HALL_MEMBERS_DIR": "/nowhere/at/all"}),
    ("GUILD_HALL_GATEWAY_PORT", {"GUILD_HALL_PORT": "8100"}),
]
# Refused by `up`, which tries to listen there.
WRONG_HERE = [("GUILD_HALL_HOST", "192.0.2.1"), ("GUILD_HALL_HOST", "no such host")]
# Any text can be meant.
FREE = {"GUILD_HALL_ADMIN_PASSWORD"}


def test_every_setting_has_a_wrong_value_here_or_none_at_all() -> None:
    tried = {name for name, _ in WRONG} | {name for name, _ in WRONG_TOGETHER} | {name for name, _ in WRONG_HERE}
    assert tried | FREE == SETTINGS.keys()


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_is_refused_with_the_name_and_what_to_give_instead(load: Load, name: str, value: str) -> None:
    with pytest.raises(ImproperlyConfigured) as refusal:
        load(**{name: value})
    assert str(refusal.value).startswith(name)
    assert re.search(r"give|must begin with|Choose", str(refusal.value))


@pytest.mark.parametrize(("name", "environment"), WRONG_TOGETHER)
def test_values_that_cannot_work_are_refused_by_the_checks(
    tmp_path: Path, name: str, environment: dict[str, str]
) -> None:
    done = manage("check", data_dir=tmp_path / "var", **environment)
    assert done.returncode != 0
    assert name in done.stderr
    assert "HINT" in done.stderr


@pytest.mark.parametrize(("name", "value"), WRONG_HERE)
def test_an_address_that_is_not_this_machines_is_refused_by_up(tmp_path: Path, name: str, value: str) -> None:
    done = manage("up", data_dir=tmp_path / "var", **{name: value})
    assert done.returncode != 0
    assert f"cannot listen on {value}" in done.stderr
    assert name in done.stderr


def test_a_refusal_is_one_sentence_and_no_traceback(tmp_path: Path) -> None:
    done = manage("up", data_dir=tmp_path / "var", GUILD_HALL_PORT="eight thousand")
    assert done.returncode != 0
    assert done.stderr.startswith("Guild Hall cannot start. GUILD_HALL_PORT='eight thousand'")
    assert len(done.stderr.splitlines()) == 1
