"""System checks. `manage.py check` and each start report a configuration that cannot work."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from mcp_runtime.client.remote import plain_http_fault


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


@register()
def check_single_sign_on(**_: Any) -> list[CheckMessage]:
    if settings.GUILD_HALL_OIDC_ONLY and not settings.GUILD_HALL_OIDC_ISSUER:
        return [
            Error(
                "GUILD_HALL_OIDC_ONLY is 1, but there is no single sign-on, so nobody could log in.",
                hint="Give GUILD_HALL_OIDC_ISSUER too, or leave GUILD_HALL_OIDC_ONLY out.",
                id="roster.E005",
            )
        ]
    if not settings.GUILD_HALL_OIDC_ISSUER:
        return []
    if find_spec("mozilla_django_oidc") is None or find_spec("jwt") is None:
        return [
            Error(
                "GUILD_HALL_OIDC_ISSUER is set, but the library for single sign-on is not installed.",
                hint="Install it with: .venv/bin/python -m pip install -r requirements-oidc.txt",
                id="roster.E003",
            )
        ]
    if fault := plain_http_fault(settings.GUILD_HALL_OIDC_ISSUER, settings.GUILD_HALL_PLAIN_HTTP_HOSTS):
        return [Error(f"GUILD_HALL_OIDC_ISSUER: {fault}.", hint="Give an address with https.", id="roster.E004")]
    keys = settings.GUILD_HALL_SIGN_IN_JWKS_URL
    if keys and (fault := plain_http_fault(keys, settings.GUILD_HALL_PLAIN_HTTP_HOSTS)):
        return [Error(f"GUILD_HALL_SIGN_IN_JWKS_URL: {fault}.", hint="Give an address with https.", id="roster.E006")]
    return []
