"""Large bodies at a real web: who may send them, and what the others are told before they have sent much."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import Permission, User

from roster.models import GuildMember
from tests.conftest import eventually
from tests.support.hall import WEB, Hall, wait_for_web

MEMBERS, PROPOSALS = "/api/members/", "/admin/roster/guildmember/proposals/"
BOUNDARY = "the-boundary"
LARGE = 30_000_000
PASSWORD = "canary-4711-canary"


@pytest.fixture(scope="module")
def hall(shared_hall: Hall) -> Hall:
    shared_hall.popen(WEB)
    wait_for_web(shared_hall)
    for name in ("ada", "bob"):
        # The hasher of the tests is not one of the hall.
        User.objects.create(username=name, password=PBKDF2PasswordHasher().encode(PASSWORD, "salt"), is_staff=True)
    User.objects.get(username="ada").user_permissions.add(Permission.objects.get(codename="approve_member"))
    GuildMember.objects.create(name="echo", directory="echo")
    return shared_hall


def token_of(hall: Hall, name: str, *options: str) -> str:
    result = hall.manage("create_token", name, *options)
    assert result.returncode == 0, result.stderr
    return f"Authorization: Bearer {result.stdout.splitlines()[-1]}"


def log_in(hall: Hall, name: str) -> tuple[str, dict[str, str]]:
    """The cookies of a browser, and the first field of its forms."""
    with requests.Session() as session:
        page = session.get(f"{hall.url}/admin/login/", timeout=20)
        fields = {"csrfmiddlewaretoken": re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)[0]}
        form = {**fields, "username": name, "password": PASSWORD, "next": "/admin/"}
        answer = session.post(page.url, data=form, headers={"Origin": hall.url}, timeout=20, allow_redirects=False)
        assert answer.status_code == 302, answer.text
        fields["csrfmiddlewaretoken"] = session.cookies[f"guildhall_{hall.web_port}_csrf"]
        return "Cookie: " + "; ".join(f"{cookie.name}={cookie.value}" for cookie in session.cookies), fields


@contextlib.contextmanager
def begun_upload(hall: Hall, path: str, *lines: str, fields: dict[str, str] | None = None) -> Iterator[socket.socket]:
    """A connection that has sent the beginning of a large form, as far as the web takes it."""
    place = urlsplit(hall.url)
    head = [f"POST {path} HTTP/1.1", f"Host: {place.netloc}", f"Content-Length: {LARGE}"]
    head += [f"Content-Type: multipart/form-data; boundary={BOUNDARY}", *lines]
    parts = [f'name="{name}"\r\n\r\n{value}\r\n' for name, value in (fields or {}).items()]
    parts.append('name="bundle"; filename="a.mcpb"\r\n\r\n')
    form = "".join(f"--{BOUNDARY}\r\nContent-Disposition: form-data; {part}" for part in parts).encode()
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=20) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        if "Expect: 100-continue" not in lines:
            connection.sendall(form + bytes(1_000_000))
        yield connection


def answer(hall: Hall, path: str, *lines: str, fields: dict[str, str] | None = None) -> str:
    """What the web says although most of the body is missing."""
    with begun_upload(hall, path, *lines, fields=fields) as connection:
        return connection.recv(65_536).decode()


def bytes_on_disk(hall: Hall) -> int:
    """In the files without a name that the web has open."""
    (web,) = hall.processes
    sizes = 0
    for link in Path(f"/proc/{web.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            target = os.readlink(link)
            if target.startswith(f"{hall.data_dir}/") and "deleted" in target:
                sizes += link.stat().st_size
    return sizes


@pytest.mark.parametrize("line", ["Accept: */*", "Authorization: Bearer gh_invented", "Cookie: {}_session=invented"])
def test_a_stranger_is_told_so_before_the_body_is_read(hall: Hall, line: str) -> None:
    line = line.format(f"guildhall_{hall.web_port}")
    for lines in ([line], [line, "Expect: 100-continue"]):
        text = answer(hall, MEMBERS, *lines)
        assert text.startswith("HTTP/1.1 401 ")
        assert '"code":"' in text
    assert bytes_on_disk(hall) == 0


def test_a_user_who_may_not_add_members_is_told_so_before_the_body_is_read(hall: Hall) -> None:
    cookie, fields = log_in(hall, "bob")
    for lines in ([token_of(hall, "bob")], [token_of(hall, "ada", "--members", "echo")], [cookie]):
        text = answer(hall, MEMBERS, *lines, fields=fields)
        assert text.startswith("HTTP/1.1 403 ")
        assert "roster.approve_member" in text
    assert answer(hall, PROPOSALS, cookie, fields=fields).startswith("HTTP/1.1 403 ")
    assert bytes_on_disk(hall) == 0


def test_who_is_logged_out_is_led_to_the_login_before_the_body_is_read(hall: Hall) -> None:
    cookie, fields = log_in(hall, "ada")
    only_csrf = "; ".join(part for part in cookie.split("; ") if "_session=" not in part)
    text = answer(hall, PROPOSALS, only_csrf, fields=fields)
    assert text.startswith("HTTP/1.1 302 ")
    assert "location: /admin/login/" in text.lower()


def test_a_token_or_a_session_that_may_add_members_sends_the_whole_body(hall: Hall) -> None:
    cookie, fields = log_in(hall, "ada")
    for path, line in ((MEMBERS, token_of(hall, "ada")), (MEMBERS, cookie), (PROPOSALS, cookie)):
        with begun_upload(hall, path, line, fields=fields) as connection:
            assert eventually(lambda: bytes_on_disk(hall) > 900_000)
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        assert eventually(lambda: bytes_on_disk(hall) == 0)
        with begun_upload(hall, path, line, "Expect: 100-continue", fields=fields) as connection:
            assert b"100 Continue" in connection.recv(1000)
