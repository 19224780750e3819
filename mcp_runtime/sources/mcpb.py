"""A bundle of MCP (`.mcpb`): a zip with a server and its manifest.json, which says how it starts and what it needs.

Source: MANIFEST.md, version 0.3 of 2025-12-02, and the schemas 0.1 to 0.4, in github.com/anthropics/mcpb. Here a bundle
is only read. What is in it becomes files after an approval.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from mcp_runtime.members.archives import Archive, shown
from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.documents import read_json
from mcp_runtime.sources.server_json import clean

MANIFEST = "manifest.json"
MAX_MANIFEST = 1_000_000  # bytes
VERSIONS = ("0.1", "0.2", "0.3", "0.4")
_PLATFORMS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}


class McpConfig(msgspec.Struct):
    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = None
    platform_overrides: dict[str, McpConfig] | None = None


class _Server(msgspec.Struct):
    type: str
    entry_point: str | None = None
    mcp_config: McpConfig | None = None


class Option(msgspec.Struct):
    """One of user_config."""

    type: str = "string"
    title: str | None = None
    description: str | None = None
    required: bool | None = False
    default: str | int | float | bool | list[str] | None = None
    multiple: bool | None = False
    sensitive: bool | None = False
    min: float | None = None
    max: float | None = None


class _Author(msgspec.Struct):
    name: str = ""
    url: str | None = None


class _Compatibility(msgspec.Struct):
    platforms: list[str] | None = None
    runtimes: dict[str, str] | None = None


class _Manifest(msgspec.Struct):
    name: str
    server: _Server
    version: str = ""
    manifest_version: str | None = None
    dxt_version: str | None = None
    display_name: str | None = None
    author: _Author | str | None = None
    homepage: str | None = None
    user_config: dict[str, Option] | None = None
    compatibility: _Compatibility | None = None


@dataclass(frozen=True)
class Bundle:
    """A bundle that is open. Its zip is checked, but the data of its files only by `archive.check`."""

    archive: Archive
    manifest: _Manifest

    @property
    def title(self) -> str:
        return clean(self.manifest.display_name or self.manifest.name)[:200]

    @property
    def author(self) -> str:
        """As the bundle claims."""
        author = self.manifest.author
        return clean(author.name if isinstance(author, _Author) else author)[:200]

    @property
    def homepage(self) -> str:
        """As the bundle claims."""
        author = self.manifest.author
        url = author.url if isinstance(author, _Author) else None
        return clean(self.manifest.homepage or url)[:500]


def open_bundle(stream: BinaryIO) -> Bundle:
    """Raises SourceError. The data of the files is not read, apart from the manifest."""
    archive = Archive(stream)
    file = archive.files.get(MANIFEST)
    if file is None:
        raise SourceError("", f"has no {MANIFEST} at its top, so it is no bundle")
    try:
        text = archive.read(file, MAX_MANIFEST).decode()
    except UnicodeDecodeError:
        raise SourceError(MANIFEST, "is not UTF-8") from None
    try:
        manifest = msgspec.convert(read_json(text), _Manifest)
    except SourceError as error:
        raise SourceError(f"{MANIFEST}, {error.place}" if error.place else MANIFEST, error.reason) from None
    except msgspec.ValidationError as error:
        # msgspec's text names the types and the place, and never quotes a value.
        raise SourceError(MANIFEST, f"has a value of another type than it should: {str(error)[:300]}") from None
    _require_runnable(manifest)
    return Bundle(archive, manifest)


def _require_runnable(manifest: _Manifest) -> None:
    """Raise SourceError for a format or a platform that is not here."""
    version = manifest.manifest_version or manifest.dxt_version or ""
    if version not in VERSIONS:
        given = f"the version {shown(version)}" if version else "no version"
        raise SourceError(f"{MANIFEST}, manifest_version", f"has {given}; the hall knows {', '.join(VERSIONS)}")
    platforms = manifest.compatibility.platforms if manifest.compatibility else None
    if platforms and sys.platform not in platforms:
        names = ", ".join(_PLATFORMS.get(name, shown(name)) for name in platforms[:5])
        here = _PLATFORMS.get(sys.platform, sys.platform)
        raise SourceError("", f"is only for {names}, and the hall runs on {here}")
    if manifest.server.type not in ("node", "python", "binary", "uv"):
        raise SourceError(f"{MANIFEST}, server.type", "is none of node, python, binary and uv")
