"""`guildhall runtime --check`, which health checks use. The tests of `runtime` itself are in tests/system."""

from __future__ import annotations

import io
import os

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from mcp_runtime.rows import lease
from tests.support.leases import add_node

pytestmark = pytest.mark.django_db


def test_check_prints_the_process_of_the_runtime() -> None:
    lease.take()
    output = io.StringIO()
    call_command("runtime", "--check", stdout=output)
    assert f"process {os.getpid()} on " in output.getvalue()


def test_check_fails_without_a_live_runtime() -> None:
    lease.release(lease.take())
    with pytest.raises(CommandError, match="No runtime is alive"):
        call_command("runtime", "--check")


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one runtime, on any node")
def test_check_is_about_the_node_of_this_machine() -> None:
    lease.release(lease.take())
    add_node("b")
    with pytest.raises(CommandError, match="The runtime of node 'main' is not alive"):
        call_command("runtime", "--check")


def test_check_is_about_all_nodes_on_a_machine_that_runs_only_the_web() -> None:
    add_node("b")
    output = io.StringIO()
    call_command("runtime", "--check", stdout=output)
    assert output.getvalue() == "The runtime is process 1 on b.invalid.\n"
