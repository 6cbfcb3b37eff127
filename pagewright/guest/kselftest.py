"""The kernel's own selftests -> programs and scripts for the guest.

They are made by the selftests' own makefiles, in a mirror of the source: its files are
links into the pristine tree, in which nothing may be written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from pagewright.host.lock import lock
from pagewright.host.progress import Bar
from pagewright.host.run import run
from pagewright.host.toolchain import CROSS, GCC, with_library
from pagewright.host.workspace import Workspace
from pagewright.kernel import source

# Where the guest has them: SELFTESTS/COLLECTION/PROGRAM.
SELFTESTS = "/usr/lib/kselftest"
# Their scripts call these, which the guest has in busybox.
_BUSYBOX = ("awk",)

_FOLDER = Path("tools/testing/selftests")


def collections(space: Workspace) -> dict[str, list[str]]:
    """Return the programs that features ask for, by the kernel's names of their collections."""
    found: dict[str, list[str]] = {}
    for feature in space.features():
        for name, programs in feature.kselftests.items():
            found.setdefault(name, []).extend(programs)
    return found


@cache
def ensure(space: Workspace) -> Path:
    """Build the selftests for the guest, unless that was done before.

    Which ones is said by the features (feature.toml: kselftests).

    Returns:
        A folder to lay over the guest's root (MachineOptions.overlay).

    Raises:
        BuildError: something does not compile.
    """
    wanted = collections(space)
    pristine = source.ensure(space)
    target = space.out / "selftests"
    overlay = target / "overlay"
    stamp = target / "stamp"
    compiler = with_library(GCC)
    inputs = (pristine.package_version, compiler, Path(__file__).read_text(), repr(wanted))
    key = hashlib.sha256("\n".join(inputs).encode())
    with lock(target, "the selftests"):
        if not (stamp.exists() and stamp.read_text() == key.hexdigest()):
            for stale in (stamp, *(target / name for name in ("overlay", "source", "headers"))):
                shutil.rmtree(stale) if stale.is_dir() else stale.unlink(missing_ok=True)
            with Bar("build the kernel's selftests", None):
                _build(pristine.path, wanted, target, overlay)
            stamp.write_text(key.hexdigest())
    return overlay


def _build(
    pristine: Path, wanted: Mapping[str, Sequence[str]], target: Path, overlay: Path
) -> None:
    """Compile the programs, and copy them and the scripts beside them to the overlay."""
    headers = target / "headers"
    run(["make", "-s", "-C", pristine, f"O={headers}", "ARCH=arm64", "headers"])
    mirror = target / "source"
    _mirror(pristine, mirror, {_FOLDER / name for name in wanted})
    for name, programs in wanted.items():
        folder = mirror / _FOLDER / name
        made = overlay / SELFTESTS.strip("/") / name
        made.mkdir(parents=True)
        run(
            [
                *("make", "-s", "-C", folder, f"-j{os.cpu_count() or 1}"),
                *("ARCH=arm64", f"CROSS_COMPILE={CROSS}", f"OUTPUT={made}"),
                f"KHDR_INCLUDES=-isystem {headers / 'usr' / 'include'}",
                *("USERCFLAGS=-w", "USERLDFLAGS=-static -s"),
                *(made / program for program in programs),
            ]
        )
        for script in folder.glob("*.sh"):
            shutil.copy(script, made)
    links = overlay / "usr" / "local" / "bin"
    links.mkdir(parents=True)
    for name in _BUSYBOX:
        (links / name).symlink_to("/bin/busybox")


def _mirror(real: Path, mirror: Path, inside: set[Path], at: Path = Path()) -> None:
    """Make a folder whose files are links to a tree's.

    Args:
        real: the tree.
        mirror: the folder.
        inside: folders, relative to the tree, in which files will be made: these and
            those above them are folders in the mirror, all others links.
        at: where we are in the tree.
    """
    (mirror / at).mkdir(parents=True)
    for entry in (real / at).iterdir():
        path = at / entry.name
        if any(folder.is_relative_to(path) for folder in inside):
            _mirror(real, mirror, inside, path)
        else:
            (mirror / path).symlink_to(entry)
