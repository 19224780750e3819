"""The template with which a new member begins: a server with one tool that works, its manifest, a README."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "member_template"
PLACEHOLDER = "MEMBER_NAME"


def files_of(name: str) -> dict[str, str]:
    """The text of each file of a member with this name, by the names of the files. Raises OSError."""
    files = sorted(file for file in FOLDER.iterdir() if file.is_file())
    return {file.name: file.read_text(encoding="utf-8").replace(PLACEHOLDER, name) for file in files}
