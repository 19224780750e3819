"""guild-member.json: read it, judge it, hold it. No Django; nothing is started here.

Three forms are one after reading: the seeds' (flat), the first Guild Hall's (`displayName`, the server's settings
nested under `mcp`), and ours on top. docs/guild-member.schema.json says the same as a JSON Schema.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from mcp_runtime import remote
from mcp_runtime.errors import ManifestError
from mcp_runtime.jsonrpc import storable
from mcp_runtime.protocol import MODERN_VERSION

FILE_NAME = "guild-member.json"
MAX_BYTES = 1_000_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED_ENV_PREFIX = "GUILD_HALL_"
MAX_SECONDS = 86_400.0
MAX_WARNINGS = 20
START_TIMEOUT = 5.0
# Commands that fetch the server before they start it, the first time; each as the words it begins with.
FETCHING_COMMANDS = (
    *(("npx",), ("npm", "exec"), ("npm", "x"), ("pnpx",), ("pnpm", "dlx"), ("yarn", "dlx"), ("bunx",), ("bun", "x")),
    *(("uvx",), ("uv", "run"), ("uv", "tool", "run"), ("pipx", "run"), ("docker",), ("podman",)),
)
# A few hundred megabytes at an ordinary line's speed: longer is mostly a registry that does not answer.
FETCHING_START_TIMEOUT = 120.0

Transport = Literal["http", "stdio"]
RestartPolicy = Literal["on-failure", "never"]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A member's manifest, judged good. Times in seconds. It has either a `command` or a `url`."""

    name: str
    version: str
    command: str = ""
    transport: Transport = "http"
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """With references in the place of secrets; `remote.resolve` fills them in."""
    display_name: str = ""
    description: str = ""
    enabled: bool = True
    start_timeout: float = START_TIMEOUT
    timeout: float = 30.0
    tool_timeouts: dict[str, float] = field(default_factory=dict)
    restart: RestartPolicy = "on-failure"
    max_concurrency: int = 16
    protocol_version: str = ""
    """The version of MCP to begin with where no handshake is wanted; empty: a handshake finds out."""

    def argv(self, port: int) -> list[str]:
        """The command line with `${PORT}` replaced (REQ-MCP-HTTP-3, 9)."""
        return [self.command, *(_with_port(arg, port) for arg in self.args)]

    def environment(self, port: int) -> dict[str, str]:
        """The manifest's own variables with `${PORT}` replaced (REQ-MCP-HTTP-4)."""
        return {key: _with_port(value, port) for key, value in self.env.items()}

    def as_json(self) -> dict[str, Any]:
        """What is kept on the member's row; `from_json` gives it back."""
        return {**asdict(self), "args": list(self.args)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Manifest:
        known = {key: value for key, value in values.items() if key in cls.__dataclass_fields__}
        return cls(**{**known, "args": tuple(values["args"])})

    @property
    def process_digest(self) -> str:
        """Changes with everything that only a new process, or connection, can follow; not with texts and limits."""
        process = [self.name, self.transport, self.command, list(self.args), self.env, self.protocol_version]
        process += [self.url, self.headers]
        return hashlib.sha256(json.dumps(process, sort_keys=True).encode()).hexdigest()


def _with_port(text: str, port: int) -> str:
    return text.replace("${PORT}", str(port))


@dataclass(frozen=True)
class ManifestFile:
    """What one folder's manifest came to: a manifest, or the fault that makes it unusable; warnings beside it.

    All its texts can be stored and printed, whatever the file holds.
    """

    directory: str
    """Relative to the members folder, with `/`."""
    manifest: Manifest | None
    error: ManifestError | None = None
    warnings: tuple[str, ...] = ()
    name_hint: str = ""
    """The name a faulty manifest still tells, if it does."""

    @property
    def fault(self) -> str:
        """The error with the file it is in; empty when there is none."""
        return f"{self.directory}/{FILE_NAME}: {self.error}" if self.error else ""


# Reading ----------------------------------------------------------------------------------------------------------


def find(members_dir: Path) -> Iterator[Path]:
    """Every folder with a manifest, up to two levels deep, by name. Links out of `members_dir` are passed over.

    A link to a member's folder is found as well, and refused when it is read. One to the members folder, or to a
    collection in it, is passed over: all members in it would be there twice.
    """
    root = members_dir.resolve()
    for folder in _folders(members_dir, root):
        if has_manifest(folder):
            yield folder
        elif not folder.is_symlink():
            yield from (inner for inner in _folders(folder, root) if has_manifest(inner))


def has_manifest(folder: Path) -> bool:
    """Whether it holds a manifest, or might: one that may not be looked into is shown with that fault."""
    return os.path.lexists(folder / FILE_NAME) or not os.access(folder, os.X_OK)


def _folders(parent: Path, root: Path) -> list[Path]:
    try:
        entries = sorted(parent.iterdir())
    except OSError:
        return []
    return [entry for entry in entries if not entry.name.startswith((".", "_")) and _is_folder_inside(entry, root)]


def _is_folder_inside(entry: Path, root: Path) -> bool:
    try:
        return entry.is_dir() and (not entry.is_symlink() or entry.resolve().is_relative_to(root))
    except OSError:
        return False


def fingerprint(members_dir: Path) -> frozenset[tuple[str, int, int, int]]:
    """Differs when a manifest came, went or was written: cheap enough to ask every second."""
    prints = set()
    for folder in find(members_dir):
        try:
            stat = (folder / FILE_NAME).stat()
        except OSError:
            prints.add((str(folder), 0, 0, 0))
        else:
            prints.add((str(folder), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return frozenset(prints)


def read_all(members_dir: Path, owners: Mapping[str, str] | None = None) -> list[ManifestFile]:
    """Every manifest under `members_dir`, good and bad. `owners` tells the folders that had their names before."""
    folders = [(folder, folder.relative_to(members_dir).as_posix()) for folder in find(members_dir)]
    return read_folders(folders, owners, root=members_dir)


def read_folders(
    folders: Iterable[tuple[Path, str]], owners: Mapping[str, str] | None = None, *, root: Path | None = None
) -> list[ManifestFile]:
    """The manifests of these folders, each with what to call the folder. `root` is the members folder.

    A name that several use belongs to the folder that `owners` (name to folder) tells, else to the first: a copy of a
    member's folder must not take the place of the original.
    """
    folders = list(folders)
    originals = _originals(folders)
    files = [
        _linked(directory, originals[folder]) if folder in originals else read_file(folder, directory, root)
        for folder, directory in folders
    ]
    claims: dict[str, list[str]] = {}
    for file in files:
        if file.manifest is not None:
            claims.setdefault(_fold(file.manifest.name), []).append(file.directory)
    known = {_fold(name): directory for name, directory in (owners or {}).items()}
    winners = {name: known[name] if known.get(name) in claimed else claimed[0] for name, claimed in claims.items()}
    return [_unless_taken(file, winners) for file in files]


def _originals(folders: list[tuple[Path, str]]) -> dict[Path, str]:
    """Of each folder that is found under several names: what the original is called. The original is not in it."""
    found: dict[Path, tuple[Path, str]] = {}
    # The folder itself before links to it.
    for folder, directory in sorted(folders, key=lambda one: one[0].is_symlink()):
        found.setdefault(folder.resolve(), (folder, directory))
    kept = {folder for folder, _ in found.values()}
    return {folder: found[folder.resolve()][1] for folder, _ in folders if folder not in kept}


def _linked(directory: str, original: str) -> ManifestFile:
    reason = f"the folder {directory!r} is the folder {original!r} under another name; one folder is one member"
    return _faulty(directory, ManifestError("", reason))


def _fold(name: str) -> str:
    """Names differ by more than case: the log files of "Echo" and "echo" are one file on some systems."""
    return name.casefold()


def _unless_taken(file: ManifestFile, winners: Mapping[str, str]) -> ManifestFile:
    if file.manifest is None or (winner := winners[_fold(file.manifest.name)]) == file.directory:
        return file
    reason = f"{file.manifest.name!r} is taken by the folder {winner!r}; every member needs its own name"
    return _faulty(file.directory, ManifestError("name", reason), file.warnings)


def read_file(folder: Path, directory: str, root: Path | None = None) -> ManifestFile:
    """The manifest in `folder`. Its file may be a link, but not out of `root`, or of the folder where there is none."""
    name_hint, unknown = "", []
    try:
        _require_storable(directory)
        values = _load(folder / FILE_NAME, root or folder)
        name_hint = values["name"] if isinstance(values.get("name"), str) and NAME.fullmatch(values["name"]) else ""
        unknown = _unknown_keys(values)  # told with a fault as well: what is missing may be there, misspelt
        manifest, warnings = parse(values)
    except ManifestError as error:
        return _faulty(directory, error, tuple(unknown), name_hint)
    return ManifestFile(directory, manifest, warnings=tuple(warnings))


def _faulty(directory: str, error: ManifestError, warnings: tuple[str, ...] = (), name_hint: str = "") -> ManifestFile:
    harmless = ManifestError(storable(error.path), storable(error.reason))
    return ManifestFile(storable(directory), None, harmless, warnings, name_hint)


def _require_storable(directory: str) -> None:
    if storable(directory) != directory:
        raise ManifestError("", "the folder's name is not UTF-8; rename it")


def _load(path: Path, root: Path) -> dict[str, Any]:
    try:
        place = path.resolve(strict=True)
        if not place.is_relative_to(root.resolve()):
            raise ManifestError("", "is a link to a file outside of the members folder; put the file itself there")
        # A pipe or device would keep the reader for ever.
        if not place.is_file():
            raise ManifestError("", "is not a file")
        with place.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ManifestError("", f"larger than {MAX_BYTES:,} bytes")
        text = content.decode("utf-8-sig")
        values = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constants)
    except OSError as error:
        raise ManifestError("", f"cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ManifestError("", "nested too deep") from error
    except RuntimeError as error:  # before Python 3.13: links that lead to each other
        raise ManifestError("", "cannot be read: too many levels of symbolic links") from error
    except ValueError as error:
        raise ManifestError("", f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ManifestError("", "must be a JSON object")
    return values


def _no_constants(name: str) -> NoReturn:
    raise ValueError(f"{name} is Python's, not JSON's")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ManifestError(key[:80], "is given twice")
        values[key] = value
    return values


# Judging ----------------------------------------------------------------------------------------------------------

# The server's settings: at the top in the seeds' form, under `mcp` in the first Guild Hall's.
SERVER_KEYS = ("transport", "command", "args", "env", "url", "headers")
KEYS = {
    "name", "version", "displayName", "description", "mcp", "enabled", "start_timeout", "timeout", "tool_timeouts",
    "restart", "max_concurrency", "protocol_version", "$schema", *SERVER_KEYS,
}  # fmt: skip


def parse(values: dict[str, Any]) -> tuple[Manifest, list[str]]:
    """The manifest of these JSON values, and warnings (REQ-MCP-HTTP-1 to 4). Raises ManifestError."""
    server = _Reader(values)
    if "mcp" in values:
        nested = values["mcp"]
        if not isinstance(nested, dict):
            raise ManifestError("mcp", "must be an object")
        if doubled := [key for key in SERVER_KEYS if key in values and key in nested]:
            raise ManifestError(doubled[0], "is given twice: at the top and under mcp")
        server = _Reader({**{k: values[k] for k in SERVER_KEYS if k in values}, **nested}, "mcp.")
    top = _Reader(values)

    name = top.text("name", required=True)
    if not NAME.fullmatch(name):
        raise ManifestError("name", f"{name[:80]!r} must be 1 to 64 letters, digits, - and _, a letter or digit first")
    transport = server.text("transport", required=True)
    if transport not in ("http", "stdio"):
        raise ManifestError(server.path("transport"), f'{transport[:80]!r} is not supported; use "http" or "stdio"')
    server.require_command_or_url()
    if transport == "stdio" and server.text("url"):
        raise ManifestError(server.path("url"), 'is for "transport": "http"; a stdio server has a command')
    restart = top.text("restart", default="on-failure")
    if restart not in ("on-failure", "never"):
        raise ManifestError("restart", f'{restart[:80]!r} is not a policy; use "on-failure" or "never"')
    version = top.text("protocol_version")
    if version not in ("", MODERN_VERSION):
        reason = (
            f'{version[:80]!r} is none to begin with; use "{MODERN_VERSION}", or leave it out: all others are agreed on'
        )
        raise ManifestError("protocol_version", reason)
    command, args = server.text("command", longest=4096), server.texts("args")
    manifest = Manifest(
        name=name,
        version=top.text("version", required=True, longest=100),
        command=command,
        transport=cast(Transport, transport),
        args=args,
        env=server.environment("env"),
        url=server.url("url"),
        headers=server.headers("headers"),
        display_name=top.text("displayName", longest=200),
        description=top.text("description", longest=10_000),
        enabled=top.boolean("enabled", default=True),
        start_timeout=top.seconds("start_timeout", default=default_start_timeout(command, args)),
        timeout=top.seconds("timeout", default=30.0),
        tool_timeouts=top.seconds_by_name("tool_timeouts"),
        restart=cast(RestartPolicy, restart),
        max_concurrency=top.count("max_concurrency", default=16, highest=1024),
        protocol_version=version,
    )
    warnings = _unknown_keys(values)
    mentions_port = "${PORT}" in " ".join([*manifest.args, *manifest.env.values()])
    if manifest.command and manifest.transport == "http" and not mentions_port:
        warnings.append("neither args nor env mentions ${PORT}: how will the server know its port?")
    return manifest, warnings


def _unknown_keys(values: dict[str, Any]) -> list[str]:
    """Warnings of them."""
    unknown = [key for key in values if key not in KEYS]
    if isinstance(nested := values.get("mcp"), dict):
        unknown += [f"mcp.{key}" for key in nested if key not in SERVER_KEYS]
    warnings = [f"unknown key {key[:80]!r} is ignored" for key in unknown[:MAX_WARNINGS]]
    if len(unknown) > MAX_WARNINGS:
        warnings.append(f"{len(unknown) - MAX_WARNINGS} more unknown keys are ignored")
    return warnings


def default_start_timeout(command: str, args: Iterable[str]) -> float:
    """Seconds from spawn to the end of the handshake, when the manifest does not say."""
    words = (os.path.basename(command), *(arg for arg in args if not arg.startswith("-")))
    fetches = any(words[: len(known)] == known for known in FETCHING_COMMANDS)
    return FETCHING_START_TIMEOUT if fetches else START_TIMEOUT


class _Reader:
    """Typed reads from JSON values; each fault carries the key's path."""

    def __init__(self, values: dict[str, Any], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def path(self, key: str) -> str:
        return self._prefix + key

    def text(self, key: str, *, required: bool = False, default: str = "", longest: int = 1000) -> str:
        if key not in self._values:
            if required:
                raise ManifestError(self.path(key), "is required")
            return default
        return _text(self._values[key], self.path(key), longest, empty_is_fine=not required)

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._values.get(key, [])
        if not isinstance(values, list):
            raise ManifestError(self.path(key), "must be an array of strings")
        return tuple(_text(value, f"{self.path(key)}.{index}", 100_000) for index, value in enumerate(values))

    def environment(self, key: str) -> dict[str, str]:
        values = self._object(key)
        for name, value in values.items():
            if not ENV_NAME.fullmatch(name):
                raise ManifestError(f"{self.path(key)}.{name[:80]}", "is not a name for an environment variable")
            if name.startswith(RESERVED_ENV_PREFIX):
                raise ManifestError(
                    f"{self.path(key)}.{name[:80]}", "names beginning with GUILD_HALL_ are the hall's own"
                )
            _text(value, f"{self.path(key)}.{name[:80]}", 100_000)
        return dict(values)

    def require_command_or_url(self) -> None:
        """A server is either started here or runs elsewhere; each has keys of its own."""
        if "url" not in self._values:
            if "command" not in self._values:
                raise ManifestError(self.path("command"), "is required, unless url says where a server runs already")
            self.text("command", required=True, longest=4096)
            if "headers" in self._values:
                raise ManifestError(self.path("headers"), "belongs to url; a server that command starts has env")
            return
        if "command" in self._values:
            raise ManifestError(self.path("url"), "is given beside command: the server is started here or runs there")
        for key in ("args", "env"):
            if key in self._values:
                raise ManifestError(self.path(key), "belongs to command; with url nothing is started")

    def url(self, key: str) -> str:
        url = self.text(key, longest=remote.MAX_URL)
        if key in self._values and (fault := remote.url_fault(url)):
            raise ManifestError(self.path(key), fault)
        return url

    def headers(self, key: str) -> dict[str, str]:
        values = self._object(key)
        if len(values) > remote.MAX_HEADERS:
            raise ManifestError(self.path(key), f"must not be more than {remote.MAX_HEADERS}")
        seen: set[str] = set()
        for name, value in values.items():
            path = f"{self.path(key)}.{name[:80]}"
            if fault := remote.header_fault(name, _text(value, path, remote.MAX_VALUE)):
                raise ManifestError(path, fault)
            if name.lower() in seen:
                raise ManifestError(path, "is given twice, and headers do not differ by case")
            seen.add(name.lower())
        return dict(values)

    def boolean(self, key: str, *, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise ManifestError(self.path(key), "must be true or false")
        return value

    def seconds(self, key: str, *, default: float) -> float:
        return _seconds(self._values.get(key, default), self.path(key))

    def seconds_by_name(self, key: str) -> dict[str, float]:
        values = self._object(key)
        for name in values:
            _text(name, f"{self.path(key)}.{name[:80]}", 1000)
        return {name: _seconds(value, f"{self.path(key)}.{name[:80]}") for name, value in values.items()}

    def count(self, key: str, *, default: int, highest: int) -> int:
        value = self._values.get(key, default)
        if not _is_number(value) or not 1 <= value <= highest or value != int(value):
            raise ManifestError(self.path(key), f"must be a whole number from 1 to {highest}")
        return int(value)

    def _object(self, key: str) -> dict[str, Any]:
        values = self._values.get(key, {})
        if not isinstance(values, dict):
            raise ManifestError(self.path(key), "must be an object")
        return values


def _text(value: Any, path: str, longest: int, *, empty_is_fine: bool = True) -> str:
    if not isinstance(value, str):
        raise ManifestError(path, "must be a string")
    if not value and not empty_is_fine:
        raise ManifestError(path, "must not be empty")
    if len(value) > longest:
        raise ManifestError(path, f"must not be longer than {longest:,} characters")
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise ManifestError(path, "must not hold NUL characters or lone surrogates")
    return value


def _seconds(value: Any, path: str) -> float:
    if not _is_number(value) or not 0 < value <= MAX_SECONDS:
        raise ManifestError(path, f"must be seconds: a number above 0, at most {MAX_SECONDS:,.0f}")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def command_fault(manifest: Manifest, folder: Path) -> str:
    """Why the command could not be started from the member's `folder`; empty when it looks startable."""
    command = manifest.command
    if manifest.url:
        return ""
    if os.path.dirname(command):
        program = folder / command
        if not program.exists():
            return f"{command!r} does not exist" + ("" if os.path.isabs(command) else " in the member's folder")
        return "" if program.is_file() and os.access(program, os.X_OK) else f"{command!r} is not executable"
    path = manifest.env.get("PATH") or os.environ.get("PATH") or os.defpath
    if shutil.which(command, path=path):
        return ""
    if (folder / command).exists():
        return f"{command!r} is not on the PATH; write './{command}' for the one in the member's folder"
    found = shutil.which(command, mode=os.F_OK, path=path)
    return f"{found!r} is not executable" if found else f"{command!r} is not on the PATH"
