from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from mcp_runtime.control import edits
from roster.models import Agent, AgentMessage, GuildMember, ManifestEdit, Secret, VersionLookUp
from tests.support.admin import allow, html, messages_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("runtime")]

LIST = "/admin/roster/guildmember/"
MANIFEST: dict[str, Any] = {
    **{"name": "notes", "version": "1", "transport": "stdio", "command": "serve", "args": ["a"]},
    **{"env": {"API_KEY": "canary-4711", "REGION": "eu"}, "timeout": 45.0, "max_concurrency": 16},
}


@pytest.fixture
def notes() -> GuildMember:
    return GuildMember.objects.create(name="notes", directory="team/notes", manifest=MANIFEST)


def fields_of(page: Client, member: GuildMember) -> dict[str, str]:
    """What a browser sends if nobody changes anything in the form."""
    form = page.get(f"{LIST}{member.pk}/edit/").context["form"]
    texts = {name: form[name].value() for name in form.fields if name != "force"}
    return {**texts, **{f"initial-{name}": text for name, text in texts.items()}}


def propose(page: Client, member: GuildMember, **changes: str) -> Any:
    names = {name.replace("__", "."): text for name, text in changes.items()}
    return page.post(f"{LIST}{member.pk}/edit/", {**fields_of(page, member), **names}, follow=True)


def test_an_edit_is_proposed_approved_and_taken_back(page: Client, alice: User, notes: GuildMember) -> None:
    assert f"{LIST}{notes.pk}/edit/" in html(page.get(f"{LIST}{notes.pk}/change/"))
    answer = propose(page, notes, timeout="60", args="a\r\nb", env="API_KEY=********\r\nREGION=us\r\nTOKEN=canary-4712")
    edit = ManifestEdit.objects.get()
    assert edit.created_by == alice
    assert {change["key"]: change["after"] for change in answer.context["edits"][0]["changes"]} == {
        **{"timeout": 60, "args": ["a", "b"], "env.REGION": "us", "env.TOKEN": "${secret:notes-TOKEN}"},
    }
    assert Secret.objects.get().name == "notes-TOKEN"
    text = html(answer)
    assert "canary" not in text
    assert "The member restarts when you approve this." in text
    verbs = f"{LIST}{notes.pk}/edits/"
    answer = page.post(f"{verbs}approve/?edit={edit.pk}", follow=True)
    assert f"Edit {edit.pk} is approved" in " ".join(messages_of(answer))
    assert "has not changed the file yet" in html(answer)
    ManifestEdit.objects.update(nodes={"main": ""})
    env = {**MANIFEST["env"], "REGION": "us", "TOKEN": "${secret:notes-TOKEN}"}
    GuildMember.objects.update(manifest={**MANIFEST, "timeout": 60.0, "args": ["a", "b"], "env": env})
    answer = page.post(f"{verbs}undo/?edit={edit.pk}", follow=True)
    back = ManifestEdit.objects.latest("pk")
    assert f"Edit {back.pk} takes back edit {edit.pk}" in html(answer)
    page.post(f"{verbs}discard/?edit={back.pk}")
    assert ManifestEdit.objects.count() == 1


def test_a_form_without_a_change_proposes_nothing(page: Client, notes: GuildMember) -> None:
    assert "Nothing is changed yet" in html(propose(page, notes))
    assert ManifestEdit.objects.count() == 0


def test_each_fault_stands_at_its_field(page: Client, notes: GuildMember) -> None:
    changes = {"timeout": "soon", "limits__memory_mb": "0", "env": "BAD-NAME=x\nREGION=eu", "version": ""}
    form = propose(page, notes, **changes).context["form"]
    assert set(form.errors) == {"timeout", "limits.memory_mb", "env", "version"}
    assert form.errors["env"] == ["BAD-NAME: is not a name for an environment variable"]
    assert form.fields["version"].widget.attrs["autofocus"]
    answer = propose(page, notes, env="REGION=********\nAPI_KEY=********")
    assert "REGION has no hidden value that could stay" in html(answer)


def test_a_value_that_somebody_else_changed_meanwhile_is_not_changed_back(page: Client, notes: GuildMember) -> None:
    sent = fields_of(page, notes)
    GuildMember.objects.update(manifest={**MANIFEST, "timeout": 99.0})
    page.post(f"{LIST}{notes.pk}/edit/", {**sent, "restart": "never"})
    assert [change["path"] for change in ManifestEdit.objects.get().changes] == [["restart"]]


