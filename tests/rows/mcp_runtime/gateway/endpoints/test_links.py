"""Resources that results name, at the roster's own address: read from the member whose result it was, or not at all."""

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
from tests.support.scripted_server import Request as Asked

URI = "file:///today.md"
LINK = {"type": "resource_link", "uri": URI, "name": "today"}
EMBEDDED = {"type": "resource", "resource": {"uri": URI, "text": "in the result", "x": 1.50}}


def reading(name: str) -> dict[str, Behaviour]:
    """A member that has the resource, as others do, and tells of it in each of its results."""
    return {
        "tools/call": lambda asked: asked.result({"content": [{"type": "text", "text": URI}, LINK, EMBEDDED]}),
        "prompts/list": lambda asked: asked.result({"prompts": [{"name": "ask"}]}),
        "prompts/get": lambda asked: asked.result({"messages": [{"role": "user", "content": LINK}]}),
        "resources/list": lambda asked: asked.result({"resources": [{"uri": URI, "name": "today"}]}),
        "resources/templates/list": lambda asked: asked.result(
            {"resourceTemplates": [{"uriTemplate": f"{name}://{{a}}/x/{{b}}", "name": "t"}]}
        ),
        "resources/read": lambda asked: asked.result(
            {"contents": [{"uri": asked.message["params"]["uri"], "text": f"of {name}"}, {"uri": f"{name}:part"}]}
        ),
    }


@pytest.fixture
def two(world: World) -> tuple[Member, Member]:
    """Two members with the same URI, once the gateway knows of both."""
    world.agent()
    made = tuple(world.member(name, reading(name), capabilities=ALL) for name in ("one", "two"))
    eventually(lambda: len(world.agent().begin().ask("resources/list")["result"]["resources"]) == 2)
    return made  # type: ignore[return-value]


def test_a_link_of_a_result_is_read_from_the_member_whose_result_it_was(
    world: World, two: tuple[Member, Member]
) -> None:
    agent = world.agent().begin()
    for name in ("two", "one", "two"):
        said, link, embedded = agent.call(f"{name}__echo")["result"]["content"]
        uri = f"guild://{name}/{URI}"
        assert said == {"type": "text", "text": URI}
        assert link == {**LINK, "uri": uri}
        assert embedded == {"type": "resource", "resource": {**EMBEDDED["resource"], "uri": uri}}  # type: ignore[dict-item]
        read = agent.ask("resources/read", uri=uri)["result"]["contents"]
        assert read == [{"uri": uri, "text": f"of {name}"}, {"uri": f"guild://{name}/{name}:part"}]
        (message,) = agent.ask("prompts/get", name=f"{name}__ask")["result"]["messages"]
        assert message == {"role": "user", "content": {**LINK, "uri": uri}}


def test_a_link_is_read_from_its_member_in_the_other_era_and_on_a_stream_too(world: World) -> None:
    def stream(asked: Asked) -> None:
        progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}
        asked.stream(event(progress), event(result(asked.id, resultType="complete", content=[LINK])))
        asked.hang_up()

    for name, more in {"old": {}, "new": MODERN}.items():
        world.member(name, {**more, "tools/call": stream})
    eventually(lambda: len(world.agent().begin().tools()) == 2)
    for name in ("old", "new"):
        for response in (
            world.agent().begin().send("tools/call", name=f"{name}__echo", arguments={}),
            world.agent().modern("tools/call", name=f"{name}__echo", arguments={}, meta={f"{META}x": 1}),
        ):
            assert messages_of(response)[-1]["result"]["content"] == [{**LINK, "uri": f"guild://{name}/{URI}"}]


def test_a_link_that_only_a_template_covers_can_be_read(world: World, two: tuple[Member, Member]) -> None:
    agent = world.agent().begin()
    for uri in ("two://some/where/x/else", "guild://two/two://some/where/x/else"):
        assert agent.ask("resources/read", uri=uri)["result"]["contents"][0] == {"uri": uri, "text": "of two"}
    assert agent.ask("resources/read", uri="three://some/x/else")["error"]["code"] == -32002


def test_a_uri_that_several_members_may_have_is_read_from_none_and_the_error_names_theirs(
    world: World, two: tuple[Member, Member]
) -> None:
    listed = [f"guild://one/{URI}", f"guild://two/{URI}"]
    ref = {"type": "ref/resource", "uri": URI}
    for method, params in {
        "resources/read": {"uri": URI},
        "resources/subscribe": {"uri": URI},
        "completion/complete": {"ref": ref, "argument": {"name": "a", "value": ""}},
    }.items():
        error = world.agent().begin().ask(method, **params)["error"]
        assert error["code"] == -32602
        assert error["message"] == f"several members may have '{URI}': request one of {listed[0]}, {listed[1]}"
        assert error["data"] == {"uri": URI, "resources": listed}
        assert [one.messages(method) for one in two] == [[], []]
    narrowed = world.agent("/mcp?members=two").begin()
    read = narrowed.ask("resources/read", uri=URI)["result"]["contents"]
    assert read[0] == {"uri": URI, "text": "of two"}


def test_at_a_members_own_address_results_name_resources_as_the_member_does(
    world: World, two: tuple[Member, Member]
) -> None:
    agent = world.agent("/mcp/one").begin()
    assert agent.call("echo")["result"]["content"][1] == LINK
    assert agent.ask("resources/read", uri=URI)["result"]["contents"][0]["uri"] == URI


# Plain values -----------------------------------------------------------------------------------------------------


def rewritten(answer: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": answer}).encode()
    told: dict[str, Any] = json.loads(links.with_listed_uris(body, "m", {}))["result"]
    return told


@pytest.mark.parametrize("uri", ["https://example.com/a", "HTTP://example.com", "data:,x", "ui://app", ""])
def test_what_clients_get_without_a_server_keeps_its_uri(uri: str) -> None:
    answer = {"content": [{**LINK, "uri": uri}, {"type": "resource", "resource": {"uri": uri}}]}
    assert rewritten(answer) == answer


@pytest.mark.parametrize(
    "odd",
    [
        {"content": [{"type": "resource_link"}, {"type": "resource", "resource": 5}, "resource", None, [LINK]]},
        {"content": {"type": "resource_link"}},
        {"contents": "resource"},
        {"messages": [5, {"content": "resource"}, {"content": [{"type": "text"}]}]},
        {"structuredContent": {"content": [LINK]}},
        {"content": [{**LINK, "uri": "x:" + "y" * 70_000}]},
    ],
)
def test_what_is_no_resource_stays_as_it_is(odd: dict[str, Any]) -> None:
    assert rewritten(odd) == odd


def test_what_surrounds_a_resource_is_not_touched() -> None:
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
def test_a_template_matches_what_may_be_made_of_it(template: str, uri: str, matches: bool) -> None:
    listed = catalog.entry("m", "resourceTemplates", {"uriTemplate": template, "name": "t"})
    assert listed is not None
    assert Extras(templates=(listed,)).may_have(uri) is matches
