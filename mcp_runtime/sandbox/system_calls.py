"""A filter of system calls (seccomp(2)), for what Landlock does not know.

It refuses the following. Each would be a way around Landlock, or around the limits:

- Sockets that are not for IP, mainly Unix sockets: a session bus or a container engine starts programs for others.
- Protocols such as MPTCP and SMC, others above a TCP socket, and TCP Fast Open. With these a connection avoids the
  rules of Landlock for ports.
- io_uring, whose operations this filter does not see.
- The keys that the kernel keeps for the user (keyrings(7)), and shared memory, semaphores and queues (sysvipc(7)).
- Changes of the limits and priorities of other processes, such as the hall.
- A change of the limit that is the birthmark of the member's processes, by which the hall finds them.

The numbers are those of the kernel's headers.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16  # netlink lists the network interfaces
SOCK_TYPE_MASK, SOCK_STREAM, SOCK_SEQPACKET = 0xF, 1, 5
IPPROTO_TCP = 6
# The default of a type, ICMP, TCP, UDP and ICMPv6. MPTCP and SMC become TCP without Landlock's notice.
PROTOCOLS = (0, 1, IPPROTO_TCP, 17, 58)
TCP_ULP = 31
MSG_FASTOPEN = 0x2000_0000
RLIMIT_RTTIME = 15
# Calls that are refused whatever their arguments are.
REFUSED = (
    *("io_uring_setup", "add_key", "request_key", "keyctl"),
    *("shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
)
# Calls whose first argument is a process, and 0 for the process itself.
ONLY_ITSELF = ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
IOPRIO_WHO_PROCESS = 1
X32_CALLS = 0x4000_0000  # x86 has a second set of numbers

# By machine: the kernel's number for the architecture, and its numbers of system calls.
MACHINES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000_003E,
        {
            **{"socket": 41, "socketpair": 53, "sendto": 44, "sendmsg": 46, "sendmmsg": 307, "setsockopt": 54},
            **{"setrlimit": 160, "prlimit64": 302, "io_uring_setup": 425},
            **{"add_key": 248, "request_key": 249, "keyctl": 250},
            **{"shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220},
            **{"msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241},
            **{"setpriority": 141, "ioprio_set": 251, "sched_setparam": 142, "sched_setscheduler": 144},
            **{"sched_setaffinity": 203, "sched_setattr": 314},
        },
    ),
    "aarch64": (
        0xC000_00B7,
        {
            **{"socket": 198, "socketpair": 199, "sendto": 206, "sendmsg": 211, "sendmmsg": 269, "setsockopt": 208},
            **{"setrlimit": 164, "prlimit64": 261, "io_uring_setup": 425},
            **{"add_key": 217, "request_key": 218, "keyctl": 219},
            **{
                "shmget": 194,
                "shmat": 196,
                "shmctl": 195,
                "semget": 190,
                "semop": 193,
                "semctl": 191,
                "semtimedop": 192,
            },
            **{"msgget": 186, "msgsnd": 189, "msgrcv": 188, "msgctl": 187, "mq_open": 180, "mq_unlink": 181},
            **{"setpriority": 140, "ioprio_set": 30, "sched_setparam": 118, "sched_setscheduler": 119},
            **{"sched_setaffinity": 122, "sched_setattr": 274},
        },
    ),
}

# Instructions of classic BPF (linux/bpf_common.h), and where the data of a call is (struct seccomp_data).
LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
ALLOW, REFUSE = 0x7FFF_0000, 0x0005_0000  # REFUSE has the errno in its lower half
Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, value


def is_available() -> bool:
    """Whether this kernel filters system calls, and this module knows the numbers of the machine."""
    if sys.platform != "linux" or os.uname().machine not in MACHINES:
        return False
    # The address is wrong on purpose, and a kernel with filters says so.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


def restrict_self() -> None:
    """Filter the system calls of this process from now on. Raises OSError."""
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions(os.uname().machine))
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, MODE_FILTER, header, 0, 0)):
        if libc.prctl(*arguments) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"the filter of system calls: {os.strerror(number)}")


def instructions(machine: str) -> list[Instruction]:
    """The filter for this machine, of the form that the kernel runs for each system call."""
    architecture, numbers = MACHINES[machine]
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, architecture),
        _refuse(errno.EPERM),  # 32-bit programs have other numbers
        (LOAD, 0, 0, NUMBER),
        (JUMP_GREATER_EQUAL, 0, 1, X32_CALLS),
        _refuse(errno.ENOSYS),
    ]
    for name, body in _bodies().items():
        program += [(LOAD, 0, 0, NUMBER), (JUMP_EQUAL, 0, len(body), numbers[name]), *body]
    return [*program, (RETURN, 0, 0, ALLOW)]


def _bodies() -> dict[str, list[Instruction]]:
    """What the filter does at each call. At the end of a body it goes on."""
    no_fast_open = [(JUMP_ANY_BIT, 0, 1, MSG_FASTOPEN), _refuse(errno.EOPNOTSUPP)]
    return {
        "socket": [
            _load(0),
            *_refuse_others((AF_INET, AF_INET6, AF_NETLINK), errno.EACCES),
            _load(2),
            *_refuse_others(PROTOCOLS, errno.EPROTONOSUPPORT),
        ],
        # A pair is connected to itself, but one of datagrams can still send to a name. Raw ones are datagrams too.
        "socketpair": [
            _load(0),
            *_refuse_others((AF_UNIX,), errno.EACCES),
            _load(1),
            (AND, 0, 0, SOCK_TYPE_MASK),
            *_refuse_others((SOCK_STREAM, SOCK_SEQPACKET), errno.EACCES),
        ],
        "setsockopt": [
            _load(1),
            (JUMP_EQUAL, 0, 3, IPPROTO_TCP),
            _load(2),
            (JUMP_EQUAL, 0, 1, TCP_ULP),
            _refuse(errno.EPERM),
        ],
        "sendto": [_load(3), *no_fast_open],
        "sendmsg": [_load(2), *no_fast_open],
        "sendmmsg": [_load(3), *no_fast_open],
        "setrlimit": [_load(0), (JUMP_EQUAL, 0, 1, RLIMIT_RTTIME), _refuse(errno.EPERM)],
        # Without new values, which are its third argument, prlimit only reads.
        "prlimit64": [
            _load(2),
            (JUMP_EQUAL, 0, 2, 0),
            _load(2, upper=True),
            (JUMP_EQUAL, 5, 0, 0),
            _load(0),
            (JUMP_EQUAL, 0, 2, 0),
            _load(1),
            (JUMP_EQUAL, 0, 1, RLIMIT_RTTIME),
            _refuse(errno.EPERM),
        ],
        "setpriority": [_load(0), (JUMP_EQUAL, 0, 2, 0), _load(1), (JUMP_EQUAL, 1, 0, 0), _refuse(errno.EPERM)],
        "ioprio_set": [
            _load(0),
            (JUMP_EQUAL, 0, 2, IOPRIO_WHO_PROCESS),
            _load(1),
            (JUMP_EQUAL, 1, 0, 0),
            _refuse(errno.EPERM),
        ],
        **{name: [_load(0), (JUMP_EQUAL, 1, 0, 0), _refuse(errno.EPERM)] for name in ONLY_ITSELF},
        **{name: [_refuse(errno.EPERM)] for name in REFUSED},
    }


def _load(argument: int, *, upper: bool = False) -> Instruction:
    """Load the lower or upper half of an argument. All machines here are little-endian."""
    return (LOAD, 0, 0, ARGUMENTS + 8 * argument + 4 * upper)


def _refuse_others(values: tuple[int, ...], number: int) -> list[Instruction]:
    """Refuse with this errno if the loaded number is none of the values."""
    jumps = [(JUMP_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [*jumps, _refuse(number)]


def _refuse(number: int) -> Instruction:
    return (RETURN, 0, 0, REFUSE | number)
