"""The verbs for a remote server: a real one, in this process, that the hall did not start."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core import serializers
from django.utils import timezone

from mcp_runtime.client.client import TOOLS_CHANGED
from mcp_runtime.members import announcements, supervisor
from mcp_runtime.members.restarts import QUICK_TRIES, restart_delay
from mcp_runtime.members.status import reset_rows
from mcp_runtime.members.supervisor import Supervisor
from mcp_runtime.protocol.errors import ConnectError
from roster.models import GuildMember, StatusChange, Tool
from tests.conftest import eventually
from tests.support.certificates import Authority
from tests.support.lifecycle_stage import RemoteStage, history, in_error, in_thread, last_change, row, wait_for
from tests.support.machine import Stopwatch
from tests.support.scripted_server import Behaviour, Request, TlsServer, takes_no_time

pytestmark = pytest.mark.django_db(transaction=True)

Status = GuildMember.Status
SECRET = "hunter2-hunter2"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[RemoteStage]:
    stage = RemoteStage(tmp_path)
    yield stage
    for live in stage.lifecycle.live_members():
        live.client.close()
    for server in stage.servers:
        server.close()


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
    live = stage.lifecycle.connected_member(member.pk)
    assert live is not None
    assert live.client.invoke_tool("echo", {"n": 1})["content"]


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
    monkeypatch.setenv("A_TOKEN", SECRET)
    (stage.members_dir / "anna").mkdir()
    (stage.members_dir / "anna" / "key.txt").write_text("file-secret\n")
    server = stage.serve()
    headers = {"Authorization": "Bearer ${env:A_TOKEN}", "X-Api-Key": "${file:key.txt}"}
    member = stage.up_remote(server, headers=headers)
    stage.lifecycle.refresh(member.pk)
    assert len(server.requests) == 4
    for request in server.requests:
        assert request.headers["Authorization"] == f"Bearer {SECRET}"
        assert request.headers["X-Api-Key"] == "file-secret"


def test_the_query_goes_to_the_server_and_to_nobody_else(stage: RemoteStage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="guildhall")
    server = stage.serve()
    server.first_line = b"POST /mcp?team=blue HTTP/1.1\r\n"
    member = stage.add_remote(server.url + "?team=blue")
    stage.lifecycle.start(member.pk)
    assert row(member).endpoint == server.url
    assert f"member 'anna' is connected: {server.url}, 1 tools" in caplog.text
    assert "team" not in caplog.text


@pytest.mark.parametrize(
    ("behaviours", "said"),
    [
        ({"initialize": lambda r: r.hang()}, "did not complete the initialize handshake within 0.4 s"),
        ({"initialize": lambda r: r.dribble(b"HTTP/1.1 100 Continue\r\n\r\n")}, "within 0.4 s"),
        ({"initialize": lambda r: r.hang_up()}, "the connection was closed before the response was complete"),
        ({"initialize": lambda r: r.http(401, b"who are you?", "text/plain")}, "HTTP status 401: 'who are you?'"),
        ({"initialize": lambda r: r.http(308, Location="http://127.0.0.1:1/")}, "308, a redirect, which the hall"),
        ({"initialize": lambda r: r.http(200, b"<h1>Hello</h1>", "text/html")}, "instead of JSON"),
        ({"notifications/initialized": lambda r: r.http(500)}, "HTTP status 500"),
        ({"tools/list": lambda r: r.error(-32603, "not today")}, "tools/list failed: not today"),
    ],
)
def test_a_server_that_does_not_answer_as_it_should_is_an_error_and_tried_again(
    stage: RemoteStage, behaviours: dict[str, Behaviour], said: str
) -> None:
    server = stage.serve(behaviours)
    member = stage.add_remote(server.url, start_timeout=0.4)
    stage.lifecycle.start(member.pk)
    found = in_error(stage, member)
    assert found.last_error.startswith(f"member 'anna' could not be reached at {server.url}: ")
    assert said in found.last_error
    assert history(member)[-1] == "starting -> error: start failed"
    assert found.restarts == 1


def test_a_server_that_is_down_is_an_error_at_once(stage: RemoteStage) -> None:
    server = stage.serve()
    server.close()
    member = stage.add_remote(server.url)
    with takes_no_time():
        stage.lifecycle.start(member.pk)
    assert in_error(stage, member).last_error.endswith(": connection refused")


def test_a_missing_secret_is_an_error_that_names_its_place_until_it_is_there(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.add_remote(server.url, headers={"Authorization": "Bearer ${file:token}"})
    stage.lifecycle.start(member.pk)
    assert "headers.Authorization: the file token does not exist" in in_error(stage, member).last_error
    assert server.requests == []
    (stage.members_dir / "anna" / "token").write_text(SECRET)
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED


def test_a_secret_that_a_server_quotes_is_in_no_row_and_no_log(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("A_TOKEN", SECRET)
    refusal = f"no such token: {SECRET}".encode()
    server = stage.serve({"initialize": lambda r: r.http(403, refusal, "text/plain")})
    member = stage.add_remote(server.url, headers={"Authorization": "Bearer ${env:A_TOKEN}"})
    stage.lifecycle.start(member.pk)
    assert "no such token: ***" in in_error(stage, member).last_error
    stored = serializers.serialize("json", [*GuildMember.objects.all(), *StatusChange.objects.all()])
    assert "${env:A_TOKEN}" in stored
    assert SECRET not in stored
    assert SECRET not in caplog.text


def test_plain_http_is_for_this_machine_and_for_hosts_that_the_operator_names(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = stage.serve()
    member = stage.add_remote(f"http://inside.example:{server.port}/mcp")
    stage.lifecycle.start(member.pk)
    refused = row(member)
    assert (refused.status, refused.next_restart_at) == (Status.ERROR, None)  # another try would be refused as well
    assert "GUILD_HALL_PLAIN_HTTP_HOSTS" in refused.last_error
    assert server.requests == []
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    stage.lifecycle = stage.make_lifecycle(plain_http_hosts=["inside.example"])
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED


# Failing ----------------------------------------------------------------------------------------------------------


def test_a_failed_connection_is_an_error_that_names_the_address(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    live = stage.live(member)
    stage.lifecycle.handle_connection_failure(live, ConnectError("connection refused", is_refusal=True))
    found = in_error(stage, member)
    assert found.last_error == f"member 'anna' does not answer at {server.url}: connection refused"
    assert last_change(member).cause == "connection"


@pytest.mark.parametrize("failures", [0, QUICK_TRIES, 1000, 2000])
def test_a_remote_server_is_tried_until_it_is_back(stage: RemoteStage, failures: int) -> None:
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


def test_the_manifest_can_leave_that_to_people(stage: RemoteStage) -> None:
    server = stage.serve()
    server.close()
    member = stage.add_remote(server.url, restart="never")
    stage.lifecycle.start(member.pk)
    assert (row(member).status, row(member).next_restart_at) == (Status.ERROR, None)


# The look that is taken now and then ------------------------------------------------------------------------------


def test_a_refresh_lists_the_tools_again(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    server.behaviours["tools/list"] = lambda r: r.result({"tools": [{"name": "other", "inputSchema": {}}]})
    stage.lifecycle.refresh(member.pk)
    assert list(Tool.objects.filter(listed=True).values_list("name", flat=True)) == ["other"]
    assert row(member).status == Status.CONNECTED


@pytest.mark.parametrize("behaviour", [lambda r: r.reset(), lambda r: r.http(404), lambda r: r.error(-32000, "gone")])
def test_a_refresh_that_fails_is_an_error(stage: RemoteStage, behaviour: Callable[[Any], None]) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    server.behaviours["tools/list"] = behaviour
    stage.lifecycle.refresh(member.pk)
    assert "tools/list failed: " in in_error(stage, member).last_error


class Announcer:
    """A member that says during a call that its tools changed."""

    def __init__(self, stage: RemoteStage) -> None:
        self.stage = stage
        self.member = stage.up_remote(stage.serve({"tools/call": self._answer}))

    @staticmethod
    def _answer(request: Request) -> None:
        note = {"jsonrpc": "2.0", "method": TOOLS_CHANGED}
        request.stream(b"data: " + json.dumps(note).encode() + b"\n\n", request.answer_event({"content": []}))
        request.hang_up()

    def tools_change(self) -> None:
        self.stage.live(self.member).client.invoke_tool("echo", {})

    def is_to_be_listed(self) -> bool:
        """Whether a refresh is requested by the next turn."""
        self.stage.lifecycle.request_refreshes()
        return row(self.member).refresh_requested_at is not None

    def note_listed(self) -> None:
        GuildMember.objects.update(refresh_requested_at=None)


def test_a_member_that_says_all_the_time_that_its_tools_changed_is_asked_now_and_then(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    announcer = Announcer(stage)
    assert not announcer.is_to_be_listed()
    announcer.tools_change()
    assert announcer.is_to_be_listed()
    announcer.note_listed()
    announcer.tools_change()
    assert not announcer.is_to_be_listed()
    monkeypatch.setattr(announcements, "REFRESH_PAUSE", 0.0)
    assert announcer.is_to_be_listed()  # nor was it forgotten meanwhile
    announcer.note_listed()
    assert not announcer.is_to_be_listed()


def test_a_change_that_is_told_while_the_tools_are_being_listed_is_listed_afterwards(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "REFRESH_PAUSE", 0.0)
    announcer = Announcer(stage)
    GuildMember.objects.update(refresh_requested_at=timezone.now())
    announcer.tools_change()
    stage.lifecycle.request_refreshes()
    announcer.note_listed()  # that refresh is over
    assert announcer.is_to_be_listed()


def test_a_server_that_leaves_without_a_word_is_missed_and_found_again_though_nobody_calls(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "REMOTE_CHECK_SECONDS", 0.1)
    server = stage.serve()
    member = stage.up_remote(server)
    watching = Supervisor(lifecycle=stage.lifecycle, members_dir=stage.members_dir, start_concurrency=2)
    watching.start()
    try:
        server.close()
        wait_for(member, Status.ERROR)
        stage.serve(port=server.port)
        wait_for(member, Status.CONNECTED)
    finally:
        watching.stop()
    assert "restart" in [change.cause for change in StatusChange.objects.all()]


def test_a_member_whose_command_became_a_url_gives_its_port_back(stage: RemoteStage) -> None:
    member = stage.up("anna")
    assert member.port is not None
    stage.add_remote(stage.serve().url)
    assert row(member).restart_requested_at is not None
    stage.lifecycle.stop(member.pk, cause="restart")
    stage.lifecycle.start(member.pk)
    assert (row(member).status, row(member).port, row(member).last_port) == (Status.CONNECTED, None, None)
    assert stage.processes() == []


# Stop -------------------------------------------------------------------------------------------------------------


def test_a_stop_forgets_the_server_and_leaves_it_running(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    stage.lifecycle.stop(member.pk)
    found = row(member)
    assert (found.status, found.endpoint, found.exit_code) == (Status.DISCONNECTED, None, None)
    assert stage.lifecycle.live_members() == []
    assert history(member)[-2:] == ["connected -> stopping: stop", "stopping -> disconnected: stop"]
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
def test_a_start_that_hangs_can_be_stopped(stage: RemoteStage, method: str) -> None:
    server = stage.serve({method: lambda r: r.hang()})
    member = stage.add_remote(server.url, start_timeout=60)
    thread = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: method in server.methods)
    with takes_no_time():
        stage.lifecycle.abort_start(member.pk)
        thread.join(10)
    assert row(member).status == Status.DISCONNECTED
    assert stage.lifecycle.live_members() == []


def test_a_look_that_hangs_delays_no_stop(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    server.behaviours["tools/list"] = lambda r: r.hang()
    thread = in_thread(lambda: stage.lifecycle.refresh(member.pk))
    eventually(lambda: server.methods.count("tools/list") == 2)
    watch = Stopwatch()
    stage.lifecycle.stop(member.pk)
    thread.join(10)
    assert watch.seconds < 1
    assert row(member).status == Status.DISCONNECTED


def test_what_an_earlier_runtime_left_is_put_in_order(stage: RemoteStage) -> None:
    member = stage.up_remote(stage.serve())
    reset_rows()
    assert (row(member).status, row(member).endpoint) == (Status.DISCONNECTED, None)


def test_killing_everything_kills_nothing_elsewhere(stage: RemoteStage) -> None:
    server = stage.serve()
    member = stage.up_remote(server)
    stage.lifecycle.kill_everything()
    assert stage.live(member).client.list_tools().tools
