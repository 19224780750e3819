"""The Celery app. Its settings are the CELERY_ ones of settings.py.

Only code that sends or receives notifications imports it (settings.CELERY_APP), because that takes 0.2 s of CPU time.
"""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "guildhall.settings")

app = Celery("guildhall")
app.config_from_object("django.conf:settings", namespace="CELERY")
