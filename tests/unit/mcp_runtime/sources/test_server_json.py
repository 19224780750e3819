from __future__ import annotations

import json
from typing import Any

import pytest

from mcp_runtime.members.manifest.parser import parse
from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.drafts import Draft
from mcp_runtime.sources.reader import read, ways
from mcp_runtime.sources.server_json import Filled
from tests.support.registry import CLOCK, WEATHER

KEY = "canary-4711-abc"
NPM, ADDRESS = 2, 4  # the ways of WEATHER that the hall can run


def draft(document: dict[str, Any], way: int = 0, **values: str) -> Draft:
    (result,) = read(json.dumps(document), filled=Filled(way, values)).drafts
    warnings = parse(result.manifest)[1]
    assert [text for text in warnings if "unknown key" in text and "sandbox" not in text] == []
    assert KEY not in repr((result.manifest, result.notes, result.inputs, result))
    return result


def refusal(document: dict[str, Any], way: int = 0, **values: str) -> str:
    with pytest.raises(SourceError) as caught:
        read(json.dumps(document), filled=Filled(way, values))
    return str(caught.value)


def package(**values: Any) -> dict[str, Any]:
    """A server with one package from npm."""
    base = {"registryType": "npm", "identifier": "tool", "version": "1.0.0"}
    return {"name": "com.example/tool", "version": "1.0.0", "packages": [{**base, **values}]}


def args(*arguments: dict[str, Any], **values: str) -> list[str]:
    """The arguments behind the name of the package."""
    words: list[str] = draft(package(packageArguments=list(arguments)), **values).manifest["args"]
    return words[words.index("tool@1.0.0") + 1 :]


# The ways ---------------------------------------------------------------------------------------------------------


def test_each_way_says_what_it_needs_or_why_it_is_impossible() -> None:
    container, npm, sse, address = ways(json.dumps(WEATHER))
    assert "containers yet" in container.refusal
    assert "SSE" in sse.refusal
    assert (npm.refusal, address.refusal) == ("", "")
    fields = {field.key: field for field in npm.fields}
    assert list(fields) == ["units", "folder", "verbose", "WEATHER_API_KEY", "CITY", "PROXY_PASSWORD"]
    assert (fields["units"].choices, fields["units"].default) == (("metric", "imperial"), "metric")
    assert fields["verbose"].choices == ("true", "false")
    assert (fields["folder"].is_required, fields["folder"].is_repeated) == (True, True)
    assert fields["WEATHER_API_KEY"].is_secret
    assert [(field.key, field.is_required, field.is_secret) for field in address.fields] == [
        ("tenant", True, False),
        ("token", True, True),
        ("X-Region", False, False),
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"registryType": "mcpb"}, "bundle"),
        ({"registryType": "nuget"}, ".NET"),
        ({"registryType": "brew"}, "does not know"),
        ({"runtimeHint": "bun"}, "another program than npx"),
        ({"transport": {"type": "streamable-http", "url": "http://localhost:{port}/mcp"}}, "gives the ports"),
        ({"identifier": "--eval"}, "no name of a package"),
        ({"identifier": "a b"}, "no name of a package"),
        ({"identifier": "anna/tool"}, "no name of a package"),
        ({"identifier": "git+ssh://git@example.com/x"}, "no name of a package"),
        ({"registryType": "pypi", "identifier": "git+https://example.com/x"}, "no name of a package"),
        ({"version": "npm:evil"}, "something else than a version"),
        ({"version": "--eval"}, "something else than a version"),
    ],
)
def test_a_package_that_the_hall_cannot_run_is_refused_with_the_reason(changes: dict[str, Any], words: str) -> None:
    assert words in ways(json.dumps(package(**changes)))[0].refusal
    assert words in refusal(package(**changes))


def test_without_a_choice_the_first_possible_way_is_taken() -> None:
    assert draft(WEATHER, folder="/a").manifest["command"] == "npx"
    assert "it has 4" in refusal(WEATHER, 9)
    assert "containers yet" in refusal(WEATHER, 1)


def test_a_text_that_is_no_server_json_has_no_ways_and_takes_no_values() -> None:
    assert ways("npx -y thing") == ways('{"mcpServers": {"a": {"command": "b"}}}') == []
    with pytest.raises(SourceError, match="takes no values"):
        read("npx -y thing", filled=Filled(values={"a": "b"}))


# Packages ---------------------------------------------------------------------------------------------------------


