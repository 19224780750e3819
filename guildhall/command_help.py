"""The text of `guildhall help`: the commands of the hall in groups, each with the first sentence of its help."""

from __future__ import annotations

import re
import shutil
import textwrap

from django.conf import settings

from guildhall import command_setup, commands

LEAD = f"""\
{command_setup.USAGE}

Commands of Guild Hall. They find the running hall of this user. If there are several, --hall names its data folder.
`guildhall COMMAND --help` describes one command."""
TAIL = """\
`guildhall completion bash`, `zsh` or `fish` prints the completion for this shell. The commands of Django are in
`manage.py help`. docs/command-line.md lists the exit codes."""
INDENT = 22


def overview() -> str:
    """Django must be loaded. Lines are as long as those of the terminal, or 100 characters without one."""
    width = shutil.get_terminal_size((100, 24)).columns
    groups = [
        f"{title}\n" + "\n".join(_line(name, width) for name in names) for title, names in commands.GROUPS.items()
    ]
    hall = f"Data folder: {settings.GUILD_HALL_DATA_DIR}"
    return "\n\n".join([LEAD, *groups, TAIL, hall])


def _line(name: str, width: int) -> str:
    return textwrap.fill(
        description(name),
        width,
        initial_indent=f"  {name:<{INDENT - 3}} ",
        subsequent_indent=" " * INDENT,
        break_long_words=False,
    )


def description(name: str) -> str:
    """The first sentence of the command's help."""
    text = command_setup.load_command(name).help
    return re.split(r"(?<=[.])\s|;\s", " ".join(text.split()))[0].removesuffix(".")
