"""Every KUnit suite of every feature, on the everyday build and on the debug build."""

from __future__ import annotations

import pytest

from pagewright import ktap, source, workspace

SPACE = workspace.find()
SUITES = [suite for feature in SPACE.features() for suite in feature.kunit_suites]
DEBUG_SUITES = [suite for feature in SPACE.features() for suite in feature.debug_kunit_suites]


@pytest.mark.parametrize("build", ["patched-4k", "debug-4k"])
def test_kunit(build, machine, subtests):
    guest = machine(build, append="kunit.enable=1")
    tree = source.ensure(SPACE).path
    for suite in SUITES + (DEBUG_SUITES if build.startswith("debug") else []):
        text = guest.check(f"cat /sys/kernel/debug/kunit/{suite}/results")
        ktap.report(ktap.parse(text, tree), subtests)
    assert guest.warnings() == ""
