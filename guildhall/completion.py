"""Completion in bash, zsh and fish, from the parsers of the commands and the rows of the hall.

The script of a shell runs `guildhall __complete WORD...`, whose last word is the one to complete. Each line of the
answer is a candidate, with a tab and its description if it has one. The line `:files` asks the shell for files.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from guildhall import command_setup, commands
from mcp_runtime.system import console

SHELLS = ("bash", "zsh", "fish")
FILES = ":files"
OWN_WORDS = {"help": "Show the commands, or the help of one", "completion": "Print the completion for a shell"}
MAX_DESCRIPTION = 100  # characters
# Names come from members, and shells give some characters a meaning. Other names are not completed.
_SAFE = re.compile(r"[A-Za-z0-9_@%+,.:=/-]{1,255}")


def write_script(arguments: Sequence[str]) -> int:
    """Print the script for a shell. Raises UsageError."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise command_setup.UsageError(f"usage: {command_setup.PROGRAM} completion {{{','.join(SHELLS)}}}")
    print((Path(__file__).parent / "completion_scripts" / f"guildhall.{arguments[0]}").read_text(), end="")
    return 0


def complete(hall: str, words: Sequence[str]) -> int:
    """Print the candidates. It prints nothing if it cannot find any, because an error would spoil the command line."""
    with contextlib.suppress(Exception), contextlib.redirect_stderr(None):
        for value, description in _candidates(hall, [*words] or [""]):
            if value == FILES or (_SAFE.fullmatch(value) and value.startswith(words[-1])):
                print(f"{value}\t{_shown(description)}" if description else value)
    return 0


def _shown(description: str) -> str:
    """One line without control characters, because descriptions come from members too."""
    return " ".join(re.sub(f"[{console.CONTROLS}]", " ", description).split())[:MAX_DESCRIPTION]


def _candidates(hall: str, words: list[str]) -> Iterator[tuple[str, str]]:
    match words:
        case [_] | ["help", _]:
            yield from ((name, "") for name in commands.NAMES)
            yield from OWN_WORDS.items() if len(words) == 1 else ()
            yield from (("--hall", "the data folder of the hall"),) if len(words) == 1 else ()
        case ["completion", _]:
            yield from ((shell, "") for shell in SHELLS)
        case ["--hall", _]:
            yield FILES, ""
        case ["--hall", folder, *rest]:
            yield from _candidates(folder, rest)
        case [name, *rest] if name in commands.NAMES:
            command_setup.choose_hall(hall)
            command_setup.load_django()
            parser = command_setup.load_command(name).create_parser(command_setup.PROGRAM, name)
            yield from _of_command(name, parser, rest)


# The parser -------------------------------------------------------------------------------------------------------


def _of_command(name: str, parser: argparse.ArgumentParser, words: list[str]) -> Iterator[tuple[str, str]]:
    """The candidates for the last of the words, which are those after the name of the command."""
    values: dict[str, str] = {}
    positionals = _positionals(parser)
    pending: argparse.Action | None = None  # the option that waits for its value
    for word in words[:-1]:
        if pending is not None:
            pending = None
        elif word.startswith("-") and word != "-":
            option = parser._option_string_actions.get(word)
            pending = option if option is not None and option.nargs != 0 else None
        elif positionals:
            action = positionals[0]
            values[action.dest] = word
            if isinstance(action, argparse._SubParsersAction):
                if word not in action.choices:
                    return
                parser = action.choices[word]
                positionals = _positionals(parser)
            elif action.nargs not in ("*", "+"):
                positionals = positionals[1:]
    last = words[-1]
    if pending is not None:
        yield from _of_action(name, pending, values, last)
    elif last.startswith("-"):
        yield from _options(parser)
    elif positionals:
        yield from _of_action(name, positionals[0], values, last)


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            formatter = argparse.HelpFormatter(parser.prog)
            yield max(action.option_strings, key=len), formatter._expand_help(action) if action.help else ""


def _of_action(name: str, action: argparse.Action, values: dict[str, str], word: str) -> Iterator[tuple[str, str]]:
    if isinstance(action, argparse._SubParsersAction):
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        yield from ((str(choice), helps.get(choice, "")) for choice in action.choices)
    elif action.choices is not None:
        yield from ((str(choice), "") for choice in action.choices)
    elif action.type is Path or (name, action.dest) == ("add_member", "source"):
        yield FILES, ""
    else:
        from roster.management import completion_rows

        yield from completion_rows.candidates(name, action.dest, values, word)
