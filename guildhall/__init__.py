"""The composition root: settings, addresses, the Celery app. It names things by string and holds no behaviour."""

# Celery's current app must be ours wherever Django is set up, or bells are rung at a broker nobody chose.
from guildhall.celery import app as celery_app

__all__ = ["celery_app"]
