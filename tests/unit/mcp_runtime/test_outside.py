"""The guard of requests to addresses that a document or a setting names."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from mcp_runtime.client import exchanges, outside
from mcp_runtime.client.bulkheads import Bulkheads, Turn
from mcp_runtime.client.outside import Guard, Place, ask, origin_of
from mcp_runtime.protocol.errors import ClientError, ConnectError
from tests.conftest import eventually
from tests.support.oauth_server import oauth_world


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("93.184.215.14", Place.PUBLIC),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", Place.PUBLIC),
        ("10.1.2.3", Place.PRIVATE),
        ("192.168.0.1", Place.PRIVATE),
        ("100.64.0.1", Place.PRIVATE),
        ("fd00::1", Place.PRIVATE),
        ("127.0.0.1", Place.LOOPBACK),
        ("::1", Place.LOOPBACK),
        ("::ffff:127.0.0.1", Place.LOOPBACK),
        ("2002:7f00:1::", Place.LOOPBACK),
        ("0.0.0.0", Place.NOWHERE),
        ("169.254.169.254", Place.NOWHERE),
        ("::ffff:169.254.169.254", Place.NOWHERE),
        ("fe80::1%eth0", Place.NOWHERE),
        ("224.0.0.1", Place.NOWHERE),
        ("64:ff9b::7f00:1", Place.NOWHERE),
    ],
)
def test_an_address_has_a_place(address: str, place: Place) -> None:
    assert Place.of(address) == place


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """All names have these addresses, one for each look-up, and then the last one."""
    left = list(addresses)

    def look_up(host: str, port: int, timeout: float) -> list[object]:
        address = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(exchanges, "look_up", look_up)
    monkeypatch.setattr(outside, "look_up", look_up)


@pytest.mark.parametrize(
    "url",
    [
        "https://2130706433/",
        "https://0x7f000001/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::]/",
        "https://localhost/",
        "https://169.254.169.254/latest",
        "http://10.0.0.1/",
        "http://example.com/",
        "ftp://example.com/",
        "https://user@example.com/",
        "https://example.com/#part",
        "https:///path",
        "https://exa mple.com/",
        "https://example.com\\@127.0.0.1/",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "https://" + "a" * 3000,
    ],
)
def test_what_may_not_be_asked_is_refused(url: str) -> None:
    with pytest.raises(ClientError):
        ask(url, Guard(), seconds=2.0)


def test_a_name_that_changes_its_address_after_the_check_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with oauth_world() as world:
        port = world.base.rpartition(":")[2]
        resolve_to(monkeypatch, "93.184.215.14", "127.0.0.1")
        guard = Guard.near(f"https://member.example.com:{port}/mcp")
        with pytest.raises(ClientError, match="may not be asked"):
            ask(f"https://as.example.com:{port}/", guard)
        assert world.seen == []


def test_a_name_of_this_machine_makes_no_loopback_address_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "127.0.0.1")
    assert set(Guard.near("https://member.example.com/mcp").places) == {Place.PUBLIC}
    resolve_to(monkeypatch, "10.0.0.7")
    assert set(Guard.near("https://member.example.com/mcp").places) == {Place.PUBLIC, Place.PRIVATE}
    assert set(Guard.near("http://127.0.0.1:9/mcp").places) == {Place.PUBLIC, Place.LOOPBACK}
    assert set(Guard.near("http://169.254.169.254/mcp").places) == {Place.PUBLIC}


def test_only_the_origin_that_an_operator_chose_is_asked_wherever_it_is() -> None:
    with oauth_world() as world:
        guard = Guard(trusted_url=world.url)
        assert ask(f"{world.base}/.well-known/oauth-authorization-server", guard).status == 200
        with pytest.raises(ClientError, match="may not be asked"):
            ask("http://127.0.0.1:1/", guard)


def test_origins_are_compared_with_their_ports() -> None:
    assert origin_of("https://a.test/x") == origin_of("https://A.test:443")
    assert origin_of("https://a.test") != origin_of("http://a.test")
    assert origin_of("https://a.test:99999") == ""


def test_a_wait_for_other_requests_is_a_part_of_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines: list[float] = []
    begin = exchanges.Exchange.begin

    def note(self: exchanges.Exchange, request_id: int | None, timeout: float) -> None:
        deadlines.append(timeout)
        begin(self, request_id, timeout)

    monkeypatch.setattr(exchanges.Exchange, "begin", note)
    busy = threading.BoundedSemaphore(1)
    monkeypatch.setattr(outside, "at_once", busy)
    busy.acquire()
    threading.Timer(0.2, busy.release).start()
    with oauth_world() as world:
        assert ask(f"{world.base}/.well-known/oauth-authorization-server", Guard(trusted_url=world.url)).status == 200
    assert deadlines[0] < outside.TIMEOUT - 0.15


def test_a_request_that_would_wait_too_long_for_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "at_once", threading.BoundedSemaphore(1))
    outside.at_once.acquire()
    with pytest.raises(ClientError, match="too many servers"):
        ask("https://example.com/", Guard(), seconds=0.1)


def test_a_request_whose_turn_comes_at_its_deadline_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Bulkheads):
        @contextmanager
        def turn(self, origin: str, deadline: float) -> Iterator[Turn]:
            with super().turn(origin, deadline) as turn:
                eventually(lambda: time.monotonic() > deadline)
                yield turn

    monkeypatch.setattr(outside, "open_requests", Late())
    with pytest.raises(ConnectError, match="took all of the time"):
        ask("https://example.com/", Guard(), seconds=0.1)


def test_requests_of_a_thread_share_a_total_and_other_threads_do_not() -> None:
    with oauth_world() as world:
        address, guard = f"{world.base}/.well-known/oauth-authorization-server", Guard(trusted_url=world.url)
        with outside.in_total(0.0), outside.in_total(60.0):
            with pytest.raises(ClientError, match="the requests before this one took too long"):
                ask(address, guard)
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(ask, address, guard).result().status == 200
        assert ask(address, guard).status == 200
