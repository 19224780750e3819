"""What the last output of a program of Node.js means."""

from __future__ import annotations

import re
from collections.abc import Mapping

from roster.diagnosis.rules import PACKAGE, Advice, Rule, first_match, quoted

_MODULE = re.compile(r"(?m)^(?P<at>[^\n]{0,80}Cannot find (?:module|package) '(?P<module>[^'\n]{1,300})')")
_VERSION = re.compile(r"(?m)^Node\.js v[\d.]{1,20}")

RULES = (
    Rule(
        r"(?P<at>Cannot use import statement outside a module|Unexpected token 'export')",
        'Write `"type": "module"` into package.json in the folder {directory}, or name the file .mjs.',
    ),
    Rule(
        r"(?P<at>require is not defined in ES module scope)",
        "Write import in place of require in {place}, or name the file .cjs.",
    ),
    Rule(
        r"(?P<at>[^\n]{0,80}Unknown file extension \"(?P<ending>\.tsx?)\")",
        "This Node.js runs no TypeScript. Build it and name the .js file in args of {file}, or run it with `npx "
        "-y tsx`.",
        "args",
    ),
    Rule(
        r"(?P<at>[^\n]{0,80}No such built-in module: (?P<module>[\w:./-]{1,60}))",
        "{node} has no {module}. Install a newer Node.js, or name its path as command in {file}.",
        "command",
    ),
)
# Python has this error too, so it counts only in a trace of Node.js.
SYNTAX = Rule(
    r"(?m)^(?P<at>SyntaxError: [^\n]*)",
    "Fix {place}: `node --check {place_file}` checks it. If the code is right, its Node.js is too old for it.",
)


def advice(tail: str, words: Mapping[str, str]) -> Advice | None:
    if match := _MODULE.search(tail):
        module, at, directory = quoted(match["module"]), match.start(), words["directory"]
        if module.startswith("/"):
            inside = module.partition(f"/{directory}/")[2] or module
            text = f"There is no file {inside} in the folder {directory}. Build it, such as with `npm run build`,"
            return Advice(f"{text} or correct args in {words['file']}.", "args", at=at)
        if module.startswith("."):
            return Advice(f"There is no file {module} for {words['place']}. Add it, or build the server again.", at=at)
        if package := PACKAGE.match(module):
            text = f"Install the package {package[0]} if you trust it: `npm install {package[0]}` in the folder"
            return Advice(f"{text} {directory}, then restart it.", at=at)
    version = _VERSION.search(tail)
    rules = (*RULES, SYNTAX) if version or "(node:internal" in tail else RULES
    return first_match(rules, tail, {**words, "node": version[0] if version else "Its Node.js"})
