"""Seals of requests between nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_runtime.gateway import hop_seals
from mcp_runtime.gateway.hop_seals import HEADER, WINDOW, Request, SealError, Seals, key_of, seal, sender_of

KEY = key_of("k" * 50)
PLAIN = Request("a" * 32, "b" * 32, "POST", b"/mcp?members=a", {"accept": "*/*", "mcp-session-id": "s"}, b"{}")


def sealed(request: Request = PLAIN, number: int = 1, key: bytes = KEY) -> Request:
    return replace(request, headers={**request.headers, HEADER: seal(key, request, number)})


def test_a_sealed_request_is_accepted_once() -> None:
    seals, request = Seals(KEY), sealed()
    assert sender_of(request.headers[HEADER]) == PLAIN.sender
    seals.open(request)
    with pytest.raises(SealError, match="received before"):
        seals.open(request)
    seals.open(sealed(number=2))


@pytest.mark.parametrize(
    "change",
    [
        lambda request: replace(request, target="c" * 32),
        lambda request: replace(request, verb="GET"),
        lambda request: replace(request, url=b"/mcp"),
        lambda request: replace(request, body=b"{} "),
        lambda request: replace(request, headers={**request.headers, "authorization": "Bearer x"}),
        lambda request: replace(request, headers={HEADER: request.headers[HEADER]}),
        lambda request: replace(request, headers={**request.headers, "mcp-session-id": "t"}),
    ],
)
def test_a_changed_request_is_refused(change: Callable[[Request], Request]) -> None:
    with pytest.raises(SealError, match="not of this hall"):
        Seals(KEY).open(change(sealed()))


@pytest.mark.parametrize(
    "value", ["", "x", "a.b.c", f"{'a' * 32}.1", f"{'a' * 32}.{'9' * 30}.{'0' * 64}", f"{'a' * 32}.1.\xe9"]
)
def test_a_request_without_a_readable_seal_is_refused(value: str) -> None:
    with pytest.raises(SealError):
        Seals(KEY).open(replace(PLAIN, headers={HEADER: value} if value else {}))


def test_a_seal_of_another_hall_is_refused() -> None:
    with pytest.raises(SealError):
        Seals(KEY).open(sealed(key=key_of("o" * 50)))


def test_the_seal_names_its_own_sender() -> None:
    with pytest.raises(SealError):
        Seals(KEY).open(replace(sealed(), sender="c" * 32))


def test_requests_may_overtake_each_other_but_not_by_more_than_the_window() -> None:
    seals = Seals(KEY)
    seals.open(sealed(number=WINDOW + 5))
    seals.open(sealed(number=6))
    with pytest.raises(SealError):
        seals.open(sealed(number=6))
    with pytest.raises(SealError):
        seals.open(sealed(number=5))
    seals.open(sealed(number=10 * WINDOW))
    with pytest.raises(SealError):
        seals.open(sealed(number=WINDOW + 5))


@given(st.lists(st.integers(1, 3 * WINDOW), max_size=60))
def test_no_number_is_accepted_twice(numbers: list[int]) -> None:
    window = hop_seals.Window()
    accepted = [number for number in numbers if window.accept(number)]
    assert len(accepted) == len(set(accepted))
    if numbers and max(numbers) < WINDOW:
        assert set(accepted) == set(numbers)


def test_a_sender_that_is_gone_is_forgotten() -> None:
    seals = Seals(KEY)
    seals.open(sealed())
    seals.keep_only({PLAIN.sender})
    with pytest.raises(SealError):
        seals.open(sealed())
    seals.keep_only(set())
    seals.open(sealed())  # the entry refuses it, because no node that runs has this lease
