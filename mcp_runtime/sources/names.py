"""Names for members, from the names that clients, packages and hosts have."""

from __future__ import annotations

import os
import re
import unicodedata
from urllib.parse import urlsplit

from mcp_runtime.members.manifest.parser import name_error
from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.clear import sounds_secret
from mcp_runtime.sources.drafts import quoted

MAX_NAME = 64
_LAUNCHERS = {"npx", "pnpx", "bunx", "uvx", "pipx", "npm", "pnpm", "yarn", "bun", "uv", "deno"}
_LAUNCHER_WORDS = {"run", "exec", "x", "dlx", "tool", "--"}
# Flags whose next word is not the package.
_FLAGS_WITH_VALUE = {
    *("--package", "-p", "--from", "--with", "--python", "--directory", "--project", "--index-url", "--spec"),
    *("--registry", "--prefix", "--call", "-c"),
}
_PACKAGE = re.compile(
    r"(?P<scope>@[^/@\s]+/)?(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^]]*\])?([@=]=?(?P<version>[^@\s]+))?"
)
_NOT_VERSIONS = {"latest", "next", "beta", "alpha", "canary", "*"}
_COMMON = re.compile(r"(?i)^(?:mcp-server-|server-|mcp-)|(?:-mcp-server|-server-mcp|-mcp|-server)$")


def member_name(name: str, place: str) -> tuple[str, str]:
    """A name for the member, and a note if it is another name than this one.

    Raises SourceError for a name that only looks like another one, or of which nothing remains.
    """
    if not name_error(name):
        return name, ""
    if any(unicodedata.category(character) in ("Cc", "Cf", "Co", "Cn", "Cs") for character in name):
        raise SourceError(place, "has a name with characters that nobody sees; give it another name")
    letters = [part for part in unicodedata.normalize("NFD", name) if not unicodedata.combining(part)]
    if not all(letter.isascii() for letter in letters):
        reason = f"has the name {quoted(name)}, whose letters can look like others; give it a name of a to z and digits"
        raise SourceError(place, reason)
    made = re.sub(r"[^A-Za-z0-9_]+", "-", "".join(letters)).strip("-_")[:MAX_NAME].rstrip("-_")
    if not made:
        raise SourceError(place, f"has the name {quoted(name)}, in which there is no letter or digit; give it another")
    return made, f"Its name {quoted(name)} becomes {made}, because names are letters, digits, - and _."


def package_of(argv: list[str]) -> tuple[str, str] | None:
    """The package that npx, uvx and others run, and its version, which is empty if none is pinned."""
    if not argv or _program(argv[0]) not in _LAUNCHERS:
        return None
    words = iter(argv[1:])
    for word in words:
        if word in _FLAGS_WITH_VALUE or (word.startswith("-") and "=" not in word and sounds_secret(word)):
            next(words, None)
        elif not word.startswith("-") and word not in _LAUNCHER_WORDS:
            match = _PACKAGE.fullmatch(word)
            if match is None:
                return None
            version = match["version"] or ""
            return (match["scope"] or "") + match["name"], "" if version in _NOT_VERSIONS else version
    return None


def suggested_name(argv: list[str], url: str) -> str:
    """A name for a server that has none. It may be no name for a member. Empty if there is no idea."""
    if url:
        return _name_of_host(urlsplit(url).hostname or "")
    if package := package_of(argv):
        scope, _, name = package[0].rpartition("/")
        short = _COMMON.sub("", name)
        return short if short not in ("", "mcp", "server") else scope.removeprefix("@") or name
    files = [word for word in argv[1:] if re.search(r"\.(py|js|mjs|cjs|ts)$", word)]
    return os.path.splitext(os.path.basename(files[0]))[0] if files else _program(argv[0])


def name_in_registry(name: str) -> str:
    """A name for a server that is io.github.anna/weather-mcp in a registry: weather."""
    namespace, _, last = name.rpartition("/")
    short = _COMMON.sub("", last)
    return short if short not in ("", "mcp", "server") else namespace.split(".")[-1] or last


def _program(command: str) -> str:
    name = re.split(r"[/\\]", command)[-1]
    return re.sub(r"(?i)\.(exe|cmd|bat)$", "", name)


def _name_of_host(host: str) -> str:
    labels = [label for label in host.split(".") if label not in ("mcp", "api", "www", "server")]
    if all(label.isdigit() for label in labels) or ":" in host:
        return host.replace(":", "-")
    return labels[-2] if len(labels) > 1 else labels[0] if labels else host
