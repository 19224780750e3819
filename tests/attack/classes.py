"""Twenty classes of attack that broke similar servers, each with its attacks and tests, or the reason for none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Class:
    """`attacks`: their names. `tests`: files of pytest, if no hall is needed. `reason`: why a part does not apply."""

    name: str
    attacks: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    reason: str = ""


CLASSES = {
    1: Class(
        "an id of another principal, used with a good token",
        ("ids-of-others", "request-states", "tasks", "idempotency-keys", "stdio-broadcast"),
        (
            "tests/unit/mcp_runtime/gateway/test_client_sessions.py",
            "tests/rows/mcp_runtime/gateway/streams/test_resumable.py",
        ),
    ),
    2: Class("a route that forgot to ask who comes", ("no-token",)),
    3: Class(
        "an endpoint that tries a server out starts it",
        ("manifests",),
        reason="no endpoint takes a command or an address; what validates manifests starts nothing, and that is tried",
    ),
    4: Class(
        "requests to inner addresses",
        ("manifests", "fetches-and-redirects"),
        ("tests/rows/roster/sign_in/test_published.py",),
        reason="no webhook or OpenAPI document is fetched",
    ),
    5: Class("a redirect carries headers to another origin", ("fetches-and-redirects",)),
    6: Class("$ref in a schema fetches, reads a file or blocks", ("fetches-and-redirects", "hostile-schemas")),
    7: Class(
        "paths that lead outside",
        ("paths-outside", "links-and-secrets"),
        reason="no archive is unpacked anywhere",
    ),
    8: Class("default and weak secrets", ("files",)),
    9: Class("a caller's header replaces the credentials of a member", ("headers-to-members",)),
    10: Class("JSON that two readers read differently", ("ambiguous-json", "costly-bodies", "forged-answers")),
    11: Class("headers that say something else than the body", ("lying-headers",)),
    12: Class(
        "OAuth flows",
        ("no-token",),
        ("tests/rows/roster/sign_in/test_wrong_ways.py", "tests/rows/mcp_runtime/gateway/test_sign_in.py"),
    ),
    13: Class("DNS rebinding: Host and Origin", ("rebinding",), ("tests/rows/roster/test_middleware.py",)),
    14: Class(
        "patterns and templates that backtrack", ("hostile-schemas",), ("tests/unit/mcp_runtime/test_schemas.py",)
    ),
    15: Class("answers of two callers are mixed up", ("secrets-never-mix", "late-second-answers", "forged-answers")),
    16: Class(
        "text that deceives people",
        ("hostile-words", "forged-log-lines"),
        ("tests/browser/test_hostile_strings.py", "tests/unit/mcp_runtime/test_console.py"),
    ),
    17: Class("members and tools with the same or near names", ("near-names", "hostile-words")),
    18: Class(
        "tools that change after they were approved",
        reason="nothing is approved or pinned: a list that changes is served as it is, and the roster shows it",
    ),
    19: Class("commands: a shell, the hall's environment", ("environment",)),
    20: Class(
        "a member breaks out of its sandbox",
        reason="there is none: a member runs as the user who runs the hall, as SECURITY.md says",
    ),
}


def table() -> str:
    """One line for each class."""
    lines = []
    for number, attack_class in CLASSES.items():
        tests = ", ".join((*attack_class.attacks, *attack_class.tests)) or "does not apply"
        lines.append(
            f"J{number:<3} {attack_class.name}: {tests}{f' ({attack_class.reason})' if attack_class.reason else ''}"
        )
    return "\n".join(lines)
