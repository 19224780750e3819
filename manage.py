#!/usr/bin/env python
"""Guild Hall's command line. `manage.py up` starts everything; `manage.py help` lists the rest."""

import gc
import os
import sys

# An agent waits for these commands to start, so they skip what only the web needs. It takes longest to import.
WITHOUT_WEB = ("mcp_stdio",)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "guildhall.settings")
    if sys.argv[1:2] == ["up"]:
        gc.disable()  # until everything is imported, because an import leaves no garbage
    try:
        import guildhall  # noqa: F401, I001 - first, so that process 1 obeys a stop during slow imports

        from django.conf import settings
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
        from django.db import DatabaseError

        from guildhall import commands, data_folder
        from mcp_runtime.rows.database import damage
        from mcp_runtime.system import console
    except ModuleNotFoundError as error:
        sys.exit(f"{error} in {sys.executable}. `make run` installs into .venv; its Python is .venv/bin/python.")
    if sys.argv[1:2] == ["up"]:
        console.replace_standard_streams()
    data_folder.is_created = not commands.is_beside_hall(sys.argv[1:])
    try:
        if sys.argv[1:2] and sys.argv[1] in WITHOUT_WEB:
            settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app not in settings.APPS_OF_THE_WEB]
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"Guild Hall cannot start. {error}")
    except DatabaseError as error:
        if not (message := damage(error)):
            raise
        sys.exit(message)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()  # otherwise the interpreter scans all objects before it ends, which takes a third of a second


if __name__ == "__main__":
    main()
