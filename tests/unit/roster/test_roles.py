"""The table of roles, and its copy in docs/access.md."""

from __future__ import annotations

import itertools

from django.apps import apps

from roster import roles
from tests.conftest import ROOT


def test_the_documentation_has_the_table_of_the_code() -> None:
    assert f"\n{roles.as_markdown()}\n" in (ROOT / "docs" / "access.md").read_text()


def test_each_role_has_all_permissions_of_those_before_it_and_more() -> None:
    for lower, higher in itertools.pairwise(roles.NAMES):
        assert roles.permissions_of_role(lower) < roles.permissions_of_role(higher)


def test_each_permission_is_in_one_row_of_the_table() -> None:
    permissions = [right.permission for right in roles.RIGHTS]
    assert len(set(permissions)) == len(permissions)
    assert {right.first_role for right in roles.RIGHTS} == set(roles.NAMES)


def test_each_permission_that_the_hall_itself_defines_is_in_the_table() -> None:
    """A role must be able to give it. Otherwise only superusers have it."""
    models = apps.get_app_config("roster").get_models()
    own_permissions = {f"roster.{codename}" for model in models for codename, _ in model._meta.permissions}
    assert own_permissions
    assert own_permissions <= {right.permission for right in roles.RIGHTS}
