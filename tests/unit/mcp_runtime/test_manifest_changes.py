"""What an edit of a manifest changes, and how it is written into a file."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_runtime.members.manifest.changes import (
    EDITABLE_KEYS,
    Change,
    applied,
    changed,
    changes_of,
    default_of,
    faults_of,
    is_applied,
    values_of,
)
from mcp_runtime.members.manifest.declaration import FIELDS
from mcp_runtime.members.manifest.parser import parse
from mcp_runtime.protocol.errors import ManifestError

FILE: dict[str, Any] = {
    "name": "notes",
    "version": "1.0",
    "transport": "stdio",
    "command": "serve",
    "args": ["--folder", "x"],
    "env": {"REGION": "eu", "TOKEN": "${secret:token}"},
    "timeout": 45,
    "limits": {"memory_mb": 300},
    "x-own": {"kept": True},
}


def row_of(file: dict[str, Any]) -> dict[str, Any]:
    """The manifest as in the member's row."""
    return parse(file)[0].as_json()


def edit(patch: dict[str, Any], file: dict[str, Any] | None = None) -> dict[str, Any]:
    file = FILE if file is None else file
    return applied(file, [changes_of(row_of(file), patch)])


def test_a_patch_changes_only_what_it_names() -> None:
    after = edit({"timeout": 60, "env": {"REGION": "us", "LANG": "de"}, "limits": {"processes": 5}})
    assert after == {
        **FILE,
        "timeout": 60,
        "env": {"REGION": "us", "TOKEN": "${secret:token}", "LANG": "de"},
        "limits": {"memory_mb": 300, "processes": 5},
    }
    assert FILE["timeout"] == 45


def test_null_removes_a_value_and_an_object_without_values() -> None:
    after = edit({"timeout": None, "env": {"REGION": None}, "limits": {"memory_mb": None}, "args": None})
    assert after["env"] == {"TOKEN": "${secret:token}"}
    assert not {"timeout", "limits", "args"} & after.keys()
    assert "env" not in edit({"env": None})


def test_settings_under_mcp_stay_there() -> None:
    server = {key: FILE[key] for key in ("transport", "command", "args", "env")}
    nested = {"name": "notes", "version": "1.0", "timeout": 45, "mcp": server}
    after = edit({"args": ["y"], "env": {"REGION": None}, "timeout": 50}, nested)
    assert after["mcp"] == {**server, "args": ["y"], "env": {"TOKEN": "${secret:token}"}}
    assert after["timeout"] == 50
    assert edit({"env": {"NEW": "1"}}, {**nested, "mcp": {"transport": "stdio", "command": "serve"}})["mcp"]["env"]


@pytest.mark.parametrize(
    "patch",
    [
        {"timeout": 45.0},
        {"args": ["--folder", "x"]},
        {"env": {"REGION": "eu", "NOTHING": None}},
        {"restart": "on-failure"},
        {"limits": {}},
        {"start_timeout": None},
        {"node": {"labels": []}},
    ],
)
def test_a_value_that_is_there_already_is_no_change(patch: dict[str, Any]) -> None:
    assert changes_of(row_of(FILE), patch) == []


def test_a_default_removes_the_key_from_the_file() -> None:
    file = {**FILE, "restart": "never"}
    assert "restart" not in edit({"restart": "on-failure"}, file)
    assert edit({"transport": "http"})["transport"] == "http"  # a required key stays


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ({"name": "other"}, "name: cannot be edited"),
        ({"enabled": False}, "enabled: cannot be edited"),
        ({"mcp": {}}, "mcp: is not a key"),
        ({"tiemout": 5}, "tiemout: is not a key"),
        ({"env": ["A=1"]}, "env: must be an object"),
        ({"limits": 5}, "limits: must be an object"),
        ({"env": {f"V{number}": "1" for number in range(1001)}}, "more than 1,000 changes"),
    ],
)
def test_what_cannot_be_edited_is_refused(patch: dict[str, Any], reason: str) -> None:
    with pytest.raises(ManifestError, match=reason):
        changes_of(row_of(FILE), patch)


