from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta
from msgspec.inspect import type_info

from mcp_runtime.members.manifest import commands, files, parser
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


def test_a_minimal_manifest_gets_the_default_values() -> None:
    manifest, warnings = parser.parse(SEEDS_FORM)
    assert manifest == Manifest(
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
def test_the_older_form_with_mcp_gives_the_same_manifest(transport_is_nested: bool) -> None:
    nested = {"command": "bun", "args": SEEDS_FORM["args"], "env": SEEDS_FORM["env"]}
    values: dict[str, Any] = {"name": "example", "version": "1.0.0", "displayName": "Example", "mcp": nested}
    (nested if transport_is_nested else values)["transport"] = "http"
    manifest, warnings = parser.parse(values)
    assert manifest == Manifest(**{**vars(parser.parse(SEEDS_FORM)[0]), "display_name": "Example"})
    assert warnings == []


def test_every_optional_key_is_read() -> None:
    values = {
        "$schema": "../guild-member.schema.json",
        "displayName": "An example",
        "description": "Shows how.",
        "enabled": False,
        "start_timeout": 20,
        "timeout": 1.5,
        "tool_timeouts": {"render": 600},
        "restart": "never",
        "unresponsive": "restart",
        "contracts": "hold",
        "max_concurrency": 4,
    }
    manifest, warnings = parser.parse({**SEEDS_FORM, **values})
    assert (manifest.display_name, manifest.description, manifest.enabled) == ("An example", "Shows how.", False)
    assert (manifest.start_timeout, manifest.timeout, manifest.tool_timeouts) == (20.0, 1.5, {"render": 600.0})
    assert (manifest.restart, manifest.unresponsive, manifest.max_concurrency) == ("never", "restart", 4)
    assert manifest.contracts == "hold"
    assert warnings == []


def test_a_manifest_is_read_unchanged_from_its_row() -> None:
    manifest, _ = parser.parse({**SEEDS_FORM, "tool_timeouts": {"a": 1}, "max_concurrency": 2})
    assert Manifest.from_json(json.loads(json.dumps(manifest.as_json()))) == manifest


def test_a_row_written_by_another_version_of_the_hall_is_read() -> None:
    row = parser.parse(SEEDS_FORM)[0].as_json()
    del row["max_concurrency"]
    assert Manifest.from_json({**row, "of_tomorrow": 1}).max_concurrency == 16


# Nodes ------------------------------------------------------------------------------------------------------------


def test_what_a_manifest_says_about_nodes_is_read_unchanged_from_its_row() -> None:
    rules = {"labels": ["gpu"], "state": "shared", "files": ["server.py", "lib/**"]}
    manifest, warnings = parser.parse({**SEEDS_FORM, "node": rules})
    assert (manifest.node.labels, manifest.state, manifest.file_patterns) == (
        ("gpu",),
        "shared",
        ("server.py", "lib/**"),
    )
    assert warnings == []
    row = manifest.as_json()
    assert row["node"] == rules
    assert json.loads(json.dumps(row)) == row  # or each sync would find a change
    assert Manifest.from_json(row) == manifest


def test_without_node_a_member_with_a_command_has_local_state_and_a_remote_server_none() -> None:
    started, remote = parser.parse(SEEDS_FORM)[0], parser.parse(REMOTE)[0]
    assert (started.state, started.file_patterns) == ("local", ())
    assert (remote.state, remote.file_patterns) == ("none", ("**",))
    assert parser.parse({**SEEDS_FORM, "node": {"files": []}})[0].file_patterns == ()
    assert parser.parse({**SEEDS_FORM, "node": {"state": "none", "files": []}})[0].file_patterns == ()


def test_a_row_that_is_older_than_node_is_read() -> None:
    row = parser.parse(SEEDS_FORM)[0].as_json()
    del row["node"]
    assert Manifest.from_json(row) == parser.parse(SEEDS_FORM)[0]
    assert Manifest.from_json({**row, "node": {"state": "none", "of_tomorrow": 1}}).state == "none"


def test_a_row_that_is_older_than_the_sandbox_is_read() -> None:
    row = parser.parse(SEEDS_FORM)[0].as_json()
    del row["sandbox"], row["limits"]
    assert Manifest.from_json(row) == parser.parse(SEEDS_FORM)[0]
    assert Manifest.from_json({**row, "limits": {"processes": 5, "of_tomorrow": 1}}).limits.processes == 5


def test_an_unknown_key_of_limits_has_a_warning() -> None:
    manifest, warnings = parser.parse({**SEEDS_FORM, "limits": {"memory": 100, "memory_mb": 100}})
    assert manifest.limits.memory_mb == 100
    assert warnings == ["unknown key 'limits.memory' is ignored"]


def test_an_unknown_key_of_node_has_a_warning() -> None:
    assert parser.parse({**SEEDS_FORM, "node": {"label": ["gpu"]}})[1] == ["unknown key 'node.label' is ignored"]


# The port ---------------------------------------------------------------------------------------------------------


def test_the_port_replaces_its_placeholder_in_args_and_env() -> None:
    values = {"args": ["--bind=127.0.0.1:${PORT}", "${PORT}${PORT}", "$PORT"], "env": {"PORT": "${PORT}"}}
    manifest, _ = parser.parse({**SEEDS_FORM, **values})
    assert manifest.argv(20001) == ["bun", "--bind=127.0.0.1:20001", "2000120001", "$PORT"]
    assert manifest.environment(20001) == {"PORT": "20001"}


def test_a_manifest_without_the_port_placeholder_has_a_warning() -> None:
    _, warnings = parser.parse({**SEEDS_FORM, "args": ["server.ts"]})
    assert warnings == ["neither args nor env mentions ${PORT}: how will the server know its port?"]


def test_only_changes_that_need_a_new_process_change_the_process_digest() -> None:
    digest = parser.parse(SEEDS_FORM)[0].process_digest
    unrelated_change = {
        "description": "new words",
        "timeout": 9,
        "max_concurrency": 1,
        "version": "2",
        "node": {"state": "none"},
    }
    assert parser.parse({**SEEDS_FORM, **unrelated_change})[0].process_digest == digest
    of_sandbox = ({"sandbox": "on"}, {"limits": {"memory_mb": 100}})
    for change in ({"command": "node"}, {"args": ["${PORT}"]}, {"env": {}}, {"transport": "stdio"}, *of_sandbox):
        assert parser.parse({**SEEDS_FORM, **change})[0].process_digest != digest
    digest = parser.parse(REMOTE)[0].process_digest
    for change in ({"url": "https://mcp.example.com/other"}, {"headers": {}}):
        assert parser.parse({**REMOTE, **change})[0].process_digest != digest


# A remote server ------------------------------------------------------------------------------------------------


def test_a_remote_server_has_a_url_and_headers_instead_of_a_command() -> None:
    manifest, warnings = parser.parse(REMOTE)
    assert (manifest.command, manifest.args, manifest.env) == ("", (), {})
    assert (manifest.url, manifest.headers) == (REMOTE["url"], REMOTE["headers"])
    assert warnings == []
    assert Manifest.from_json(json.loads(json.dumps(manifest.as_json()))) == manifest
    nested = {key: REMOTE[key] for key in ("transport", "url", "headers")}
    assert parser.parse({"name": "remote", "version": "1.0.0", "mcp": nested})[0] == manifest


def test_a_row_without_url_and_headers_is_read() -> None:
    row = parser.parse(SEEDS_FORM)[0].as_json()
    del row["url"], row["headers"]
    assert Manifest.from_json(row) == parser.parse(SEEDS_FORM)[0]


def test_the_error_about_a_missing_command_also_names_url() -> None:
    with pytest.raises(ManifestError) as error:
        parser.parse({key: value for key, value in REMOTE.items() if key not in ("url", "headers")})
    assert (error.value.path, "url" in error.value.reason) == ("command", True)


@pytest.mark.parametrize(("change", "path"), WRONG_REMOTE, ids=[json.dumps(change)[:50] for change, _ in WRONG_REMOTE])
def test_a_wrong_value_of_a_remote_server_is_refused_with_the_path_of_its_key(
    change: dict[str, Any], path: str
) -> None:
    with pytest.raises(ManifestError) as error:
        parser.parse({**REMOTE, **change})
    assert error.value.path == path


def test_an_invalid_port_and_a_duplicate_header_are_refused() -> None:
    for change, path in (
        ({"url": "https://mcp.example.com:0/"}, "url"),
        ({"url": "https://mcp.example.com:65536/"}, "url"),
        ({"url": "https://[1::2::3]/"}, "url"),
        ({"headers": {"X-Team": "a", "x-team": "b"}}, "headers.x-team"),
    ):
        with pytest.raises(ManifestError) as error:
            parser.parse({**REMOTE, **change})
        assert error.value.path == path


def test_a_secret_in_a_header_is_refused_without_a_quote() -> None:
    with pytest.raises(ManifestError) as error:
        parser.parse({**REMOTE, "headers": {"Authorization": "Bearer hunter2hunter2"}})
    assert "${secret:NAME}" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_stdio_server_needs_no_port() -> None:
    manifest, warnings = parser.parse({**SEEDS_FORM, "transport": "stdio", "args": ["run", "server.ts"]})
    assert (manifest.transport, manifest.argv(20000), warnings) == ("stdio", ["bun", "run", "server.ts"], [])
    assert Manifest.from_json(manifest.as_json()) == manifest


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
def test_commands_that_download_their_server_are_recognized(command: str, args: list[str], fetches: bool) -> None:
    for transport in ("http", "stdio"):
        values = {**SEEDS_FORM, "transport": transport, "command": command, "args": args}
        assert parser.parse(values)[0].fetches_server is fetches
        assert parser.parse(values)[0].start_timeout is None
        assert parser.parse({**values, "start_timeout": 7})[0].start_timeout == 7


# Faults and warnings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "path"), WRONG, ids=[json.dumps(change)[:40] for change, _ in WRONG])
def test_a_wrong_value_is_refused_with_the_path_of_its_key(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ManifestError) as error:
        parser.parse({**SEEDS_FORM, **change})
    assert error.value.path == path


@pytest.mark.parametrize(
    ("kind", "valid_values", "invalid_values", "reason"),
    [
        (Annotated[int, Meta(ge=0)], [0, 10**9, 2.0], [-1, 0.5, True, "1", 1e400], "must be a whole number from 0"),
        (Annotated[int, Meta(ge=1, le=9)], [1, 9], [0, 10], "must be a whole number from 1 to 9"),
        (Annotated[float, Meta(gt=0, lt=1)], [0.5], [0, 1, 1e400, 10**400], "must be a number above 0 below 1"),
        (float, [-1, 1.5, 10**9], [1e400, float("nan"), 10**400, None], "must be a number"),
    ],
)
def test_a_number_outside_its_declared_range_is_refused(
    kind: Any, valid_values: list[Any], invalid_values: list[Any], reason: str
) -> None:
    reasons = [
        [error.reason for error in parser._errors(type_info(kind), value, "key")]
        for value in [*valid_values, *invalid_values]
    ]
    assert reasons == [[]] * len(valid_values) + [[reason]] * len(invalid_values)


@pytest.mark.parametrize("key", ["name", "version", "transport", "command"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ManifestError) as error:
        parser.parse({other_key: value for other_key, value in SEEDS_FORM.items() if other_key != key})
    assert error.value.path == key
    assert error.value.reason.startswith("is required")


def test_every_error_of_a_manifest_is_reported_with_its_key(tmp_path: Path) -> None:
    values = {"version": 1, "mcp": {"args": "run", "env": {"A": 1, "A=B": ""}}, "restart": "always", "timeout": 0}
    assert fault_of(tmp_path, values) == (
        "x/guild-member.json: name: is required; version: must be a string; transport: is required; "
        "mcp.args: must be an array of strings; mcp.env.A: must be a string; "
        "mcp.env.A=B: is not a name for an environment variable; "
        "timeout: must be seconds: a number above 0, at most 86,400; "
        'restart: \'always\' is not supported; use "never" or "on-failure"; '
        "command: is required, unless url says where a server runs already"
    )
    error = files.read_file(tmp_path / "x", "x").error
    assert error is not None
    assert [error.path for error in error.faults][:3] == ["name", "version", "transport"]


def test_many_errors_give_a_short_text(tmp_path: Path) -> None:
    fault = fault_of(tmp_path, {**SEEDS_FORM, "args": [5] * 100_000})
    assert fault.count("must be a string") == parser.MAX_FAULTS
    assert fault.endswith(f"args.{parser.MAX_FAULTS - 1}: must be a string; and more")


def test_errors_under_mcp_have_their_whole_path() -> None:
    values = {"name": "x", "version": "1", "mcp": {"transport": "http", "command": "bun", "args": [1]}}
    with pytest.raises(ManifestError) as error:
        parser.parse(values)
    assert error.value.path == "mcp.args.0"


def test_unknown_keys_give_warnings() -> None:
    nested = {"command": "bun", "cwd": "/", "args": ["${PORT}"]}
    _, warnings = parser.parse({"name": "x", "version": "1", "transport": "http", "timout": 3, "mcp": nested})
    assert warnings == ["unknown key 'timout' is ignored", "unknown key 'mcp.cwd' is ignored"]


def test_many_unknown_keys_give_a_short_list_of_warnings() -> None:
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
        (b'{"name": "a", "name": "b"}', "'name' is given twice"),
        (b'{"mcp": {"command": "a", "command": "b"}}', "'command' is given twice"),
    ],
)
def test_an_invalid_file_is_an_error_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    assert fault_of(tmp_path, content).startswith(f"x/guild-member.json: {reason}")


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", b"\xef\xbb\xbf" + json.dumps(SEEDS_FORM).encode())
    assert files.read_file(folder, "x").manifest is not None


