"""Wait for what must happen soon."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait, but not forever.

    Raises:
        AssertionError: it did not come about in so many seconds.
    """
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.1)
