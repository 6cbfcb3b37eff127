"""A build -> Debian packages: the kernel, its headers, metapackages, and the tools.

kbuild compiles, here the results are put in order, and packaging/ makes packages of them. The tools
are a source package of their own: they have nothing to do with a flavour and its numbers.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from pagewright.host import disk, packages
from pagewright.host.errors import BuildError, PagewrightError
from pagewright.host.files import digest
from pagewright.host.lock import lock
from pagewright.host.progress import Bar, say
from pagewright.host.repository import is_cloned, last_commit
from pagewright.host.run import run
from pagewright.host.scratch import scratch
from pagewright.host.toolchain import libc_version
from pagewright.host.workspace import Workspace
from pagewright.kernel import build, headers, source
from pagewright.kernel.build import Build
from pagewright.kernel.recipes import Recipe, recipe
from pagewright.kernel.release import LONGEST_NAME, Release
from pagewright.kernel.tree import commit

# The configuration that `pagewright deb` takes if none is named.
DEFAULT = "cloud-arm64"
# Who made the packages, unless DEBFULLNAME and DEBEMAIL say so, as for all of Debian's tools.
_NAME, _EMAIL = "Pagewright", "pagewright@localhost.localdomain"
# What the packages take while they are made, in MB: files put in order, copied, and packed.
_PACKAGES_MB = 1000
_MODULES_PACKAGES_MB = 3000
# depmod makes the others anew where the kernel is installed.
_KEPT_LISTS = ("modules.builtin", "modules.builtin.modinfo", "modules.order")
# What the folder debian/ of a kernel's packages is made of.
_TEMPLATES = "packaging/debian"
# Beside the packages there is a folder for each flavour, with the number of the run that makes it.
_NUMBERS, _TAKEN = ".numbers", "taken"
# All that the package of the tools is made of.
_TOOLS = ("tools", "packaging/tools")
# What of it says its version: the command and its manual page.
_TELL_VERSION = ("pagewright", "pagewright.1")


@dataclass(frozen=True)
class Tools:
    """Which tools are packaged: those of the last commit that changed them.

    Attributes:
        commit: its hash; "none" where git does not know one, as in sources that were not cloned.
        seconds: when it was made, in seconds since 1970.
        changed: whether there are changes since, which are packaged, too.
    """

    commit: str = "none"
    seconds: int = 0
    changed: bool = False

    @property
    def version(self) -> str:
        """The version of the package: later commits have higher ones."""
        date = time.strftime("%Y%m%d.%H%M%S", time.gmtime(self.seconds))
        when = date if self.seconds else "0"
        return f"{when}.{self.commit}{'+changed' if self.changed else ''}"


def tools(space: Workspace) -> Tools:
    """Return which tools would be packaged.

    Builds of all flavours have the same tools until a commit changes them.
    """
    name, seconds = last_commit(space, *_TOOLS)
    if not seconds:
        return Tools()
    status = ["git", "status", "--porcelain", "--untracked-files=normal", "--", *_TOOLS]
    return Tools(name, seconds, bool(run(status, cwd=space.root).strip()))


def folder(space: Workspace) -> Path:
    """Return where finished packages are."""
    return space.out / "packages"


def next_number(place: Path) -> int:
    """Return the number that follows those of all packages of kernels that are in a folder.

    All flavours count. GRUB boots the highest version, so a server that changes to another flavour
    would go on with the old one if each flavour had numbers of its own.
    """
    names = [file.name for file in place.glob("linux-image-*.deb")]
    pattern = r"linux-image-[\d.]+-pagewright(\d+)-"
    numbers = [int(match[1]) for name in names if (match := re.match(pattern, name))]
    # One is empty after a power failure.
    texts = [file.read_text() for file in (place / _NUMBERS).glob(f"*/{_TAKEN}")]
    numbers += [int(text) for text in texts if text.isdecimal()]
    return max(numbers, default=0) + 1


@contextmanager
def _take_number(place: Path, flavour: str, number: int | None) -> Iterator[int]:
    """Keep a number, by default the next one, from other runs until its packages are there."""
    numbers = place / _NUMBERS
    taken = numbers / flavour / _TAKEN
    # Of two runs for one flavour the second waits here. Those of two flavours do not: a build may
    # take hours.
    with lock(numbers / flavour, f"the numbers of {flavour}"):
        with lock(numbers, "the numbers"):
            # A run that was killed has left it.
            taken.unlink(missing_ok=True)
            number = number or next_number(place)
            taken.write_text(str(number))
        try:
            yield number
        finally:
            with lock(numbers, "the numbers"):
                taken.unlink(missing_ok=True)


def make(
    space: Workspace,
    flavour: str,
    number: int | None = None,
    *,
    for_tests: bool = False,
    target: Path | None = None,
) -> list[Path]:
    """Build a kernel and make packages of it.

    Args:
        space: the repository.
        flavour: a build of builds.toml.
        number: which build of it this is; by default one more than the highest of all flavours.
        for_tests: take also a build that has what only tests take.
        target: where the packages go; by default to the folder of finished packages, of which
            `pagewright repo` makes what servers install.

    Returns:
        The packages, sorted.

    Raises:
        PagewrightError: there is no such build, or it is not for servers.
        HostError: a program is missing, or the disk would be full.
        BuildError: it does not compile, or no package or no kernel can be called so, or another run
            has compiled something else in its place, or the sources or packaging/debian changed
            meanwhile.
        ProgramError: git does not tell the commit of this clone.
    """
    chosen = recipe(space, flavour)
    _require_for_servers(chosen, for_tests)
    place = target or folder(space)
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]+", flavour):
        raise BuildError(f"no package can be named after {flavour}", "use lower case in its name")
    packages.require_packaging(packages.OF_PACKAGES, "making packages")
    _require_commit(space)
    needed = _MODULES_PACKAGES_MB if chosen.modules else _PACKAGES_MB
    built_yet = (space.out / flavour / "vmlinux").exists()
    whole = needed + (0 if built_yet else build.space_for(chosen))
    disk.require(place, whole, f"packages of {flavour}")
    version = source.ensure(space).package_version
    # Servers get Debian's security updates with newer releases only.
    if newer := source.newer(space, space.base().package, version):
        say(
            f"these packages are of linux {version}, which is known good, and apt has {newer}: "
            f"{source.VARIABLE}={source.NEWEST} takes that"
        )
    with _take_number(place, flavour, number) as taken:
        # Before the build, which may take an hour: what is committed meanwhile is not in it.
        release = Release(
            flavour,
            version,
            taken,
            commit(space),
            last_commit(space)[1],
        )
        _require_name(release)
        before = _templates(space)
        built = build.ensure(space, flavour, release)
        with (
            lock(place, "the packages"),
            lock(built.out, f"the build {flavour}"),
            lock(space.out, "the assembled tree", shared=True),
            scratch(place, "work-") as work,
            Bar(f"packages of {release.name}", None),
        ):
            _require_release(space, built, release)
            if _templates(space) != before:
                raise BuildError(
                    f"{_TEMPLATES} has changed while {release.name} was compiled",
                    "run the same command again",
                )
            _put_in_order(space, built, release, work)
            _write_debian(space, chosen, release, work / "source")
            _pack(work / "source", release.seconds, place / f"{release.name}.log")
            packaged = tools(space)
            _write_tools(space, packaged, work / "tools")
            _pack(work / "tools", packaged.seconds, place / "pagewright-tools.log")
            return _move(work, place)


def _require_for_servers(chosen: Recipe, for_tests: bool) -> None:
    """Raise unless packages may be made of a build, which say that it has features for servers.

    Raises:
        PagewrightError: it has no features, or is for measurements only; or it has what only tests
            take, and nobody has asked for that.
    """
    name = chosen.name
    builds = "`pagewright list` shows the builds, and docs/install.md those for servers"
    if not chosen.features:
        raise PagewrightError(f"{name} is a kernel with none of the features", builds)
    if not chosen.packaged:
        raise PagewrightError(f"{name} is for no server: {chosen.purpose}", builds)
    if (chosen.tests or chosen.debug) and not for_tests:
        raise PagewrightError(
            f"{name} is a kernel for tests, and has what makes a server slow or lets it fail",
            f"{builds}; --for-tests packages this one all the same",
        )


def _require_commit(space: Workspace) -> None:
    """Raise if git does not tell which commit this clone has, which the packages say.

    Raises:
        ProgramError: git says why, such as that the clone belongs to somebody else.
    """
    if is_cloned(space):
        run(["git", "rev-parse", "HEAD"], cwd=space.root)


def _require_name(release: Release) -> None:
    """Raise if a release has a name that `uname -r` cannot print.

    The kernel's Makefile refuses it, too, but only when a build has begun.

    Raises:
        BuildError: it is too long.
    """
    length = len(release.name)
    if length > LONGEST_NAME:
        raise BuildError(
            f"`uname -r` would print {release.name}, which has {length} characters, and Linux "
            f"takes {LONGEST_NAME}",
            "take a lower --number, if that has fewer digits, or a build with a shorter name: a "
            "feature can also be turned off by its boot parameter (docs/install.md)",
        )


def _require_release(space: Workspace, built: Build, release: Release) -> None:
    """Raise unless what is compiled in a build's folder is a release, and its sources are as then.

    The folder and the tree are locked now, but were not since the build ended, and the packages of
    other flavours may have taken minutes. `pagewright build` may have compiled a kernel without a
    number there meanwhile, or assembled the tree, which the headers come from, anew.

    Raises:
        BuildError: it is another kernel, or unfinished, or the tree is another one.
    """
    file = built.out / "include" / "config" / "kernel.release"
    found = file.read_text().strip() if file.exists() else "nothing"
    if found != release.name:
        raise BuildError(
            f"another pagewright has compiled {found} where {release.name} was",
            "when that has ended, run the same command again",
        )
    if not build.is_finished(space, built, release):
        raise BuildError(
            f"the sources of {release.name} have changed since it was compiled",
            "run the same command again",
        )


def _templates(space: Workspace) -> dict[str, bytes]:
    """Return what the packages' scripts and descriptions are made of."""
    return {file.name: file.read_bytes() for file in (space.root / _TEMPLATES).iterdir()}


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
    # It says which kernel the headers belong to, for preinst and for `sha256sum --check`.
    line = f"{digest(stage / 'boot' / 'vmlinuz')}  /usr/lib/modules/{release.name}/vmlinuz\n"
    (stage / "headers" / "kernel.sha256").write_text(line)
    _date(stage, release.seconds)


