"""A browser in place of the real one: a program that writes down the address that a client opens."""

from __future__ import annotations

import os
from pathlib import Path

# The names under which clients start a browser. Python and `xdg-open` ask the variable BROWSER.
NAMES = ("browser", "xdg-open", "open", "gio", "x-www-browser", "sensible-browser")


class OpenedAddresses:
    """The addresses that programs with `environment` opened."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder, self._file = folder, folder / "addresses"
        self._file.touch()
        for name in NAMES:
            program = folder / name
            program.write_text(f'#!/bin/sh\nfor last; do :; done\necho "$last" >>{self._file}\n')
            program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self._folder}{os.pathsep}{os.environ['PATH']}"
        # `xdg-open` asks BROWSER last: it looks for the browsers of the desktop first, if there is one.
        desktop = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "XDG_DATA_DIRS": str(self._folder)}
        return {"BROWSER": str(self._folder / "browser"), "PATH": path, **desktop}

    def __call__(self) -> list[str]:
        return self._file.read_text().splitlines()
