"""Kernels that are unlike those of the everyday tests: big-endian ones, and other stacks."""

from __future__ import annotations

import re

import pytest
from percpu_local_bare import console, initramfs

from pagewright.kernel import build
from pagewright.machine.options import DEFAULT_CPU

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif("config.getoption('lg_env')", reason="boots without our guest"),
]

KUNIT = "kunit.enable=1 kunit.filter_glob=percpu*"


# Each form of the operations: in one instruction, the base's own, and on a processor without LSE.
@pytest.mark.parametrize(
    ("cpu", "append", "suites"),
    [
        (DEFAULT_CPU, "", ("percpu_local", "percpu")),
        (DEFAULT_CPU, "percpu_local_map=0", ("percpu",)),
        ("cortex-a72", "", ("percpu_local", "percpu")),
    ],
)
def test_a_big_endian_kernel_passes_the_suites(space, tmp_path, cpu, append, suites):
    built = build.ensure(space, "bare-4k-be")
    text = console(built, initramfs(built, tmp_path, "big"), f"{KUNIT} {append}", cpu)
    for suite in suites:
        assert re.search(rf"^ok \d+ {suite}$", text, re.MULTILINE), text
    assert "not ok" not in text
    assert "init: it runs" in text
    assert "reboot: Power down" in text


def test_an_overflow_of_the_stack_is_reported(space, tmp_path):
    """KASAN's code in the handler writes to the shadow of the stack that it runs on."""
    built = build.ensure(space, "bare-4k-kasan")
    text = console(built, initramfs(built, tmp_path, "little"), "-- EXHAUST_STACK")
    assert "local map of" in text
    assert "init: it runs" in text
    assert "Insufficient stack space to handle exception!" in text
    assert "Overflow stack:" in text
