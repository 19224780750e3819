from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta
from msgspec.inspect import type_info

from mcp_runtime.members.manifest import files, parser
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.protocol.errors import ManifestError
from tests.support.manifests import REMOTE, SEEDS_FORM, WRONG, WRONG_REMOTE


def write(folder: Path, values: Any = SEEDS_FORM) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = values if isinstance(values, bytes) else json.dumps(values).encode()
    (folder / files.FILE_NAME).write_bytes(content)
    return folder


def fault_of(tmp_path: Path, values: Any) -> str:
    file = files.read_file(write(tmp_path / "x", values), "x")
    assert file.manifest is None
    return file.fault


# Forms ------------------------------------------------------------------------------------------------------------


def test_the_seeds_form_is_read_with_our_defaults() -> None:
    found, warnings = parser.parse(SEEDS_FORM)
    assert found == Manifest(
        name="example",
        version="1.0.0",
        command="bun",
        transport="http",
        args=("run", "server.ts", "--port", "${PORT}"),
        env={"NODE_ENV": "production"},
        display_name="",
        description="",
        enabled=True,
        start_timeout=None,
        timeout=30.0,
        tool_timeouts={},
        restart="on-failure",
        max_concurrency=16,
    )
    assert warnings == []


@pytest.mark.parametrize("transport_is_nested", [True, False])
def test_the_first_guild_halls_form_means_the_same(transport_is_nested: bool) -> None:
    nested = {"command": "bun", "args": SEEDS_FORM["args"], "env": SEEDS_FORM["env"]}
    values: dict[str, Any] = {"name": "example", "version": "1.0.0", "displayName": "Example", "mcp": nested}
    (nested if transport_is_nested else values)["transport"] = "http"
    found, warnings = parser.parse(values)
    assert found == Manifest(**{**vars(parser.parse(SEEDS_FORM)[0]), "display_name": "Example"})
    assert warnings == []


def test_every_key_of_ours_is_read() -> None:
    ours = {
        "$schema": "../guild-member.schema.json",
        "displayName": "An example",
        "description": "Shows how.",
        "enabled": False,
        "start_timeout": 20,
        "timeout": 1.5,
        "tool_timeouts": {"render": 600},
        "restart": "never",
        "unresponsive": "restart",
        "max_concurrency": 4,
    }
    found, warnings = parser.parse({**SEEDS_FORM, **ours})
    assert (found.display_name, found.description, found.enabled) == ("An example", "Shows how.", False)
    assert (found.start_timeout, found.timeout, found.tool_timeouts) == (20.0, 1.5, {"render": 600.0})
    assert (found.restart, found.unresponsive, found.max_concurrency) == ("never", "restart", 4)
    assert warnings == []


def test_a_manifest_survives_its_row() -> None:
    found, _ = parser.parse({**SEEDS_FORM, "tool_timeouts": {"a": 1}, "max_concurrency": 2})
    assert Manifest.from_json(json.loads(json.dumps(found.as_json()))) == found


def test_a_row_written_by_another_version_of_the_hall_is_read() -> None:
    row = parser.parse(SEEDS_FORM)[0].as_json()
    del row["max_concurrency"]
    assert Manifest.from_json({**row, "of_tomorrow": 1}).max_concurrency == 16


# The port ---------------------------------------------------------------------------------------------------------


def test_the_port_is_put_into_args_and_env() -> None:
    values = {"args": ["--bind=127.0.0.1:${PORT}", "${PORT}${PORT}", "$PORT"], "env": {"PORT": "${PORT}"}}
    found, _ = parser.parse({**SEEDS_FORM, **values})
    assert found.argv(20001) == ["bun", "--bind=127.0.0.1:20001", "2000120001", "$PORT"]
    assert found.environment(20001) == {"PORT": "20001"}


def test_a_server_that_cannot_know_its_port_is_warned_of() -> None:
    _, warnings = parser.parse({**SEEDS_FORM, "args": ["server.ts"]})
    assert warnings == ["neither args nor env mentions ${PORT}: how will the server know its port?"]


def test_only_what_a_new_process_must_follow_changes_the_process_digest() -> None:
    digest = parser.parse(SEEDS_FORM)[0].process_digest
    same = {"description": "new words", "timeout": 9, "max_concurrency": 1, "version": "2"}
    assert parser.parse({**SEEDS_FORM, **same})[0].process_digest == digest
    for change in ({"command": "node"}, {"args": ["${PORT}"]}, {"env": {}}, {"transport": "stdio"}):
        assert parser.parse({**SEEDS_FORM, **change})[0].process_digest != digest
    digest = parser.parse(REMOTE)[0].process_digest
    for change in ({"url": "https://mcp.example.com/other"}, {"headers": {}}):
        assert parser.parse({**REMOTE, **change})[0].process_digest != digest


