"""What npx and uvx would run, and what cannot be installed from a lock."""

from __future__ import annotations

import shlex

import pytest

from mcp_runtime.members.packages.lines import LineError, PackageLine, line_fault, locked_line, package_line


def read(text: str, **env: str) -> PackageLine:
    command, *args = shlex.split(text)
    return package_line(command, args, env)


@pytest.mark.parametrize(
    ("text", "specification", "program", "rest"),
    [
        ("npx -y foo", "npm foo", "", []),
        ("npx -y @a/foo@1.2.3 --flag -p x", "npm @a/foo@1.2.3", "", ["--flag", "-p", "x"]),
        ("npx --yes foo@^1.2 -- --flag", "npm foo@^1.2", "", ["--", "--flag"]),
        ("npx -y -- foo@next a", "npm foo@next", "", ["a"]),
        ("npx -y -p foo@1.0.0 --package=bar baz --x", "npm foo@1.0.0 bar", "baz", ["--x"]),
        ("/usr/bin/npx foo", "npm foo", "", []),
        ("uvx foo-mcp", "pypi foo-mcp", "foo-mcp", []),
        ("uvx foo@1.2 --port 3", "pypi foo==1.2", "foo", ["--port", "3"]),
        ("uvx foo@latest", "pypi foo", "foo", []),
        ("uvx 'foo[cli]==1.2'", "pypi foo[cli]==1.2", "foo", []),
        ("uvx --from 'foo>=1, <2' bar x", "pypi foo>=1,<2", "bar", ["x"]),
        ("uvx -p 3.12 --with=more foo", "pypi foo more (Python 3.12)", "foo", []),
    ],
)
def test_the_packages_the_program_and_its_arguments_are_found(
    text: str, specification: str, program: str, rest: list[str]
) -> None:
    line = read(text)
    assert (line.specification(with_scripts=False), line.program) == (specification, program)
    assert shlex.split(text)[1 + line.consumed :] == rest


@pytest.mark.parametrize(
    "text",
    [
        "bunx foo",
        "npm exec foo",
        "./npx foo",
        "sub/uvx foo",
        "/usr/../tmp/npx foo",
        "npx",
        "npx -y",
        "npx -p foo",
        "npx -c 'foo bar'",
        "npx --registry=http://example.com foo",
        "npx --yes=true foo",
        "npx a/b",
        "npx ./foo",
        "npx foo.tgz",
        "npx foo@./bar",
        "npx foo@..",
        "npx foo@bar.tgz",
        "npx foo@npm:other",
        "npx foo@git+https://example.com/x",
        "npx https://example.com/foo.tgz",
        "npx github:a/b",
        "npx '${secret:x}'",
        "npx -p foo ../../bin/sh",
        "uvx --from git+https://example.com/x foo",
        "uvx --from . foo",
        "uvx --from ./foo.whl foo",
        "uvx --from foo-1.0.whl foo",
        "uvx 'foo @ https://example.com/x'",
        "uvx foo@https://example.com/x",
        "uvx --index-url http://example.com foo",
        "uvx --python /tmp/python foo",
        "uvx --with a,b foo",
        "uvx --from foo ../../bin/sh",
        "uvx foo.py/x",
        "uvx --from",
        "uvx",
    ],
)
def test_what_has_no_hash_in_a_registry_is_refused(text: str) -> None:
    with pytest.raises(LineError):
        read(text)


def test_more_than_a_few_packages_are_refused() -> None:
    with pytest.raises(LineError, match="more than 20"):
        read("npx " + "-p foo " * 21 + "bar")


@pytest.mark.parametrize(
    ("text", "name"), [("npx foo", "NPM_CONFIG_REGISTRY"), ("npx foo", "npm_config_x"), ("uvx foo", "UV_INDEX_URL")]
)
def test_a_variable_that_leads_to_another_registry_is_refused(text: str, name: str) -> None:
    """Otherwise the package of this name would come from the registry of the hall."""
    with pytest.raises(LineError, match=name):
        read(text, **{name: "http://example.com"})
    assert read(text, OTHER="x")


def test_an_error_quotes_nothing_that_could_be_a_secret() -> None:
    for text in ("npx hunter2/hunter2", "npx -phunter2 x", "npx --registry=hunter2 x", "uvx --python hunter2/x y"):
        command, *args = shlex.split(text)
        assert "hunter2" not in line_fault(command, args, {})
        assert line_fault(command, args, {})


@pytest.mark.parametrize(
    ("text", "is_pinned"),
    [
        ("npx foo@1.2.3", True),
        ("npx foo@1.2.3-beta.1", True),
        ("npx foo@1.2", False),
        ("npx foo@latest", False),
        ("npx foo", False),
        ("uvx foo==1.2", True),
        ("uvx foo==1.*", False),
        ("uvx foo@1.2", True),
        ("uvx foo", False),
    ],
)
def test_only_an_exact_version_is_pinned(text: str, is_pinned: bool) -> None:
    assert read(text).is_pinned is is_pinned


def test_packages_that_may_be_built_have_another_lock() -> None:
    assert read("uvx foo").specification(with_scripts=True) != read("uvx foo").specification(with_scripts=False)
    assert read("npx foo").specification(with_scripts=True) == read("npx foo").specification(with_scripts=False)


def test_only_a_manifest_with_the_key_has_locked_packages() -> None:
    manifest = {"command": "npx", "args": ["foo"], "env": {}}
    assert locked_line(manifest) is None
    assert locked_line({**manifest, "packages": "fetched"}) is None
    assert locked_line({**manifest, "packages": "locked"}) == (read("npx foo"), False)
    assert locked_line({**manifest, "packages": "locked-with-scripts"}) == (read("npx foo"), True)
    assert locked_line({"url": "https://example.com", "packages": "locked", **manifest, "command": ""}) is None
