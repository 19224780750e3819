"""What the last output of a Python program means."""

from __future__ import annotations

import re
from collections.abc import Mapping

from roster.diagnosis.facts import Facts
from roster.diagnosis.rules import Advice, Rule, first_match

# Modules of the standard library, and the version of Python that has them.
NEWER_MODULES = {
    "tomllib": "3.11",
    "zoneinfo": "3.9",
    "graphlib": "3.9",
    "dataclasses": "3.7",
    "asyncio.taskgroups": "3.11",
}
_MODULE = re.compile(r"No module named ['\"]?(?P<module>[A-Za-z_][A-Za-z0-9_.-]{0,99})(?!\w)")
_NAME = re.compile(
    r"ImportError: cannot import name '(?P<name>\w{1,100})' from (?:partially initialized module "
    r")?'(?P<module>[A-Za-z_][A-Za-z0-9_.]{0,99})'"
    r"(?P<circular>[^\n]*circular import)?(?: \((?P<path>[^)\n]{1,300})\))?"
)
_FILE = re.compile(r"can't open file '(?P<path>[^'`\n]{1,300})': \[Errno 2\]")
_LIBRARY = re.compile(r"/lib/python(?P<version>3\.\d+)/(?P<site>site-packages|dist-packages)?")

RULES = (
    Rule(
        r"(?m)^(?P<at>(?:SyntaxError|IndentationError|TabError): [^\n]*)",
        "Fix {place}: `{python} -m py_compile {place_file}` checks it. If the code is right, its Python is too "
        "old: name a "
        "newer one than {command} as command in {file}.",
        "command",
    ),
    Rule(
        r"(?m)^(?P<at>TypeError: unsupported operand type\(s\) for \|: [^\n]*)",
        "It needs Python 3.10 or later ({place}). Name one as command in {file}, in place of {command}.",
        "command",
    ),
)


def advice(facts: Facts, tail: str, words: Mapping[str, str]) -> Advice | None:
    if match := _MODULE.search(tail):
        return _missing_module(facts, match, words)
    if match := _NAME.search(tail):
        return _missing_name(match, words)
    if match := _FILE.search(tail):
        path = match["path"].rpartition(f"/{facts.directory}/")[2]
        text = (
            f"There is no file {path} in the folder {facts.directory}. Correct args in {facts.file}, or add the file."
        )
        return Advice(text, "args", at=match.start())
    return first_match(RULES, tail, words)


def _missing_module(facts: Facts, match: re.Match[str], words: Mapping[str, str]) -> Advice:
    module = match["module"]
    package = module.partition(".")[0]
    at, file, runner = match.start(), words["file"], facts.command.rpartition("/")[2]
    if version := NEWER_MODULES.get(module):
        text = f"{module} is a part of Python {version} and later. Name a newer Python as command in {file}."
        return Advice(text, "command", at=at)
    if runner in ("uvx", "uv", "pipx"):
        add = f"`--with {package}`" if runner != "pipx" else "`--preinstall` or another package"
        text = f"Install the Python module {package} if you trust it: add {add} to args in {file}."
        return Advice(text, "args", at=at)
    return Advice(
        f"Install the Python module {package} if you trust it: `{words['python']} -m pip install {package}` (its "
        f"package may have another name). Or name the Python that has it as command in {file}.",
        "command",
        at=at,
    )


def _missing_name(match: re.Match[str], words: Mapping[str, str]) -> Advice:
    name, module, at = match["name"], match["module"], match.start()
    library = _LIBRARY.search(match["path"] or "")
    if match["circular"]:
        return Advice(
            f"Two files import each other, or a file has the name of the module {module}: rename it, or fix "
            f"{words['place']}.",
            at=at,
        )
    if library is None:
        return Advice(f"{module} has no {name}. Fix {words['place']}.", at=at)
    if library["site"]:
        package = module.partition(".")[0]
        text = f"Its version of {package} has no {name}: `{words['python']} -m pip install --upgrade {package}`."
        return Advice(text, at=at)
    return Advice(
        f"Python {library['version']} has no {name} in {module}. Name a newer Python as command in {words['file']}.",
        "command",
        at=at,
    )
