from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from mcp_runtime.control.secrets import is_current
from roster.management.hall_command import HallCommand
from roster.management.terminal import as_json, table
from roster.models import Secret

COLUMNS = ["SECRET", "LAST SET", "BY", "MEMBERS"]
NO_SECRETS = "This hall has no secrets. Set one with: guildhall set_secret NAME --members A,B"


class Command(HallCommand):
    help = "Show the secrets for members, and which members may use them; their values are shown nowhere."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="a JSON list instead of the table")

    def handle(self, *args: Any, **options: Any) -> None:
        secrets = list(Secret.objects.select_related("changed_by").prefetch_related("uses__member"))
        if options["json"]:
            self.stdout.write(as_json([_values(secret) for secret in secrets]))
        elif secrets:
            self.stdout.write(table(COLUMNS, [_row(secret) for secret in secrets]))
        else:
            self.stdout.write(NO_SECRETS)


def _values(secret: Secret) -> dict[str, Any]:
    return {
        "name": secret.name,
        "created_at": secret.created_at,
        "changed_at": secret.changed_at,
        "changed_by": secret.changed_by and secret.changed_by.get_username(),
        "members": [
            {"member": use.member.name, "is_current": is_current(use)}
            for use in sorted(secret.uses.all(), key=lambda use: use.member.name)
        ],
    }


def _row(secret: Secret) -> list[str]:
    values = _values(secret)
    members = [use["member"] + ("" if use["is_current"] else " (changed)") for use in values["members"]]
    return [
        secret.name,
        f"{secret.changed_at:%Y-%m-%d %H:%M} UTC",
        values["changed_by"] or "-",
        ", ".join(members) or "-",
    ]
