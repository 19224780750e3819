"""`manage.py runtime --check`, which health checks ask. What `runtime` itself does is tests/system's."""

from __future__ import annotations

import io
import os

import pytest
from django.core.management import CommandError, call_command

from mcp_runtime.rows import lease

pytestmark = pytest.mark.django_db


def test_check_says_who_the_runtime_is() -> None:
    lease.take()
    out = io.StringIO()
    call_command("runtime", "--check", stdout=out)
    assert f"process {os.getpid()} on " in out.getvalue()


def test_check_fails_when_no_runtime_is_alive() -> None:
    lease.release(lease.take())
    with pytest.raises(CommandError, match="No runtime is alive"):
        call_command("runtime", "--check")
