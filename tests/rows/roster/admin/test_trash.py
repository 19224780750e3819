from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from roster.models import GuildMember, TrashedMember
from tests.support.admin import allow, html, messages_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("runtime")]

LIST = "/admin/roster/guildmember/"
TRASH = f"{LIST}trash/"


@pytest.fixture
def notes() -> GuildMember:
    return GuildMember.objects.create(name="notes", directory="team/notes", manifest={})


def test_a_member_is_removed_on_its_page_and_restored_from_the_trash(
    page: Client, alice: User, notes: GuildMember
) -> None:
    address = f"{LIST}{notes.pk}/remove/"
    assert address in html(page.get(f"{LIST}{notes.pk}/change/"))
    assert "team/notes" in html(page.get(address))
    assert TrashedMember.objects.count() == 0
    answer = page.post(address, follow=True)
    assert "notes is removed" in " ".join(messages_of(answer))
    row = TrashedMember.objects.get()
    assert row.removed_by == alice
    assert f'name="restore" value="{row.pk}"' in html(answer)
    answer = page.post(TRASH, {"restore": row.pk}, follow=True)
    assert "notes is restored" in " ".join(messages_of(answer))
    assert "The trash is empty" in html(answer)


def test_a_refused_removal_is_explained_on_the_page(page: Client, notes: GuildMember) -> None:
    page.post(f"{LIST}{notes.pk}/remove/")
    assert "being removed already" in html(page.post(f"{LIST}{notes.pk}/remove/"))
    assert TrashedMember.objects.count() == 1


@pytest.mark.parametrize("number", ["", "x", "7", "9" * 30])
def test_a_wrong_number_restores_nothing(page: Client, number: str) -> None:
    assert "the trash has no member" in " ".join(messages_of(page.post(TRASH, {"restore": number}, follow=True)))


def test_faults_are_shown(page: Client) -> None:
    TrashedMember.objects.create(name="notes", directory="notes", nodes={"main": "<b>no room"})
    assert "On node main: &lt;b&gt;no room." in html(page.get(TRASH))


def test_others_see_neither_the_links_nor_the_pages(client: Client, notes: GuildMember) -> None:
    bob = User.objects.create_user("bob", is_staff=True)
    allow(bob, "view_guildmember", "control_member")
    client.force_login(bob)
    assert client.get(TRASH).status_code == 403
    assert client.post(f"{LIST}{notes.pk}/remove/").status_code == 403
    assert "trash/" not in html(client.get(LIST))
    assert "/remove/" not in html(client.get(f"{LIST}{notes.pk}/change/"))
    assert TrashedMember.objects.count() == 0
