"""A machine that counts the instructions of its kernel and of its programs apart.

count.c is a plugin of QEMU that counts; a guest program that maps the device with the counts reads
them. Here is what the plugin is made of; plugin.py has the rest, which the model of TLBs (tlb.py)
needs too.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pagewright.host.workspace import Workspace
from pagewright.machine import plugin


@cache
def ensure(space: Workspace) -> Path:
    """Compile the plugin if it is made of other sources, and return it."""
    return plugin.compiled(space, "count", _sources())


def made_of() -> list[Path]:
    """Return the files that a machine which counts is made by: the plugin's, and its modules."""
    return [Path(__file__), Path(plugin.__file__), *_sources()]


def _sources() -> list[Path]:
    return [Path(__file__).with_name("count.c"), *plugin.shared()]
