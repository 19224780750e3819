from __future__ import annotations

import json
import logging
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, current_app
from django.db import transaction
from django.utils import timezone

from mcp_runtime import control, lease, logs
from mcp_runtime.access import OPERATOR
from mcp_runtime.errors import MemberDisabledError, RequestRefusedError, UnknownMemberError, UnknownToolError
from mcp_runtime.invocations import Caller
from roster.models import GuildMember, Hall, Invocation, Tool
from tests.machine import Stopwatch

pytestmark = pytest.mark.django_db

Status = GuildMember.Status
COMMAND = Caller(Invocation.Door.COMMAND)


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna", status="connected")


@pytest.fixture
def echo(anna: GuildMember) -> Tool:
    return Tool.objects.create(member=anna, name="echo", definition={"inputSchema": {"type": "object"}})


class Bells:
    """A broker's stead: what was rung."""

    def __init__(self) -> None:
        self.rung: list[tuple[str, dict[str, Any]]] = []
        self.queues: set[str] = set()
        self.error: Exception | None = None

    def send_task(self, name: str, *, kwargs: dict[str, Any], queue: str, retry: bool, ignore_result: bool) -> None:
        assert (retry, ignore_result) == (False, True)
        self.rung.append((name, kwargs))
        self.queues.add(queue)
        if self.error:
            raise self.error

    @property
    def wishes(self) -> list[bool]:
        return [kwargs["wishes"] for _, kwargs in self.rung]


@pytest.fixture
def bells(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Bells]:
    bells = Bells()
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    control.queue_name.cache_clear()
    monkeypatch.setattr(control, "bell", lambda: bells)
    yield bells
    control.queue_name.cache_clear()


def row(member: GuildMember) -> GuildMember:
    return GuildMember.objects.get(pk=member.pk)


def wishes(member: GuildMember) -> tuple[bool, str, bool, bool]:
    """enabled, wanted, whether a restart and a refresh are asked for."""
    found = row(member)
    asked = (found.restart_requested_at is not None, found.refresh_requested_at is not None)
    return found.enabled, found.wanted, *asked


# The bell ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_the_bell_rings_the_halls_own_queue(bells: Bells) -> None:
    control.ring()
    control.ring(wishes=True)
    assert bells.rung == [("mcp_runtime.tasks.drain", {"wishes": False}), ("mcp_runtime.tasks.drain", {"wishes": True})]
    assert bells.queues == {f"guildhall-{Hall.objects.get().hall_id}"}


@pytest.mark.django_db(transaction=True)
def test_the_bell_rings_only_when_the_row_can_be_seen(bells: Bells, echo: Tool) -> None:
    with transaction.atomic():
        control.queue_call("anna", "echo", {}, caller=COMMAND)
        assert bells.rung == []
    assert bells.wishes == [False]


@pytest.mark.django_db(transaction=True)
def test_what_was_rolled_back_is_not_announced(bells: Bells, echo: Tool) -> None:
    with transaction.atomic():
        control.queue_call("anna", "echo", {}, caller=COMMAND)
        transaction.set_rollback(True)
    assert bells.rung == []
    assert not Invocation.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [OSError("refused"), TimeoutError("mute"), ValueError("anything at all")])
