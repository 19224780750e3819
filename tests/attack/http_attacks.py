"""Malformed and ambiguous HTTP/1.1 at gateway and web. One request never gets two responses or smuggles another."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.attack.client import call_message, send_bytes
from tests.attack.hall import Hall
from tests.attack.tally import Tally

# Templates of requests. {S} is the smuggled request, {N} its length, and {H} its length in hexadecimal.
HEAD = "POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
FRAMINGS = {
    "CL.TE": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{S}",
    "TE.CL": "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{H}\r\n{S}\r\n0\r\n\r\n",
    "CL.CL": "Content-Length: 0\r\nContent-Length: {N}\r\n\r\n{S}",
    "CL.CL reversed": "Content-Length: {N}\r\nContent-Length: 0\r\n\r\n{S}",
    "CL list": "Content-Length: 0, {N}\r\n\r\n{S}",
    "CL list of equals": "Content-Length: 0,0\r\n\r\n{S}",
    "CL plus": "Content-Length: +0\r\n\r\n{S}",
    "CL minus": "Content-Length: -0\r\n\r\n{S}",
    "CL minus one": "Content-Length: -1\r\n\r\n{S}",
    "CL hex": "Content-Length: 0x0\r\n\r\n{S}",
    "CL underscore": "Content-Length: 0_0\r\n\r\n{S}",
    "CL inner space": "Content-Length: 0 0\r\n\r\n{S}",
    "CL letters": "Content-Length: zero\r\n\r\n{S}",
    "CL empty": "Content-Length: \r\n\r\n{S}",
    "CL float": "Content-Length: 0.0\r\n\r\n{S}",
    "CL overflow": "Content-Length: 18446744073709551616\r\n\r\n{S}",
    "CL unicode digit": "Content-Length: \u00b2\r\n\r\n{S}",
    "CL space before colon": "Content-Length : 0\r\n\r\n{S}",
    "CL tab before colon": "Content-Length\t: 0\r\nContent-Length: {N}\r\n\r\n{S}",
    "CL obs-fold": "Content-Length:\r\n 0\r\n\r\n{S}",
    "CL obs-fold second": "Content-Length: {N}\r\nX: y\r\n\tContent-Length: 0\r\n\r\n{S}",
    "CL vertical tab": "Content-Length: \x0b0\r\n\r\n{S}",
    "CL NUL": "Content-Length: 0\x00\r\n\r\n{S}",
    "CL bare LF": "Content-Length: 0\n\n{S}",
    "CL bare CR": "Content-Length: 0\r\r{S}",
    "CL bare CR in value": "X: a\rContent-Length: 0\r\nContent-Length: {N}\r\n\r\n{S}",
    "CL bare LF in value": "X: a\nContent-Length: 0\r\nContent-Length: {N}\r\n\r\n{S}",
    "CL underscore name": "Content_Length: 0\r\nContent-Length: {N}\r\n\r\n{S}",
    "no framing": "\r\n{S}",
    "TE xchunked": "Content-Length: 0\r\nTransfer-Encoding: xchunked\r\n\r\n{S}",
    "TE identity": "Transfer-Encoding: identity\r\n\r\n{S}",
    "TE space before colon": "Content-Length: 0\r\nTransfer-Encoding : chunked\r\n\r\n{S}",
    "TE tab": "Content-Length: 0\r\nTransfer-Encoding:\tchunked\r\n\r\n{S}",
    "TE vertical tab": "Content-Length: 0\r\nTransfer-Encoding: \x0bchunked\r\n\r\n{S}",
    "TE quoted": 'Content-Length: 0\r\nTransfer-Encoding: "chunked"\r\n\r\n{S}',
    "TE doubled": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{S}",
    "TE twice chunked": "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n{S}",
    "TE not last": "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n{S}",
    "TE first identity": "Transfer-Encoding: identity, chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n{S}",
    "TE comma": "Content-Length: 0\r\nTransfer-Encoding: ,chunked\r\n\r\n{S}",
    "TE obs-fold": "Content-Length: 0\r\nTransfer-Encoding:\r\n chunked\r\n\r\n{S}",
    "TE folded name": "Content-Length: 0\r\nX: y\r\n Transfer-Encoding: chunked\r\n\r\n{S}",
    "TE leading space": "Content-Length: 0\r\n Transfer-Encoding: chunked\r\n\r\n{S}",
    "TE case and CL": "Content-Length: 0\r\ntRANSFER-eNCODING: cHUNKED\r\n\r\n{S}",
    "TE underscore name": "Content-Length: 0\r\nTransfer_Encoding: chunked\r\n\r\n{S}",
    "TE NUL": "Content-Length: 0\r\nTransfer-Encoding: chunked\x00\r\n\r\n{S}",
    "TE bare LF": "Content-Length: 0\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n{S}",
    "chunk size overflow": "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n{S}\r\n0\r\n\r\n",
    "chunk size minus": "Transfer-Encoding: chunked\r\n\r\n-1\r\n{S}\r\n0\r\n\r\n",
    "chunk size plus": "Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n{S}",
    "chunk size 0x": "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n{S}",
    "chunk size space": "Transfer-Encoding: chunked\r\n\r\n 0\r\n\r\n{S}",
    "chunk size underscore": "Transfer-Encoding: chunked\r\n\r\n0_0\r\n\r\n{S}",
    "chunk size empty": "Transfer-Encoding: chunked\r\n\r\n\r\n\r\n{S}",
    "chunk size letters": "Transfer-Encoding: chunked\r\n\r\nzero\r\n\r\n{S}",
    "chunk bare LF": "Transfer-Encoding: chunked\r\n\r\n0\n\n{S}",
    "chunk ext bare LF": "Transfer-Encoding: chunked\r\n\r\n2;\nxx\r\n{H}\r\n{S}\r\n0\r\n\r\n",
    "chunk ext bare CR": "Transfer-Encoding: chunked\r\n\r\n0;a\rb\r\n\r\n{S}",
    "chunk without end": "Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n{S}",
    "chunk data bare LF": "Transfer-Encoding: chunked\r\n\r\n1\r\nx\n0\r\n\r\n{S}",
    "trailer framing": "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: {N}\r\nTransfer-Encoding: x\r\n{S}",
    "HTTP/1.0 chunked": "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{S}",
    "name with space": "X y: z\r\nContent-Length: {N}\r\n\r\n{S}",
    "name empty": ": z\r\nContent-Length: {N}\r\n\r\n{S}",
    "name NUL": "X\x00y: z\r\nContent-Length: {N}\r\n\r\n{S}",
    "name colonless": "Xyz\r\nContent-Length: {N}\r\n\r\n{S}",
    "value NUL": "X: a\x00b\r\nContent-Length: {N}\r\n\r\n{S}",
    "host twice": "Host: evil.example\r\nContent-Length: {N}\r\n\r\n{S}",
    "authorization twice": "Authorization: Bearer x\r\nContent-Length: {N}\r\n\r\n{S}",
    "huge head": "X: {huge}\r\nContent-Length: {N}\r\n\r\n{S}",
    "many heads": "{many}Content-Length: {N}\r\n\r\n{S}",
    "expect and body": "Expect: 100-continue\r\nContent-Length: {N}\r\n\r\n{S}",
    "expect unknown": "Expect: 200-ok\r\nContent-Length: {N}\r\n\r\n{S}",
    "upgrade h2c": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: {N}\r\n\r\n{S}",
    "upgrade websocket": "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: {N}\r\n\r\n{S}",
    "connection names CL": "Connection: Content-Length\r\nContent-Length: {N}\r\n\r\n{S}",
    "body is a request": "Content-Length: {N}\r\n\r\n{S}",
    "chunked body is a request": "Transfer-Encoding: chunked\r\n\r\n{H}\r\n{S}\r\n0\r\n\r\n",
    "chunk extension": "Transfer-Encoding: chunked\r\n\r\n{H};a=b\r\n{S}\r\n0;c\r\n\r\n",
}
STATUS_LINE = re.compile(rb"HTTP/1\.[01] [2-5]\d\d ")
# By the RFC these are two requests, one after the other, so two responses are right.
PIPELINED = {"no framing", "TE underscore name"}
# First bytes of a connection.
STARTS = {
    "HTTP/0.9": "GET /\r\n\r\n{S}",
    "HTTP/2 preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{S}",
    "HTTP/1.2": "GET / HTTP/1.2\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "HTTP/9.9": "GET / HTTP/9.9\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "lower-case version": "GET / http/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "no host": "GET / HTTP/1.1\r\nContent-Length: {N}\r\n\r\n{S}",
    "verb with CR": "GE\rT / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "verb unknown": "G@T / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "target with space": "GET / x HTTP/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "target with NUL": "GET /\x00 HTTP/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "target authority": "GET evil.example:80 HTTP/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "target absolute": "GET http://evil.example/ HTTP/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "target userinfo": "GET http://{host}@evil.example/ HTTP/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "target star": "OPTIONS * HTTP/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "connect": "CONNECT {host} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "trace": "TRACE / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "nothing but lines": "\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {N}\r\n\r\n{S}",
    "TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03{S}",
    "binary": "\x00\xff\xfe\x80{S}",
}


def smuggling_at_the_gateway(hall: Hall, tally: Tally) -> None:
    message = json.dumps(call_message("neighbour__mark", {"text": "MARK"}, 1, modern=True)[0])
    headers = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: neighbour__mark\r\n"
    _smuggle(hall, tally, hall.gateway_port, "/mcp", message, headers)


def smuggling_at_the_web(hall: Hall, tally: Tally) -> None:
    body = json.dumps({"arguments": {"text": "MARK"}})
    _smuggle(hall, tally, hall.port, "/api/members/neighbour/tools/mark/invoke/", body, "Prefer: wait=3\r\n")


def _smuggle(hall: Hall, tally: Tally, port: int, path: str, body: str, headers: str) -> None:
    """Try every framing once. The smuggled request has the attacker's valid token."""
    values = {"path": path, "host": f"127.0.0.1:{port}", "token": hall.tokens["attacker"]}
    request_template = HEAD.format(**values) + headers + f"Content-Length: {len(body) + 28}\r\n\r\n" + body

    def attempt(case: tuple[str, str]) -> str:
        name, template = case
        mark = uuid.uuid4().hex
        smuggled = request_template.replace("MARK", mark)
        data = _fill_in(template, smuggled, values).encode("latin-1", "replace")
        count = len(STATUS_LINE.findall(send_bytes(port, data)))
        tally.expect(count <= 1 or name in PIPELINED, f"two responses for one request: {name}")
        return "" if name in PIPELINED else mark

    with ThreadPoolExecutor(6) as pool:
        marks = list(pool.map(attempt, _cases()))
    tally.expect(_marked_call_runs(hall, port), "an honest call after the list got a wrong response")
    marks_of_calls = set(hall.marks())
    for (name, _), mark in zip(_cases(), marks, strict=True):
        tally.expect(mark not in marks_of_calls, f"the smuggled request ran: {name}")
    _poison_connections(hall, tally, port)


