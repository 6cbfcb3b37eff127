"""The machine that the tests of the linear map run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import leaves
import pytest
from leaf_sizes import LeafSizes, leaf_sizes
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


def _in_blocks(place: Machine, way: dict[str, Any]) -> Machine:
    """Return a machine; skip the test if it is a place whose linear map is in pages.

    An emulated machine whose kernel has the feature must have blocks, split in the way that it is
    booted for.
    """
    if place.fixed:
        if "linear map: blocks" not in place.check("dmesg"):
            pytest.skip("the place given by --lg-env does not have its linear map in blocks")
        return place
    folder = "/sys/kernel/mm/linear_map"
    if not place.run(f"ls {folder}").status:
        mode, reason = place.read(f"{folder}/mode", f"{folder}/reason")
        said = "split and folded back live: "
        if way != WAYS["live"]:
            said = f"split and folded back in pauses: {way.get('append', '')}"
        assert mode == "blocks"
        assert reason.startswith(said)
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
        return _in_blocks(shared_machine(build, **completed(tested(build), way, options)), way)

    return factory


@pytest.fixture
def own_blocks(machine: Boot, way: dict[str, Any], tested: Callable[[str], str]) -> Boot:
    """Boot such a machine for one test alone; see machine."""

    def factory(build: str = "patched-4k", **options: Any) -> Machine:
        return _in_blocks(machine(build, **completed(tested(build), way, options)), way)

    return factory


class HotPlug:
    """Memory that QEMU plugs into a running machine.

    Attributes:
        MOST: how many bytes more a machine can have.
        options: fields of MachineOptions for such a machine.
    """

    _DEVICE = "/machine/peripheral/plugged"
    # In bytes.
    MOST = 4 << 30

    # Movable, so that all of it can go again.
    options: Mapping[str, Any] = MappingProxyType(
        {
            "append": "memhp_default_state=online_movable",
            "extra_args": (
                *("-m", "maxmem=16G,slots=2"),
                *("-object", "memory-backend-ram,id=more,size=4G,reserve=off"),
                *("-device", "virtio-mem-pci,id=plugged,memdev=more,addr=0x1f"),
            ),
        }
    )

    def resize(self, place: Machine, size: int) -> None:
        """Ask the guest to have so many bytes; it takes them, or gives them back, in time."""
        place.monitor("qom-set", path=self._DEVICE, property="requested-size", value=size)

    def size(self, place: Machine) -> int:
        """Return how many bytes the guest has taken."""
        return int(place.monitor("qom-get", path=self._DEVICE, property="size"))

    def mapped(self, place: Machine) -> int:
        """Return how many bytes the linear map maps, plugged or not."""
        return sum(run.size for run in leaves.snapshot(place).runs)


@pytest.fixture
def hotplug() -> HotPlug:
    """Plug memory into machines that were booted with its options."""
    return HotPlug()
