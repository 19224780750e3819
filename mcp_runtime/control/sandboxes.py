"""Reports which protections the sandbox of a member has on its node."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_runtime.sandbox.capabilities import PROTECTIONS
from roster.models import GuildMember


@dataclass(frozen=True)
class SandboxReport:
    """The sandbox of a member. `gaps` has the reason for each protection that its machine cannot enforce."""

    mode: str
    protections: dict[str, str]
    gaps: dict[str, str]

    @property
    def summary(self) -> str:
        """One sentence for people."""
        if self.mode == "off":
            return "off, so it can use everything that the user of the hall can use"
        if not self.protections and not self.gaps:
            return f"{self.mode}; its protections are known when a runtime has started"
        held = f"protects {', '.join(self.protections)}" if self.protections else "protects nothing on this machine"
        return f"{self.mode}, {held}" + (f"; not {', '.join(self.gaps)}" if self.gaps else "")


def sandbox_report(row: GuildMember) -> SandboxReport | None:
    """The report about a member that the hall starts. None for a remote server, which has no process here."""
    if row.server_url:
        return None
    gaps = row.node.sandbox_gaps if row.node else None
    if row.sandbox == "off" or gaps is None:
        return SandboxReport(row.sandbox, {}, {})
    # In our order, because PostgreSQL has another one.
    ordered_gaps = {name: gaps[name] for name in PROTECTIONS if name in gaps}
    return SandboxReport(
        row.sandbox, {name: text for name, text in PROTECTIONS.items() if name not in gaps}, ordered_gaps
    )
