"""Events over HTTP: what a client gets, in whose rights, and after it was away."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.contrib.auth.models import Group, Permission, User
from django.db import OperationalError
from django.utils import timezone

from mcp_runtime.gateway.events import feed, snapshots
from mcp_runtime.gateway.events.subscriber import Subscriber
from mcp_runtime.rows import lease
from mcp_runtime.security import limits
from roster.models import Call, GuildMember, MemberGroup, Node, Token
from tests.conftest import eventually
from tests.support.agents import make_token
from tests.support.event_listener import EventListener, listen
from tests.support.gateway_world import World
from tests.support.leases import own_node


@pytest.fixture(autouse=True)
def runtime(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A live lease, because a member without a runtime is disconnected."""
    monkeypatch.setattr(feed, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(feed, "COMMENT_SECONDS", 0.05)  # so that the end of a connection is noticed soon
    lease_id = lease.take()
    yield
    lease.release(lease_id)


class Client:
    """A user with a token for the gateway of the world."""

    def __init__(self, world: World, name: str, *permissions: str, **options: Any) -> None:
        assert world.gateway
        self.url = f"http://127.0.0.1:{world.gateway_port}"
        self.user = User.objects.create_user(name)
        self.user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.token = make_token(self.user, **options)

    def listen(self, **params: Any) -> AbstractContextManager[EventListener]:
        return listen(self.url, self.token, **params)

    def get(self, method: str = "GET", **params: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return requests.request(method, f"{self.url}/events", headers=headers, params=params, timeout=20, stream=True)


@pytest.fixture
def ann(world: World) -> Client:
    return Client(world, "ann", "invoke_tool")


def add(name: str, **values: Any) -> GuildMember:
    values = {"status": "connected", "desired_state": "running", **values}
    return GuildMember.objects.create(name=name, directory=name, node=own_node(), **values)


def add_call(member: GuildMember, user: User | None = None, status: str = "queued", **values: Any) -> Call:
    return Call.objects.create(
        member=member, tool_name="echo", timeout=5, source="rest", requested_by=user, status=status, **values
    )


def end(call: Call, status: str = "succeeded", **values: Any) -> None:
    Call.objects.filter(pk=call.pk).update(status=status, finished_at=timezone.now(), **values)


# Members ----------------------------------------------------------------------------------------------------------


def test_a_client_gets_the_roster_and_then_each_change(ann: Client) -> None:
    notes = add("notes")
    with ann.listen(topics="members") as listener:
        (roster,) = listener.wait_for("roster")
        assert [(member["name"], member["status"], member["error"]) for member in roster["members"]] == [
            ("notes", "connected", "")
        ]
        error = f"member 'notes' exited{GuildMember.TAIL_MARK}its last words"
        GuildMember.objects.filter(pk=notes.pk).update(status="error", last_error=error)
        (changed,) = listener.wait_for("member")
        assert (changed["name"], changed["status"], changed["error"]) == ("notes", "error", "member 'notes' exited")
        add("weather")
        assert listener.wait_for("member", 2)[1]["name"] == "weather"
        GuildMember.objects.filter(pk=notes.pk).update(removed_at=timezone.now())
        assert listener.wait_for("member-removed") == [{"name": "notes"}]
        assert len(listener.of("roster")) == 1


def test_members_of_a_runtime_that_ended_are_disconnected(ann: Client) -> None:
    add("notes")
    with ann.listen() as listener:
        listener.wait_for("roster")
        Node.objects.update(lease_id=None)
        assert listener.wait_for("member")[0]["status"] == "disconnected"


def test_a_client_that_missed_nothing_gets_no_roster_again(ann: Client) -> None:
    notes = add("notes")
    with ann.listen() as listener:
        listener.wait_for("roster")
        last_id = listener.last_id
    with ann.listen(last_id=last_id) as listener:
        add_call(notes, ann.user)
        listener.wait_for("call")  # the first look is over
        GuildMember.objects.filter(pk=notes.pk).update(enabled=False)
        assert listener.wait_for("member")[0]["enabled"] is False
        assert listener.of("roster") == []
        assert listener.of("gap") == []
    with ann.listen(last_id=last_id) as listener:
        assert listener.wait_for("roster")[0]["members"][0]["enabled"] is False


# Calls ------------------------------------------------------------------------------------------------------------


def test_a_client_gets_the_states_of_its_calls(ann: Client) -> None:
    notes = add("notes")
    running = add_call(notes, ann.user, "running", progress={"progress": 1, "total": 2})
    with ann.listen(topics="calls") as listener:
        (call,) = listener.wait_for("call")
        assert (call["id"], call["member"], call["tool"], call["status"]) == (running.pk, "notes", "echo", "running")
        assert call["progress"] == {"progress": 1, "total": 2}
        end(running, "failed", error_kind="tool", error_message="no such note")
        assert listener.wait_for("call", 2)[1]["error"] == {"kind": "tool", "message": "no such note"}
        queued = add_call(notes, ann.user)
        assert listener.wait_for("call", 3)[2] == {**listener.of("call")[2], "id": queued.pk, "status": "queued"}
        assert listener.of("roster") == []


def test_the_stream_for_one_call_ends_with_the_call(ann: Client) -> None:
    notes = add("notes")
    call, other_call = add_call(notes, ann.user, "running"), add_call(notes, ann.user, "running")
    with ann.listen(call=call.pk) as listener:
        listener.wait_for("call")
        end(other_call)
        end(call)
        eventually(lambda: listener.is_over)
        assert [(data["id"], data["status"]) for data in listener.of("call")] == [
            (call.pk, "running"),
            (call.pk, "succeeded"),
        ]
        assert {event.kind for event in listener.events} == {"call"}


@pytest.mark.parametrize("age", [timedelta(seconds=1), timedelta(minutes=1), timedelta(days=3)])
@pytest.mark.parametrize("last_id", ["", "1-0000000000000000"])
def test_the_stream_for_a_call_that_has_ended_has_its_end_while_others_listen(
    ann: Client, age: timedelta, last_id: str
) -> None:
    call = add_call(add("notes"), ann.user, "succeeded", finished_at=timezone.now() - age)
    with ann.listen() as other_listener:
        other_listener.wait_for("roster")
        with ann.listen(call=call.pk, last_id=last_id) as listener:
            eventually(lambda: listener.is_over)
            assert [data["status"] for data in listener.of("call")] == ["succeeded"]


def test_calls_that_ended_while_a_client_was_away_are_sent_when_it_resumes(ann: Client, world: World) -> None:
    notes, bob = add("notes"), Client(world, "bob", "invoke_tool")
    call, calls_of_bob = add_call(notes, ann.user, "running"), add_call(notes, bob.user, "running")
    with ann.listen() as listener:
        listener.wait_for("call")
        last_id = listener.last_id
    for ended_call in (call, calls_of_bob):
        end(ended_call)
    Call.objects.update(finished_at=timezone.now() - timedelta(seconds=5))
    with ann.listen(last_id=last_id) as listener:
        assert [(data["id"], data["status"]) for data in listener.wait_for("call")] == [(call.pk, "succeeded")]
        assert listener.of("gap") == []


def test_no_older_state_follows_a_newer_one_when_a_client_resumes_during_a_look(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = add_call(notes := add("notes"), ann.user, "running")
    is_looking, may_end = threading.Event(), threading.Event()
    with ann.listen() as first, ann.listen(topics="members") as watching:
        first.wait_for("call")
        watching.wait_for("roster")
        take = snapshots.take

        def take_slowly(*arguments: Any) -> Any:
            snapshot = take(*arguments)
            is_looking.set()
            assert may_end.wait(20)
            return snapshot

        monkeypatch.setattr(snapshots, "take", take_slowly)
        assert is_looking.wait(20)
        end(call)
        with ann.listen(last_id=first.last_id) as listener:
            listener.wait_for("call")
            may_end.set()
            GuildMember.objects.filter(pk=notes.pk).update(enabled=False)
            eventually(lambda: [*listener.of("roster"), *listener.of("member")])
            assert [data["status"] for data in listener.of("call")] == ["succeeded"]


@pytest.mark.parametrize("last_id", ["nonsense", "1-0000000000000000", "99999999999999-0000000000000000"])
def test_a_client_with_an_old_or_unknown_position_reads_the_lists_again(ann: Client, last_id: str) -> None:
    add("notes")
    with ann.listen(last_id=last_id) as listener:
        (gap,) = listener.wait_for("gap")
        assert gap["topic"] == "calls"
        assert listener.wait_for("roster")


def test_more_calls_than_fit_into_a_stream_are_a_gap(ann: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_CALLS", 2)
    notes = add("notes")
    with ann.listen() as listener:
        listener.wait_for("roster")
        for _ in range(3):
            add_call(notes, ann.user)
        assert listener.wait_for("gap")[0]["topic"] == "calls"
    with ann.listen() as listener:
        listener.wait_for("gap")


def test_many_calls_of_one_user_hide_no_call_of_another(
    world: World, ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_CALLS", 2)
    notes, bob = add("notes"), Client(world, "bob", "invoke_tool")
    for _ in range(5):
        add_call(notes, bob.user)
    call = add_call(notes, ann.user)
    with ann.listen() as of_ann, bob.listen() as of_bob:
        assert of_ann.wait_for("call")[0]["id"] == call.pk
        of_bob.wait_for("gap")
        for other_call in Call.objects.filter(requested_by=bob.user):
            end(other_call)
        end(call)
        assert of_ann.wait_for("call", 2)[1]["status"] == "succeeded"
        assert of_ann.of("gap") == []


def test_calls_that_end_one_after_the_other_are_no_gap_and_a_late_one_is_sent(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_CALLS", 2)
    notes = add("notes")
    with ann.listen() as listener:
        listener.wait_for("roster")
        for count in range(1, 6):
            add_call(notes, ann.user, "succeeded", finished_at=timezone.now())
            listener.wait_for("call", count)
        late_call = add_call(notes, ann.user, "succeeded", finished_at=timezone.now() - timedelta(seconds=5))
        assert listener.wait_for("call", 6)[5]["id"] == late_call.pk
        assert listener.of("gap") == []


def test_more_calls_than_are_looked_at_are_a_gap_for_everybody(ann: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_KEYS", 2)
    notes = add("notes")
    with ann.listen() as listener:
        listener.wait_for("roster")
        for _ in range(3):
            add_call(notes, status="succeeded", finished_at=timezone.now())
        listener.wait_for("gap")


def test_the_one_call_of_a_stream_is_never_left_out(ann: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_CALLS", 1)
    notes = add("notes")
    for _ in range(3):
        add_call(notes, ann.user)
    call, deleted_call = add_call(notes, ann.user), add_call(notes, ann.user)
    with ann.listen(call=call.pk) as listener, ann.listen(call=deleted_call.pk) as of_deleted:
        listener.wait_for("call")
        of_deleted.wait_for("call")
        deleted_call.delete()
        eventually(lambda: of_deleted.is_over)
        end(call)
        eventually(lambda: listener.is_over)
        assert [event.data.get("status") for event in listener.events] == ["queued", "succeeded"]


def test_a_client_that_is_cut_off_while_it_resumes_misses_no_call(ann: Client) -> None:
    notes, now = add("notes"), timezone.now()
    last_id = f"{int((now - timedelta(minutes=10)).timestamp() * 1000)}-0000000000000000"
    calls = [
        add_call(notes, ann.user, "succeeded", finished_at=now - timedelta(minutes=minute))
        for minute in range(6, 2, -1)
    ]
    with ann.listen() as other_listener:  # so that the hall looks for changes already
        other_listener.wait_for("roster")
        with ann.listen(last_id=last_id) as listener:
            assert [data["id"] for data in listener.wait_for("call", 4)] == [call.pk for call in calls]
            ids = [event.id for event in listener.events if event.kind == "call"]
        for number in range(3):
            with ann.listen(last_id=ids[number]) as listener:
                missed = {call.pk for call in calls[number + 1 :]}
                eventually(lambda: missed <= {data["id"] for data in listener.of("call")})  # noqa: B023 - in this turn
                assert listener.of("gap") == []


# Rights -----------------------------------------------------------------------------------------------------------


def test_nobody_gets_events_of_a_member_or_call_that_rest_does_not_show(world: World, ann: Client) -> None:
    notes, secret = add("notes"), add("secret")
    MemberGroup.objects.create(member=secret, group=Group.objects.create(name="board"))
    bob = Client(world, "bob", "invoke_tool", "view_call")
    with ann.listen() as of_ann, bob.listen() as of_bob:
        for listener in (of_ann, of_bob):
            assert [member["name"] for member in listener.wait_for("roster")[0]["members"]] == ["notes"]
        before = of_ann.last_id
        GuildMember.objects.filter(pk=secret.pk).update(status="error", last_error="a secret fault")
        add_call(secret, error_message="a secret call")
        call_of_bob, call_of_ann = add_call(notes, bob.user), add_call(notes, ann.user)
        assert {call["id"] for call in of_bob.wait_for("call", 2)} == {call_of_bob.pk, call_of_ann.pk}
        assert [call["id"] for call in of_ann.wait_for("call")] == [call_of_ann.pk]
        GuildMember.objects.filter(pk=notes.pk).update(enabled=False)
        for listener in (of_ann, of_bob):
            assert [member["name"] for member in listener.wait_for("member")] == ["notes"]
            assert "secret" not in str(listener.events)
        assert of_ann.last_id != before
    assert ann.get(member="secret").status_code == ann.get(member="unknown").status_code == 404
    assert ann.get(call=call_of_bob.pk).status_code == 404


def test_the_ids_of_events_say_nothing_of_members_that_a_client_may_not_see(world: World, ann: Client) -> None:
    notes, secret = add("notes"), add("secret")
    MemberGroup.objects.create(member=secret, group=Group.objects.create(name="board"))
    with ann.listen() as listener:
        listener.wait_for("roster")
        last_id = listener.last_id
    GuildMember.objects.filter(pk=secret.pk).update(status="error")
    with ann.listen(last_id=last_id) as listener:
        call = add_call(notes, ann.user)
        assert listener.wait_for("call")[0]["id"] == call.pk
        assert [event.kind for event in listener.events] == ["call"]  # nothing changed for this client
        assert listener.last_id.split("-")[1] == last_id.split("-")[1]


def test_a_token_for_one_member_gets_events_of_that_member_and_of_its_own_calls(world: World) -> None:
    notes, weather = add("notes"), add("weather")
    narrow = Client(world, "cem", "invoke_tool", "view_call")
    token, narrow.token = Token.make(user=narrow.user, scope=Token.Scope.MEMBERS, members=[notes], **Token.UNLIMITED)
    with narrow.listen() as listener:
        assert [member["name"] for member in listener.wait_for("roster")[0]["members"]] == ["notes"]
        add_call(notes, narrow.user)
        own_call = add_call(notes, narrow.user, token=token)
        GuildMember.objects.filter(pk=weather.pk).update(enabled=False)
        GuildMember.objects.filter(pk=notes.pk).update(enabled=False)
        assert [call["id"] for call in listener.wait_for("call")] == [own_call.pk]
        assert [member["name"] for member in listener.wait_for("member")] == ["notes"]


def test_a_stream_ends_when_its_token_is_revoked(ann: Client) -> None:
    add("notes")
    with ann.listen() as listener:
        listener.wait_for("roster")
        Token.objects.get(user=ann.user).delete()
        eventually(lambda: listener.is_over, within=20)


def test_a_client_that_loses_or_gets_a_member_gets_the_roster_again(ann: Client) -> None:
    add("notes")
    secret, board = add("secret"), Group.objects.create(name="board")
    with ann.listen() as listener, ann.listen(member="secret") as of_secret:
        assert len(listener.wait_for("roster")[0]["members"]) == 2
        MemberGroup.objects.create(member=secret, group=board)
        assert len(listener.wait_for("roster", 2)[1]["members"]) == 1
        eventually(lambda: of_secret.is_over)
        ann.user.groups.add(board)
        assert len(listener.wait_for("roster", 3)[2]["members"]) == 2


# Requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "status", "text"),
    [
        ({"token": "gh_x"}, 400, "token: Unknown parameter."),
        ({"topics": "members,nodes"}, 400, "'nodes' is not a topic. The topics are members, calls."),
        ({"call": "x"}, 400, "call: Must be the id of a call."),
        ({"call": "9" * 30}, 400, "call: Must be the id of a call."),
        ({"call": "123456"}, 404, "There is no call 123456."),
        ({"member": "gone"}, 404, "There is no member 'gone'."),
    ],
)
def test_a_request_that_cannot_be_served_gets_the_problem(ann: Client, params: Any, status: int, text: str) -> None:
    response = ann.get(**params)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert text in response.json()["detail"]


def test_only_get_with_a_valid_token_opens_a_stream(ann: Client) -> None:
    response = ann.get("POST")
    assert (response.status_code, response.headers["allow"]) == (405, "GET")
    ann.token = "gh_unknown"
    response = ann.get()
    assert (response.status_code, response.json()["code"]) == (401, "authentication_failed")
    assert "www-authenticate" in response.headers


@pytest.mark.parametrize("bound", ["MAX_STREAMS", "MAX_STREAMS_OF_USER", "MAX_STREAMS_OF_TOKEN"])
def test_streams_above_a_limit_are_refused_until_one_is_closed(
    ann: Client, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(limits, bound, 1)
    with ann.listen() as listener:
        listener.wait_for("roster")
        response = ann.get()
        assert (response.status_code, response.headers["retry-after"]) == (503, "10")
        assert response.json()["code"] == "too_many_streams"
    eventually(lambda: ann.get().status_code == 200)


def test_requests_at_the_same_time_get_no_more_streams_than_the_limit(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_STREAMS_OF_TOKEN", 2)
    all_arrived, has_member = threading.Event(), snapshots.has_member
    responses: list[requests.Response] = []

    def wait(name: str) -> bool:
        all_arrived.wait(20)
        return has_member(name)

    monkeypatch.setattr(snapshots, "has_member", wait)
    add("notes")
    threads = [threading.Thread(target=lambda: responses.append(ann.get(member="notes"))) for _ in range(5)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(AssertionError):  # without a limit, no request is refused before all are there
        eventually(lambda: len(responses) == 3, within=5)
    all_arrived.set()
    for thread in threads:
        thread.join(20)
    with contextlib.ExitStack() as stack:
        for response in responses:
            stack.callback(response.close)
        assert sorted(response.status_code for response in responses) == [200, 200, 503, 503, 503]


def test_rights_that_change_while_a_stream_is_opened_are_those_of_the_stream(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ann.get("POST").status_code == 405  # its rights are cached
    opened = feed.Feed.opened

    def revoke(self: feed.Feed, subscriber: Subscriber) -> Any:
        subscriber.authorization = b"Bearer gh_revoked"
        return opened(self, subscriber)

    monkeypatch.setattr(feed.Feed, "opened", revoke)
    response = ann.get()
    assert (response.status_code, response.json()["code"]) == (401, "authentication_failed")


def test_an_idle_stream_has_comments(ann: Client) -> None:
    with ann.listen() as listener:
        eventually(lambda: listener.comments > 1)


@pytest.mark.parametrize("error", [OperationalError("away"), ValueError("a fault of ours")])
def test_a_look_that_fails_is_repeated(ann: Client, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(feed, "AFTER_ERROR_SECONDS", 0.01)
    take, faults = snapshots.take, [error, error]

    def fail_twice(*args: Any) -> Any:
        if faults:
            raise faults.pop()
        return take(*args)

    monkeypatch.setattr(snapshots, "take", fail_twice)
    call = add_call(add("notes"), ann.user, "running")
    with ann.listen() as listener:
        listener.wait_for("call")
        end(call)
        assert listener.wait_for("call", 2)[1]["status"] == "succeeded"
    assert faults == []


def test_the_gateway_ends_its_streams_when_it_stops(world: World, ann: Client) -> None:
    with ann.listen() as listener:
        listener.wait_for("roster")
        world.close_gateway()
        eventually(lambda: listener.is_over)


def test_nothing_is_read_while_nobody_listens(ann: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    take = snapshots.take

    def count(*args: Any) -> Any:
        looks.append(args)
        return take(*args)

    monkeypatch.setattr(snapshots, "take", count)
    with ann.listen() as listener:
        listener.wait_for("roster")
    eventually(lambda: ann.get("POST").status_code == 405)
    stopped_at: list[int] = []

    def is_quiet() -> bool:
        stopped_at.append(len(looks))
        return len(stopped_at) > 20 and stopped_at[-20] == stopped_at[-1]

    eventually(is_quiet)
    assert looks
