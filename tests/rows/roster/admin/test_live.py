"""Parts of pages that update automatically: the responses of the server to repeated requests."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.contrib.messages.middleware import MessageMiddleware
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.template import Context, Template
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from mcp_runtime.rows import lease
from roster.admin import live

TEMPLATE = "roster/runtime.html"


def make_request(etag: str = "", **headers: str) -> HttpRequest:
    return RequestFactory().get("/", headers={**({"If-None-Match": etag} if etag else {}), **headers})


def get_part(etag: str = "", alive: bool = False, **rest: Any) -> HttpResponse:
    return live.part(make_request(etag), TEMPLATE, lambda: {"alive": alive}, **rest)


def test_a_part_that_the_page_already_has_is_not_sent_again() -> None:
    first = get_part()
    assert b"No runtime is alive" in first.content

    second = get_part(first.headers["ETag"])

    assert second.status_code == 304
    assert not second.content
    assert second.headers["ETag"] == first.headers["ETag"]


def test_a_part_that_changed_is_sent() -> None:
    first = get_part()
    second = get_part(first.headers["ETag"], alive=True)
    assert second.status_code == 200
    assert second.headers["ETag"] != first.headers["ETag"]


def test_a_weak_etag_of_a_proxy_is_accepted() -> None:
    assert get_part(f"W/{get_part().headers['ETag']}").status_code == 304


def test_with_a_version_a_304_needs_no_context() -> None:
    def fail() -> dict[str, Any]:
        raise AssertionError("the context was read")

    tag = live.etag("version", 7)
    assert live.part(make_request(tag), TEMPLATE, fail, tag=tag).status_code == 304
    with pytest.raises(AssertionError):
        live.part(make_request(tag), TEMPLATE, fail, tag=live.etag("version", 8))


def test_the_etags_of_different_parts_are_different() -> None:
    assert live.etag("a", "bc") != live.etag("ab", "c")


@pytest.mark.parametrize("is_final", [True, False])
def test_every_response_tells_whether_to_ask_again(is_final: bool) -> None:
    first = get_part(is_final=is_final)
    second = get_part(first.headers["ETag"], is_final=is_final)
    assert [first.headers["X-Live"], second.headers["X-Live"]] == ["done" if is_final else "part"] * 2


@pytest.mark.parametrize("tag", ["ago", "until"])
def test_the_age_of_a_time_is_no_change_but_the_time_is(monkeypatch: pytest.MonkeyPatch, tag: str) -> None:
    """The browser counts on. Otherwise a page with a time would get it again each second."""
    template = Template(f"{{% load hall %}}<p>{{% {tag} moment %}}</p>")
    monkeypatch.setattr(live, "render_to_string", lambda _, context, __: template.render(Context(context)))

    def etag_of(moment: datetime) -> str:
        return live.part(make_request(), "", lambda: {"moment": moment}).headers["ETag"]

    now = timezone.now()
    first = etag_of(now)
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(minutes=5))
    assert etag_of(now) == first
    assert etag_of(now + timedelta(seconds=1)) != first


def test_a_form_in_a_part_does_not_change_its_version(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django masks the token of the form in a new way each time."""
    monkeypatch.setattr(live, "render_to_string", lambda *_: f'<input name="csrfmiddlewaretoken" value="{token()}">')
    request = RequestFactory().get("/")

    def token() -> str:
        return get_token(request)

    assert token() != token()
    first = live.part(request, "", dict)
    assert live.part(make_request(first.headers["ETag"]), "", dict).status_code == 304


def test_a_button_responds_to_a_script_with_messages_and_to_a_browser_with_a_page() -> None:
    def press(**headers: str) -> Any:
        request = RequestFactory().post("/", headers=headers)
        request.session = {}  # type: ignore[assignment]  # the messages need only this
        MessageMiddleware(lambda _: HttpResponse()).process_request(request)
        messages.warning(request, "<b>no</b>")
        return live.form_response(request, HttpResponse("page"))

    assert press(**{"X-Live": "form"}).content == b'{"messages": [{"level": "warning", "text": "<b>no</b>"}]}'
    assert press().content == b"page"


@pytest.mark.django_db
def test_the_banner_is_shown_only_without_a_runtime(client: Client) -> None:
    settings.STATIC_ROOT.mkdir(exist_ok=True)
    client.force_login(User.objects.create_user("bob", is_staff=True))
    address = reverse("admin:roster_runtime")

    response = client.get(address)
    assert "No runtime is alive" in response.content.decode()
    lease_id = lease.take()
    headers = {"If-None-Match": response.headers["ETag"]}
    assert client.get(address, headers=headers).content.strip() == b""
    lease.release(lease_id)
    assert client.get(address, headers=headers).status_code == 304
