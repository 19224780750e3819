"""The yardstick of eager start: the same servers, started side by side by a script that does nothing else."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def post(connection: http.client.HTTPConnection, body: dict[str, Any]) -> bytes:
    headers = {"Content-Type": "application/json", "MCP-Protocol-Version": "2025-06-18", "Accept": "application/json"}
    connection.request("POST", "/mcp", json.dumps(body), headers)
    return connection.getresponse().read()


def bring_up(folder: Path, port: int, processes: list[subprocess.Popen[bytes]]) -> None:
    manifest = json.loads((folder / "guild-member.json").read_text())
    argv = [manifest["command"], *(arg.replace("${PORT}", str(port)) for arg in manifest["args"])]
    processes.append(subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bare", "version": "1"}}
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            post(connection, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    post(connection, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert b"tools" in post(connection, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"})


def main() -> None:
    members, first_port = Path(sys.argv[1]), int(sys.argv[2])
    processes: list[subprocess.Popen[bytes]] = []
    began = time.monotonic()
    threads = [
        threading.Thread(target=bring_up, args=(folder, first_port + number, processes))
        for number, folder in enumerate(sorted(members.iterdir()))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(time.monotonic() - began)
    for process in processes:
        process.kill()
        process.wait()


main()
