"""Bodies with a file come to the application from the disk, and there are bounds for all of them."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from guildhall import uploads, web
from guildhall.uploads import Uploads
from tests.conftest import eventually
from tests.support.wsgi import RunningServer, Serve

FORM = "multipart/form-data; boundary=x"


def size_and_kind(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    stream = environment["wsgi.input"]
    size = 0
    while part := stream.read(65_536):
        size += len(part)
    start("200 OK", [])
    return [f"{size} {type(stream).__name__}".encode()]


def post(server: RunningServer, path: str, body: bytes, kind: str = FORM) -> tuple[int, str]:
    response, answer = server.get(path, "POST", body=body, headers={"Content-Type": kind})
    return response.status, answer.decode()


def head(size: int, *lines: str) -> bytes:
    fields = ["POST /up HTTP/1.1", "Host: a", f"Content-Type: {FORM}", f"Content-Length: {size}", *lines]
    return "\r\n".join([*fields, "", ""]).encode()


def read_answer(connection: socket.socket) -> str:
    response = http.client.HTTPResponse(connection)
    response.begin()
    assert response.status == 200
    return response.read().decode()


@pytest.fixture(autouse=True)
def every_form_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LARGE", 0)


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> RunningServer:
    return serve(size_and_kind, uploads=Uploads(tmp_path, ["/up"], lambda _: True))


@pytest.fixture
def strict_server(serve: Serve, tmp_path: Path) -> RunningServer:
    """Only those who say `Authorization: yes` may send large forms. It fails for `Authorization: fail`."""

    def may_upload(environment: WSGIEnvironment) -> bool:
        assert environment["wsgi.input"].read() == b""
        credentials = environment.get("HTTP_AUTHORIZATION", "")
        if credentials == "fail":
            raise OSError("the database is away")
        return bool(credentials == "yes")

    return serve(size_and_kind, uploads=Uploads(tmp_path, ["/up"], may_upload))


@pytest.mark.parametrize("line", ["Accept: */*", "Authorization: no", "Authorization: fail"])
def test_of_a_form_that_a_client_may_not_send_the_application_gets_the_beginning(
    strict_server: RunningServer, line: str
) -> None:
    with strict_server.connect() as connection:
        connection.sendall(head(30_000_000, line) + b"x" * 200_000)
        assert read_answer(connection) == f"{uploads.BEGINNING} BytesIO"
    with strict_server.connect() as connection:
        connection.sendall(head(30_000_000, line, "Expect: 100-continue"))
        assert read_answer(connection) == "0 BytesIO"
    with strict_server.connect() as connection:
        connection.sendall(head(10, line) + b"x" * 10)
        assert read_answer(connection) == "10 BytesIO"
    assert strict_server.exchange_bytes(head(60_000_000, line)).startswith(b"HTTP/1.1 413 ")


def test_who_may_send_a_form_is_heard_while_strangers_send_many(
    strict_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_INCOMPLETE", 1)
    with strict_server.connect() as mine, contextlib.ExitStack() as strangers:
        mine.sendall(head(20, "Authorization: yes") + b"x")
        strict_server.wait_until_idle()
        for _ in range(5):
            stranger = strangers.enter_context(strict_server.connect())
            stranger.sendall(head(20) + b"x")
        strict_server.wait_until_idle()
        mine.sendall(b"x" * 19)
        assert read_answer(mine) == "20 BufferedRandom"


def test_a_small_form_is_read_into_memory(strict_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LARGE", 10)
    assert post(strict_server, "/up", b"x" * 10) == (200, "10 BytesIO")


def test_a_form_at_its_path_may_be_larger_than_other_bodies(server: RunningServer, tmp_path: Path) -> None:
    body = b"x" * 20_000_000
    assert post(server, "/up", body) == (200, "20000000 BufferedRandom")
    assert post(server, "/up", body, "application/json")[0] == 413
    assert post(server, "/other", body)[0] == 413
    assert post(server, "/up", b"{}", "application/json") == (200, "2 BytesIO")
    assert list(tmp_path.iterdir()) == []


def test_a_form_in_chunks_and_one_that_waits_for_100_are_received(server: RunningServer) -> None:
    chunked = b"POST /up HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data\r\nTransfer-Encoding: chunked\r\n"
    answer = server.exchange_bytes(chunked + b"Connection: close\r\n\r\n", b"5\r\nhello\r\n" * 3 + b"0\r\n\r\n")
    assert b"15 BufferedRandom" in answer
    with server.connect() as connection:
        connection.sendall(head(3, "Expect: 100-continue"))
        assert b"100 Continue" in connection.recv(1000)
        connection.sendall(b"abc")
        assert b"200 OK" in connection.recv(1000)


def test_a_form_that_is_too_large_is_refused_with_a_sentence(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_UPLOAD", 100_000)
    assert post(server, "/up", b"x" * 100_001)[0] == 413
    chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
    chunked = b"POST /up HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert server.exchange_bytes(chunked, chunk * 12).startswith(b"HTTP/1.1 413 ")


def test_a_form_that_comes_too_slowly_ends(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "UPLOAD_SECONDS", 0.2)
    assert server.exchange_bytes(head(100), b"x").startswith(b"HTTP/1.1 408 ")


def test_the_form_that_has_not_grown_for_the_longest_time_makes_room(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_INCOMPLETE", 2)
    idle, busy, last = (server.connect() for _ in range(3))
    for number, connection in enumerate((idle, busy), 1):
        connection.sendall(head(10) + b"x")
        assert eventually(lambda number=number: len(server.exchanges) == number)
        server.wait_until_idle()
    last.sendall(head(10) + b"x")
    assert idle.recv(1000) == b""
    for connection in (busy, last):
        connection.sendall(b"x" * 9)
        assert b"10 BufferedRandom" in connection.recv(1000)
    for connection in (idle, busy, last):
        connection.close()


def test_a_client_has_few_forms_that_are_being_answered(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "OF_CLIENT", 20)
    has_begun, may_end = threading.Event(), threading.Event()

    def wait(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        has_begun.set()
        may_end.wait(20)
        return size_and_kind(environment, start)

    server = serve(wait, threads=4, uploads=Uploads(tmp_path, ["/up"], lambda _: True))
    first: socket.socket = server.connect()
    first.sendall(head(15) + b"x" * 15)
    assert has_begun.wait(20)
    status, text = post(server, "/up", b"x" * 10)
    assert (status, "too many large requests from you" in text) == (429, True)
    may_end.set()
    assert b"15 BufferedRandom" in first.recv(1000)
    first.close()
    assert post(server, "/up", b"x" * 10) == (200, "10 BufferedRandom")


def test_a_client_that_leaves_frees_its_place(server: RunningServer) -> None:
    for _ in range(3 * uploads.MAX_INCOMPLETE):
        with server.connect() as connection:
            connection.sendall(head(10) + b"x")
            server.wait_until_idle()
    assert eventually(lambda: len(server.finished_exchanges) == 3 * uploads.MAX_INCOMPLETE)
    assert post(server, "/up", b"x") == (200, "1 BufferedRandom")


def test_the_web_takes_forms_where_people_add_members() -> None:
    from django.urls import reverse

    assert set(web.UPLOAD_PATHS) == {reverse("members"), reverse("admin:roster_guildmember_proposals")}


def test_the_bound_is_a_little_more_than_that_of_a_bundle() -> None:
    from mcp_runtime.members.archives import MAX_SIZE

    assert MAX_SIZE + 1_000_000 < uploads.MAX_UPLOAD
