"""A certificate authority for one test, and certificates that it signs. Uses openssl, so it needs no library."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "ca.pem"
        self._key = folder / "ca.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-keyout", str(self._key), "-out", str(self.file), "-subj", "/CN=Guild Hall tests"),
        )

    def context(self, name: str = "IP:127.0.0.1") -> ssl.SSLContext:
        """The context of a server with this subjectAltName."""
        key, request, certificate, extension = (self._folder / f"server.{end}" for end in ("key", "csr", "pem", "ext"))
        extension.write_text(f"subjectAltName={name}\n")
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", str(key), "-out", str(request), "-subj", "/CN=server"),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.file), "-CAkey", str(self._key), "-CAcreateserial"),
            *("-days", "2", "-extfile", str(extension), "-out", str(certificate)),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context


def _openssl(*argv: str) -> None:
    subprocess.run(["openssl", *argv], check=True, capture_output=True, timeout=30)
