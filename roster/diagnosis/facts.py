"""The facts about a member that explain why it does not run, and the explanation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

MAX_LINE = 300
SECRETS = "secrets"  # in place of a key: the page of the member's secrets


@dataclass(frozen=True)
class Facts:
    """The facts about a member that explain why it does not run."""

    name: str
    directory: str
    status: str  # as it is shown: `connected`, `error`...
    enabled: bool = True
    should_run: bool = True
    runtime_is_alive: bool = True  # the runtime of its node
    dead_node: str = ""  # the name of its node if that is not alive and another node is
    dead_node_holds_lease: bool = False  # its fence was off, so no other node takes its members
    has_local_state: bool = False
    manifest_error: str = ""
    manifest_error_key: str = ""
    last_error: str = ""
    next_restart_at: datetime | None = None
    # From the manifest. They are empty for who may not see it.
    command: str = ""
    transport: str = ""
    url: str = ""
    sandbox: str = ""

    @property
    def is_in_sandbox(self) -> bool:
        return self.sandbox in ("on", "require")

    @property
    def file(self) -> str:
        from mcp_runtime.members.manifest.files import FILE_NAME  # late, because most members run

        return f"{self.directory}/{FILE_NAME}"


@dataclass(frozen=True)
class Diagnosis:
    """One line each. `last_words` is the line of the member's output that says most. With `log_helps` its log has more.

    In `remedy`, commands and code are between backquotes. `key` is the key of the manifest that a person can change to
    fix it, or SECRETS. It is empty if there is none.
    """

    cause: str
    remedy: str
    last_words: str = ""
    log_helps: bool = False
    key: str = ""


def one_line(text: str) -> str:
    line = " ".join(text[: 4 * MAX_LINE].split())
    return f"{line[: MAX_LINE - 1]}…" if len(line) > MAX_LINE else line


def as_sentence(text: str) -> str:
    line = with_full_stop(one_line(text))
    return line[:1].upper() + line[1:]


def with_full_stop(line: str) -> str:
    return line if not line or line[-1] in ".…?" else f"{line}."