def test_a_package_becomes_a_pinned_command_with_its_values() -> None:
    result = draft(WEATHER, NPM, folder="/a\n /b ", verbose="true", units="imperial", CITY="Oss", WEATHER_API_KEY=KEY)
    manifest = result.manifest
    assert [manifest["command"], *manifest["args"]] == [
        *("npx", "-y", "@anna/weather@1.2.0", "start", "--units", "imperial", "/a", "/b", "--verbose")
    ]
    assert manifest["env"] == {"WEATHER_API_KEY": "${secret:weather-WEATHER_API_KEY}", "CITY": "Oss"}
    assert (manifest["name"], manifest["displayName"], manifest["version"]) == ("weather", "Weather", "1.2.0")
    assert manifest["sandbox"] == "on"
    assert result.secrets == {"weather-WEATHER_API_KEY": KEY}
    assert result.inputs == ()
    assert any("hash that is not compared" in note for note in result.notes)
    assert any("where npx of this machine" in note for note in result.notes)


def test_a_python_package_is_run_by_uvx() -> None:
    manifest = draft(CLOCK).manifest
    assert (manifest["name"], manifest["command"], manifest["args"]) == ("clock", "uvx", ["clock-server@0.3.0"])


def test_a_secret_that_nobody_gave_is_asked_for() -> None:
    result = draft(WEATHER, NPM, folder="/a")
    assert [(asked.secret, asked.label) for asked in result.inputs] == [("weather-WEATHER_API_KEY", "WEATHER_API_KEY")]
    assert result.secrets == {}
    assert "PROXY_PASSWORD" not in result.manifest["env"]  # optional
    assert "PROXY_PASSWORD" in draft(WEATHER, NPM, folder="/a", PROXY_PASSWORD=KEY).manifest["env"]


def test_a_value_that_is_said_to_be_public_but_looks_like_a_secret_becomes_one() -> None:
    document = package(environmentVariables=[{"name": "API_TOKEN"}, {"name": "PLACE"}])
    result = draft(document, API_TOKEN=KEY, PLACE="The Hague")
    assert result.manifest["env"] == {"API_TOKEN": "${secret:tool-API_TOKEN}", "PLACE": "The Hague"}
    assert result.secrets == {"tool-API_TOKEN": KEY}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "postgres://bob:canary-4711-abc@db/x"),
        ("MONGODB_URI", "mongodb://u:canary-4711-abc@h/"),
        ("SMTP_LOGIN", "bob:canary-4711-abc"),
        ("ENDPOINT", "https://h/?q=canary-4711-abc"),
    ],
)
def test_a_password_in_a_value_that_is_not_said_to_be_secret_becomes_one(name: str, value: str) -> None:
    result = draft(package(environmentVariables=[{"name": name}]), **{name: value})
    assert "${secret:" in result.manifest["env"][name]
    assert any(KEY in secret for secret in result.secrets.values())


@pytest.mark.parametrize("value", ["https://api.example.com/v1", "a@b"])
def test_what_the_document_itself_says_is_public(value: str) -> None:
    document = package(environmentVariables=[{"name": "PLACE", "default": value}])
    assert draft(document).manifest["env"] == {"PLACE": value}


@pytest.mark.parametrize("kind", [{"type": "named", "name": "--login"}, {"type": "positional"}])
def test_what_a_secret_is_made_of_is_secret_too(kind: dict[str, Any]) -> None:
    argument = {**kind, "value": "{pw}", "isSecret": True, "variables": {"pw": {"isRequired": True}}}
    (way,) = ways(json.dumps(package(packageArguments=[argument])))
    assert [(field.key, field.is_secret) for field in way.fields] == [("pw", True)]
    assert draft(package(packageArguments=[argument]), pw=KEY).secrets == {"tool-pw": KEY}


def test_a_variable_that_occurs_often_is_asked_for_once() -> None:
    argument = {"type": "positional", "value": "{a}" * 30_000, "variables": {"a": {}}}
    document = package(packageArguments=[argument, {"type": "positional", "value": "{h}:{h}", "variables": {"h": {}}}])
    (way,) = ways(json.dumps(document))
    assert [field.key for field in way.fields] == ["a", "h"]
    assert draft(document, h="x").manifest["args"][-1] == "x:x"


def test_more_values_than_a_person_can_fill_in_are_refused() -> None:
    arguments = [{"type": "positional", "valueHint": "file"} for _ in range(201)]
    assert "more than 200 values" in ways(json.dumps(package(packageArguments=arguments)))[0].refusal


@pytest.mark.parametrize(
    ("argument", "values", "expected"),
    [
        ({"type": "positional", "value": "run"}, {}, ["run"]),
        ({"type": "positional", "valueHint": "file"}, {}, []),
        ({"type": "positional", "valueHint": "file", "default": 5}, {}, ["5"]),
        ({"type": "positional", "valueHint": "file", "default": "a"}, {"file": ""}, []),
        ({"type": "named", "name": "--port", "value": "80"}, {}, ["--port", "80"]),
        ({"type": "named", "name": "--port="}, {"port": "80"}, ["--port=80"]),
        ({"type": "named", "name": "--fast", "isRequired": True}, {}, ["--fast"]),
        ({"type": "named", "name": "--fast", "format": "boolean"}, {"fast": "false"}, []),
        ({"type": "named", "name": "-r", "isRepeated": True}, {"r": "a\nb"}, ["-r", "a", "-r", "b"]),
        (
            {"type": "named", "name": "--db", "value": "{host}:{port}/{x}", "variables": {"host": {}, "port": {}}},
            {"host": "db", "port": "1"},
            ["--db", "db:1/{x}"],
        ),
        ({"type": "named", "name": "--db", "value": "{host}", "variables": {"host": {}}}, {}, []),
    ],
)
def test_arguments_are_put_on_the_command_line(
    argument: dict[str, Any], values: dict[str, str], expected: list[str]
) -> None:
    assert args(argument, **values) == expected


