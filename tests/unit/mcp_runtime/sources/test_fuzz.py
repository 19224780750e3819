"""Whatever the text is, the result is drafts that the hall accepts or one class of error, and no secret shows."""

from __future__ import annotations

import json
import string
from time import process_time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_runtime.members.manifest.parser import parse
from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.secrets.references import REFERENCE
from mcp_runtime.sources.documents import read_json
from mcp_runtime.sources.drafts import Reading
from mcp_runtime.sources.reader import read
from tests.support.configurations import CONFIGURATIONS
from tests.support.registry import WEATHER

OFTEN = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WORDS = ["command", "args", "env", "url", "headers", "type", "mcpServers", "servers", "inputs", "context_servers"]
TEXTS = st.one_of(
    st.sampled_from([*WORDS, "npx", "-y", "docker", "stdio", "${input:a}", "${env:A}", "$A", "${secret:a}", "--token"]),
    st.text(max_size=30),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(WORDS), TEXTS), inner, max_size=4)
    ),
    max_leaves=15,
)
# No word and no switch, so that a secret that shows is no coincidence.
SECRETS = st.text(string.ascii_letters + string.digits + "!%*+,.~", min_size=12, max_size=40).filter(
    lambda text: any(map(str.isdigit, text)) and any(map(str.isalpha, text)) and text.strip(".,+~*!%") == text
)


def try_to_read(text: str) -> Reading | None:
    """The drafts, if there are any. Each of them is accepted by the hall, and refers only to its own secrets."""
    try:
        reading = read(text)
    except SourceError:
        return None
    for draft in reading.drafts:
        assert parse(draft.manifest)[0].name == draft.name
        own = {*draft.secrets, *(asked.secret for asked in draft.inputs)}
        assert {match[0] for match in REFERENCE.findall(json.dumps(draft.manifest))} <= own
    return reading


def everything_shown(text: str) -> str:
    try:
        reading = read(text)
    except SourceError as error:
        return f"{error} {error!r}"
    return repr([(each.manifest, each.notes, each.inputs, each) for each in reading.drafts]) + repr(reading.refusals)


@OFTEN
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    try_to_read(text)


@OFTEN
@given(VALUES)
def test_any_json_is_read_or_refused(value: object) -> None:
    try_to_read(json.dumps(value))
    try_to_read(json.dumps({"mcpServers": {"srv": value}}))
    try_to_read(json.dumps({"servers": {"srv": value}, "inputs": value}))
    package = {"registryType": "npm", "identifier": "tool", "packageArguments": value, "environmentVariables": [value]}
    try_to_read(json.dumps({"name": "com.example/tool", "packages": [package], "remotes": [value]}))


