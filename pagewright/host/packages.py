"""What the host must have: told by `pagewright doctor`, installed by `pagewright setup`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagewright.host.errors import HostError, PagewrightError
from pagewright.host.progress import Bar, say
from pagewright.host.run import foreground, run

BACKPORTS = Path("/etc/apt/sources.list.d/pagewright-backports.sources")
SOURCE = "linux-source-6.12"
# A failed download is an error, and another apt at work is waited for.
APT_OPTIONS = ("-o", "APT::Update::Error-Mode=any", "-o", "DPkg::Lock::Timeout=600")
# Free space, in GB, that a first `make test` needs for source, tree and builds.
NEEDED_GB = 15


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


NEEDS = (
    Need("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc", "compile the kernel"),
    Need("binutils-aarch64-linux-gnu", "aarch64-linux-gnu-objdump", "check the decoder"),
    Need("libc6-dev-arm64-cross", "/usr/aarch64-linux-gnu/lib/libc.a", "compile guest programs"),
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
    Need("xz-utils", "xz", "unpack the source"),
    Need("ccache", "ccache", "not to compile twice"),
    Need("patch", "patch", "apply hooks"),
    Need("quilt", "quilt", "apply hooks"),
    Need("git", "git", "make the patch series"),
    Need("sparse", "sparse", "check kernel code"),
    Need("codespell", "codespell", "check kernel code"),
    Need("spin", "spin", "check the model of cpu-pause"),
    Need("mmdebstrap", "mmdebstrap", "make the guest"),
    Need("fakeroot", "fakeroot", "make the guest"),
    Need("procps", "ps", "run the tests"),
    Need("e2fsprogs", "/sbin/mke2fs", "make the guest"),
    Need("qemu-system-arm", "qemu-system-aarch64", "boot the kernel"),
    Need("openssh-client", "ssh", "reach remote machines"),
)


def missing() -> list[Need]:
    """Return what the host lacks."""
    return [need for need in NEEDS if not need.met()]


def qemu_version() -> str:
    """Return the version of the host's QEMU, or an empty string if there is none."""
    if not shutil.which("qemu-system-aarch64"):
        return ""
    match = re.search(r"version (\S+)", run(["qemu-system-aarch64", "--version"]))
    return match[1] if match else ""


def as_root(command: Sequence[str]) -> list[str]:
    """Return a command that runs as root; sudo asks for a password here, if it has to.

    Raises:
        HostError: we are not root and there is no sudo, or it refused.
    """
    if os.geteuid() == 0:
        return list(command)
    if not shutil.which("sudo"):
        raise HostError("installing packages needs root", f"as root, run: {' '.join(command)}")
    if foreground(["sudo", "-v"]) != 0:
        raise HostError("sudo refused", f"as root, run: {' '.join(command)}")
    return ["sudo", "-n", "--preserve-env=http_proxy,https_proxy,no_proxy", *command]


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


def setup() -> None:
    """Install what is missing with apt; nothing is done where nothing is missing.

    On Debian 12, QEMU comes from backports if they can be reached: the suite is
    added beside the host's own sources, with its default low priority.

    Raises:
        HostError: not root, not Debian, no network, or still missing afterwards.
    """
    release = debian_release()
    needs = missing()
    stale = not run(["apt-cache", "madison", SOURCE]).strip()
    if not needs and not stale:
        return
    if needs:
        say(f"installing: {' '.join(need.package for need in needs)}")
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", *APT_OPTIONS]
    with Bar("update the package lists", None):
        run(as_root([*apt, "update"]))
    packages = [need.package for need in needs]
    from_backports = release == "bookworm" and "qemu-system-arm" in packages
    if from_backports:
        packages.remove("qemu-system-arm")
    install = [*apt, "install", "-y", "--no-install-recommends"]
    if packages:
        with Bar("install packages", None):
            run(as_root([*install, *packages]))
    if from_backports:
        _install_qemu_from_backports(apt, install)
    left = missing()
    if left:
        raise HostError(
            f"still missing after installation: {', '.join(n.package for n in left)}",
            "install them by hand; `pagewright doctor` says what each is for",
        )


def _install_qemu_from_backports(apt: list[str], install: list[str]) -> None:
    """Install QEMU from bookworm-backports, or the release's own if that fails."""
    main = [site for site, suite in apt_sites("bookworm") if suite == "bookworm"]
    try:
        if not any(suite == "bookworm-backports" for _, suite in apt_sites("bookworm")):
            text = (
                f"Types: deb\nURIs: {main[0]}\nSuites: bookworm-backports\nComponents: main\n"
                "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
            )
            run(as_root(["tee", str(BACKPORTS)]), stdin=text)
            run(as_root([*apt, "update"]))
        run(as_root([*install, "-t", "bookworm-backports", "qemu-system-arm"]))
    except (PagewrightError, IndexError):
        say("no QEMU from backports; taking the release's own, which is slower but works")
        run(as_root(["rm", "-f", str(BACKPORTS)]))
        run(as_root([*apt, "update"]))
        run(as_root([*install, "qemu-system-arm"]))


def doctor() -> list[str]:
    """Return one line for each thing that is wrong with the host; none if all is well."""
    lines = []
    try:
        debian_release()
    except PagewrightError as error:
        lines.append(error.what)
    needs = missing()
    for need in needs:
        lines.append(f"missing: {need.package} ({need.probe}), to {need.purpose}")
    if needs:
        packages = " ".join(need.package for need in needs)
        lines.append(f"install with: apt-get install --no-install-recommends {packages}")
    elif not run(["apt-cache", "madison", SOURCE]).strip():
        lines.append(f"apt does not know {SOURCE}: run `apt-get update`")
    version = qemu_version()
    if version and tuple(map(int, re.findall(r"\d+", version)[:2])) < (7, 2):
        lines.append(f"QEMU {version} is too old: 7.2 or newer is needed")
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    if free < NEEDED_GB:
        lines.append(f"{free:.0f} GB free here; a first run needs about {NEEDED_GB} GB")
    return lines
