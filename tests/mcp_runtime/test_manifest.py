from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_runtime import manifest
from mcp_runtime.errors import ManifestError
from mcp_runtime.manifest import Manifest

SEEDS_FORM: dict[str, Any] = {
    "name": "example",
    "version": "1.0.0",
    "transport": "http",
    "command": "bun",
    "args": ["run", "server.ts", "--port", "${PORT}"],
    "env": {"NODE_ENV": "production"},
}

ELSEWHERE: dict[str, Any] = {
    "name": "elsewhere",
    "version": "1.0.0",
    "transport": "http",
    "url": "https://mcp.example.com/mcp",
    "headers": {"Authorization": "Bearer ${env:EXAMPLE_TOKEN}", "X-Team": "blue"},
}


def write(folder: Path, values: Any = SEEDS_FORM) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = values if isinstance(values, bytes) else json.dumps(values).encode()
    (folder / manifest.FILE_NAME).write_bytes(content)
    return folder


def fault_of(tmp_path: Path, values: Any) -> str:
    file = manifest.read_file(write(tmp_path / "x", values), "x")
    assert file.manifest is None
    return file.fault


# Forms ------------------------------------------------------------------------------------------------------------


def test_the_seeds_form_is_read_with_our_defaults() -> None:
    found, warnings = manifest.parse(SEEDS_FORM)
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
        start_timeout=5.0,
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
    found, warnings = manifest.parse(values)
    assert found == Manifest(**{**vars(manifest.parse(SEEDS_FORM)[0]), "display_name": "Example"})
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
        "max_concurrency": 4,
    }
    found, warnings = manifest.parse({**SEEDS_FORM, **ours})
    assert (found.display_name, found.description, found.enabled) == ("An example", "Shows how.", False)
    assert (found.start_timeout, found.timeout, found.tool_timeouts) == (20.0, 1.5, {"render": 600.0})
    assert (found.restart, found.max_concurrency) == ("never", 4)
    assert warnings == []


def test_a_manifest_survives_its_row() -> None:
    found, _ = manifest.parse({**SEEDS_FORM, "tool_timeouts": {"a": 1}, "max_concurrency": 2})
    assert Manifest.from_json(json.loads(json.dumps(found.as_json()))) == found


def test_a_row_written_by_another_version_of_the_hall_is_read() -> None:
    row = manifest.parse(SEEDS_FORM)[0].as_json()
    del row["max_concurrency"]
    assert Manifest.from_json({**row, "of_tomorrow": 1}).max_concurrency == 16


# The port ---------------------------------------------------------------------------------------------------------


def test_the_port_is_put_into_args_and_env() -> None:
    values = {"args": ["--bind=127.0.0.1:${PORT}", "${PORT}${PORT}", "$PORT"], "env": {"PORT": "${PORT}"}}
    found, _ = manifest.parse({**SEEDS_FORM, **values})
    assert found.argv(20001) == ["bun", "--bind=127.0.0.1:20001", "2000120001", "$PORT"]
    assert found.environment(20001) == {"PORT": "20001"}


def test_a_server_that_cannot_know_its_port_is_warned_of() -> None:
    _, warnings = manifest.parse({**SEEDS_FORM, "args": ["server.ts"]})
    assert warnings == ["neither args nor env mentions ${PORT}: how will the server know its port?"]


def test_only_what_a_new_process_must_follow_changes_the_process_digest() -> None:
    digest = manifest.parse(SEEDS_FORM)[0].process_digest
    same = {"description": "new words", "timeout": 9, "max_concurrency": 1, "version": "2"}
    assert manifest.parse({**SEEDS_FORM, **same})[0].process_digest == digest
    for change in ({"command": "node"}, {"args": ["${PORT}"]}, {"env": {}}, {"transport": "stdio"}):
        assert manifest.parse({**SEEDS_FORM, **change})[0].process_digest != digest
    elsewhere = manifest.parse(ELSEWHERE)[0].process_digest
    for change in ({"url": "https://mcp.example.com/other"}, {"headers": {}}):
        assert manifest.parse({**ELSEWHERE, **change})[0].process_digest != elsewhere


# A server elsewhere ----------------------------------------------------------------------------------------------


