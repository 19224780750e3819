"""The honest client: calls the honest member through gateway and REST until stdin ends, then says how long each took.

`neighbour.py GATEWAY_PORT WEB_PORT TOKEN`. A process of its own, so that what an attack costs the attacker is not in
the figures. A wrong answer, or none, is a failure: a neighbour sees nothing of an attack.
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
PATIENCE = 10.0  # seconds for an answer; later is a failure
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
    ways: dict[str, tuple[Client, Callable[[Client, str], bool]]] = {
        "gateway": (Client(gateway_port, token, seconds=PATIENCE), through_gateway),
        "rest": (Client(web_port, token, seconds=PATIENCE), over_rest),
    }
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    took: dict[str, list[float]] = {name: [] for name in ways}
    failures: list[str] = []
    number = 0
    while not over.wait(PAUSE):
        for name, (client, call) in ways.items():
            number += 1
            began, right = time.perf_counter(), False
            reason = "a wrong answer"
            try:
                right = call(client, f"honest {number}")
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                reason = repr(error)
            took[name].append(time.perf_counter() - began)
            if not right:
                failures.append(f"{name}: {reason} after {took[name][-1]:.2f} s")
                with contextlib.suppress(OSError):
                    client.close()
        if number <= 2:
            print("ready", flush=True)
    print(json.dumps({"took": took, "failures": failures}))


if __name__ == "__main__":
    main()
