"""The honest client. Calls the honest member through gateway and REST until stdin ends, and prints the durations.

`neighbour.py GATEWAY_PORT WEB_PORT TOKEN`. It is a separate process, so that the figures do not contain the work of the
attacker. A wrong response, or none, is a failure, because an attack may not affect a neighbour.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import threading
import time
from collections.abc import Callable

from tests.attack.client import Client

PAUSE = 0.03  # seconds between two calls
PATIENCE = 10.0  # seconds for a response. A later one is a failure
REST_PATH = "/api/members/neighbour/tools/echo/invoke/"


def through_gateway(client: Client, text: str) -> bool:
    if "Mcp-Session-Id" not in client.headers:
        client.begin()
    return client.call("neighbour__echo", {"text": text}).text == text


def over_rest(client: Client, text: str) -> bool:
    reply = client.rest("POST", REST_PATH, {"arguments": {"text": text}}, Prefer="wait=9", Connection="close")
    client.close()
    return reply.status == 200 and text in reply.body.decode()


def main() -> None:
    gateway_port, web_port, token = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    sources: dict[str, tuple[Client, Callable[[Client, str], bool]]] = {
        "gateway": (Client(gateway_port, token, seconds=PATIENCE), through_gateway),
        "rest": (Client(web_port, token, seconds=PATIENCE), over_rest),
    }
    end = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    failures: list[str] = []
    number = 0
    while not end.wait(PAUSE):
        for name, (client, call) in sources.items():
            number += 1
            start, is_right = time.perf_counter(), False
            reason = "a wrong response"
            try:
                is_right = call(client, f"honest {number}")
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                reason = repr(error)
            seconds[name].append(time.perf_counter() - start)
            if not is_right:
                failures.append(f"{name}: {reason} after {seconds[name][-1]:.2f} s")
                with contextlib.suppress(OSError):
                    client.close()
        if number <= 2:
            print("ready", flush=True)
    print(json.dumps({"seconds": seconds, "failures": failures}))


if __name__ == "__main__":
    main()
