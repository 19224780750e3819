"""Resources in results at the roster's own address. Each is read from the member that sent the result, or from none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcp_runtime.gateway import catalog
from mcp_runtime.gateway.catalog import Extras
from mcp_runtime.gateway.endpoints import links
from tests.conftest import eventually
from tests.support.agents import META, messages_of
from tests.support.gateway_world import ALL, MODERN, Member, World, event, result
from tests.support.scripted_server import Behaviour
from tests.support.scripted_server import Request as MemberRequest

URI = "file:///today.md"
LINK = {"type": "resource_link", "uri": URI, "name": "today"}
EMBEDDED = {"type": "resource", "resource": {"uri": URI, "text": "in the result", "x": 1.50}}


def resource_behaviours(name: str) -> dict[str, Behaviour]:
    """Behaviours of a member that has the resource, as others do, and links to it in each of its results."""
    return {
        "tools/call": lambda incoming: incoming.result({"content": [{"type": "text", "text": URI}, LINK, EMBEDDED]}),
        "prompts/list": lambda incoming: incoming.result({"prompts": [{"name": "ask"}]}),
        "prompts/get": lambda incoming: incoming.result({"messages": [{"role": "user", "content": LINK}]}),
        "resources/list": lambda incoming: incoming.result({"resources": [{"uri": URI, "name": "today"}]}),
        "resources/templates/list": lambda incoming: incoming.result(
            {"resourceTemplates": [{"uriTemplate": f"{name}://{{a}}/x/{{b}}", "name": "t"}]}
        ),
        "resources/read": lambda incoming: incoming.result(
            {"contents": [{"uri": incoming.message["params"]["uri"], "text": f"of {name}"}, {"uri": f"{name}:part"}]}
        ),
    }


@pytest.fixture
def two_members(world: World) -> tuple[Member, Member]:
    """Two members with the same URI, once the gateway knows of both."""
    world.agent()
    members = tuple(world.member(name, resource_behaviours(name), capabilities=ALL) for name in ("one", "two"))
    eventually(lambda: len(world.agent().begin().ask("resources/list")["result"]["resources"]) == 2)
    return members  # type: ignore[return-value]


def test_a_link_in_a_result_is_read_from_the_member_of_the_result(
    world: World, two_members: tuple[Member, Member]
) -> None:
    client = world.agent().begin()
    for name in ("two", "one", "two"):
        text_block, link, embedded = client.call(f"{name}__echo")["result"]["content"]
        uri = f"guild://{name}/{URI}"
        assert text_block == {"type": "text", "text": URI}
        assert link == {**LINK, "uri": uri}
        assert embedded == {"type": "resource", "resource": {**EMBEDDED["resource"], "uri": uri}}  # type: ignore[dict-item]
        contents = client.ask("resources/read", uri=uri)["result"]["contents"]
        assert contents == [{"uri": uri, "text": f"of {name}"}, {"uri": f"guild://{name}/{name}:part"}]
        (message,) = client.ask("prompts/get", name=f"{name}__ask")["result"]["messages"]
        assert message == {"role": "user", "content": {**LINK, "uri": uri}}


def test_links_have_listed_uris_in_both_eras_and_on_streams(world: World) -> None:
    def stream(incoming: MemberRequest) -> None:
        progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}
        incoming.stream(event(progress), event(result(incoming.id, resultType="complete", content=[LINK])))
        incoming.hang_up()

    for name, behaviours in {"old": {}, "new": MODERN}.items():
        world.member(name, {**behaviours, "tools/call": stream})
    eventually(lambda: len(world.agent().begin().tools()) == 2)
    for name in ("old", "new"):
        for response in (
            world.agent().begin().send("tools/call", name=f"{name}__echo", arguments={}),
            world.agent().modern("tools/call", name=f"{name}__echo", arguments={}, meta={f"{META}x": 1}),
        ):
            assert messages_of(response)[-1]["result"]["content"] == [{**LINK, "uri": f"guild://{name}/{URI}"}]


def test_a_link_that_only_a_template_covers_can_be_read(world: World, two_members: tuple[Member, Member]) -> None:
    client = world.agent().begin()
    for uri in ("two://some/where/x/else", "guild://two/two://some/where/x/else"):
        assert client.ask("resources/read", uri=uri)["result"]["contents"][0] == {"uri": uri, "text": "of two"}
    assert client.ask("resources/read", uri="three://some/x/else")["error"]["code"] == -32002


def test_an_ambiguous_uri_is_refused_and_the_error_names_the_candidates(
    world: World, two_members: tuple[Member, Member]
) -> None:
    candidates = [f"guild://one/{URI}", f"guild://two/{URI}"]
    ref = {"type": "ref/resource", "uri": URI}
    for method, params in {
        "resources/read": {"uri": URI},
        "resources/subscribe": {"uri": URI},
        "completion/complete": {"ref": ref, "argument": {"name": "a", "value": ""}},
    }.items():
        error = world.agent().begin().ask(method, **params)["error"]
        assert error["code"] == -32602
        assert error["message"] == f"several members may have '{URI}': request one of {candidates[0]}, {candidates[1]}"
        assert error["data"] == {"uri": URI, "resources": candidates}
        assert [member.messages(method) for member in two_members] == [[], []]
    narrow_client = world.agent("/mcp?members=two").begin()
    contents = narrow_client.ask("resources/read", uri=URI)["result"]["contents"]
    assert contents[0] == {"uri": URI, "text": "of two"}


def test_results_at_a_members_own_address_keep_their_uris(world: World, two_members: tuple[Member, Member]) -> None:
    client = world.agent("/mcp/one").begin()
    assert client.call("echo")["result"]["content"][1] == LINK
    assert client.ask("resources/read", uri=URI)["result"]["contents"][0]["uri"] == URI


# Plain values -----------------------------------------------------------------------------------------------------


def rewrite(values: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": values}).encode()
    rewritten_values: dict[str, Any] = json.loads(links.with_listed_uris(body, "m", {}))["result"]
    return rewritten_values


@pytest.mark.parametrize("uri", ["https://example.com/a", "HTTP://example.com", "data:,x", "ui://app", ""])
def test_a_uri_that_needs_no_server_stays_unchanged(uri: str) -> None:
    values = {"content": [{**LINK, "uri": uri}, {"type": "resource", "resource": {"uri": uri}}]}
    assert rewrite(values) == values


@pytest.mark.parametrize(
    "values",
    [
        {"content": [{"type": "resource_link"}, {"type": "resource", "resource": 5}, "resource", None, [LINK]]},
        {"content": {"type": "resource_link"}},
        {"contents": "resource"},
        {"messages": [5, {"content": "resource"}, {"content": [{"type": "text"}]}]},
        {"structuredContent": {"content": [LINK]}},
        {"content": [{**LINK, "uri": "x:" + "y" * 70_000}]},
    ],
)
def test_values_that_are_not_resources_stay_unchanged(values: dict[str, Any]) -> None:
    assert rewrite(values) == values


def test_the_bytes_around_a_resource_stay_unchanged() -> None:
    block = b'{"type":"resource","resource":{"uri":"a:b","blob":"%b"}}' % (b"A" * 100_000)
    body = b'{"jsonrpc":"2.0","id":7,"result":{"n":1.50,"content":[%b]}}' % block
    assert links.with_listed_uris(body, "m", {}) == body.replace(b"a:b", b"guild://m/a:b")


@pytest.mark.parametrize(
    ("template", "uri", "matches"),
    [
        ("x:{n}", "x:1", True),
        ("x:{n}", "x:", True),
        ("x:{n}", "y:1", False),
        ("x:{+path}/end{?a,b}", "x:1/2/end?a=1", True),
        ("x:{a}/b/{c}.md", "x:1/b/2.md", True),
        ("x:{a}/b/{c}.md", "x:1/c/2.md", False),
        ("x:{a}b/b{c}", "x:b/b", True),
        ("x:ab{a}ba", "x:aba", False),
        ("x:1", "x:12", False),  # no template
        ("{+uri}", "x:1", False),
        ("x:{", "x:1", False),
        ("x:{a}", "x:" + "1" * 3000, False),
        ("x:" + "{a}" * 20, "x:1", True),
        ("x:" + "{a}" * 21, "x:1", False),
    ],
)
def test_a_template_matches_the_uris_that_it_can_produce(template: str, uri: str, matches: bool) -> None:
    entry = catalog.entry("m", "resourceTemplates", {"uriTemplate": template, "name": "t"})
    assert entry is not None
    assert Extras(templates=(entry,)).may_have(uri) is matches
