"""Empty lists say what to do next."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from roster.models import GuildMember, Invitation, Node, PortAllocation
from tests.support.admin import html, list_of

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("model", "step"),
    [
        *(("agent", ">New agent</a>"), ("token", ">Add a token</a>"), ("toolset", ">Add a tool set</a>")),
        *(("secret", ">Add a secret</a>"), ("invitation", ">Invite a person</a>")),
        *(("statuschange", ">go to the roster</a>"), ("portallocation", ">go to the roster</a>")),
        *(("node", "<code>guildhall runtime</code>"), ("tool", ">Go to the roster</a>")),
        *(("call", ">Choose a tool to call</a>"), ("guildmember", 'There are no members yet. <a href="')),
    ],
)
def test_an_empty_list_has_a_next_step(page: Client, model: str, step: str) -> None:
    for rows in (PortAllocation, GuildMember, Invitation, Node):
        rows.objects.all().delete()

    assert step in html(page.get(list_of(model)))


def test_each_link_of_an_empty_list_leads_somewhere(page: Client) -> None:
    for model in ("token", "agent", "secret", "invitation", "guildmember"):
        text = re.search(r'class="no-matches">(.*?)</p>', html(page.get(list_of(model))), re.DOTALL)
        assert text is not None
        address = re.search(r'href="([^"]*)"', text[1])
        assert address is not None
        assert page.get(address[1]).status_code == 200


def test_the_empty_roster_has_a_command_and_a_path_to_copy(page: Client) -> None:
    text = html(page.get(reverse("admin:index")))

    assert 'data-copy="new-member-command"' in text
    assert 'data-copy="docs-path"' in text
