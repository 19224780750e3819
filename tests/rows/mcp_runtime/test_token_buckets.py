"""The bucket of a token, from which the gateways of several nodes borrow calls."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F

from mcp_runtime.security import token_buckets
from roster.models import Node, Token, TokenBucket, TokenShare
from tests.support.leases import add_node


@pytest.fixture
def token_id(db: None) -> int:
    return Token.make(user=User.objects.create_user("ann"))[0].pk


def pass_time(seconds: float) -> None:
    TokenBucket.objects.update(full_at=F("full_at") - timedelta(seconds=seconds))


def test_the_calls_of_a_minute_may_be_borrowed_at_once_and_refill(token_id: int) -> None:
    assert token_buckets.borrow(token_id, 60, 50) == (50, 0.0)
    assert token_buckets.borrow(token_id, 60, 50)[0] == 10
    granted, seconds = token_buckets.borrow(token_id, 60, 50)
    assert granted == 0
    assert 0 < seconds <= 1
    pass_time(5)
    assert token_buckets.borrow(token_id, 60, 50)[0] == 5
    pass_time(3600)
    assert token_buckets.borrow(token_id, 60, 100)[0] == 60


def test_unused_calls_can_be_borrowed_again(token_id: int) -> None:
    token_buckets.borrow(token_id, 60, 60)
    token_buckets.give_back(token_id, 60, 20)
    assert token_buckets.borrow(token_id, 60, 60)[0] == 20
    assert token_buckets.borrow(token_id, 60, 60, unused=7)[0] == 7


def test_nobody_gets_more_than_a_minute_by_giving_back(token_id: int) -> None:
    token_buckets.borrow(token_id, 60, 5)
    pass_time(3600)
    token_buckets.give_back(token_id, 60, 5)
    assert token_buckets.borrow(token_id, 60, 1000)[0] == 60


@pytest.mark.django_db(transaction=True)
def test_a_deleted_token_has_no_calls(token_id: int) -> None:
    Token.objects.all().delete()
    assert token_buckets.borrow(token_id, 60, 5) == (0, 1.0)
    token_buckets.give_back(token_id, 60, 5)


@pytest.mark.django_db(transaction=True)
def test_gateways_that_borrow_at_the_same_time_get_no_more_than_the_limit() -> None:
    token_id = Token.make(user=User.objects.create_user("ann"))[0].pk
    granted: list[int] = []

    def borrow() -> None:
        granted.extend(token_buckets.borrow(token_id, 60, 3)[0] for _ in range(10))
        connection.close()

    threads = [threading.Thread(target=borrow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) in (60, 61)  # one may have refilled meanwhile


# Concurrent calls -------------------------------------------------------------------------------------------------


def test_the_shares_of_living_runtimes_are_never_more_than_the_limit(token_id: int) -> None:
    first, second = (add_node(name).lease_id for name in ("first", "second"))
    assert first
    assert second
    assert token_buckets.set_share(token_id, 10, first, 7) == 7
    assert token_buckets.set_share(token_id, 10, second, 7) == 3
    assert token_buckets.set_share(token_id, 10, first, 20) == 7
    assert token_buckets.set_share(token_id, 10, first, 1) == 1
    assert token_buckets.set_share(token_id, 10, second, 20) == 9
    assert token_buckets.set_share(token_id, 4, first, 1) == 0  # the limit was lowered
    assert dict(TokenShare.objects.values_list("lease_id", "calls")) == {second: 9}


def test_the_share_of_a_runtime_that_has_ended_is_free(token_id: int) -> None:
    first, second = add_node("first"), add_node("second")
    assert first.lease_id
    assert second.lease_id
    assert token_buckets.set_share(token_id, 10, first.lease_id, 10) == 10
    Node.objects.filter(pk=first.pk).update(lease_id=None)
    assert token_buckets.set_share(token_id, 10, second.lease_id, 10) == 10
    assert TokenShare.objects.count() == 1


def test_each_token_has_its_own_shares_and_a_deleted_one_has_none(token_id: int) -> None:
    lease_id = add_node("first").lease_id
    assert lease_id
    other = Token.make(user=User.objects.get(), name="other")[0].pk
    assert token_buckets.set_share(token_id, 2, lease_id, 5) == 2
    assert token_buckets.set_share(other, 2, lease_id, 5) == 2


@pytest.mark.django_db(transaction=True)
def test_a_token_that_was_deleted_has_no_share() -> None:
    lease_id = add_node("first").lease_id
    assert lease_id
    assert token_buckets.set_share(123_456, 2, lease_id, 1) == 0
