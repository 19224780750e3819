"""Reads settings from the environment. A wrong value raises ImproperlyConfigured, which says what to give instead."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

MANAGED_PORTS = (20000, 30000)


def read_env_file(path: Path) -> None:
    """Take the variables of the file that the environment does not have. So all commands have the same settings."""
    if not path.is_file():
        if os.environ.get("GUILD_HALL_ENV_FILE", "").strip() and not path.exists():
            raise ImproperlyConfigured(f"GUILD_HALL_ENV_FILE={path}: there is no such file; give the path of another.")
        return
    from dotenv import dotenv_values  # only here, because commands must start fast, and most halls have no such file

    try:
        values = dotenv_values(path, interpolate=False, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"{path}: it cannot be read ({error}); fix it, or move it away.") from error
    for name, value in values.items():
        os.environ.setdefault(name, value or "")


def env_int(name: str, default: int, lowest: int, highest: int) -> int:
    text = os.environ.get(name, "").strip() or str(default)
    if not re.fullmatch(r"\d{1,12}", text) or not lowest <= int(text) <= highest:
        raise ImproperlyConfigured(f"{name}={text!r}: give a whole number from {lowest} to {highest}, e.g. {default}.")
    return int(text)


def env_name(name: str, default: str) -> str:
    text = os.environ.get(name, "").strip() or default
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise ImproperlyConfigured(f"{name}={text!r}: give 1 to 64 letters, digits, '.', '-' and '_', e.g. {default}.")
    return text


def env_choice(name: str, choices: tuple[str, ...]) -> str:
    text = os.environ.get(name, "").strip()
    if text and text not in choices:
        raise ImproperlyConfigured(f"{name}={text!r}: give {' or '.join(choices)}, or leave it out.")
    return text


def env_list(name: str) -> list[str]:
    return [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]


def env_labels(name: str) -> list[str]:
    labels = env_list(name)
    for label in labels:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", label):
            raise ImproperlyConfigured(
                f"{name}={label!r}: give labels of 1 to 64 letters, digits, '.', '-' and '_', separated by commas, "
                "e.g. gpu,eu-west."
            )
    return labels


def env_path(name: str, default: Path) -> Path:
    text = os.environ.get(name, "").strip()
    return (Path.cwd() / Path(text).expanduser()).resolve() if text else default


def env_file(name: str, *, required: bool = False) -> Path | None:
    path = env_path(name, Path()) if os.environ.get(name, "").strip() else None
    if (path is None and required) or (path is not None and not path.is_file()):
        found = f"{path}: there is no such file" if path is not None else "GUILD_HALL_NODE_URL begins with https"
        raise ImproperlyConfigured(f"{name}: {found}; give the path of a PEM file.")
    return path


def env_folder(name: str) -> Path | None:
    path = env_path(name, Path()) if os.environ.get(name, "").strip() else None
    if path is not None and not path.is_dir():
        raise ImproperlyConfigured(f"{name}: {path}: there is no such folder; give the path of another.")
    return path


def env_port_range(name: str) -> tuple[int, int]:
    lowest, highest = MANAGED_PORTS
    text = os.environ.get(name, "").strip() or f"{lowest}-{highest}"
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if not match or not lowest <= int(match[1]) <= int(match[2]) <= highest:
        raise ImproperlyConfigured(
            f"{name}={text!r}: give FIRST-LAST inside the managed range {lowest}-{highest}, e.g. 20000-20499."
        )
    return int(match[1]), int(match[2])


def env_url(name: str, default: str, schemes: tuple[str, ...]) -> str:
    """Read an address. Errors do not show it, because it may contain a password."""
    text = os.environ.get(name, "").strip() or default
    if ":memory:" in text:
        raise ImproperlyConfigured(f"{name}: web and runtime cannot share a database in memory; give a file's address.")
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises for a port that is none
    except ValueError as error:
        scheme = schemes[0]
        raise ImproperlyConfigured(f"{name}: not an address ({error}); give e.g. {scheme}://host:1234/name.") from None
    if text and parts.scheme not in schemes:
        raise ImproperlyConfigured(f"{name}: the address must begin with {' or '.join(s + '://' for s in schemes)}.")
    return text


def env_node_url(name: str) -> str:
    """Read the address of the listener for other nodes. It has no path, because all of it is the gateway's."""
    text = os.environ.get(name, "").strip().removesuffix("/")
    match = re.fullmatch(r"(https?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", text)
    if text and not (match and 0 < int(match[3]) <= 65535):
        raise ImproperlyConfigured(
            f"{name}={text!r}: give http:// or https://, a host and a port, e.g. http://10.0.0.5:8200."
        )
    return text


def env_web_url(name: str, example: str) -> str:
    """Read an address of http or https, without a slash at its end. It may have a path, as a prefix of all others."""
    text = os.environ.get(name, "").strip().removesuffix("/")
    pattern = r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:(\d{1,5}))?(/[A-Za-z0-9._~-]+)*"
    match = re.fullmatch(pattern, text)
    if text and not (match and 0 < int(match[3] or 80) <= 65535):
        raise ImproperlyConfigured(
            f"{name}={text!r}: give http:// or https:// and a host, if needed with a port and a prefix, e.g. {example}."
        )
    return text


def env_hosts(name: str) -> list[str]:
    hosts = env_list(name)
    for host in hosts:
        if not re.fullmatch(r"\.?[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]", host):
            raise ImproperlyConfigured(f"{name}: {host!r} is no host name; give hall.example.com, without a scheme.")
    return hosts


def env_origins(name: str) -> list[str]:
    origins = env_list(name)
    for origin in origins:
        if not re.fullmatch(r"https?://[A-Za-z0-9.*\[\]:-]+", origin):
            raise ImproperlyConfigured(f"{name}: {origin!r} is not an origin; give https://hall.example.com, no path.")
    return origins
