"""The machine that the tests of the linear map run on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import leaves
import pytest
from leaf_sizes import LeafSizes, leaf_sizes
from plugged import PluggedMemory
from split import LIVE, PAUSED, said
from ways import WAYS, completed

from pagewright.host import workspace
from pagewright.kernel.recipes import DEFAULT_BUILD, recipe
from pagewright.machine.machine import Machine

Boot = Callable[..., Machine]


@pytest.fixture(scope="session")
def leaf(place: Machine | None, tested: Callable[[str], str]) -> LeafSizes:
    """Return how much the leaves of the kernel map that is tested."""
    if place:
        return leaf_sizes(int(place.check("getconf PAGESIZE")))
    return leaf_sizes(recipe(workspace.find(), tested(DEFAULT_BUILD)).page_kib << 10)


def _in_blocks(place: Machine, way: dict[str, Any], build: str) -> Machine:
    """Return a machine whose linear map is split in the way that it is booted for.

    The test is skipped on a place whose linear map is in pages, and on a kernel that cannot pause
    CPUs for a way that needs it. A kernel of the base has no way.
    """
    if "linear-map" not in recipe(workspace.find(), build).features:
        return place
    mode, reason = said(place)
    if mode == "pages" and place.fixed:
        pytest.skip("the place given by --lg-env does not have its linear map in blocks")
    if mode == "pages" and re.search("top level|real-time|cannot pause", reason):
        pytest.skip(f"{build} pauses no CPUs for its linear map: {reason}")
    assert mode == "blocks"
    if not place.fixed:
        wanted = LIVE if way == WAYS["live"] else f"{PAUSED}{way.get('append', '')}"
        assert reason.startswith(wanted)
    return place


@pytest.fixture(
    params=[name if name == "live" else pytest.param(name, marks=pytest.mark.full) for name in WAYS]
)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options of a machine that splits blocks live, in pauses, or by access flags.

    Its kernel parameters are to be added to those that a test has.
    """
    return WAYS[request.param]


@pytest.fixture
def blocks(shared_machine: Boot, way: dict[str, Any], tested: Callable[[str], str]) -> Boot:
    """Boot a machine whose linear map is in blocks; see shared_machine."""

    def factory(build: str = "patched-4k", **options: Any) -> Machine:
        place = shared_machine(build, **completed(tested(build), way, options))
        return _in_blocks(place, way, tested(build))

    return factory


@pytest.fixture
def own_blocks(machine: Boot, way: dict[str, Any], tested: Callable[[str], str]) -> Boot:
    """Boot such a machine for one test alone; see machine."""

    def factory(build: str = "patched-4k", **options: Any) -> Machine:
        place = machine(build, **completed(tested(build), way, options))
        return _in_blocks(place, way, tested(build))

    return factory


class HotPlug(PluggedMemory):
    """Memory that QEMU plugs into a running machine, and the linear map of it."""

    def mapped(self, place: Machine) -> int:
        """Return how many bytes the linear map maps, plugged or not."""
        return sum(run.size for run in leaves.snapshot(place).runs)


@pytest.fixture
def hotplug() -> HotPlug:
    """Plug memory into machines that were booted with its options."""
    return HotPlug()
