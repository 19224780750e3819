"""Loads Django for commands that work beside a hall, in a third of the time that `manage.py check` takes.

The web's apps are left out, and so is what such a command does not use in most cases. It is loaded on use.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

from mcp_runtime.system.late_modules import load_late

# Modules that Django imports at its start, and that these commands hardly ever use. With what they import they take a
# tenth of the start.
LATE_MODULES = ("ssl", "asyncio.sslproto", "shutil", "tempfile", "logging.config", "sqlparse")


def load_django() -> None:
    """Load Django with the settings of the hall. Raises ImproperlyConfigured."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "guildhall.settings")
    import django
    from django.conf import settings

    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app not in settings.APPS_OF_THE_WEB]
    _configure_logging_late(settings.LOGGING_CONFIG, settings.LOGGING)
    settings.LOGGING_CONFIG = None
    django.setup()


# Modules ----------------------------------------------------------------------------------------------------------


def load_modules_late() -> None:
    """For all of LATE_MODULES, before the first import of Django."""
    for name in LATE_MODULES:
        load_late(name)
    for name in LATE_MODULES:
        package, _, child = name.rpartition(".")
        if package:  # as an ordinary import does
            setattr(importlib.import_module(package), child, sys.modules[name])


# Logs -------------------------------------------------------------------------------------------------------------


def _configure_logging_late(function: str, logging_settings: dict[str, Any]) -> None:
    """Configure the logs before the first record, because Django's own handlers import its error pages."""
    for name, values in logging_settings["loggers"].items():
        logging.getLogger(name).setLevel(values["level"])
    logging.getLogger().addHandler(_FirstRecord(function, logging_settings))


class _FirstRecord(logging.Handler):
    """Configures the logs, and then takes their place for the first record."""

    def __init__(self, function: str, logging_settings: dict[str, Any]) -> None:
        super().__init__()
        self._function, self._settings = function, logging_settings

    def emit(self, record: logging.LogRecord) -> None:
        from django.utils.log import configure_logging

        logging.getLogger().removeHandler(self)
        configure_logging(self._function, self._settings)
        logging.getLogger(record.name).handle(record)
