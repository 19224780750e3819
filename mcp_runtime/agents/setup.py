"""The requirements of an agent, which are the Agent SDK and a key for the model, and its environment."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
# The address of the model, the account that pays, and the proxies.
PASSED_ON = (
    *KEYS,
    *("ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "ANTHROPIC_CUSTOM_HEADERS", "CLAUDE_CONFIG_DIR"),
    *("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"),
)
# The agent is a part of a server, so it sends no reports and does not update itself.
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "ENABLE_TOOL_SEARCH": "false",  # the agent gets the members' tools at once, without a search
}


def problem(environment: Mapping[str, str]) -> str:
    """What is missing to run an agent, and what to do about it. Empty if nothing is missing."""
    importlib.invalidate_caches()
    if importlib.util.find_spec("claude_agent_sdk") is None:
        return "the Agent SDK is not installed where the runtime runs: pip install -r requirements-agent.txt"
    if any(environment.get(name) for name in KEYS) or _has_login(environment):
        return ""
    return (
        "there is no key for the model where the runtime runs: set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN (and "
        "ANTHROPIC_BASE_URL for another address), or log in with the claude command, and start the runtime again"
    )


def _has_login(environment: Mapping[str, str]) -> bool:
    """Whether the claude command is logged in. On macOS only the command itself can read its credentials."""
    home = Path(environment.get("HOME", ""))
    folder = environment.get("CLAUDE_CONFIG_DIR") or home / ".claude"
    return Path(folder, ".credentials.json").exists() or (
        sys.platform == "darwin" and "oauthAccount" in _text(home / ".claude.json")
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def agent_environment(own: Mapping[str, str], directory: Path) -> dict[str, str]:
    """The variables of the environment `own` that the agent gets in addition to those of any child.

    With a key, the agent's files are in `directory`, with those of the hall. A login is in the user's own folder.
    """
    variables = {name: own[name] for name in PASSED_ON if own.get(name)}
    if any(name in variables for name in KEYS):
        variables.setdefault("CLAUDE_CONFIG_DIR", str(directory / "config"))
    return {**variables, **QUIET}