@pytest.mark.parametrize("value", [True, "sixty", 0, [1], {"a": 1}, [[[]]]])
def test_a_wrong_value_is_left_to_the_validation(value: Any) -> None:
    changes = changes_of(row_of({**FILE, "max_concurrency": 1}), {"max_concurrency": value})
    assert [change.after for change in changes] == [value]
    with pytest.raises(ManifestError, match="max_concurrency"):
        parse(changed(row_of(FILE), changes))


def test_a_file_that_somebody_changed_meanwhile_stays_as_it_is() -> None:
    changes = changes_of(row_of(FILE), {"timeout": 60, "env": {"REGION": "us"}})
    other = {**FILE, "timeout": 50}
    with pytest.raises(ManifestError, match="timeout: was changed in the file"):
        applied(other, [changes])
    assert applied(other, [changes], replaced=[("timeout",)])["timeout"] == 60
    assert applied({**FILE, "version": "2"}, [changes])["version"] == "2"


def test_a_file_that_has_the_new_value_already_counts_as_changed() -> None:
    changes = changes_of(row_of(FILE), {"timeout": 60})
    done = applied(FILE, [changes])
    assert applied(done, [changes]) == done


def test_an_explicit_default_in_the_file_is_the_value_that_the_person_saw() -> None:
    changes = changes_of(row_of({**FILE, "restart": "on-failure"}), {"restart": "never"})
    assert applied({**FILE, "restart": "on-failure"}, [changes])["restart"] == "never"


def test_a_forced_change_replaces_an_object_that_is_none() -> None:
    change = Change(("env", "REGION"), None, "us")
    assert applied({**FILE, "env": "broken"}, [[change]], replaced=[change.path])["env"] == {"REGION": "us"}


def test_reversed_changes_restore_the_file() -> None:
    changes = changes_of(row_of(FILE), {"timeout": None, "env": None, "args": ["z"], "sandbox": "on"})
    after = applied(FILE, [changes])
    assert parse(applied(after, [[change.reversed() for change in changes]]))[0] == parse(FILE)[0]


def test_changes_survive_json() -> None:
    change = Change(("env", "A"), None, "x")
    assert Change.from_json(change.as_json()) == change
    assert change.key == "env.A"


def test_each_value_of_a_whole_manifest_is_found_and_put_back() -> None:
    values = values_of(row_of(FILE))
    assert values[("env", "TOKEN")] == "${secret:token}"
    assert ("restart",) not in values
    assert parse(changed(row_of({**FILE, "enabled": False}), []))[0] == parse({**FILE, "enabled": False})[0]


def test_defaults_are_those_of_the_declaration() -> None:
    assert default_of(("timeout",)) == 30.0
    assert default_of(("node", "labels")) == []
    assert default_of(("env", "ANY")) is None
    assert default_of(("version",)) is None
    assert set(EDITABLE_KEYS) == set(FIELDS) - {"name", "enabled"}


def test_of_several_edits_of_one_value_the_last_one_counts() -> None:
    first, second = Change(("timeout",), 45, 60), Change(("timeout",), 60, 90)
    assert applied(FILE, [[first], [second]])["timeout"] == 90
    assert applied({**FILE, "timeout": 60}, [[first], [second]])["timeout"] == 90
    assert applied({**FILE, "timeout": 90}, [[first], [second]])["timeout"] == 90
    with pytest.raises(ManifestError, match="timeout: was changed"):
        applied({**FILE, "timeout": 7}, [[first], [second]])


def test_a_removed_value_leaves_no_empty_one_behind() -> None:
    file = {"name": "notes", "version": "1", "transport": "http", "command": "serve", "args": [], "env": {}}
    changes = changes_of(row_of(file), {"command": None, "args": None, "env": None, "url": "https://example.com/mcp"})
    after = applied(file, [[*changes, Change(("args",), None, None)]])
    assert "args" not in after


def test_values_are_validated_each_on_its_own() -> None:
    changes = [
        Change(("timeout",), None, 0),
        Change(("env", "A-B"), None, "x"),
        Change(("limits", "memory_mb"), 5, None),
    ]
    assert [fault.path for fault in faults_of(changes)] == ["timeout", "env.A-B"]


def test_a_manifest_has_the_values_of_an_edit_or_not() -> None:
    changes = [Change(("timeout",), 45, 60), Change(("args",), ["--folder", "x"], None)]
    assert not is_applied(row_of(FILE), changes)
    assert is_applied(row_of(applied(FILE, [changes])), changes)
