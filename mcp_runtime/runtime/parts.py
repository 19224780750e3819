"""The parts of a runtime: lifecycle and supervisor at once, the rest when Celery's pool exists."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.conf import settings

from mcp_runtime.control import sign_ins
from mcp_runtime.http1.listeners import Sockets
from mcp_runtime.members import process
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.start_options import StartOptions
from mcp_runtime.members.supervisor import Supervisor
from mcp_runtime.rows import lease
from mcp_runtime.runtime import fence
from mcp_runtime.sandbox import capabilities
from mcp_runtime.system.runtime_id import RuntimeId

logger = logging.getLogger("guildhall.runtime")

if TYPE_CHECKING:
    from mcp_runtime.agents.runner import AgentRunner
    from mcp_runtime.calls.dispatcher import Dispatcher
    from mcp_runtime.gateway.server import Gateway


class Parts:
    """The parts of the runtime with `lease_id`. They notify each other of changes. A part is None until it is built."""

    def __init__(self, lease_id: uuid.UUID, gateway_sockets: Sockets, stop_requested: threading.Event) -> None:
        self.lease_id = lease_id
        self._stop_requested = stop_requested
        self._gateway_sockets = gateway_sockets
        self._building = threading.Lock()  # held while there are some parts and not all
        self.dispatcher: Dispatcher | None = None
        self.gateway: Gateway | None = None
        self.agents: AgentRunner | None = None
        self._hall_id, self._id = lease.hall().hall_id, RuntimeId.own()
        for name, reason in capabilities.probe().gaps.items():
            logger.info("sandboxes of members lack the protection of %s here: %s", name, reason)
        self.lifecycle = Lifecycle(
            lease_id=lease_id,
            options=StartOptions(
                hall_id=self._hall_id,
                runtime=self._id,
                members_dir=settings.GUILD_HALL_MEMBERS_DIR,
                data_dir=settings.GUILD_HALL_DATA_DIR,
                port_range=settings.GUILD_HALL_PORT_RANGE,
                max_result_bytes=settings.GUILD_HALL_MAX_RESULT_BYTES,
                plain_http_hosts=settings.GUILD_HALL_PLAIN_HTTP_HOSTS,
                web=sign_ins.address_of_web(),
                private_paths=settings.PRIVATE_PLACES,
                secret_files_dir=settings.GUILD_HALL_SECRET_FILES_DIR,
                refused_ports=settings.PRIVATE_PORTS,
            ),
            on_change=self._handle_member_change,
            on_lists_changed=self._handle_list_change,
        )
        self.supervisor = Supervisor(
            lifecycle=self.lifecycle,
            members_dir=settings.GUILD_HALL_MEMBERS_DIR,
            start_concurrency=settings.GUILD_HALL_START_CONCURRENCY,
            calls_in=self.calls_in,
            on_other_node=fence.turn_on,
        )

    def calls_in(self, member_id: int) -> int:
        """The number of calls that run in the member now, or begin to, without those of the gateway."""
        return self.dispatcher.calls_in(member_id) if self.dispatcher is not None else 0

    def _handle_member_change(self, member_id: int) -> None:
        self.supervisor.wake()
        if self.gateway is not None:
            self.gateway.member_changed(member_id)
        if self.dispatcher is not None:
            self.dispatcher.member_changed(member_id)

    def _handle_list_change(self, member_id: int) -> None:
        if self.gateway is not None:
            self.gateway.lists_changed(member_id)

    def _wake_all(self) -> None:
        self.supervisor.wake()
        if self.agents is not None:
            self.agents.wake()

    def build(self, run_in_pool: Callable[..., Any]) -> None:
        """Build the rest, unless a stop was requested."""
        with self._building:
            if not self._stop_requested.is_set():
                self._build(run_in_pool)

    def wait_for_build(self) -> None:
        """Wait until no more parts are added. Call it after a stop was requested."""
        with self._building:
            pass

    def _build(self, run_in_pool: Callable[..., Any]) -> None:
        from mcp_runtime.agents import transitions as agent_transitions
        from mcp_runtime.agents.runner import AgentRunner
        from mcp_runtime.calls import transitions
        from mcp_runtime.calls.dispatcher import Dispatcher
        from mcp_runtime.calls.queue_watch import QueueWatch
        from mcp_runtime.http1 import listeners
        from mcp_runtime.rows.database import patiently
        from mcp_runtime.runtime import housekeeping, tasks

        self.dispatcher = Dispatcher(
            lease_id=self.lease_id,
            lifecycle=self.lifecycle,
            run_in_pool=run_in_pool,
            concurrency=settings.GUILD_HALL_CONCURRENCY,
            wake_supervisor=self._wake_all,
            watch=QueueWatch(
                lease_id=self.lease_id,
                wake_supervisor=self._wake_all,
                has_broker=bool(settings.BROKER_URL),
            ),
        )
        self.agents = AgentRunner(
            lease_id=self.lease_id,
            tag_prefix=process.tag_prefix(self._hall_id, self._id),
            directory=settings.GUILD_HALL_DATA_DIR / "agent",
            concurrency=settings.GUILD_HALL_AGENT_CONCURRENCY,
            gateway_address=listeners.own_address(settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT),
            has_broker=bool(settings.BROKER_URL),
        )
        text = "the runtime ended while the agent worked; the message is not sent to it again automatically"
        patiently(
            lambda: transitions.end_lost_calls(self.lease_id, transitions.RUNTIME_ENDED),
            self._stop_requested.is_set,
        )
        patiently(lambda: agent_transitions.end_lost_messages(self.lease_id, text), self._stop_requested.is_set)
        tasks.answer_with(self.dispatcher)
        self.dispatcher.start()
        gateway = self._make_gateway()
        gateway.start()
        self.gateway = gateway
        for member in self.lifecycle.live_members():  # it has heard of none yet
            gateway.member_changed(member.member_id)
        self.agents.start()
        housekeeping.start(self._stop_requested, self.lease_id)

    def _make_gateway(self) -> Gateway:
        from mcp_runtime.gateway.server import Gateway, Options

        options = Options(
            allowed_hosts=settings.ALLOWED_HOSTS,
            trusted_origins=settings.CSRF_TRUSTED_ORIGINS,
            max_bytes=settings.GUILD_HALL_MAX_RESULT_BYTES,
            record_bytes=settings.GUILD_HALL_RECORD_BYTES,
            data_dir=settings.GUILD_HALL_DATA_DIR,
            secret_key=settings.SECRET_KEY,
            plain_http_hosts=settings.GUILD_HALL_PLAIN_HTTP_HOSTS,
            certificate=settings.GUILD_HALL_NODE_CERTIFICATE,
            ca=settings.GUILD_HALL_NODE_CA,
        )
        return Gateway(
            lifecycle=self.lifecycle,
            sockets=self._gateway_sockets,
            options=options,
            wake_supervisor=self.supervisor.wake,
        )
