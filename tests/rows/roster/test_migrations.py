"""Rows from before a migration are right after it."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.db import connection

from roster.models import AgentMessage, AgentSession, ApiToken, Call

pytestmark = pytest.mark.django_db


def test_an_old_session_belongs_to_the_token_that_alone_spoke_in_it() -> None:
    bob = User.objects.create_user("bob")
    narrow, other = (ApiToken.make(user=bob, name=name)[0] for name in ("narrow", "other"))
    asked_with = {
        "own": [narrow, narrow],
        "of two": [narrow, other],
        "of a browser too": [None, narrow],
        "of a browser": [None],
        "silent": [],
    }
    for name, tokens in asked_with.items():
        session = AgentSession.objects.create(name=name, created_by=bob)
        for token in tokens:
            AgentMessage.objects.create(
                session=session,
                prompt="p",
                timeout=60,
                source=Call.Source.REST,
                requested_by=bob,
                asked_with=token,
            )
    AgentSession.objects.create(name="known", created_by=bob, made_with=other)

    import_module("roster.migrations.0003_who_made_old_sessions").fill(apps, SimpleNamespace(connection=connection))

    made_with = dict(AgentSession.objects.exclude(made_with=None).values_list("name", "made_with"))
    assert made_with == {"own": narrow.pk, "known": other.pk}


def test_who_may_see_invocations_may_see_calls() -> None:
    Permission.objects.filter(content_type__app_label="roster", codename="view_call").update(
        codename="view_invocation", name="Can view invocation"
    )
    group, bob = Group.objects.create(name="readers"), User.objects.create_user("bob")
    for permissions in (group.permissions, bob.user_permissions):
        permissions.add(Permission.objects.get(codename="view_invocation"))

    import_module("roster.migrations.0012_calls").rename_permissions(apps, SimpleNamespace(connection=connection))

    assert bob.has_perm("roster.view_call")
    assert group.permissions.get().name == "Can view call"
    assert not Permission.objects.filter(codename__contains="invocation").exists()
