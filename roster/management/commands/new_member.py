from __future__ import annotations

import os
import shutil
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connection

from mcp_runtime.control.members import live_runtime, members_of_roster, sync_roster
from mcp_runtime.members.manifest.files import read_all
from mcp_runtime.members.manifest.parser import name_error
from roster.models import GuildMember
from roster.template import files_of

WAIT_SECONDS = 10.0
LOOK_SECONDS = 0.1


class Command(BaseCommand):
    help = "Make the folder of a new member: a server with one tool that works, its manifest, a README."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="letters, digits, - and _")

    def handle(self, *args: Any, **options: Any) -> None:
        name: str = options["name"]
        members_dir: Path = settings.GUILD_HALL_MEMBERS_DIR
        if fault := name_error(name):
            raise CommandError(fault)
        os.umask(settings.USER_UMASK)  # the folder belongs to the user, not to the hall
        try:
            members_dir.mkdir(exist_ok=True)
            require_free(name, members_dir)
            folder = scaffold(name, members_dir)
        except OSError as error:
            raise CommandError(f"cannot write to {members_dir}: {error.strerror}") from error
        self.stdout.write(self.style.SUCCESS(f"Made member {name} in {folder}."))
        is_up = self._comes_up(name)
        self.stdout.write(
            f"{'It is connected' if is_up else 'A hall that runs starts it automatically'}. Next:\n"
            f"  write your tools in   {folder / 'server.py'}\n"
            f"  check the manifest    guildhall check_members {folder}\n"
            f"  run what you changed  guildhall member restart {name}\n"
            f'  call its tool         guildhall invoke {name} hello \'{{"name": "Ada"}}\'\n'
            f"  read what it prints   guildhall logs {name} -f"
        )

    def _comes_up(self, name: str) -> bool:
        """Whether a running hall has started it, so that it can be called at once. The hall is optional."""
        deadline = time.monotonic() + WAIT_SECONDS
        if connection.vendor == "sqlite" and not Path(connection.settings_dict["NAME"]).exists():
            return False  # a query would create the file
        try:
            while live_runtime() and time.monotonic() < deadline:
                sync_roster()
                if members_of_roster().filter(name=name, status=GuildMember.Status.CONNECTED).exists():
                    return True
                time.sleep(LOOK_SECONDS)
        except Error:
            pass  # no database yet, or one without tables
        return False


def require_free(name: str, members_dir: Path) -> None:
    if any(entry.name.casefold() == name.casefold() for entry in members_dir.iterdir()):
        raise CommandError(f"{members_dir / name} exists already")
    for file in read_all(members_dir):
        if file.manifest and file.manifest.name.casefold() == name.casefold():
            raise CommandError(f"the member in {members_dir / file.directory} is called {file.manifest.name} already")


def scaffold(name: str, members_dir: Path) -> Path:
    """Create the member's folder in one step, so that a hall that watches never sees half of it."""
    folder = members_dir / name
    # Discovery ignores names that begin with a dot.
    draft = members_dir / f".{name}.{os.getpid()}"
    draft.mkdir()
    try:
        for path, text in files_of(name).items():
            (draft / path).write_text(text, encoding="utf-8")
        draft.rename(folder)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return folder
