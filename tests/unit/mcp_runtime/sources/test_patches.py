from __future__ import annotations

from typing import Any

import pytest

from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.patches import masked_arguments, without_secrets


@pytest.mark.parametrize(
    ("patch", "expected", "secrets"),
    [
        (
            {"env": {"API_TOKEN": "s3cret-value", "REGION": "eu", "GONE": None}},
            {"env": {"API_TOKEN": "${secret:notes-API_TOKEN}", "REGION": "eu", "GONE": None}},
            {"notes-API_TOKEN": "s3cret-value"},
        ),
        (
            {"headers": {"Authorization": "Bearer abc-def-123"}},
            {"headers": {"Authorization": "Bearer ${secret:notes-Authorization}"}},
            {"notes-Authorization": "abc-def-123"},
        ),
        (
            {"args": ["--api-key", "s3cret-value", "--verbose"]},
            {"args": ["--api-key", "${secret:notes-api-key}", "--verbose"]},
            {"notes-api-key": "s3cret-value"},
        ),
        (
            {"args": ["--api-key", "${secret:mine}", "${PORT}"], "env": {"KEY": "${secret:mine}"}},
            {"args": ["--api-key", "${secret:mine}", "${PORT}"], "env": {"KEY": "${secret:mine}"}},
            {},
        ),
        (  # a reference whose name is the one that a new secret would have
            {"args": ["--api-key", "${secret:notes-api-key}"]},
            {"args": ["--api-key", "${secret:notes-api-key}"]},
            {},
        ),
        (
            {"env": {"DATABASE_URL": "postgres://bob:hunter2@db/x?p=${PORT}", "WORD": "Pa${s}word-4711"}},
            {"env": {"DATABASE_URL": "${secret:notes-DATABASE_URL}${PORT}", "WORD": "${secret:notes-WORD}"}},
            {"notes-DATABASE_URL": "postgres://bob:hunter2@db/x?p=", "notes-WORD": "Pa${s}word-4711"},
        ),
        (
            {"args": ["--db", "postgres://bob:hunter2@db/x?p=${PORT}", "--api-key=abc${PORT}", "${PORT}:8080"]},
            {"args": ["--db", "${secret:notes-db}${PORT}", "--api-key=${secret:notes-api-key}${PORT}", "${PORT}:8080"]},
            {"notes-db": "postgres://bob:hunter2@db/x?p=", "notes-api-key": "abc"},
        ),
        ({"timeout": 5, "env": {"A": 7}, "args": "x"}, {"timeout": 5, "env": {"A": 7}, "args": "x"}, {}),
    ],
)
def test_secrets_are_moved_out_of_changed_values(
    patch: dict[str, Any], expected: dict[str, Any], secrets: dict[str, str]
) -> None:
    result, found = without_secrets("notes", patch)
    assert result == expected
    assert found == secrets


def test_a_secret_that_exists_is_not_used_again() -> None:
    result, secrets = without_secrets("notes", {"env": {"API_TOKEN": "value-4711"}}, reserved={"notes-API_TOKEN"})
    assert result == {"env": {"API_TOKEN": "${secret:notes-API_TOKEN-2}"}}
    assert secrets == {"notes-API_TOKEN-2": "value-4711"}


def test_an_address_with_a_secret_is_refused() -> None:
    with pytest.raises(SourceError, match="url: seems to hold a secret"):
        without_secrets("notes", {"url": "https://example.com/mcp?api_key=abcdef123456"})


def test_arguments_that_the_member_has_already_stay_as_they_are() -> None:
    args = ["--config", '{"a": 1}', "--api-key", "old-4711", "run"]
    assert without_secrets("notes", {"args": [*args, "--fast"]}, args=args) == ({"args": [*args, "--fast"]}, {})
    changed = [*args[:3], "new-4712", "run"]
    assert without_secrets("notes", {"args": changed}, args=args)[1] == {"notes-api-key": "new-4712"}


def test_settings_in_json_with_references_are_refused() -> None:
    with pytest.raises(SourceError, match="has settings in JSON"):
        without_secrets("notes", {"args": ["--config", '{"api_key": "x", "port": "${PORT}"}']})


def test_a_flood_of_secrets_is_refused_in_time() -> None:
    args = [word for number in range(5000) for word in ("--token", f"value-{number}")]
    with pytest.raises(SourceError, match="one of more than 500 secrets"):
        without_secrets("notes", {"args": args})


def test_arguments_for_people_have_masks_in_place_of_secrets() -> None:
    args = ["--api-key", "sk-live-4711abcdef", "--token=abc-4711", "${PORT}", "--verbose", "${secret:mine}"]
    assert masked_arguments(args, "***") == [
        "--api-key",
        "***",
        "--token=***",
        "${PORT}",
        "--verbose",
        "${secret:mine}",
    ]
