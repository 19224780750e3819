"""Waits until a spawned process or a remote server is ready for calls, and reads its data before it is connected.

It accepts connections, completes the initialize handshake, lists its tools, and compares them with their contracts.
Nothing here writes a row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from mcp_runtime.client.client import INITIALIZE_TIMEOUT, REQUEST_TIMEOUT
from mcp_runtime.client.handshake import InitializeResult
from mcp_runtime.client.tool_list import ToolList
from mcp_runtime.members import contracts, ports, tools
from mcp_runtime.members.contracts import Listing
from mcp_runtime.members.live import EXIT_GRACE, LiveMember
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.process import NoProcess
from mcp_runtime.members.start_limits import StartLimits
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    ExitedEarlyError,
    McpRuntimeError,
    NotListeningError,
    RequestTimeoutError,
    SignInNeededError,
    StartTimeoutError,
)
from mcp_runtime.rows.database import persistently
from roster.models import Tool

# Seconds between two checks whether a port accepts connections. The longer a start takes, the rarer they are, because
# all starting members and the checks share the CPU.
PROBE_INTERVAL = 0.01
PROBE_INTERVAL_LATER = 0.05
PROBE_SHARE = 0.06  # of the time since the spawn


class StoppedWhileStartingError(McpRuntimeError):
    """A stop was requested while the member was starting."""


@dataclass(frozen=True)
class Introduction:
    """The data of a member from its handshake. `tools` are rows that are not yet written, like their contracts."""

    handshake: InitializeResult
    tools: list[Tool]
    contracts: Listing
    instructions: Listing
    warnings: list[str]


def await_introduction(member: LiveMember, manifest: Manifest) -> Introduction:
    """Wait until the member is ready, and return its data.

    Raises McpRuntimeError if it exited, is to be stopped, took too long, or does not speak MCP.
    """
    if member.limits is None:
        handshake = _shake_hands_remotely(
            member, manifest.start_timeout or INITIALIZE_TIMEOUT, manifest.protocol_version
        )
    else:
        _await_port(member, member.limits)
        handshake = _shake_hands(member, member.limits, manifest.protocol_version)
    addresses = _listening_addresses(member)
    tool_list = _list_tools(member)
    member.exposure = _exposure_warnings(addresses, member.port)
    policy = contracts.policy_of(manifest.as_json())
    return persistently(  # it reads the contracts
        lambda: Introduction(
            handshake,
            tools.rows_of(member.member_id, tool_list.tools),
            tools.contracts_of(member.member_id, tool_list.tools, policy),
            contracts.prepare_instructions(member.member_id, handshake.instructions, policy),
            [*tool_list.warnings, *member.exposure],
        )
    )


def _await_port(member: LiveMember, limits: StartLimits) -> None:
    while not ports.answers(member.port):
        _require_alive(member)
        if limits.remaining() <= 0:
            raise NotListeningError(limits.budget, ports.listening_ports(member.process.pid or 0))
        elapsed = time.monotonic() - limits.spawned_at
        member.process.exited.wait(min(max(PROBE_SHARE * elapsed, PROBE_INTERVAL), PROBE_INTERVAL_LATER))


def _shake_hands(member: LiveMember, limits: StartLimits, version: str) -> InitializeResult:
    """Send initialize, and repeat it while the server on the port is not ready (REQ-MCP-HTTP-14)."""
    deadline, last = limits.handshake_deadline(), "no connection"
    while (remaining := deadline - time.monotonic()) > 0:
        _require_alive(member)
        try:
            with limits.enforce(member.hall_exchange):
                return member.client.connect(remaining, member.hall_exchange, version=version)
        except ConnectError as error:
            last = str(error)  # the socket is open, but the server is not ready
        except RequestTimeoutError:
            last = ""
            break
        except ClientError:
            _require_alive(member)
            raise
        member.process.exited.wait(PROBE_INTERVAL_LATER)
    _require_alive(member)
    raise StartTimeoutError(limits.handshake_seconds, last)


def _shake_hands_remotely(member: LiveMember, timeout: float, version: str) -> InitializeResult:
    """Send initialize once. If the remote server does not answer, the restart policy decides on the next try."""
    _require_alive(member)
    try:
        return member.client.connect(timeout, member.hall_exchange, version=version)
    except RequestTimeoutError as error:
        raise StartTimeoutError(timeout) from error
    except ClientError:
        _require_alive(member)
        raise


def _list_tools(member: LiveMember) -> ToolList:
    try:
        return member.client.list_tools(REQUEST_TIMEOUT, member.hall_exchange)
    except SignInNeededError:
        raise
    except ClientError as error:
        _require_alive(member)
        raise McpRuntimeError(f"tools/list failed: {error}") from error


def _listening_addresses(member: LiveMember) -> set[str]:
    """The addresses where the member listens. Empty if they are not known.

    If it listens nowhere, another process took its port and answered. Then the member will exit when it notices that,
    which may take as long as it computes.
    """
    if isinstance(member.process, NoProcess) or member.limits is None:
        return set()
    began_at = time.monotonic()
    while not (addresses := ports.listening_addresses(member.process.pid, member.port)):
        has_grace = time.monotonic() - began_at < EXIT_GRACE or (member.is_computing and member.limits.remaining() > 0)
        if not has_grace:
            break
        member.process.exited.wait(PROBE_INTERVAL_LATER)
        _require_alive(member)
    return addresses


def _exposure_warnings(addresses: set[str], port: int) -> list[str]:
    """Report a member that others on the network can reach (REQ-MCP-HTTP-30)."""
    open_to = sorted(address for address in addresses if not ports.is_loopback(address))
    return (
        [f"listens on {', '.join(open_to)} port {port}; bind 127.0.0.1 so that nobody else can reach it"]
        if open_to
        else []
    )


def _require_alive(member: LiveMember) -> None:
    if member.stop_requested.is_set():
        raise StoppedWhileStartingError(member.name)
    if member.process.exited.is_set():
        raise ExitedEarlyError(member.process.exit_code or 0)
