"""Attacks with manifests, links and files, by a manifest's author or another user of the machine."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.hall import ROOT
from tests.attack.hall import Canary, Hall, eventually
from tests.attack.tally import Tally

# Addresses of this machine and of a cloud's metadata, in notations that a comparison of text does not detect.
INNER_HOSTS = [
    "169.254.169.254",
    "0.0.0.0",
    "[::ffff:127.0.0.1]",
    "2130706433",
    "0x7f.1",
    "[fe80::1]",
    "10.0.0.1",
    "127.1",
]
INNER_HOSTS += ["127.0.0.1.nip.example", "localhost.evil.example", "evil.example@127.0.0.1", "127.0.0.1@evil.example"]


def manifests_that_reach_out(hall: Hall, tally: Tally) -> None:
    """Manifests with plain http to other machines, in every notation, are refused, and a check starts nothing."""
    with tempfile.TemporaryDirectory() as folder:
        for number, host in enumerate(INNER_HOSTS):
            write_manifest(Path(folder) / f"m{number}", url=f"http://{host}/mcp")
        write_manifest(Path(folder) / "file", url="file:///etc/passwd")
        write_manifest(Path(folder) / "gopher", url="gopher://127.0.0.1/")
        write_manifest(Path(folder) / "clear", url="https://x.example/", headers={"Authorization": "Bearer in-clear"})
        write_manifest(Path(folder) / "marker", command="touch", args=[f"{folder}/pwned"])
        result = hall.run("check_members", folder, "--json")
        rows = {Path(row["folder"]).name: row for row in json.loads(result.stdout)}
        for name, row in rows.items():
            tally.expect(
                name == "marker" or row["faults"],
                f"a manifest is accepted: {name} {INNER_HOSTS[int(name[1:])] if name[1:].isdigit() else ''}",
            )
        tally.expect(len(rows) == len(INNER_HOSTS) + 4, "not every manifest was validated")
        tally.expect(not (Path(folder) / "pwned").exists(), "a check of a manifest ran its command")


def links_and_secrets(hall: Hall, tally: Tally) -> None:
    """Links out of the members folder, links back to it, and references to the hall's own files."""
    members, outside, canary = hall.folder / "members", hall.folder / "outside", Canary()
    names_before = {row["name"] for row in hall.roster(hall.tokens["root"])}
    write_manifest(outside / "linked", command="touch", args=[str(outside / "ran")])
    (members / "linked").mkdir()
    (members / "linked" / "guild-member.json").symlink_to(outside / "linked" / "guild-member.json")
    (members / "again").symlink_to(members)
    headers = {"X-A": "${file:../../data/secret-key}", "X-B": "${file:" + str(hall.data / "local-token") + "}"}
    write_manifest(members / "thief", url=f"{canary.address}/mcp", headers=headers)
    write_manifest(members / "last", command="sleep", args=["60"])
    try:
        is_read = eventually(lambda: any(row["name"] == "last" for row in hall.roster(hall.tokens["root"])), 20)
        tally.expect(is_read, "the folder was not read")
        names = [row["name"] for row in hall.roster(hall.tokens["root"])]
        tally.expect(set(names) - names_before <= {"linked", "thief", "last"}, "a link doubles members")
        tally.expect(len(names) <= len(names_before) + 3, "a link doubles rows")
        eventually(lambda: canary.requests and (outside / "ran").exists(), 2)
        tally.expect(not (outside / "ran").exists(), "a manifest that is a link out of the folder is followed")
        key, text = (hall.data / "secret-key").read_text().strip(), "".join(canary.requests)
        tally.expect(key not in text, "${file:} sends the hall's secret key to a server")
        tally.expect("gh_" not in text, "${file:} sends the hall's token to a server")
    finally:
        (members / "again").unlink()
        for name in ("linked", "thief", "last"):
            shutil.rmtree(members / name)
        canary.close()


def write_manifest(folder: Path, **values: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"name": folder.name, "version": "1", "transport": "http", **values}
    (folder / "guild-member.json").write_text(json.dumps(manifest))


def files_of_the_hall(hall: Hall, tally: Tally) -> None:
    """No other user of the machine can read the data folder, new or old. No two halls have the same secret."""
    keys = {(hall.data / "secret-key").read_text()}
    for _ in range(tally.share_of(4)):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            data.mkdir(mode=0o755)
            data.chmod(0o755)
            environment = {**hall.environment, "GUILD_HALL_DATA_DIR": str(data), "DATABASE_URL": ""}
            argv = [sys.executable, "manage.py", "check"]
            result = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, umask=0o022)
            is_refused = result.returncode != 0 and "GUILD_HALL_DATA_DIR" in result.stderr
            tally.expect(is_refused or not readable_by_others(data), "an old data folder stays open to other users")
            if not is_refused:
                key = (data / "secret-key").read_text()
                tally.expect(key not in keys and len(key) >= 50, "two halls have the same secret key")
                keys.add(key)
    open_files = [path for path in hall.data.rglob("*") if path.is_file() and readable_by_others(path)]
    tally.expect(not open_files or not readable_by_others(hall.data), f"readable by others: {open_files[:3]}")


def readable_by_others(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
