"""`make fuzz`: the parsers fed by atheris, guided by coverage; what it finds becomes lines of the corpus.

    python -m tests.attack.fuzz [TARGET...] [--seconds N]

Each target runs in a process of its own, for the engine ends its process. An input that breaks a promise is added to
the corpus and ends the run with status 1; the others are kept where they reach something new.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.attack import corpus

TARGETS = ["http", "sse", "jsonrpc", "message"]
ROOT = Path(__file__).resolve().parent.parent.parent
# What the engine would be long in finding by chance, one byte after another.
WORDS = {
    "http": [
        *("GET / HTTP/1.1\r\n", "POST /mcp HTTP/1.1\r\n", "HTTP/1.0\r\n", "Host: a\r\n", "Connection: close\r\n"),
        *("Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "Expect: 100-continue\r\n", "\r\n\r\n"),
        *("5\r\nabcde\r\n", "0\r\n\r\n", "fffffffff", ";x=y\r\n"),
    ],
    "sse": ["data: ", "data:", "id: ", "event: ", "retry: 10\n", "\n\n", "\r\n", "\r", "\ufeff", ":"],
    "jsonrpc": [
        *('{"jsonrpc":"2.0","id":1,', '"method":"echo"', '"params":[1]', '"params":{"a":1}', "[]", "{}", "},{", "null"),
        *("NaN", "1e999", "\\u0000", "\\ud800", "\\udc00", "-0.0", "true"),
    ],
    "message": [
        *(
            '{"jsonrpc":"2.0","id":1,',
            '"result":{}}',
            '"error":{"code":1,"message":"m"}}',
            '"method":"a"',
            '"params":{',
        ),
        *(
            '"id":',
            "[[[[",
            "]]]]",
            '":{"',
            "1,1,1,1,1,1,1,1,1,1",
            '"a":1,',
            '\\"',
            "\\\\",
            "\\u0069d",
            "\\ud83d\\ude00",
        ),
    ],
}
MAX_KEPT = 200  # inputs of a target; the shortest ones of those that reach something
MAX_BYTES = 600  # of an input


def work(target: str, engine: str, *options: str) -> None:
    """In the child: does not return. `engine` is the script that starts another one: merging does, by a shell."""
    import atheris

    with atheris.instrument_imports(include=["mcp_runtime", "tests.attack.parsers"]):
        from tests.attack import parsers
    atheris.Setup([engine, *options], parsers.TARGETS[target])
    atheris.Fuzz()


def run(target: str, seconds: int) -> bool:
    """Whether nothing was found. The corpus is written again: what it had, and what reaches something new."""
    known = corpus.load(target)
    with tempfile.TemporaryDirectory() as folder:
        seeds, grown, merged, found = (Path(folder) / name for name in ("seeds", "grown", "merged", "found"))
        for path in (seeds, grown, merged, found):
            path.mkdir()
        engine = Path(folder) / "engine"
        engine.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.attack.fuzz --child {target} "$0" "$@"\n')
        engine.chmod(0o700)
        for data in known:
            (seeds / hashlib.sha256(data).hexdigest()).write_bytes(data)
        words = "".join(f'"{_escaped(word)}"\n' for word in WORDS[target])
        (Path(folder) / "words").write_text(words)
        limits = [
            f"-dict={folder}/words",
            f"-max_len={MAX_BYTES}",
            f"-artifact_prefix={found}/",
            "-verbosity=0",
            "-print_final_stats=1",
        ]
        fuzzing = [engine, f"-max_total_time={seconds}", *limits, grown, seeds]
        code = subprocess.run(fuzzing, cwd=ROOT, check=False).returncode
        subprocess.run([engine, "-merge=1", *limits, merged, seeds, grown], cwd=ROOT, check=False, capture_output=True)
        kept = sorted({path.read_bytes() for path in merged.iterdir()} - set(known), key=lambda data: (len(data), data))
        broken = sorted({path.read_bytes() for path in found.iterdir()} - set(known))
    corpus.save(target, [*known, *broken, *kept[: max(0, MAX_KEPT - len(known))]])
    print(f"{target}: {len(broken)} inputs broke a promise, {len(corpus.load(target))} are kept", flush=True)
    return code == 0 and not broken


def _escaped(word: str) -> str:
    """As the engine's dictionaries write bytes."""
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    options = parser.parse_args()
    held = [run(target, options.seconds) for target in options.targets or TARGETS]
    return 0 if all(held) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        work(sys.argv[2], *sys.argv[3:])
    else:
        sys.exit(main())
