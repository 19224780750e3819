"""A TCP proxy between the hall and one of its services. It can be killed, cut off and muted."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends a reset
CONNECT_SECONDS = 5.0


class Proxy:
    """Listens on a fixed port of `own_host`. `address` is host:port.

    `kill()` resets connections and refuses new ones. After `mute()` connections stay open and are accepted, but no data
    passes until `heal()`. `cut()` does the same, but `heal()` then resets the connections, like a router without them.
    """

    def __init__(self, host: str, port: int, own_host: str = "127.0.0.1") -> None:
        self._service = host, port
        self._own_host = own_host
        self._can_pass, self._is_cut = threading.Event(), False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._port = 0
        self._listen()
        self.address = f"{own_host}:{self._port}"
        self.heal()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        self._reset_all()

    def mute(self) -> None:
        self._can_pass.clear()

    def cut(self) -> None:
        self._is_cut = True
        self._can_pass.clear()

    def heal(self) -> None:
        if self._listener.fileno() < 0:
            self._listen()
        if self._is_cut:
            self._reset_all()
        self._is_cut = False
        self._can_pass.set()

    def close(self) -> None:
        self.heal()
        self.kill()

    def _listen(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((self._own_host, self._port))
        self._listener.listen(64)
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            service = socket.create_connection(self._service, timeout=CONNECT_SECONDS)
        except OSError:
            _reset(client)
            return
        service.settimeout(None)
        with self._lock:
            self._sockets |= {client, service}
        threading.Thread(target=self._pump, args=(client, service), daemon=True).start()
        self._pump(service, client)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65_536):
                self._can_pass.wait()
                target.sendall(part)
        with self._lock:
            self._sockets -= {source, target}
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _reset_all(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for sock in sockets:
            _reset(sock)


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.shutdown(socket.SHUT_RD)  # wakes the reading thread
    sock.close()
