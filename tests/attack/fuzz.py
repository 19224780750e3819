"""`make fuzz`: atheris tests the parsers, guided by coverage. New inputs become lines of the corpus.

    python -m tests.attack.fuzz [TARGET...] [--seconds N]

Each target runs in its own process, because the engine ends its process. An input that breaks a promise is added to
the corpus and ends the run with status 1. Other inputs are added if they reach new code.
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
# Words that the engine would find only slowly by chance.
DICTIONARY = {
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
MAX_INPUTS = 200  # inputs of a target, the shortest ones first
MAX_BYTES = 600  # in an input


def work(target: str, engine: str, *options: str) -> None:
    """Run the engine in the child, and do not return. Merging uses the script `engine` to start another child."""
    import atheris

    with atheris.instrument_imports(include=["mcp_runtime", "tests.attack.parsers"]):
        from tests.attack import parsers
    atheris.Setup([engine, *options], parsers.TARGETS[target])
    atheris.Fuzz()


def run(target: str, seconds: int) -> bool:
    """Whether no input broke a promise. Adds inputs that reach new code to the corpus."""
    known_inputs = corpus.load(target)
    with tempfile.TemporaryDirectory() as folder:
        seeds, output, merged, failures = (Path(folder) / name for name in ("seeds", "output", "merged", "failures"))
        for path in (seeds, output, merged, failures):
            path.mkdir()
        engine = Path(folder) / "engine"
        engine.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.attack.fuzz --child {target} "$0" "$@"\n')
        engine.chmod(0o700)
        for data in known_inputs:
            (seeds / hashlib.sha256(data).hexdigest()).write_bytes(data)
        words = "".join(f'"{_escaped(word)}"\n' for word in DICTIONARY[target])
        (Path(folder) / "words").write_text(words)
        limits = [
            f"-dict={folder}/words",
            f"-max_len={MAX_BYTES}",
            f"-artifact_prefix={failures}/",
            "-verbosity=0",
            "-print_final_stats=1",
        ]
        command = [engine, f"-max_total_time={seconds}", *limits, output, seeds]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        subprocess.run([engine, "-merge=1", *limits, merged, seeds, output], cwd=ROOT, check=False, capture_output=True)
        new_inputs = sorted(
            {path.read_bytes() for path in merged.iterdir()} - set(known_inputs), key=lambda data: (len(data), data)
        )
        broken_inputs = sorted({path.read_bytes() for path in failures.iterdir()} - set(known_inputs))
    corpus.save(target, [*known_inputs, *broken_inputs, *new_inputs[: max(0, MAX_INPUTS - len(known_inputs))]])
    print(f"{target}: {len(broken_inputs)} inputs broke a promise, {len(corpus.load(target))} are kept", flush=True)
    return code == 0 and not broken_inputs


def _escaped(word: str) -> str:
    """The word in the notation of the engine's dictionaries."""
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    options = parser.parse_args()
    results = [run(target, options.seconds) for target in options.targets or TARGETS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        work(sys.argv[2], *sys.argv[3:])
    else:
        sys.exit(main())
