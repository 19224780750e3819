"""What the members folder of this machine decides about the roster.

In a hall with one node it decides everything. With several nodes it decides about the members of its own node, and
about new members, which have no node yet. The members of other nodes belong to the disks of those nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings
from django.db.models import Q

from mcp_runtime.members.folders import FolderDigest, FolderDigests
from mcp_runtime.members.manifest.files import ManifestFile
from mcp_runtime.rows.lease import has_other_nodes
from roster.models import GuildMember, Node

_folder_digests = FolderDigests()  # of the whole process, because it remembers the hashes of files


@dataclass
class Disk:
    """The members folder of this machine, and those of the other nodes as they noted them in `Node.folders`."""

    is_alone: bool = True
    digests: dict[str, FolderDigest] = field(default_factory=dict)
    """The digests of the folders with a valid manifest, by member name. Empty if there are no other nodes."""
    own: Node | None = None
    """The node with this machine's name. None if there is none."""
    others: list[Node] = field(default_factory=list)

    @classmethod
    def read(cls, members_dir: Path, files: Iterable[ManifestFile]) -> Disk:
        """Compute the digests, which can take a while, and make them known. A hall with one node needs none."""
        if not has_other_nodes():
            return cls()
        manifests = {members_dir / file.directory: file.manifest for file in files if file.manifest is not None}
        digests = _folder_digests.compute({folder: manifest.file_patterns for folder, manifest in manifests.items()})
        disk = cls(is_alone=False, digests={manifests[folder].name: digest for folder, digest in digests.items()})
        disk.read_nodes()
        disk._announce()
        return disk

    def is_outdated(self) -> bool:
        """Whether the hall has got its second node since this was read. Then this decides about too many members."""
        return self.is_alone and has_other_nodes()

    def read_nodes(self) -> None:
        """Read again what the nodes noted, under the lock of a sync. Folders are noted before their rows exist."""
        if not self.is_alone:
            nodes = {node.name: node for node in Node.objects.all()}
            self.own = nodes.pop(settings.GUILD_HALL_NODE, None)
            self.others = list(nodes.values())

    # Rows ---------------------------------------------------------------------------------------------------------

    @property
    def writable(self) -> Q:
        """A condition for the members that this disk may change. A member may get another owner during a sync."""
        if self.is_alone:
            return Q()
        return Q(node=None) if self.own is None else Q(node=None) | Q(node=self.own) | Q(removed_at__isnull=False)

    def is_foreign(self, row: GuildMember) -> bool:
        """Whether another node's disk decides about the member. A removed member can return on any node's disk."""
        if self.is_alone or row.node_id is None:
            return False
        return self.own is None or (row.node_id != self.own.pk and row.removed_at is None)

    def may_note_fault(self, row: GuildMember) -> bool:
        """Whether a fault of the folder is written to the row. For a new member only if no other folder is valid."""
        return not self.is_foreign(row) and (row.node_id is not None or not any(self._valid_copies(row.name)))

    def may_remove(self, row: GuildMember) -> bool:
        """Whether the member leaves the roster because its folder is not here."""
        if self.is_alone:
            return True
        is_elsewhere = any(row.name in node.folders for node in self.others)
        return self.own is not None and not self.is_foreign(row) and not is_elsewhere

    def new_node(self, row: GuildMember) -> Node | None:
        """The node that can run a member of this node whose folder is gone here. Prefers the same files."""
        if self.own is None or row.node_id != self.own.pk or row.requested_node_id is not None or not row.manifest:
            return None
        candidates = [
            node
            for node in self._valid_copies(row.name)
            if node.lease_id is not None and not node.is_draining and row.node_labels <= set(node.labels)
        ]
        return max(candidates, key=lambda node: node.folders[row.name] == row.digest, default=None)

    def _valid_copies(self, name: str) -> list[Node]:
        return [node for node in self.others if node.folders.get(name)]

    # Node.folders -------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        """Note new folders before their rows exist, so that no other node removes these rows."""
        if self.own is not None:
            self._note_folders({**self.own.folders, **self._texts()})

    def note_folders(self, names: Iterable[str]) -> None:
        """Note the folders of these members, and no others. The digest of a folder with a fault is empty.

        It writes after the transaction of a sync, because a lock on the node's row would delay the heartbeat.
        """
        if self.own is not None:
            self._note_folders({**dict.fromkeys(names, ""), **self._texts()})

    def _texts(self) -> dict[str, str]:
        return {name: digest.text for name, digest in self.digests.items()}

    def _note_folders(self, folders: dict[str, str]) -> None:
        if self.own is not None and self.own.folders != folders:
            Node.objects.filter(pk=self.own.pk).update(folders=folders)
            self.own.folders = folders
