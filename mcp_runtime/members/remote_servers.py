"""The connections to members that are remote servers: their clients, and the tokens of those behind OAuth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mcp_runtime.client import remote
from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.members import credentials, unattended
from mcp_runtime.members.access_tokens import AccessToken
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.process import NoProcess
from mcp_runtime.members.start_options import StartOptions
from mcp_runtime.members.user_tokens import UserTokens
from mcp_runtime.protocol.errors import UrlError
from mcp_runtime.secrets import references
from roster.models import GuildMember


class RemoteServers:
    """Creates live members for remote servers, and sends nothing. See `Starter` for the two functions."""

    def __init__(
        self,
        options: StartOptions,
        on_notification: Callable[[int, str, dict[str, Any]], None],
        on_sign_in_over: Callable[[int, AccessToken, str], None],
    ) -> None:
        self._options = options
        self._on_notification = on_notification
        self._on_sign_in_over = on_sign_in_over

    def live_member(self, member: GuildMember, manifest: Manifest) -> LiveMember:
        """A live member that is not connected yet. Raises UrlError and SecretError."""
        if fault := remote.plain_http_fault(manifest.url, self._options.plain_http_hosts):
            raise UrlError(fault)
        token = self._access_token(member, manifest)
        new_client = partial(
            JsonRpcClient,
            manifest.url,
            connections=manifest.max_concurrency + 2,
            max_bytes=self._options.max_result_bytes,
            headers=references.resolve(manifest.headers, self._options.sources(member, manifest), "headers"),
        )
        users = None
        if manifest.oauth.credentials == "user":
            users = UserTokens(partial(self._token_of_user, member, manifest), lambda token: new_client(bearer=token))
        client = new_client(bearer=token, on_notification=partial(self._on_notification, member.pk))
        endpoint = remote.display_url(manifest.url)
        return LiveMember(member.pk, member.name, 0, client, NoProcess(), endpoint, token=token, users=users)

    def _access_token(self, member: GuildMember, manifest: Manifest) -> AccessToken | None:
        """The token of a member that may be behind OAuth. None if the manifest has its own `Authorization`."""
        if any(name.lower() == "authorization" for name in manifest.headers):
            return None
        sources, hosts = self._options.sources(member, manifest), self._options.plain_http_hosts
        return AccessToken(
            member.pk,
            manifest,
            plain_http_hosts=hosts,
            own=unattended.of_member(manifest, sources, hosts),
            on_over=partial(self._on_sign_in_over, member.pk),
            holder=credentials.LISTS if manifest.oauth.credentials == "user" else credentials.EVERYBODY,
        )

    def _token_of_user(self, member: GuildMember, manifest: Manifest, user_id: int) -> AccessToken:
        """The token of one user, whose end changes nothing for others."""
        sources, hosts = self._options.sources(member, manifest), self._options.plain_http_hosts
        return AccessToken(
            member.pk,
            manifest,
            plain_http_hosts=hosts,
            own=unattended.of_user(manifest, sources, hosts, user_id),
            holder=credentials.of_user(user_id),
            own_page=f"{self._options.web}/members/{member.pk}/own-sign-in/",
        )
