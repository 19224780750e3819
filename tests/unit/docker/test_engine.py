"""The trial in Docker fits the released image. `make docker` runs the trial itself."""

from __future__ import annotations

from tests.docker.engine import ADDED, base_images


def test_every_base_image_has_a_stand_in() -> None:
    names = [name.partition(":")[0] for name in base_images()]
    assert set(names) == set(ADDED)
