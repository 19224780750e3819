"""The sandbox of a member: the policy for its process, and what of it this machine cannot enforce. No Django.

Landlock only allows, so a policy lists what a member may read. Everything else is refused: other members, the data
folder, keys and the rest of the home folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from mcp_runtime.members.manifest.declaration import Manifest, ProcessLimits
from mcp_runtime.members.manifest.files import BUNDLE
from mcp_runtime.members.unpacking import DIGEST_FILE
from mcp_runtime.protocol.errors import SpawnError
from mcp_runtime.sandbox import capabilities, landlock, variables
from mcp_runtime.sandbox.capabilities import Capabilities
from mcp_runtime.sandbox.command import command_line
from mcp_runtime.sandbox.policy import Policy
from mcp_runtime.system.control_groups import ControlGroups

# Programs, libraries and what they read at their start.
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store"),
    *("/home/linuxbrew/.linuxbrew", "/snap", "/run/systemd/resolve", "/var/lib/ca-certificates"),
    *("/sys/devices/system/cpu", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage"),
    *(f"/proc/{name}" for name in ("cpuinfo", "loadavg", "meminfo", "stat", "sys", "uptime", "version", "filesystems")),
    *(
        f"/etc/{name}"
        for name in (
            *("alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version"),
            *("default/locale", "fonts", "gai.conf", "group", "host.conf", "hostname", "hosts", "inputrc"),
            *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "locale.alias", "locale.conf"),
            *("localtime", "machine-id", "magic", "mime.types", "networks", "nsswitch.conf", "os-release"),
            *("passwd", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "profile"),
            *("protocols", "resolv.conf", "rpc", "services", "shells", "ssl/certs", "ssl/cert.pem"),
            *("ssl/openssl.cnf", "terminfo", "timezone", "xattr.conf"),
        )
    ),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Where people install languages and tools in their home folder. None of these has keys or logins.
HOME_PROGRAMS = (
    *(".local/bin", ".local/lib", ".local/pipx/venvs", ".local/share/uv/python", ".local/share/uv/tools"),
    *(".local/share/pipx/venvs", ".local/share/mise/installs", ".local/share/fnm", ".nvm", ".fnm", ".volta", ".pyenv"),
    *(".rbenv", ".asdf", ".bun/bin", ".bun/install/global", ".deno/bin", ".cargo/bin", ".rustup/toolchains"),
    *("go/bin", "miniconda3", "miniforge3", "anaconda3", ".sdkman/candidates"),
)
# They look for their files in the home folder, unless a variable names another place.
MANAGERS = {"PYENV_ROOT": ".pyenv", "VOLTA_HOME": ".volta", "ASDF_DATA_DIR": ".asdf", "BUN_INSTALL": ".bun"}
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")
# The resource limits by the keys of `limits` in a manifest, and the factor from its unit.
RESOURCES = {
    "memory_mb": ("RLIMIT_DATA", 1_000_000),
    "open_files": ("RLIMIT_NOFILE", 1),
    "cpu_seconds": ("RLIMIT_CPU", 1),
    "file_mb": ("RLIMIT_FSIZE", 1_000_000),
}
# For a member in a sandbox whose manifest names no other limit.
DEFAULT_LIMITS = {"memory_mb": 4_000, "open_files": 4_096, "file_mb": 2_000}
# The hall itself counts these. The kernel counts threads, and without control groups those of the whole user.
DEFAULT_PROCESSES = 256
THREADS_OF_PROCESS = 16
MAX_ENTRIES = 10_000  # of a folder that is allowed without a part of it


def require(manifest: Manifest, machine: Capabilities) -> None:
    """Raises SpawnError if the manifest requires what this machine cannot enforce."""
    if manifest.sandbox == "require" and (gaps := machine.gaps):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in gaps.items())
        raise SpawnError(f"its manifest requires the sandbox, and this machine cannot enforce all of it. {reasons}")


@dataclass
class Sandboxes:
    """Prepares the sandboxes of one runtime's members.

    `private_paths` are files and folders that no member may read, except its own folder. `refused_ports` are ranges of
    TCP ports where no member may connect to.
    """

    data_dir: Path
    private_paths: Collection[Path]
    refused_ports: Collection[tuple[int, int]]
    machine: Capabilities = field(default_factory=capabilities.probe)
    on_answer: Callable[[Capabilities], None] = lambda machine: None
    """Called when a machine that gave no answer at first has given it."""
    groups: ControlGroups = field(default_factory=ControlGroups.find)
    _ruleset: int = -1
    _creation: threading.Lock = field(default_factory=threading.Lock)

    def policy(
        self, manifest: Manifest, folder: Path, port: int, *, read: Collection[Path] = (), write: Collection[Path] = ()
    ) -> Policy | None:
        """The policy for the process of a member in `folder`. None if it has neither a sandbox nor limits.

        `read` and `write` are more places that it may use, also in the data folder.

        Creates the home of the member. Raises SpawnError if that is not possible, if the manifest requires more than
        this machine can enforce, or if the machine does not say what it can enforce.
        """
        if manifest.sandbox != "off":
            self._await_answer()
        require(manifest, self.machine)
        try:
            if manifest.sandbox != "off":
                policy = self._whole_policy(manifest, folder, port)
                policy["read"] += map(str, read)
                policy["write"] += map(str, write)
                policy["mounts"] += map(str, write if policy["mounts"] else ())
                return policy
            limits = {**resource_limits(manifest.limits, {}), **process_backstop(manifest)}
            group = self._group(manifest)
            return {**_NO_PROTECTION, "limits": limits, "group": group} if limits or group else None
        except OSError as error:
            raise SpawnError(f"its sandbox cannot be prepared: {error}") from error

    def _await_answer(self) -> None:
        """Ask the machine again if it gave no answer. Raises SpawnError, because that is no reason to protect less."""
        if not self.machine.fault:
            return
        machine = capabilities.probe()
        if machine.fault:
            raise SpawnError(
                f"its manifest has a sandbox, and {machine.fault}. The hall looks again at the next start; "
                "restart the member when the machine has less to do"
            )
        self.on_answer(machine)
        self.machine = machine

    def _whole_policy(self, manifest: Manifest, folder: Path, port: int) -> Policy:
        home = home_of(self.data_dir, manifest.name)
        for place in (home, temporary_of(home)):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        limits = {**resource_limits(manifest.limits, DEFAULT_LIMITS), **process_backstop(manifest), "RLIMIT_CORE": 0}
        return {
            "landlock": self.machine.landlock,
            "has_filter": self.machine.has_filter,
            "read": self._readable(manifest, folder),
            "write": [*DEVICES, str(home), str(temporary_of(home)), *_subfolders(folder)],
            "mounts": [str(folder.resolve()), str(home.parent)] if self.machine.has_mounts else [],
            "port": port,
            "ruleset": self._port_ruleset(),
            "limits": limits,
            "group": self._group(manifest),
            "temporary": str(temporary_of(home)),
        }

    def _group(self, manifest: Manifest) -> str:
        """The control group of the member, with its limits. Empty if it has no limits, or the hall no groups."""
        memory, processes = max_memory(manifest), max_processes(manifest)
        if not memory and not processes:
            return ""
        group = self.groups.create(manifest.name, memory=memory, threads=processes * THREADS_OF_PROCESS)
        return str(group or "")

    def environment(self, manifest: Manifest) -> dict[str, str]:
        """The variables that lead a member in a sandbox to its own folders, and to the user's programs."""
        if manifest.sandbox == "off":
            return {}
        home, user_home = home_of(self.data_dir, manifest.name), _user_home()
        managers = {name: str(user_home / place) for name, place in MANAGERS.items() if (user_home / place).is_dir()}
        return {**managers, "HOME": str(home), "TMPDIR": str(temporary_of(home))}

    def _readable(self, manifest: Manifest, folder: Path) -> list[str]:
        user_home = _user_home()
        private = {path for given in (self.data_dir, *self.private_paths) for path in (given, given.resolve())}
        places = [
            *map(Path, (*SYSTEM, sys.prefix, sys.base_prefix)),
            *(user_home / place for place in HOME_PROGRAMS),
            *(Path(os.environ[name]) for name in CERTIFICATE_VARIABLES if os.environ.get(name)),
            *_program(manifest, folder, private),
        ]
        allowed = [
            part for place in places for part in _parts(Path(os.path.realpath(place)), private, user_home.resolve())
        ]
        return list(dict.fromkeys([*map(str, allowed), str(folder.resolve())]))

    def _port_ruleset(self) -> int:
        """The descriptor of the ruleset for ports, which all members share. -1 if the kernel has no rules for ports."""
        if self.machine.landlock < landlock.PORTS_SINCE:
            return -1
        with self._creation:
            if self._ruleset < 0:
                self._ruleset = landlock.create_port_ruleset(list(self.refused_ports))
            return self._ruleset


