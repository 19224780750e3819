"""A member where each user has an own sign-in, in a real hall. The member says which token it saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections

from mcp_runtime.agents import transitions
from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control import sign_ins
from mcp_runtime.control.agents import create_agent
from mcp_runtime.control.calls import queue_call
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.rows.database import short_transaction
from roster.models import AgentMessage, Call, UserSignIn
from tests.conftest import eventually
from tests.support.agents import META, GatewayClient, MessageStream, make_token
from tests.support.api import client_of as rest_client_of
from tests.support.hall import Hall, call, member, wait_for_status
from tests.support.leaks import tables
from tests.support.oauth_server import OAuthWorld, hash_of, oauth_world
from tests.support.sdk_clients import python_sdk

CALLS = 100
TOOL = "vault__look"


@pytest.fixture(params=["with sessions", "without sessions"])
def world(request: pytest.FixtureRequest) -> Iterator[OAuthWorld]:
    with oauth_world(echoes=True, has_sessions=request.param == "with sessions") as world:
        yield world


@pytest.fixture
def users(hall: Hall, world: OAuthWorld, settings: Any) -> dict[str, User]:
    """Anna and Bert, who signed in alone, and Carl, who did not. Olga signed the member in for the lists."""
    settings.GUILD_HALL_SECRETS_KEY_FILE = hall.data_dir / "secrets-key"
    folder = hall.members_dir / "vault"
    folder.mkdir(parents=True)
    manifest = {"name": "vault", "version": "1.0.0", "transport": "http", "url": world.url}
    manifest |= {"oauth": {"credentials": "user"}, "max_concurrency": 8}
    (folder / "guild-member.json").write_text(json.dumps(manifest))
    hall.start()
    assert wait_for_status(hall, "vault", "error").needs_sign_in
    users = {name: User.objects.create_superuser(name) for name in ("olga", "anna", "bert", "carl")}
    sign_in(hall, world, users["olga"], own=False)
    wait_for_status(hall, "vault", "connected")
    for name in ("anna", "bert"):
        sign_in(hall, world, users[name], own=True)
    return users


def sign_in(hall: Hall, world: OAuthWorld, user: User, *, own: bool) -> None:
    world.account = "lists" if not own else user.username
    begun = sign_ins.begin(member("vault"), user, web=hall.url, own=own)
    sign_ins.finish(world.approve(begun.address), user, "")


def client_of(hall: Hall, user: User) -> GatewayClient:
    client = GatewayClient(hall, make_token(user)).begin()
    eventually(lambda: TOOL in client.tools(), within=20)
    return client


def queued(user: User | None) -> Call:
    source = Call.Source.REST if user else Call.Source.COMMAND
    return queue_call("vault", "look", {}, requester=Requester(source, user))[0]


def ended(row: Call) -> Call:
    eventually(lambda: Call.objects.filter(pk=row.pk, status__in=("succeeded", "failed")).exists(), within=60)
    row.refresh_from_db()
    return row


def test_every_way_to_a_member_has_the_token_of_the_user_who_asks_and_no_other(
    hall: Hall, world: OAuthWorld, users: dict[str, User]
) -> None:
    clients = {name: client_of(hall, users[name]) for name in ("anna", "bert")}

    def use(name: str) -> set[str]:
        client = clients[name]
        seen = [client.text(TOOL)]
        eventually(lambda: client.ask("prompts/list")["result"]["prompts"], within=20)
        got = client.ask("prompts/get", name="vault__ask")
        assert "result" in got, (got, hall.output())
        seen.append(got["result"]["messages"][0]["content"]["text"])
        uri = client.ask("resources/list")["result"]["resources"][0]["uri"]
        seen.append(client.ask("resources/read", uri=uri)["result"]["contents"][0]["text"])
        reference = {"type": "ref/prompt", "name": "vault__ask"}
        argument = {"name": "x", "value": "y"}
        seen += client.ask("completion/complete", ref=reference, argument=argument)["result"]["completion"]["values"]
        assert "error" not in client.ask("resources/subscribe", uri=uri)
        row = ended(queued(users[name]))
        assert row.status == "succeeded", (row.error_message, hall.output())
        assert row.requested_by_id == users[name].pk
        return {world.accounts[each] for each in [*seen, row.result["content"][0]["text"]]}

    with ThreadPoolExecutor(8) as pool:
        results = [(name, pool.submit(use, name)) for _ in range(5) for name in clients]
        assert all(result.result() == {name} for name, result in results), hall.output()
    by_method = {method: {world.account_of(each) for each in seen} for method, seen in world.hashes_by_method().items()}
    for method in ("tools/call", "prompts/get", "resources/read", "completion/complete"):
        assert by_method[method] == {"anna", "bert"}, method
    assert by_method["tools/list"] >= {"lists"}
    assert world.mixed_up() == []


def test_another_account_of_a_user_does_not_go_on_in_the_session_of_the_one_before(
    hall: Hall, world: OAuthWorld, users: dict[str, User]
) -> None:
    client = client_of(hall, users["anna"])
    assert world.accounts[client.text(TOOL)] == "anna"
    world.account = "annas-other"
    begun = sign_ins.begin(member("vault"), users["anna"], web=hall.url, own=True)
    sign_ins.finish(world.approve(begun.address), users["anna"], "")
    assert world.accounts[client.text(TOOL)] == "annas-other"
    world.expire()
    assert world.accounts[client.text(TOOL)] == "annas-other"
    assert world.mixed_up() == []


def test_who_did_not_sign_in_is_told_where_and_the_member_gets_nothing(
    hall: Hall, world: OAuthWorld, users: dict[str, User]
) -> None:
    carl = client_of(hall, users["carl"])
    before = len([each for each in world.seen if b"tools/call" in each.body])
    error = carl.call(TOOL)["error"]["message"]
    page = f"/members/{member('vault').pk}/own-sign-in/"
    assert "needs a sign-in: each user signs in there alone" in error
    assert page in error
    able = GatewayClient(hall, make_token(users["carl"])).begin("2025-11-25", elicitation={"url": {}})
    asked = able.call(TOOL)["error"]
    assert (asked["code"], asked["data"]["kind"], asked["data"]["sent"]) == (-32042, "unavailable", False)
    (elicitation,) = asked["data"]["elicitations"]
    assert (elicitation["mode"], elicitation["url"].endswith(page)) == ("url", True)
    assert world.base not in str(asked)  # the authorization server is not opened directly
    for version, capabilities in (("2025-11-25", {"elicitation": {}}), ("2025-06-18", {"elicitation": {"url": {}}})):
        unable = GatewayClient(hall, make_token(users["carl"])).begin(version, **capabilities)
        assert unable.call(TOOL)["error"]["code"] == -32603
    failed = ended(queued(users["carl"]))
    assert (failed.status, failed.error_kind) == ("failed", "unavailable")
    assert page in failed.error_message
    of_operator = call("vault", "look")
    assert "this request is of no user" in of_operator.error_message
    assert len([each for each in world.seen if b"tools/call" in each.body]) == before
    assert member("vault").status == "connected"
    assert not member("vault").needs_sign_in


@pytest.mark.parametrize(
    ("method", "params"),
    [("tools/call", {"name": TOOL, "arguments": {}}), ("prompts/get", {"name": "vault__ask"}), ("resources/read", {})],
)
def test_a_modern_client_is_asked_to_open_the_page_and_its_second_request_goes_to_the_member(
    hall: Hall, world: OAuthWorld, users: dict[str, User], method: str, params: dict[str, Any]
) -> None:
    listing = client_of(hall, users["carl"])
    resources = eventually(lambda: listing.ask("resources/list")["result"]["resources"], within=20)
    params = params or {"uri": resources[0]["uri"]}
    client = GatewayClient(hall, make_token(users["carl"]))
    able = {"meta": {f"{META}clientCapabilities": {"elicitation": {"url": {}}}}}

    def ask(action: str = "", **more: Any) -> dict[str, Any]:
        answers = {"inputResponses": {key: {"action": action}}} if action else {}
        response = client.modern(method, **params, **answers, **more)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def sent() -> list[bytes]:
        return [each.body for each in world.seen if method.encode() in each.body]

    key = ""
    refusal = ask()["error"]  # it cannot open pages
    assert (refusal["code"], refusal["data"]["kind"], refusal["data"]["sent"]) == (-32603, "unavailable", False)
    result = ask(**able)["result"]
    assert result.keys() == {"resultType", "inputRequests"}
    assert result["resultType"] == "input_required"
    ((key, question),) = result["inputRequests"].items()
    page = f"/members/{member('vault').pk}/own-sign-in/"
    assert (question["method"], question["params"]["mode"]) == ("elicitation/create", "url")
    assert question["params"]["url"].endswith(page)
    assert ask("accept", **able)["result"] == result  # the person opened the page, and has not finished
    assert page in ask("decline", **able)["error"]["message"]
    assert "requestState is unknown" in ask(requestState="of-somebody", **able)["error"]["message"]
    assert sent() == []
    sign_in(hall, world, users["carl"], own=True)
    answer = ask("accept", **able)["result"]
    assert answer["resultType"] == "complete"
    (body,) = sent()
    assert b"inputResponses" not in body


def test_a_hundred_calls_of_one_user_at_the_end_of_the_token_cause_one_refresh(
    hall: Hall, world: OAuthWorld, users: dict[str, User]
) -> None:
    clients = [client_of(hall, users["anna"]) for _ in range(10)]
    world.token_delay = 0.5
    world.expire()
    listed = world.refreshes
    queue = [queued(users["anna"]) for _ in range(CALLS // 2)]
    with ThreadPoolExecutor(10) as pool:
        texts = list(pool.map(lambda number: clients[number % 10].text(TOOL), range(CALLS // 2)))
    assert {world.accounts[text] for text in texts} == {"anna"}
    assert [ended(row).status for row in queue] == ["succeeded"] * len(queue), hall.output()
    of_anna = [each for each in world.seen if each.path == "/token" and _account(world, each.form) == "anna"]
    assert (len(of_anna), world.reuses) == (1, 0), listed
    secrets = [*world.access, *world.refresh, *world.used_refresh]
    written = "\n".join([str(tables()), hall.output()])
    assert [secret for secret in secrets if secret in written] == []


def _account(world: OAuthWorld, form: dict[str, str]) -> str:
    return world.account_of(hash_of(form.get("refresh_token", "")))


def test_the_end_of_one_users_sign_in_changes_nothing_for_others(
    hall: Hall, world: OAuthWorld, users: dict[str, User]
) -> None:
    anna, bert = client_of(hall, users["anna"]), client_of(hall, users["bert"])
    assert world.accounts[anna.text(TOOL)] == "anna"
    for token in [each for each in world.access if world.account_of(hash_of(each)) == "anna"]:
        del world.access[token]
    for token in [each for each in world.refresh if world.account_of(hash_of(each)) == "anna"]:
        del world.refresh[token]
    assert "own-sign-in" in anna.call(TOOL)["error"]["message"]
    assert "own-sign-in" in ended(queued(users["anna"])).error_message
    assert world.accounts[bert.text(TOOL)] == "bert"
    assert (member("vault").status, member("vault").needs_sign_in) == ("connected", False)
    sign_in(hall, world, users["anna"], own=True)
    assert world.accounts[anna.text(TOOL)] == "anna"
    sign_ins.sign_out(member("vault"), users["anna"])
    assert "own-sign-in" in anna.call(TOOL)["error"]["message"]  # at once
    users["bert"].is_active = False
    users["bert"].save()
    refreshes = world.refreshes
    eventually(lambda: bert.send("tools/call", name=TOOL, arguments={}).status_code == 401, within=10)
    assert ended(queued_of_inactive(users["bert"])).status == "failed"
    assert world.refreshes == refreshes


def queued_of_inactive(user: User) -> Call:
    """A call that was queued while the user was active, and could not begin before the user was not."""
    with short_transaction():
        User.objects.filter(pk=user.pk).update(is_active=True)
        row = queued(User.objects.get(pk=user.pk))
        User.objects.filter(pk=user.pk).update(is_active=False)
    return row


def test_over_rest_each_user_sees_and_ends_only_the_own_sign_in(world: OAuthWorld, users: dict[str, User]) -> None:
    clients = {name: rest_client_of(user) for name, user in users.items()}
    own = "/api/members/vault/own-sign-in/"
    assert {name: client.get(own).json()["state"] for name, client in clients.items()} == {
        "anna": "signed in",
        "bert": "signed in",
        "carl": "needed",
        "olga": "needed",  # although she signed the member in for its lists
    }
    world.account = "carl"
    answer = world.approve(clients["carl"].post(own).json()["address"])
    with pytest.raises(RequestRefusedError, match="is over"):
        sign_ins.finish(answer, users["anna"], "")  # another user opens the address
    sign_ins.finish(answer, users["carl"], "")
    with pytest.raises(RequestRefusedError, match="is over"):
        sign_ins.finish(answer, users["carl"], "")  # a second time
    assert clients["anna"].post("/api/members/vault/own-sign-out/").json() == {"revoked": True}
    assert set(UserSignIn.objects.values_list("user__username", flat=True)) == {None, "bert", "carl"}
    invoke = "/api/members/vault/tools/look/invoke/?wait=20"
    rows = {}
    for name in ("anna", "bert", "carl"):
        answered = clients[name].post(invoke, {"arguments": {}}, content_type="application/json").json()
        rows[name] = ended(Call.objects.get(pk=answered["id"]))
    assert "own-sign-in" in rows["anna"].error_message
    for name in ("bert", "carl"):
        assert world.accounts[rows[name].result["content"][0]["text"]] == name


def test_an_agent_has_the_account_of_its_creator(hall: Hall, world: OAuthWorld, users: dict[str, User]) -> None:
    clients = {}
    for name in ("anna", "bert", "carl"):
        requester = Requester(Call.Source.REST, users[name])
        agent = create_agent(["vault"], requester=requester)
        with short_transaction():  # the hall must not run it, for its end would end the token
            message = transitions.queue(agent, "hello", timeout=60, requester=requester)
            lease_id = member("vault").lease_id
            assert lease_id is not None
            assert transitions.claim(message, lease_id)
        clients[name] = GatewayClient(hall, transitions.make_token(message), f"/agents/{agent.pk}/mcp").begin()
    eventually(lambda: TOOL in clients["anna"].tools(), within=20)
    for name in ("anna", "bert"):
        assert world.accounts[clients[name].text(TOOL)] == name
    assert f"/members/{member('vault').pk}/own-sign-in/" in clients["carl"].call(TOOL)["error"]["message"]
    # As if bert had sent the message while everybody had one account, which the manifest changed during the run.
    AgentMessage.objects.filter(agent__created_by=users["anna"]).update(requested_by=users["bert"])
    refused = clients["anna"].call(TOOL)["error"]
    assert "this agent has the account of its creator" in refused["message"]
    assert refused["data"]["sent"] is False
    assert world.accounts[clients["bert"].text(TOOL)] == "bert"


# Clients of 2025-11-25 are told when a sign-in is done ------------------------------------------------------------

COMPLETE = "notifications/elicitation/complete"


def able_client_of(hall: Hall, user: User, path: str = "/mcp") -> GatewayClient:
    """A client that can open pages."""
    return GatewayClient(hall, make_token(user), path).begin("2025-11-25", elicitation={"url": {}})


def asked(client: GatewayClient, tool: str = TOOL) -> str:
    """The id of the elicitation that a call is answered with."""
    error = client.call(tool)["error"]
    assert error["code"] == -32042, error
    return str(error["data"]["elicitations"][0]["elicitationId"])


def completed(stream: MessageStream) -> list[str]:
    """All that the client was told so far."""
    return [each["params"]["elicitationId"] for each in stream.all_messages if each.get("method") == COMPLETE]


def test_each_client_that_listens_is_told_once_that_its_user_signed_in_and_no_other_client(
    hall: Hall, world: OAuthWorld, users: dict[str, User]
) -> None:
    carl, olga = users["carl"], users["olga"]
    clients = [able_client_of(hall, carl), able_client_of(hall, carl, "/mcp/vault"), able_client_of(hall, olga)]
    ended, deaf = able_client_of(hall, carl), able_client_of(hall, carl)
    streams = [client.listen() for client in (*clients, ended)]
    ids = [asked(clients[0]), asked(clients[1], "look"), asked(clients[2])]
    assert len({*ids, asked(ended), asked(deaf)}) == 5
    assert ended.http.delete(ended.url).status_code == 204
    assert streams[3].ended.wait(10)
    sign_in(hall, world, carl, own=True)
    for client, stream, elicitation_id in zip(clients[:2], streams, ids, strict=False):
        assert stream.until(COMPLETE)["params"] == {"elicitationId": elicitation_id}
        assert world.accounts[client.text("look" if client.url.endswith("vault") else TOOL)] == "carl"
    assert world.accounts[deaf.text(TOOL)] == "carl"
    sign_in(hall, world, olga, own=True)  # after her notification, those of others would have come as well
    assert streams[2].until(COMPLETE)["params"] == {"elicitationId": ids[2]}
    assert world.accounts[clients[2].text(TOOL)] == "olga"
    assert [completed(stream) for stream in streams] == [[ids[0]], [ids[1]], [ids[2]], []]
    for stream in streams:
        stream.close()


def test_a_client_is_told_of_the_sign_in_for_more_scopes_and_of_the_next_one(
    hall: Hall, world: OAuthWorld, users: dict[str, User]
) -> None:
    world.needs = {"write": "admin"}
    bert = able_client_of(hall, users["bert"])
    with bert.listen() as stream:
        more = asked(bert, "vault__write")
        assert world.accounts[bert.text(TOOL)] == "bert"  # which needs no more, and ends no waiting
        sign_in(hall, world, users["bert"], own=True)
        assert stream.until(COMPLETE)["params"] == {"elicitationId": more}
        assert world.accounts[bert.text("vault__write")] == "bert"
        sign_ins.sign_out(member("vault"), users["bert"])
        again = asked(bert)
        sign_in(hall, world, users["bert"], own=True)
        assert stream.until(COMPLETE)["params"] == {"elicitationId": again}
        assert completed(stream) == [more, again]


def test_the_python_sdk_repeats_a_call_by_itself_when_its_user_has_signed_in(
    hall: Hall, world: OAuthWorld, users: dict[str, User]
) -> None:
    from mcp import types
    from mcp.shared.exceptions import MCPError, UrlElicitationRequiredError

    client_of(hall, users["carl"])  # the roster has the tool
    told: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: object) -> None:
        if isinstance(message, types.ElicitCompleteNotification):
            told.put_nowait(message.params.elicitation_id)

    async def on_question(*args: object) -> Any:
        raise AssertionError("nobody asks in another way")

    url, token = f"http://{hall.address}:{hall.gateway_port}/mcp", make_token(users["carl"])

    async def use() -> str:
        options = {"elicitation_callback": on_question, "message_handler": on_message}
        async with python_sdk(url, token, "legacy", **options) as client:
            with pytest.raises(MCPError) as refusal:
                await client.text(TOOL, {})
            (page,) = UrlElicitationRequiredError.from_error(refusal.value.error).elicitations
            await asyncio.to_thread(in_thread, lambda: sign_in(hall, world, users["carl"], own=True))
            assert await told.get() == page.elicitation_id
            return await client.text(TOOL, {})

    assert world.accounts[asyncio.run(asyncio.wait_for(use(), 50))] == "carl"


def in_thread(work: Callable[[], None]) -> None:
    try:
        work()
    finally:
        connections.close_all()
