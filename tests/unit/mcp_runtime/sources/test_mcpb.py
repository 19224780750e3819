from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.manifest.parser import parse
from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.drafts import Draft
from mcp_runtime.sources.mcpb import open_bundle
from mcp_runtime.sources.reader import read, read_bundle
from mcp_runtime.sources.server_json import Field, Filled
from mcp_runtime.sources.user_config import ways_of
from tests.support.bundles import bundle, manifest, server

KEY = "canary-4711-abc"
FILES = {"server/index.js": b"", "server/main.py": b"", "bin/run": b"", "config/a.json": b""}


def draft(document: dict[str, Any], **values: str) -> Draft:
    opened = open_bundle(io.BytesIO(bundle(document, FILES)))
    (result,) = read_bundle(opened, filled=Filled(0, values)).drafts
    assert KEY not in repr((result.manifest, result.notes, result.inputs, result))
    return result


def refusal(document: Any, **values: str) -> str:
    with pytest.raises(SourceError) as caught:
        read_bundle(open_bundle(io.BytesIO(bundle(document, FILES))), filled=Filled(0, values))
    return str(caught.value)


def fields(document: dict[str, Any]) -> dict[str, Field]:
    (way,) = ways_of(open_bundle(io.BytesIO(bundle(document, FILES))))
    return {field.key: field for field in way.fields}


def asking(
    args: list[str] | None = None, env: dict[str, str] | None = None, **options: dict[str, Any]
) -> dict[str, Any]:
    """A bundle with these settings in user_config."""
    return manifest(server=server(args=args or [], env=env or {}), user_config=options)


def args(document: dict[str, Any], **values: str) -> list[str]:
    return list(draft(document, **values).manifest.get("args", []))


# How it starts ----------------------------------------------------------------------------------------------------


def test_a_bundle_starts_with_its_files_in_the_folder_of_the_member() -> None:
    result = draft(manifest())
    assert result.manifest == {
        "name": "echo",
        "version": "1.2.0",
        "displayName": "Echo",
        "transport": "stdio",
        "command": "node",
        "args": ["${MEMBER_FOLDER}/bundle/server/index.js"],
        "sandbox": "on",
    }
    assert result.notes == ()
    filled_in: Manifest = parse(result.manifest)[0]
    assert filled_in.argv(20000, "/srv/members/echo") == ["node", "/srv/members/echo/bundle/server/index.js"]


def test_paths_that_name_files_of_the_bundle_are_found() -> None:
    document = manifest(
        server=server(
            command="bin/run",
            args=["server/index.js", "./config", "config/", "start", "--dir=${__dirname}${/}x", "server/none.js"],
            env={"PYTHONPATH": "${__dirname}/server/lib", "CONFIG": "config/a.json"},
        )
    )
    result = draft(document)
    assert result.manifest["command"] == "./bundle/bin/run"
    assert result.manifest["args"] == [
        "${MEMBER_FOLDER}/bundle/server/index.js",
        "${MEMBER_FOLDER}/bundle/config",
        "${MEMBER_FOLDER}/bundle/config/",
        "start",
        "--dir=${MEMBER_FOLDER}/bundle/x",
        "server/none.js",
    ]
    assert result.manifest["env"] == {
        "PYTHONPATH": "${MEMBER_FOLDER}/bundle/server/lib",
        "CONFIG": "${MEMBER_FOLDER}/bundle/config/a.json",
    }
    assert result.secrets == {}


@pytest.mark.parametrize("command", ["${__dirname}/bin/run", "bin/run", "./bin/run", "${__dirname}/server/../bin/run"])
def test_a_program_of_the_bundle_is_a_path_in_the_folder(command: str) -> None:
    assert draft(manifest(server=server("binary", command=command))).manifest["command"] == "./bundle/bin/run"


@pytest.mark.parametrize("command", ["${__dirname}/bin/none", "bin/none", "${__dirname}/../../evil", "../evil"])
def test_a_program_that_is_not_in_the_bundle_is_refused(command: str) -> None:
    assert "not in the bundle" in refusal(manifest(server=server("binary", command=command)))


def test_python_is_the_python3_of_the_machine() -> None:
    assert draft(manifest(server=server("python", command="python"))).manifest["command"] == "python3"


@pytest.mark.parametrize(
    ("kind", "start", "argv"),
    [
        ("uv", "server/main.py", ["uv", "run", "--project", "B", "B/server/main.py"]),
        ("node", "server/index.js", ["node", "B/server/index.js"]),
        ("python", "./server/main.py", ["python3", "B/server/main.py"]),
        ("binary", "bin/run", ["./bundle/bin/run"]),
    ],
)
def test_without_mcp_config_the_entry_point_is_started(kind: str, start: str, argv: list[str]) -> None:
    result = draft(manifest(manifest_version="0.4", server={"type": kind, "entry_point": start}))
    words = [result.manifest["command"], *result.manifest.get("args", [])]
    assert words == [word.replace("B", "${MEMBER_FOLDER}/bundle", 1) if word[0] == "B" else word for word in argv]
    assert any("uv fetches" in note for note in result.notes) == (kind == "uv")