@OFTEN
@given(st.sampled_from([*(each.text for each in CONFIGURATIONS), json.dumps(WEATHER)]), st.data())
def test_any_damage_to_a_real_configuration_is_read_or_refused(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    try_to_read(text[:start] + data.draw(st.text(max_size=8)) + text[end:])


@OFTEN
@given(
    SECRETS,
    st.sampled_from(
        [
            {"env": {"ANYTHING": "#S#"}},
            {"env": {"API_KEY": "#S#"}},
            {"env": {"AUTH": "Bearer #S#"}},
            {"env": {"PASSWORD": "#S#", "PATH_LIKE": "/srv/#S#"}},
            {"args": ["--api-key", "#S#"]},
            {"args": ["--api-key=#S#", "--verbose"]},
            {"args": ["--header", "Authorization: Bearer #S#"]},
            {"args": ["--header=X-Auth-Token:#S#"]},
            {"args": ["-e", "LOGIN=#S#"]},
            {"args": ["TOKEN=#S#"]},
            {"args": ["postgres://ada:#S#@db.example/x"]},
            {"args": ["https://e.example/mcp?token=#S#&b=c"]},
            {"args": ['{"key": "#S#"}']},
            {"env": {"TOKEN": "#S#"}, "args": ["#S#"]},
            {"env": {"TOKEN": "#S#"}, "args": ["--say=#S#"]},
        ]
    ),
)
def test_the_secrets_of_a_command_show_nowhere(secret: str, values: dict[str, object]) -> None:
    text = json.dumps({"mcpServers": {"srv": {"command": "serve", **values}}})
    assert secret not in everything_shown(text.replace("#S#", secret))


@OFTEN
@given(
    SECRETS, st.sampled_from(["Authorization", "X-Api-Key", "X-Anything", "Cookie"]), st.sampled_from(["", "Bearer "])
)
def test_the_secrets_of_headers_show_nowhere(secret: str, header: str, scheme: str) -> None:
    headers = {header: scheme + secret}
    for key in ("url", "serverUrl", "httpUrl"):
        text = json.dumps({"mcpServers": {"srv": {key: "https://e.example/mcp", "headers": headers}}})
        assert secret not in everything_shown(text)


@OFTEN
@given(SECRETS, st.sampled_from(["", "}", ",,", "\x00", '"', "/*", "\ud800", "\n\n["]), st.integers(0, 200))
def test_errors_show_no_secret_either(secret: str, damage: str, place: int) -> None:
    text = json.dumps({"mcpServers": {"srv": {"command": "serve", "env": {"API_KEY": secret}}}}, indent=1)
    if secret in (damaged := text[:place] + damage + text[place:]):
        assert secret not in everything_shown(damaged)
    line = f"claude mcp add srv --env API_KEY={secret} -- npx a {damage}"
    assert secret not in everything_shown(line)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "text",
    [
        "/*" * 130_000,
        '"' * 260_001,
        '{"a":' + "," * 250_000,
        '{"a"' + " " * 250_000,
        '{"mcpServers": {"a": {"command": "' + "\\\\" * 60_000 + '"}}}',
        "[mcp_servers.a]\n" + ("a." * 99 + "a = 1\n") * 1000,
        "[mcp_servers.a]\n" + "a = '''" + "'" * 250_000,
        "a" * 250_000,
        "https://" + "a" * 250_000,
        "'" * 250_000,
        "a " * 130_000,
        "A=" * 130_000,
        *(
            json.dumps({"mcpServers": {"a": {"command": "x", "args": [part * (60_000 // len(part))] * 4}}})
            for part in (
                "a",
                "/",
                "://",
                "a://",
                "?a=b&",
                "@",
                ":",
                "${",
                "$",
                "=",
                "a1",
                "-",
                ".",
                " ",
                "\\",
                "<",
                "eyJ",
            )
        ),
        *(
            json.dumps({"mcpServers": {"a": {"command": "x", "env": {"A": part * (60_000 // len(part))}}}})
            for part in ("/", "/a", "a.", "a:", "://", "-", ",", " ", "<", "your ", "-here", "bearer ", "${", "1.")
        ),
    ],
    ids=lambda text: repr(text[:60]),
)
def test_no_text_takes_long(text: str) -> None:
    start = process_time()
    try_to_read(text)
    assert process_time() - start < 5


def test_the_largest_configuration_is_read_quickly() -> None:
    servers = {
        f"s{number}": {"command": "x", "args": ["-y", "p"] * 50, "env": {"TOKEN": f"v{number}"}} for number in range(50)
    }
    start = process_time()
    assert len(read(json.dumps({"mcpServers": servers}, indent=2)).drafts) == 50
    assert process_time() - start < 5


@OFTEN
@given(VALUES)
def test_json_without_comments_is_read_as_json(value: object) -> None:
    document = {"value": value}
    assert read_json(json.dumps(document)) == json.loads(json.dumps(document))
    indented = json.dumps(document, indent=1).replace("\n", ' // {["\'*/ \n/* [ " // */')
    if "\\n" not in indented:
        assert read_json(indented) == document