# A remote server ------------------------------------------------------------------------------------------------


def test_a_remote_server_has_a_url_and_headers_in_place_of_a_command() -> None:
    found, warnings = parser.parse(REMOTE)
    assert (found.command, found.args, found.env) == ("", (), {})
    assert (found.url, found.headers) == (REMOTE["url"], REMOTE["headers"])
    assert warnings == []
    assert Manifest.from_json(json.loads(json.dumps(found.as_json()))) == found
    nested = {key: REMOTE[key] for key in ("transport", "url", "headers")}
    assert parser.parse({"name": "remote", "version": "1.0.0", "mcp": nested})[0] == found


def test_a_row_of_before_there_were_urls_is_read() -> None:
    row = parser.parse(SEEDS_FORM)[0].as_json()
    del row["url"], row["headers"]
    assert Manifest.from_json(row) == parser.parse(SEEDS_FORM)[0]


def test_neither_a_command_nor_a_url_is_a_fault_that_names_both() -> None:
    with pytest.raises(ManifestError) as caught:
        parser.parse({key: value for key, value in REMOTE.items() if key not in ("url", "headers")})
    assert (caught.value.path, "url" in caught.value.reason) == ("command", True)


@pytest.mark.parametrize(("change", "path"), WRONG_REMOTE, ids=[json.dumps(change)[:50] for change, _ in WRONG_REMOTE])
def test_a_wrong_value_of_a_remote_server_is_refused_with_the_path_of_its_key(
    change: dict[str, Any], path: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        parser.parse({**REMOTE, **change})
    assert caught.value.path == path


def test_a_port_that_is_none_and_a_header_that_differs_by_case_are_refused() -> None:
    for change, path in (
        ({"url": "https://mcp.example.com:0/"}, "url"),
        ({"url": "https://mcp.example.com:65536/"}, "url"),
        ({"url": "https://[1::2::3]/"}, "url"),
        ({"headers": {"X-Team": "a", "x-team": "b"}}, "headers.x-team"),
    ):
        with pytest.raises(ManifestError) as caught:
            parser.parse({**REMOTE, **change})
        assert caught.value.path == path


def test_a_secret_in_clear_is_refused_with_what_to_do_and_is_not_quoted() -> None:
    with pytest.raises(ManifestError) as caught:
        parser.parse({**REMOTE, "headers": {"Authorization": "Bearer hunter2hunter2"}})
    assert "${env:NAME}" in str(caught.value)
    assert "${file:PATH}" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_stdio_server_needs_no_port() -> None:
    found, warnings = parser.parse({**SEEDS_FORM, "transport": "stdio", "args": ["run", "server.ts"]})
    assert (found.transport, found.argv(20000), warnings) == ("stdio", ["bun", "run", "server.ts"], [])
    assert Manifest.from_json(found.as_json()) == found


@pytest.mark.parametrize(
    ("command", "args", "fetches"),
    [
        ("npx", ["-y", "@modelcontextprotocol/server-everything"], True),
        ("uvx", ["mcp-server-time"], True),
        ("/usr/local/bin/uvx", [], True),
        ("pnpm", ["--silent", "dlx", "x"], True),
        ("uv", ["tool", "run", "x"], True),
        ("docker", ["run", "-i", "--rm", "mcp/time"], True),
        ("pnpm", ["start"], False),
        ("uv", ["tool"], False),
        ("./npx-like", [], False),
        ("python3", ["npx"], False),
    ],
)
def test_commands_that_fetch_their_server_first_are_known(command: str, args: list[str], fetches: bool) -> None:
    for transport in ("http", "stdio"):
        values = {**SEEDS_FORM, "transport": transport, "command": command, "args": args}
        assert parser.parse(values)[0].fetches_server is fetches
        assert parser.parse(values)[0].start_timeout is None
        assert parser.parse({**values, "start_timeout": 7})[0].start_timeout == 7


# Faults and warnings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "path"), WRONG, ids=[json.dumps(change)[:40] for change, _ in WRONG])
def test_a_wrong_value_is_refused_with_the_path_of_its_key(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parser.parse({**SEEDS_FORM, **change})
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("kind", "good", "bad", "reason"),
    [
        (Annotated[int, Meta(ge=0)], [0, 10**9, 2.0], [-1, 0.5, True, "1", 1e400], "must be a whole number from 0"),
        (Annotated[int, Meta(ge=1, le=9)], [1, 9], [0, 10], "must be a whole number from 1 to 9"),
        (Annotated[float, Meta(gt=0, lt=1)], [0.5], [0, 1, 1e400, 10**400], "must be a number above 0 below 1"),
        (float, [-1, 1.5, 10**9], [1e400, float("nan"), 10**400, None], "must be a number"),
    ],
)
def test_a_number_has_the_bounds_that_are_declared(kind: Any, good: list[Any], bad: list[Any], reason: str) -> None:
    reasons = [[error.reason for error in parser._errors(type_info(kind), value, "key")] for value in [*good, *bad]]
    assert reasons == [[]] * len(good) + [[reason]] * len(bad)


@pytest.mark.parametrize("key", ["name", "version", "transport", "command"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parser.parse({other: value for other, value in SEEDS_FORM.items() if other != key})
    assert caught.value.path == key
    assert caught.value.reason.startswith("is required")


def test_every_fault_of_a_manifest_is_reported_with_its_key(tmp_path: Path) -> None:
    values = {"version": 1, "mcp": {"args": "run", "env": {"A": 1, "A=B": ""}}, "restart": "always", "timeout": 0}
    assert fault_of(tmp_path, values) == (
        "x/guild-member.json: name: is required; version: must be a string; transport: is required; "
        "mcp.args: must be an array of strings; mcp.env.A: must be a string; "
        "mcp.env.A=B: is not a name for an environment variable; "
        "timeout: must be seconds: a number above 0, at most 86,400; "
        'restart: \'always\' is not supported; use "never" or "on-failure"; '
        "command: is required, unless url says where a server runs already"
    )
    caught = files.read_file(tmp_path / "x", "x").error
    assert caught is not None
    assert [error.path for error in caught.faults][:3] == ["name", "version", "transport"]


def test_any_number_of_faults_gives_a_short_text(tmp_path: Path) -> None:
    fault = fault_of(tmp_path, {**SEEDS_FORM, "args": [5] * 100_000})
    assert fault.count("must be a string") == parser.MAX_FAULTS
    assert fault.endswith(f"args.{parser.MAX_FAULTS - 1}: must be a string; and more")


def test_faults_under_mcp_carry_their_whole_path() -> None:
    values = {"name": "x", "version": "1", "mcp": {"transport": "http", "command": "bun", "args": [1]}}
    with pytest.raises(ManifestError) as caught:
        parser.parse(values)
    assert caught.value.path == "mcp.args.0"


def test_unknown_keys_warn() -> None:
    nested = {"command": "bun", "cwd": "/", "args": ["${PORT}"]}
    _, warnings = parser.parse({"name": "x", "version": "1", "transport": "http", "timout": 3, "mcp": nested})
    assert warnings == ["unknown key 'timout' is ignored", "unknown key 'mcp.cwd' is ignored"]


def test_any_number_of_unknown_keys_gives_a_short_list_of_warnings() -> None:
    _, warnings = parser.parse({**SEEDS_FORM, **{f"{number}" * 1000: 0 for number in range(1000, 1050)}})
    assert len(warnings) == parser.MAX_WARNINGS + 1
    assert max(map(len, warnings)) < 200
    assert warnings[-1] == "30 more unknown keys are ignored"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b'{"timeout": 1' + b"0" * 5000 + b"}", "not JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"timeout": Infinity}', "not JSON: Infinity is Python's, not JSON's"),
        (b"[]", "must be a JSON object"),
        (b" " * 1_000_001, "larger than 1,000,000 bytes"),
        (b'{"name": "a", "name": "b"}', "name: is given twice"),
        (b'{"mcp": {"command": "a", "command": "b"}}', "command: is given twice"),
    ],
)
def test_a_file_that_is_no_manifest_is_a_fault_that_says_why(tmp_path: Path, content: bytes, reason: str) -> None:
    assert fault_of(tmp_path, content).startswith(f"x/guild-member.json: {reason}")


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", b"\xef\xbb\xbf" + json.dumps(SEEDS_FORM).encode())
    assert files.read_file(folder, "x").manifest is not None


def test_a_faulty_manifest_still_tells_its_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", {**SEEDS_FORM, "args": 5})
    assert files.read_file(folder, "x").name_hint == "example"
    assert files.read_file(write(tmp_path / "y", {"name": "../y"}), "y").name_hint == ""


@pytest.mark.parametrize(
    "values",
    [
        {"a\0": 1, "env": {"\0": ""}},
        {"tool_timeouts": {"a\0": 1}},
        {"tool_timeouts": {"\ud800": 1}},
        {"env": {"\ud800": ""}},
    ],
)
def test_what_a_manifest_holds_never_becomes_a_text_that_a_database_refuses(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    file = files.read_file(write(tmp_path / "x", {**SEEDS_FORM, **values}), "x")
    assert file.manifest is None
    text = file.fault + "".join(file.warnings)
    assert "\0" not in text
    text.encode()


def test_a_manifest_that_is_a_pipe_does_not_keep_the_reader(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "x" / files.FILE_NAME)
    (file,) = files.read_all(tmp_path)
    assert file.fault == "x/guild-member.json: is not a file"


def test_a_manifest_that_is_a_folder_or_leads_nowhere_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "a" / files.FILE_NAME).mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / files.FILE_NAME).symlink_to("gone.json")
    assert [file.fault for file in files.read_all(tmp_path)] == [
        "a/guild-member.json: is not a file",
        "b/guild-member.json: cannot be read: No such file or directory",
    ]


