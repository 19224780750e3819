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
    RequestTimeoutError,
    StartTimeoutError,
    describe_exit,
)
from tests.conftest import ROOT

ERROR_CLASSES = {
    name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)
}


def documented_tree() -> dict[str, str]:
    """Each class of the tree in the module's docstring, with its parent."""
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


def test_the_documented_tree_of_errors_is_the_real_one() -> None:
    assert documented_tree() == {
        name: "" if cls is McpRuntimeError else cls.__base__.__name__ for name, cls in ERROR_CLASSES.items()
    }


@pytest.mark.parametrize("name", ERROR_CLASSES)
def test_the_docstring_of_every_error_begins_with_a_sentence(name: str) -> None:
    text = ERROR_CLASSES[name].__doc__
    assert text
    assert text.strip().splitlines()[0].endswith((".", '."'))


@pytest.mark.parametrize("name", ERROR_CLASSES)
def test_every_error_is_a_McpRuntimeError(name: str) -> None:
    assert issubclass(ERROR_CLASSES[name], McpRuntimeError)
    assert name == "McpRuntimeError" or name.endswith("Error")


@pytest.mark.parametrize(
    ("exit_code", "text"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGKILL, "signal SIGKILL"),
        (-signal.SIGSEGV, "signal SIGSEGV"),
        (-250, "signal 250"),
    ],
)
def test_an_exit_code_is_described_in_words(exit_code: int, text: str) -> None:
    assert describe_exit(exit_code) == text
    assert str(ExitedEarlyError(exit_code)) == f"ended with {text} before the handshake was done"


def test_a_manifest_error_names_its_key() -> None:
    assert str(ManifestError("args.1", "must be text")) == "args.1: must be text"
    assert str(ManifestError("", "is not JSON")) == "is not JSON"


def test_the_error_about_an_exhausted_port_range_has_advice() -> None:
    text = str(NoFreePortError(20000, 20009))
    assert "from 20000 to 20009" in text
    assert "all 10 are taken" in text
    assert "GUILD_HALL_PORT_RANGE" in text


def test_the_error_about_a_slow_start_has_the_time_and_the_reason() -> None:
    assert str(RequestTimeoutError(4.88139)) == "no complete answer within 4.9 s"
    assert str(RequestTimeoutError(0.2)) == "no complete answer within 0.2 s"
    assert str(RequestTimeoutError(0.0512)) == "no complete answer within 0.05 s"
    assert str(NotListeningError(5.0, [8000])).endswith("within 5 s of its start; it listens on port 8000 instead")
    assert str(StartTimeoutError(5.0)) == "did not complete the initialize handshake within 5 s"
    assert str(NotListeningError(5.04)).startswith("nothing listened on its port within 5 s of its start; ")
    assert str(StartTimeoutError(2.5, "connection refused")).endswith("within 2.5 s (connection refused)")


def test_an_http_status_error_without_a_text_has_only_the_status() -> None:
    assert str(HttpStatusError(502)) == "answered with HTTP status 502"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-32601, "no (JSON-RPC error -32601: method not found)"),
        (-32022, "no (JSON-RPC error -32022: unsupported protocol version)"),
        (17, "no (JSON-RPC error 17)"),
    ],
)
def test_a_remote_error_with_a_known_code_has_its_meaning(code: int, text: str) -> None:
    assert str(errors.RemoteError(code, "no")) == text


@pytest.mark.parametrize("kind", ErrorKind, ids=str)
def test_every_error_kind_is_documented(kind: ErrorKind) -> None:
    assert f"| `{kind}` |" in (ROOT / "docs" / "architecture.md").read_text()
    table_rows = [
        line for line in (ROOT / "docs" / "gateway.md").read_text().splitlines() if line.startswith(f"| `{kind}` |")
    ]
    assert [line.endswith("| Yes |") for line in table_rows] in ([], [not kind.may_have_run])


def test_the_data_of_an_unsent_call_says_that_it_was_not_sent() -> None:
    assert ErrorKind.UNAVAILABLE.data("notes") == {"member": "notes", "kind": "unavailable", "sent": False}
    assert ErrorKind.TIMEOUT.data() == {"kind": "timeout"}
