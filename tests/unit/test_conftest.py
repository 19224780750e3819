import os
from pathlib import Path

from django.conf import settings


def test_the_settings_name_the_folder_of_this_worker() -> None:
    assert Path(os.environ["GUILD_HALL_DATA_DIR"]) == settings.GUILD_HALL_DATA_DIR