@contextlib.contextmanager
def entrance(policy: Policy, argv: list[str], environment: Mapping[str, str]) -> Iterator[tuple[list[str], list[int]]]:
    """The command that starts `argv` with this policy and environment, and the descriptors that it must inherit.

    Raises SpawnError. Start that command itself without variables of the member, because the dynamic loader obeys them.
    """
    try:
        descriptor = variables.write(environment)
    except OSError as error:
        raise SpawnError(f"its environment cannot be handed over: {error.strerror or error}") from error
    try:
        rulesets = [policy["ruleset"]] if policy["ruleset"] >= 0 else []
        yield command_line(policy, descriptor, argv), [descriptor, *rulesets]
    finally:
        os.close(descriptor)


_NO_PROTECTION: Policy = {
    "landlock": 0,
    "has_filter": False,
    "read": [],
    "write": [],
    "mounts": [],
    "port": 0,
    "ruleset": -1,
    "limits": {},
    "group": "",
    "temporary": "",
}


def resource_limits(limits: ProcessLimits, defaults: Mapping[str, int]) -> dict[str, int]:
    """The limits of the manifest, or the defaults, by the names of the module resource."""
    values = {key: getattr(limits, key) or defaults.get(key) for key in RESOURCES}
    return {RESOURCES[key][0]: value * RESOURCES[key][1] for key, value in values.items() if value}


