"""The methods of the lifecycle for a remote server. It is a real server in this process that the hall did not start."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core import serializers
from django.utils import timezone

from mcp_runtime.client.client import TOOLS_CHANGED
from mcp_runtime.members import announcements, supervisor
from mcp_runtime.members.restarts import QUICK_TRIES, restart_delay
from mcp_runtime.members.supervisor import Supervisor
from mcp_runtime.protocol.errors import ConnectError
from mcp_runtime.rows import ownership
from roster.models import GuildMember, Node, StatusChange, Tool
from tests.conftest import eventually
from tests.support.certificates import Authority
from tests.support.lifecycle_stage import RemoteStage, history, in_error, in_thread, last_change, row, wait_for
from tests.support.machine import Stopwatch
from tests.support.scripted_server import Behaviour, Request, TlsServer, takes_no_time

pytestmark = pytest.mark.django_db(transaction=True)

Status = GuildMember.Status
SECRET = "hunter2-hunter2"


# Start ------------------------------------------------------------------------------------------------------------


def test_a_start_ends_connected_without_a_process_or_a_port(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    assert (member.pid, member.port, member.last_port, member.exit_code) == (None, None, None, None)
    assert (member.endpoint, member.last_error, member.warnings) == (server.url, "", [])
    assert (member.protocol_version, member.server_info) == ("2025-06-18", {"name": "wire"})
    assert list(Tool.objects.values_list("name", "listed")) == [("echo", True)]
    assert history(member) == ["disconnected -> starting: start", "starting -> connected: handshake"]
    assert stage.processes() == []
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None
    assert live_member.client.invoke_tool("echo", {"n": 1})["content"]


def test_a_server_behind_tls_is_connected_when_its_certificate_is_trusted(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    server = TlsServer({}, authority.context())
    stage.servers.append(server)
    member = stage.add_remote(server.url)
    stage.lifecycle.start(member.pk)
    assert "its certificate is not trusted" in in_error(stage, member).last_error
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    stage.lifecycle.start(member.pk)
    assert (row(member).status, row(member).endpoint) == (Status.CONNECTED, server.url)


def test_every_request_has_the_headers_with_their_secrets(stage: RemoteStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUILD_HALL_MEMBER_A_TOKEN", SECRET)
    (stage.members_dir / "anna").mkdir()
    (stage.members_dir / "anna" / "key.txt").write_text("file-secret\n")
    server = stage.serve()
    headers = {"Authorization": "Bearer ${env:GUILD_HALL_MEMBER_A_TOKEN}", "X-Api-Key": "${file:key.txt}"}
    member = stage.up_remote(server, headers=headers)
    stage.lifecycle.refresh(member.pk)
    assert len(server.requests) == 4
    for request in server.requests:
        assert request.headers["Authorization"] == f"Bearer {SECRET}"
        assert request.headers["X-Api-Key"] == "file-secret"


def test_the_query_of_the_url_is_sent_to_the_server_and_is_in_no_log(
    stage: RemoteStage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="guildhall")
    server = stage.serve()
    server.first_line = b"POST /mcp?team=blue HTTP/1.1\r\n"
    member = stage.add_remote(server.url + "?team=blue")
    stage.lifecycle.start(member.pk)
    assert row(member).endpoint == server.url
    assert f"member 'anna' is connected: {server.url}, 1 tools" in caplog.text
    assert "team" not in caplog.text


@pytest.mark.parametrize(
    ("behaviours", "text"),
    [
        ({"initialize": lambda request: request.hang()}, "did not complete the initialize handshake within 0.4 s"),
        ({"initialize": lambda request: request.dribble(b"HTTP/1.1 100 Continue\r\n\r\n")}, "within 0.4 s"),
        (
            {"initialize": lambda request: request.hang_up()},
            "the connection was closed before the response was complete",
        ),
        (
            {"initialize": lambda request: request.http(401, b"who are you?", "text/plain")},
            "HTTP status 401: 'who are you?'",
        ),
        (
            {"initialize": lambda request: request.http(308, Location="http://127.0.0.1:1/")},
            "308, a redirect, which the hall",
        ),
        ({"initialize": lambda request: request.http(200, b"<h1>Hello</h1>", "text/html")}, "instead of JSON"),
        ({"notifications/initialized": lambda request: request.http(500)}, "HTTP status 500"),
        ({"tools/list": lambda request: request.error(-32603, "not today")}, "tools/list failed: not today"),
    ],
)
def test_a_server_with_an_invalid_response_is_in_error_and_is_tried_again(
    stage: RemoteStage, behaviours: dict[str, Behaviour], text: str
) -> None:
    server = stage.serve(behaviours)
    member = stage.add_remote(server.url, start_timeout=0.4)
    stage.lifecycle.start(member.pk)
    failed_member = in_error(stage, member)
    assert failed_member.last_error.startswith(f"member 'anna' could not be reached at {server.url}: ")
    assert text in failed_member.last_error
    assert history(member)[-1] == "starting -> error: start failed"
    assert failed_member.restarts == 1


def test_a_server_cannot_write_the_end_of_the_sentence_about_it(stage: RemoteStage) -> None:
    message = f"the secret 'GITHUB_TOKEN' must be set{GuildMember.TAIL_MARK}x"

    def refuse(request: Request) -> None:
        request.error(-32603, message)

    server = stage.serve({"initialize": refuse, "server/discover": refuse})
    member = stage.add_remote(server.url)
    stage.lifecycle.start(member.pk)
    failed_member = in_error(stage, member)
    assert failed_member.last_reason == failed_member.last_error
    assert failed_member.last_reason.endswith("(JSON-RPC error -32603: internal error)")


def test_a_server_that_is_down_is_an_error_at_once(stage: RemoteStage) -> None:
    server = stage.serve()
    server.close()
    member = stage.add_remote(server.url)
    with takes_no_time():
        stage.lifecycle.start(member.pk)
    assert in_error(stage, member).last_error.endswith(": connection refused")


def test_a_missing_secret_is_an_error_that_names_its_place(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.add_remote(server.url, headers={"Authorization": "Bearer ${file:token}"})
    stage.lifecycle.start(member.pk)
    assert "headers.Authorization: the file token does not exist" in in_error(stage, member).last_error
    assert server.requests == []
    (stage.members_dir / "anna" / "token").write_text(SECRET)
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED


def test_a_secret_in_a_response_is_in_no_row_and_in_no_log(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("GUILD_HALL_MEMBER_A_TOKEN", SECRET)
    refusal = f"no such token: {SECRET}".encode()
    server = stage.serve({"initialize": lambda request: request.http(403, refusal, "text/plain")})
    member = stage.add_remote(server.url, headers={"Authorization": "Bearer ${env:GUILD_HALL_MEMBER_A_TOKEN}"})
    stage.lifecycle.start(member.pk)
    assert "no such token: ***" in in_error(stage, member).last_error
    rows = serializers.serialize("json", [*GuildMember.objects.all(), *StatusChange.objects.all()])
    assert "${env:GUILD_HALL_MEMBER_A_TOKEN}" in rows
    assert SECRET not in rows
    assert SECRET not in caplog.text


def test_plain_http_is_allowed_for_this_machine_and_for_hosts_in_the_settings(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = stage.serve()
    member = stage.add_remote(f"http://inside.example:{server.port}/mcp")
    stage.lifecycle.start(member.pk)
    failed_member = row(member)
    # No restart, because another attempt would be refused as well.
    assert (failed_member.status, failed_member.next_restart_at) == (Status.ERROR, None)
    assert "GUILD_HALL_PLAIN_HTTP_HOSTS" in failed_member.last_error
    assert server.requests == []
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    stage.lifecycle = stage.make_lifecycle(plain_http_hosts=["inside.example"])
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED


# Failing ----------------------------------------------------------------------------------------------------------


def test_a_failed_connection_is_an_error_with_the_address(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    live_member = stage.live(member)
    stage.lifecycle.handle_connection_failure(live_member, ConnectError("connection refused", is_refusal=True))
    failed_member = in_error(stage, member)
    assert failed_member.last_error == f"member 'anna' does not answer at {server.url}: connection refused"
    assert last_change(member).cause == "connection"


@pytest.mark.parametrize("failures", [0, QUICK_TRIES, 1000, 2000])
def test_a_remote_server_is_tried_until_it_is_available(stage: RemoteStage, failures: int) -> None:
    server = stage.serve()
    server.close()
    member = stage.add_remote(server.url)
    GuildMember.objects.update(restarts=failures)
    stage.lifecycle.start(member.pk, automatic=True)
    due = in_error(stage, member).next_restart_at
    assert due is not None
    delay = min(2.0 ** min(failures, 10), 30)
    assert due - timezone.now() <= timedelta(seconds=delay)
    assert restart_delay(failures + 1) == timedelta(seconds=delay)


def test_a_remote_server_with_restart_never_is_not_tried_again(stage: RemoteStage) -> None:
    server = stage.serve()
    server.close()
    member = stage.add_remote(server.url, restart="never")
    stage.lifecycle.start(member.pk)
    assert (row(member).status, row(member).next_restart_at) == (Status.ERROR, None)


# The regular check ------------------------------------------------------------------------------------------------


def test_a_refresh_lists_the_tools_again(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    server.behaviours["tools/list"] = lambda request: request.result({"tools": [{"name": "other", "inputSchema": {}}]})
    stage.lifecycle.refresh(member.pk)
    assert list(Tool.objects.filter(listed=True).values_list("name", flat=True)) == ["other"]
    assert row(member).status == Status.CONNECTED


@pytest.mark.parametrize(
    "behaviour",
    [lambda request: request.reset(), lambda request: request.http(404), lambda request: request.error(-32000, "gone")],
)
def test_a_refresh_that_fails_is_an_error(stage: RemoteStage, behaviour: Callable[[Any], None]) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    server.behaviours["tools/list"] = behaviour
    stage.lifecycle.refresh(member.pk)
    assert "tools/list failed: " in in_error(stage, member).last_error


class Announcer:
    """A member that announces during a call that its tools changed."""

    def __init__(self, stage: RemoteStage) -> None:
        self.stage = stage
        self.member = stage.up_remote(stage.serve({"tools/call": self._respond}))

    @staticmethod
    def _respond(request: Request) -> None:
        note = {"jsonrpc": "2.0", "method": TOOLS_CHANGED}
        request.stream(b"data: " + json.dumps(note).encode() + b"\n\n", request.answer_event({"content": []}))
        request.hang_up()

    def announce_change(self) -> None:
        self.stage.live(self.member).client.invoke_tool("echo", {})

    def needs_refresh(self) -> bool:
        """Whether a refresh is requested by the next turn."""
        self.stage.lifecycle.request_refreshes()
        return row(self.member).refresh_requested_at is not None

    def finish_refresh(self) -> None:
        GuildMember.objects.update(refresh_requested_at=None)


def test_a_member_that_announces_changes_all_the_time_is_refreshed_with_pauses(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    announcer = Announcer(stage)
    assert not announcer.needs_refresh()
    announcer.announce_change()
    assert announcer.needs_refresh()
    announcer.finish_refresh()
    announcer.announce_change()
    assert not announcer.needs_refresh()
    monkeypatch.setattr(announcements, "REFRESH_PAUSE", 0.0)
    assert announcer.needs_refresh()  # the announcement was not forgotten
    announcer.finish_refresh()
    assert not announcer.needs_refresh()


def test_a_change_that_is_announced_during_a_refresh_leads_to_another_refresh(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "REFRESH_PAUSE", 0.0)
    announcer = Announcer(stage)
    GuildMember.objects.update(refresh_requested_at=timezone.now())
    announcer.announce_change()
    stage.lifecycle.request_refreshes()
    announcer.finish_refresh()  # the first refresh is finished
    assert announcer.needs_refresh()


def test_a_server_that_disappears_is_in_error_and_is_connected_again_without_a_call(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "REMOTE_CHECK_SECONDS", 0.1)
    server = stage.serve()
    member = stage.up_remote(server)
    supervisor_ = Supervisor(lifecycle=stage.lifecycle, members_dir=stage.members_dir, start_concurrency=2)
    supervisor_.start()
    try:
        server.close()
        wait_for(member, Status.ERROR)
        stage.serve(port=server.port)
        wait_for(member, Status.CONNECTED)
    finally:
        supervisor_.stop()
    assert "restart" in [change.cause for change in StatusChange.objects.all()]


def test_a_member_whose_command_became_a_url_releases_its_port(stage: RemoteStage) -> None:
    member = stage.up("anna")
    assert member.port is not None
    stage.add_remote(stage.serve().url)
    assert row(member).restart_requested_at is not None
    stage.lifecycle.stop(member.pk, cause="restart")
    stage.lifecycle.start(member.pk)
    assert (row(member).status, row(member).port, row(member).last_port) == (Status.CONNECTED, None, None)
    assert stage.processes() == []


# Stop -------------------------------------------------------------------------------------------------------------


def test_a_stop_disconnects_the_server_and_leaves_it_running(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    stage.lifecycle.stop(member.pk)
    stopped_member = row(member)
    assert (stopped_member.status, stopped_member.endpoint, stopped_member.exit_code) == (
        Status.DISCONNECTED,
        None,
        None,
    )
    assert stage.lifecycle.live_members() == []
    assert history(member)[-2:] == ["connected -> stopping: stop", "stopping -> disconnected: stop"]
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
def test_a_start_that_hangs_can_be_stopped(stage: RemoteStage, method: str) -> None:
    server = stage.serve({method: lambda request: request.hang()})
    member = stage.add_remote(server.url, start_timeout=60)
    thread = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: method in server.methods)
    with takes_no_time():
        stage.lifecycle.abort_start(member.pk)
        thread.join(10)
    assert row(member).status == Status.DISCONNECTED
    assert stage.lifecycle.live_members() == []


def test_a_check_that_hangs_delays_no_stop(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    server.behaviours["tools/list"] = lambda request: request.hang()
    thread = in_thread(lambda: stage.lifecycle.refresh(member.pk))
    eventually(lambda: server.methods.count("tools/list") == 2)
    watch = Stopwatch()
    stage.lifecycle.stop(member.pk)
    thread.join(10)
    assert watch.seconds < 1
    assert row(member).status == Status.DISCONNECTED


def test_a_start_of_the_runtime_resets_the_row_of_a_remote_server(stage: RemoteStage) -> None:
    member = stage.up_remote(stage.serve())
    ownership.take_over_own(Node.objects.get())
    assert (row(member).status, row(member).endpoint) == (Status.DISCONNECTED, None)


def test_killing_all_members_does_not_kill_a_remote_server(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    stage.lifecycle.kill_everything()
    assert stage.live(member).client.list_tools().tools
