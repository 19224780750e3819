"""What the page of a member, REST and the commands say about sandboxes. The tests write the rows."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from mcp_runtime.control.sandboxes import sandbox_report
from mcp_runtime.members.manifest import parser
from mcp_runtime.rows import lease
from mcp_runtime.sandbox.capabilities import PROTECTIONS, probe
from roster.models import GuildMember, Node
from tests.support.leases import own_node

pytestmark = pytest.mark.django_db

GAPS = {"signals": "it needs Landlock 6, and this kernel has <4>"}


@pytest.fixture
def node() -> Node:
    """The node of a live runtime, on a kernel without the newest protection."""
    lease.take()
    Node.objects.update(sandbox_gaps=GAPS)
    return own_node()


def add(node: Node | None, **manifest: Any) -> GuildMember:
    document = {"name": "anna", "version": "1", "transport": "http", "command": "python3", **manifest}
    values = parser.parse(document)[0].as_json()
    return GuildMember.objects.create(name="anna", directory="anna", manifest=values, status="connected", node=node)


def text_of(member: GuildMember) -> str:
    report = sandbox_report(member)
    assert report is not None
    return report.summary


def test_a_runtime_writes_what_its_machine_cannot_enforce() -> None:
    lease.take()
    assert own_node().sandbox_gaps == probe().gaps


def test_a_machine_that_answers_late_is_noted_then(node: Node) -> None:
    assert node.lease_id is not None
    lease.note_sandbox_gaps(node.lease_id, {})
    assert own_node().sandbox_gaps == {}


def test_a_report_names_what_holds_and_what_does_not(node: Node) -> None:
    report = sandbox_report(add(node, sandbox="on"))
    assert report is not None
    assert report.mode == "on"
    assert list(report.protections) == ["files", "attributes", "ports", "sockets"]
    assert report.gaps == GAPS
    assert report.summary == "on, protects files, attributes, ports, sockets; not signals"


@pytest.mark.parametrize(
    ("gaps", "mode", "text"),
    [
        ({}, "require", "require, protects files, attributes, ports, signals, sockets"),
        (dict.fromkeys(PROTECTIONS, "no"), "on", "on, protects nothing on this machine; not files, attributes, ports"),
        (None, "on", "on; its protections are known when a runtime has started"),
        ({}, "off", "off, so it can use everything"),
    ],
)
def test_a_report_is_a_sentence_for_people(node: Node, gaps: dict[str, str] | None, mode: str, text: str) -> None:
    Node.objects.update(sandbox_gaps=gaps)
    assert text_of(add(own_node(), sandbox=mode)).startswith(text)


def test_a_member_without_a_node_or_with_an_older_manifest_has_a_report_too() -> None:
    assert text_of(add(None, sandbox="on")).startswith("on; its protections are known when")
    GuildMember.objects.all().delete()
    member = add(None)
    del member.manifest["sandbox"]
    assert text_of(member).startswith("off")


def test_a_remote_server_has_no_report(node: Node) -> None:
    member = add(node)
    member.server_url = "https://mcp.example.com/mcp"
    assert sandbox_report(member) is None


def test_the_page_of_a_member_shows_its_sandbox_and_the_reasons(client: Client, node: Node) -> None:
    client.force_login(User.objects.create_superuser("alice"))
    member = add(node, sandbox="on")
    text = client.get(reverse("admin:roster_guildmember_change", args=[member.pk])).content.decode()
    assert "on, protects files, attributes, ports, sockets; not signals" in text
    assert "signals: it needs Landlock 6, and this kernel has &lt;4&gt;" in text


def test_rest_shows_the_sandbox_only_to_those_who_may_see_the_manifest(client: Client, node: Node) -> None:
    add(node, sandbox="on", limits={"memory_mb": 100})
    client.force_login(User.objects.create_user("bob"))
    bob = client.get("/api/members/anna/").json()
    assert (bob["manifest"], bob["sandbox"]) == (None, None)
    client.force_login(User.objects.create_superuser("alice"))
    body = client.get("/api/members/anna/").json()
    assert body["sandbox"] == {
        "mode": "on",
        "protections": {name: text for name, text in PROTECTIONS.items() if name != "signals"},
        "gaps": GAPS,
    }
    assert (body["manifest"]["sandbox"], body["manifest"]["limits"]["memory_mb"]) == ("on", 100)
    (listed,) = client.get("/api/nodes/").json()["nodes"]
    assert listed["sandbox_gaps"] == GAPS


def test_the_command_and_the_page_of_nodes_name_what_a_machine_lacks(client: Client, node: Node) -> None:
    output = StringIO()
    call_command("nodes", stdout=output)
    assert "Sandboxes on node main lack the protection of signals: it needs Landlock 6" in output.getvalue()
    output = StringIO()
    call_command("nodes", "--json", stdout=output)
    assert json.loads(output.getvalue())[0]["sandbox_gaps"] == GAPS
    client.force_login(User.objects.create_superuser("alice"))
    page = reverse("admin:roster_node_change", args=[node.pk])
    assert "no protection of signals: it needs Landlock 6" in client.get(page).content.decode()
    Node.objects.update(sandbox_gaps={})
    assert "all protections" in client.get(page).content.decode()
