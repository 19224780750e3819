#!/usr/bin/env python
"""Guild Hall's command line. `manage.py up` starts everything; `manage.py help` lists the rest."""

import gc
import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "guildhall.settings")
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
    except ModuleNotFoundError as error:
        sys.exit(f"{error} in {sys.executable}. `make run` installs into .venv; its Python is .venv/bin/python.")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"Guild Hall cannot start. {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()  # else the interpreter looks through all that is left before it ends: a third of a second


if __name__ == "__main__":
    main()
