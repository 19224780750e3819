"""Rows from before a migration are right after it."""

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
    narrow, other = (Token.make(user=bob, name=name)[0] for name in ("narrow", "other"))
    asked_with = {
        "own": [narrow, narrow],
        "of two": [narrow, other],
        "of a browser too": [None, narrow],
        "of a browser": [None],
        "silent": [],
    }
    for name, tokens in asked_with.items():
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
    Agent.objects.create(name="known", created_by=bob, made_with=other)

    before_new_names = SimpleNamespace(get_model=lambda app, name: Agent)  # it knows the model by an older name
    migration = import_module("roster.migrations.0003_who_made_old_sessions")
    migration.fill(before_new_names, SimpleNamespace(connection=connection))

    made_with = dict(Agent.objects.exclude(made_with=None).values_list("name", "made_with"))
    assert made_with == {"own": narrow.pk, "known": other.pk}


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
