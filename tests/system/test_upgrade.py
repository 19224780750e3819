"""Nodes of the last version run under load, while the next version migrates the database and replaces them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcp_runtime.protocol import mcp
from mcp_runtime.rows import migrations
from mcp_runtime.runtime.worker import EX_CONFIG
from roster.models import Call, GuildMember, Node
from tests.conftest import ROOT, eventually
from tests.support.hall import PATIENCE, wait_for_status
from tests.support.nodes import GUARD, MOVABLE, Machine, on_postgresql, owner_of, wait_for_fences, wait_for_folders
from tests.support.nodes_load import Load, contradictions, runs_of

pytestmark = [pytest.mark.services, on_postgresql]
NAMES = ("one", "two", "three", "four")
# A later version has new columns in the busiest tables, and one new table.
NEW_ROWS = """
from django.db import models as _models

for _model in (GuildMember, Call, Node, Hall):
    _model.add_to_class("added_later", _models.CharField(max_length=20, blank=True, db_default="new"))


class AddedLater(_models.Model):
    call = _models.ForeignKey(Call, on_delete=_models.CASCADE)
"""
CONTRACTION = """
from django.db import migrations
from roster.contraction import RequireMigration


class Migration(migrations.Migration):
    dependencies = [("roster", "{last}")]
    operations = [RequireMigration({number})]
"""


class Version:
    """A copy of this version's programs, which a test changes into a later version."""

    def __init__(self, folder: Path, number: str) -> None:
        self.root = folder / f"version-{number}"
        self.root.mkdir()
        for name in ("guildhall", "roster", "mcp_runtime"):
            shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "manage.py", self.root)
        self.replace("mcp_runtime/protocol/mcp.py", f'"{mcp.HALL_VERSION}"', f'"{number}"')

    def replace(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))

    def add_migration(self, machine: Machine) -> None:
        models = self.root / "roster" / "models" / "__init__.py"
        models.write_text(models.read_text() + NEW_ROWS)
        self.manage(machine, "makemigrations", "roster", "-n", "added_later")

    def manage(self, machine: Machine, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command of this version with the settings of the machine."""
        before, machine.root = machine.root, self.root
        try:
            return machine.manage(*argv, timeout=120)
        finally:
            machine.root = before


@pytest.fixture
def machines(make_node: Callable[[str], Machine]) -> list[Machine]:
    machines = [make_node(name) for name in ("first", "second", "third")]
    for machine in machines:
        for name in NAMES:
            machine.add(name, node=MOVABLE)
    for machine in machines:
        machine.run()
    wait_for_fences(*machines)
    wait_for_folders(*machines)
    for name in NAMES:
        wait_for_status(machines[0], name, "connected", within=PATIENCE)
    assert machines[0].manage("rebalance").returncode == 0
    eventually(lambda: len(set(map(owner_of, NAMES))) > 1, within=PATIENCE, what="the members are on several nodes")
    return machines


@pytest.fixture
def next_version(machines: list[Machine], tmp_path: Path) -> Iterator[Version]:
    version = Version(tmp_path, "9.0.0")
    version.add_migration(machines[0])
    yield version
    for machine in machines:
        machine.end()
    # The tables of the tests go back to this version.
    back = version.manage(machines[0], "migrate", "roster", f"{migrations.newest():04}")
    assert back.returncode == 0, back.stderr


def replace(machine: Machine, version: Version, load: Load) -> None:
    """Replace the runtime of a node by that of the new version, as docs/scaling.md says."""
    assert machine.guard is not None
    load.take_out(machine)
    assert machine.manage("drain_node", machine.name).returncode == 0
    eventually(
        lambda: not GuildMember.objects.filter(node__name=machine.name).exists(),
        within=2 * PATIENCE,
        what=f"node {machine.name} is empty:\n{machine.output()}",
    )
    machine.guard.terminate()
    machine.guard.wait(PATIENCE)
    machine.root = version.root
    machine.run()
    assert machine.manage("undrain_node", machine.name).returncode == 0
    load.put_in(machine)


def add_contraction(version: Version) -> Path:
    """Write a migration that needs the new tables on all nodes."""
    folder = version.root / "roster" / "migrations"
    last = max(folder.glob("[0-9]*.py")).stem
    path = folder / f"{migrations.newest() + 2:04}_contract.py"
    path.write_text(CONTRACTION.format(last=last, number=migrations.newest() + 1))
    return path


def test_nodes_are_replaced_one_by_one_while_the_hall_runs_and_no_call_fails(
    machines: list[Machine], next_version: Version
) -> None:
    load = Load(machines, NAMES)
    try:
        prepared = next_version.manage(machines[0], "prepare")
        assert prepared.returncode == 0, prepared.stderr
        # What the old nodes use is removed only after they have ended.
        path = add_contraction(next_version)
        refused = next_version.manage(machines[0], "prepare")
        assert refused.returncode == 1
        older = ", ".join(f"{machine.name} (version {mcp.HALL_VERSION})" for machine in machines)
        assert f"without migration {migrations.newest() + 1:04}: {older}. Stop them" in refused.stderr
        path.unlink()
        # The old nodes serve with the tables of the new version.
        load.wait_for_calls(100)
        for machine in machines:
            replace(machine, next_version, load)
        add_contraction(next_version)
        contracted = next_version.manage(machines[0], "prepare")
        assert contracted.returncode == 0, contracted.stderr
        assert machines[0].manage("rebalance").returncode == 0
        load.wait_for_calls(100)
    finally:
        failures = load.end()
    assert failures == []
    eventually(lambda: not Call.objects.filter(finished_at=None).exists(), within=PATIENCE, what="all calls end")
    assert set(Call.objects.values_list("status", flat=True)) == {"succeeded"}
    assert len(load.records) > 100
    assert len(load.queued) == Call.objects.filter(source=Call.Source.COMMAND).count() > 20
    assert contradictions(load, runs_of(machines, NAMES)) == []
    versions = set(Node.objects.values_list("version", "newest_migration"))
    assert versions == {("9.0.0", migrations.newest() + 1)}
    old = start_old_version(machines[0])
    assert old.wait(PATIENCE) == EX_CONFIG
    assert "is too old for the database, which needs a version with migration" in machines[0].output()


def start_old_version(machine: Machine) -> subprocess.Popen[bytes]:
    """Start a runtime of the old version on a node that has ended."""
    assert machine.guard is not None
    machine.guard.terminate()
    machine.guard.wait(PATIENCE)
    machine.root = ROOT
    return machine.popen(GUARD)