def test_a_server_elsewhere_has_a_url_and_headers_in_place_of_a_command() -> None:
    found, warnings = manifest.parse(ELSEWHERE)
    assert (found.command, found.args, found.env) == ("", (), {})
    assert (found.url, found.headers) == (ELSEWHERE["url"], ELSEWHERE["headers"])
    assert warnings == []
    assert Manifest.from_json(json.loads(json.dumps(found.as_json()))) == found
    nested = {key: ELSEWHERE[key] for key in ("transport", "url", "headers")}
    assert manifest.parse({"name": "elsewhere", "version": "1.0.0", "mcp": nested})[0] == found


def test_a_row_of_before_there_were_urls_is_read() -> None:
    row = manifest.parse(SEEDS_FORM)[0].as_json()
    del row["url"], row["headers"]
    assert Manifest.from_json(row) == manifest.parse(SEEDS_FORM)[0]


def test_neither_a_command_nor_a_url_is_a_fault_that_names_both() -> None:
    with pytest.raises(ManifestError) as caught:
        manifest.parse({key: value for key, value in ELSEWHERE.items() if key not in ("url", "headers")})
    assert (caught.value.path, "url" in caught.value.reason) == ("command", True)


WRONG_ELSEWHERE: list[tuple[dict[str, Any], str]] = [
    ({"command": "bun"}, "url"),
    ({"args": []}, "args"),
    ({"env": {}}, "env"),
    ({"mcp": {"url": "https://mcp.example.com/"}}, "url"),
    ({"mcp": {"env": {}}}, "mcp.env"),
    *(
        ({"url": url}, "url")
        for url in (
            5,
            "",
            "mcp.example.com/mcp",
            "//mcp.example.com/mcp",
            "ftp://mcp.example.com/",
            "HTTPS://mcp.example.com/",
            "https://",
            "https:///mcp",
            "https://mcp.example.com:x/",
            "https://mcp.example.com/a b",
            "https://mcp.example.com/\n",
            "https://mcp.example.com/mcp\n",
            "https://mcp.example.com\\@127.0.0.1/",
            "https://m\u00fcller.example/",
            "https://mcp.example.com/#top",
            "https://anna:pass@mcp.example.com/",
            "https://anna@mcp.example.com/",
            "http://127.0.0.1:${PORT}/mcp",
            "https://mcp.example.com/${env:TOKEN}",
            "https://mcp.example.com/?api_key=abc",
            "https://mcp.example.com/?a=1&ACCESS_TOKEN=abc",
            "https://mcp.example.com/" + "x" * 2048,
        )
    ),
    ({"headers": []}, "headers"),
    ({"headers": {f"X-{number}": "" for number in range(101)}}, "headers"),
    *(
        ({"headers": {name: value}}, f"headers.{name[:80]}")
        for name, value in {
            "": "x",
            "a b": "x",
            "X:": "x",
            "X\n": "x",
            "\u00fc": "x",
            "X" * 201: "x",
            "Host": "x",
            "content-length": "1",
            "Content-Type": "text/html",
            "Accept": "*/*",
            "Mcp-Session-Id": "x",
            "MCP-Protocol-Version": "x",
            "Connection": "close",
            "Transfer-Encoding": "chunked",
            "X-Number": 5,
            "X-Line": "a\r\nX-Other: b",
            "X-Tab": "a\tb",
            "X-Umlaut": "\u00fc",
            "X-Space": " a",
            "X-Long": "x" * 8193,
            "X-Port": "${PORT}",
            "X-Shell": "${HOME:-x}",
            "X-Env": "${env:1}",
            "X-Open": "${file:",
            "X-Hall": "${env:GUILD_HALL_ADMIN_PASSWORD}",
            "X-Database": "${env:DATABASE_URL}",
            "Authorization": "Bearer abc",
            "Proxy-Authorization": "Basic abc",
            "Cookie": "session=abc",
            "x-api-key": "abc",
            "X-My-Token": "",
            "X-Secret-Thing": "abc",
            "X-Auth": "abc",
        }.items()
    ),
]


