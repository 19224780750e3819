"""Where the browser of a person may be sent back, and how a person reads that."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

MAX_LENGTH = 500
# Apps that open an address of their own. The system of the person decides which program gets it, so PKCE protects the
# code there. Other such schemes are refused, because some of them run code in the browser.
APPS = {"cursor": "Cursor", "vscode": "VS Code", "vscode-insiders": "VS Code Insiders", "windsurf": "Windsurf"}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Nothing that a browser, a library and a person could read in different ways.
_PLAIN = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9.:\[\]_-]+(/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?(\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?"
)


def fault_of(uri: str) -> str:
    """Why a client may not register this address. Empty if it may. `http` is for the machine of the browser alone."""
    if len(uri) > MAX_LENGTH or not _PLAIN.fullmatch(uri):
        return "it is too long or has characters that such an address does not need"
    parts = urlsplit(uri)
    try:
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "its port or its host cannot be read"
    if parts.scheme == "https" or parts.scheme in APPS:
        return "" if host else "it has no host"
    if parts.scheme == "http" and host in LOOPBACK:
        return ""
    return "it is neither https, nor http on the machine of the browser, nor an app that the hall knows"


def words_for(uri: str) -> str:
    """The place in words, for the consent. The address has no fault."""
    parts = urlsplit(uri)
    if parts.scheme in APPS:
        return f"the app {APPS[parts.scheme]} on this computer"
    if parts.scheme == "http":
        return f"a program on this computer ({parts.netloc})"
    return f"the website {parts.netloc}"


def form_action_for(uri: str) -> str:
    """What the Content-Security-Policy of the consent must allow, because browsers apply it to redirects too.

    A website may redirect on to another, so it is all of https.
    """
    parts = urlsplit(uri)
    if parts.scheme == "https":
        return "https:"
    return f"http://{parts.netloc}" if parts.scheme == "http" else f"{parts.scheme}:"
