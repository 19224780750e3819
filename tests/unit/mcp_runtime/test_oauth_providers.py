"""What is remembered of identity providers, and of how many of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from mcp_runtime.client.outside import Guard
from mcp_runtime.oauth import discovery, providers
from mcp_runtime.oauth.discovery import AuthorizationServer
from mcp_runtime.protocol.errors import AccessEndedError, OAuthError, ServerAwayError

ISSUER = "https://idp.example"


@pytest.fixture(autouse=True)
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The issuers that were asked about themselves."""
    reads: list[str] = []

    def read(issuer: str, resource: str, guard: Guard) -> AuthorizationServer:
        reads.append(issuer)
        return AuthorizationServer(issuer, resource, "", f"{issuer}/token")

    monkeypatch.setattr(discovery, "identity_provider", read)
    providers.forget()
    return reads


def ask(issuer: str = ISSUER, error: Exception | None = None) -> str:
    with providers.asked(issuer, Guard()) as provider:
        if error is not None:
            raise error
        return provider.issuer


def test_threads_that_ask_at_the_same_time_wait_for_one_read(reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read, may_end = discovery.identity_provider, threading.Event()

    def slow(*args: Any) -> AuthorizationServer:
        may_end.wait(20)
        return read(*args)

    monkeypatch.setattr(discovery, "identity_provider", slow)
    monkeypatch.setattr(providers, "BUSY_SECONDS", 20.0)
    with ThreadPoolExecutor(8) as pool:
        asks = [pool.submit(ask) for _ in range(8)]
        may_end.set()
        assert {each.result() for each in asks} == {ISSUER}
    assert reads == [ISSUER]


def test_a_slow_read_of_one_provider_keeps_nobody_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    ask("https://other.example")
    monkeypatch.setattr(providers, "BUSY_SECONDS", 0.05)
    with providers.provider_of(ISSUER).lock:
        with pytest.raises(ServerAwayError, match="is slow at the moment"):
            ask()
        assert ask("https://other.example") == "https://other.example"


def test_a_refusal_is_no_failure_and_a_failure_lets_it_be_read_again(reads: list[str]) -> None:
    with pytest.raises(AccessEndedError):
        ask(error=AccessEndedError("no"))
    ask()
    assert reads == [ISSUER]
    with pytest.raises(OAuthError):
        ask(error=OAuthError("a page"))
    ask()
    assert reads == [ISSUER, ISSUER]


def test_a_failure_is_told_to_others_for_a_moment_that_they_do_not_extend(
    reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServerAwayError):
        ask(error=ServerAwayError("silent"))
    until = providers.provider_of(ISSUER).away[1]
    for _ in range(3):
        with pytest.raises(ServerAwayError, match="silent"):
            ask()
    assert (reads, providers.provider_of(ISSUER).away[1]) == ([ISSUER], until)
    monkeypatch.setattr(providers, "time", SimpleNamespace(monotonic=lambda: until))
    assert ask() == ISSUER


def test_only_some_providers_are_remembered(reads: list[str]) -> None:
    issuers = [f"https://{number}.example" for number in range(providers.MAX_PROVIDERS + 1)]
    for issuer in issuers:
        ask(issuer)
    assert len(providers.known_providers) == providers.MAX_PROVIDERS
    ask(issuers[-1])
    ask(issuers[0])
    assert reads == [*issuers, issuers[0]]
