"""Faults of remote servers: an HTTP server whose path says what it answers, and addresses where none answers.

`python -m tests.support.faults.remote PORT [CERTIFICATE]` serves them.
"""

from __future__ import annotations

import ssl
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.faults import Fault

LOGIN_PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in &middot; Example</title></head><body>...</body></html>\n"
JSON = "application/json"
# By path: status, content type, body.
ANSWERS: dict[str, tuple[int, str, bytes]] = {
    "/401": (401, JSON, b'{"error": "invalid_token", "error_description": "The access token expired"}'),
    "/403": (403, JSON, b'{"message": "Forbidden"}'),
    "/404": (404, "text/html", b"<html><head><title>404 Not Found</title></head><body><h1>nginx</h1></body></html>"),
    "/405": (405, "text/plain", b"Method Not Allowed"),
    "/429": (429, JSON, b'{"message": "rate limit exceeded"}'),
    "/500": (500, "text/plain", b"Internal Server Error"),
    "/503": (503, "text/html", b"<html><title>503 Service Temporarily Unavailable</title></html>"),
    "/login": (200, "text/html; charset=utf-8", LOGIN_PAGE),
    "/text": (200, "text/plain", b"OK"),
    "/rest": (200, JSON, b'{"status": "ok"}'),
    "/redirect": (301, "text/html", b"<html><head><title>301 Moved Permanently</title></head></html>"),
}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/hang":
            time.sleep(60)
        status, kind, body = ANSWERS[self.path]
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


def _remote(how: str, url: str, **manifest: Any) -> Fault:
    return Fault(how, {"transport": "http", "url": url, **manifest})


ALL = {
    **{
        f"remote_{path.removeprefix('/')}": _remote(f"A url whose server answers with {answer[0]}.", f"<http>{path}")
        for path, answer in ANSWERS.items()
    },
    "remote_login": _remote("A url that answers with 200 and the page of a login.", "<http>/login"),
    "remote_text": _remote("A url that answers with 200 and a text.", "<http>/text"),
    "remote_rest": _remote("A url that answers with 200 and JSON that is not JSON-RPC.", "<http>/rest"),
    "remote_501": _remote("A url where python3 -m http.server serves files.", "<files>/mcp"),
    "remote_refused": _remote("A url where nothing listens.", "http://127.0.0.1:9/mcp"),
    "remote_host_not_found": _remote("A url whose host does not exist.", "https://mcp.invalid/mcp"),
    "remote_hang": _remote("A url whose server accepts and never answers.", "<http>/hang", start_timeout=2),
    "remote_certificate": _remote("A url whose certificate is of an unknown authority.", "<tls>/mcp"),
    "remote_tls_to_http": _remote("An https url whose server speaks http.", "<http as https>/mcp"),
    "remote_http_to_tls": _remote("An http url whose server speaks https.", "<tls as http>/mcp"),
    "remote_secret_missing": Fault(
        "A url with a header whose secret is not set.",
        {"transport": "http", "url": "<http>/401", "headers": {"Authorization": "Bearer ${secret:EXAMPLE_TOKEN}"}},
    ),
}


def main(port: str, certificate: str = "") -> None:
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
