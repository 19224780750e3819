"""The bucket of a token, from which the gateways of several nodes borrow calls."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F

from mcp_runtime.security import token_buckets
from roster.models import Token, TokenBucket


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