@pytest.mark.parametrize(
    ("change", "path"), WRONG_ELSEWHERE, ids=[json.dumps(change)[:50] for change, _ in WRONG_ELSEWHERE]
)
def test_a_wrong_value_of_a_server_elsewhere_is_refused_with_the_path_of_its_key(
    change: dict[str, Any], path: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        manifest.parse({**ELSEWHERE, **change})
    assert caught.value.path == path


def test_a_port_that_is_none_and_a_header_that_differs_by_case_are_refused() -> None:
    for change, path in (
        ({"url": "https://mcp.example.com:0/"}, "url"),
        ({"url": "https://mcp.example.com:65536/"}, "url"),
        ({"url": "https://[1::2::3]/"}, "url"),
        ({"headers": {"X-Team": "a", "x-team": "b"}}, "headers.x-team"),
    ):
        with pytest.raises(ManifestError) as caught:
            manifest.parse({**ELSEWHERE, **change})
        assert caught.value.path == path


def test_a_secret_in_clear_is_refused_with_what_to_do_and_is_not_quoted() -> None:
    with pytest.raises(ManifestError) as caught:
        manifest.parse({**ELSEWHERE, "headers": {"Authorization": "Bearer hunter2hunter2"}})
    assert "${env:NAME}" in str(caught.value)
    assert "${file:PATH}" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_stdio_server_needs_no_port() -> None:
    found, warnings = manifest.parse({**SEEDS_FORM, "transport": "stdio", "args": ["run", "server.ts"]})
    assert (found.transport, found.argv(20000), warnings) == ("stdio", ["bun", "run", "server.ts"], [])
    assert Manifest.from_json(found.as_json()) == found


@pytest.mark.parametrize(
    ("command", "args", "seconds"),
    [
        ("npx", ["-y", "@modelcontextprotocol/server-everything"], 120),
        ("uvx", ["mcp-server-time"], 120),
        ("/usr/local/bin/uvx", [], 120),
        ("pnpm", ["--silent", "dlx", "x"], 120),
        ("uv", ["tool", "run", "x"], 120),
        ("docker", ["run", "-i", "--rm", "mcp/time"], 120),
        ("pnpm", ["start"], 5),
        ("uv", ["tool"], 5),
        ("./npx-like", [], 5),
        ("python3", ["npx"], 5),
    ],
)
def test_commands_that_fetch_their_server_first_get_longer_to_start(
    command: str, args: list[str], seconds: float
) -> None:
    for transport in ("http", "stdio"):
        values = {**SEEDS_FORM, "transport": transport, "command": command, "args": args}
        assert manifest.parse(values)[0].start_timeout == seconds
        assert manifest.parse({**values, "start_timeout": 7})[0].start_timeout == 7


# Faults and warnings ----------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": None}, "name"),
    ({"name": ""}, "name"),
    ({"name": "-x"}, "name"),
    ({"name": "a b"}, "name"),
    ({"name": "a\n"}, "name"),
    ({"name": "../x"}, "name"),
    ({"name": "n" * 65}, "name"),
    ({"version": 1}, "version"),
    ({"version": ""}, "version"),
    ({"version": "1" * 101}, "version"),
    ({"transport": "sse"}, "transport"),
    ({"transport": "STDIO"}, "transport"),
    ({"transport": None}, "transport"),
    ({"command": ""}, "command"),
    ({"command": ["bun"]}, "command"),
    ({"command": "a\0b"}, "command"),
    ({"args": "run"}, "args"),
    ({"args": ["run", 5]}, "args.1"),
    ({"args": ["a\0b"]}, "args.0"),
    ({"env": []}, "env"),
    ({"env": {"A": 1}}, "env.A"),
    ({"env": {"A=B": ""}}, "env.A=B"),
    ({"env": {"": ""}}, "env."),
    ({"env": {"GUILD_HALL_MEMBER": "x"}}, "env.GUILD_HALL_MEMBER"),
    ({"displayName": 1}, "displayName"),
    ({"displayName": "x" * 201}, "displayName"),
    ({"description": "x" * 10_001}, "description"),
    ({"enabled": 1}, "enabled"),
    ({"enabled": "true"}, "enabled"),
    ({"start_timeout": 0}, "start_timeout"),
    ({"start_timeout": True}, "start_timeout"),
    ({"timeout": -1}, "timeout"),
    ({"timeout": "30"}, "timeout"),
    ({"timeout": 86_401}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
    ({"timeout": float("inf")}, "timeout"),
    ({"tool_timeouts": [1]}, "tool_timeouts"),
    ({"tool_timeouts": {"a": 0}}, "tool_timeouts.a"),
    ({"restart": "always"}, "restart"),
    ({"restart": True}, "restart"),
    ({"max_concurrency": 0}, "max_concurrency"),
    ({"max_concurrency": 1025}, "max_concurrency"),
    ({"max_concurrency": 1.5}, "max_concurrency"),
    ({"max_concurrency": True}, "max_concurrency"),
    ({"mcp": "bun"}, "mcp"),
    ({"mcp": {"command": "bun"}}, "command"),
    ({"url": "https://mcp.example.com/"}, "url"),
    ({"mcp": {"url": "https://mcp.example.com/"}}, "mcp.url"),
    ({"headers": {}}, "headers"),
]


@pytest.mark.parametrize(("change", "path"), WRONG, ids=[json.dumps(change)[:40] for change, _ in WRONG])
def test_a_wrong_value_is_refused_with_the_path_of_its_key(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        manifest.parse({**SEEDS_FORM, **change})
    assert caught.value.path == path


@pytest.mark.parametrize("key", ["name", "version", "transport", "command"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ManifestError) as caught:
        manifest.parse({other: value for other, value in SEEDS_FORM.items() if other != key})
    assert caught.value.path == key
    assert caught.value.reason.startswith("is required")


def test_faults_under_mcp_carry_their_whole_path() -> None:
    values = {"name": "x", "version": "1", "mcp": {"transport": "http", "command": "bun", "args": [1]}}
    with pytest.raises(ManifestError) as caught:
        manifest.parse(values)
    assert caught.value.path == "mcp.args.0"


def test_unknown_keys_warn() -> None:
    nested = {"command": "bun", "cwd": "/", "args": ["${PORT}"]}
    _, warnings = manifest.parse({"name": "x", "version": "1", "transport": "http", "timout": 3, "mcp": nested})
    assert warnings == ["unknown key 'timout' is ignored", "unknown key 'mcp.cwd' is ignored"]


def test_any_number_of_unknown_keys_gives_a_short_list_of_warnings() -> None:
    _, warnings = manifest.parse({**SEEDS_FORM, **{f"{number}" * 1000: 0 for number in range(1000, 1050)}})
    assert len(warnings) == manifest.MAX_WARNINGS + 1
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
    assert manifest.read_file(folder, "x").manifest is not None


def test_a_faulty_manifest_still_tells_its_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", {**SEEDS_FORM, "args": 5})
    assert manifest.read_file(folder, "x").name_hint == "example"
    assert manifest.read_file(write(tmp_path / "y", {"name": "../y"}), "y").name_hint == ""


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
    file = manifest.read_file(write(tmp_path / "x", {**SEEDS_FORM, **values}), "x")
    assert file.manifest is None
    text = file.fault + "".join(file.warnings)
    assert "\0" not in text
    text.encode()


def test_a_manifest_that_is_a_pipe_does_not_keep_the_reader(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "x" / manifest.FILE_NAME)
    (file,) = manifest.read_all(tmp_path)
    assert file.fault == "x/guild-member.json: is not a file"


def test_a_manifest_that_is_a_folder_or_leads_nowhere_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "a" / manifest.FILE_NAME).mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / manifest.FILE_NAME).symlink_to("gone.json")
    assert [file.fault for file in manifest.read_all(tmp_path)] == [
        "a/guild-member.json: is not a file",
        "b/guild-member.json: cannot be read: No such file or directory",
    ]


def test_a_folder_that_may_not_be_looked_into_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may look into every folder
    (file,) = manifest.read_all(tmp_path)
    assert file.fault.startswith("locked/guild-member.json: cannot be read")


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems refuse such names")
def test_a_folder_whose_name_is_not_utf_8_is_a_fault_that_can_be_shown(tmp_path: Path) -> None:
    write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")))
    (file,) = manifest.read_all(tmp_path)
    assert file.fault == "caf\N{REPLACEMENT CHARACTER}/guild-member.json: the folder's name is not UTF-8; rename it"


# Folders ----------------------------------------------------------------------------------------------------------


def directories(members_dir: Path) -> list[str]:
    return [folder.relative_to(members_dir).as_posix() for folder in manifest.find(members_dir)]


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
        (members_dir / name / manifest.FILE_NAME).symlink_to(target / manifest.FILE_NAME)
    (tmp_path / "step").symlink_to(outside)
    (members_dir / "c").mkdir()
    (members_dir / "c" / manifest.FILE_NAME).symlink_to(f"../../step/{manifest.FILE_NAME}")
    (members_dir / "d").mkdir()
    (members_dir / "d" / manifest.FILE_NAME).symlink_to(manifest.FILE_NAME)
    *files, loop = manifest.read_all(members_dir)
    assert [file.manifest for file in [*files, loop]] == [None] * 4
    assert {file.error.reason for file in files if file.error} == {
        "is a link to a file outside of the members folder; put the file itself there"
    }
    assert loop.fault.startswith("d/guild-member.json: cannot be read")


def test_a_manifest_that_is_a_link_inside_of_the_members_folder_is_read(tmp_path: Path) -> None:
    """Mounted configuration comes so: the file leads to one of a hidden folder beside it."""
    write(tmp_path / "a" / ".data" / "1")
    (tmp_path / "a" / ".data" / "now").symlink_to("1")
    (tmp_path / "a" / manifest.FILE_NAME).symlink_to(f".data/now/{manifest.FILE_NAME}")
    (file,) = manifest.read_all(tmp_path)
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
    link, real = manifest.read_all(tmp_path, owners={"example": "a-link"})
    assert real.manifest is not None
    assert link.fault.endswith("the folder 'a-link' is the folder 'real' under another name; one folder is one member")


def test_a_member_that_is_only_found_through_a_link_is_one(tmp_path: Path) -> None:
    write(tmp_path / "too" / "deep" / "here")
    (tmp_path / "here").symlink_to("too/deep/here")
    (file,) = manifest.read_all(tmp_path)
    assert (file.directory, file.fault) == ("here", "")


def test_a_members_folder_that_is_itself_a_link_is_read(tmp_path: Path) -> None:
    write(tmp_path / "real" / "x")
    (tmp_path / "link").symlink_to("real")
    assert directories(tmp_path / "link") == ["x"]


def test_no_members_folder_means_no_members(tmp_path: Path) -> None:
    assert manifest.read_all(tmp_path / "gone") == []


def test_a_name_used_twice_belongs_to_the_first_folder(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b", {**SEEDS_FORM, "name": "EXAMPLE"})
    first, second = manifest.read_all(tmp_path)
    assert first.manifest is not None
    assert second.fault == (
        "b/guild-member.json: name: 'EXAMPLE' is taken by the folder 'a'; every member needs its own name"
    )


def test_a_copy_of_a_folder_does_not_take_the_name_of_the_original(tmp_path: Path) -> None:
    write(tmp_path / "a-copy")
    write(tmp_path / "original")
    copy, original = manifest.read_all(tmp_path, owners={"example": "original"})
    assert original.manifest is not None
    assert "is taken by the folder 'original'" in copy.fault


def test_a_name_whose_owner_is_gone_is_free(tmp_path: Path) -> None:
    write(tmp_path / "b")
    (file,) = manifest.read_all(tmp_path, owners={"example": "a"})
    assert file.manifest is not None


def test_the_fingerprint_differs_with_every_change_and_only_then(tmp_path: Path) -> None:
    write(tmp_path / "a")
    before = manifest.fingerprint(tmp_path)
    (tmp_path / "a" / "server.py").touch()
    assert manifest.fingerprint(tmp_path) == before
    write(tmp_path / "b")
    with_b = manifest.fingerprint(tmp_path)
    write(tmp_path / "b", {**SEEDS_FORM, "name": "b"})
    changed = manifest.fingerprint(tmp_path)
    (tmp_path / "b" / manifest.FILE_NAME).unlink()
    assert len({before, with_b, changed}) == 3
    assert manifest.fingerprint(tmp_path) == before
    (tmp_path / "b" / manifest.FILE_NAME).symlink_to("gone")
    assert manifest.fingerprint(tmp_path) != before


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
def test_a_command_that_could_not_start_is_told(folder: Path, command: str, fault: str) -> None:
    values = {**SEEDS_FORM, "command": command.format(folder=folder), "env": {"PATH": f"{folder}/bin"}}
    assert manifest.command_fault(manifest.parse(values)[0], folder) == fault.format(folder=folder)


def test_the_halls_own_path_counts_when_the_manifest_gives_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {**SEEDS_FORM, "command": "tool"}
    monkeypatch.setenv("PATH", f"{folder}/bin")
    assert manifest.command_fault(manifest.parse(values)[0], folder) == ""
    monkeypatch.setenv("PATH", str(folder))
    assert manifest.command_fault(manifest.parse(values)[0], folder) == "'tool' is not on the PATH"
