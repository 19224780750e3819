"""System checks. `manage.py check` and each start report a configuration that cannot work."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register


@register()
def check_members_dir(**_: Any) -> list[CheckMessage]:
    folder = settings.GUILD_HALL_MEMBERS_DIR
    if folder.is_dir():
        return []
    return [
        Error(
            f"GUILD_HALL_MEMBERS_DIR={folder} is not a folder.",
            hint="Make it, or point GUILD_HALL_MEMBERS_DIR at the folder that holds your members.",
            id="roster.E001",
        )
    ]


@register()
def check_ports_differ(**_: Any) -> list[CheckMessage]:
    if settings.GUILD_HALL_PORT != settings.GUILD_HALL_GATEWAY_PORT:
        return []
    return [
        Error(
            f"GUILD_HALL_PORT and GUILD_HALL_GATEWAY_PORT are both {settings.GUILD_HALL_PORT}.",
            hint="Give the web and the gateway a port each.",
            id="roster.E002",
        )
    ]


@register()
def check_port_range_is_apart(**_: Any) -> list[CheckMessage]:
    first, last = settings.GUILD_HALL_PORT_RANGE
    if not first <= settings.GUILD_HALL_PORT <= last:
        return []
    return [
        Warning(
            f"GUILD_HALL_PORT={settings.GUILD_HALL_PORT} lies in the members' range {first}-{last}.",
            hint="A member may take it while the web is down; choose a port outside the range.",
            id="roster.W001",
        )
    ]


@register()
def check_data_dir_is_private(**_: Any) -> list[CheckMessage]:
    """The settings make the folder private. On a file system without modes (FAT, some network shares) they cannot."""
    folder = settings.GUILD_HALL_DATA_DIR
    if not folder.stat().st_mode & 0o077:
        return []
    return [
        Warning(
            f"Other users of this machine may read the data folder {folder}: its file system keeps no modes.",
            hint="It holds the secret key and password hashes. Point GUILD_HALL_DATA_DIR at another file system.",
            id="roster.W002",
        )
    ]