def test_an_invalid_manifest_still_has_its_name(tmp_path: Path) -> None:
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
def test_the_error_of_a_manifest_can_be_stored_in_a_database(tmp_path: Path, values: dict[str, Any]) -> None:
    file = files.read_file(write(tmp_path / "x", {**SEEDS_FORM, **values}), "x")
    assert file.manifest is None
    text = file.fault + "".join(file.warnings)
    assert "\0" not in text
    text.encode()


def test_a_manifest_that_is_a_pipe_does_not_block_the_reader(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "x" / files.FILE_NAME)
    (file,) = files.read_all(tmp_path)
    assert file.fault == "x/guild-member.json: is not a file"


def test_a_manifest_that_is_a_folder_or_a_broken_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a" / files.FILE_NAME).mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / files.FILE_NAME).symlink_to("gone.json")
    assert [file.fault for file in files.read_all(tmp_path)] == [
        "a/guild-member.json: is not a file",
        "b/guild-member.json: cannot be read: No such file or directory",
    ]


def test_a_folder_without_read_permission_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may look into every folder
    (file,) = files.read_all(tmp_path)
    assert file.fault.startswith("locked/guild-member.json: cannot be read")


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems refuse such names")
def test_a_folder_whose_name_is_not_utf_8_is_a_printable_error(tmp_path: Path) -> None:
    write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")))
    (file,) = files.read_all(tmp_path)
    assert file.fault == "caf\N{REPLACEMENT CHARACTER}/guild-member.json: the folder's name is not UTF-8; rename it"


