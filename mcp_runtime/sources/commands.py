"""A command line as an entry: `npx -y package`, `claude mcp add ...`. It is split into words, and runs in no shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.documents import read_json
from mcp_runtime.sources.drafts import MAX_ARGS
from mcp_runtime.sources.servers import Entry

_OPERATORS = re.compile(r"[();<>|&]+")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_CLIENTS = {"claude": "Claude Code", "gemini": "Gemini CLI", "codex": "Codex"}
# Options of `claude mcp add` and its like, whose value says nothing about the server.
_SKIPPED_WITH_VALUE = {"-s", "--scope", "--callback-port", "--client-id", "--timeout", "--description"}
_SKIPPED = {"--trust", "--client-secret", "--include-tools", "--exclude-tools"}


def entry_of(text: str) -> tuple[str, Entry]:
    """What the line is, and its server. Raises SourceError, which never quotes the line."""
    words = split(text)
    if words[0] in _CLIENTS and words[1:2] == ["mcp"]:
        return f"a command of {_CLIENTS[words[0]]}", _of_client(words)
    env: dict[str, str] = {}
    while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
        env[assignment[1]] = assignment[2]
        words = words[1:]
    if not words:
        raise SourceError("", "sets variables, and starts no program after them")
    values: dict[str, Any] = {"command": words[0], "args": words[1:]}
    return "a command line", Entry("", "", {**values, "env": env} if env else values, allow_bare=True)


def split(text: str) -> list[str]:
    """The words of one command. Raises SourceError for several, and for all that only a shell understands."""
    line = re.sub(r"\\\r?\n", " ", text.strip()).removeprefix("$ ").strip()
    if "\n" in line or "\r" in line:
        raise SourceError("", "has several lines; give one command, or the configuration of a client in JSON or TOML")
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        raise SourceError("", "has a quotation mark without its pair") from None
    if any(_OPERATORS.fullmatch(word) for word in words):
        raise SourceError(
            "", "has an operator of a shell, such as | or &&; the hall starts one program without a shell"
        )
    if any("`" in word or "$(" in word for word in words):
        raise SourceError("", "has a command in a command; the hall starts one program without a shell")
    if not words:
        raise SourceError("", "is empty")
    if len(words) > MAX_ARGS:
        raise SourceError("", f"has more than {MAX_ARGS} words")
    return words


# Commands of clients ----------------------------------------------------------------------------------------------


def _of_client(words: list[str]) -> Entry:
    """`claude mcp add [OPTIONS] NAME [--] COMMAND [ARGS]`, or with a url in place of the command."""
    action = words[2] if len(words) > 2 else ""
    if action == "add-json":
        return _of_json(words[3:])
    if action != "add":
        raise SourceError("", "is no command that adds a server; it begins with mcp add")
    values: dict[str, Any] = {}
    names = _read_options(words[3:], values)
    if not names:
        raise SourceError("", "has no name for the server")
    name, *argv = names
    if argv and _ADDRESS.match(argv[0]) and values.get("type") != "stdio":
        values["url"] = argv[0]
    elif argv:
        values |= {"command": argv[0], "args": argv[1:]}
    return Entry(name, "", values, allow_bare=True)


def _read_options(words: Sequence[str], values: dict[str, Any]) -> list[str]:
    """Put the options into `values`. Return the name, and the words of the command."""
    names: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, is_joined, joined = word.partition("=")
        if word == "--":
            return [*names, *rest]
        is_after_command = len(names) > 1 and not _ADDRESS.match(names[1])
        if not word.startswith("-") or is_after_command:  # options after the command are its own
            names.append(word)
        elif option in _SKIPPED_WITH_VALUE or option in _SKIPPED:
            if option in _SKIPPED_WITH_VALUE and not is_joined:
                _next(rest)
        else:
            _read_option(option, joined if is_joined else _next(rest), rest, values)
    return names


def _read_option(option: str, value: str, rest: list[str], values: dict[str, Any]) -> None:
    if option in ("-t", "--transport"):
        values["type"] = value
    elif option == "--url":
        values["url"] = value
    elif option == "--bearer-token-env-var":
        values["bearer_token_env_var"] = value
    elif option in ("-e", "--env"):
        _add_pair(values.setdefault("env", {}), value, "=")
        while rest and _ASSIGNMENT.fullmatch(rest[0]):
            _add_pair(values["env"], rest.pop(0), "=")
    elif option in ("-H", "--header"):
        _add_pair(values.setdefault("headers", {}), value, ":")
        while rest and re.match(r"[A-Za-z][\w-]*:(?!//)", rest[0]):
            _add_pair(values["headers"], rest.pop(0), ":")
    else:
        raise SourceError("", "has an option that the hall does not know")


def _add_pair(values: dict[str, str], text: str, separator: str) -> None:
    name, is_pair, value = text.partition(separator)
    if not is_pair:
        raise SourceError("", f"has a variable or header without {separator!r} between its name and its value")
    values[name.strip()] = value.strip()


def _next(words: list[str]) -> str:
    if not words:
        raise SourceError("", "ends with an option that needs a value")
    return words.pop(0)


def _of_json(words: list[str]) -> Entry:
    """`claude mcp add-json [OPTIONS] NAME JSON`."""
    names = _read_options(words, {})
    if len(names) != 2:
        raise SourceError("", "must have a name, and the configuration of the server in JSON")
    return Entry(names[0], "", read_json(names[1]), allow_bare=False)
