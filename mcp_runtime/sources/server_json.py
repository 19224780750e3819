"""server.json, in which the registry of MCP describes a server: the ways to run it, and what a person must fill in.

Source: the schema of server.json, 2025-12-11, in github.com/modelcontextprotocol/registry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.clear import has_token
from mcp_runtime.sources.drafts import MAX_ARGS, MAX_VALUES
from mcp_runtime.sources.names import name_in_registry
from mcp_runtime.sources.servers import Entry

MAX_WAYS = 20
MAX_FIELDS = 200  # of one way
MAX_CHOICES = 100
MAX_FILLED = 10_000  # characters of a value that a person fills in
_NAME = re.compile(r"[a-zA-Z0-9.-]{1,150}/[a-zA-Z0-9._-]{1,100}")
_BRACES = re.compile(r"\{([^{}]{1,100})\}")
_RUNNERS = {"npm": "npx", "pypi": "uvx"}
# Names in the package registry, and nothing else that npx and uvx run: no repository, no path, no alias, no flag.
_PACKAGES = {
    "npm": re.compile(r"(@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~_][A-Za-z0-9._~-]*"),
    "pypi": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?"),
}
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!-]{0,99}")
# What a person types as a public value. Passwords in addresses and parameters have other characters.
PLAIN_VALUE = re.compile(r"[\w ./,+-]{1,500}")
_NOT_YET = {
    "oci": "runs in a container, and the hall cannot start members in containers yet",
    "nuget": "is a package for .NET, which the hall cannot start",
}


@dataclass(frozen=True)
class Field:
    """A value that a person fills in for one way to run a server."""

    key: str
    """Its name among the values of the way."""
    title: str = ""
    """How people call it. Empty if it has no other name than its key."""
    description: str = ""
    is_required: bool = False
    is_secret: bool = False
    is_repeated: bool = False
    """Whether it may have several values, one on each line."""
    default: str = ""
    placeholder: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Way:
    """One way to run a server: a package, or an address."""

    number: int
    """Counted from 1."""
    label: str
    fields: tuple[Field, ...] = ()
    refusal: str = ""
    """Why the hall cannot run it this way. Empty if it can."""


@dataclass(frozen=True)
class Filled:
    """What a person fills in for a server.json: which way to run it, and the values of its fields by their keys."""

    way: int = 0
    """Its number. 0 is the first way that the hall can run."""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Some of them are secrets. Never show them in a log, an error, or the locals of a traceback."""


# The document -----------------------------------------------------------------------------------------------------

_Text = str | int | float | bool | None  # some entries have numbers where the schema wants texts


