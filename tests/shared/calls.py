"""What functions of a kernel call, by their machine code."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from pagewright.host.run import run
from pagewright.host.toolchain import OBJDUMP

# A branch to the begin of another function is a call, too, and within one it has an offset.
CALL = re.compile(r"\tbl?(?:\.\w+)?\t.* <([^>+]+)>$", re.MULTILINE)


def codes(vmlinux: Path, functions: Collection[str]) -> dict[str, str]:
    """Disassemble functions of a kernel.

    Raises:
        AssertionError: the kernel has no function of one of the names.
    """
    found = {
        function: run([OBJDUMP, "--no-show-raw-insn", f"--disassemble={function}", vmlinux])
        for function in sorted(functions)
    }
    assert [name for name, code in found.items() if f"<{name}>:" not in code] == []
    return found


def called(function: str, code: str) -> set[str]:
    """Return the other functions that one branches to, but not what it calls by address."""
    return set(CALL.findall(code)) - {function}
