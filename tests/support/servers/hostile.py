"""A hostile member for tests: `hostile.py` on stdin and stdout, or `hostile.py PORT`. Each tool tries to escape.

A tool returns "escaped: ..." if it could do something, and otherwise the reason why not. Its argument `target` says
what to attack. Every attempt has a bound, for machines where it succeeds.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE = 16, 17, 0x4206


class Blocked(Exception):
    """An attempt that the kernel refused without an OSError."""


def read_file(target):
    return Path(target).read_bytes()[:20]


def list_folder(target):
    return os.listdir(target)[:5]


def write_file(target):
    Path(target).write_text("hostile")
    return target


def empty_file(target):
    os.truncate(target, 0)
    return target


def read_through_link(target):
    """Through a symbolic link in its own folder, and through a hard link."""
    link = Path("sub", f"link-{time.monotonic_ns()}")
    link.symlink_to(target)
    try:
        return link.read_bytes()[:20]
    except OSError:
        hard_link = link.with_suffix(".hard")
        os.link(target, hard_link)
        return hard_link.read_bytes()[:20]


def read_process(target):
    """What /proc shows of a process: its environment, memory, command line and open files."""
    reasons = []
    for name in ("environ", "mem", "maps", "cmdline", "fd/0"):
        try:
            with open(f"/proc/{target}/{name}", "rb") as file:
                file.read(1)
            return name
        except OSError as error:
            reasons.append(f"{name}: {error.strerror}")
    raise Blocked(", ".join(reasons))


def trace(target):
    for request in (PTRACE_SEIZE, PTRACE_ATTACH):
        if LIBC.ptrace(request, int(target), None, None) == 0:
            LIBC.ptrace(PTRACE_DETACH, int(target), None, None)
            return "traced"
    buffer = ctypes.create_string_buffer(8)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    if LIBC.process_vm_readv(int(target), vector, 1, vector, 1, 0) > 0:
        return "memory"
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def send_signal(target):
    os.kill(int(target), signal.SIGCONT)
    return "signal sent"


def change_attributes(target):
    """The mode and the times of a file or folder. The mode stays the same, because the test may run as root."""
    reasons = []
    for change in (lambda: os.chmod(target, os.stat(target).st_mode & 0o777), lambda: os.utime(target)):
        try:
            change()
            return "changed"
        except OSError as error:
            reasons.append(str(error.strerror))
    raise Blocked(", ".join(reasons))


def slow_down(target):
    """Change the limits, the priority and the CPUs of another process, to the same as before."""
    pid, reasons = int(target), []
    number = resource.RLIMIT_CORE
    for change in (
        lambda: resource.prlimit(pid, number, resource.prlimit(pid, number)),
        lambda: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)),
        lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)),
    ):
        try:
            change()
            return "changed"
        except OSError as error:
            reasons.append(str(error.strerror))
    raise Blocked(", ".join(reasons))


def share_memory(target):
    """Shared memory that all processes of the user can find by its number."""
    if (identifier := LIBC.shmget(int(target), 4096, 0o1600)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    LIBC.shmctl(identifier, 0, None)
    return "shared"


def hoard_memory(target):
    """Four processes that use so many megabytes each. They outlive this call."""
    code = f"import time; block = bytearray({int(target)} * 1_000_000); time.sleep(60)"
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    time.sleep(60)
    return f"{len(children)} processes"


def hoard_shared_memory(target):
    """As `hoard_memory`, but the processes could share the memory. The limit of the kernel does not know it."""
    code = (
        "import mmap, time\n"
        f"block = mmap.mmap(-1, {int(target)} * 1_000_000)\n"
        f"block.write(bytes([1]) * ({int(target)} * 1_000_000))\n"
        "time.sleep(60)\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    time.sleep(60)
    return f"{len(children)} processes"


def connect(target):
    """As usual, with TCP Fast Open, with MPTCP, with SMC, and with IPv6."""
    reasons = []
    port = int(target)
    for attempt in (connect_plainly, connect_fast, connect_by_mptcp, connect_by_smc, connect_by_ipv6):
        try:
            attempt(port)
            return attempt.__name__
        except OSError as error:
            reasons.append(f"{attempt.__name__}: {error.strerror}")
    raise Blocked(", ".join(reasons))


def connect_plainly(port):
    with socket.socket() as client:
        client.connect(("127.0.0.1", port))


def connect_fast(port):
    with socket.socket() as client:
        client.sendto(b"x", 0x2000_0000, ("127.0.0.1", port))


def connect_by_mptcp(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as client:
        client.connect(("127.0.0.1", port))


def connect_by_smc(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 256) as client:
        client.connect(("127.0.0.1", port))


def connect_by_ipv6(port):
    with socket.socket(socket.AF_INET6) as client:
        client.connect(("::ffff:127.0.0.1", port))


def listen(target):
    """On the port of another member, to answer in its place."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", int(target)))
    return "listening"


