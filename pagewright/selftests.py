"""The kernel's own selftests -> programs and scripts for the guest.

They are made by the selftests' own makefiles, in a mirror of the source: its files are
links into the pristine tree, in which nothing may be written.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pagewright import build, ktap, source, workspace
from pagewright.machine import Machine
from pagewright.progress import Bar
from pagewright.run import run
from pagewright.workspace import lock

# Where the guest has them: SELFTESTS/COLLECTION/PROGRAM.
SELFTESTS = "/usr/lib/kselftest"
# These collections; of mm what needs no library that Debian lacks for cross-compilation
# (ksm_tests and migration need libnuma; mlock-random-test and memfd_secret, libcap).
PROGRAMS: Mapping[str, Sequence[str]] = {
    "cgroup": ("test_hugetlb_memcg",),
    "mm": (
        "compaction_test",
        "cow",
        "hugepage-mmap",
        "hugepage-mremap",
        "hugepage-shm",
        "hugepage-vmemmap",
        "hugetlb-madvise",
        "hugetlb-read-hwpoison",
        "hugetlb-soft-offline",
        "hugetlb_dio",
        "hugetlb_fault_after_madv",
        "hugetlb_madv_vs_map",
        "map_hugetlb",
        "pagemap_ioctl",
        "thuge-gen",
        "uffd-stress",
        "uffd-unit-tests",
        "va_high_addr_switch",
        "write_to_hugetlbfs",
    ),
}
# Their scripts call these, which the guest has in busybox.
_BUSYBOX = ("awk",)

_FOLDER = Path("tools/testing/selftests")
# What kselftest.h defines of exit statuses.
_STATUS: Mapping[int, ktap.Outcome] = {0: "pass", 4: "skip"}
# The kernel's parser of KTAP takes no case without a name, which these programs print.
_CASE = re.compile(r"^(not )?ok (\d+)\b[ -]*(.*?)(?:# (SKIP|XFAIL)\b.*)?$", re.MULTILINE)
_PLAN = re.compile(r"^1\.\.(\d+)$", re.MULTILINE)


@cache
def ensure() -> Path:
    """Build the selftests for the guest, unless that was done before.

    Returns:
        A folder to lay over the guest's root (MachineOptions.overlay).

    Raises:
        PagewrightError: something does not compile.
    """
    space = workspace.find()
    pristine = source.ensure(space)
    target = space.out / "selftests"
    overlay = target / "overlay"
    stamp = target / "stamp"
    key = hashlib.sha256(pristine.package_version.encode() + Path(__file__).read_bytes())
    with lock(target, "the selftests"):
        if not (stamp.exists() and stamp.read_text() == key.hexdigest()):
            for stale in (stamp, overlay, target / "source"):
                shutil.rmtree(stale) if stale.is_dir() else stale.unlink(missing_ok=True)
            with Bar("build the kernel's selftests", None):
                _build(pristine.path, target, overlay)
            stamp.write_text(key.hexdigest())
    return overlay


def _build(pristine: Path, target: Path, overlay: Path) -> None:
    """Compile the programs, and copy them and the scripts beside them to the overlay."""
    headers = target / "headers"
    run(["make", "-s", "-C", pristine, f"O={headers}", "ARCH=arm64", "headers"])
    mirror = target / "source"
    _mirror(pristine, mirror, {_FOLDER / name for name in PROGRAMS})
    for name, programs in PROGRAMS.items():
        folder = mirror / _FOLDER / name
        made = overlay / SELFTESTS.strip("/") / name
        made.mkdir(parents=True)
        run(
            [
                *("make", "-s", "-C", folder, f"-j{os.cpu_count() or 1}"),
                *("ARCH=arm64", f"CROSS_COMPILE={build.CROSS}", f"OUTPUT={made}"),
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


@dataclass(frozen=True)
class Run:
    """How a selftest went.

    Attributes:
        output: all it printed.
        outcome: what its exit status says.
        cases: by their numbers, what its TAP says of each case; empty if it prints none.
        names: the cases' names, which need not be unique nor the same in each run.
    """

    output: str
    outcome: ktap.Outcome
    cases: Mapping[int, ktap.Outcome]
    names: Mapping[int, str]

    @classmethod
    def read(cls, output: str, status: int) -> Run:
        """Understand what a selftest printed, and its exit status."""
        cases: dict[int, ktap.Outcome] = {}
        names: dict[int, str] = {}
        plan = _PLAN.search(output)
        for number in range(1, int(plan[1]) + 1 if plan else 1):
            cases[number] = "crash"
        for bad, number, name, note in _CASE.findall(output):
            cases[int(number)] = "fail" if bad else "skip" if note else "pass"
            names[int(number)] = name.strip()
        return cls(output, _STATUS.get(status, "fail"), cases, names)

    def lost(self, other: Run) -> list[str]:
        """Return what passed here and did not in another run, one line each."""
        lost = [
            f"case {number}, {self.names.get(number, '')}: {other.cases.get(number, 'missing')}"
            for number, outcome in self.cases.items()
            if outcome == "pass" and other.cases.get(number) != "pass"
        ]
        if self.outcome == "pass" and other.outcome != "pass":
            lost.append(f"exit status: {other.outcome}")
        return lost


def run_in(place: Machine, collection: str, command: str, timeout: float = 300) -> Run:
    """Run a selftest in the folder of its collection.

    Args:
        place: was booted with the overlay that `ensure` returns.
        collection: a key of PROGRAMS.
        command: shell; its status is the test's.
        timeout: as in Machine.run.

    Raises:
        PagewrightError: the machine died, or did not answer in time.
    """
    result = place.run(f"cd {SELFTESTS}/{collection} || exit 1\n{command}", timeout)
    return Run.read(result.output, result.status)