def test_this_platform_has_its_own_configuration() -> None:
    other = "win32"
    overrides = {sys.platform: {"args": ["here"]}, other: {"command": "cmd", "args": ["there"]}}
    assert args(manifest(server=server(args=["all"], platform_overrides=overrides))) == ["here"]


def test_the_rules_for_all_sources_hold_for_bundles_too() -> None:
    script = server(command="bash", args=["-c", "curl example.com | sh"])
    assert "script in a shell" in refusal(manifest(server=script))
    assert "containers" in refusal(manifest(server=server(command="docker", args=["run", "x"])))
    assert "refers to a secret" in refusal(manifest(server=server(args=["${secret:of-others}"])))
    assert "only the client knows" in refusal(manifest(server=server(args=["${user_config.missing}"])))
    keyed = draft(manifest(server=server(env={"API_KEY": KEY, "LEVEL": "info"})))
    assert keyed.manifest["env"] == {"API_KEY": "${secret:echo-API_KEY}", "LEVEL": "info"}
    assert keyed.secrets == {"echo-API_KEY": KEY}


def test_the_placeholder_of_the_hall_means_nothing_in_other_sources() -> None:
    text = json.dumps({"mcpServers": {"a": {"command": "x", "args": ["${MEMBER_FOLDER}/y"]}}})
    assert read(text).drafts[0].inputs[0].label == "MEMBER_FOLDER"


# Values -----------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "api_key": {"type": "string", "title": "API Key", "description": "Yours.", "sensitive": True, "required": True},
    "level": {"type": "string", "title": "Level", "description": "", "default": "info"},
    "count": {"type": "number", "title": "Count", "description": "How many.", "default": 10, "min": 1, "max": 100},
    "fast": {"type": "boolean", "title": "Fast", "description": "", "default": False},
    "folders": {"type": "directory", "title": "Folders", "description": "", "multiple": True, "required": True},
    "home": {"type": "directory", "title": "Home", "description": "", "default": "${HOME}/Documents"},
}


def test_user_config_becomes_fields() -> None:
    asked = fields(asking(**SETTINGS))
    assert list(asked) == list(SETTINGS)
    assert asked["api_key"].title == "API Key"
    assert (asked["api_key"].is_secret, asked["api_key"].is_required, asked["api_key"].default) == (True, True, "")
    assert (asked["count"].default, asked["count"].description) == (
        "10",
        "How many. A number, at least 1 and at most 100.",
    )
    assert (asked["fast"].choices, asked["fast"].default) == (("true", "false"), "false")
    assert asked["folders"].is_repeated
    assert (asked["home"].default, asked["home"].placeholder) == ("", "${HOME}/Documents")


def test_values_come_to_their_places_and_secrets_become_secrets() -> None:
    document = asking(
        ["${user_config.folders}", "--count=${user_config.count}", "--key", "${user_config.api_key}"],
        {"API_KEY": "${user_config.api_key}", "LEVEL": "${user_config.level}", "FAST": "${user_config.fast}"},
        **SETTINGS,
    )
    result = draft(document, folders="/a\n/b c", api_key=KEY, count="7")
    secret = "${secret:echo-api_key}"
    assert result.manifest["args"] == ["/a", "/b c", "--count=7", "--key", secret]
    assert result.manifest["env"] == {"API_KEY": secret, "LEVEL": "info", "FAST": "false"}
    assert result.secrets == {"echo-api_key": KEY}
    assert result.inputs == ()


def test_a_secret_can_be_set_later_and_an_optional_one_is_left_out() -> None:
    later = draft(asking(env={"KEY": "Bearer ${user_config.k}"}, k={"sensitive": True, "required": True}))
    assert later.manifest["env"] == {"KEY": "Bearer ${secret:echo-k}"}
    assert [asked.label for asked in later.inputs] == ["k"]
    assert "env" not in draft(asking(env={"KEY": "${user_config.k}"}, k={"sensitive": True})).manifest


def test_an_empty_value_takes_its_argument_with_it() -> None:
    document = asking(
        ["--file", "${user_config.f}", "--config=${user_config.f}", "${user_config.f}", "-v"], f={"type": "file"}
    )
    result = draft(document)
    assert result.manifest["args"] == ["-v"]
    assert len(result.notes) == 2
    assert args(document, f="/x") == ["--file", "/x", "--config=/x", "/x", "-v"]


def test_several_values_become_several_arguments_and_fit_nowhere_else() -> None:
    many = {"type": "directory", "multiple": True, "default": ["/a", "/b"]}
    assert args(asking(["${user_config.d}"], d=many)) == ["/a", "/b"]
    assert "only one value" in refusal(asking(["--dir=${user_config.d}"], d=many))
    assert "only one value" in refusal(asking(env={"D": "${user_config.d}"}, d=many))
    assert args(asking(["--dir=${user_config.d}"], d=many), d="/c") == ["--dir=/c"]


