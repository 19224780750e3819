"""Held tools in the admin."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from roster.models import Tool
from tests.support.admin import html, list_of, make_member, make_tool

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin_page(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("ada"))
    return client


def test_a_held_tool_is_marked_and_has_no_link_to_call_it(admin_page: Client) -> None:
    member = make_member("anna", status="connected")
    tool = make_tool(member, "echo")
    call = reverse("admin:roster_tool_call", args=[tool.pk])
    addresses = (list_of("tool"), reverse("admin:roster_guildmember_change", args=[member.pk]))
    assert all(call in html(admin_page.get(address)) for address in addresses)
    Tool.objects.update(is_held=True)
    pages = [html(admin_page.get(address)) for address in addresses]
    assert not any(call in page for page in pages)
    assert "held until somebody approves its change" in pages[1]
