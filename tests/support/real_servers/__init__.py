"""Members and clients that use the official SDKs and FastMCP."""

from __future__ import annotations

import sys
from typing import Any

from tests.conftest import ROOT

SERVERS = ROOT / "tests" / "support" / "real_servers"
SUITE = ROOT / "tests" / "conformance"
NODE = SUITE / "node_modules" / ".bin" / "node"


def python(script: str, **manifest: Any) -> dict[str, Any]:
    args = [str(SERVERS / script), *(["${PORT}"] if manifest.get("transport") != "stdio" else [])]
    return {"command": sys.executable, "args": args, "start_timeout": 30, **manifest}
