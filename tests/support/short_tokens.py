"""The settings of a hall whose access tokens end after seconds, so that a test sees how clients renew them."""

from __future__ import annotations

from guildhall.settings import *  # noqa: F403
from guildhall.settings import OAUTH2_PROVIDER as _OAUTH2_PROVIDER

OAUTH2_PROVIDER = {**_OAUTH2_PROVIDER, "ACCESS_TOKEN_EXPIRE_SECONDS": 8}
