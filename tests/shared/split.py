"""What the linear map of a guest is made of, and whether it can be split."""

from __future__ import annotations

import re

from pagewright.machine.machine import Machine

# How the kernel's reason begins, by the way in which blocks are split.
LIVE, PAUSED = "split and folded back live: ", "split and folded back in pauses: "

# Why the suite of the linear map skips nearly all its cases, and passes.
NOT_SPLIT = "the linear map is not split on this system"


def was_split(guest: Machine) -> bool:
    """Tell whether the suite of the linear map took it for one that is split."""
    [results] = guest.read("/sys/kernel/debug/kunit/linear_map/results")
    return NOT_SPLIT not in results


def said(guest: Machine) -> tuple[str, str]:
    """Return what the kernel says of the linear map in sysfs: blocks or pages, and why."""
    mode, reason = guest.read(*(f"/sys/kernel/mm/linear_map/{name}" for name in ("mode", "reason")))
    return mode, reason


def tries_by_access_flag(guest: Machine) -> int:
    """Return how often a block was split by its access flag, or was in use and left to a pause."""
    names = (f"/sys/kernel/mm/linear_map/access_flag_{what}" for what in ("splits", "failures"))
    return sum(map(int, guest.read(*names)))


def logged(guest: Machine) -> str:
    """Return what the kernel has said last of the linear map in its log, the reason in brackets."""
    lines: list[str] = re.findall(r"linear map: ((?:blocks|pages) .*)", guest.check("dmesg"))
    assert lines, "the kernel said nothing of the linear map"
    return lines[-1]
