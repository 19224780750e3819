"""What is read from a lock, and which locks are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_runtime.members.packages import npm, pypi
from mcp_runtime.members.packages.lines import package_line
from mcp_runtime.protocol.errors import InstallError

SHA512 = "sha512-" + "A" * 86 + "=="
NPX = package_line("npx", ["-y", "@a/foo"], {})
UVX = package_line("uvx", ["foo_mcp"], {})
HASH = "--hash=sha256:" + "0" * 64


def npm_lock(**packages: Any) -> str:
    main = {"node_modules/@a/foo": {"version": "1.2.3", "integrity": SHA512, "bin": {"foo": "x.js"}}}
    return json.dumps({"lockfileVersion": 3, "packages": {"": {}, **main, **packages}})


def test_the_facts_of_an_npm_lock_are_read() -> None:
    more = {
        "node_modules/bar": {"version": "2.0.0", "integrity": SHA512, "hasInstallScript": True},
        "node_modules/bar/node_modules/@b/baz": {"version": "1.0.0", "inBundle": True},
    }
    facts = npm.facts(NPX, npm_lock(**more))
    assert (facts.version, facts.count, facts.scripts) == ("1.2.3", 3, ("bar",))


@pytest.mark.parametrize(
    ("place", "package"),
    [
        ("node_modules/bar", {"version": "1.0.0"}),
        ("node_modules/bar", {"version": "1.0.0", "resolved": "git+ssh://git@example.com/x.git#abc"}),
        ("node_modules/bar", {"version": "1.0.0", "integrity": ""}),
        ("node_modules/bar", {"version": "1.0.0", "integrity": "md5-" + "A" * 22 + "=="}),
        ("node_modules/bar", {"version": "1.0.0", "integrity": f"{SHA512} {SHA512}"}),
        ("node_modules/bar", {"version": "1.0.0", "inBundle": True}),
        ("node_modules/bar", {"link": True, "integrity": SHA512}),
        ("bar", {"version": "1.0.0", "integrity": SHA512}),
        ("../bar", {"version": "1.0.0", "integrity": SHA512}),
        ("node_modules/../../bar", {"version": "1.0.0", "integrity": SHA512}),
        ("node_modules/..", {"version": "1.0.0", "integrity": SHA512}),
    ],
)
def test_an_npm_package_without_a_hash_or_in_another_place_is_refused(place: str, package: dict[str, Any]) -> None:
    with pytest.raises(InstallError, match="hash"):
        npm.facts(NPX, npm_lock(**{place: package}))


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"packages": []}', '{"packages": {"node_modules/x": 3}}', "[" * 100_000, '{"lock": {}}']
)
def test_a_text_that_is_no_lock_is_refused(text: str) -> None:
    with pytest.raises(InstallError, match="cannot read"):
        npm.facts(NPX, text)


def test_a_lock_without_the_package_is_refused() -> None:
    with pytest.raises(InstallError, match="does not have the package"):
        npm.facts(package_line("npx", ["other"], {}), npm_lock())
    with pytest.raises(InstallError, match="does not have the package"):
        pypi.facts(UVX, f"other==1.0 {HASH}\n")


def test_the_facts_of_requirements_are_read() -> None:
    hashes = f"\\\n    {HASH}"
    text = f"# a comment\nfoo-mcp==1.2.3 {hashes} {hashes}\nbar==2.0 ; sys_platform == 'win32' {hashes}\n"
    facts = pypi.facts(UVX, text)
    assert (facts.version, facts.count, facts.scripts) == ("1.2.3", 2, ())


@pytest.mark.parametrize(
    "line",
    [
        "bar==1.0",
        "bar==1.0 --hash=md5:" + "0" * 32,
        f"bar>=1.0 {HASH}",
        f"bar @ https://example.com/bar.whl {HASH}",
        f"./bar {HASH}",
        "--index-url https://example.com/",
        f"bar==1.0 {HASH} --global-option=x",
        "-e .",
    ],
)
def test_a_requirement_that_is_not_a_version_with_hashes_is_refused(line: str) -> None:
    with pytest.raises(InstallError, match="not a version with hashes"):
        pypi.facts(UVX, f"foo-mcp==1.0 {HASH}\n{line}\n")


def installed(folder: Path, *names: str) -> Path:
    programs = npm.programs(folder)
    programs.mkdir(parents=True)
    (folder / "node_modules" / "foo").mkdir()
    for name in names:
        (folder / "node_modules" / "foo" / name).write_text("")
        (programs / name).symlink_to(f"../foo/{name}")
    return folder


@pytest.mark.parametrize(
    ("programs", "name"),
    [({"only": "x"}, "only"), ({"foo": "x", "other": "y"}, "foo"), ({"first": "x", "second": "x"}, "first")],
)
def test_npx_runs_the_only_program_or_that_with_the_name_of_the_package(
    tmp_path: Path, programs: dict[str, str], name: str
) -> None:
    lock = npm_lock(**{"node_modules/@a/foo": {"version": "1.0.0", "integrity": SHA512, "bin": programs}})
    assert npm.program(NPX, lock, installed(tmp_path, name)) == (tmp_path / "node_modules" / "foo" / name)


@pytest.mark.parametrize(
    "programs", [{}, {"a": "x", "b": "y"}, {"../../x": "x"}, {"..": "x"}, {"/bin/sh": "x"}, "x", 3]
)
def test_a_package_without_a_usable_program_is_refused(tmp_path: Path, programs: Any) -> None:
    lock = npm_lock(**{"node_modules/@a/foo": {"version": "1.0.0", "integrity": SHA512, "bin": programs}})
    with pytest.raises(InstallError, match="program"):
        npm.program(NPX, lock, installed(tmp_path, "a", "b"))


def test_a_program_outside_of_the_packages_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("")
    folder = installed(tmp_path / "folder")
    (npm.programs(folder) / "foo").symlink_to(tmp_path / "outside")
    with pytest.raises(InstallError, match="no program 'foo'"):
        npm.program(NPX, npm_lock(), folder)
    (pypi.programs(folder)).mkdir(parents=True)
    (pypi.programs(folder) / "foo_mcp").symlink_to(tmp_path / "outside")
    (pypi.programs(folder) / "other").write_text("")
    with pytest.raises(InstallError, match=r"no program 'foo_mcp'\. They have: foo_mcp, other"):
        pypi.program(UVX, "", folder)
