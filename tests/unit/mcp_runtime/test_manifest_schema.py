"""docs/guild-member.schema.json and the pages about members agree with mcp_runtime/members/manifest/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mcp_runtime.client import client
from mcp_runtime.members import live, process, restarts, start_limits, starting, supervisor
from mcp_runtime.members.manifest import commands, declaration, parser, schema
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import ManifestError
from mcp_runtime.schemas import validation
from tests.conftest import ROOT
from tests.support.manifests import REMOTE, SEEDS_FORM, WRONG, WRONG_REMOTE

SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "guild-member.schema.json").read_text())
PAGES = ("writing-a-member", "manifest", "stdio-servers", "remote-servers", "example-server")
GUIDE = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in PAGES)
TEMPLATE = ROOT / "roster" / "member_template"

SERVER_KEYS = {key: SEEDS_FORM[key] for key in declaration.SERVER_KEYS if key in SEEDS_FORM}
OTHER_KEYS = {key: value for key, value in SEEDS_FORM.items() if key not in SERVER_KEYS}

VALID_MANIFESTS: list[dict[str, Any]] = [
    SEEDS_FORM,
    {**OTHER_KEYS, "mcp": SERVER_KEYS},
    {**OTHER_KEYS, "transport": "http", "mcp": {"command": "bun"}},
    {**OTHER_KEYS, "command": "bun", "args": [], "mcp": {"transport": "http", "env": {}}},
    {**SEEDS_FORM, "transport": "stdio", "command": "npx", "args": []},
    {**SEEDS_FORM, "protocol_version": "2026-07-28"},
    {**OTHER_KEYS, "mcp": {**SERVER_KEYS, "transport": "stdio"}},
    {**SEEDS_FORM, "mcp": {}},
    {**SEEDS_FORM, "mcp": {"cwd": "/"}, "of_tomorrow": [1], "$schema": 5},
    {**SEEDS_FORM, "name": "n" * 64, "version": "1" * 100, "displayName": "", "description": "x" * 10_000},
    {**SEEDS_FORM, "args": [""], "env": {"_a1": "", "GUILD": "x"}},
    {**SEEDS_FORM, "start_timeout": 0.001, "timeout": 86_400, "tool_timeouts": {"a/b.c": 1, "": 2}},
    {**SEEDS_FORM, "enabled": False, "restart": "never", "unresponsive": "restart", "max_concurrency": 1024},
    {**SEEDS_FORM, "max_concurrency": 4.0},
    {**SEEDS_FORM, "node": {}},
    {**SEEDS_FORM, "node": {"labels": ["gpu", "eu-west.1_a", "n" * 64], "state": "shared", "of_tomorrow": 1}},
    {
        **SEEDS_FORM,
        "node": {"state": "none", "files": ["server.py", "lib/**/*.py", ".env", "..data/x", "a..", "[ab]?"]},
    },
    REMOTE,
    {**OTHER_KEYS, "mcp": {key: REMOTE[key] for key in ("transport", "url", "headers")}},
    {**OTHER_KEYS, "transport": "http", "url": "http://localhost", "mcp": {"headers": {}}},
    *(
        {**REMOTE, "url": url}
        for url in (
            "https://mcp.example.com",
            "http://[::1]:8080/a/b@c;d=1/%20?q=a/b&kind=x",
            "https://a_b.example:65535?keyword=x",
        )
    ),
    *(
        {**REMOTE, "headers": {name: value}}
        for name, value in {
            "!#$%&'*+.^_`|~09aZ-": "",
            "X-Cost": "$5, $$ or {x} $",
            "Cookie": "a=${env:GUILD_HALL_MEMBER_A_1}; b=${file:../b c.txt}",
            "x-API-key": "$${env:GUILD_HALL_MEMBER__K}{",
            "X-Long": "x" * 8192,
            "Accept-Language": "en",
        }.items()
    ),
]
INVALID_MANIFESTS: list[dict[str, Any]] = [
    *(
        {**SEEDS_FORM, **change}
        for change, _ in WRONG
        if "Infinity" not in json.dumps(change) and "NaN" not in json.dumps(change)
    ),
    *({**REMOTE, **change} for change, _ in WRONG_REMOTE),
    *({**REMOTE, "mcp": {key: REMOTE[key]}} for key in ("url", "headers")),
    *(
        {key: value for key, value in SEEDS_FORM.items() if key != missing_key}
        for missing_key in OTHER_KEYS | SERVER_KEYS
        if missing_key not in ("args", "env")
    ),
    *({**SEEDS_FORM, "mcp": {key: value}} for key, value in SERVER_KEYS.items()),
    {**OTHER_KEYS, "mcp": {**SERVER_KEYS, "args": [5]}},
    {**OTHER_KEYS, "mcp": {**SERVER_KEYS, "env": {"GUILD_HALL_X": ""}}},
    {**OTHER_KEYS, "mcp": {**SERVER_KEYS, "transport": "sse"}},
    {**OTHER_KEYS, "mcp": {**SERVER_KEYS, "command": ""}},
    {**OTHER_KEYS, "mcp": None},
    {**SEEDS_FORM, "tool_timeouts": {"a\0": 1}},
    {**SEEDS_FORM, "tool_timeouts": {"a" * 1001: 1}},
    {**SEEDS_FORM, "args": ["x" * 100_001]},
    {**SEEDS_FORM, "env": {"A": "x" * 100_001}},
    {**SEEDS_FORM, "command": "x" * 4097},
    {**SEEDS_FORM, "version": "a\0b"},
    {**SEEDS_FORM, "protocol_version": "2025-06-18"},
    {**SEEDS_FORM, "protocol_version": 7},
]


def parser_accepts(values: dict[str, Any]) -> bool:
    try:
        parser.parse(values)
    except ManifestError:
        return False
    return True


def schema_accepts(values: dict[str, Any]) -> bool:
    try:
        validation.validate(SCHEMA, values)
    except validation.ArgumentsError:
        return False
    return True


def test_the_published_schema_is_generated_from_the_declaration() -> None:
    published_text = (ROOT / "docs" / "guild-member.schema.json").read_text()
    assert published_text == schema.text(), (
        "python -m mcp_runtime.members.manifest.schema > docs/guild-member.schema.json"
    )


def test_the_schema_is_a_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("values", VALID_MANIFESTS, ids=range(len(VALID_MANIFESTS)))
def test_parser_and_schema_accept_valid_manifests(values: dict[str, Any]) -> None:
    assert (parser_accepts(values), schema_accepts(values)) == (True, True)


@pytest.mark.parametrize("values", INVALID_MANIFESTS, ids=[json.dumps(values)[-60:] for values in INVALID_MANIFESTS])
def test_parser_and_schema_refuse_invalid_manifests(values: dict[str, Any]) -> None:
    assert (parser_accepts(values), schema_accepts(values)) == (False, False)


@pytest.mark.parametrize(
    "path",
    [
        ROOT / "guild-members" / name / "guild-member.json" for name in ("example", "notes")
    ],  # the folder may contain others
    ids=lambda p: p.parent.name,
)
def test_shipped_manifests_are_valid_and_name_the_schema(path: Path) -> None:
    values = json.loads(path.read_text())
    manifest, warnings = parser.parse(values)
    assert schema_accepts(values)
    assert (manifest.name, warnings) == (path.parent.name, [])
    assert (path.parent / values["$schema"]).resolve() == ROOT / "docs" / "guild-member.schema.json"
    assert commands.command_fault(manifest, path.parent) == ""


# The guide --------------------------------------------------------------------------------------------------------


def test_the_guide_explains_every_key() -> None:
    keys = re.findall(r"^\| `([\w$]+)` \| (yes)?(?:, or `url`)? ?\|", GUIDE, re.MULTILINE)
    assert {key for key, _ in keys} == declaration.KEYS
    assert {key for key, required in keys if required} == {"name", "version", "transport", "command"}


def test_the_guide_names_every_key_whose_change_restarts_a_member() -> None:
    sentence = GUIDE[GUIDE.index("A new `command`") : GUIDE.index("restarts the member")]
    # A new name is another member.
    assert {*re.findall(r"`(\w+)`", sentence), "name"} == set(declaration.PROCESS_KEYS)


def test_the_complete_example_of_the_guide_is_the_template() -> None:
    for name in ("guild-member.json", "server.py"):
        content = (TEMPLATE / name).read_text().replace("MEMBER_NAME", "greeter")
        assert f"\n{content}```\n" in GUIDE


def test_every_manifest_in_the_guide_is_valid() -> None:
    manifests = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)]
    assert len(manifests) == 5
    assert all(parser_accepts(values) and schema_accepts(values) for values in manifests)


def test_the_numbers_in_the_guide_are_the_real_ones() -> None:
    minimal_manifest = Manifest(name="x", version="1", command="x")
    budget, longest = start_limits.START_BUDGET, start_limits.LONGEST_START_BUDGET
    assert f"| {budget:g}, at most {longest:g} | `start_timeout`, for both together |" in GUIDE
    assert f"| the handshake, from then on | {client.INITIALIZE_TIMEOUT:g} |" in GUIDE
    fetching_commands = re.findall(
        r"`([a-z ]+)`", next(line for line in GUIDE.splitlines() if "fetches the server" in line)
    )
    assert {tuple(command.split()) for command in fetching_commands} <= set(declaration.FETCHING_COMMANDS)
    assert f"has {start_limits.FETCHING_START_BUDGET:g} s" in GUIDE
    assert f"| {minimal_manifest.timeout:g} | `timeout`, `tool_timeouts` |" in GUIDE
    assert f"| from SIGTERM to SIGKILL | {process.STOP_TIMEOUT:g} |" in GUIDE
    delays = [
        f"{restarts.restart_delay(failures).total_seconds():g}" for failures in range(1, restarts.QUICK_TRIES + 1)
    ]
    assert " after {} and {} seconds".format(", ".join(delays[:-1]), delays[-1]) in GUIDE
    assert f"then every {restarts.SLOW_DELAY / 60:g}\nminutes" in GUIDE
    assert live.STABLE_SECONDS == 60
    assert f"Every {supervisor.REMOTE_CHECK_SECONDS:g}\nseconds they are listed again" in GUIDE
    assert f"16 seconds, then every {restarts.LONGEST_DELAY:g}, until the server is back" in GUIDE
    assert starting.MAX_PORT_TRIES == 10
    assert starting.PORT_TAKEN_EXIT_CODE == 2
    assert f"({mcp.HANDSHAKE_VERSIONS[0]} to {mcp.HANDSHAKE_VERSIONS[-1]}" in GUIDE


def test_the_guide_names_every_inherited_variable() -> None:
    paragraph = GUIDE[GUIDE.index("**Its environment.**") : GUIDE.index("# The manifest")]
    names = set(re.findall(r"`([A-Z_]+)`", paragraph))
    assert names == process.INHERITED | {process.TAG_VARIABLE}
