"""The machine that the tests of the linear map run on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import leaves
import pytest

from pagewright.host.workspace import Workspace
from pagewright.kernel import build as builder
from pagewright.machine.machine import Machine
from pagewright.machine.options import DEFAULT_CPU

Boot = Callable[..., Machine]


def _completed(build: str, options: dict[str, Any]) -> dict[str, Any]:
    """Ask for CPUs with BBM level 2, two of them; have a debug build check every change."""
    options = {"cpu": DEFAULT_CPU, "smp": 2} | options
    if not build.startswith("debug"):
        return options
    return options | {"append": f"{options.get('append', '')} pgtable_transition_check=on".strip()}


@pytest.fixture
def blocks(shared_machine: Boot) -> Boot:
    """Boot a machine whose linear map is in blocks; see shared_machine."""

    def factory(build: str = "patched-4k", **options: Any) -> Machine:
        return shared_machine(build, **_completed(build, options))

    return factory


@pytest.fixture
def own_blocks(machine: Boot) -> Boot:
    """Boot such a machine for one test alone; see machine."""

    def factory(build: str = "patched-4k", **options: Any) -> Machine:
        return machine(build, **_completed(build, options))

    return factory


class HotPlug:
    """Memory that QEMU plugs into a running machine.

    Attributes:
        options: fields of MachineOptions for a machine that can have up to 4 GiB more.
    """

    _DEVICE = "/machine/peripheral/plugged"

    # Movable, so that all of it can go again.
    options: Mapping[str, Any] = MappingProxyType(
        {
            "append": "memhp_default_state=online_movable",
            "extra_args": (
                *("-m", "maxmem=8G,slots=2"),
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
        return sum(run.size for run in leaves.snapshot(place, "", 4096).runs)


@pytest.fixture
def hotplug() -> HotPlug:
    """Plug memory into machines that were booted with its options."""
    return HotPlug()


@pytest.fixture
def kernel_overlay(space: Workspace, tmp_path: Path) -> Callable[[str], Path]:
    """Make an overlay that has a build's image at /boot/Image."""

    def make(build: str) -> Path:
        overlay = tmp_path / "overlay"
        (overlay / "boot").mkdir(parents=True)
        shutil.copy(builder.ensure(space, build).image, overlay / "boot" / "Image")
        return overlay

    return make
