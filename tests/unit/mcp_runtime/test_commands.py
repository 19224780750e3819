"""Why a command cannot be started."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_runtime.members.manifest.commands import spawn_fault


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A member's folder with files, and a folder for the PATH with the programs python3 and nodejs."""
    scripts = {
        "good.sh": "#!/bin/sh\n",
        "spaced.sh": "#! /bin/sh -e\n",
        "old.py": "#!/opt/old/python\n",
        "windows.sh": "#!/bin/sh\r\necho\r\n",
        "bare.py": "import sys\n",
        "path/python3": "#!/bin/sh\n",
        "path/nodejs": "#!/bin/sh\n",
    }
    (tmp_path / "path").mkdir()
    for name, text in scripts.items():
        (tmp_path / name).write_bytes(text.encode())
        (tmp_path / name).chmod(0o755)
    (tmp_path / "program").write_bytes(b"\x7fELF\x02\x01\x01\0")
    (tmp_path / "program").chmod(0o755)
    (tmp_path / "plain.py").write_text("#!/bin/sh\n")
    (tmp_path / "path" / "plain").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("./good.sh", ""),
        ("./spaced.sh", ""),
        ("./program", ""),
        ("python3", ""),
        ("./gone.sh", "command not found: './gone.sh'"),
        ("./plain.py", "permission denied: './plain.py' is not executable"),
        ("./path", "permission denied: './path' is not executable"),
        ("plain", "permission denied: '{folder}/path/plain' is not executable"),
        ("./old.py", "the interpreter in the first line of './old.py' does not exist: '/opt/old/python'"),
        (
            "./windows.sh",
            "the interpreter in the first line of './windows.sh' does not exist: '/bin/sh\\r'; its lines end with CR "
            "and LF, as on Windows",
        ),
        ("./bare.py", "'./bare.py' has no first line that names its interpreter, such as #!/usr/bin/env python3"),
        ("python", "command not found: 'python'; did you mean 'python3'?"),
        ("node", "command not found: 'node'; did you mean 'nodejs'?"),
        ("pyhton3", "command not found: 'pyhton3'; did you mean 'python3'?"),
        ("nodjs", "command not found: 'nodjs'"),
        ("docker", "command not found: 'docker'"),
        ("good.sh", "command not found: 'good.sh'; did you mean './good.sh', in the member's folder?"),
        ("bun", "command not found: 'bun'"),
    ],
)
def test_a_command_that_cannot_be_executed_has_a_reason(folder: Path, command: str, fault: str) -> None:
    assert spawn_fault(command, folder, f"{folder}/path") == fault.format(folder=folder)
