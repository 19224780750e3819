"""The Celery app. Its settings are the CELERY_ ones of settings.py.

Imported by who rings the bell or hears it (settings.BELL): it takes 0.2 s of CPU, which the others go without.
"""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "guildhall.settings")

app = Celery("guildhall")
app.config_from_object("django.conf:settings", namespace="CELERY")
