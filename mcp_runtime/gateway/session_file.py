"""What sessions' ids do not carry, from one runtime to the next: a small file, written when it is another."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

logger = logging.getLogger("guildhall.gateway")

NAME = "gateway-sessions.json"
_saving = threading.Lock()


def load(directory: Path) -> dict[str, Any]:
    """As it was written last; empty where there is none, or none that can be read."""
    try:
        told = json.loads((directory / NAME).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s): sessions go on without it", NAME, error)
        return {}
    return told if isinstance(told, dict) else {}


def save(directory: Path, told: dict[str, Any]) -> None:
    """From any thread, one after the other."""
    path, draft = directory / NAME, directory / f"{NAME}.new"
    with _saving:
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(told, file)
            draft.replace(path)
        except OSError as error:
            logger.warning("%s cannot be written (%s)", NAME, error)
