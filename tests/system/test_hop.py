"""Agents at the gateway of one node use members of other nodes as if they were there."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import sys
from collections.abc import Callable

import psutil
import pytest
import requests
from django.db import connections

from mcp_runtime.control.tool_sets import Entry, Values, create_tool_set
from mcp_runtime.security.access import OPERATOR
from roster.models import Call, GuildMember, Token, TokenShare
from tests.conftest import ROOT, eventually
from tests.support.agents import GatewayClient, MessageStream, make_token, messages_of, wait_for_roster
from tests.support.hall import PATIENCE, wait_for_status
from tests.support.machine import Stopwatch
from tests.support.nodes import MOVABLE, Machine, on_postgresql, owner_of, wait_for_folders
from tests.support.real_servers.__init__ import python
from tests.support.sdk_clients import all_clients, use_python_server

pytestmark = [pytest.mark.services, on_postgresql]
COUNTER = ROOT / "tests" / "support" / "servers" / "counter.py"
NODE = {"state": "none", "files": ["counter.py"]}


def add_counter(machine: Machine, name: str) -> None:
    folder = machine.add(name, args=["counter.py", "${PORT}"], node=NODE)
    shutil.copy(COUNTER, folder)


def start(machines: list[Machine], *names: str) -> None:
    """Start the nodes. The first one owns all members."""
    for machine in machines:
        for name in names:
            add_counter(machine, name)
    machines[0].run()
    for name in names:
        wait_for_status(machines[0], name, "connected")
    for machine in machines[1:]:
        machine.run()
    wait_for_folders(*machines)
    assert {owner_of(name) for name in names} == {machines[0].name}


class Everywhere:
    """One client of the hall. Each request goes to another gateway, as a load balancer without affinity does it."""

    def __init__(self, machines: list[Machine], token: str, path: str = "/mcp") -> None:
        self.clients = [GatewayClient(machine, token, path) for machine in machines]
        self._turns = itertools.cycle(self.clients)

    def begin(self, **capabilities: object) -> Everywhere:
        first = self.clients[-1].begin(**capabilities)
        for client in self.clients[:-1]:
            client.http.headers.update(first.http.headers)
        return self

    @property
    def next(self) -> GatewayClient:
        return next(self._turns)


@pytest.fixture
def machines(make_node: Callable[[str], Machine]) -> list[Machine]:
    nodes = [make_node(name) for name in ("first", "second", "third")]
    start(nodes, "one")
    for node in nodes:
        eventually(lambda node=node: "one__count" in tools_at(node), within=PATIENCE, what=node.output())
    return nodes


def tools_at(machine: Machine) -> list[str]:
    return GatewayClient(machine, make_token()).begin().tools()


@pytest.mark.parametrize(
    ("path", "tool"), [("/mcp", "one__count"), ("/mcp/one", "count"), ("/sets/counting/mcp", "next_number")]
)
def test_a_session_counts_to_one_hundred_through_three_gateways_in_turn(
    machines: list[Machine], path: str, tool: str
) -> None:
    create_tool_set(Values("counting", entries=[Entry("one", "count", "next_number")]), OPERATOR, None)
    agent = Everywhere(machines, make_token(), path).begin()
    assert [agent.next.text(tool) for _ in range(100)] == [str(number) for number in range(1, 101)]
    other = Everywhere(machines, make_token(), path).begin()
    assert other.next.text(tool) == "1"
    eventually(lambda: Call.objects.filter(tool_name="count", status="succeeded").count() == 101, within=PATIENCE)
    assert Call.objects.count() == 101  # each is written once


def test_a_token_for_a_tool_set_is_for_this_set_alone_at_every_gateway(machines: list[Machine]) -> None:
    counting = create_tool_set(Values("counting", entries=[Entry("one", "count", "next_number")]), OPERATOR, None)
    create_tool_set(Values("other", entries=[Entry("one")]), OPERATOR, None)
    token = make_token(scope=Token.Scope.TOOLS, tool_set=counting)
    agent = Everywhere(machines, token, "/sets/counting/mcp").begin()
    assert [agent.next.text("next_number") for _ in range(3)] == ["1", "2", "3"]
    for client in Everywhere(machines, token).begin().clients:
        assert client.tools() == ["one__count"]
        assert "error" in client.call("one__ask")
    for machine in machines:
        assert GatewayClient(machine, token, "/sets/other/mcp").send("ping").status_code == 404
    eventually(lambda: Call.objects.filter(status="succeeded").count() == 3, within=PATIENCE)
    assert set(Call.objects.filter(status="succeeded").values_list("tool_set", flat=True)) == {"counting"}


def test_modern_clients_and_batches_reach_members_of_other_nodes(machines: list[Machine]) -> None:
    modern = Everywhere(machines, make_token())
    counts = [modern.next.modern("tools/call", name="one__count", arguments={}) for _ in range(6)]
    texts = [response.json()["result"]["content"][0]["text"] for response in counts]
    assert texts == ["1", "2", "3", "4", "5", "6"]
    batching = Everywhere(machines, make_token()).begin(version="2025-03-26")
    params = {"name": "one__count", "arguments": {}}
    batch = [{"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params} for number in (1, 2)]
    answers = messages_of(batching.clients[1].post(batch))
    assert sorted(answer["result"]["content"][0]["text"] for answer in answers) == ["1", "2"]
    plain = batching.clients[2].post(batch[0], Accept="application/json")
    assert plain.headers["content-type"] == "application/json"
    assert plain.json()["result"]["content"][0]["text"] == "3"


def test_a_question_is_asked_and_answered_through_any_gateway(machines: list[Machine]) -> None:
    agent = Everywhere(machines, make_token()).begin(elicitation={})
    for asked_at, answered_at in itertools.permutations(agent.clients, 2):
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "one__ask", "arguments": {}}}
        with asked_at.stream(call) as stream:
            question = stream.until("elicitation/create")
            answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
            assert answered_at.post(answer).status_code == 202
            assert stream.next()["result"]["content"][0]["text"] == '{"action": "decline"}'


def test_progress_comes_through_and_any_gateway_cancels(machines: list[Machine]) -> None:
    agent = Everywhere(machines, make_token()).begin()
    params = {"name": "one__wait", "arguments": {}, "_meta": {"progressToken": 5}}
    with agent.clients[1].stream({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}) as stream:
        assert stream.until("notifications/progress")["params"]["progressToken"] == 5
        assert agent.clients[2].notify("notifications/cancelled", requestId=9).status_code == 202
        cancelled = machines[0].members_dir / "one" / "cancelled"
        eventually(cancelled.exists, within=PATIENCE, what="the member gets the cancellation")


def test_a_client_that_goes_away_at_one_node_cancels_the_call_at_another(machines: list[Machine]) -> None:
    agent = Everywhere(machines, make_token()).begin()
    params = {"name": "one__wait", "arguments": {}, "_meta": {"progressToken": 5}}
    with agent.clients[1].stream({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}) as stream:
        stream.until("notifications/progress")
    eventually((machines[0].members_dir / "one" / "cancelled").exists, within=PATIENCE)
    eventually(lambda: Call.objects.filter(status="cancelled").count() == 1, within=PATIENCE)


def test_log_levels_subscriptions_and_notifications_cross_nodes(machines: list[Machine]) -> None:
    agent = Everywhere(machines, make_token(), "/mcp/one").begin()
    listening, subscribing, counting = agent.clients[1], agent.clients[2], agent.clients[0]
    with listening.listen() as stream:
        assert "result" in subscribing.ask("resources/subscribe", uri="counter://value")
        eventually(lambda: counting.text("count") and stream.all_messages, within=PATIENCE, what="a notification")
        assert stream.until("notifications/resources/updated")["params"]["uri"] == "counter://value"
    assert "result" in subscribing.ask("logging/setLevel", level="error")
    eventually(lambda: listening.text("levels") == "error", within=PATIENCE)


def test_a_modern_client_hears_of_resources_of_members_on_other_nodes(machines: list[Machine]) -> None:
    client = GatewayClient(machines[1], make_token(), "/mcp/one")
    wanted = {"notifications": {"resourceSubscriptions": ["counter://value"]}}
    message, headers = client.modern_message("subscriptions/listen", **wanted)
    with client.stream(message, **headers) as stream:
        stream.until("notifications/subscriptions/acknowledged")
        # A slow member may get the subscription after the acknowledgement.
        updated = "notifications/resources/updated"
        eventually(
            lambda: client.modern("tools/call", name="count", arguments={}) and updated in methods_on(stream),
            within=PATIENCE,
        )
        update = stream.until(updated)
        meta = update["params"].pop("_meta")
        assert update["params"] == {"uri": "counter://value"}
        assert list(meta.values()) == [message["id"]]
        assert methods_on(stream).count("notifications/subscriptions/acknowledged") == 1


def methods_on(stream: MessageStream) -> list[str]:
    return [message["method"] for message in stream.all_messages]


def test_prompts_and_resources_are_listed_and_read_at_every_gateway(machines: list[Machine]) -> None:
    agent = Everywhere(machines, make_token()).begin()
    for client in agent.clients:
        listed = eventually(lambda client=client: client.ask("prompts/list")["result"]["prompts"], within=PATIENCE)
        assert [prompt["name"] for prompt in listed] == ["one__hint"]
        assert client.ask("prompts/get", name="one__hint")["result"]["messages"][0]["content"]["text"]
        uri = client.ask("resources/list")["result"]["resources"][0]["uri"]
        contents = client.ask("resources/read", uri=uri)["result"]["contents"]
        assert contents == [{"uri": "guild://one/counter://value", "text": "0"}]


def test_the_limit_of_a_token_counts_the_calls_at_all_gateways_together(machines: list[Machine]) -> None:
    limit = 120
    for machine in machines:  # each gateway knows the others
        eventually(lambda row=machine: "one__count" in tools_at(row), within=PATIENCE)
    agent = Everywhere(machines, make_token(calls_per_minute=limit))
    watch = Stopwatch()
    statuses = [agent.next.modern("tools/call", name="one__count", arguments={}).status_code for _ in range(2 * limit)]
    refilled = watch.elapsed * limit / 60 + 1
    assert set(statuses) == {200, 429}
    assert limit * 0.9 <= statuses.count(200) <= limit + refilled


def test_all_gateways_together_run_no_more_concurrent_calls_than_the_token_may(machines: list[Machine]) -> None:
    agent = Everywhere(machines, make_token(max_in_flight=2)).begin()
    for machine, client in zip(machines, agent.clients, strict=True):  # each gateway knows the others
        shares = TokenShare.objects.filter(lease_id=machine.row.lease_id)
        eventually(lambda client=client, shares=shares: client.text("one__count") and shares.exists(), within=PATIENCE)
    params = {"name": "one__wait", "arguments": {}, "_meta": {"progressToken": 5}}
    message = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}
    with agent.clients[0].stream(message) as first, agent.clients[1].stream({**message, "id": 10}) as second:
        for stream in (first, second):
            stream.until("notifications/progress")
        refused = agent.clients[2].send("tools/call", name="one__count", arguments={})
        assert refused.status_code == 429
        assert "Too many concurrent calls (limit 2)" in refused.text
        first.close()
        eventually(lambda: agent.clients[2].send("tools/call", name="one__count", arguments={}).ok, within=PATIENCE)


def test_an_ended_session_is_over_at_every_node(machines: list[Machine]) -> None:
    agent = Everywhere(machines, make_token()).begin()
    assert agent.next.text("one__count") == "1"
    assert agent.clients[1].http.delete(agent.clients[1].url, timeout=10).status_code == 204
    for client in agent.clients:  # a node that has just started is told by the rows, a second later
        eventually(lambda client=client: client.send("tools/list").status_code == 404, within=PATIENCE)


def test_calls_wait_for_a_member_whose_node_was_killed_and_run_on_the_next_one(machines: list[Machine]) -> None:
    first, _, third = machines
    eventually(lambda: first.row.fence_is_on, within=PATIENCE)
    agent = GatewayClient(third, make_token()).begin()
    assert agent.text("one__count") == "1"
    first.kill()
    # The first request after the kill may still go into the connection that just broke.
    answers = [agent.call("one__count") for _ in range(2)]
    assert next(answer["result"]["content"][0]["text"] for answer in answers if "result" in answer) == "1"
    assert all("node 'first'" in answer["error"]["message"] for answer in answers if "error" in answer)
    assert owner_of("one") in ("second", "third")


def test_a_call_that_a_killed_node_was_running_ends_with_an_error_and_a_row(machines: list[Machine]) -> None:
    first, second, _ = machines
    eventually(lambda: first.row.fence_is_on, within=PATIENCE)
    agent = GatewayClient(second, make_token()).begin()
    params = {"name": "one__wait", "arguments": {}, "_meta": {"progressToken": 5}}
    with agent.stream({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}) as stream:
        stream.until("notifications/progress")
        first.kill()
        eventually(lambda: "error" in stream.all_messages[-1], within=PATIENCE)
        error = stream.all_messages[-1]["error"]
    assert "node 'first'" in error["message"]
    assert error["data"]["member"] == "one"
    eventually(lambda: Call.objects.filter(tool_name="wait", status="failed").count() == 1, within=PATIENCE)


def test_members_move_while_agents_call_them_and_no_call_fails(machines: list[Machine]) -> None:
    agent = GatewayClient(machines[2], make_token()).begin()
    for target in ("second", "third", "first"):
        assert machines[0].manage("move_member", "one", target).returncode == 0
        moves = GuildMember.objects.filter(name="one", node__name=target, status="connected")
        for _ in range(1000):
            assert int(agent.text("one__count")) > 0
            if moves.exists():
                break
        assert moves.exists()


def test_clients_of_other_authors_use_a_member_of_another_node_while_it_moves(
    make_node: Callable[[str], Machine],
) -> None:
    first, second, third = nodes = [make_node(name) for name in ("first", "second", "third")]
    for machine in nodes:
        machine.add("real", **python("python_sdk.py"), node=MOVABLE)
        machine.run()
    wait_for_folders(*nodes)
    wait_for_roster(third, "real")
    token = make_token()

    def move(target: Machine) -> None:
        assert first.manage("move_member", "real", target.name).returncode == 0
        eventually(
            GuildMember.objects.filter(name="real", node__name=target.name, status="connected").exists, within=PATIENCE
        )
        connections.close_all()

    async def use_clients() -> None:
        async with all_clients(f"http://127.0.0.1:{third.gateway_port}", token, "real") as clients:
            for target in (None, second, third):
                if target is not None:
                    await asyncio.to_thread(move, target)
                await asyncio.gather(*(use_python_server(name, *client) for name, client in clients.items()))

    asyncio.run(asyncio.wait_for(use_clients(), 90))


def port_is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_log_of_a_member_is_read_from_any_machine(machines: list[Machine]) -> None:
    first, second, _ = machines
    second.popen([sys.executable, "-m", "guildhall.web"])
    eventually(lambda: port_is_open(second.web_port), within=PATIENCE, what=second.output())
    read = second.manage("logs", "one")
    assert read.returncode == 0, read.stderr
    assert read.stdout.splitlines()[-1].endswith(" the counter is ready")
    headers = {"Authorization": f"Bearer {make_token()}"}
    answer = requests.get(f"{second.url}/api/members/one/logs/?lines=1", headers=headers, timeout=10).json()
    assert answer["note"] == ""
    assert [line.rpartition(" the ")[2] for line in answer["lines"]] == ["counter is ready"]
    following = second.popen([sys.executable, "manage.py", "logs", "one", "-f"])
    eventually(lambda: "the counter is ready" in second.output(), within=PATIENCE)
    GatewayClient(second, make_token()).begin().text("one__say", line="hello from afar")
    eventually(lambda: "hello from afar" in second.output(), within=PATIENCE)
    following.terminate()
    unsealed = requests.get(f"http://127.0.0.1:{first.node_port}/logs/one?lines=1", headers=headers, timeout=10)
    assert unsealed.status_code == 421
    first.kill()
    refused = second.manage("logs", "one")
    assert refused.returncode == 8
    assert "The log of 'one' is on node 'first', which does not send it" in refused.stderr


def test_a_node_refuses_what_is_not_sealed_by_a_node_of_this_hall(machines: list[Machine]) -> None:
    url = f"http://127.0.0.1:{machines[0].node_port}/mcp"
    token = {"Authorization": f"Bearer {make_token()}"}
    for seal in ("", "x", f"{machines[1].row.lease_id.hex}.1.{'0' * 64}"):
        headers = {**token, "Content-Type": "application/json", **({"Guild-Hall-Seal": seal} if seal else {})}
        response = requests.post(url, data=b"{}", headers=headers, timeout=10)
        assert response.status_code == 421
        assert response.json()["error"]["message"]
    assert psutil.pid_exists(machines[0].worker_pid)