def test_a_secret_argument_is_a_reference() -> None:
    result = draft(package(packageArguments=[{"type": "named", "name": "--key", "isSecret": True}]), key=KEY)
    assert result.manifest["args"][-2:] == ["--key", "${secret:tool-key}"]
    assert result.secrets == {"tool-key": KEY}


def test_two_values_with_one_name_have_two_keys() -> None:
    arguments = [{"type": "positional", "valueHint": "file"}, {"type": "positional", "valueHint": "file"}]
    assert args(*arguments, **{"file": "a", "file-2": "b"}) == ["a", "b"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "folder: needs a value"),
        ({"folder": "/a", "units": "kelvin"}, "units: must be one of: metric, imperial"),
        ({"folder": "/a", "town": "x"}, "takes no value 'town'; its values are: units, folder"),
        ({"folder": "${HOME}"}, "folder: must be the value itself"),
        ({"folder": "x" * 20_000}, "folder: must not be longer"),
        ({"folder": "/a", "WEATHER_API_KEY": "x" * 100_000}, "is longer than"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(values: dict[str, str], words: str) -> None:
    assert words in refusal(WEATHER, NPM, **values)


def test_all_wrong_values_are_named_at_once() -> None:
    words = refusal(WEATHER, NPM, units="kelvin")
    assert "units: must be one of: metric, imperial; folder: needs a value" in words


def test_a_value_that_must_be_a_number_is_one() -> None:
    argument = {"type": "named", "name": "--n", "format": "number"}
    assert args(argument, n="-2.5") == ["--n", "-2.5"]
    assert "n: must be a number" in refusal(package(packageArguments=[argument]), n="two")


# Addresses --------------------------------------------------------------------------------------------------------


def test_an_address_and_its_headers_are_filled_in() -> None:
    result = draft(WEATHER, ADDRESS, tenant="acme", token=KEY)
    assert result.manifest["url"] == "https://acme.example.com/mcp"
    assert result.manifest["headers"] == {"Authorization": "Bearer ${secret:weather-token}", "X-Region": "eu"}
    assert result.manifest["version"] == "1.2.0"
    assert result.secrets == {"weather-token": KEY}


def test_a_secret_in_an_address_is_refused() -> None:
    remote = {"type": "streamable-http", "url": "https://a/{key}", "variables": {"key": {"isSecret": True}}}
    assert "everybody would see" in refusal({"name": "com.example/a", "remotes": [remote]})


# Documents that lie -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"name": "com.example/a", "packages": [{"identifier": 5}]}, "another type"),
        ({"name": "com.example/a", "packages": [], "remotes": [{"headers": "x"}]}, "another type"),
        ({"name": "com.example/a", "packages": [{}] * 21}, "more than 20"),
        ({"name": "com.example/a", "packages": []}, "no way that the hall can run"),
        (package(packageArguments=[{"type": "positional", "value": "a"}] * 501), "more than 500 arguments"),
        (package(environmentVariables=[{"name": "A", "value": "a"}] * 101), "more than 100 variables"),
        (package(packageArguments=[{"type": "positional", "value": "${secret:other}"}]), "only another program"),
        (package(environmentVariables=[{"name": "A", "value": "${file:/etc/passwd}"}]), "only another program"),
        (package(environmentVariables=[{"name": "A B", "value": "x"}]), "env"),
    ],
)
def test_a_document_with_faults_is_refused(document: dict[str, Any], words: str) -> None:
    assert words in refusal(document)


def test_texts_of_the_document_are_one_line_each() -> None:
    entry = {"name": "A", "default": "a\nb", "choices": ["a\nb"], "description": "a\nb", "placeholder": "a\nb"}
    (way,) = ways(json.dumps(package(identifier="x\ny", environmentVariables=[entry])))
    assert "\\n" not in repr(way)
    (way,) = ways(json.dumps(package(environmentVariables=[entry])))
    assert "\\n" not in repr(way)


def test_a_text_of_the_document_with_the_form_of_a_secret_is_not_shown() -> None:
    token = "ghp_" + "a1B2" * 9
    document = package(environmentVariables=[{"name": "PLACE", "description": token, "placeholder": token}])
    (way,) = ways(json.dumps(document))
    assert token not in repr(way)
