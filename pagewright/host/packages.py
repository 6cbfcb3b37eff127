"""What the host must have, installed by `pagewright setup`; doctor.py tells what is missing."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagewright.host.errors import HostError, NetworkError, PagewrightError, ProgramError
from pagewright.host.progress import Bar, say
from pagewright.host.run import foreground, run
from pagewright.host.toolchain import CLANG, LLVM
from pagewright.host.workspace import Workspace

BACKPORTS = Path("/etc/apt/sources.list.d/pagewright-backports.sources")
SOURCE = "linux-source-6.12"
# Mirrors fail now and then.
DOWNLOAD_OPTIONS = ("-o", "Acquire::Retries=3")
# A failed download is an error, and another apt at work is waited for.
APT_OPTIONS = (
    *DOWNLOAD_OPTIONS,
    *("-o", "APT::Update::Error-Mode=any", "-o", "DPkg::Lock::Timeout=600"),
)

# UEFI as a flash memory, and a second one that remembers what is set.
UEFI_CODE = "/usr/share/AAVMF/AAVMF_CODE.fd"
UEFI_VARIABLES = "/usr/share/AAVMF/AAVMF_VARS.fd"
# Of a machine with Secure Boot, which has Microsoft's keys as servers do.
UEFI_SECURE_VARIABLES = "/usr/share/AAVMF/AAVMF_VARS.ms.fd"

# How `uname -m` and Python call an arm64 computer.
ARM64 = "aarch64"

# Who may use which further user and group ids; mmdebstrap needs a range of each.
SUBORDINATE_IDS = (Path("/etc/subuid"), Path("/etc/subgid"))
ID_RANGE = 65536


@dataclass(frozen=True)
class Need:
    """Something the workbench uses, and the Debian package that has it.

    Attributes:
        package: the Debian package.
        probe: a program, or with a slash a path, that is there when it is installed.
        purpose: what it is used for.
    """

    package: str
    probe: str
    purpose: str

    def met(self) -> bool:
        """Tell whether the host has it."""
        if "/" in self.probe:
            return any(Path("/").glob(self.probe.lstrip("/")))
        return shutil.which(self.probe) is not None


# Debian's compiler for arm64 has one name everywhere: on arm64 it is the computer's own.
_NATIVE = (
    Need("gcc", "aarch64-linux-gnu-gcc", "compile the kernel"),
    Need("binutils", "aarch64-linux-gnu-objdump", "check the decoder"),
    Need("libc6-dev", "/usr/lib/aarch64-linux-gnu/libc.a", "compile guest programs"),
)
_CROSS = (
    Need("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc", "compile the kernel"),
    Need("binutils-aarch64-linux-gnu", "aarch64-linux-gnu-objdump", "check the decoder"),
    Need("libc6-dev-arm64-cross", "/usr/aarch64-linux-gnu/lib/libc.a", "compile guest programs"),
)
_EVERYWHERE = (
    Need("gcc-arm-linux-gnueabihf", "arm-linux-gnueabihf-gcc", "compile 32-bit guest programs"),
    Need("libc6-dev-armhf-cross", "/usr/arm-linux-gnueabihf/lib/libc.a", "compile guest programs"),
    Need("gcc", "gcc", "compile kernel build tools"),
    Need("libc6-dev", "/usr/include/stdio.h", "compile kernel build tools"),
    Need("make", "make", "build the kernel"),
    Need("flex", "flex", "build the kernel"),
    Need("bison", "bison", "build the kernel"),
    Need("bc", "bc", "build the kernel"),
    Need("perl", "perl", "build and check the kernel"),
    Need("rsync", "rsync", "build the kernel"),
    Need("cpio", "cpio", "build the kernel"),
    Need("kmod", "/sbin/depmod", "install modules"),
    Need("libssl-dev", "/usr/include/openssl/ssl.h", "build the kernel"),
    Need("libelf-dev", "/usr/include/libelf.h", "build the kernel"),
    Need("openssl", "openssl", "make the key of modules"),
    Need("xz-utils", "xz", "unpack the source"),
    Need("ccache", "ccache", "not to compile twice"),
    Need("patch", "patch", "apply hooks"),
    Need("quilt", "quilt", "apply hooks"),
    Need("git", "git", "make the patch series"),
    Need("sparse", "sparse", "check kernel code"),
    Need("codespell", "codespell", "check kernel code"),
    Need("spin", "spin", "check models of features"),
    Need("mmdebstrap", "mmdebstrap", "make the guest"),
    Need("fakeroot", "fakeroot", "make the guest"),
    Need("procps", "ps", "run the tests"),
    Need("e2fsprogs", "/sbin/mke2fs", "make the guest"),
    Need("qemu-system-arm", "qemu-system-aarch64", "boot the kernel"),
    Need("openssh-client", "ssh", "reach remote machines"),
)


# What only `pagewright deb` uses.
OF_PACKAGES = (
    Need("debhelper", "dh", "make packages"),
    Need("dpkg-dev", "dpkg-buildpackage", "make packages"),
)

# What only `pagewright repo` uses.
OF_REPOSITORY = (
    Need("reprepro", "reprepro", "make an apt repository"),
    Need("gnupg", "gpg-agent", "sign an apt repository"),
)

# What `pagewright setup --packaging` installs: for both, and for tests/test_install.py.
PACKAGING = (
    *OF_PACKAGES,
    *OF_REPOSITORY,
    Need("lintian", "lintian", "check packages"),
    Need("fdisk", "/sbin/sfdisk", "make the disk of a whole Debian"),
    Need("dosfstools", "/sbin/mkfs.vfat", "make the disk of a whole Debian"),
    Need("qemu-efi-aarch64", UEFI_VARIABLES, "boot a whole Debian"),
)

# What only builds use that Clang compiles.
OF_CLANG = (
    Need(CLANG, CLANG, "compile a kernel with Clang"),
    Need(f"lld-{LLVM}", f"ld.lld-{LLVM}", "compile a kernel with Clang"),
    Need(f"llvm-{LLVM}", f"llvm-objcopy-{LLVM}", "compile a kernel with Clang"),
)

# What only `pagewright test --full` needs, beside what makes packages. `pagewright test` opens a
# page where there is a browser.
FULL_TESTS = (
    *OF_CLANG,
    Need("chromium", "chromium", "open pages as a reader does"),
    Need("device-tree-compiler", "fdtput", "tell guests of another machine"),
)


# Root makes the guest as root; others do it in a user namespace.
_NOT_ROOT = (Need("uidmap", "newuidmap", "make the guest without root"),)


def needs(machine: str = "", root: bool | None = None) -> tuple[Need, ...]:
    """Return all that the workbench uses on a computer.

    Args:
        machine: its architecture, as `uname -m` has it; this computer's if empty.
        root: whether the user is root; if None, whether we are.
    """
    compilers = _NATIVE if (machine or platform.machine()) == ARM64 else _CROSS
    is_root = os.geteuid() == 0 if root is None else root
    return (*compilers, *_EVERYWHERE, *(() if is_root else _NOT_ROOT))


def missing(of: Sequence[Need] = ()) -> list[Need]:
    """Return what the host lacks of some needs; of those that all commands have, if none."""
    return [need for need in of or needs() if not need.met()]


def _lacking(also: Sequence[Need]) -> list[Need]:
    """Return what the host lacks of what all commands have, and of some other needs."""
    return [*missing(), *(missing(also) if also else ())]


def require_packaging(of: Sequence[Need], what: str) -> None:
    """Raise unless all programs are there that something around packages takes.

    Args:
        of: those that it takes, of `PACKAGING`.
        what: what they are for.

    Raises:
        HostError: some are not.
    """
    if lacking := missing(of):
        names = " ".join(package_names(lacking))
        raise HostError(
            f"{what} takes {names}, not installed here",
            "run `pagewright setup --packaging`, or `make deb` or `make repo`, which do",
        )


def package_names(lacking: Sequence[Need]) -> list[str]:
    """Return the names of packages, each once."""
    return list(dict.fromkeys(need.package for need in lacking))


def id_range_command(user: str, files: Sequence[Path] = SUBORDINATE_IDS) -> list[str]:
    """Return the command that gives a user the ids that a user namespace needs.

    Args:
        user: the user's name.
        files: subuid and subgid.

    Returns:
        The command, which needs root; empty if the user has them, as most do.
    """
    rows = [
        [row.split(":") for row in file.read_text().splitlines() if row.count(":") == 2]
        for file in files
        if file.exists()
    ]
    if len(rows) == len(files) and all(
        any(name == user and int(count) >= ID_RANGE for name, _, count in one) for one in rows
    ):
        return []
    taken = [int(first) + int(count) for one in rows for _, first, count in one]
    first = max((100000, *taken))
    ids = f"{first}-{first + ID_RANGE - 1}"
    return ["usermod", "--add-subuids", ids, "--add-subgids", ids, user]


def lacking_id_range() -> list[str]:
    """Return the command of `id_range_command` for our user.

    It is empty for root, who needs none, and for a user without a name, who can be given none.
    """
    if os.geteuid() == 0:
        return []
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return []
    return id_range_command(name)


def offered(space: Workspace, package: str) -> list[str]:
    """Return the versions of a package that apt offers, the newest first.

    Images of containers forbid apt to keep what it makes of its lists, and then each question
    takes it a second. It may keep that in our cache, and makes it anew when its lists change.

    Args:
        space: whose cache that is.
        package: the package.
    """
    index = space.cache / "apt" / "pkgcache.bin"
    index.parent.mkdir(parents=True, exist_ok=True)
    answer = run(["apt-cache", "madison", package, "-o", f"Dir::Cache::pkgcache={index}"])
    rows = [line.split("|") for line in answer.splitlines()]
    # The same version may come from two places.
    return list(dict.fromkeys(row[1].strip() for row in rows if len(row) == 3))


def qemu_version() -> str:
    """Return the version of the host's QEMU, or an empty string if there is none."""
    if not shutil.which("qemu-system-aarch64"):
        return ""
    match = re.search(r"version (\S+)", run(["qemu-system-aarch64", "--version"]))
    return match[1] if match else ""


