"""`bridge PORT -- COMMAND...` serves the MCP of COMMAND over HTTP on 127.0.0.1:PORT.

Most MCP servers read JSON-RPC line by line from stdin, and answer on stdout. The runtime spawns this program in place
of their command. The program starts the command as its only child, in the same process group. It ends with the child,
and with its exit code, which is 128 + n for signal n. The bridge's own exit code 2, with PORT_TAKEN on stderr, means
that another process uses the port.

There is one bridge for each stdio member, so it is small, and uses only the standard library without site-packages. It
has one thread and non-blocking descriptors, so that a caller that does not read delays nobody. All its memory is
bounded.
"""

from __future__ import annotations

import errno
import socket

from mcp_runtime.bridge.command import EXIT_PORT_TAKEN, EXIT_USAGE, PORT_TAKEN
from mcp_runtime.bridge.complaints import complain, write_stderr
from mcp_runtime.bridge.relay import Bridge

MAX_BYTES = 4_000_000  # of one line of the server, without --max-bytes


def listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(256)
    listener.setblocking(False)
    return listener


def main(argv: list[str]) -> int:
    options, command = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    match options:
        case [port] if command:
            max_bytes = MAX_BYTES
        case [port, "--max-bytes", number] if command:
            max_bytes = int(number)
        case _:
            complain("usage: bridge PORT [--max-bytes N] -- COMMAND [ARGUMENT...]")
            return EXIT_USAGE
    try:
        listener = listen(int(port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            write_stderr(f"{PORT_TAKEN} {port}\n".encode())
            return EXIT_PORT_TAKEN
        complain(f"cannot listen on port {port}: {error.strerror}")
        return 1
    return Bridge(listener, command, max_bytes).run()
