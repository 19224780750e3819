"""Makes faults in a real hall, and writes what it recorded: `python -m tests.support.faults.collect [NAME...]`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.certificates import Authority
from tests.support.faults import MEMBERS_DIR, Recording, local, remote

ROOT = Path(__file__).parents[3]
FAULTS = {**local.ALL, **remote.ALL}
PATIENCE = 150.0
ROWS = """
import json
from roster.models import GuildMember
rows = GuildMember.objects.filter(status="error").values_list("name", "last_error")
print(json.dumps(dict(rows)))
"""


def main(names: Collection[str]) -> None:
    chosen = {name: fault for name, fault in FAULTS.items() if not names or name in names}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places = _places(stack, folder)
        members_dir = folder / "members"
        members_dir.mkdir()
        for name, fault in chosen.items():
            fault.write(name.replace("_", "-"), members_dir, **places)
        environment = _environment(folder)
        _manage(environment, "migrate", "-v0")
        argv = [sys.executable, "-m", "mcp_runtime.runtime.guard"]
        with _process(argv, env=environment, stdout=(folder / "log").open("wb"), stderr=subprocess.STDOUT):
            errors = _errors(environment, len(chosen))
        for name, fault in chosen.items():
            if error := errors.get(name.replace("_", "-")):
                manifest = json.loads(_portable(json.dumps(dict(fault.manifest)), folder, places))
                Recording(name, fault.how, manifest, _portable(error, folder, places)).write()
            else:
                print(f"no error: {name}")


def _places(stack: ExitStack, folder: Path) -> dict[str, str]:
    Authority(folder).context()
    certificate = folder / "both.pem"
    certificate.write_text((folder / "server.pem").read_text() + (folder / "server.key").read_text())
    taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    ports = [_free_port() for _ in range(4)]
    serve = [sys.executable, "-m", "tests.support.faults.remote"]
    stack.enter_context(_process([*serve, str(ports[0])], cwd=ROOT))
    stack.enter_context(_process([*serve, str(ports[1]), str(certificate)], cwd=ROOT))
    files = [sys.executable, "-m", "http.server", str(ports[2]), "--bind", "127.0.0.1"]
    stack.enter_context(_process(files, cwd=folder, stderr=subprocess.DEVNULL))
    outside = folder / "outside.txt"
    outside.write_text("private")
    return {
        "port": str(taken.getsockname()[1]),
        "free": str(ports[3]),
        "http": f"http://127.0.0.1:{ports[0]}",
        "tls": f"https://127.0.0.1:{ports[1]}",
        "http as https": f"https://127.0.0.1:{ports[0]}",
        "tls as http": f"http://127.0.0.1:{ports[1]}",
        "files": f"http://127.0.0.1:{ports[2]}",
        "outside": str(outside),
        "uvx": str(Path(sys.executable).parent / "uvx"),
        "pythons": os.environ.get("PYTHONS", str(Path.home() / ".pyenv/versions")),
    }


def _portable(text: str, folder: Path, places: dict[str, str]) -> str:
    """The text without the places of this machine and the hosts of public registries."""
    names = {
        places["pythons"]: "/opt/python",
        places["uvx"]: "/usr/local/bin/uvx",
        str(folder / "members"): MEMBERS_DIR,
        str(folder): "/srv",
        str(Path.home()): "/home/hall",
    }
    for key, value in places.items():
        text = text.replace(f"<{key}>", value)
    for place, name in names.items():
        text = text.replace(place, name)
    return re.sub(r"\bregistry\.[a-z]+js\.org\b", "registry.example.org", text)


def _environment(folder: Path) -> dict[str, str]:
    data_dir = folder / "data"
    data_dir.mkdir(mode=0o700)
    own = {key: value for key, value in os.environ.items() if not key.startswith(("GUILD_HALL_", "DATABASE_URL"))}
    return own | {
        "GUILD_HALL_ENV_FILE": os.devnull,
        "GUILD_HALL_DATA_DIR": str(data_dir),
        "GUILD_HALL_MEMBERS_DIR": str(folder / "members"),
        "GUILD_HALL_PORT_RANGE": "28000-28200",
        "GUILD_HALL_GATEWAY_PORT": str(_free_port()),
        "PYTHONPATH": str(ROOT),
    }


def _errors(environment: dict[str, str], count: int) -> dict[str, str]:
    """The errors of the members, when all of them have one."""
    errors: dict[str, str] = {}
    deadline = time.monotonic() + PATIENCE
    while len(errors) < count and time.monotonic() < deadline:
        time.sleep(1)
        errors = json.loads(_manage(environment, "shell", "-v0", "-c", ROWS)) | errors  # the first error of each
    return errors


def _manage(environment: dict[str, str], *argv: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *argv], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


@contextmanager
def _process(argv: list[str], **options: Any) -> Iterator[None]:
    process = subprocess.Popen(argv, **options)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(sys.argv[1:])
