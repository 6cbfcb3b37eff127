"""UEFI for machines that boot as servers do, from a package of Debian.

It is Debian 13's, whatever the host has. The UEFI of Debian 12 (edk2 2022.11) maps the flash that
keeps its variables as write-combining, and says so in its map of memory. To the kernel, what can be
mapped like that is memory (is_memory() in drivers/firmware/efi/efi-init.c). ACPI's tables name no
node for it, and where memory has no node, the kernel puts all of it in one: "NUMA: no nodes
coverage for 64MB". Debian 13's (edk2 2025.02) maps the flash as a device.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pagewright.host import arm64_packages
from pagewright.host.lock import lock
from pagewright.host.workspace import Workspace

_PACKAGE = "qemu-efi-aarch64"
_RELEASE = "trixie"
_FILE = "usr/share/qemu-efi-aarch64/QEMU_EFI.fd"


@cache
def ensure(space: Workspace) -> Path:
    """Fetch the firmware unless that was done before, and return it.

    Raises:
        PagewrightError: Debian's package cannot be fetched.
    """
    folder = space.out / "firmware"
    firmware = folder / f"{_RELEASE}.fd"
    with lock(folder, "UEFI"):
        if not firmware.exists():
            fetched = arm64_packages.fetch(space, [_PACKAGE], _RELEASE)
            fresh = folder / "fresh.fd"
            fresh.write_bytes(arm64_packages.read(fetched, _FILE))
            fresh.rename(firmware)
    return firmware
