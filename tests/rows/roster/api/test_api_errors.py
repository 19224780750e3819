from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from mcp_runtime.protocol import errors
from mcp_runtime.protocol.errors import InvalidArgumentsError, McpRuntimeError, RequestRefusedError
from roster.api import permissions
from roster.api.errors import ANSWERS, answer_to, exception_handler
from roster.models import GuildMember
from tests.support.api import METHODS, api_addresses


def subclasses(cls: type[Any]) -> set[type[Any]]:
    return {cls, *(descendant for subclass in cls.__subclasses__() for descendant in subclasses(subclass))}


def test_every_refusal_has_its_own_status() -> None:
    of_logins = subclasses(errors.ProviderError)  # people see them on a page, and REST never has them
    assert subclasses(RequestRefusedError) - of_logins <= set(ANSWERS)


def test_every_refusal_has_its_own_code() -> None:
    codes = [code for _, code in ANSWERS.values()]
    assert len(codes) == len(set(codes))


def test_every_error_of_the_hall_has_a_response() -> None:
    for cls in subclasses(McpRuntimeError):
        http_status, code = answer_to(cls.__new__(cls))
        assert 400 <= http_status < 600
        assert code


def test_errors_that_are_no_refusals_are_503() -> None:
    assert answer_to(errors.NoFreePortError(20000, 20001))[0] == 503


def test_refused_arguments_have_a_path_and_a_reason() -> None:
    response = exception_handler(InvalidArgumentsError("arguments of 'echo': no", "items.0", "no"), {})
    assert response is not None
    assert response.status_code == 400
    assert response.data == {
        "title": "Bad Request",
        "status": 400,
        "detail": "arguments of 'echo': no",
        "code": "invalid_arguments",
        "path": "items.0",
        "reason": "no",
    }


def test_an_internal_error_is_left_to_django() -> None:
    assert exception_handler(ZeroDivisionError(), {}) is None


def test_an_unavailable_database_is_503(as_bob: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> GuildMember:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(permissions, "find_member", fail)
    response = as_bob.get("/api/members/example/")
    assert response.status_code == 503
    assert response.json()["code"] == "database_unavailable"
    assert "server closed" not in response.content.decode()


def test_every_error_has_the_same_body(as_bob: Client) -> None:
    for response, http_status, code in [
        (Client().get("/api/roster/"), 401, "not_authenticated"),
        (as_bob.get("/api/members/nobody/"), 404, "unknown_member"),
        (as_bob.get("/api/calls/7/"), 404, "not_found"),
        (as_bob.get("/api/nowhere/"), 404, "not_found"),
        (as_bob.delete("/api/roster/"), 405, "method_not_allowed"),
        (as_bob.get("/api/calls/?status=odd"), 400, "invalid"),
    ]:
        assert response.status_code == http_status
        assert response["Content-Type"] == "application/problem+json"
        problem = response.json()
        assert (problem["code"], problem["status"]) == (code, http_status)
        assert problem["title"] == HTTPStatus(http_status).phrase
        assert problem["detail"].endswith(("roster", "."))


@pytest.mark.parametrize("method", METHODS)
def test_no_method_at_any_address_is_a_server_error(as_alice: Client, example: GuildMember, method: str) -> None:
    for address in api_addresses():
        assert getattr(as_alice, method)(address).status_code < 500, address


@pytest.mark.django_db
def test_an_invalid_token_of_a_browser_is_refused_in_the_docs_too() -> None:
    response = Client(headers={"Authorization": "Token gh_wrong", "Accept": "text/html"}).get("/api/docs/")
    assert response.status_code == 401


def test_refused_fields_are_named(as_bob: Client) -> None:
    body = as_bob.get("/api/calls/?status=odd").json()
    assert list(body["faults"]) == ["status"]
    assert body["detail"].startswith("status: ")


def test_faults_inside_a_field_are_named_with_their_places(as_alice: Client) -> None:
    body = {"groups": ["a", None], "entries": [{"member": "notes"}, {"tool": "add"}]}
    answer = as_alice.put("/api/tool-sets/writing/", body, content_type="application/json").json()
    assert answer["faults"] == {
        "groups": ["1: This field may not be null."],
        "entries": ["1: member: This field is required."],
    }
    assert "entries: 1: member: This field is required." in answer["detail"]


@pytest.mark.parametrize("address", ["tokens", "agents"])
def test_a_key_that_cannot_be_encoded_is_refused_as_unknown(as_alice: Client, address: str) -> None:
    body = r'{"members": [], "\ud800": 1}'
    response = as_alice.post(f"/api/{address}/", body, content_type="application/json")
    assert response.status_code == 400
    assert r"'\ud800': This key is unknown" in response.json()["detail"]


@pytest.mark.parametrize("method", ["post", "put"])
def test_a_missing_slash_is_named_in_the_error(as_bob: Client, method: str) -> None:
    response = getattr(as_bob, method)("/api/members/example/start", {}, content_type="application/json")
    assert response.status_code == 404
    assert "slash" in response.json()["detail"]


def test_a_missing_slash_of_a_read_is_redirected(as_bob: Client) -> None:
    response = as_bob.get("/api/calls?status=queued")
    assert response.status_code == 302
    assert response["Location"] == "/api/calls/?status=queued"


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "nonsense", "*/*"])
def test_the_response_is_json_for_every_accept_header(as_bob: Client, accept: str) -> None:
    response = as_bob.get("/api/roster/", headers={"Accept": accept})
    assert response.status_code == 200
    assert response["Content-Type"] == "application/json"


def test_a_name_that_the_database_cannot_store_is_404(as_bob: Client) -> None:
    assert as_bob.get("/api/members/a%00b/").status_code == 404
    assert as_bob.get("/api/members/example/tools/a%00b/").status_code == 404


def test_a_chunked_body_is_refused_and_not_treated_as_empty(as_bob: Client) -> None:
    response = as_bob.post(
        "/api/members/example/tools/echo/invoke/", CONTENT_LENGTH="", headers={"Transfer-Encoding": "chunked"}
    )
    assert response.status_code == 411
    assert response.json()["code"] == "length_required"


@pytest.mark.django_db
def test_an_error_that_is_not_json_does_not_say_that_it_is() -> None:
    response = Client().get("/api/schema/")
    assert (response.status_code, response["Content-Type"].startswith("application/problem")) == (401, False)
    response = Client().get("/api/schema/?format=json")
    assert (response.status_code, response["Content-Type"]) == (401, "application/problem+json")