def _date(stage: Path, seconds: int) -> None:
    """Give each file of a folder the same date."""
    run(["find", stage, "-exec", "touch", "-h", "-d", f"@{seconds}", "{}", "+"])


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
    values = {
        "RELEASE": release.name,
        "FLAVOUR": release.flavour,
        "POINT": release.source.split("-")[0],
        "SOURCE": release.source,
        "NUMBER": str(release.number),
        "VERSION": release.version,
        # A line of a description begins with a space, and has at most 80 characters.
        "PURPOSE": textwrap.indent(textwrap.fill(chosen.purpose, 78), " "),
        "COMMIT": release.commit,
        "DATE": formatdate(release.seconds),
        "MAINTAINER": _maintainer(),
        "LIBC": libc_version(),
        # Two builds may have the same name and version.
        "KERNEL_DIGEST": digest(boot / "vmlinuz"),
        # dpkg knows the files that it has installed by this one.
        "KERNEL_MD5": digest(boot / "vmlinuz", "md5"),
        "BOOT_KIB": str(sum(file.stat().st_size for file in boot.iterdir()) // 1024 + 1),
    }
    debian = target / "debian"
    _fill(space.root / _TEMPLATES, debian, values)
    provided = _provided((boot / "config").read_text())
    (debian / "release.mk").write_text(f"RELEASE := {release.name}\nPROVIDED := {provided}\n")


def _provided(config: str) -> str:
    """Return what a kernel of a configuration provides to packages that ask for its modules."""
    built = re.search(r"^CONFIG_WIREGUARD=[my]$", config, re.MULTILINE)
    return "wireguard-modules (= 1.0.0)" if built else ""


def _write_tools(space: Workspace, packaged: Tools, target: Path) -> None:
    """Bring together what the package of the tools is made of.

    Nothing in it depends on the kernel that is packaged, so that a version has the same content
    whichever kernel it was made with.
    """
    values = {
        "VERSION": packaged.version,
        "COMMIT": packaged.commit,
        "DATE": formatdate(packaged.seconds),
        "MAINTAINER": _maintainer(),
    }
    stage = shutil.copytree(space.root / "tools", target / "stage")
    for name in _TELL_VERSION:
        (stage / name).write_text(_filled(stage / name, values))
    _date(stage, packaged.seconds)
    _fill(space.root / "packaging" / "tools", target / "debian", values)


def _maintainer() -> str:
    """Return who makes the packages, as Debian's tools learn it."""
    name, email = os.environ.get("DEBFULLNAME"), os.environ.get("DEBEMAIL")
    return f"{name or _NAME} <{email or _EMAIL}>"


def _fill(templates: Path, debian: Path, values: Mapping[str, str]) -> None:
    """Make a folder debian/ of templates.

    Raises:
        BuildError: a template asks for a value that is not given.
    """
    debian.mkdir()
    # The text of another-build.sh takes the place of @ANOTHER_BUILD@ in several scripts. It comes
    # first because it asks for values itself.
    shared = sorted(templates.glob("*.sh"))
    texts = {file.stem.upper().replace("-", "_"): file.read_text() for file in shared}
    values = {**texts, **values}
    for template in sorted(set(templates.iterdir()) - set(shared)):
        if template.suffix != ".in":
            shutil.copy(template, debian)
            continue
        # image.postinst.in is the template of linux-image-RELEASE.postinst, and so on.
        kind, dot, script = template.stem.partition(".")
        file = f"linux-{kind}-{values['RELEASE']}.{script}" if dot else kind
        (debian / file).write_text(_filled(template, values))


def _filled(template: Path, values: Mapping[str, str]) -> str:
    """Return the text of a template with its values.

    Raises:
        BuildError: it asks for a value that is not given.
    """
    text = template.read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    if left := re.search(r"@[A-Z_]+@", text):
        raise BuildError(f"{template} has {left[0]}, which has no value")
    return text


def _pack(source_package: Path, seconds: int, log: Path) -> None:
    """Run Debian's tools in a folder with a debian/; what they make is beside it."""
    env = {"SOURCE_DATE_EPOCH": str(seconds), "DEB_BUILD_OPTIONS": "nocheck"}
    # Debian's tools ask for a whole cross compiler, which has done its work already.
    command = ["dpkg-buildpackage", "--build=binary", "--host-arch=arm64"]
    command += ["--no-sign", "--no-check-builddeps"]
    run(command, cwd=source_package, env=env, log=log)


def _move(work: Path, place: Path) -> list[Path]:
    """Move what Debian's tools made into the folder of finished packages; return the packages."""
    made = sorted(file for file in work.iterdir() if file.is_file())
    for file in made:
        file.rename(place / file.name)
    return [place / file.name for file in made if file.suffix == ".deb"]
