"""The settings of single sign-on and of an outside issuer whose values are more than a number or a path.

docs/single-sign-on.md and docs/outside-issuer.md explain them.

A wrong value raises ImproperlyConfigured, which says what to give instead.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from guildhall.environment import env_list, env_path, env_web_url

EVERYBODY = "everybody"
_DOMAIN = re.compile(r"@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_CLAIM = r"[A-Za-z0-9_:./-]{1,100}"
_CLAIM_AND_VALUE = re.compile(rf"{_CLAIM}=[^=\s][^=]{{0,199}}")
_GROUP_AND_TARGET = re.compile(r"[^\s].{0,299}=\s*[^=\s][^=]{0,149}")
_SCOPE_AND_TARGET = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,300}=(all|(set:)?[A-Za-z0-9][A-Za-z0-9._-]{0,99})")
MAX_PARTS = 200
MAX_SECRET = 1000


def env_text(name: str, default: str = "") -> str:
    """One line of printable ASCII."""
    text = os.environ.get(name, "").strip() or default
    if len(text) > MAX_SECRET or not re.fullmatch(r"[\x20-\x7e]*", text):
        raise ImproperlyConfigured(f"{name}: give one line of at most {MAX_SECRET} visible ASCII characters.")
    return text


def env_label(name: str) -> str:
    text = os.environ.get(name, "").strip()
    if len(text) > 60 or not text.isprintable():
        raise ImproperlyConfigured(f"{name}={text!r}: give at most 60 visible characters, e.g. Example Ltd.")
    return text


def env_scopes(name: str) -> str:
    text = " ".join((os.environ.get(name, "").strip() or "openid profile email").split())
    if "openid" not in text.split() or not re.fullmatch(r"[\x21\x23-\x5b\x5d-\x7e ]{1,1000}", text):
        raise ImproperlyConfigured(f"{name}={text!r}: give scopes with spaces between, openid among them.")
    return text


def env_claim(name: str, default: str) -> str:
    text = os.environ.get(name, "").strip() or default
    if not re.fullmatch(_CLAIM, text):
        raise ImproperlyConfigured(f"{name}={text!r}: give the name of a claim, e.g. {default}.")
    return text


def env_secret_file(name: str) -> tuple[Path | None, str]:
    """The file with the client's secret, and the secret. None if there is no such file in the settings."""
    if not os.environ.get(name, "").strip():
        return None, ""
    path = env_path(name, Path())
    try:
        text = path.read_bytes()[: MAX_SECRET + 2].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"{name}: {path} cannot be read; give another file.") from error
    if not text or len(text) > MAX_SECRET or not text.isprintable():
        raise ImproperlyConfigured(f"{name}: {path} has no secret; give a file with one line.")
    return path, text


def env_allow(name: str) -> list[str]:
    """Who may log in: `everybody`, or parts of which one must apply. Each is `@DOMAIN` or `CLAIM=VALUE`."""
    parts = env_list(name)
    for part in parts:
        if part != EVERYBODY and not _DOMAIN.fullmatch(part) and not _CLAIM_AND_VALUE.fullmatch(part):
            raise ImproperlyConfigured(
                f"{name}: {part!r} is none of those; give {EVERYBODY}, or parts such as @example.com and groups=staff, "
                "separated by commas."
            )
    if len(parts) > MAX_PARTS or (EVERYBODY in parts and len(parts) > 1):
        raise ImproperlyConfigured(f"{name}: give {EVERYBODY} alone, or at most {MAX_PARTS} other parts.")
    return parts


def env_groups(name: str) -> list[tuple[str, str]]:
    """Each group of the provider with a role or group of the hall. `*` is everybody who may log in."""
    parts = env_list(name)
    for part in parts:
        if not _GROUP_AND_TARGET.fullmatch(part):
            raise ImproperlyConfigured(
                f"{name}: {part!r} is no pair; give GROUP=ROLE or GROUP=GROUP, separated by commas, "
                "e.g. engineering=operator."
            )
    if len(parts) > MAX_PARTS:
        raise ImproperlyConfigured(f"{name}: give at most {MAX_PARTS} pairs.")
    pairs = [part.rpartition("=") for part in parts]
    return [(group.strip(), target.strip()) for group, _, target in pairs]


def env_issuer(name: str) -> str:
    """The issuer letter by letter, also with a slash at its end, because tokens and clients have it so."""
    text = os.environ.get(name, "").strip()
    env_web_url(name, "https://login.example.com/realms/staff")  # raises for what is no address
    return text


def env_scopes_of_issuer(name: str) -> list[tuple[str, str]]:
    """Each scope of the issuer with what it gives: `all`, a member, or `set:` and a tool set. By default `mcp=all`."""
    parts = env_list(name) or ["mcp=all"]
    for part in parts:
        if not _SCOPE_AND_TARGET.fullmatch(part):
            raise ImproperlyConfigured(
                f"{name}: {part!r} is no pair; give SCOPE=all, SCOPE=MEMBER or SCOPE=set:TOOL_SET, separated by "
                "commas, e.g. mcp=all."
            )
    pairs = [(scope, target) for scope, _, target in (part.rpartition("=") for part in parts)]
    claimed = {scope.rpartition("/")[2] for scope, _ in pairs}
    if len(pairs) > MAX_PARTS or len(claimed) < len(pairs):
        raise ImproperlyConfigured(
            f"{name}: give at most {MAX_PARTS} scopes, each once. Two scopes may not have the same text after their "
            "last slash, because tokens may have only that."
        )
    return pairs
