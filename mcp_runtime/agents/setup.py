"""What an agent needs before it can run: the Agent SDK, a key for the model; and what it is told of where that is."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
# Where the model is, who pays, and the way there.
PASSED_ON = (
    *KEYS,
    *("ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "ANTHROPIC_CUSTOM_HEADERS", "CLAUDE_CONFIG_DIR"),
    *("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"),
)
# A part of a server: it reports to nobody and does not replace itself.
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "ENABLE_TOOL_SEARCH": "false",  # the members' tools are offered at once, not behind a search for them
}


def problem(environment: Mapping[str, str]) -> str:
    """What is missing to run an agent, and what to do about it; empty when nothing is."""
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
    """Whether the claude command is logged in. On macOS it keeps that where only it can look."""
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
    """What the agent gets of the environment `own`, beside what any child does.

    With a key its files stay in `directory`, with the hall's; a login is where the user has it.
    """
    variables = {name: own[name] for name in PASSED_ON if own.get(name)}
    if any(name in variables for name in KEYS):
        variables.setdefault("CLAUDE_CONFIG_DIR", str(directory / "config"))
    return {**variables, **QUIET}
