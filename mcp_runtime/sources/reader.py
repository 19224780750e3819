"""A text becomes drafts: the configuration of a client, a server.json, a command line, or an address. A bundle too."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from mcp_runtime.client.remote import NAME, RESERVED
from mcp_runtime.members.manifest.declaration import fetches_server
from mcp_runtime.members.manifest.parser import parse
from mcp_runtime.members.packages.lines import LineError, package_line
from mcp_runtime.protocol.errors import ManifestError, SourceError
from mcp_runtime.secrets.references import HEADER_VALUE, MAX_SECRET, REFERENCE
from mcp_runtime.sources import clients, commands, user_config
from mcp_runtime.sources.clear import has_token, sounds_secret
from mcp_runtime.sources.documents import read_json, read_toml
from mcp_runtime.sources.drafts import MAX_BYTES, MAX_NOTES, MAX_REFUSALS, Draft, Reading, quoted
from mcp_runtime.sources.mcpb import Bundle
from mcp_runtime.sources.names import member_name, package_of, suggested_name
from mcp_runtime.sources.server_json import Filled, Way, entry_of, is_server_json, ways_of
from mcp_runtime.sources.servers import Entry, Server, server_of
from mcp_runtime.sources.values import Values

_TOML = re.compile(r"^\s*\[\s*mcp_servers\b", re.MULTILINE)
_ADDRESS = re.compile(r"https?://\S+", re.IGNORECASE)
_CONTAINERS = {"docker", "podman", "nerdctl"}
_SHELLS = {"sh", "bash", "zsh", "dash", "fish", "ksh", "powershell", "pwsh"}
_LINE_IN_COMMAND = re.compile(r"(?i)(?:npx|pnpx|bunx|uvx|uv|pipx|node|python3?|deno|docker|podman)\s")
_OWN_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def read(text: str, *, name: str = "", reserved: Collection[str] = (), filled: Filled | None = None) -> Reading:
    """The drafts of the servers in the text. `name` is for a single server, in place of its own name.

    `reserved` are names of secrets that exist already, which the drafts do not use. Servers that cannot be members are
    in the refusals. `filled` is for a server.json. Raises SourceError if there is no draft. No error and no note quotes
    a value of the text.
    """
    filled = filled or Filled()
    source, entries = _entries(_content(text), filled)
    if name and len(entries) > 1:
        raise SourceError("", f"has {len(entries)} servers, and a name is for one; leave the name out")
    drafts: dict[str, Draft] = {}
    refusals: list[SourceError] = []
    used_secrets = set(reserved)
    for entry in entries:
        try:
            draft = _with_secrets(_draft(entry, name, used_secrets), filled)
            if (twin := drafts.get(draft.name.casefold())) is not None:
                reason = f"gets the name {draft.name!r}, which differs from {twin.name!r} at most in case; rename it"
                raise SourceError(entry.place, reason)
        except SourceError as error:
            refusals.append(error)
            continue
        drafts[draft.name.casefold()] = draft
        used_secrets |= {*draft.secrets, *(asked.secret for asked in draft.inputs)}
    if not drafts:
        first, *others = refusals[:MAX_REFUSALS]
        raise SourceError(first.place, first.reason, others)
    return Reading(source, tuple(drafts.values()), tuple(refusals[:MAX_REFUSALS]))


def read_bundle(
    bundle: Bundle, *, name: str = "", reserved: Collection[str] = (), filled: Filled | None = None
) -> Reading:
    """The draft of the server in a bundle. The parameters are those of `read`. Raises SourceError."""
    filled = filled or Filled()
    draft = _with_secrets(_draft(user_config.entry_of(bundle, filled), name, reserved), filled)
    return Reading(f"the bundle {bundle.title}"[:100], (draft,))


def ways(text: str) -> list[Way]:
    """The ways to run the server of a server.json. Empty for any other text. Raises SourceError."""
    content = _content(text)
    document = read_json(content) if content.startswith("{") else {}
    return ways_of(document) if is_server_json(document) else []


def _content(text: str) -> str:
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise SourceError("", f"is larger than {MAX_BYTES:,} bytes")
    content = text.removeprefix("\ufeff").strip()
    if not content:
        raise SourceError("", "is empty")
    if "\0" in content:
        raise SourceError("", "has a NUL character, so it is no text")
    return content


def _entries(content: str, filled: Filled) -> tuple[str, list[Entry]]:
    if content.startswith(("{", '"', "//", "/*")):
        document = read_json(content)
        if is_server_json(document):
            return f"server.json of {document['name']}"[:100], [entry_of(document, filled)]
        source, entries = clients.entries_of(document)
    elif _TOML.search(content):
        source, entries = clients.entries_of(read_toml(content))
    elif _ADDRESS.fullmatch(content):
        source, entries = "an address", [Entry("", "", {"url": content})]
    else:
        source, entry = commands.entry_of(content)
        entries = [entry]
    if filled.way or filled.values:
        raise SourceError("", "takes no values; only a server.json, and a server of a registry, do")
    return source, entries


def _with_secrets(draft: Draft, filled: Filled) -> Draft:
    """The draft with the secrets that a person filled in, which it would only ask for otherwise."""
    given = {asked.secret: filled.values[asked.label] for asked in draft.inputs if filled.values.get(asked.label)}
    for secret, value in given.items():
        if len(value) > MAX_SECRET:
            raise SourceError(secret, f"is longer than {MAX_SECRET:,} characters")
    inputs = tuple(asked for asked in draft.inputs if asked.secret not in given)
    return replace(draft, secrets={**draft.secrets, **given}, inputs=inputs)


# One draft --------------------------------------------------------------------------------------------------------


def _draft(entry: Entry, given_name: str, reserved: Collection[str]) -> Draft:
    server = server_of(entry)
    _unwrap(entry, server)
    original = given_name or entry.name or suggested_name([server.command, *server.args], server.url)
    name, note = member_name(original, "name" if given_name else entry.place)
    values = Values(
        name,
        allow_bare=entry.allow_bare,
        own_env=server.env,
        inputs=entry.inputs,
        reserved=reserved,
        kept=entry.kept,
    )
    notes = [note] if note else []
    manifest: dict[str, Any] = {"name": name, "version": _version(server, entry.version)}
    if note or entry.title:
        manifest["displayName"] = "".join(part for part in entry.title or original if part.isprintable())[:200]
    if server.url:
        manifest |= {"transport": "http", "url": values.address(server.url, entry.at("url"))}
        if headers := _headers(entry, server, values, notes):
            manifest["headers"] = headers
    else:
        manifest |= _process(entry, server, values, notes)
    if not server.is_enabled:
        manifest["enabled"] = False
        notes.append("The client has it switched off, so the hall does not start it.")
    for key, seconds in (("start_timeout", server.start_timeout), ("timeout", server.timeout)):
        if seconds is not None:
            manifest[key] = seconds
    notes += [*server.notes, *entry.notes]
    _require_valid(manifest, entry, values, server)
    return Draft(name, manifest, values.secrets, tuple(values.inputs.values()), tuple(notes[:MAX_NOTES]))


def _process(entry: Entry, server: Server, values: Values, notes: list[str]) -> dict[str, Any]:
    """The keys of a manifest with a command."""
    env = {
        key: value if _is_public(entry, key, value) else values.variable(key, value, entry.at("env", key))
        for key, value in server.env.items()
    }
    is_env = _program(server.command) == "env"
    args = values.arguments(server.args, entry.at("args"), has_assignments=is_env)
    args = [values.hide(arg) for arg in args]
    env = {key: values.hide(value) for key, value in env.items()}
    notes += _process_notes(server, args, is_here=bool(entry.kept))
    keys: dict[str, Any] = {"transport": "stdio", "command": server.command}
    if args:
        keys["args"] = args
    if env:
        keys["env"] = env
    return {**keys, "sandbox": "on", **_packages(server.command, args, env, notes)}


def _packages(command: str, args: list[str], env: dict[str, str], notes: list[str]) -> dict[str, str]:
    """The key of a manifest whose packages are installed once. Without it, a note says that each start fetches."""
    package = package_of([command, *args])
    try:
        line = package_line(command, args, env)
    except LineError as error:
        if package and not package[1]:
            notes.append(
                f"No version of {quoted(package[0])} is given, so each start may fetch and run a newer one. Write "
                "NAME@VERSION to pin it."
            )
        if fetches_server(command, args):
            notes.append(f"The hall cannot install it from a lock, so each start may fetch it: {error}.")
        return {}
    if not line.is_pinned:
        notes.append(
            f"No exact version of {quoted(line.name)} is given. The first installation takes the newest one that fits, "
            "and its lock keeps it from then on. Write NAME@VERSION to choose it."
        )
    return {"packages": "locked"}


def _headers(entry: Entry, server: Server, values: Values, notes: list[str]) -> dict[str, str]:
    headers = {}
    for key, value in server.headers.items():
        place = entry.at("headers", key)
        if RESERVED.fullmatch(key):
            notes.append(f"The header {key} is left out, because the hall sets it.")
        elif not NAME.fullmatch(key):
            raise SourceError(place, "is not a name for a header")
        elif not HEADER_VALUE.fullmatch(value.strip()):
            raise SourceError(place, "must be one line of visible ASCII")
        else:
            headers[key] = value if _is_public(entry, key, value) else values.header(key, value, place)
    return headers


def _is_public(entry: Entry, key: str, value: str) -> bool:
    """Whether the text declares it not to be a secret, and it does not look like one."""
    return key in entry.public and not sounds_secret(key) and not has_token(value) and "${" not in _open(entry, value)


def _open(entry: Entry, text: str) -> str:
    """The text without the variables that the hall replaces when the server starts."""
    for variable in entry.kept:
        text = text.replace(variable, "")
    return text


def _unwrap(entry: Entry, server: Server) -> None:
    """Make the command a program that can be started here, or raise SourceError."""
    if not server.args and _LINE_IN_COMMAND.match(server.command):
        server.command, *server.args = commands.split(server.command)
    if _program(server.command) == "cmd" and server.args[:1] and server.args[0].lower() == "/c":
        if len(server.args) < 2:
            raise SourceError(entry.at("args"), "has no program after /c")
        server.command, *server.args = server.args[1:]
        server.notes.append("The hall needs no cmd /c, which is for Windows. It starts the program itself.")
    if _program(server.command) in ("npx", "uvx", "npm") and server.command.lower().endswith(".cmd"):
        server.command = server.command[: -len(".cmd")]
    words = {_program(word) for word in (server.command, *_wrapped(server))}
    if words & _CONTAINERS:
        raise SourceError(entry.place, "runs in a container, and the hall cannot start members in containers yet")
    if words & _SHELLS and any(re.fullmatch(r"-[a-z]*c|(?i:-command|-encodedcommand)", arg) for arg in server.args):
        reason = (
            "runs a script in a shell, and the hall starts programs without one; give the program and its arguments"
        )
        raise SourceError(entry.place, reason)
    if "${" in server.command or has_token(server.command) or re.match(r"\$\w", server.command):
        raise SourceError(entry.at("command"), "must be the program as it is, without variables and secrets")


def _wrapped(server: Server) -> list[str]:
    """The program behind env, sudo and others, which is the first argument that is no option or assignment."""
    if _program(server.command) not in ("env", "sudo", "nohup", "nice", "time", "xargs", "wsl"):
        return []
    return [arg for arg in server.args if not arg.startswith("-") and "=" not in arg][:2]


def _program(command: str) -> str:
    return re.sub(r"(?i)\.(exe|cmd|bat)$", "", re.split(r"[/\\]", command)[-1]).lower()


def _version(server: Server, stated: str) -> str:
    package = package_of([server.command, *server.args])
    return (package[1][:100] if package else stated[:100]) or ("unpinned" if package else "unknown")


def _process_notes(server: Server, args: list[str], *, is_here: bool) -> list[str]:
    """`is_here` says whether relative paths are right in the folder of the member."""
    notes = []
    relative = [arg for arg in (server.command, *args) if re.match(r"\.{1,2}[/\\]|~", arg)]
    relative += [server.command] if "/" in server.command and not server.command.startswith(("/", ".", "~")) else []
    if relative and not is_here:
        notes.append(
            "It has relative paths or ~. The hall starts it in the folder of the member, without a shell. Write "
            "absolute paths."
        )
    if any(REFERENCE.search(arg) for arg in args):
        notes.append("A secret is in its arguments, where every user of the machine can read it. Prefer a variable.")
    return notes


def _require_valid(manifest: dict[str, Any], entry: Entry, values: Values, server: Server) -> None:
    """Raise SourceError if the hall would refuse the manifest, or if it could contain what it must not."""
    try:
        parse(manifest)
    except ManifestError as error:
        raise SourceError(entry.at(error.path), error.reason) from None
    clear = [
        manifest["name"],
        manifest.get("displayName", ""),
        manifest["version"],
        manifest.get("command", ""),
        manifest.get("url", ""),
    ]
    if any(values.has_hidden(text) for text in clear):
        raise SourceError(entry.place, "has a secret in its name, its command or its address too")
    own = {*values.secrets, *values.inputs}
    texts = [*manifest.get("args", ()), *manifest.get("env", {}).values(), *manifest.get("headers", {}).values()]
    for text in texts:
        foreign = [match for match in REFERENCE.findall(text) if match[0] not in own]
        rest = _open(entry, REFERENCE.sub("", text))
        rest = _OWN_VARIABLE.sub(lambda match: "" if match[1] in server.env else match[0], rest)
        if foreign or "${" in rest:
            raise SourceError(entry.place, "has a variable in ${} that does not end, or that contains another one")
