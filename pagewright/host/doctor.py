"""What is wrong with the host: told by `pagewright doctor`."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from pagewright.host import disk, packages
from pagewright.host.errors import PagewrightError
from pagewright.host.packages import ARM64
from pagewright.host.workspace import Workspace

# What should be free for a first `make test`, in MB: half as much again as it writes, for what is
# written in passing (docs/hosts.md has the parts).
OUT_MB = 4500
CACHE_MB = 4500

KVM = Path("/dev/kvm")


def complaints(space: Workspace) -> list[str]:
    """Return one line for each thing that is wrong with the host; none if all is well."""
    lines = []
    try:
        packages.debian_release()
    except PagewrightError as error:
        lines.append(error.what)
    lacking = packages.missing()
    for need in lacking:
        lines.append(f"missing: {need.package} ({need.probe}), to {need.purpose}")
    if lacking:
        names = " ".join(packages.package_names(lacking))
        lines.append(f"install with: apt-get install --no-install-recommends {names}")
    elif not packages.offered(space, packages.SOURCE):
        lines.append(f"apt does not know {packages.SOURCE}: run `apt-get update`")
    if ids := packages.lacking_id_range():
        lines.append(f"no range of user ids to make the guest with: as root, run: {' '.join(ids)}")
    version = packages.qemu_version()
    if version and tuple(map(int, re.findall(r"\d+", version)[:2])) < (7, 2):
        lines.append(f"QEMU {version} is too old: 7.2 or newer is needed")
    return lines + disk.shortages({space.root / "out": OUT_MB, space.cache: CACHE_MB})


def kvm(machine: str = "", device: Path = KVM) -> str:
    """Say in one line whether guests can run on this computer's own CPUs.

    Args:
        machine: the computer's architecture, as `uname -m` has it; this computer's if empty.
        device: KVM's device.

    Returns:
        The line; empty if the computer's CPUs are no arm64 ones.
    """
    if (machine or platform.machine()) != ARM64:
        return ""
    if not device.exists():
        return f"guests are emulated: there is no {device}"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"guests are emulated: you may not use {device} (join its group, as a rule kvm)"
    return f"{device} can be used: `--accel kvm` runs guests on this computer's own CPUs"
