"""A proposed member in the form in which REST, the admin and commands show it."""

from __future__ import annotations

import shlex
from typing import Any

from mcp_runtime.control.proposals import missing_secrets
from roster.models import Bundle, MemberProposal


def described(row: MemberProposal) -> dict[str, Any]:
    """All that an approval is about, as JSON values. No value of a secret is in it, because none is in the row."""
    manifest = row.manifest
    argv = [manifest["command"], *manifest.get("args", ())] if "command" in manifest else []
    return {
        "name": row.name,
        "digest": row.digest,
        "source": row.source,
        "version": manifest["version"],
        "argv": argv,
        "command_line": shlex.join(argv),
        "env": manifest.get("env", {}),
        "url": manifest.get("url", ""),
        "headers": manifest.get("headers", {}),
        "sandbox": manifest.get("sandbox", "off") if argv else "none, because nothing is started here",
        "packages": manifest.get("packages", ""),
        "missing_secrets": missing_secrets(row),
        "inputs": row.inputs,
        "notes": row.notes,
        "manifest": manifest,
        "bundle": _bundle(getattr(row, "bundle", None)),
    }


def _bundle(bundle: Bundle | None) -> dict[str, Any] | None:
    """None for a member without a bundle."""
    if bundle is None:
        return None
    keys = ("size", "unpacked_size", "file_count", "files", "author", "homepage")
    return {"sha256": bundle.digest, **{key: getattr(bundle, key) for key in keys}}
