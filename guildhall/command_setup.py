"""What the parts of `guildhall` share: the hall of the command line, Django without the web, and one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.core.management.base import BaseCommand

PROGRAM = "guildhall"
PROJECT = Path(__file__).resolve().parent.parent
USAGE = f"usage: {PROGRAM} [--hall FOLDER] COMMAND [ARGUMENT ...]"
# Options of Django's commands that are of no use here. They work, but no help shows them.
HIDDEN_OPTIONS = ("--version", "--verbosity", "--settings", "--pythonpath", "--traceback", "--force-color")


class UsageError(Exception):
    """The command line is wrong. `str()` says what to write instead."""


def choose_hall(folder: str) -> None:
    """Give this process the variables of its hall. Raises HallChoiceError and ImproperlyConfigured."""
    from guildhall.environment import env_path, read_env_file
    from mcp_runtime.system import running_halls

    if not folder:
        read_env_file(env_path("GUILD_HALL_ENV_FILE", PROJECT / ".env"))
    running_halls.choose(folder, PROJECT)


def load_django() -> None:
    """Load Django without the web. Creates no data folder. Raises ImproperlyConfigured."""
    from guildhall import data_folder, quick_start

    data_folder.is_created = False
    quick_start.load_django()


def load_command(name: str) -> BaseCommand:
    """The command. Django must be loaded."""
    from importlib import import_module

    command: BaseCommand = import_module(f"roster.management.commands.{name}").Command()
    command.suppressed_base_arguments = set(HIDDEN_OPTIONS)
    command.requires_system_checks = []  # they are for a start
    return command
