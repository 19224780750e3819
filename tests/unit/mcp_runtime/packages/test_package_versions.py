"""Other versions of the packages in a command line."""

from __future__ import annotations

import pytest

from mcp_runtime.members.packages.lines import LineError, newest_of, package_line, with_version


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        ("npx", ["-y", "pocket@1.0.0", "--rest", "pocket@1.0.0"], ["-y", "pocket@2.0.0", "--rest", "pocket@1.0.0"]),
        ("npx", ["@anna/pocket"], ["@anna/pocket@2.0.0"]),
        ("npx", ["-p", "@anna/pocket@^1", "pocket", "x"], ["-p", "@anna/pocket@2.0.0", "pocket", "x"]),
        (
            "npx",
            ["--package=pocket@1.0.0", "-p", "more@3.0.0", "run"],
            ["--package=pocket@2.0.0", "-p", "more@3.0.0", "run"],
        ),
        ("uvx", ["pocket==1.0.0", "--rest"], ["pocket==2.0.0", "--rest"]),
        ("uvx", ["pocket@1.0.0"], ["pocket==2.0.0"]),
        ("uvx", ["pocket[cli]==1.0.0"], ["pocket[cli]==2.0.0"]),
        ("uvx", ["--from", "pocket>=1,<2", "run"], ["--from", "pocket==2.0.0", "run"]),
        (
            "uvx",
            ["--from=pocket", "--with", "pocket-more", "run"],
            ["--from=pocket==2.0.0", "--with", "pocket-more", "run"],
        ),
        ("uvx", ["-p", "3.11", "pocket"], ["-p", "3.11", "pocket==2.0.0"]),
    ],
)
def test_only_the_version_of_the_main_package_is_replaced(command: str, args: list[str], expected: list[str]) -> None:
    assert with_version(command, args, {}, "2.0.0") == expected
    assert package_line(command, expected, {}).exact_version == "2.0.0"


@pytest.mark.parametrize("version", ["2.0.0 --evil", "http://evil", "../x", "2 || 3", ""])
def test_a_version_that_would_be_something_else_is_refused(version: str) -> None:
    with pytest.raises(LineError):
        with_version("npx", ["-y", "pocket@1.0.0"], {}, version)


def test_a_line_that_cannot_be_installed_has_no_other_version() -> None:
    with pytest.raises(LineError):
        with_version("node", ["server.js"], {}, "2.0.0")


@pytest.mark.parametrize(
    ("command", "args", "packages"),
    [
        ("npx", ["-p", "pocket@1.0.0", "-p", "more@3.0.0", "run"], (("pocket", ""), ("more", "3.0.0"))),
        ("uvx", ["pocket[cli]==1.0.0"], (("pocket", "[cli]"),)),
        ("uvx", ["pocket"], (("pocket", ""),)),
    ],
)
def test_the_newest_version_is_asked_for_without_a_version(
    command: str, args: list[str], packages: tuple[tuple[str, str], ...]
) -> None:
    assert newest_of(package_line(command, args, {})).packages == packages


@pytest.mark.parametrize(
    ("command", "args", "version"),
    [
        ("npx", ["pocket@1.0.0"], "1.0.0"),
        ("npx", ["pocket@^1"], ""),
        ("npx", ["pocket"], ""),
        ("uvx", ["pocket==1.*"], ""),
    ],
)
def test_only_one_version_is_an_exact_one(command: str, args: list[str], version: str) -> None:
    assert package_line(command, args, {}).exact_version == version