def process_backstop(manifest: Manifest) -> dict[str, int]:
    """A limit of the kernel that stops a member between two looks of the hall (`usage`).

    The kernel counts the threads of all processes of the user, so the limit is above their present number. It does not
    count those of root.
    """
    processes = max_processes(manifest)
    if not processes or os.geteuid() == 0 or sys.platform != "linux":
        return {}
    return {"RLIMIT_NPROC": _threads_of_user() + processes * THREADS_OF_PROCESS}


def _threads_of_user() -> int:
    count = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            if os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def max_processes(manifest: Manifest) -> int:
    """The number of processes that the member may have at the same time. 0 if there is no limit."""
    return manifest.limits.processes or (DEFAULT_PROCESSES if manifest.sandbox != "off" else 0)


def max_memory(manifest: Manifest) -> int:
    """The bytes of memory that all processes of the member may use together. 0 if there is no limit."""
    return (manifest.limits.memory_mb or (DEFAULT_LIMITS["memory_mb"] if manifest.sandbox != "off" else 0)) * 1_000_000


def _user_home() -> Path:
    return Path(os.path.expanduser("~"))  # Path.home raises an error for a user without a home


def home_of(data_dir: Path, name: str) -> Path:
    """The home folder of a member in a sandbox."""
    return data_dir / "sandboxes" / name / "home"


def temporary_of(home: Path) -> Path:
    return home.with_name("tmp")


def _subfolders(folder: Path) -> Iterator[str]:
    """The folders in the member's folder that it may write: all but that with the files of its bundle.

    The folder itself is not among them, because it has the manifest. A member that could write its manifest could leave
    its sandbox with it.
    """
    fixed = {BUNDLE} if (folder / DIGEST_FILE).exists() else set()
    with os.scandir(folder) as entries:
        found = [entry for entry in islice(entries, MAX_ENTRIES) if entry.name not in fixed]
        yield from sorted(entry.path for entry in found if entry.is_dir(follow_symlinks=False))


def _program(manifest: Manifest, folder: Path, private: Collection[Path]) -> Iterator[Path]:
    """The file of the command and, if it is in a virtual environment, this environment.

    Nothing if it is in the member's folder, which the member may read anyway, or in a private place. There a member may
    have written a link to any file. For the same reason, what pyvenv.cfg says about its Python does not count.
    """
    path = manifest.env.get("PATH") or os.environ.get("PATH") or os.defpath
    command = manifest.command
    file = Path(folder, command) if os.path.dirname(command) else Path(shutil.which(command, path=path) or command)
    file = Path(os.path.abspath(file))  # not resolved: a folder of the member may have become a link
    parents = (file.parent, Path(os.path.realpath(file.parent)))
    if any(parent.is_relative_to(path) for parent in parents for path in (folder, folder.resolve(), *private)):
        return
    yield file
    environment = file.parent.parent
    if (environment / "pyvenv.cfg").is_file():
        yield environment


def _parts(place: Path, private: Collection[Path], user_home: Path) -> Iterator[Path]:
    """The place, or its parts without private ones and the home folder. Nothing if it is within a private place.

    A place within the home folder is allowed, because only named ones are asked for. Links in the place are left out,
    because they may lead anywhere.
    """
    if place == user_home or any(place.is_relative_to(path) for path in private):
        return
    if not any(path.is_relative_to(place) for path in (*private, user_home)):
        yield place
        return
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            if not entry.is_symlink():
                yield from _parts(Path(entry.path), private, user_home)
