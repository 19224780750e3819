"""Explain in one line why a member does not run, and what to do. Pure functions from facts to sentences.

The texts of the runtime and of members are matched loosely. An unknown text leads to the general advice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from mcp_runtime.members.logs import plain
from mcp_runtime.members.manifest.files import FILE_NAME
from mcp_runtime.protocol.errors import NotListeningError
from roster.models import GuildMember

TAIL_MARK = GuildMember.TAIL_MARK
MAX_LINE = 300
READ_AGAIN = "The hall reads the file again automatically, within a second"


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
    last_error: str = ""
    next_restart_at: datetime | None = None

    @property
    def file(self) -> str:
        return f"{self.directory}/{FILE_NAME}"


@dataclass(frozen=True)
class Diagnosis:
    """One line each. `last_words` is the member's last output. With `log_helps` its log has more."""

    cause: str
    remedy: str
    last_words: str = ""
    log_helps: bool = False


def diagnose(facts: Facts) -> Diagnosis | None:
    """None for a member that runs or is about to run."""
    if facts.manifest_error:
        return _of_manifest(facts)
    if not facts.enabled:
        return Diagnosis("Disabled: it does not run, and calls to it are refused.", "Enable it to have it started.")
    if facts.dead_node:
        return _of_dead_node(facts)
    if not facts.runtime_is_alive:
        return None  # the banner of the page says so, once for all members
    if facts.status == "error":
        return _of_error(facts)
    if facts.status == "disconnected" and not facts.should_run:
        return Diagnosis("Stopped on request.", "Start it, or call one of its tools, which starts it too.")
    return None


def _of_manifest(facts: Facts) -> Diagnosis:
    fault = facts.manifest_error.removeprefix(f"{facts.file}: ")
    key, colon, _ = fault.partition(": ")
    is_key = bool(colon) and re.fullmatch(r"[\w.-]+", key) is not None
    where = f"{key} in {facts.file}" if is_key else facts.file
    cause = f"{FILE_NAME}: {key} {fault[len(key) + 2 :]}" if is_key else f"{FILE_NAME}: {fault}"
    runs_on = " Until then it runs on as it was." if facts.status in ("connected", "starting") else ""
    return Diagnosis(_with_full_stop(_line(cause)), _line(f"Fix {where}. {READ_AGAIN}.{runs_on}"))


def _of_dead_node(facts: Facts) -> Diagnosis:
    if facts.dead_node_holds_lease:
        remedy = (
            "Its fence was off when it died, so no other node takes its members. Start the runtime on that node again, "
            f"or remove the node if it is gone for ever: manage.py remove_node {facts.dead_node}"
        )
    elif facts.has_local_state:
        remedy = (
            "Start the runtime on that node again, because the member keeps local state there. Without this data it "
            "starts on another node if you force a move, or if you remove the node."
        )
    else:
        remedy = (
            "Another node takes the member over within about 10 s if it has the same files in the member's folder. "
            "Otherwise start the runtime on that node again."
        )
    return Diagnosis(f"The node {facts.dead_node!r} that owns this member does not answer.", remedy)


def _of_error(facts: Facts) -> Diagnosis:
    sentence, _, tail = facts.last_error.partition(TAIL_MARK)
    words = [line for text in tail.splitlines() if (line := _line(plain(text)))]
    cause = re.sub(rf"^member '{re.escape(facts.name)}'(?: could not be started)?:? ", "", sentence)
    cause = cause.replace(NotListeningError.REMEDY, "")
    return Diagnosis(
        cause=_sentence(cause) or "It ended for an unknown reason.",
        remedy=_remedy(facts, sentence, tail),
        last_words=words[-1] if words else "",
        log_helps=bool(words),
    )


