"""QEMU's plugins: how they are compiled, and how a machine is given one that counts.

Each plugin has a module that knows what it is made of: count.py, strict.py and tlb.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pagewright.host.files import digest
from pagewright.host.lock import lock
from pagewright.host.run import run
from pagewright.host.toolchain import HOST_GCC, version
from pagewright.host.workspace import Workspace

# QEMU exports all its functions, and a plugin's of the same name must be its own.
_OWN_SYMBOLS = "-Wl,-Bsymbolic"
_CFLAGS = ("-O2", "-g0", "-Wall", "-Wextra", "-shared", "-fPIC", _OWN_SYMBOLS)

# What the guest maps; a device has at least a page.
_BYTES = 1 << 20


def compiled(space: Workspace, name: str, sources: Sequence[Path]) -> Path:
    """Compile a plugin unless it is made of these sources, by this compiler, and return it.

    The times of files do not tell: one that was put back, as by `cp -p` or `rsync -a`, is older
    than the plugin that was made in between.

    Args:
        space: the repository.
        name: its name.
        sources: its C files, and their headers.
    """
    folder = space.out / "plugin"
    plugin, stamp = folder / f"{name}.so", folder / f"{name}.made-of"
    # This file says how they are compiled.
    lines = [f"{file.name} {digest(file)}\n" for file in (Path(__file__), *sources)]
    wanted = "".join((*lines, f"{version(HOST_GCC)}\n"))
    with lock(folder, "QEMU's plugin"):
        if not (plugin.exists() and stamp.exists() and stamp.read_text() == wanted):
            stamp.unlink(missing_ok=True)
            fresh = folder / "fresh.so"
            code = [source for source in sources if source.suffix == ".c"]
            run([HOST_GCC, *_CFLAGS, "-o", fresh, *code])
            fresh.rename(plugin)
            stamp.write_text(wanted)
    return plugin


def shared() -> list[Path]:
    """Return the sources that plugins have in common, which know QEMU."""
    return sorted(Path(__file__).with_name("shared").glob("*.[ch]"))


def arguments(plugin: Path, directory: Path, *more: str) -> list[str]:
    """Return QEMU's arguments for a machine that counts.

    Args:
        plugin: what `compiled` has returned.
        directory: takes the file with the counts; the machine's own.
        more: further arguments of the plugin.
    """
    counts = directory / "counts"
    counts.write_bytes(bytes(_BYTES))
    memory = f"memory-backend-file,id=counts,size={_BYTES},share=on,mem-path={counts}"
    return [
        *("-plugin", ",".join((str(plugin), f"counts={counts}", *more))),
        *("-object", memory),
        *("-device", "ivshmem-plain,memdev=counts"),
    ]
