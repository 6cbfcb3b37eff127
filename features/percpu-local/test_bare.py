"""Kernels that are unlike those of the everyday tests: big-endian ones, and other stacks."""

from __future__ import annotations

import re

import pytest
from percpu_local_bare import console, initramfs
from split import LIVE, NOT_SPLIT, PAUSED

from pagewright.machine import klog
from pagewright.machine.options import DEFAULT_CPU

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif("config.getoption('lg_env')", reason="boots without our guest"),
]


# Each way of the linear map and each form of the per-CPU operations: in one instruction, the base's
# own, and on a processor without LSE and BBM level 2.
@pytest.mark.parametrize(
    ("cpu", "append", "way", "absent"),
    [
        (DEFAULT_CPU, "", LIVE, set()),
        (DEFAULT_CPU, "percpu_local_map=0", LIVE, {"percpu_local"}),
        ("cortex-a72", "", PAUSED, set()),
    ],
    ids=["level2", "level2-off", "level0"],
)
def test_a_big_endian_kernel_passes_the_suites(space, built, tmp_path, cpu, append, way, absent):
    kernel = built("bare-4k-be")
    words = ("kunit.enable=1", *(feature.boot_emulated for feature in space.features()), append)
    text = console(kernel, initramfs(kernel, tmp_path, "big"), " ".join(words), cpu)
    suites = {suite for feature in space.features() for suite in feature.kunit_suites}
    for suite in suites - absent:
        assert re.search(rf"^(\[.*\] )?ok \d+ {suite}$", text, re.MULTILINE), text
    assert "not ok" not in text
    # Its suite passes where it skips nearly all its cases, too.
    said = set(re.findall(r"linear map: ((?:blocks|pages) \([\w ]+: )", text))
    assert said == {f"blocks ({way}"}
    assert NOT_SPLIT not in text
    assert ("local map of" in text) == ("percpu_local" not in absent)
    assert klog.splats(text) == ""
    assert "init: it runs" in text
    assert "reboot: Power down" in text


def test_an_overflow_of_the_stack_is_reported(built, tmp_path):
    """KASAN's code in the handler writes to the shadow of the stack that it runs on."""
    kernel = built("bare-4k-kasan")
    text = console(kernel, initramfs(kernel, tmp_path, "little"), "-- EXHAUST_STACK")
    assert "local map of" in text
    assert "init: it runs" in text
    assert "Insufficient stack space to handle exception!" in text
    assert "Overflow stack:" in text
