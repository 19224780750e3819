"""The requirements of an agent, and its environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcp_runtime.agents import setup
from mcp_runtime.agents.process import tool_rule


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the SDK's name, whether or not the SDK is installed."""
    (tmp_path / "claude_agent_sdk.py").touch()
    monkeypatch.delitem(sys.modules, "claude_agent_sdk", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


def test_the_error_about_a_missing_sdk_names_the_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)
    assert "pip install -r requirements-agent.txt" in setup.problem({"ANTHROPIC_API_KEY": "k"})


@pytest.mark.parametrize("name", setup.KEYS)
def test_any_of_the_keys_is_enough(sdk: None, tmp_path: Path, name: str) -> None:
    assert setup.problem({"HOME": str(tmp_path), name: "k"}) == ""


def test_the_error_about_a_missing_key_names_the_variable(sdk: None, tmp_path: Path) -> None:
    for environment in ({}, {"ANTHROPIC_API_KEY": ""}, {"ANTHROPIC_BASE_URL": "http://localhost"}):
        assert "set ANTHROPIC_API_KEY" in setup.problem({"HOME": str(tmp_path), **environment})


def test_a_login_replaces_a_key(sdk: None, tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").write_text("{}")
    assert setup.problem({"HOME": str(tmp_path)}) == ""
    assert setup.problem({"HOME": "/nowhere", "CLAUDE_CONFIG_DIR": str(tmp_path / ".claude")}) == ""
    assert setup.problem({"HOME": "/nowhere"}) != ""


def test_the_agent_gets_no_variables_of_the_hall() -> None:
    environment = {
        "ANTHROPIC_API_KEY": "k",
        "ANTHROPIC_BASE_URL": "http://localhost:1",
        "DATABASE_URL": "postgres://secret",
        "SECRET_KEY": "secret",
        "CLAUDECODE": "1",
    }
    variables = setup.agent_environment(environment, Path("/data/agent"))
    assert variables == {
        "ANTHROPIC_API_KEY": "k",
        "ANTHROPIC_BASE_URL": "http://localhost:1",
        "CLAUDE_CONFIG_DIR": "/data/agent/config",
        **setup.QUIET,
    }


def test_a_login_stays_where_the_user_has_it() -> None:
    assert setup.agent_environment({}, Path("/data/agent")) == setup.QUIET
    environment = {"ANTHROPIC_API_KEY": "k", "CLAUDE_CONFIG_DIR": "/my/own"}
    assert setup.agent_environment(environment, Path("/data/agent"))["CLAUDE_CONFIG_DIR"] == "/my/own"


def test_tool_rule_gives_the_agents_name_of_a_tool() -> None:
    assert tool_rule("notes") == "mcp__notes"
    assert tool_rule("notes", "files/read.v1, all(x)") == "mcp__notes__files_read_v1__all_x_"
