"""Memory that QEMU plugs into a running machine, and takes away again."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pagewright.machine.machine import Machine


def options(most: int, at_boot: int = 0) -> dict[str, Any]:
    """Return fields of MachineOptions for a machine to which memory can be plugged.

    Args:
        most: how many bytes more it can have.
        at_boot: how many of them it has before the guest's init runs.
    """
    device = f"virtio-mem-pci,id=plugged,memdev=more,requested-size={at_boot},addr=0x1f"
    return {
        # Movable, so that all of it can go again.
        "append": "memhp_default_state=online_movable",
        "extra_args": (
            *("-m", "maxmem=16G,slots=2"),
            *("-object", f"memory-backend-ram,id=more,size={most},reserve=off"),
            *("-device", device),
        ),
    }


class PluggedMemory:
    """Memory of a virtio-mem device.

    Attributes:
        MOST: how many bytes more a machine can have.
        options: fields of MachineOptions for such a machine.
    """

    _DEVICE = "/machine/peripheral/plugged"
    # In bytes.
    MOST = 4 << 30

    options: Mapping[str, Any] = MappingProxyType(options(MOST))

    def resize(self, place: Machine, size: int) -> None:
        """Ask the guest to have so many bytes; it takes them, or gives them back, in time."""
        place.monitor("qom-set", path=self._DEVICE, property="requested-size", value=size)

    def size(self, place: Machine) -> int:
        """Return how many bytes the guest has taken."""
        return int(place.monitor("qom-get", path=self._DEVICE, property="size"))
