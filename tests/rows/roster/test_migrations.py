"""Rows from before a migration are correct after it."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.db import connection

from roster.models import Agent, AgentMessage, Call, Token

pytestmark = pytest.mark.django_db


def test_an_old_agent_belongs_to_the_only_token_that_sent_it_messages() -> None:
    bob = User.objects.create_user("bob")
    narrow_token, other_token = (Token.make(user=bob, name=name)[0] for name in ("narrow", "other"))
    tokens_by_agent = {
        "own": [narrow_token, narrow_token],
        "of two": [narrow_token, other_token],
        "of a browser too": [None, narrow_token],
        "of a browser": [None],
        "silent": [],
    }
    for name, tokens in tokens_by_agent.items():
        agent = Agent.objects.create(name=name, created_by=bob)
        for token in tokens:
            AgentMessage.objects.create(
                agent=agent,
                prompt="p",
                timeout=60,
                source=Call.Source.REST,
                requested_by=bob,
                asked_with=token,
            )
    Agent.objects.create(name="known", created_by=bob, made_with=other_token)

    old_apps = SimpleNamespace(get_model=lambda app, name: Agent)  # the old apps have the model under an older name
    migration = import_module("roster.migrations.0003_who_made_old_sessions")
    migration.fill(old_apps, SimpleNamespace(connection=connection))

    token_ids = dict(Agent.objects.exclude(made_with=None).values_list("name", "made_with"))
    assert token_ids == {"own": narrow_token.pk, "known": other_token.pk}


@pytest.mark.parametrize(
    ("migration", "old", "new"),
    [
        ("0012_calls", "invocation", "call"),
        ("0013_tokens", "apitoken", "token"),
        ("0014_agents", "agentsession", "agent"),
    ],
)
def test_users_and_groups_keep_their_permissions_for_a_renamed_model(migration: str, old: str, new: str) -> None:
    Permission.objects.filter(content_type__app_label="roster", codename=f"view_{new}").update(
        codename=f"view_{old}", name=f"Can view {old}"
    )
    group, bob = Group.objects.create(name="readers"), User.objects.create_user("bob")
    for permissions in (group.permissions, bob.user_permissions):
        permissions.add(Permission.objects.get(codename=f"view_{old}"))

    import_module(f"roster.migrations.{migration}").rename_permissions(apps, SimpleNamespace(connection=connection))

    assert bob.has_perm(f"roster.view_{new}")
    assert group.permissions.get().name == f"Can view {new}"
    assert not Permission.objects.filter(codename__contains=old).exists()