def test_a_bell_that_fails_is_one_line_in_the_log_and_the_call_is_safe(
    bells: Bells, echo: Tool, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bells.error = error
    invocation, created = control.queue_call("anna", "echo", {}, caller=COMMAND)
    assert created
    assert Invocation.objects.get() == invocation
    (said,) = caplog.records
    assert (said.levelno, said.exc_info) == (logging.WARNING, None)
    assert str(error) in said.getMessage()
    assert "within a second" in said.getMessage()


@pytest.mark.django_db(transaction=True)
def test_without_a_broker_there_is_nothing_to_ring(bells: Bells, settings: Any, echo: Tool) -> None:
    settings.REDIS_URL = ""
    control.queue_call("anna", "echo", {}, caller=COMMAND)
    assert bells.rung == []


def test_two_halls_have_two_queues(bells: Bells) -> None:
    one = control.queue_name()
    Hall.objects.update(hall_id=uuid.uuid4())
    control.queue_name.cache_clear()
    assert control.queue_name() != one


@pytest.mark.parametrize("address", ["", "redis://127.0.0.1:1/0"])
def test_the_brokers_keys_carry_the_halls_id_when_there_is_a_broker(settings: Any, address: str) -> None:
    settings.REDIS_URL = address
    control.queue_name.cache_clear()
    control.bell.cache_clear()
    options = current_app.conf.broker_transport_options
    before = dict(options)
    try:
        assert control.bell() is current_app._get_current_object()
        expected = {"global_keyprefix": f"guildhall-{Hall.objects.get().hall_id}:"} if address else {}
        assert options == {**before, **expected}
    finally:
        options.clear()
        options.update(before)
        control.bell.cache_clear()
        control.queue_name.cache_clear()


@pytest.fixture
def mute_broker() -> Iterator[str]:
    """An address that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        taken: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    taken.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in taken:
            connection.close()


@pytest.mark.django_db(transaction=True)
def test_a_broker_that_is_mute_holds_nobody_up(
    mute_broker: str, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, echo: Tool
) -> None:
    settings.REDIS_URL = mute_broker
    app: Celery[Any] = Celery("mute", broker=mute_broker, set_as_current=False)
    app.conf.broker_transport_options = {"socket_connect_timeout": 0.5, "socket_timeout": 0.5, "max_retries": 0}
    app.conf.broker_connection_timeout = 0.5
    monkeypatch.setattr(control, "bell", lambda: app)
    watch = Stopwatch()
    assert control.queue_call("anna", "echo", {}, caller=COMMAND)[1]
    assert watch.seconds < 5
    assert "could not be told" in caplog.text
    app.pool.force_close_all()
    app.close()


# Members ----------------------------------------------------------------------------------------------------------


def test_a_member_is_found_by_its_name_unless_its_folder_is_gone(anna: GuildMember) -> None:
    assert control.member("anna") == anna
    GuildMember.objects.update(removed_at=timezone.now())
    for name in ("anna", "bob", ""):
        with pytest.raises(UnknownMemberError, match=f"no member '{name}'"):
            control.member(name)


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [
        # enabled, wanted, restart asked, refresh asked
        ("start", {"wanted": "stopped", "status": "disconnected"}, (True, "running", False, False)),
        ("start", {"wanted": "running", "status": "error"}, (True, "running", True, False)),
        ("start", {"wanted": "running", "status": "connected"}, (True, "running", False, False)),
        ("stop", {"wanted": "running"}, (True, "stopped", False, False)),
        ("stop", {"restart_requested_at": timezone.now()}, (True, "stopped", False, False)),
        ("stop", {"enabled": False}, (False, "stopped", False, False)),
        ("restart", {"wanted": "stopped", "status": "disconnected"}, (True, "running", True, False)),
        ("refresh", {"status": "connected"}, (True, "running", False, True)),
        ("enable", {"enabled": False, "wanted": "stopped"}, (True, "running", False, False)),
        ("disable", {"wanted": "running"}, (False, "running", False, False)),
    ],
)
@pytest.mark.django_db(transaction=True)
def test_a_verb_writes_its_wish_and_rings(
    anna: GuildMember, bells: Bells, verb: str, before: dict[str, Any], after: tuple[Any, ...]
) -> None:
    GuildMember.objects.update(**before)
    given = row(anna)
    status = given.status
    control.MEMBER_VERBS[verb](given)
    assert wishes(anna) == after
    assert row(anna).status == status  # what is seen is not for the web to say
    assert bells.wishes == [True]
    assert (given.enabled, given.wanted) == after[:2]  # the caller's copy shows it too


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_a_disabled_member_is_not_started(anna: GuildMember, verb: str) -> None:
    GuildMember.objects.update(enabled=False, wanted="stopped")
    with pytest.raises(MemberDisabledError, match="enable it first"):
        control.MEMBER_VERBS[verb](row(anna))
    assert wishes(anna) == (False, "stopped", False, False)


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_a_member_with_a_broken_manifest_is_not_started_and_the_fault_is_said(anna: GuildMember, verb: str) -> None:
    GuildMember.objects.update(manifest_error="args: must be a list")
    with pytest.raises(RequestRefusedError, match="'anna' cannot start: args: must be a list"):
        control.MEMBER_VERBS[verb](row(anna))


@pytest.mark.parametrize("status", [status for status in Status if status != Status.CONNECTED])
def test_a_member_that_is_not_connected_has_no_tools_to_list(anna: GuildMember, status: Status) -> None:
    GuildMember.objects.update(status=status)
    with pytest.raises(RequestRefusedError, match=f"'anna' is {status.value}"):
        control.refresh(row(anna))
    assert row(anna).refresh_requested_at is None


# Tools and calls --------------------------------------------------------------------------------------------------


def test_a_tool_is_found_switched_on_or_not_while_it_is_listed(echo: Tool) -> None:
    control.switch_tool(echo, on=False)
    assert not Tool.objects.get().enabled
    assert control.tool("anna", "echo") == echo
    control.switch_tool(echo, on=True)
    assert control.tool("anna", "echo").enabled
    Tool.objects.update(listed=False)
    with pytest.raises(UnknownToolError, match="'anna' lists no tool 'echo'"):
        control.tool("anna", "echo")
    with pytest.raises(UnknownMemberError):
        control.tool("bob", "echo")


def test_lists_show_what_the_member_told_and_nobody_switched_off(echo: Tool) -> None:
    assert list(Tool.objects.filter(control.visible_tools())) == [echo]
    for columns in ({"enabled": False}, {"enabled": True, "listed": False}):
        Tool.objects.update(**columns)
        assert not Tool.objects.filter(control.visible_tools()).exists()


@pytest.mark.django_db(transaction=True)
def test_a_call_wakes_a_member_that_was_stopped(echo: Tool, bells: Bells) -> None:
    GuildMember.objects.update(wanted="stopped", status="disconnected")
    control.queue_call("anna", "echo", {}, caller=COMMAND)
    assert row(echo.member).wanted == "running"
    assert sorted(bells.wishes) == [False, True]


@pytest.mark.django_db(transaction=True)
def test_a_repeated_call_wakes_nobody(echo: Tool, bells: Bells, django_user_model: Any) -> None:
    caller = Caller(Invocation.Door.REST, django_user_model.objects.create_superuser("bob"))
    first, _ = control.queue_call("anna", "echo", {}, caller=caller, idempotency_key="k")
    control.stop(echo.member)
    bells.rung.clear()
    assert control.queue_call("anna", "echo", {}, caller=caller, idempotency_key="k") == (first, False)
    assert row(echo.member).wanted == "stopped"
    assert bells.rung == []


@pytest.mark.django_db(transaction=True)
def test_a_cancelled_call_is_announced(echo: Tool, bells: Bells) -> None:
    invocation, _ = control.queue_call("anna", "echo", {}, caller=COMMAND)
    bells.rung.clear()
    assert control.cancel_call(invocation).status == "cancelled"
    assert bells.wishes == [True]


def test_arguments_are_shown_with_their_secrets_masked_before_the_call_is_over(echo: Tool) -> None:
    schema = {"properties": {"key": {"type": "string", "writeOnly": True}}}
    Tool.objects.update(definition={"inputSchema": schema})
    invocation, _ = control.queue_call("anna", "echo", {"key": "sesame", "text": "a"}, caller=COMMAND)
    assert control.shown_arguments(invocation) == {"key": "********", "text": "a"}
    assert Invocation.objects.get().arguments["key"] == "sesame"


def test_queue_depth_counts_what_waits_and_what_runs(echo: Tool) -> None:
    assert control.queue_depth(OPERATOR) == {"queued": 0, "running": 0}
    for status in ("queued", "queued", "running", "succeeded", "failed", "cancelled"):
        Invocation.objects.create(member=echo.member, tool_name="echo", timeout=1, door="rest", status=status)
    assert control.queue_depth(OPERATOR) == {"queued": 2, "running": 1}


def test_figures_and_pruning_are_those_of_the_calls(echo: Tool) -> None:
    invocation, _ = control.queue_call("anna", "echo", {}, caller=COMMAND)
    control.cancel_call(invocation)
    assert control.call_counts() == {("anna", "cancelled"): 1}
    assert control.prune_invocations(days=30, keep=0) == 1
    assert control.call_counts() == {("anna", "cancelled"): 1}


# The roster as readers see it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("fault", ["", "args: must be a list"])
@pytest.mark.parametrize("alive", [True, False])
def test_the_status_that_is_shown_is_the_truth(anna: GuildMember, status: Status, fault: str, alive: bool) -> None:
    anna.status, anna.manifest_error = status, fault
    shown = control.shown_status(anna, runtime_is_alive=alive)
    if not alive:
        assert shown == ("error" if fault else "disconnected")
    elif fault and status == Status.DISCONNECTED:
        assert shown == "error"
    else:
        assert shown == status.value


def test_a_runtime_is_alive_while_it_holds_the_lease() -> None:
    assert control.live_runtime() is None
    lease_id = lease.take()
    holder = control.live_runtime()
    assert holder is not None
    assert str(holder) == f"process {holder.pid} on {holder.host}"
    lease.release(lease_id)
    assert control.live_runtime() is None


def test_the_roster_is_every_member_whose_folder_is_there(anna: GuildMember) -> None:
    GuildMember.objects.create(name="gone", directory="gone", removed_at=timezone.now())
    assert list(control.roster()) == [anna]


@pytest.mark.django_db(transaction=True)
def test_the_folder_is_read_and_the_runtime_told(
    tmp_path: Path, settings: Any, bells: Bells, caplog: pytest.LogCaptureFixture
) -> None:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path
    (tmp_path / "bob").mkdir()
    manifest = {"name": "bob", "version": "1", "transport": "http", "command": "sh", "args": ["${PORT}"]}
    (tmp_path / "bob" / "guild-member.json").write_text(json.dumps(manifest))
    assert control.sync_roster().added == ["bob"]
    assert control.member("bob").version == "1"
    assert bells.wishes == [True]


def test_the_last_lines_of_a_members_log(anna: GuildMember, tmp_path: Path, settings: Any) -> None:
    settings.GUILD_HALL_DATA_DIR = tmp_path
    assert control.log_tail(anna, 5) == []
    path = logs.path_of(tmp_path, "anna")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"line {number}\n" for number in range(10)))
    assert control.log_tail(anna, 3) == ["line 7", "line 8", "line 9"]