# Folders ----------------------------------------------------------------------------------------------------------


def directories(members_dir: Path) -> list[str]:
    return [folder.relative_to(members_dir).as_posix() for folder in files.find(members_dir)]


def test_members_are_found_up_to_two_levels_deep(tmp_path: Path) -> None:
    for path in ("b", "a", "collection/one", "collection/two", "too/deep/here", "b/inside-a-member"):
        write(tmp_path / path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-file").touch()
    assert directories(tmp_path) == ["a", "b", "collection/one", "collection/two"]


def test_a_folder_of_a_member_is_no_collection_when_its_manifest_is_gone_or_renamed(tmp_path: Path) -> None:
    """The member could have written these manifests."""
    for path in ("a", "evil/data", "collection/evil", "off/data"):
        write(tmp_path / path)
    (tmp_path / "off" / "guild-member.json.off").touch()
    assert directories(tmp_path) == ["a", "collection/evil", "evil/data"]
    remaining = files.read_all(tmp_path, member_folders={"evil", "collection/one", "gone"})
    assert [file.directory for file in remaining] == ["a", "collection/evil"]


def test_hidden_folders_are_ignored(tmp_path: Path) -> None:
    for path in (".draft", "_old", "collection/.draft", "node_modules/.bin"):
        write(tmp_path / path)
    assert directories(tmp_path) == []


def test_links_out_of_the_members_folder_are_ignored(tmp_path: Path) -> None:
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
    similar_folder = write(tmp_path / "members-too")  # its name begins like that of the members folder
    members_dir = tmp_path / "members"
    for name, target in (("a", outside), ("b", similar_folder)):
        (members_dir / name).mkdir(parents=True)
        (members_dir / name / files.FILE_NAME).symlink_to(target / files.FILE_NAME)
    (tmp_path / "step").symlink_to(outside)
    (members_dir / "c").mkdir()
    (members_dir / "c" / files.FILE_NAME).symlink_to(f"../../step/{files.FILE_NAME}")
    (members_dir / "d").mkdir()
    (members_dir / "d" / files.FILE_NAME).symlink_to(files.FILE_NAME)
    *outside_links, looping_link = files.read_all(members_dir)
    assert [file.manifest for file in [*outside_links, looping_link]] == [None] * 4
    assert {file.error.reason for file in outside_links if file.error} == {
        "is a link to a file outside of the members folder; put the file itself there"
    }
    assert looping_link.fault.startswith("d/guild-member.json: cannot be read")


def test_a_manifest_that_is_a_link_inside_the_members_folder_is_read(tmp_path: Path) -> None:
    """Mounted configuration has this form. The file is a link into a hidden folder beside it."""
    write(tmp_path / "a" / ".data" / "1")
    (tmp_path / "a" / ".data" / "now").symlink_to("1")
    (tmp_path / "a" / files.FILE_NAME).symlink_to(f".data/now/{files.FILE_NAME}")
    (file,) = files.read_all(tmp_path)
    assert file.manifest is not None


def test_links_to_the_members_folder_or_to_a_collection_duplicate_no_member(tmp_path: Path) -> None:
    for path in ("one", "collection/two"):
        write(tmp_path / path, {**SEEDS_FORM, "name": Path(path).name})
    (tmp_path / "all").symlink_to(".")
    (tmp_path / "again").symlink_to("collection")
    (tmp_path / "collection" / "up").symlink_to("..")
    assert directories(tmp_path) == ["collection/two", "one"]


def test_a_link_to_the_folder_of_a_member_is_refused_with_both_names(tmp_path: Path) -> None:
    write(tmp_path / "real")
    (tmp_path / "a-link").symlink_to("real")
    link, real = files.read_all(tmp_path, owners={"example": "a-link"})
    assert real.manifest is not None
    assert link.fault.endswith("the folder 'a-link' is the folder 'real' under another name; one folder is one member")


def test_a_folder_that_is_only_reachable_by_a_link_is_a_member(tmp_path: Path) -> None:
    write(tmp_path / "too" / "deep" / "here")
    (tmp_path / "here").symlink_to("too/deep/here")
    (file,) = files.read_all(tmp_path)
    assert (file.directory, file.fault) == ("here", "")


def test_a_members_folder_that_is_itself_a_link_is_read(tmp_path: Path) -> None:
    write(tmp_path / "real" / "x")
    (tmp_path / "link").symlink_to("real")
    assert directories(tmp_path / "link") == ["x"]


def test_a_missing_members_folder_has_no_members(tmp_path: Path) -> None:
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


def test_a_name_is_free_when_the_folder_of_its_owner_is_gone(tmp_path: Path) -> None:
    write(tmp_path / "b")
    (file,) = files.read_all(tmp_path, owners={"example": "a"})
    assert file.manifest is not None


def test_the_fingerprint_changes_only_with_the_manifests(tmp_path: Path) -> None:
    write(tmp_path / "a")
    first_fingerprint = files.fingerprint(tmp_path)
    (tmp_path / "a" / "server.py").touch()
    assert files.fingerprint(tmp_path) == first_fingerprint
    write(tmp_path / "b")
    second_fingerprint = files.fingerprint(tmp_path)
    write(tmp_path / "b", {**SEEDS_FORM, "name": "b"})
    third_fingerprint = files.fingerprint(tmp_path)
    (tmp_path / "b" / files.FILE_NAME).unlink()
    assert len({first_fingerprint, second_fingerprint, third_fingerprint}) == 3
    assert files.fingerprint(tmp_path) == first_fingerprint
    (tmp_path / "b" / files.FILE_NAME).symlink_to("gone")
    assert files.fingerprint(tmp_path) != first_fingerprint


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
    assert commands.command_fault(parser.parse(values)[0], folder) == fault.format(folder=folder)


def test_the_halls_own_path_applies_when_the_manifest_has_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {**SEEDS_FORM, "command": "tool"}
    monkeypatch.setenv("PATH", f"{folder}/bin")
    assert commands.command_fault(parser.parse(values)[0], folder) == ""
    monkeypatch.setenv("PATH", str(folder))
    assert commands.command_fault(parser.parse(values)[0], folder) == "'tool' is not on the PATH"
