"""A small file with the state of sessions that their ids do not contain, for the next runtime."""

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
    """Return the content of the file. Empty if it is missing or cannot be read."""
    try:
        states = json.loads((directory / NAME).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s): sessions continue without it", NAME, error)
        return {}
    return states if isinstance(states, dict) else {}


def save(directory: Path, states: dict[str, Any]) -> None:
    """Write the file. Any thread may call this. A lock makes the writes sequential."""
    path, draft = directory / NAME, directory / f"{NAME}.new"
    with _saving:
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(states, file)
            draft.replace(path)
        except OSError as error:
            logger.warning("%s cannot be written (%s)", NAME, error)
