"""Debian packages + guest programs -> the guest's root file system, an ext4 image.

The packages are only extracted, never configured, so nothing of arm64 runs
here. Programs of features/*/guest are cross-compiled into /usr/lib/tests.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pagewright.host import packages
from pagewright.host.errors import BuildError
from pagewright.host.lock import lock
from pagewright.host.progress import Bar, say
from pagewright.host.run import run
from pagewright.host.toolchain import GCC, GCC_ARM32
from pagewright.host.workspace import Workspace
from pagewright.kernel import source

PACKAGES = (
    "bash",
    "busybox",
    "coreutils",
    "dash",
    "dmsetup",
    "dropbear-bin",
    "fio",
    "gcc",
    "grep",
    "gzip",
    "kmod",
    "libc-bin",
    "libc6-dev",
    "libmemcached-tools",
    "libstb-dev",
    "memcached",
    "mount",
    "procps",
    "psmisc",
    "sed",
    "stress-ng",
    "tcc",
    "util-linux",
)
# Where compiled guest programs are in the guest: TESTS/FEATURE/PROGRAM.
TESTS = "usr/lib/tests"
# The image gets this much more than its contents, for what guests write.
SPARE_MB = 256

COMPILERS = {".arm32.c": GCC_ARM32, ".c": GCC}
CFLAGS = ("-O2", "-g0", "-Wall", "-Wextra", "-static", "-pthread")


@cache
def ensure(space: Workspace) -> Path:
    """Bring the guest image up to date and return it.

    Raises:
        BuildError: packages cannot be fetched, or a program does not compile.
    """
    pristine = source.ensure(space).path
    target = space.out / "guest"
    image = target / "root.ext4"
    init = Path(__file__).with_name("guest-init")
    with lock(target, "the guest image"):
        packages = fetch(space, PACKAGES)
        programs = _compile(space, pristine, target / "programs")
        inputs = [packages, init, *programs]
        key = hashlib.sha256(
            b"".join(str(f).encode() + f.read_bytes() for f in inputs[1:]) + packages.name.encode()
        ).hexdigest()
        stamp = target / "stamp"
        if not (image.exists() and stamp.exists() and stamp.read_text() == key):
            stamp.unlink(missing_ok=True)
            _make_image(packages, init, target / "programs", image)
            stamp.write_text(key)
    return image


def fetch(space: Workspace, names: Sequence[str]) -> Path:
    """Return a tar of extracted packages and all they need, made once per list of names."""
    release = packages.debian_release()
    store = space.cache / "guest"
    name = hashlib.sha256(" ".join((release, *names)).encode()).hexdigest()[:16]
    target = store / f"{release}-{name}.tar"
    with lock(store, "the guest cache"):
        if not target.exists():
            sites = packages.apt_sites(release)
            if not sites:
                raise BuildError(f"apt has no source for Debian {release}", "run `apt-get update`")
            lines = "".join(
                f"deb {site} {suite} main\n" for site, suite in sites if "backports" not in suite
            )
            with (
                Bar("fetch the guest's packages", None),
                tempfile.TemporaryDirectory(dir=store, prefix="fetch-") as scratch,
            ):
                fresh = Path(scratch) / "root.tar"
                command = [
                    "mmdebstrap",
                    "--arch=arm64",
                    "--variant=extract",
                    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
                    "--dpkgopt=path-exclude=/usr/share/doc/*",
                    "--dpkgopt=path-exclude=/usr/share/man/*",
                    "--dpkgopt=path-exclude=/usr/share/locale/*",
                    f"--include={','.join(names)}",
                    release,
                    str(fresh),
                    "-",
                ]
                run(packages.as_root(command), stdin=lines)
                fresh.rename(target)
    return target


def _compile(space: Workspace, pristine: Path, target: Path) -> list[Path]:
    """Compile the guest programs that are older than their sources; return them all."""
    made = []
    wanted: dict[Path, list[str | Path]] = {}
    for feature in space.features():
        folder = feature.path / "guest"
        headers = sorted(folder.glob("*.h"))
        for file in sorted(folder.glob("*.c")):
            suffix = next(s for s in COMPILERS if file.name.endswith(s))
            program = target / feature.name / file.name.removesuffix(suffix)
            newest = max(f.stat().st_mtime for f in (file, *headers, Path(__file__)))
            if not program.exists() or program.stat().st_mtime < newest:
                wanted[program] = [
                    COMPILERS[suffix],
                    *CFLAGS,
                    "-isystem",
                    pristine / "tools" / "testing" / "selftests",
                    file,
                ]
            made.append(program)
    for program, command in wanted.items():
        program.parent.mkdir(parents=True, exist_ok=True)
        run([*command, "-o", program])
    for stray in set(target.glob("*/*")) - set(made):
        stray.unlink()
    if wanted:
        say(f"compiled {len(wanted)} guest programs")
    return made


def _make_image(packages: Path, init: Path, programs: Path, image: Path) -> None:
    """Make the ext4 image from the packages, the init and the programs."""
    with (
        Bar("make the guest image", None),
        tempfile.TemporaryDirectory(dir=image.parent, prefix="image-") as scratch,
    ):
        root = Path(scratch) / "root"
        root.mkdir()
        run(["tar", "-x", "--no-same-owner", "--exclude=./dev/*", "-f", packages, "-C", root])
        for name in ("dev", "proc", "sys", "run", "tmp", "root"):
            (root / name).mkdir(exist_ok=True)
        # Debian 13 leaves these links to a package that is not extracted here.
        for name in ("bin", "lib", "sbin"):
            if not (root / name).exists():
                (root / name).symlink_to(f"usr/{name}")
        run(["install", "-m", "755", init, root / "init"])
        (root / TESTS).parent.mkdir(parents=True, exist_ok=True)
        run(["cp", "-a", programs, root / TESTS])
        size = int(run(["du", "-sm", root]).split()[0]) + SPARE_MB
        fresh = Path(scratch) / "root.ext4"
        # In the image all files are root's, whoever makes it.
        command = ["fakeroot", "--", "/sbin/mke2fs", "-q", "-t", "ext4", "-d"]
        run([*command, root, fresh, f"{size}M"])
        fresh.rename(image)
