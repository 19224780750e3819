"""Faults of real servers: how to make each of them, and what the hall recorded when it was made.

`local` and `remote` make the faults. `python -m tests.support.faults.collect` makes all of them in a real hall, and
writes what the hall recorded into `outputs`. Some need programs or registries that a machine of the tests may not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OUTPUTS = Path(__file__).parent / "outputs"
MEMBERS_DIR = "/srv/guild-members"  # in place of the folder where the faults were made


@dataclass(frozen=True)
class Fault:
    """`how` says in one line what is wrong. `files` go into the folder of the member, by their path."""

    how: str
    manifest: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    executable: str = ""  # the file that gets the permission
    environment: Mapping[str, str] = field(default_factory=dict)  # of the runtime

    def write(self, name: str, members_dir: Path, **places: Any) -> Path:
        """Write its folder. `places` are filled into the texts, as in `{port}`."""
        folder = members_dir / name
        folder.mkdir()
        for path, text in self.files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_filled(text, places).encode())
        if self.executable:
            (folder / self.executable).chmod(0o755)
        manifest = {"name": name, "version": "1.0.0", "transport": "stdio", **self.manifest}
        (folder / "guild-member.json").write_text(_filled(json.dumps(manifest, indent=2), places))
        return folder


def _filled(text: str, places: Mapping[str, Any]) -> str:
    for key, value in places.items():
        text = text.replace(f"<{key}>", str(value))
    return text


@dataclass(frozen=True)
class Recording:
    """What the hall wrote into the row of a member with a fault."""

    name: str
    how: str
    manifest: dict[str, Any]
    last_error: str

    @classmethod
    def read(cls, name: str) -> Recording:
        head, _, last_error = (OUTPUTS / f"{name}.txt").read_text(encoding="utf-8").partition("\n\n")
        how, manifest = head.split("\n")
        return cls(
            name,
            how.removeprefix("How: "),
            json.loads(manifest.removeprefix("Manifest: ")),
            last_error.removesuffix("\n"),
        )

    def write(self) -> None:
        text = f"How: {self.how}\nManifest: {json.dumps(self.manifest)}\n\n{self.last_error}\n"
        (OUTPUTS / f"{self.name}.txt").write_text(text, encoding="utf-8")