def as_root(
    command: Sequence[str], purpose: str = "installing packages", otherwise: str = ""
) -> list[str]:
    """Return a command that runs as root; sudo asks for a password here, if it has to.

    Args:
        command: the command.
        purpose: what it is for.
        otherwise: what to do where there is no sudo; by default, to run the command as root.

    Raises:
        HostError: we are not root and there is no sudo, or it refused.
    """
    if os.geteuid() == 0:
        return list(command)
    todo = otherwise or f"as root, run: {' '.join(command)}"
    if not shutil.which("sudo"):
        raise HostError(f"{purpose} needs root", todo)
    if not _sudo_needs_no_password() and foreground(["sudo", "-v"]) != 0:
        raise HostError("sudo refused", todo)
    return ["sudo", "-n", "--preserve-env=http_proxy,https_proxy,no_proxy", *command]


def _sudo_needs_no_password() -> bool:
    """Tell whether sudo runs a command for us without asking for anything.

    `sudo -v` asks for a password unless no rule about the user wants one. In Debian's images for
    clouds there are two rules about the only user, who has no password, and the last one counts for
    commands.
    """
    try:
        run(["sudo", "-n", "true"])
    except PagewrightError:
        return False
    return True


def apt_sites(release: str) -> list[tuple[str, str]]:
    """Return where apt gets a release of Debian from: pairs of site and suite.

    Args:
        release: a code name, such as bookworm; also finds its -updates and -security.
    """
    rows = run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(SITE)|$(CODENAME)|$(ORIGIN)",
            "Created-By: Packages",
        ]
    )
    found = dict.fromkeys(
        (site, name)
        for site, name, origin in (row.split("|") for row in rows.splitlines())
        if origin.startswith("Debian") and (name == release or name.startswith(f"{release}-"))
    )
    return list(found)


