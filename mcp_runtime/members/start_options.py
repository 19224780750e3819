"""The settings for all starts of one runtime."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.secrets import references
from mcp_runtime.secrets.values import MemberSecrets
from mcp_runtime.system.runtime_id import RuntimeId
from roster.models import GuildMember


@dataclass(frozen=True)
class StartOptions:
    """The options of one runtime.

    Manifests cannot refer to `private_paths`, files and folders of the hall, and a member in a sandbox cannot read
    them. `secret_files_dir` is the folder with files for members to which manifests can refer. A member in a sandbox
    cannot connect to `refused_ports`, which are ranges of TCP ports. `web` is the address where people reach the web,
    without a slash at its end.
    """

    hall_id: uuid.UUID
    runtime: RuntimeId
    members_dir: Path
    data_dir: Path
    port_range: tuple[int, int]
    max_result_bytes: int
    plain_http_hosts: Collection[str] = ()
    web: str = ""
    private_paths: Collection[Path] = ()
    secret_files_dir: Path | None = None
    refused_ports: Collection[tuple[int, int]] = ()

    @property
    def unreadable_paths(self) -> tuple[Path, ...]:
        """What no member in a sandbox may read, beside the data folder. The hall reads its references for it."""
        folders = (self.members_dir, self.secret_files_dir)
        return (*filter(None, folders), *self.private_paths)

    def sources(self, member: GuildMember, manifest: Manifest) -> references.Sources:
        """Where the references in the manifest of the member are read from."""
        return references.Sources(
            self.members_dir / member.directory,
            private=(self.data_dir, *self.private_paths),
            files=self.secret_files_dir,
            secret=MemberSecrets(member, manifest.as_json()),
        )
