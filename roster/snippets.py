"""A call as text to copy: curl, Python and the command line. Texts of members are quoted and not trusted.

Such texts end up in chats. So the token is the shell variable GUILD_HALL_TOKEN, and secrets in arguments are masked.
"""

from __future__ import annotations

import json
import pprint
import shlex
from typing import Any
from urllib.parse import quote, urljoin

from django.urls import reverse

from roster.models import Tool

TOKEN_VARIABLE = "GUILD_HALL_TOKEN"  # noqa: S105 - its name
WAIT_SECONDS = 30


def of_call(tool: Tool, arguments: dict[str, Any], home: str) -> dict[str, str]:
    """The call in each format, by its label. `home` is the address of the hall in the browser."""
    # Not with `reverse`, because a tool's name may contain what no URL pattern matches, e.g. a line break.
    place = f"members/{quote(tool.member.name, safe='')}/tools/{quote(tool.name)}/invoke/"
    url = urljoin(home, reverse("api") + place)
    return {
        "curl": curl(url, arguments),
        "Python": python(url, arguments),
        "Command line": command_line(tool.member.name, tool.name, arguments),
    }


def curl(url: str, arguments: dict[str, Any]) -> str:
    return " \\\n  ".join(
        [
            f"curl --fail-with-body --globoff --path-as-is -X POST {shell_word(url)}",
            f'-H "Authorization: Bearer ${TOKEN_VARIABLE}"',
            "-H 'Content-Type: application/json'",
            f"-H 'Prefer: wait={WAIT_SECONDS}'",
            f"--data-raw {shell_word(json.dumps({'arguments': arguments}))}",
        ]
    )


def python(url: str, arguments: dict[str, Any]) -> str:
    literal = pprint.pformat(arguments, indent=4, width=100, sort_dicts=False)
    lines = [
        "import os",
        "",
        "import requests",
        "",
        "answer = requests.post(",
        f"    {url!a},",
        "    headers={",
        f'        "Authorization": "Bearer " + os.environ["{TOKEN_VARIABLE}"],',
        f'        "Prefer": "wait={WAIT_SECONDS}",',
        "    },",
        f'    json={{"arguments": {_without_surprises(literal)}}},',
        f"    timeout={2 * WAIT_SECONDS},",
        ")",
        "answer.raise_for_status()",
        "print(answer.json())",
    ]
    return "\n".join(lines) + "\n"


def _without_surprises(source: str) -> str:
    """Only ASCII, because bidirectional characters would show other code than what runs."""
    return source.encode("ascii", "backslashreplace").decode()


def command_line(member_name: str, tool_name: str, arguments: dict[str, Any]) -> str:
    words = [member_name, tool_name, json.dumps(arguments)]
    # After `--` nothing is an option.
    dashes = "-- " if any(word.startswith("-") for word in words) else ""
    return f".venv/bin/guildhall invoke {dashes}{' '.join(shell_word(word) for word in words)}"


def shell_word(text: str) -> str:
    """`text` as one word of bash and zsh. Only printable ASCII, because a pasted control character could run code."""
    if text.isascii() and text.isprintable():
        return shlex.quote(text)
    literal = {ord(char) for char in map(chr, range(32, 127)) if char not in "'\\"}
    return "$'" + "".join(chr(byte) if byte in literal else f"\\x{byte:02x}" for byte in text.encode()) + "'"
