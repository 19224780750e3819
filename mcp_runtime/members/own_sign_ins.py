"""Whether users have done what their calls wait for: sign in at a member, or log in to the hall again.

It reads the rows, so it does not matter which process of which node a user did it at.
"""

from __future__ import annotations

from collections.abc import Collection

from mcp_runtime.members import kept_id_tokens
from mcp_runtime.protocol.errors import OwnSignIn
from roster.models import UserSignIn


def done(awaited: Collection[OwnSignIn]) -> set[OwnSignIn]:
    """Those after which the next call has a token, and one with the scopes that the last call lacked.

    A call that fails again leaves the rows so that this is not true before a person did something.
    """
    users, members = {each.user_id for each in awaited}, {each.member_id for each in awaited}
    rows = UserSignIn.objects.filter(user_id__in=users, member_id__in=members, user__is_active=True)
    signed_in, refused = set(), set()
    columns = ("member_id", "user_id", "has_tokens", "wanted_scopes", "next_refresh_at")
    for member_id, user_id, has_tokens, wanted_scopes, next_refresh_at in rows.values_list(*columns):
        if has_tokens and not wanted_scopes:
            signed_in.add((member_id, user_id))
        if next_refresh_at is not None:
            refused.add((member_id, user_id))
    logged_in = kept_id_tokens.users_with_one({each.user_id for each in awaited if each.is_login})

    def is_done(each: OwnSignIn) -> bool:
        key = each.member_id, each.user_id
        if each.is_login:
            return each.user_id in logged_in and key not in refused  # the next login ends the refusal of the last one
        return key in signed_in

    return set(filter(is_done, awaited))
