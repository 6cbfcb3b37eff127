"""Marks for tests of the two modes that share most of the code that is tested.

Every day such a test runs in one mode, with --full in both.
"""

from __future__ import annotations

import pytest

seamless_first = pytest.mark.parametrize(
    "mode", ["seamless", pytest.param("pause", marks=pytest.mark.full)]
)
pause_first = pytest.mark.parametrize(
    "mode", ["pause", pytest.param("seamless", marks=pytest.mark.full)]
)