def _marked_call_runs(hall: Hall, port: int) -> bool:
    """Whether a marked call runs. It ends after all earlier calls."""
    mark = uuid.uuid4().hex
    if port == hall.port:
        with hall.web("victim") as client:
            path = "/api/members/neighbour/tools/mark/invoke/"
            client.rest("POST", path, {"arguments": {"text": mark}}, Prefer="wait=20")
    else:
        with hall.client("victim") as client:
            client.call("neighbour__mark", {"text": mark}, modern=True)
    return mark in hall.marks()


def _cases() -> Iterator[tuple[str, str]]:
    for name, framing in FRAMINGS.items():
        version = HEAD.replace("HTTP/1.1", "HTTP/1.0") if name.startswith("HTTP/1.0") else HEAD
        yield name, version + framing
    yield from STARTS.items()


def _fill_in(template: str, smuggled: str, values: dict[str, str]) -> str:
    more = {"huge": "x" * 100_000, "many": "".join(f"X-{number}: y\r\n" for number in range(5000))}
    lengths = {"N": str(len(smuggled)), "H": f"{len(smuggled):x}"}
    for key, value in {**values, **more, **lengths, "S": smuggled}.items():
        template = template.replace("{" + key + "}", value)
    return template


def _poison_connections(hall: Hall, tally: Tally, port: int) -> None:
    """Send a valid request with the beginning of another one. The next client must get the right response."""
    prefix = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\nGET /poison HTTP/1.1\r\nX: "
    for number in range(tally.share_of(20, 5)):
        send_bytes(port, prefix.encode() if number % 2 else prefix.encode() + b"y" * 3000, seconds=0.5, quiet=0.02)
        tally.expect(
            _honest_call_succeeds(hall, port), "an honest request after a poisoned connection got a wrong response"
        )


def _honest_call_succeeds(hall: Hall, port: int) -> bool:
    if port == hall.port:
        with hall.web("victim") as client:
            return client.rest("GET", "/api/members/neighbour/").status == 200
    with hall.client("victim") as client:
        return client.call("neighbour__echo", {"text": "right"}, modern=True).text == "right"