class _Input(msgspec.Struct, rename="camel"):
    """A value, an argument, a variable or a header. What is null in the document is absent."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    format: str | None = None
    is_required: bool | None = False
    is_secret: bool | None = False
    is_repeated: bool | None = False
    value: _Text = None
    default: _Text = None
    placeholder: _Text = None
    choices: list[_Text] | None = None
    value_hint: str | None = None
    variables: dict[str, _Input] | None = None


class _Transport(msgspec.Struct, rename="camel"):
    type: str | None = None
    url: str | None = None
    headers: list[_Input] | None = None
    variables: dict[str, _Input] | None = None


class _Package(msgspec.Struct, rename="camel"):
    registry_type: str = ""
    identifier: str = ""
    version: str | None = None
    registry_base_url: str | None = None
    file_sha256: str | None = None
    runtime_hint: str | None = None
    transport: _Transport | None = None
    runtime_arguments: list[_Input] | None = None
    package_arguments: list[_Input] | None = None
    environment_variables: list[_Input] | None = None


class _Server(msgspec.Struct, rename="camel"):
    name: str
    title: str | None = None
    description: str | None = None
    version: str | None = None
    packages: list[_Package] | None = None
    remotes: list[_Transport] | None = None


def is_server_json(document: Mapping[str, Any]) -> bool:
    """Whether the document is a server.json, and not the configuration of a client."""
    name = document.get("name")
    has_way = any(isinstance(document.get(key), list) for key in ("packages", "remotes"))
    return has_way and isinstance(name, str) and _NAME.fullmatch(name) is not None


def ways_of(document: Mapping[str, Any]) -> list[Way]:
    """The ways to run the server, also those that the hall cannot run. Raises SourceError."""
    ways = []
    for number, (label, read) in enumerate(_ways(_parsed(document)), 1):
        filling = _Filling({}, is_complete=False)
        refusal = ""
        try:
            read(filling)
        except SourceError as error:
            refusal = error.reason
        ways.append(Way(number, label, () if refusal else tuple(filling.fields.values()), refusal))
    return ways


def entry_of(document: Mapping[str, Any], filled: Filled) -> Entry:
    """The server with the values that a person filled in.

    A secret is never in the entry: it refers to the secret
    by ${input:KEY}, and `Entry.inputs` describes it. Raises SourceError.
    """
    server = _parsed(document)
    ways = ways_of(document)
    way = filled.way
    chosen = next((each for each in ways if each.number == way or (not way and not each.refusal)), None)
    if chosen is None:
        reasons = "; ".join(f"{each.label} {each.refusal}" for each in ways)
        reason = f"has no way {way}; it has {len(ways)}" if way else f"has no way that the hall can run: {reasons}"
        raise SourceError("", reason)
    filling = _Filling(filled.values, is_complete=True)
    keys = _ways(server)[chosen.number - 1][1](filling)
    filling.require_usable()
    return Entry(
        name_in_registry(server.name),
        "",
        keys,
        inputs=filling.inputs,
        title=server.title or server.name,
        version=server.version or "",
        notes=tuple(filling.notes),
        public=frozenset(filling.public),
    )


def _parsed(document: Mapping[str, Any]) -> _Server:
    try:
        server = msgspec.convert(document, _Server)
    except msgspec.ValidationError as error:
        # msgspec's text names the types and the place, and never quotes a value.
        raise SourceError("server.json", f"has a value of another type than it should: {str(error)[:300]}") from None
    if len(server.packages or ()) + len(server.remotes or ()) > MAX_WAYS:
        raise SourceError("server.json", f"has more than {MAX_WAYS} packages and addresses")
    return server


# The ways ---------------------------------------------------------------------------------------------------------

_Read = Callable[["_Filling"], dict[str, Any]]


def _ways(server: _Server) -> list[tuple[str, _Read]]:
    """The label of each way, and how its entry is read."""
    ways: list[tuple[str, _Read]] = []
    for package in server.packages or ():
        label = f"{package.registry_type} package {package.identifier} {package.version or ''}".strip()
        ways.append((clean(label)[:300], lambda filling, package=package: _read_package(package, filling)))  # type: ignore[misc]
    for remote in server.remotes or ():
        label = f"address {remote.url or ''}".strip()
        ways.append((clean(label)[:300], lambda filling, remote=remote: _read_remote(remote, filling)))  # type: ignore[misc]
    return ways


def _read_package(package: _Package, filling: _Filling) -> dict[str, Any]:
    """The keys of an entry with a command. Raises SourceError."""
    kind = package.registry_type
    runner = _RUNNERS.get(kind)
    if kind == "mcpb":
        raise SourceError("", _how_to_add(package))
    if runner is None:
        raise SourceError("", _NOT_YET.get(kind, "is of a kind that the hall does not know"))
    if package.runtime_hint not in (None, "", runner):
        raise SourceError("", f"wants to be run by another program than {runner}")
    if package.transport is not None and package.transport.type not in (None, "", "stdio"):
        raise SourceError("", "is a program that listens on a port of its own choice, and the hall gives the ports")
    if not _PACKAGES[kind].fullmatch(package.identifier):
        raise SourceError("", "has no name of a package")
    if package.version and not _VERSION.fullmatch(package.version):
        raise SourceError("", "has a version that names something else than a version")
    pinned = f"@{package.version}" if package.version else ""
    runtime_arguments = [each for each in package.runtime_arguments or () if each.name not in ("-y", "--yes")]
    args = [*(["-y"] if kind == "npm" else []), *filling.arguments(runtime_arguments)]
    args += [package.identifier + pinned, *filling.arguments(package.package_arguments)]
    env = filling.named(package.environment_variables)
    if package.registry_base_url:
        filling.notes.append(f"The hall fetches it from where {runner} of this machine fetches packages.")
    if package.file_sha256:
        filling.notes.append(f"Its file has a hash that is not compared, because {runner} fetches it.")
    return {"command": runner, "args": args, "env": env}


def _how_to_add(package: _Package) -> str:
    """The hall fetches nothing before an approval, and a bundle is approved with its content."""
    digest = clean(package.file_sha256)[:64]
    check = f", check that its SHA-256 is {digest}" if digest else ""
    return f"is a bundle, which the hall does not fetch; download it from its address{check}, and add the file"


def _read_remote(remote: _Transport, filling: _Filling) -> dict[str, Any]:
    """The keys of an entry with an address. Raises SourceError."""
    if remote.type != "streamable-http":
        raise SourceError("", "is an address for the older transport SSE, which the hall does not speak")
    variables = remote.variables or {}
    if any(variable.is_secret for variable in variables.values()):
        raise SourceError("", "has a secret in its address, which everybody would see")
    url = filling.template(remote.url or "", variables)
    return {"type": "http", "url": url, "headers": filling.named(remote.headers)}


class _Filling:
    """Fills values in, and collects the fields for them on the way.

    With `is_complete` a missing value is an error. Otherwise only the fields count.
    """

    def __init__(self, values: Mapping[str, str], *, is_complete: bool) -> None:
        self.fields: dict[str, Field] = {}
        self.inputs: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.public: set[str] = set()
        self._values = values
        self._is_complete = is_complete
        self._numbers: dict[str, int] = {}
        self._faults: list[SourceError] = []

    def require_usable(self) -> None:
        """Raise SourceError with all values that cannot be used."""
        require_none(self._faults)
        if unknown := [key for key in self._values if key not in self.fields]:
            known = ", ".join(self.fields) or "none"
            raise SourceError("", f"takes no value {unknown[0][:100]!r}; its values are: {known}")

    def arguments(self, arguments: list[_Input] | None) -> list[str]:
        args: list[str] = []
        if len(arguments or ()) > MAX_ARGS:
            raise SourceError("", f"has more than {MAX_ARGS} arguments")
        for argument in arguments or ():
            name = argument.name or ""
            if argument.type == "named" and argument.format == "boolean" and argument.value is None:
                args += [name] if self._texts(argument, name) == ["true"] else []
            elif argument.type == "named":
                for text in self._texts(argument, name):
                    args += [f"{name}{text}"] if name.endswith("=") else [name, text] if text else [name]
            else:
                args += self._texts(argument, argument.value_hint or name or "argument")
        return args

    def named(self, inputs: list[_Input] | None) -> dict[str, str]:
        """Variables of the environment, or headers."""
        if len(inputs or ()) > MAX_VALUES:
            raise SourceError("", f"has more than {MAX_VALUES} variables or headers")
        values = {}
        for each in inputs or ():
            if each.name:
                for text in self._texts(each, each.name)[:1]:
                    values[each.name] = text
                    is_of_document = text in (
                        text_of_value(each.value),
                        text_of_value(each.default),
                        *map(text_of_value, each.choices or ()),
                    )
                    if not each.is_secret and (is_of_document or PLAIN_VALUE.fullmatch(text)):
                        self.public.add(each.name)
        return values

    def template(self, text: str, variables: Mapping[str, _Input]) -> str:
        """The text with the variables in braces filled in. Unknown ones stay. Each variable has one field."""
        if "${" in text:
            raise SourceError("", "has a variable in ${} that only another program knows")
        used = dict.fromkeys(name for name in _BRACES.findall(text) if name in variables)
        values = {name: self._value(variables[name], name) for name in used}
        return _BRACES.sub(lambda match: values.get(match[1], match[0]), text)

    def _texts(self, given: _Input, label: str) -> list[str]:
        """What is put at the place of the input: nothing, one text, or several."""
        if given.value is not None:
            variables = given.variables or {}
            if given.is_secret:  # then what it is made of is secret too
                variables = {name: msgspec.structs.replace(each, is_secret=True) for name, each in variables.items()}
            before = len(self.fields)
            text = self.template(text_of_value(given.value), variables)
            asked = list(self.fields)[before:]
            is_empty = bool(asked) and not given.is_required and not any(self._has_value(key) for key in asked)
            return [] if is_empty else [text]
        text = self._value(given, label)
        if text and given.is_repeated and "${input:" not in text:
            return [line.strip() for line in text.splitlines() if line.strip()]
        # A flag without a value, of which server.json says only that it must be there.
        return [text] if text or (given.is_required and given.type == "named") else []

    def _has_value(self, key: str) -> bool:
        asked = self.fields[key]
        return bool(self._values.get(key, asked.default) or asked.is_required)

    def _value(self, given: _Input, label: str) -> str:
        """The value of a new field. Empty if it has none and needs none."""
        key = self._key(label)
        is_secret = bool(given.is_secret)
        choices = tuple(clean(text_of_value(choice))[:500] for choice in (given.choices or ())[:MAX_CHOICES])
        default = "" if is_secret else clean(text_of_value(given.default))
        asked = Field(
            key,
            description=clean(given.description)[:500],
            is_required=bool(given.is_required),
            is_secret=is_secret,
            is_repeated=bool(given.is_repeated),
            default=default[:MAX_FILLED],
            placeholder=clean(text_of_value(given.placeholder))[:200],
            choices=() if is_secret else choices or (("true", "false") if given.format == "boolean" else ()),
        )
        self.fields[key] = asked
        filled = self._values.get(key)
        if is_secret:
            self.inputs[key] = {"description": asked.description, "password": True}
            return f"${{input:{key}}}" if filled or asked.is_required else ""
        text = default if filled is None else filled
        if self._is_complete and (fault := self._fault(asked, given, text)):
            self._faults.append(SourceError(asked.key, fault))
        return text

    @staticmethod
    def _fault(asked: Field, given: _Input, text: str) -> str:
        """Why the text cannot be the value. Empty if it can."""
        is_flag = given.type == "named" and given.value is None
        if not text and asked.is_required and not is_flag:
            return "needs a value"
        if len(text) > MAX_FILLED:
            return f"must not be longer than {MAX_FILLED:,} characters"
        if "${" in text:
            return "must be the value itself, without variables in ${}"
        if text and asked.choices and text not in asked.choices:
            return f"must be one of: {', '.join(asked.choices)}"
        if text and given.format == "number" and not re.fullmatch(r"-?\d+(\.\d+)?", text):
            return "must be a number"
        return ""

    def _key(self, label: str) -> str:
        """A key that no other field has, such as API_KEY or allowed-directory. Raises SourceError."""
        if len(self.fields) >= MAX_FIELDS:
            raise SourceError("", f"has more than {MAX_FIELDS} values to fill in")
        words = re.sub(r"[^A-Za-z0-9_.-]+", "-", label).strip("-.")[:60] or "value"
        key, number = words, self._numbers.get(words, 1)
        while key in self.fields:
            number += 1
            key = f"{words}-{number}"
        self._numbers[words] = number
        return key


def require_none(faults: Sequence[SourceError]) -> None:
    """Raise all of them as one SourceError, so that a person can correct them at once."""
    if faults:
        raise SourceError(faults[0].place, faults[0].reason, faults[1:])


def text_of_value(value: _Text) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def clean(text: str | None) -> str:
    """A text of the document for people. One with the form of a secret is not shown."""
    return "" if text is None or has_token(text) else "".join(part if part.isprintable() else " " for part in text)
