"""Logs without secrets. Django logs the path of a refused request, and the path of an invitation is its secret."""

from __future__ import annotations

import logging
import re

from mcp_runtime.system.console import LineFormatter

# `ghi_` is Invitation.PREFIX, which this module cannot import: logs are set up before models.
_SECRET = re.compile(r"gh([iar])_[A-Za-z0-9_-]+")


class MaskingFormatter(LineFormatter):
    """Replaces the secrets of invitations, in messages and in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return _SECRET.sub(r"gh\1_…", super().format(record))
