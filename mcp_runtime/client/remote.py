"""A remote server: which url is allowed, and which headers it gets.

The manifest, the database and every screen have the references `${env:NAME}` and `${file:PATH}`. The secret itself is
read when a connection begins. Only the client that sends it has it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from mcp_runtime.protocol.errors import SecretError

MAX_URL = 2048
MAX_HEADERS = 100
MAX_NAME = 200
MAX_VALUE = 8192

URL = re.compile(
    r"https?://([A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?"
    r"(/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?(\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?"
)
# Everybody who may see the roster sees the url, so it must not contain a secret.
SECRET_IN_QUERY = re.compile(r"(?i)[?&;][^=&;]*(token|secret|key|password|credential|auth|sig|signature)(=|&|;|$)")

NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110: token
VALUE = re.compile(r"([!-~]([ -~]*[!-~])?)?")  # visible ASCII, spaces inside
# The client sets these, or the connection depends on them.
RESERVED = re.compile(
    r"(?i)host|content-length|content-type|content-encoding|accept|accept-encoding|user-agent|mcp-.*|connection"
    r"|keep-alive|proxy-connection|transfer-encoding|te|trailer|upgrade|expect"
)
SECRET_NAME = re.compile(
    r"(?i)^authorization$|^proxy-authorization$|^cookie$|auth$|token|secret|key|password|credential"
)
REFERENCE = re.compile(r"\$\{(?:env:([A-Za-z_][A-Za-z0-9_]*)|file:([^{}]+))\}")
# The hall's settings, the password of its database, and the keys of its agents: never sent to a server.
OWN_VARIABLE = re.compile(
    r"GUILD_HALL_.*|DATABASE_URL|REDIS_URL|CELERY_BROKER_URL|PG[A-Z]+|ANTHROPIC_API_KEY|ANTHROPIC_AUTH_TOKEN|CLAUDE_CODE_OAUTH_TOKEN"
)
# The kernel shows processes here, with their environment.
KERNEL_FOLDERS = (Path("/proc"), Path("/sys"))
SECRET_PREFIX = 8  # so many first characters of a longer secret are masked too
SHORTEST_SECRET = 4  # masking "1" would make every text unreadable
NOT_FOR_MEMBERS = "is the hall's own, and no member's"
REFERENCE_HINT = "write ${env:NAME} or ${file:PATH} in its place, and keep it there"


# The url ----------------------------------------------------------------------------------------------------------


def url_fault(url: str) -> str:
    """Why it cannot be a server's address. Empty if it can."""
    authority = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]
    if "${" in url:
        return "nothing is filled in here: there is no port to give, and a secret belongs into headers"
    if "@" in authority:
        return "must not hold a user or a password, for everybody sees it; send them in headers"
    if not URL.fullmatch(url):
        return "must be an address such as https://host/path: http or https, ASCII, no fragment"
    try:
        _ = ipaddress.ip_address(_host(url)) if "[" in authority else None
        if urlsplit(url).port == 0:
            return "port 0 is none"
    except ValueError as error:
        return f"is not an address: {error}"
    if SECRET_IN_QUERY.search(url):
        return "its query seems to hold a secret, and everybody sees it; send it in headers"
    return ""


def plain_http_fault(url: str, allowed_hosts: Collection[str]) -> str:
    """Why it may not be called without TLS. Empty if it may, or if it uses TLS."""
    host = _host(url)
    if (
        not url.startswith("http://")
        or _is_loopback(host)
        or any(_is_named(host, name.lower()) for name in allowed_hosts)
    ):
        return ""
    return (
        f"{host} is another machine, and http shows it to everybody on the way: use https, "
        f"or let GUILD_HALL_PLAIN_HTTP_HOSTS name it"
    )


def _is_named(host: str, name: str) -> bool:
    return host == name.strip("[]") or (name.startswith(".") and host.endswith(name))


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").rstrip(".")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def display_url(url: str) -> str:
    """The url without its query, which often identifies the hall."""
    return url.partition("?")[0]


# Headers ----------------------------------------------------------------------------------------------------------


def header_fault(name: str, value: str) -> str:
    """Why the header cannot be sent, or should not be in a manifest. Empty if nothing is wrong."""
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        return "is not a name for a header"
    if RESERVED.fullmatch(name):
        return "is a header that the hall itself sends"
    if not VALUE.fullmatch(value) or len(value) > MAX_VALUE:
        return f"must be one line of visible ASCII, at most {MAX_VALUE:,} characters, no space at either end"
    if "${" in REFERENCE.sub("\0", value):
        return "only ${env:NAME} and ${file:PATH} are filled in"
    if own_variables := [env for env, _ in REFERENCE.findall(value) if OWN_VARIABLE.fullmatch(env)]:
        return f"{own_variables[0]} {NOT_FOR_MEMBERS}"
    if SECRET_NAME.search(name) and not REFERENCE.search(value):
        return f"holds a secret in clear; {REFERENCE_HINT}"
    return ""


