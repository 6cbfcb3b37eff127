"""A build -> Debian packages: the kernel, its headers, metapackages, and the tools.

kbuild compiles, here the results are put in order, and packaging/debian makes packages of them.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from email.utils import formatdate
from pathlib import Path

from pagewright.host import disk, packages
from pagewright.host.errors import BuildError, HostError
from pagewright.host.lock import lock
from pagewright.host.progress import Bar
from pagewright.host.repository import commit
from pagewright.host.run import run
from pagewright.host.scratch import scratch
from pagewright.host.toolchain import libc_version
from pagewright.host.workspace import Workspace
from pagewright.kernel import build, headers, source
from pagewright.kernel.build import Build
from pagewright.kernel.recipes import Recipe, recipe
from pagewright.kernel.release import Release, commit_time

# The configuration that `pagewright deb` takes if none is named.
DEFAULT = "cloud-arm64"
# Who made the packages, unless DEBFULLNAME and DEBEMAIL say so, as for all of Debian's tools.
_NAME, _EMAIL = "Pagewright", "pagewright@localhost.localdomain"
# What the packages take while they are made, in MB: files put in order, copied, and packed.
_PACKAGES_MB = 1000
_MODULES_PACKAGES_MB = 3000
# depmod makes the others anew where the kernel is installed.
_KEPT_LISTS = ("modules.builtin", "modules.builtin.modinfo", "modules.order")


def folder(space: Workspace) -> Path:
    """Return where finished packages are."""
    return space.out / "packages"


def next_number(space: Workspace, flavour: str) -> int:
    """Return the number that follows those of a flavour's packages that are there."""
    names = [file.name for file in folder(space).glob(f"linux-image-*-{flavour}_*.deb")]
    pattern = rf"linux-image-[\d.]+-pagewright(\d+)-{re.escape(flavour)}_"
    numbers = [int(match[1]) for name in names if (match := re.match(pattern, name))]
    return max(numbers, default=0) + 1


def make(space: Workspace, flavour: str, number: int | None = None) -> list[Path]:
    """Build a kernel and make packages of it.

    Args:
        space: the repository.
        flavour: a build of builds.toml.
        number: which build of it this is; by default the next one.

    Returns:
        The packages, sorted.

    Raises:
        PagewrightError: there is no such build.
        HostError: a program is missing, or the disk would be full.
        BuildError: it does not compile, or no package can be called so.
    """
    chosen = recipe(space, flavour)
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]+", flavour):
        raise BuildError(f"no package can be named after {flavour}", "use lower case in its name")
    require_programs()
    needed = _MODULES_PACKAGES_MB if chosen.modules else _PACKAGES_MB
    built_yet = (space.out / flavour / "vmlinux").exists()
    whole = needed + (0 if built_yet else build.space_for(chosen))
    disk.require(folder(space), whole, f"packages of {flavour}")
    version = source.ensure(space).package_version
    release = Release(flavour, version, number or next_number(space, flavour), commit_time(space))
    built = build.ensure(space, flavour, release)
    with (
        lock(folder(space), "the packages"),
        lock(built.out, f"the build {flavour}"),
        lock(space.out, "the assembled tree", shared=True),
        scratch(folder(space), "work-") as work,
        Bar(f"packages of {release.name}", None),
    ):
        _put_in_order(space, built, release, work)
        _write_debian(space, chosen, release, work / "source")
        return _pack(space, release, work)


def require_programs() -> None:
    """Raise unless all programs that make packages are there.

    Raises:
        HostError: some are not.
    """
    if lacking := packages.missing(packages.PACKAGING):
        names = " ".join(packages.package_names(lacking))
        raise HostError(
            f"making packages takes {names}, not installed here",
            "run `pagewright setup --packaging`, or `make deb`, which does",
        )


def _put_in_order(space: Workspace, built: Build, release: Release, work: Path) -> None:
    """Bring together what the packages will contain, each file with the release's date."""
    stage = work / "source" / "stage"
    (stage / "boot").mkdir(parents=True)
    shutil.copyfile(built.image, stage / "boot" / "vmlinuz")
    shutil.copyfile(built.out / ".config", stage / "boot" / "config")
    shutil.copyfile(built.out / "System.map", stage / "boot" / "System.map")
    installed = built.modules / "usr" / "lib" / "modules" / release.name
    shutil.copytree(installed, stage / "modules", ignore=_not_shipped)
    headers.install(space, built, stage / "headers", work)
    shutil.copytree(space.root / "tools", stage / "tools")
    run(["find", stage, "-exec", "touch", "-h", "-d", f"@{release.seconds}", "{}", "+"])


def _not_shipped(directory: str, names: list[str]) -> list[str]:
    """Name the links to the source, and the lists that depmod makes."""
    return [
        name
        for name in names
        if (Path(directory) / name).is_symlink()
        or (name.startswith("modules.") and name not in _KEPT_LISTS)
    ]


def _write_debian(space: Workspace, chosen: Recipe, release: Release, target: Path) -> None:
    """Write the folder debian/ for a release, of the templates in packaging/debian."""
    boot = target / "stage" / "boot"
    name, email = os.environ.get("DEBFULLNAME"), os.environ.get("DEBEMAIL")
    values = {
        "RELEASE": release.name,
        "FLAVOUR": release.flavour,
        "POINT": release.source.split("-")[0],
        "SOURCE": release.source,
        "NUMBER": str(release.number),
        "VERSION": release.version,
        # A line of a description begins with a space, and has at most 80 characters.
        "PURPOSE": textwrap.indent(textwrap.fill(chosen.purpose, 78), " "),
        "COMMIT": commit(space),
        "DATE": formatdate(release.seconds),
        "MAINTAINER": f"{name or _NAME} <{email or _EMAIL}>",
        "LIBC": libc_version(),
        "BOOT_KIB": str(sum(file.stat().st_size for file in boot.iterdir()) // 1024 + 1),
    }
    debian = target / "debian"
    debian.mkdir()
    for template in sorted((space.root / "packaging" / "debian").iterdir()):
        text = template.read_text()
        if template.suffix != ".in":
            shutil.copy(template, debian)
            continue
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        if left := re.search(r"@[A-Z_]+@", text):
            raise BuildError(f"{template} has {left[0]}, which has no value")
        # image.postinst.in is the template of linux-image-RELEASE.postinst, and so on.
        kind, dot, script = template.stem.partition(".")
        file = f"linux-{kind}-{release.name}.{script}" if dot else kind
        (debian / file).write_text(text)
    (debian / "release.mk").write_text(f"RELEASE := {release.name}\n")


def _pack(space: Workspace, release: Release, work: Path) -> list[Path]:
    """Run Debian's tools, and move what they made into the folder of finished packages."""
    env = {"SOURCE_DATE_EPOCH": str(release.seconds), "DEB_BUILD_OPTIONS": "nocheck"}
    # Debian's tools ask for a whole cross compiler, which has done its work already.
    command = ["dpkg-buildpackage", "--build=binary", "--host-arch=arm64"]
    command += ["--no-sign", "--no-check-builddeps"]
    run(command, cwd=work / "source", env=env, log=folder(space) / f"{release.name}.log")
    made = sorted(file for file in work.iterdir() if file.is_file())
    for file in made:
        file.rename(folder(space) / file.name)
    return [folder(space) / file.name for file in made if file.suffix == ".deb"]