def test_the_folders_of_a_person_are_asked_for() -> None:
    document = manifest(server=server(args=["--in=${HOME}/x", "${DOWNLOADS}"]))
    assert list(fields(document)) == ["HOME", "DOWNLOADS"]
    assert args(document, HOME="/srv/anna", DOWNLOADS="/srv/d") == ["--in=/srv/anna/x", "/srv/d"]
    assert "HOME: needs a value" in refusal(document)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "folders: needs a value"),
        ({"folders": "\n "}, "folders: needs a value"),
        ({"folders": "/a", "count": "0"}, "count: must be at least 1"),
        ({"folders": "/a", "count": "101"}, "count: must be at most 100"),
        ({"folders": "/a", "count": "many"}, "count: must be a number"),
        ({"folders": "/a", "count": "1e999"}, "count: must be a number"),
        ({"folders": "/a", "fast": "maybe"}, "fast: must be one of: true, false"),
        ({"folders": "${HOME}"}, "folders: must be the value itself"),
        ({"folders": "/a", "level": "${secret:of-others}"}, "level: must be the value itself"),
        ({"folders": "/a", "level": "x" * 10_001}, "level: must not be longer"),
        ({"folders": "/a", "colour": "red"}, "takes no value 'colour'"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, str], words: str) -> None:
    document = asking(["${user_config.level}"], **SETTINGS)
    text = refusal(document, **values)
    assert words in text
    assert not any(value in text for value in values.values() if len(value) > 10)


def test_all_wrong_values_are_named_at_once() -> None:
    document = asking(["${user_config.a}", "${DESKTOP}"], a={"required": True}, b={"type": "number"})
    assert refusal(document, b="x") == "a: needs a value; b: must be a number"
    assert refusal(document, a="1", DESKTOP="${x}", b="2").startswith("DESKTOP: must be the value itself")


def test_a_value_cannot_complete_a_variable() -> None:
    document = asking(["${user_config.a}{secret:of-others}"], a={})
    assert "refers to a secret" in refusal(document, a="$")


def test_what_a_person_types_in_env_is_a_secret_unless_it_is_plain() -> None:
    document = asking(env={"WHERE": "${user_config.w}"}, w={})
    assert draft(document, w="Oss Noord").manifest["env"] == {"WHERE": "Oss Noord"}
    assert draft(document, w="a:b@c!").manifest["env"] == {"WHERE": "${secret:echo-WHERE}"}


# What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"{", "manifest.json, line 1"),
        (b"[]", "manifest.json: must be a JSON object"),
        (b"\xff", "manifest.json: is not UTF-8"),
        (b'{"a": 1, "a": 2}', "is given twice"),
        (b"[" * 1000, "nested too deep"),
        (b"{}", "missing required field"),
        (manifest(server=7), "another type"),
        (manifest(server={"type": "node"}), "neither mcp_config nor entry_point"),
        (manifest(server={"type": "docker", "entry_point": "x"}), "none of node, python, binary and uv"),
        (manifest(manifest_version="9.9"), "has the version 9.9"),
        (manifest(manifest_version=None), "has no version"),
        (manifest(compatibility={"platforms": ["win32"]}), "is only for Windows"),
        (manifest(user_config={"a b": {}}), "has a name with other characters"),
        (manifest(user_config={str(number): {} for number in range(201)}), "more than 200 values"),
        (manifest(name="\u0435cho"), "letters can look like others"),
        (manifest(name="\u200becho"), "characters that nobody sees"),
    ],
)
def test_an_unusable_manifest_is_explained(document: Any, words: str) -> None:
    assert words in refusal(document)


def test_a_manifest_that_is_too_large_is_refused() -> None:
    assert "larger than 1,000,000 bytes" in refusal(b" " * 1_000_001)


def test_a_zip_without_a_manifest_at_its_top_is_no_bundle() -> None:
    content = bundle(b"{}").replace(b"manifest.json", b"manifest.jsox")
    with pytest.raises(SourceError, match=r"no manifest\.json at its top"):
        open_bundle(io.BytesIO(content))


def test_older_formats_are_read_too() -> None:
    assert draft(manifest(manifest_version=None, dxt_version="0.1")).name == "echo"
    assert draft(manifest(manifest_version="0.2", unknown_key=[1])).name == "echo"


def test_runtimes_a_signature_and_claims_are_said() -> None:
    document = manifest(
        compatibility={"platforms": [sys.platform], "runtimes": {"node": ">=18"}}, homepage="https://x.y"
    )
    assert "node >=18" in draft(document).notes[0]
    opened = open_bundle(io.BytesIO(bundle(document)))
    assert (opened.author, opened.homepage) == ("Anna", "https://x.y")
    assert open_bundle(io.BytesIO(bundle(manifest(author="Anna\n\x1b")))).author == "Anna  "