def test_a_remote_member_has_other_fields(page: Client) -> None:
    manifest = {"name": "far", "version": "1", "transport": "http", "url": "https://example.com/mcp"}
    far = GuildMember.objects.create(name="far", directory="far", manifest=manifest, server_url=manifest["url"])
    fields = page.get(f"{LIST}{far.pk}/edit/").context["form"].fields
    assert {"url", "headers"} <= set(fields)
    assert not {"command", "args", "env", "sandbox", "limits.memory_mb"} & set(fields)


def test_a_faulty_file_is_repaired_only_if_the_user_says_that_values_are_replaced(page: Client) -> None:
    fault = "bad/guild-member.json: timeout: must be seconds"
    bad = GuildMember.objects.create(
        name="bad", directory="bad", manifest=MANIFEST, manifest_error=fault, manifest_error_key="timeout"
    )
    card = html(page.get("/admin/"))
    assert f"{LIST}{bad.pk}/edit/?key=timeout" in card
    assert page.get(f"{LIST}{bad.pk}/edit/?key=timeout").context["form"].fields["timeout"].widget.attrs["autofocus"]
    assert "your values replace what it has" in html(propose(page, bad, timeout="60"))
    propose(page, bad, timeout="60", force="on")
    assert ManifestEdit.objects.get().is_forced


def test_the_newest_version_of_a_package_is_looked_up_and_proposed(page: Client) -> None:
    manifest = {**MANIFEST, "name": "pocket", "version": "1.0.0", "command": "npx", "args": ["-y", "pocket-mcp@1.0.0"]}
    pocket = GuildMember.objects.create(name="pocket", directory="pocket", manifest=manifest)
    address = f"{LIST}{pocket.pk}/edits/"
    assert "Look for the newest version" in html(page.get(address))
    assert "Looking for the newest version…" in html(page.post(f"{address}look-up/", follow=True))
    VersionLookUp.objects.update(answered_at=timezone.now(), version="1.1.0<b>")
    text = html(page.get(address))
    assert "Propose version 1.1.0&lt;b&gt;" in text
    assert "cannot be replaced" in " ".join(messages_of(page.post(f"{address}newest/", follow=True)))
    VersionLookUp.objects.update(version="1.1.0")
    answer = page.post(f"{address}newest/", follow=True)
    changes = {change["key"]: change["after"] for change in answer.context["edits"][0]["changes"]}
    assert changes == {"args": ["-y", "pocket-mcp@1.1.0"], "version": "1.1.0"}
    VersionLookUp.objects.update(version="1.0.0")
    assert "This is the newest version." in html(page.get(address))
    VersionLookUp.objects.update(version="", fault="npm is missing")
    assert "could not be found out: npm is missing" in html(page.get(address))


def test_a_member_without_a_package_has_no_version_to_look_up(page: Client, notes: GuildMember) -> None:
    assert "newest version" not in html(page.get(f"{LIST}{notes.pk}/edits/"))
    answer = page.post(f"{LIST}{notes.pk}/edits/look-up/", follow=True)
    assert "runs no package" in " ".join(messages_of(answer))


def test_a_refusal_is_told(page: Client, notes: GuildMember) -> None:
    edit = edits.propose_edit(notes, {"timeout": 60}, None)
    GuildMember.objects.update(manifest={**MANIFEST, "timeout": 50.0})
    answer = page.post(f"{LIST}{notes.pk}/edits/approve/?edit={edit.pk}", follow=True)
    assert "edit it again" in " ".join(messages_of(answer))
    assert page.post(f"{LIST}{notes.pk}/edits/nothing/?edit={edit.pk}").status_code == 404
    assert page.get(f"{LIST}{notes.pk}/edits/approve/?edit={edit.pk}").status_code == 404


@pytest.mark.parametrize("number", ["", "x", "7", "9" * 30])
def test_a_number_that_no_edit_has_changes_nothing(page: Client, notes: GuildMember, number: str) -> None:
    answer = page.post(f"{LIST}{notes.pk}/edits/approve/?edit={number}", follow=True)
    assert "there is no edit" in " ".join(messages_of(answer))