def connect_to_unix_socket(target):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            with socket.socket(socket.AF_UNIX, kind) as client:
                client.connect(target)
            return "connected"
        except PermissionError:
            continue
    raise Blocked("not permitted")


def send_to_unix_socket(target):
    """A datagram, from sockets that are connected to each other."""
    reasons = []
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        try:
            first, second = socket.socketpair(socket.AF_UNIX, kind)
            with first, second:
                first.sendto(b"x", target)
                if kind != socket.SOCK_SEQPACKET:  # which ignores the name and sends to the other one
                    return kind.name
        except OSError as error:
            reasons.append(f"{kind.name}: {error.strerror}")
    raise Blocked(", ".join(reasons))


def allocate_memory(target):
    """Allocate and use so many megabytes."""
    block = bytearray(int(target) * 1_000_000)
    return f"{len(block)} bytes"


def open_descriptors(target):
    descriptors = []
    try:
        for _ in range(int(target)):
            descriptors.append(os.dup(0))
        return f"{len(descriptors)} descriptors"
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def write_much(target):
    """Write a file of so many megabytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open("sub/much", "wb") as file:
        file.truncate(int(target) * 1_000_000)
    return "written"


def start_processes(target):
    """Processes that start others, up to a number of them. They outlive this call."""
    if os.fork():
        time.sleep(60)
        return "not ended"
    count = 0
    while count < int(target):
        try:
            if os.fork():
                count += 1
            else:
                os.setsid()
                time.sleep(30)
                os._exit(0)
        except OSError:
            time.sleep(0.05)
    time.sleep(30)
    os._exit(0)


def hide_process(target):
    """A process in its own session, without environment, which tries to drop the birthmark and writes its pid."""
    code = (
        "import ctypes, os, resource, time\n"
        "try: resource.setrlimit(resource.RLIMIT_RTTIME, (0, 0)); text = 'changed'\n"
        "except (OSError, ValueError) as error: text = str(error)\n"
        f"open({target!r}, 'w').write(f'{{os.getpid()}} {{text}}')\n"
        "time.sleep(60)\n"
    )
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={}, close_fds=True)
    for _ in range(100):
        if Path(target).exists() and Path(target).read_text():
            return Path(target).read_text()
        time.sleep(0.1)
    raise Blocked("it was not started")


def tools():
    return {
        function.__name__: function
        for function in (
            *(read_file, list_folder, write_file, empty_file, read_through_link, read_process, trace, send_signal),
            *(
                change_attributes,
                slow_down,
                share_memory,
                hoard_memory,
                hoard_shared_memory,
                connect,
                listen,
                connect_to_unix_socket,
                send_to_unix_socket,
                allocate_memory,
                open_descriptors,
                write_much,
            ),
            *(start_processes, hide_process),
        )
    }


def attempt(name, target):
    try:
        return f"escaped: {tools()[name](target)}"
    except (OSError, Blocked, MemoryError) as error:
        return f"refused: {type(error).__name__} {error}"


def answer(message):
    """The response to a message. None for a notification."""
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        return None
    if method == "initialize":
        result = {
            "protocolVersion": params.get("protocolVersion", "2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hostile", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools()]}
    elif method == "tools/call":
        text = attempt(params["name"], str(params.get("arguments", {}).get("target", "")))
        result = {"content": [{"type": "text", "text": text}]}
    else:
        result = {}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        response = answer(json.loads(body))
        content = json.dumps(response).encode() if response else b""
        self.send_response(200 if response else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        self.send_response(405)
        self.send_header("Content-Length", "0")
        self.end_headers()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
    for line in sys.stdin:
        if response := answer(json.loads(line)):
            print(json.dumps(response), flush=True)
