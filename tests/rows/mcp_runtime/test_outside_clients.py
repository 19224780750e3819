"""The rows of clients that signed in at an outside issuer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from mcp_runtime.protocol.errors import ScopeError
from mcp_runtime.security import outside_clients
from mcp_runtime.security.outside_clients import OutsideToken, principal_of, target_of
from roster.models import Grant, Hall, Token, ToolSet
from tests.support import outside_issuer
from tests.support.provider import Provider

pytestmark = pytest.mark.django_db


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    Hall.objects.get_or_create(pk=1)
    with outside_issuer.serve(settings) as provider:
        yield provider


@pytest.fixture
def jane(provider: Provider) -> User:
    return outside_issuer.make_person(provider)


def outside_token(provider: Provider, **changes: Any) -> OutsideToken:
    ends_at = timezone.now() + timedelta(minutes=5)
    values = {"client_id": "inspector", "resource": "/mcp", "scopes": frozenset({"mcp"}), "ends_at": ends_at}
    return OutsideToken(issuer=provider.url, subject=provider.person["sub"], **(values | changes))


def test_a_client_that_comes_to_two_nodes_at_once_gets_one_row(
    provider: Provider, jane: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = outside_clients.new_row

    def beaten(*args: Any) -> Token:
        monkeypatch.setattr(outside_clients, "new_row", real)
        real(*args)  # of the other node, after this one has looked
        return real(*args)

    monkeypatch.setattr(outside_clients, "new_row", beaten)
    principal = principal_of(outside_token(provider))
    assert principal.token_id == Grant.objects.get().pk
    assert Token.objects.count() == 1


def test_a_tool_set_that_is_made_again_is_another_scope(provider: Provider, jane: User, settings: Any) -> None:
    settings.GUILD_HALL_SIGN_IN_SCOPES = [("mcp", "set:writing")]
    ToolSet.objects.create(name="writing")
    first = principal_of(outside_token(provider))
    ToolSet.objects.all().delete()
    ToolSet.objects.create(name="writing")
    second = principal_of(outside_token(provider))
    assert first.token_id != second.token_id
    assert (first.tool_set, second.tool_set) == ("writing", "writing")


def test_only_the_text_after_the_last_slash_of_a_scope_of_the_setting_may_stand_for_it(settings: Any) -> None:
    settings.GUILD_HALL_SIGN_IN_SCOPES = [("api://hall/mcp", "all")]
    assert [target_of({scope}) for scope in ("mcp", "api://hall/mcp")] == ["all", "all"]
    for other in ("api://other/mcp", "hall/mcp", "/mcp", "mcp/", "api://hall"):
        with pytest.raises(ScopeError):
            target_of({other})


def test_its_page_in_the_admin_names_the_issuer_and_the_client(provider: Provider, jane: User, client: Any) -> None:
    principal = principal_of(outside_token(provider))
    jane.is_staff = True
    jane.save()
    client.force_login(jane)
    for address in (
        reverse("admin:roster_token_change", args=[principal.token_id]),
        reverse("admin:roster_token_changelist"),
    ):
        text = client.get(address).content.decode()
        assert "inspector" in text
    text = client.get(reverse("admin:roster_token_change", args=[principal.token_id])).content.decode()
    assert provider.url in text
