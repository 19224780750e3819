from __future__ import annotations

import inspect
import re
import signal

import pytest

from mcp_runtime.protocol import errors
from mcp_runtime.protocol.errors import (
    ErrorKind,
    ExitedEarlyError,
    HttpStatusError,
    ManifestError,
    McpRuntimeError,
    NoFreePortError,
    NotListeningError,
    StartTimeoutError,
    describe_exit,
)
from tests.conftest import ROOT

CLASSES = {
    name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)
}


def drawn() -> dict[str, str]:
    """Each class of the tree in the module's docstring, and the one it hangs under."""
    parents: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines()[2:]:
        indent = len(line) - len(line.lstrip())
        names = re.findall(r"(?:^|  )([A-Z]\w*Error)\b", line.strip())
        while path and path[-1][0] >= indent:
            path.pop()
        parents |= dict.fromkeys(names, path[-1][1] if path else "")
        if names:
            path.append((indent, names[0]))
    return parents


def test_the_tree_that_is_drawn_is_the_tree_that_is() -> None:
    assert drawn() == {name: "" if cls is McpRuntimeError else cls.__base__.__name__ for name, cls in CLASSES.items()}


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_says_in_one_line_what_it_means(name: str) -> None:
    text = CLASSES[name].__doc__
    assert text
    assert text.strip().splitlines()[0].endswith((".", '."'))


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_is_one_of_ours(name: str) -> None:
    assert issubclass(CLASSES[name], McpRuntimeError)
    assert name == "McpRuntimeError" or name.endswith("Error")


@pytest.mark.parametrize(
    ("exit_code", "said"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGKILL, "signal SIGKILL"),
        (-signal.SIGSEGV, "signal SIGSEGV"),
        (-250, "signal 250"),
    ],
)
def test_an_exit_is_said_in_words(exit_code: int, said: str) -> None:
    assert describe_exit(exit_code) == said
    assert str(ExitedEarlyError(exit_code)) == f"ended with {said} before the handshake was done"


def test_a_manifests_fault_names_the_key_when_there_is_one() -> None:
    assert str(ManifestError("args.1", "must be text")) == "args.1: must be text"
    assert str(ManifestError("", "is not JSON")) == "is not JSON"


def test_an_exhausted_range_says_what_to_do() -> None:
    said = str(NoFreePortError(20000, 20009))
    assert "from 20000 to 20009" in said
    assert "all 10 are taken" in said
    assert "GUILD_HALL_PORT_RANGE" in said


def test_a_start_that_took_too_long_says_how_long_and_why() -> None:
    assert str(StartTimeoutError(5.0)) == "did not complete the initialize handshake within 5 s"
    assert str(NotListeningError(5.04)).startswith("nothing listened on its port within 5 s of its start; ")
    assert str(StartTimeoutError(2.5, "connection refused")).endswith("within 2.5 s (connection refused)")


def test_a_status_without_a_word_stands_alone() -> None:
    assert str(HttpStatusError(502)) == "answered with HTTP status 502"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-32601, "no (JSON-RPC error -32601: method not found)"),
        (-32022, "no (JSON-RPC error -32022: unsupported protocol version)"),
        (17, "no (JSON-RPC error 17)"),
    ],
)
def test_a_known_code_is_told_with_its_meaning(code: int, said: str) -> None:
    assert str(errors.RemoteError(code, "no")) == said


@pytest.mark.parametrize("kind", ErrorKind, ids=str)
def test_every_kind_of_failure_is_in_the_documents_with_whether_it_may_have_run(kind: ErrorKind) -> None:
    assert f"| `{kind}` |" in (ROOT / "docs" / "architecture.md").read_text()
    about = [
        line for line in (ROOT / "docs" / "gateway.md").read_text().splitlines() if line.startswith(f"| `{kind}` |")
    ]
    assert [line.endswith("| Yes |") for line in about] in ([], [not kind.may_have_run])


def test_a_call_that_was_never_sent_is_said_so_to_agents() -> None:
    assert ErrorKind.UNAVAILABLE.data("notes") == {"member": "notes", "kind": "unavailable", "sent": False}
    assert ErrorKind.TIMEOUT.data() == {"kind": "timeout"}