def test_a_folder_that_may_not_be_looked_into_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may look into every folder
    (file,) = files.read_all(tmp_path)
    assert file.fault.startswith("locked/guild-member.json: cannot be read")


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems refuse such names")
def test_a_folder_whose_name_is_not_utf_8_is_a_fault_that_can_be_shown(tmp_path: Path) -> None:
    write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")))
    (file,) = files.read_all(tmp_path)
    assert file.fault == "caf\N{REPLACEMENT CHARACTER}/guild-member.json: the folder's name is not UTF-8; rename it"


# Folders ----------------------------------------------------------------------------------------------------------


def directories(members_dir: Path) -> list[str]:
    return [folder.relative_to(members_dir).as_posix() for folder in files.find(members_dir)]


def test_members_are_found_up_to_two_levels_deep(tmp_path: Path) -> None:
    for place in ("b", "a", "collection/one", "collection/two", "too/deep/here", "b/inside-a-member"):
        write(tmp_path / place)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-file").touch()
    assert directories(tmp_path) == ["a", "b", "collection/one", "collection/two"]


def test_hidden_folders_are_passed_over(tmp_path: Path) -> None:
    for place in (".draft", "_old", "collection/.draft", "node_modules/.bin"):
        write(tmp_path / place)
    assert directories(tmp_path) == []


