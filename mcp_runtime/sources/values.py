"""Moves the secrets out of the values of one member, and replaces them and the client's variables by references."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from mcp_runtime.client.remote import MAX_URL
from mcp_runtime.members.manifest.declaration import FOLDER
from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.secrets.references import MAX_SECRET, REFERENCE
from mcp_runtime.sources.clear import SWITCHES, has_token, is_clear, sounds_secret
from mcp_runtime.sources.drafts import Input
from mcp_runtime.sources.variables import Variable, parts_of

MAX_SECRET_NAME = 64
MAX_SECRETS = 500  # of one member
SHORTEST_HIDDEN = 12  # characters of a secret that is replaced in other values too
HEADER_FLAGS = {"--header", "--headers", "-H"}
ENV_FLAGS = {"--env", "-e"}
_SCHEME = re.compile(r"(?i)(bearer|basic|token|apikey|api-key)(\s+)(.+)", re.DOTALL)
_CONNECTOR = re.compile(r"(?i)[\s:;,/=@&?.-]*(bearer|basic|token|apikey|api-key|https?://)?[\s:;,/=@&?.-]*")
_PLACEHOLDER = re.compile(
    r"(?i)<[^<>]{0,80}>|\[[^][]{0,80}\]|\{\{?[\w .-]{1,80}\}?\}|x{3,}|\*{3,}|\.{3,}|changeme|todo|redacted"
    r"|(?:your|insert|enter|replace|paste)[-_ ][\w .-]{1,80}|[\w-]{0,80}[-_ ]here"
)
_FLAG = re.compile(r"(--?[A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(=)(.*)", re.DOTALL)
_PAIR = re.compile(r"(?<!\S)([A-Za-z_]\w*)=(\S+)")
_HEADER = re.compile(r"([A-Za-z][\w-]{0,99})(\s*[:=]\s*)(.*)", re.DOTALL)
_USER = re.compile(r"([^:@\s/]+:)(\S+)")
_ADDRESS = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,30}://)(\S+)")
_OF_MANIFEST = re.compile(rf"({re.sub(r'[(](?![?])', '(?:', REFERENCE.pattern)}|[$][{{]PORT[}}])")
_PORT_AND_PATH = re.compile(r"\d{1,5}/")
_PARAMETER = re.compile(r"(?<=[?&;#])([^=&;#\s]+)=([^&;#\s]*)")


class Values:
    """Collects the secrets and inputs of a member while its values are read.

    `member` is its name, and `own_env` the names of its variables. `inputs` has VS Code's descriptions of inputs by
    their ids. `reserved` are the names of secrets that are used already. No value that it returns contains a secret.
    """

    def __init__(
        self,
        member: str,
        *,
        allow_bare: bool,
        own_env: Collection[str] = (),
        inputs: Mapping[str, Mapping[str, Any]] | None = None,
        reserved: Collection[str] = (),
        kept: Collection[str] = (),
    ) -> None:
        self.secrets: dict[str, str] = {}
        self.inputs: dict[str, Input] = {}
        self._member = member
        self._allow_bare = allow_bare
        self._own_env = own_env
        self._descriptions = inputs or {}
        self._reserved = reserved
        self._kept = kept
        self._hidden: list[tuple[str, str]] = []

    # env, headers and the address ---------------------------------------------------------------------------------

    def variable(self, name: str, text: str, place: str) -> str:
        """The value of a variable of env."""
        return self._value(name, text, place, is_env=True)

    def header(self, name: str, text: str, place: str) -> str:
        if scheme := _SCHEME.fullmatch(text.strip()):
            return f"{scheme[1]} {self._value(name, scheme[3], place)}"
        return self._value(name, text.strip(), place)

    def beside_references(self, name: str, text: str, place: str, *, is_header: bool = False) -> str:
        """A value of env or headers in a manifest. References of the hall in it stay, and the rest follows the rule."""
        scheme = _SCHEME.fullmatch(text.strip()) if is_header else None
        beginning, rest = (scheme[1] + scheme[2], scheme[3]) if scheme else ("", text)
        pieces = _OF_MANIFEST.split(rest)
        return beginning + "".join(
            piece
            if place_of_piece % 2 or not piece.strip() or _CONNECTOR.fullmatch(piece) or is_clear(name, piece)
            else self._secret(name, piece, place)
            for place_of_piece, piece in enumerate(pieces)
        )

    def address(self, text: str, place: str) -> str:
        """The address of a remote server. Everybody sees it, so it cannot contain a secret. Raises SourceError."""
        if len(text) > MAX_URL:
            raise SourceError(place, f"must not be longer than {MAX_URL:,} characters")
        parts = []
        for part in parts_of(text.strip(), place, allow_bare=self._allow_bare):
            if isinstance(part, Variable):
                default = part.default or str(self._descriptions.get(part.name, {}).get("default") or "")
                if not default:
                    reason = f"has the variable {part.name}, which only the client knows; put its value there"
                    raise SourceError(place, reason)
                part = default
            parts.append(part)
        address = "".join(parts)
        if self._has_secret(address):
            reason = "seems to hold a secret, and everybody sees an address; most servers take it in a header instead"
            raise SourceError(place, reason)
        return address

    @staticmethod
    def _has_secret(address: str) -> bool:
        queries = _PARAMETER.findall(address)
        return has_token(address) or any(
            sounds_secret(name) and not SWITCHES.fullmatch(value) for name, value in queries
        )

    # args ---------------------------------------------------------------------------------------------------------

    def arguments(
        self,
        args: list[str],
        place: str,
        *,
        has_assignments: bool = False,
        kept: Collection[str] = (),
        has_references: bool = False,
    ) -> list[str]:
        """The arguments of a command. `has_assignments` is for env, whose first arguments are NAME=VALUE.

        Those in `kept` stay as they are. With `has_references` they are of a manifest, and its references stay.
        """
        result, flag = [], ""
        for index, arg in enumerate(args):
            where = f"{place}.{index}"
            if arg in kept or (has_references and "${" in arg):
                result.append(arg if arg in kept else self._beside_references(flag, arg, where))
                flag = arg if _FLAG.fullmatch(arg) and "=" not in arg else ""
                continue
            if match := _FLAG.fullmatch(arg):
                flag, value = match[1], match[2]
                result.append(flag if value is None else f"{flag}={self._argument(flag, value, where)}")
                flag = flag if value is None else ""
                continue
            is_assignment = has_assignments and _ASSIGNMENT.fullmatch(arg) is not None
            has_assignments = is_assignment
            result.append(self._argument("--env" if is_assignment else flag, arg, where))
            flag = ""
        return result

    def _beside_references(self, flag: str, text: str, place: str) -> str:
        """An argument of a manifest with references, or with another `${` that the hall leaves as it is."""
        if text.lstrip().startswith(("{", "[{")):
            reason = "has settings in JSON with ${}, which the hall cannot check for secrets; pass them in env"
            raise SourceError(place, reason)
        name = flag.lstrip("-")
        option, equals, rest = text.partition("=") if text.startswith("-") else ("", "", text)
        label = option.lstrip("-") or name
        pieces = _OF_MANIFEST.split(rest)
        return f"{option}{equals}" + "".join(
            self._secret(label or "argument", piece, place)
            if place_of_piece % 2 == 0 and self._is_secret_piece(label, piece)
            else piece
            for place_of_piece, piece in enumerate(pieces)
        )

    @staticmethod
    def _is_secret_piece(label: str, piece: str) -> bool:
        """Whether a part of an argument, beside references, could be a secret."""
        if not piece.strip() or _CONNECTOR.fullmatch(piece):
            return False
        if sounds_secret(label):
            return not is_clear(label, piece)
        has_password = any(":" in match[2].split("@")[0] and "@" in match[2] for match in _ADDRESS.finditer(piece))
        return has_token(piece) or has_password

    def _argument(self, flag: str, text: str, place: str) -> str:
        """An argument after this flag, which may be empty."""
        name = flag.lstrip("-")
        if flag in HEADER_FLAGS and (header := _HEADER.fullmatch(text)):
            return header[1] + header[2] + self.header(header[1], header[3], place)
        if (assignment := _ASSIGNMENT.fullmatch(text)) and self._is_setting(flag, assignment[1], assignment[3]):
            return f"{assignment[1]}={self._value(assignment[1], assignment[3], place)}"
        if flag in ("-u", "--user") and (user := _USER.fullmatch(text)):
            return user[1] + self._value("password", user[2], place)
        if sounds_secret(name):
            return self._value(name, text, place)
        if (header := _HEADER.fullmatch(text)) and ":" in header[2] and self._is_setting("", header[1], header[3]):
            return header[1] + header[2] + self.header(header[1], header[3], place)
        return "".join(self._open(name, part, place) for part in self._parts(text, place))

    @staticmethod
    def _is_setting(flag: str, name: str, value: str) -> bool:
        """Whether NAME=VALUE in an argument follows the rule for env."""
        is_address = value.startswith("//")
        return not is_address and (flag in ENV_FLAGS or sounds_secret(name))

    def _open(self, label: str, part: str | Variable, place: str) -> str:
        """A part of an argument that is clear, as long as nothing in it has the form of a secret."""
        if isinstance(part, Variable):
            return self._of_variable(part, place)
        if part.lstrip().startswith(("{", "[{")):  # settings in JSON, which would need all these rules again
            return self._secret(label or "settings", part, place)
        has_tokens = has_token(part)
        text = _ADDRESS.sub(lambda match: match[1] + self._open_address(match[2], place, has_tokens), part)
        text = _PAIR.sub(lambda match: self._open_pair(match, place), text)
        if has_token(REFERENCE.sub(" ", text)):
            return self._secret(label or "argument", part, place)
        return text

    def _open_pair(self, match: re.Match[str], place: str) -> str:
        """NAME=VALUE among other words, such as the password in the connection string of a database."""
        name, value = match[1], match[2]
        if "${" in value or not sounds_secret(name):
            return match[0]
        return f"{name}={self._literal(name, value, place)}"

    def _open_address(self, address: str, place: str, has_tokens: bool) -> str:
        """An address without its scheme, with references in place of its passwords, parameters and tokens."""

        def parameter(match: re.Match[str]) -> str:
            name, value = match[1], match[2]
            is_secret = has_token(value) or (sounds_secret(name) and not is_clear("", value))
            return f"{name}={self._value(name, value, place) if is_secret else value}"

        user, at, rest = address.rpartition("@")
        name, colon, password = user.partition(":")
        if colon and not _PORT_AND_PATH.match(password):
            user = f"{name}:{self._secret('password', password, place)}" if password else user
        elif not colon and at and user not in ("", "git") and "/" not in user:
            user = self._secret("password", user, place)
        text = user + at + _PARAMETER.sub(parameter, rest)
        if not has_tokens:
            return text
        segments = text.split("/")
        return "/".join(
            segment if "${" in segment or not has_token(segment) else self._secret("address", segment, place)
            for segment in segments
        )

    # Secrets and inputs -------------------------------------------------------------------------------------------

    def _parts(self, text: str, place: str) -> list[str | Variable]:
        return list(parts_of(text, place, allow_bare=self._allow_bare))

    def _value(self, label: str, text: str, place: str, *, is_env: bool = False) -> str:
        parts = self._parts(text, place)
        if all(isinstance(part, str) for part in parts):
            return self._literal(label, "".join(map(str, parts)), place)
        return "".join(
            self._of_variable(part, place, is_env=is_env)
            if isinstance(part, Variable)
            else part
            if _CONNECTOR.fullmatch(part) or is_clear(label, part)
            else self._secret(label, part, place)
            for part in parts
        )

    def _literal(self, label: str, text: str, place: str) -> str:
        if not text.strip():
            return self._input(label) if sounds_secret(label) else text
        if _PLACEHOLDER.fullmatch(text.strip()):
            return self._input(label)
        return text if is_clear(label, text) else self._secret(label, text, place)

    def _of_variable(self, variable: Variable, place: str, *, is_env: bool = False) -> str:
        """A server such as mcp-remote fills in ${NAME} in its arguments itself, if env has that name."""
        is_of_hall = variable.text in ("${PORT}", FOLDER)
        is_own = variable.name in self._own_env and variable.text == f"${{{variable.name}}}" and not is_env
        if variable.text in self._kept or (is_own and not is_of_hall):
            return variable.text
        described = self._descriptions.get(variable.name, {}) if variable.is_input else {}
        default = variable.default if variable.default is not None else described.get("default")
        if isinstance(default, str) and default and not described.get("password"):
            return self._literal(variable.name, default, place)
        if default == "" and variable.default is not None:
            return ""
        return self._input(variable.name, described)

    def _input(self, label: str, described: Mapping[str, Any] | None = None) -> str:
        known = next((name for name, asked in self.inputs.items() if asked.label == label), None)
        name = known or self._name(label)
        details = described or {}
        description, options = str(details.get("description") or ""), details.get("options")
        if not isinstance(options, list) or details.get("password") or sounds_secret(label):
            options = []
        self.inputs[name] = Input(
            name,
            label,
            "" if has_token(description) else description[:500],
            tuple(str(option)[:200] for option in options[:50] if not has_token(str(option))),
        )
        return f"${{secret:{name}}}"

    def _secret(self, label: str, value: str, place: str) -> str:
        if len(value) > MAX_SECRET:
            raise SourceError(place, f"is longer than {MAX_SECRET:,} characters")
        if len(self.secrets) >= MAX_SECRETS:
            raise SourceError(place, f"is one of more than {MAX_SECRETS} secrets of one member")
        name = next((name for name, other in self.secrets.items() if other == value), None) or self._name(label)
        self.secrets[name] = value
        reference = f"${{secret:{name}}}"
        if len(value) >= SHORTEST_HIDDEN and (sounds_secret(label) or has_token(value)):
            self._hidden.append((value, reference))
        return reference

    def _name(self, label: str) -> str:
        """A new name for a secret, such as github-GITHUB_TOKEN."""
        words = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{self._member}-{label}").strip("-")
        name, number = words[:MAX_SECRET_NAME], 1
        while name in self.secrets or name in self.inputs or name in self._reserved:
            number += 1
            name = f"{words[: MAX_SECRET_NAME - len(str(number)) - 1]}-{number}"
        return name

    def hide(self, text: str) -> str:
        """The text with references in place of secrets that were in other values."""
        for value, reference in sorted(self._hidden, key=lambda pair: len(pair[0]), reverse=True):
            if value in text:
                pieces = re.split(r"(\$\{secret:[^{}]*\})", text)
                text = "".join(
                    piece if place % 2 else piece.replace(value, reference) for place, piece in enumerate(pieces)
                )
        return text

    def has_hidden(self, text: str) -> bool:
        return any(value in text for value, _ in self._hidden)
