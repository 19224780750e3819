"""The command `guildhall`: the commands of the hall, for people in a terminal.

It runs the same commands as `manage.py`, and adds what a terminal needs: it finds the running hall, it shows only the
hall's commands, and errors are one line. It starts fast, because it loads neither the web nor the system checks, and
imports only the command that it runs. `commands` lists the commands, and docs/command-line.md describes the rest.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

from guildhall import commands, quick_start
from guildhall.command_setup import PROGRAM, PROJECT, USAGE, UsageError, choose_hall, load_command, load_django

EX_USAGE, EX_NO_HALL, EX_INTERRUPTED, EX_CLOSED_PIPE = 2, 3, 130, 141  # roster/management/exit_codes.py has the others


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line, and exit with its exit code."""
    gc.disable()  # until everything is imported, because an import leaves no garbage
    quick_start.load_modules_late()
    code = 1
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:
        code = EX_CLOSED_PIPE
        _drop_output()
    except OSError as error:  # most likely a full disk under the output
        _drop_output()
        code = _fail(str(error), code)
    except KeyboardInterrupt:
        code = EX_INTERRUPTED
    finally:
        gc.freeze()  # otherwise the interpreter scans all objects before it ends
    sys.exit(code)


def _drop_output() -> None:
    """Nobody reads the output any more. Without this, the interpreter would complain at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    from django.core.exceptions import ImproperlyConfigured

    from mcp_runtime.system.running_halls import HallChoiceError

    try:
        hall, words = _split(argv)
        if words[:1] == ["completion"]:
            from guildhall import completion

            return completion.write_script(words[1:])
        if words[:1] == ["__complete"]:
            from guildhall import completion

            return completion.complete(hall, words[1:])
        return _run_words(hall, words)
    except UsageError as error:
        return _fail(str(error), EX_USAGE)
    except (HallChoiceError, ImproperlyConfigured) as error:
        return _fail(str(error), EX_NO_HALL)


def _run_words(hall: str, words: list[str]) -> int:
    match words:
        case [] | ["help" | "-h" | "--help"]:
            from guildhall import command_help
            from mcp_runtime.system import running_halls

            with suppress(running_halls.HallChoiceError):  # the help needs no hall
                choose_hall(hall)
            load_django()
            print(command_help.overview())
            return 0
        case ["--version"]:
            from mcp_runtime.protocol import mcp

            print(mcp.HALL_VERSION)
            return 0
        case ["help", name, *_]:
            words = [name, "--help"]
    _require_command(words[0])
    choose_hall(hall)
    if not commands.is_beside_hall(words):
        _become_manage(words)
    load_django()
    return run_command(words)


def _split(argv: list[str]) -> tuple[str, list[str]]:
    """The data folder that the user names with --hall, or "", and the words after the options of this program."""
    match argv:
        case ["--hall", folder, *words] if folder:
            return folder, words
        case [option, *words] if option.startswith("--hall="):
            return option.removeprefix("--hall="), words
        case ["--hall", *_]:
            raise UsageError("--hall needs the data folder of a hall.")
        case [option, *_] if option.startswith("-") and option not in ("-h", "--help", "--version"):
            raise UsageError(f"there is no option {option}. {USAGE}")
    return "", argv


def _require_command(name: str) -> None:
    """Raises UsageError, which names similar commands."""
    if name in commands.NAMES:
        return
    from difflib import get_close_matches

    similar = get_close_matches(name, commands.NAMES, n=3)
    hint = f"Did you mean {' or '.join(similar)}?" if similar else f"`{PROGRAM} help` lists the commands."
    raise UsageError(f"there is no command {name!r}. {hint} Commands of Django are in manage.py.")


def _become_manage(words: list[str]) -> NoReturn:
    """Replace this process by `manage.py`, which starts the hall's processes."""
    os.execv(sys.executable, [sys.executable, str(PROJECT / "manage.py"), *words])  # noqa: S606 - no shell is wanted


# One command ------------------------------------------------------------------------------------------------------


def run_command(words: list[str]) -> int:
    """Run one command. Returns its exit code. Its parser exits at --help, and at a wrong command line with 2."""
    from django.core.management.base import CommandError
    from django.db import DatabaseError, connections

    sys.argv = [PROGRAM, *words]  # the audit log names the command
    command = load_command(words[0])
    command._called_from_command_line = True  # type: ignore[attr-defined]
    parser = command.create_parser(PROGRAM, words[0])
    options = vars(parser.parse_args(words[1:]))
    gc.freeze()  # the collector need not scan the modules again
    gc.enable()
    try:
        command.execute(*options.pop("args", ()), **options)
    except CommandError as error:
        return _fail(str(error), error.returncode)
    except DatabaseError as error:
        from mcp_runtime.rows.database import damage

        reason = " ".join(str(error).split())
        return _fail(damage(error) or f"the database cannot be used ({reason}).", EX_NO_HALL)
    finally:
        connections.close_all()
    return 0


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()  # before the message, if both go to the same place
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    return code
