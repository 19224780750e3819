"""One stream of notifications: the filter of its client, and the messages that pass it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.catalog import Place, resource_uri
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.gateway.messages import Client
from mcp_runtime.gateway.outbox import Outbox
from mcp_runtime.http1.server import HttpExchange
from mcp_runtime.protocol import jsonrpc, mcp

# The list changes that a client can subscribe to: the key in a modern filter, the kind of list, the notification.
KINDS = {
    "toolsListChanged": ("tools", "notifications/tools/list_changed"),
    "promptsListChanged": ("prompts", "notifications/prompts/list_changed"),
    "resourcesListChanged": ("resources", "notifications/resources/list_changed"),
}
RESOURCE_UPDATED = "notifications/resources/updated"
_LIST_CHANGES = frozenset(method for _, method in KINDS.values())


@dataclass(eq=False)
class OpenStream:
    """One open stream. `subscriptions` is a modern client's filter. None, for a client with a session, means all.

    `exchange` and `message` are its HTTP request, and the message in it if it is a POST.
    """

    place: Place
    client: Client
    outbox: Outbox
    exchange: HttpExchange
    message: Any = None
    subscriptions: Mapping[str, Any] | None = None
    listen_id: Any = None
    digests: dict[str, bytes] = field(default_factory=dict)  # kind of list -> digest at the last notification
    members: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    peers: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # other nodes, by lease
    # By member or lease of a node: set after the first attempt to listen.
    ready: dict[str, asyncio.Event] = field(default_factory=dict)
    # At the roster: member and own URI of each URI in the filter, and what this result depends on.
    resolved: list[tuple[str, str]] = field(default_factory=list)
    resolved_for: Any = None
    # Whether a member's own URI is held or disabled now.
    is_blocked: Callable[[str, str], bool] = lambda member, uri: False

    def wants(self, key: str) -> bool:
        return self.subscriptions is None or self.subscriptions.get(key) is True

    def put(self, message: dict[str, Any], event_id: str = "") -> None:
        """Send a notification, with the id of its subscription."""
        if self.subscriptions is not None:
            params = envelope.fields(message.get("params"))
            meta = {**envelope.fields(params.get("_meta")), f"{mcp.META}subscriptionId": self.listen_id}
            message = {**message, "params": {**params, "_meta": meta}}
        self.outbox.put(envelope.encode(message), event_id)

    def resources(self) -> list[tuple[str, str]]:
        """Return the subscribed resources that the client can use: member and own URI."""
        return [(member, uri) for member, uri in self._subscribed() if not self.is_blocked(member, uri)]

    def _subscribed(self) -> list[tuple[str, str]]:
        if self.subscriptions is None:
            may, session = self.client.principal.may_use_all, self.client.session
            subscribed = session.subscriptions.items() if session else ()
            has = self.place.selection.has
            return [(name, uri) for name, uris in subscribed if may(name) and has(name) for uri in uris]
        if self.place.member is not None:
            return [(self.place.member, uri) for uri in self.subscriptions.get("resourceSubscriptions") or []]
        may = self.client.principal.may_use_all
        return [(name, uri) for name, uri in self.resolved if may(name) and self.place.selection.has(name)]

    def filter(self) -> dict[str, Any]:
        """Return the filter for a modern member."""
        subscriptions: dict[str, Any] = {
            key: True for key in KINDS if self.wants(key) and self.place.member is not None
        }
        if uris := [uri for _, uri in self.resources()]:
            subscriptions["resourceSubscriptions"] = uris
        return subscriptions

    def is_for_client(self, name: str, message: Message) -> bool:
        """Return whether the message of a member without sessions may be for this client.

        Such a member does not distinguish clients, so its log messages may be about the call of any client.
        """
        if message.method in _LIST_CHANGES:
            return True
        uri = envelope.text(message.fields.get("uri"))
        subscribed_uris = [subscribed_uri for member, subscribed_uri in self.resources() if member == name]
        return message.method == RESOURCE_UPDATED and any(
            _is_part(uri, subscribed_uri) for subscribed_uri in subscribed_uris
        )

    def forward(self, name: str, message: Message, event_id: str) -> None:
        """Send a member's message, if it passes the filter."""
        method, params, forwarded_message = message.method, dict(message.fields), message.parts()
        key = next((key for key, (_, notification) in KINDS.items() if notification == method), None)
        if method == "notifications/subscriptions/acknowledged":
            return
        if message.params is not None and not envelope.is_object(message.params):
            return
        if key is not None and (self.place.member is None or not self.wants(key)):
            return  # the gateway itself sends changes of the roster's lists
        if self.subscriptions is not None and key is None and method != RESOURCE_UPDATED:
            return
        if method == RESOURCE_UPDATED:
            uri = envelope.text(params.get("uri"))
            if self.is_blocked(name, uri):
                return
            if self.subscriptions is not None and (name, uri) not in self.resources():
                return
            if self.place.member is None:
                params["uri"] = self._listed_uri(name, uri)
                forwarded_message["params"] = params
        if self.subscriptions is not None:
            forwarded_message["params"] = params
        if envelope.is_object(params.get("_meta")):
            meta = envelope.fields(params.pop("_meta"))
            remaining_meta = {key: value for key, value in meta.items() if key != f"{mcp.META}subscriptionId"}
            forwarded_message["params"] = {**params, "_meta": remaining_meta} if remaining_meta else params
        self.put(forwarded_message, event_id)

    def _listed_uri(self, name: str, uri: str) -> str:
        """Return the URI that the client subscribed to."""
        subscribed_uris = (self.subscriptions or {}).get("resourceSubscriptions") or []
        return uri if uri in subscribed_uris else resource_uri(name, uri)

    def notify_all_changed(self) -> None:
        for key, (_, method) in KINDS.items():
            if self.wants(key):
                self.put(jsonrpc.notification(method))


def _is_part(uri: str, whole: str) -> bool:
    """Return whether a resource is `whole` or a part of it (25-11: server/resources, Subscriptions)."""
    return uri == whole or uri.startswith(whole.removesuffix("/") + "/")