def test_faults_and_texts_of_others_are_escaped(page: Client, notes: GuildMember) -> None:
    edit = edits.propose_edit(notes, {"args": ["<script>x"]}, None)
    ManifestEdit.objects.filter(pk=edit.pk).update(nodes={"main": "<b>no room"})
    text = html(page.get(f"{LIST}{notes.pk}/edits/"))
    assert "On node main: &lt;b&gt;no room." in text
    assert "<script>x" not in text


def test_an_edit_of_another_member_has_no_button_here(page: Client, notes: GuildMember) -> None:
    other = GuildMember.objects.create(name="other", directory="other", manifest={**MANIFEST, "name": "other"})
    edit = edits.propose_edit(other, {"timeout": 60}, None)
    assert page.post(f"{LIST}{notes.pk}/edits/approve/?edit={edit.pk}").status_code == 404


def test_what_an_agent_uses_is_restarted_only_by_force(page: Client, alice: User, notes: GuildMember) -> None:
    agent = Agent.objects.create(name="anna", created_by=alice)
    agent.members.add(notes)
    AgentMessage.objects.create(agent=agent, prompt="hi", timeout=60, source="admin", requester="alice")
    edit = edits.propose_edit(notes, {"command": "other"}, None)
    answer = page.post(f"{LIST}{notes.pk}/edits/approve/?edit={edit.pk}", follow=True)
    assert "Stop the agent first, or force it" in " ".join(messages_of(answer))
    address = f"{LIST}{notes.pk}/edits/approve/?edit={edit.pk}&amp;force=1"
    assert address in html(answer)
    page.post(address.replace("&amp;", "&"))
    assert ManifestEdit.objects.get().state == "approved"


def test_texts_with_line_breaks_and_lists_that_are_empty_survive_the_form(page: Client) -> None:
    manifest = {**MANIFEST, "name": "odd", "display_name": "a\nb", "node": {"labels": [], "state": None, "files": []}}
    odd = GuildMember.objects.create(name="odd", directory="odd", manifest=manifest)
    form = page.get(f"{LIST}{odd.pk}/edit/").context["form"]
    assert "<textarea" in str(form["displayName"])
    assert form["node.files"].value() == "[]"
    propose(page, odd, node__files="")
    (change,) = ManifestEdit.objects.get().changes
    assert change == {"path": ["node", "files"], "before": [], "after": None}


def test_a_member_whose_folder_is_gone_is_not_edited(page: Client, notes: GuildMember) -> None:
    GuildMember.objects.update(removed_at=notes.status_changed_at)
    assert page.get(f"{LIST}{notes.pk}/edit/").status_code == 404


def test_others_see_neither_the_links_nor_the_pages(client: Client, notes: GuildMember) -> None:
    bob = User.objects.create_user("bob", is_staff=True)
    allow(bob, "view_guildmember", "control_member")
    client.force_login(bob)
    for path in ("edit/", "edits/", "edits/list/"):
        assert client.get(f"{LIST}{notes.pk}/{path}").status_code == 403
    assert client.post(f"{LIST}{notes.pk}/edits/approve/?edit=1").status_code == 403
    assert "/edit/" not in html(client.get(f"{LIST}{notes.pk}/change/"))


def test_the_card_and_the_page_say_that_an_edit_waits_and_lead_to_it(page: Client, notes: GuildMember) -> None:
    for count, words in ((1, "1 proposed edit of notes</a> waits for an approval."), (2, "</a> wait for an approval.")):
        propose(page, notes, timeout=str(60 + count))
        for address in ("/admin/", f"{LIST}{notes.pk}/change/", f"{LIST}{notes.pk}/parts/head/"):
            text = html(page.get(address))
            assert f'<a href="{LIST}{notes.pk}/edits/">{count} proposed edit' in text, address
            assert words in text, address
    for edit in ManifestEdit.objects.all():
        page.post(f"{LIST}{notes.pk}/edits/discard/?edit={edit.pk}")
    assert "for an approval." not in html(page.get("/admin/"))


def test_who_may_not_approve_edits_does_not_see_that_they_wait(
    client: Client, page: Client, bob: User, notes: GuildMember
) -> None:
    propose(page, notes, timeout="61")
    allow(bob, "view_guildmember", "control_member")
    client.force_login(bob)
    for address in ("/admin/", f"{LIST}{notes.pk}/change/"):
        assert "proposed edit" not in html(client.get(address)), address