@dataclass(frozen=True)
class Headers:
    """Headers as they are sent. Never show their values in a log, an error, or the locals of a traceback."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The secrets in the values. The hall masks them in texts of the server."""


@dataclass(frozen=True)
class Sources:
    """Where references are read from: the environment, and files relative to the member's `folder`."""

    folder: Path
    private: tuple[Path, ...] = ()
    """Files and folders of the hall. Their content is never sent to a server."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def read(self, reference: re.Match[str]) -> str:
        """Raises SecretError, which names the place and never the value."""
        env, path = reference.groups()
        place = f"the environment variable {env}" if env else f"the file {path}"
        if env and OWN_VARIABLE.fullmatch(env):
            raise SecretError(f"{place} {NOT_FOR_MEMBERS}")
        text = self.environment.get(env, "") if env else self._content(self.folder / path, place)
        text = text.strip()
        if not text:
            raise SecretError(f"{place} is {'empty' if not env or env in self.environment else 'not set'}")
        if not VALUE.fullmatch(text) or len(text) > MAX_VALUE:
            raise SecretError(f"{place} holds what no header can: it must be one line of visible ASCII")
        return text

    def _content(self, path: Path, place: str) -> str:
        try:
            if path.exists() and not path.is_file():
                raise SecretError(f"{place} is not a file")
            # The file may have changed since, so check the open one. O_NONBLOCK: do not wait for the writer of a pipe.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise SecretError(f"{place} is not a file")
                if self._is_private(path.resolve(), status):
                    raise SecretError(f"{place} {NOT_FOR_MEMBERS}")
                return file.read(4 * MAX_VALUE).decode("latin-1")
        except (FileNotFoundError, NotADirectoryError):
            raise SecretError(f"{place} does not exist") from None
        except ValueError:  # a NUL in the path
            raise SecretError(f"{place} is no path") from None
        except OSError as error:
            raise SecretError(f"{place} cannot be read: {error.strerror}") from error

    def _is_private(self, path: Path, status: os.stat_result) -> bool:
        if any(path.is_relative_to(folder) for folder in KERNEL_FOLDERS):
            return True
        # The members folder may be inside the data folder.
        if path.is_relative_to(self.folder.resolve()):
            return _is_one_of(status, self.private)
        return any(path.is_relative_to(place.resolve()) for place in self.private) or _is_one_of(status, self.private)


def _is_one_of(status: os.stat_result, places: Collection[Path]) -> bool:
    """Whether a file is one of these, or directly in one of these folders. A hard link counts too."""
    for place in places:
        files = place.iterdir() if place.is_dir() else [place]
        for file in files:
            with contextlib.suppress(OSError):
                if os.path.samestat(status, file.stat()):
                    return True
    return False


def resolve(headers: Mapping[str, str], sources: Sources) -> Headers:
    """Fill in the references of headers. Raises SecretError, which names the place and never the value."""
    secrets: list[str] = []

    def fill_in(match: re.Match[str]) -> str:
        secrets.append(sources.read(match))
        return secrets[-1]

    values = {}
    for name, value in headers.items():
        try:
            values[name] = REFERENCE.sub(fill_in, value)
        except SecretError as error:
            raise SecretError(f"headers.{name}: {error}") from error
    return Headers(values, tuple(secrets))


def reference_faults(headers: Mapping[str, str], sources: Sources) -> Iterator[str]:
    """All references that `resolve` could not fill in, one sentence for each."""
    for name, value in headers.items():
        for match in REFERENCE.finditer(value):
            try:
                sources.read(match)
            except SecretError as error:
                yield f"headers.{name}: {error}"


def mask_secrets(text: str, secrets: Collection[str]) -> str:
    """Replace secrets by `***`. Servers quote a token that they refuse."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            for form in (secret, json.dumps(secret)[1:-1]):
                text = _mask_prefixes(text.replace(form, "***"), form)
    return text


def _mask_prefixes(text: str, secret: str) -> str:
    """Mask a secret of which `text` has only the beginning, because a quote was cut off."""
    if len(secret) <= SECRET_PREFIX:
        return text
    first, *parts = text.split(secret[:SECRET_PREFIX])
    return first + "".join("***" + part[_common(part, secret[SECRET_PREFIX:]) :] for part in parts)


def _common(text: str, other: str) -> int:
    """How many characters both begin with."""
    return next((at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