def debian_release() -> str:
    """Return the host's code name.

    Raises:
        HostError: this is not Debian 12 or 13.
    """
    text = Path("/etc/os-release").read_text()
    match = re.search(r"^VERSION_CODENAME=(\w+)", text, re.MULTILINE)
    name = match[1] if match else ""
    if "ID=debian" not in text or name not in ("bookworm", "trixie"):
        raise HostError(
            "this host is not Debian 12 (bookworm) or 13 (trixie)",
            "the kernel source and the guest come from Debian's packages; use a Debian machine",
        )
    return name


def setup(space: Workspace, also: Sequence[Need] = ()) -> None:
    """Install what is missing with apt; nothing is done where nothing is missing.

    All that needs root is done here, before anything that takes long. On Debian 12, QEMU comes
    from backports if they can be reached: the suite is added beside the host's own sources,
    with its default low priority.

    Args:
        space: the repository.
        also: what else is wanted than what all commands have.

    Raises:
        HostError: not root, not Debian, no network, or still missing afterwards.
    """
    release = debian_release()
    ids = lacking_id_range()
    if ids:
        say("giving you a range of user ids, with which the guest is made without root")
        try:
            run(as_root(ids))
        except (HostError, ProgramError) as error:
            # There is no sudo, or the user is not in /etc/passwd; an administrator has to give
            # the range. A guest that is there already does without.
            say(f"that failed: {error.details or error.what}")
    lacking = _lacking(also)
    stale = not offered(space, SOURCE)
    if not lacking and not stale:
        return
    packages = package_names(lacking)
    if packages:
        say(f"installing: {' '.join(packages)}")
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", *APT_OPTIONS]
    with Bar("update the package lists", None):
        run(as_root([*apt, "update"]))
    from_backports = release == "bookworm" and "qemu-system-arm" in packages
    if from_backports:
        packages.remove("qemu-system-arm")
    install = [*apt, "install", "-y", "--no-install-recommends"]
    if packages:
        with Bar("install packages", None):
            run(as_root([*install, *packages]))
    if from_backports:
        _install_qemu_from_backports(apt, install)
    left = _lacking(also)
    if left:
        raise HostError(
            f"still missing after installation: {', '.join(package_names(left))}",
            "install them by hand; `pagewright doctor` says what each is for",
        )


def _install_qemu_from_backports(apt: list[str], install: list[str]) -> None:
    """Install QEMU from bookworm-backports, or the release's own if they do not have it."""
    try:
        if not any(suite == "bookworm-backports" for _, suite in apt_sites("bookworm")):
            main = [site for site, suite in apt_sites("bookworm") if suite == "bookworm"]
            if not main:
                raise ProgramError("apt does not get bookworm from anywhere")
            text = (
                f"Types: deb\nURIs: {main[0]}\nSuites: bookworm-backports\nComponents: main\n"
                "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
            )
            run(as_root(["tee", str(BACKPORTS)]), stdin=text)
            run(as_root([*apt, "update"]))
        run(as_root([*install, "-t", "bookworm-backports", "qemu-system-arm"]))
    # A full disk or a refused password is no lack of backports.
    except (ProgramError, NetworkError):
        say("no QEMU from backports; taking the release's own, which is slower but works")
        run(as_root(["rm", "-f", str(BACKPORTS)]))
        run(as_root([*apt, "update"]))
        run(as_root([*install, "qemu-system-arm"]))
