"""Parts of pages that stay true by themselves: what the server answers to those who ask again and again."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.contrib.messages.middleware import MessageMiddleware
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.test import Client, RequestFactory
from django.urls import reverse

from mcp_runtime.rows import lease
from roster.admin import live

TEMPLATE = "roster/runtime.html"


def ask(held: str = "", **headers: str) -> HttpRequest:
    return RequestFactory().get("/", headers={**({"If-None-Match": held} if held else {}), **headers})


def answer(held: str = "", alive: bool = False, **rest: Any) -> HttpResponse:
    return live.part(ask(held), TEMPLATE, lambda: {"alive": alive}, **rest)


def test_a_part_that_the_page_has_already_is_not_sent_again() -> None:
    first = answer()
    assert b"No runtime is alive" in first.content

    again = answer(first.headers["ETag"])

    assert again.status_code == 304
    assert not again.content
    assert again.headers["ETag"] == first.headers["ETag"]


def test_a_part_that_changed_is_sent() -> None:
    first = answer()
    changed = answer(first.headers["ETag"], alive=True)
    assert changed.status_code == 200
    assert changed.headers["ETag"] != first.headers["ETag"]


def test_a_tag_that_a_proxy_made_weak_still_counts() -> None:
    assert answer(f"W/{answer().headers['ETag']}").status_code == 304


def test_with_a_version_nothing_is_looked_up_for_a_304() -> None:
    def look_up() -> dict[str, Any]:
        raise AssertionError("it was looked up")

    tag = live.etag("version", 7)
    assert live.part(ask(tag), TEMPLATE, look_up, tag=tag).status_code == 304
    with pytest.raises(AssertionError):
        live.part(ask(tag), TEMPLATE, look_up, tag=live.etag("version", 8))


def test_versions_of_different_parts_do_not_run_together() -> None:
    assert live.etag("a", "bc") != live.etag("ab", "c")


@pytest.mark.parametrize("done", [True, False])
def test_every_answer_says_whether_to_go_on_asking(done: bool) -> None:
    first = answer(is_final=done)
    again = answer(first.headers["ETag"], is_final=done)
    assert [first.headers["X-Live"], again.headers["X-Live"]] == ["done" if done else "part"] * 2


def test_a_form_in_a_part_does_not_make_it_new_each_time(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its token is masked anew whenever it is written."""
    monkeypatch.setattr(live, "render_to_string", lambda *_: f'<input name="csrfmiddlewaretoken" value="{token()}">')
    request = RequestFactory().get("/")

    def token() -> str:
        return get_token(request)

    assert token() != token()
    first = live.part(request, "", dict)
    assert live.part(ask(first.headers["ETag"]), "", dict).status_code == 304


def test_a_button_answers_a_script_with_its_messages_and_a_browser_with_a_page() -> None:
    def pressed(**headers: str) -> Any:
        request = RequestFactory().post("/", headers=headers)
        request.session = {}  # type: ignore[assignment]  # all that the messages want of one
        MessageMiddleware(lambda _: HttpResponse()).process_request(request)
        messages.warning(request, "<b>no</b>")
        return live.form_response(request, HttpResponse("page"))

    assert pressed(**{"X-Live": "form"}).content == b'{"messages": [{"level": "warning", "text": "<b>no</b>"}]}'
    assert pressed().content == b"page"


@pytest.mark.django_db
def test_the_banner_comes_and_goes_with_the_runtime(client: Client) -> None:
    settings.STATIC_ROOT.mkdir(exist_ok=True)
    client.force_login(User.objects.create_user("bob", is_staff=True))
    address = reverse("admin:roster_runtime")

    without = client.get(address)
    assert "No runtime is alive" in without.content.decode()
    lease_id = lease.take()
    held = {"If-None-Match": without.headers["ETag"]}
    assert client.get(address, headers=held).content.strip() == b""
    lease.release(lease_id)
    assert client.get(address, headers=held).status_code == 304