def test_links_out_of_the_members_folder_are_passed_over(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside")
    members_dir = tmp_path / "members"
    write(members_dir / "inside")
    (members_dir / "link").symlink_to(outside)
    (members_dir / "collection").mkdir()
    (members_dir / "collection" / "link").symlink_to(outside)
    (members_dir / "loop").symlink_to("loop")
    (members_dir / "second").symlink_to("inside")
    assert directories(members_dir) == ["inside", "second"]


def test_a_manifest_that_is_a_link_out_of_the_members_folder_is_refused(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside")
    beside = write(tmp_path / "members-too")  # its name begins like that of the members folder
    members_dir = tmp_path / "members"
    for name, target in (("a", outside), ("b", beside)):
        (members_dir / name).mkdir(parents=True)
        (members_dir / name / files.FILE_NAME).symlink_to(target / files.FILE_NAME)
    (tmp_path / "step").symlink_to(outside)
    (members_dir / "c").mkdir()
    (members_dir / "c" / files.FILE_NAME).symlink_to(f"../../step/{files.FILE_NAME}")
    (members_dir / "d").mkdir()
    (members_dir / "d" / files.FILE_NAME).symlink_to(files.FILE_NAME)
    *outsiders, loop = files.read_all(members_dir)
    assert [file.manifest for file in [*outsiders, loop]] == [None] * 4
    assert {file.error.reason for file in outsiders if file.error} == {
        "is a link to a file outside of the members folder; put the file itself there"
    }
    assert loop.fault.startswith("d/guild-member.json: cannot be read")


def test_a_manifest_that_is_a_link_inside_of_the_members_folder_is_read(tmp_path: Path) -> None:
    """Mounted configuration comes so: the file leads to one of a hidden folder beside it."""
    write(tmp_path / "a" / ".data" / "1")
    (tmp_path / "a" / ".data" / "now").symlink_to("1")
    (tmp_path / "a" / files.FILE_NAME).symlink_to(f".data/now/{files.FILE_NAME}")
    (file,) = files.read_all(tmp_path)
    assert file.manifest is not None


def test_a_link_to_the_members_folder_or_to_a_collection_doubles_nothing(tmp_path: Path) -> None:
    for place in ("one", "collection/two"):
        write(tmp_path / place, {**SEEDS_FORM, "name": Path(place).name})
    (tmp_path / "all").symlink_to(".")
    (tmp_path / "again").symlink_to("collection")
    (tmp_path / "collection" / "up").symlink_to("..")
    assert directories(tmp_path) == ["collection/two", "one"]


def test_a_link_to_a_members_folder_is_refused_with_both_names(tmp_path: Path) -> None:
    write(tmp_path / "real")
    (tmp_path / "a-link").symlink_to("real")
    link, real = files.read_all(tmp_path, owners={"example": "a-link"})
    assert real.manifest is not None
    assert link.fault.endswith("the folder 'a-link' is the folder 'real' under another name; one folder is one member")


def test_a_member_that_is_only_found_through_a_link_is_one(tmp_path: Path) -> None:
    write(tmp_path / "too" / "deep" / "here")
    (tmp_path / "here").symlink_to("too/deep/here")
    (file,) = files.read_all(tmp_path)
    assert (file.directory, file.fault) == ("here", "")


def test_a_members_folder_that_is_itself_a_link_is_read(tmp_path: Path) -> None:
    write(tmp_path / "real" / "x")
    (tmp_path / "link").symlink_to("real")
    assert directories(tmp_path / "link") == ["x"]


def test_no_members_folder_means_no_members(tmp_path: Path) -> None:
    assert files.read_all(tmp_path / "gone") == []


def test_a_name_used_twice_belongs_to_the_first_folder(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b", {**SEEDS_FORM, "name": "EXAMPLE"})
    first, second = files.read_all(tmp_path)
    assert first.manifest is not None
    assert second.fault == (
        "b/guild-member.json: name: 'EXAMPLE' is taken by the folder 'a'; every member needs its own name"
    )


def test_a_copy_of_a_folder_does_not_take_the_name_of_the_original(tmp_path: Path) -> None:
    write(tmp_path / "a-copy")
    write(tmp_path / "original")
    copy, original = files.read_all(tmp_path, owners={"example": "original"})
    assert original.manifest is not None
    assert "is taken by the folder 'original'" in copy.fault


def test_a_name_whose_owner_is_gone_is_free(tmp_path: Path) -> None:
    write(tmp_path / "b")
    (file,) = files.read_all(tmp_path, owners={"example": "a"})
    assert file.manifest is not None


def test_the_fingerprint_differs_with_every_change_and_only_then(tmp_path: Path) -> None:
    write(tmp_path / "a")
    before = files.fingerprint(tmp_path)
    (tmp_path / "a" / "server.py").touch()
    assert files.fingerprint(tmp_path) == before
    write(tmp_path / "b")
    with_b = files.fingerprint(tmp_path)
    write(tmp_path / "b", {**SEEDS_FORM, "name": "b"})
    changed = files.fingerprint(tmp_path)
    (tmp_path / "b" / files.FILE_NAME).unlink()
    assert len({before, with_b, changed}) == 3
    assert files.fingerprint(tmp_path) == before
    (tmp_path / "b" / files.FILE_NAME).symlink_to("gone")
    assert files.fingerprint(tmp_path) != before


# The command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, mode in (("run", 0o755), ("notes.txt", 0o644), ("bin/tool", 0o755), ("bin/data", 0o644)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(mode)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("tool", ""),
        ("./run", ""),
        ("bin/tool", ""),
        ("{folder}/run", ""),
        ("./gone", "'./gone' does not exist in the member's folder"),
        ("{folder}/gone", "'{folder}/gone' does not exist"),
        ("./notes.txt", "'./notes.txt' is not executable"),
        ("./bin", "'./bin' is not executable"),
        ("gone", "'gone' is not on the PATH"),
        ("data", "'{folder}/bin/data' is not executable"),
        ("run", "'run' is not on the PATH; write './run' for the one in the member's folder"),
    ],
)
def test_a_command_that_could_not_start_is_reported(folder: Path, command: str, fault: str) -> None:
    values = {**SEEDS_FORM, "command": command.format(folder=folder), "env": {"PATH": f"{folder}/bin"}}
    assert files.command_fault(parser.parse(values)[0], folder) == fault.format(folder=folder)


def test_the_halls_own_path_counts_when_the_manifest_gives_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {**SEEDS_FORM, "command": "tool"}
    monkeypatch.setenv("PATH", f"{folder}/bin")
    assert files.command_fault(parser.parse(values)[0], folder) == ""
    monkeypatch.setenv("PATH", str(folder))
    assert files.command_fault(parser.parse(values)[0], folder) == "'tool' is not on the PATH"