# Patterns for the runtime's sentence, and their advice. `{file}`, `{directory}` and the match's groups are filled in.
_ADVICE = [
    (r"command not found: '(?P<command>[^']*)'", "Install {command}, or give its full path as command in {file}."),
    (r"permission denied: '(?P<command>[^']*)'", "Make it executable: chmod +x {command}"),
    (
        r"requires the sandbox",
        "Run it on a machine that has what is missing, or set sandbox to on in {file}, which uses what there is.",
    ),
    (r"(?:processes|memory_mb) in limits allows", "Fix what its server does, or raise limits in {file}."),
    (r"its folder .* is gone", "Put the folder {directory} back."),
    (r"no free port", "Stop some members, or widen GUILD_HALL_PORT_RANGE and start the runtime again."),
    (
        r"nothing listened on its port",
        "It must listen on 127.0.0.1 at the port that ${{PORT}} in args or env of {file} gives it. "
        "If it only needs longer, set start_timeout there.",
    ),
    (
        r"did not complete",
        "It listens, but does not answer initialize. If it only needs longer, set start_timeout in {file}.",
    ),
    (
        r"tools/list failed",
        "The handshake works, but the server cannot list its tools. Fix its tools/list, then restart it.",
    ),
    (r"the secret '", "The page of the member lists its secrets: set what is missing, and allow the member to use it."),
    (r"(headers|env|args)\.[^:]+: ", "Put the secret where {file} says it is, for the runtime to see."),
    (r"HTTP status 40[13]", "The server refuses what the hall sends: look at headers in {file} and their secrets."),
    (r"HTTP status 404", "Nothing is served at that path: look at url in {file}, or serve /mcp."),
    (r"could not be reached|does not answer at http", "Look at url in {file}, and whether the server there runs."),
    (r"signal SIGKILL", "Something outside the hall killed it: a person, or the system because memory ran out."),
    (r"exit code 0\b", "It ended, but a server runs until it is stopped. Read its log."),
    (r"its process is gone", "Restart it. Should it happen again, read the runtime's log."),
    (r"does not answer on port", "It runs, but takes no connections any more: read its log, then restart it."),
]
# Patterns for the member's last output. It says better than an exit code what is missing.
_ADVICE_BY_TAIL = [
    (
        r"No module named '(?P<module>[\w.-]{1,100})'",
        "Install the Python module {module} for the Python that command in {file} names.",
    ),
    (
        r"Cannot find (?:module|package) '(?P<module>[^'\n]{1,100})'",
        "Install the package {module}, with npm install in {directory}.",
    ),
    (
        r"(?i)address already in use|EADDRINUSE",
        "It listens on a port that another program has: it must take the one it is given, ${{PORT}} in args or env.",
    ),
    (
        r"(?m)^(?:bridge|sandbox): command not found: '(?P<command>[^'\n]{1,200})'",
        "Install {command}, or give its full path as command in {file}.",
    ),
    (
        r"(?i)permission denied|EACCES|EPERM|operation not permitted|read-only file system",
        "The system refuses it a file, a folder or a port. If {file} turns its sandbox on, put what it needs into its "
        "folder, or set sandbox to off.",
    ),
    (r"can't open file '(?P<path>[^'\n]{1,200})'", "Look at args in {file}: there is no {path}."),
    (r"SyntaxError|IndentationError", "Fix the line that its log names, then restart it."),
]


def _remedy(facts: Facts, sentence: str, tail: str) -> str:
    match = _first(_ADVICE_BY_TAIL, tail, facts) or _first(_ADVICE, sentence, facts)
    advice = match or ("Read its log, fix it, then restart it." if tail else "Restart it.")
    return _line(advice + ("" if facts.next_restart_at else " The hall does not try again automatically."))


def _first(advice: list[tuple[str, str]], text: str, facts: Facts) -> str:
    for pattern, sentence in advice:
        if match := re.search(pattern, text):
            return sentence.format(name=facts.name, file=facts.file, directory=facts.directory, **match.groupdict())
    return ""


def _line(text: str) -> str:
    line = " ".join(text[: 4 * MAX_LINE].split())
    return f"{line[: MAX_LINE - 1]}…" if len(line) > MAX_LINE else line


def _sentence(text: str) -> str:
    line = _with_full_stop(_line(text))
    return line[:1].upper() + line[1:]


def _with_full_stop(line: str) -> str:
    return line if not line or line[-1] in ".…" else f"{line}."
