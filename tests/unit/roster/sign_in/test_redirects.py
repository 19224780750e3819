from __future__ import annotations

import pytest

from roster.sign_in import redirects
from roster.sign_in.registration import clean_name


@pytest.mark.parametrize(
    ("uri", "words", "action"),
    [
        (
            "http://127.0.0.1:3334/oauth/callback",
            "a program on this computer (127.0.0.1:3334)",
            "http://127.0.0.1:3334",
        ),
        ("http://localhost/callback", "a program on this computer (localhost)", "http://localhost"),
        ("http://[::1]:9/x", "a program on this computer ([::1]:9)", "http://[::1]:9"),
        ("https://claude.ai/api/mcp/auth_callback", "the website claude.ai", "https:"),
        ("cursor://anysphere.cursor-mcp/oauth/callback", "the app Cursor on this computer", "cursor:"),
        ("https://vscode.dev/redirect?a=b", "the website vscode.dev", "https:"),
    ],
)
def test_known_clients_may_be_sent_back_to(uri: str, words: str, action: str) -> None:
    assert redirects.fault_of(uri) == ""
    assert (redirects.words_for(uri), redirects.form_action_for(uri)) == (words, action)


@pytest.mark.parametrize(
    "uri",
    [
        "https://example.com/'; script-src *",
        "http://127.0.0.1:80;script-src/x",
        "https://exa mple.com/",
        "https://user@example.com/",
        "https://example.com:port/",
        "https://example.com:99999/",
        "http://0.0.0.0/",
        "http://127.1/",
        "http://localhost.example.com/",
        "cursor:callback",
        "vbscript://x/",
        "HTTP://evil.example/",
    ],
)
def test_all_others_are_refused(uri: str) -> None:
    assert redirects.fault_of(uri)


def test_a_name_is_one_line_without_hidden_characters() -> None:
    assert clean_name("  Claude\n\tCode \u202e\u200b ") == "Claude Code"
    assert len(clean_name("x" * 5000)) == 100
