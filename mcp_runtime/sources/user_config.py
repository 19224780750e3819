"""The server in a bundle as an entry, with the values of user_config that a person fills in."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from mcp_runtime.members.manifest.declaration import FOLDER
from mcp_runtime.members.manifest.files import BUNDLE
from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.drafts import MAX_ARGS, MAX_BYTES, MAX_VALUES
from mcp_runtime.sources.mcpb import MANIFEST, Bundle, McpConfig, Option
from mcp_runtime.sources.server_json import (
    MAX_FIELDS,
    MAX_FILLED,
    PLAIN_VALUE,
    Field,
    Filled,
    Way,
    clean,
    require_none,
    text_of_value,
)
from mcp_runtime.sources.servers import Entry

# Folders of a person's desktop. The hall is often on another machine, so a person fills them in.
_PLACES = ("HOME", "DESKTOP", "DOCUMENTS", "DOWNLOADS")
_VARIABLE = re.compile(r"\$\{([^{}$]{1,200})\}")
_KEY = re.compile(r"[\w.-]{1,100}")
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")


def ways_of(bundle: Bundle) -> list[Way]:
    """The only way to run the bundle, with the values that a person fills in. Raises SourceError."""
    filling = _Filling(bundle, {}, is_complete=False)
    filling.entry()
    return [
        Way(1, f"bundle {bundle.title} {clean(bundle.manifest.version)[:100]}".strip(), (*filling.fields.values(),))
    ]


def entry_of(bundle: Bundle, filled: Filled) -> Entry:
    """The server with the values that a person filled in.

    A secret is never in the entry: it refers to the secret by ${input:KEY}. Raises SourceError.
    """
    if filled.way > 1:
        raise SourceError("", f"has no way {filled.way}; it has 1")
    filling = _Filling(bundle, filled.values, is_complete=True)
    entry = filling.entry()
    filling.require_usable()
    return entry


class _Filling:
    """Makes the entry of a bundle, and collects the fields for its values on the way.

    With `is_complete` a missing value is an error. Otherwise only the fields count.
    """

    def __init__(self, bundle: Bundle, values: Mapping[str, str], *, is_complete: bool) -> None:
        self._bundle = bundle
        self._values = values
        self._is_complete = is_complete
        self._options = bundle.manifest.user_config or {}
        self._texts: dict[str, list[str]] = {}
        self._inputs: dict[str, dict[str, Any]] = {}
        self._notes: list[str] = []
        self.fields: dict[str, Field] = {}
        if len(self._options) > MAX_FIELDS:
            raise SourceError(f"{MANIFEST}, user_config", f"has more than {MAX_FIELDS} values to fill in")
        self._defaults = {key: _defaults(option) for key, option in self._options.items()}
        self._length = 0  # characters of all filled texts
        self._faults: list[SourceError] = []
        for key, option in self._options.items():
            self._texts[f"user_config.{key}"] = self._fill(key, option)
        require_none(self._faults)  # a wrong value may have other effects below, which would only distract

    def entry(self) -> Entry:
        manifest, config = self._bundle.manifest, self._config()
        command = self._command(config.command or "")
        args = self._args(config.args or [])
        env, public = self._env(config.env or {})
        runtimes = (manifest.compatibility and manifest.compatibility.runtimes) or {}
        for name, version in list(runtimes.items())[:5]:
            self._notes.append(
                f"The bundle needs {clean(name)[:50]} {clean(version)[:50]}, which the hall does not check."
            )
        if manifest.server.type == "uv":
            self._notes.append(
                "uv fetches the Python packages of the bundle at its start. An approval does not cover them."
            )
        if self._bundle.archive.is_signed:
            self._notes.append("The bundle has a signature, which the hall does not check.")
        return Entry(
            manifest.name,
            "",
            {"command": command, "args": args, "env": env},
            inputs=self._inputs,
            title=self._bundle.title,
            version=clean(manifest.version),
            notes=tuple(self._notes),
            public=public,
            kept=frozenset((FOLDER,)),
        )

    def require_usable(self) -> None:
        """Raise SourceError with all values that cannot be used."""
        require_none(self._faults)
        if unknown := [key for key in self._values if key not in self.fields]:
            known = ", ".join(self.fields) or "none"
            raise SourceError("", f"takes no value {unknown[0][:100]!r}; its values are: {known}")

    # How it starts ------------------------------------------------------------------------------------------------

    def _config(self) -> McpConfig:
        server = self._bundle.manifest.server
        base = server.mcp_config or McpConfig()
        own = (base.platform_overrides or {}).get(sys.platform) or McpConfig()
        config = McpConfig(own.command or base.command, own.args or base.args, own.env or base.env)
        if len(config.args or ()) > MAX_ARGS or len(config.env or ()) > MAX_VALUES:
            reason = f"has more than {MAX_ARGS} arguments or {MAX_VALUES} variables"
            raise SourceError(f"{MANIFEST}, mcp_config", reason)
        if config.command:
            return config
        start = server.entry_point
        if not start:
            raise SourceError(f"{MANIFEST}, server", "has neither mcp_config nor entry_point")
        path = f"${{__dirname}}/{start.removeprefix('./')}"
        if server.type == "uv":
            return McpConfig("uv", ["run", "--project", "${__dirname}", path], config.env)
        if server.type == "binary":
            return McpConfig(path, config.args, config.env)
        return McpConfig("node" if server.type == "node" else "python3", [path], config.env)

    def _command(self, text: str) -> str:
        """A program of the machine by its name or its absolute path, or one of the bundle. Raises SourceError."""
        path = text.removeprefix("${__dirname}/")
        inside = posixpath.normpath(path)
        if inside in self._bundle.archive.files and "${" not in path:
            return f"./{BUNDLE}/{inside}"
        if path != text or ("/" in text and not text.startswith("/")):
            raise SourceError(f"{MANIFEST}, command", "is a file that is not in the bundle")
        # Many machines have no program of this name.
        return "python3" if text == "python" else text

    def _args(self, templates: list[str]) -> list[str]:
        args: list[str] = []
        for template in templates:
            whole = _VARIABLE.fullmatch(template)
            name = whole[1] if whole else ""
            if name in self._texts or name in _PLACES:
                texts = self._text_of(name)
                args += texts or self._without(name, args)
            elif self._is_empty(template):
                self._notes.append(f"The argument {clean(template)[:100]} is left out, because its value is empty.")
            else:
                args.append(self._filled(template, "args"))
        return args

    def _without(self, name: str, args: list[str]) -> list[str]:
        """Leave out the flag before an empty value, which would take the next argument for its own."""
        if args and re.fullmatch(r"--?[A-Za-z][\w-]*", args[-1]):
            flag = args.pop()
            self._notes.append(f"The argument {clean(flag)[:100]} is left out, because {clean(name)[:100]} is empty.")
        return []

    def _env(self, templates: dict[str, str]) -> tuple[dict[str, str], frozenset[str]]:
        """The variables, and those that are not secret."""
        env, public = {}, set()
        for name, template in templates.items():
            if self._is_empty(template):
                continue
            env[name] = self._filled(template, "env")
            asked = [key for key in _VARIABLE.findall(template) if key in self._texts]
            if all(self._is_plain(key) for key in asked):
                public.add(name)
        return env, frozenset(public)

    def _is_plain(self, name: str) -> bool:
        """Whether the value is one that the bundle itself gives, or what a person types as a public value."""
        option = self._options.get(name.removeprefix("user_config."))
        texts = self._texts[name]
        is_own = option is not None and texts == self._defaults[name.removeprefix("user_config.")]
        return is_own or all(PLAIN_VALUE.fullmatch(text) for text in texts)

    def _is_empty(self, template: str) -> bool:
        """Whether the text is only there for values, and none of them has one."""
        asked = [name for name in _VARIABLE.findall(template) if name in self._texts]
        return bool(asked) and not any(self._texts[name] for name in asked)

    def _filled(self, template: str, place: str) -> str:
        """The text with its variables replaced. A file of the bundle gets its path. Raises SourceError."""
        relative, archive = template.removeprefix("./"), self._bundle.archive
        if relative in archive.files or ("/" in template and relative.rstrip("/") in archive.folders):
            return f"{FOLDER}/{BUNDLE}/{relative}"

        def replace(match: re.Match[str]) -> str:
            name = match[1]
            if name == "__dirname":
                return f"{FOLDER}/{BUNDLE}"
            if name in ("/", "pathSeparator"):
                return "/"
            if name not in self._texts and name not in _PLACES:
                return match[0]  # the reader decides about it, as in other sources
            texts = self._text_of(name)
            if len(texts) > 1:
                reason = f"has a text around {clean(name)[:100]}, so it may have only one value"
                raise SourceError(f"{MANIFEST}, {place}", reason)
            return texts[0] if texts else ""

        filled = _VARIABLE.sub(replace, template)
        self._length += len(filled)
        if self._length > MAX_BYTES:
            raise SourceError(f"{MANIFEST}, {place}", f"has more than {MAX_BYTES:,} characters with all its values")
        return filled

    # Values -------------------------------------------------------------------------------------------------------

    def _text_of(self, name: str) -> list[str]:
        """The values of a variable. One that names a folder of a person becomes a field when it is first needed."""
        if name not in self._texts:
            option = Option("directory", description="The folder that the bundle calls by this name.", required=True)
            self._texts[name] = self._fill(name, option)
        return self._texts[name]

    def _fill(self, key: str, option: Option) -> list[str]:
        """Make the field, and return the values. Raises SourceError."""
        if not _KEY.fullmatch(key) or key in self.fields:
            raise SourceError(
                f"{MANIFEST}, user_config", "has a name with other characters than letters, digits, ., - and _"
            )
        asked = self.fields[key] = _field(key, option)
        filled = self._values.get(key)
        if asked.is_secret:
            self._inputs[key] = {"description": asked.description, "password": True}
            return [f"${{input:{key}}}"] if filled or asked.is_required else []
        text = asked.default if filled is None else filled
        texts = (
            [line.strip() for line in text.splitlines() if line.strip()]
            if asked.is_repeated
            else [text]
            if text
            else []
        )
        if self._is_complete and (fault := _fault(asked, option, texts)):
            self._faults.append(SourceError(key, fault))
        return texts


def _field(key: str, option: Option) -> Field:
    defaults = _defaults(option)
    is_personal = any("${" in text for text in defaults)  # a folder of a person's own machine
    title, description = clean(option.title)[:200].strip(), clean(option.description)[:500].strip()
    description += "." if description and description[-1] not in ".!?" else ""
    words = [description, _range(option)]
    is_secret = bool(option.sensitive)
    default = "\n".join(defaults)
    return Field(
        key,
        title=title,
        description=" ".join(word for word in words if word),
        is_required=bool(option.required),
        is_secret=is_secret,
        is_repeated=bool(option.multiple) and option.type in ("directory", "file"),
        default="" if is_secret or is_personal else default[:MAX_FILLED],
        placeholder=default[:200] if is_personal and not is_secret else "",
        choices=("true", "false") if option.type == "boolean" and not is_secret else (),
    )


def _defaults(option: Option) -> list[str]:
    given = option.default[:MAX_VALUES] if isinstance(option.default, list) else [option.default]
    return [clean(text_of_value(text)) for text in given if text is not None and text != ""]


def _range(option: Option) -> str:
    words = [f"at least {option.min:.15g}" if option.min is not None else ""]
    words += [f"at most {option.max:.15g}" if option.max is not None else ""]
    bounds = " and ".join(word for word in words if word)
    return f"A number, {bounds}." if bounds else "A number." if option.type == "number" else ""


def _fault(asked: Field, option: Option, texts: list[str]) -> str:
    """Why the texts cannot be the values. Empty if they can."""
    checks: list[tuple[Callable[[str], object], str]] = [
        (lambda text: len(text) <= MAX_FILLED, f"must not be longer than {MAX_FILLED:,} characters"),
        (lambda text: "${" not in text, "must be the value itself, without variables in ${}"),
        (lambda text: not asked.choices or text in asked.choices, f"must be one of: {', '.join(asked.choices)}"),
    ]
    if option.type == "number":
        checks.append((_NUMBER.fullmatch, "must be a number"))
        lowest, highest = option.min, option.max
        if lowest is not None:
            checks.append((lambda text: float(text) >= lowest, f"must be at least {lowest:.15g}"))
        if highest is not None:
            checks.append((lambda text: float(text) <= highest, f"must be at most {highest:.15g}"))
    if asked.is_required and not texts:
        return "needs a value"
    return next((reason for text in texts for is_good, reason in checks if not is_good(text)), "")
