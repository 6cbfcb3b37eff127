"""Packages: their names and numbers, what their scripts do, and errors before anything begins.

test_install.py makes them in earnest, and installs them.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import itertools
import os
import pty
import re
import shlex
import shutil
import subprocess
import textwrap
import threading
import time
from pathlib import Path

import documents
import pytest

from pagewright.host import packages, repository, workspace
from pagewright.host.errors import BuildError, DiskFullError, HostError, PagewrightError
from pagewright.host.files import digest
from pagewright.host.run import run as run_program
from pagewright.kernel import archive, build, deb, headers, recipes, signing, source
from pagewright.kernel import tree as kernel_tree
from pagewright.kernel.release import Release

SPACE = workspace.find()
RELEASE = Release("cloud-arm64", "6.12.117-1~deb12u1", 3, "0123456789ab", 1_700_000_000)
# The kernel of the build of which the fixture `debian` is, and that of another one.
OURS, ANOTHER = bytes(10 << 20), b"another"


@pytest.fixture
def space(tmp_path):
    """Return a repository whose folder for generated files is empty."""
    (tmp_path / "base").symlink_to(SPACE.root / "base")
    (tmp_path / "features").symlink_to(SPACE.root / "features")
    (tmp_path / "packaging").symlink_to(SPACE.root / "packaging")
    return dataclasses.replace(SPACE, root=tmp_path)


def test_a_release_is_named_after_its_flavour_and_number():
    assert RELEASE.name == "6.12.117-pagewright3-cloud-arm64"
    assert RELEASE.version == "6.12.117+pagewright3-1~deb12u1"
    # The kernel cuts what `uname -v` prints after 64 characters.
    version = RELEASE.environment()["KBUILD_BUILD_VERSION_TIMESTAMP"]
    assert len(f"#3 SMP PREEMPT_DYNAMIC {version}") <= 64


def version_of(source: str, number: int) -> str:
    """Return the version of the packages of a build."""
    return dataclasses.replace(RELEASE, source=source, number=number).version


@pytest.mark.parametrize("source", ["6.12.117-1", "6.12.117-1~deb12u1", "6.12.117-1+deb13u1"])
@pytest.mark.parametrize("older", ["6.12.117-1", "6.12.117-1+deb13u1", "6.12.117-2"])
def test_a_higher_number_is_a_newer_version(source, older):
    """Otherwise apt would not install it, whichever revision of Debian's source it is made of."""
    versions = [
        # Those of the first packages.
        f"{older}+pagewright9",
        *(version_of(older, 9), version_of(source, 10), version_of("6.12.118-1~deb12u1", 1)),
    ]
    for one, two in itertools.pairwise(versions):
        subprocess.run(["dpkg", "--compare-versions", one, "lt", two], check=True)


def test_a_source_without_a_revision_has_a_version():
    assert version_of("6.12.117", 3) == "6.12.117+pagewright3"


def test_the_next_number_follows_those_of_all_flavours(space):
    """GRUB boots the highest version, and so the old flavour if the new one began with 1."""
    place = deb.folder(space)
    assert deb.next_number(place) == 1
    place.mkdir(parents=True)
    for name in ("9-cloud-arm64", "10-cloud-arm64", "12-arm64"):
        (place / f"linux-image-6.12.117-pagewright{name}_6.12.117-1+x_arm64.deb").touch()
    # The name of a metapackage has no number.
    (place / "linux-image-pagewright-arm64_6.12.117+pagewright99-1_arm64.deb").touch()
    assert deb.next_number(place) == 13
    (place / "linux-image-6.12.118-pagewright13-cloud-arm64-dynamic_6.12.118-1_arm64.deb").touch()
    assert deb.next_number(place) == 14


FLAVOURS = [name for name in recipes.names(SPACE) if recipes.recipe(SPACE, name).modules]


def test_packages_have_nothing_that_only_tests_take():
    assert deb.DEFAULT in FLAVOURS
    for name in FLAVOURS:
        chosen = recipes.recipe(SPACE, name)
        symbols = build.parse_config("".join(file.read_text() for file in chosen.files(SPACE)))
        assert {f"{feature.kconfig}" for feature in SPACE.features()} <= set(symbols)
        assert not [symbol for symbol in symbols if re.search("KUNIT|TORTURE|BENCH", symbol)]
        assert symbols["MODULE_SIG_KEY"] == f'"{signing.PLACE}"'


def test_packages_have_blocks_in_vmalloc():
    """Linux maps vmalloc and ioremap with pages alone where page tables can be dumped."""
    for name in FLAVOURS:
        files = recipes.recipe(SPACE, name).files(SPACE)
        symbols = build.parse_config("".join(file.read_text() for file in files))
        assert symbols.get("PTDUMP_DEBUGFS", "n") == "n", name


@pytest.fixture(scope="module")
def kconfig_folder(tmp_path_factory):
    """Return a folder in which kbuild compiles its programs for configurations once."""
    return tmp_path_factory.mktemp("kconfig")


@pytest.mark.full
@pytest.mark.parametrize("name", FLAVOURS)
def test_a_flavour_has_what_we_ask_for_and_all_modules_of_debians(name, kconfig_folder):
    """Compiling one takes an hour, and no other test does; its configuration takes seconds."""
    chosen = recipes.recipe(SPACE, name)
    pristine = source.ensure(SPACE)
    tree = kernel_tree.assemble(SPACE, pristine)
    made = build.Build(name, kconfig_folder, tree, pristine.package_version)
    start = build._debian_config(SPACE, chosen.debian, made.source)
    build.configure(SPACE, made, chosen.files(SPACE), start, chosen.modules)
    config = build.parse_config((kconfig_folder / ".config").read_text())
    asked = build.parse_config("".join(f"{file.read_text()}\n" for file in chosen.files(SPACE)))
    assert build.unmet(asked, config) == []
    debians = build.parse_config(start).items()
    modules = {symbol: "m" for symbol, value in debians if value == "m" and symbol not in asked}
    assert len(modules) > 1000
    assert build.unmet(modules, config) == []


# --- The folder debian/ ---------------------------------------------------------------


@pytest.fixture
def debian(space, tmp_path, monkeypatch):
    """Write a debian/ and return it."""
    for variable in ("DEBFULLNAME", "DEBEMAIL"):
        monkeypatch.delenv(variable, raising=False)
    boot = tmp_path / "work" / "stage" / "boot"
    boot.mkdir(parents=True)
    (boot / "vmlinuz").write_bytes(OURS)
    (boot / "config").write_text("CONFIG_WIREGUARD=m\n")
    write_debian(space, RELEASE, tmp_path / "work")
    return tmp_path / "work" / "debian"


def write_debian(space, release, work):
    deb._write_debian(space, recipes.recipe(SPACE, "cloud-arm64"), release, work)


def fields_of(paragraph):
    """Return the fields of a paragraph of a control file, without what continues a line."""
    lines = [line for line in paragraph.splitlines() if not line.startswith(("#", " "))]
    return dict(line.split(": ", 1) for line in lines)


def test_what_a_package_is_fits_into_a_line_for_the_longest_name(debian, space, tmp_path):
    """Lintian warns of more than 79 characters, and the packages that it is tried on are others."""
    shutil.rmtree(debian)
    write_debian(space, dataclasses.replace(RELEASE, flavour=LONG, number=9), tmp_path / "work")
    paragraphs = (debian / "control").read_text().split("\n\n")[1:]
    said = [fields_of(paragraph)["Description"] for paragraph in paragraphs]
    assert len(set(said)) == len(said) == 4
    assert max(map(len, said)) <= 79


def test_control_names_all_packages_after_the_release(debian):
    names = re.findall(r"^Package: (.*)", (debian / "control").read_text(), re.MULTILINE)
    assert names == [
        f"linux-image-{RELEASE.name}",
        f"linux-headers-{RELEASE.name}",
        "linux-image-pagewright-cloud-arm64",
        "linux-headers-pagewright-cloud-arm64",
    ]
    scripts = [file for file in debian.iterdir() if re.search(r"\.(pre|post)(inst|rm)$", file.name)]
    assert len(scripts) == 8
    for script in scripts:
        assert script.stem in names
        subprocess.run(["sh", "-n", script], check=True)


def test_the_kernel_is_not_unpacked_to_boot(debian):
    """GRUB's menu would get it without an initramfs; postinst copies it there."""
    stage = debian.parent / "stage"
    for name in ("boot/config", "boot/System.map", "modules/modules.order", "headers/Makefile"):
        (stage / name).parent.mkdir(exist_ok=True)
        (stage / name).touch()
    command = ["make", "-f", "debian/rules", "override_dh_auto_install"]
    subprocess.run(command, cwd=debian.parent, check=True, capture_output=True)
    root = debian / f"linux-image-{RELEASE.name}"
    assert sorted(file.name for file in (root / "boot").iterdir()) == [
        f"System.map-{RELEASE.name}",
        f"config-{RELEASE.name}",
    ]
    modules = root / "usr/lib/modules" / RELEASE.name
    assert sorted(file.name for file in modules.iterdir()) == ["modules.order", "vmlinuz"]


@pytest.mark.parametrize(
    ("config", "provided"),
    [
        ("CONFIG_WIREGUARD=m\n", "wireguard-modules (= 1.0.0)"),
        ("# CONFIG_WIREGUARD is not set\n", ""),
    ],
)
def test_apt_needs_no_other_kernel_for_what_this_one_has(debian, config, provided):
    """As Debian's metapackages say: DKMS wants headers, and wireguard wants modules."""
    assert deb._provided(config) == provided
    _, _, _, image, headers = (debian / "control").read_text().split("\n\n")
    assert "\nProvides: ${pagewright:Provides}\n" in image
    assert "\nProvides: linux-headers-generic\n" in headers
    assert "PROVIDED := wireguard-modules (= 1.0.0)\n" in (debian / "release.mk").read_text()


def test_what_preinst_calls_is_there_before_the_package_is_unpacked(debian):
    """Of a package in Depends dpkg promises nothing to preinst (Debian's policy, 7.2)."""
    script = (debian / f"linux-image-{RELEASE.name}.preinst").read_text()
    assert "\tlinux-run-hooks " in script
    fields = fields_of((debian / "control").read_text().split("\n\n")[1])
    # That version is in Debian 12 and 13, and the first that has the program.
    assert fields["Pre-Depends"] == "linux-base (>= 4.12~)"
    assert "linux-base" not in fields["Depends"]


def test_a_metapackage_is_not_unpacked_before_its_kernel_is_installed(debian):
    """As long as a package is unpacked and lacks what it depends on, apt refuses most commands.

    With Depends apt gives both to one call of dpkg, which goes on after the kernel's preinst fails.
    """
    for paragraph in (debian / "control").read_text().split("\n\n")[3:]:
        fields = fields_of(paragraph)
        kind = fields["Package"].split("-")[1]
        assert fields["Section"] == "metapackages"
        assert fields["Pre-Depends"] == f"linux-{kind}-{RELEASE.name} (= ${{binary:Version}})"
        assert fields["Depends"] == "${misc:Depends}"


def test_a_template_with_an_unknown_value_is_refused(space, tmp_path):
    (space.root / "packaging").unlink()
    folder = space.root / "packaging" / "debian"
    folder.mkdir(parents=True)
    (folder / "control.in").write_text("@NOTHING@\n")
    (tmp_path / "work" / "stage" / "boot").mkdir(parents=True)
    with pytest.raises(BuildError, match="@NOTHING@, which has no value"):
        deb._write_debian(space, recipes.recipe(SPACE, "arm64"), RELEASE, tmp_path / "work")


# The first lines of a file of the kernel have this line.
_SPDX = re.compile(r"SPDX-License-Identifier:([\w .+()-]+)")


def identifiers(folder: Path) -> set[str]:
    """Return the licenses and exceptions that files name, as SPDX calls them now."""
    found = set()
    for file in (file for file in folder.rglob("*") if file.is_file()):
        with file.open(errors="replace") as opened:
            for match in map(_SPDX.search, itertools.islice(opened, 5)):
                found |= set(re.findall(r"[\w.+-]+", match[1]) if match else ())
    gnu = re.compile(r"(L?GPL-[\d.]+)(\+?)$")
    return {
        gnu.sub(lambda old: f"{old[1]}{'-or-later' if old[2] else '-only'}", name)
        for name in found - {"OR", "or", "AND", "WITH"}
    }


def paragraphs_of_licenses() -> dict[str, str]:
    """Return what the copyright file of the kernel's packages says of each license."""
    text = (SPACE.root / "packaging" / "debian" / "copyright").read_text()
    return dict(re.findall(r"^License: (\S+)\n((?: .*\n?)+)", text, re.MULTILINE))


def test_each_license_of_the_headers_is_in_the_copyright_file():
    tree = source.ensure(SPACE).path
    # What scripts/package/install-extmod-build copies is there.
    folders = [tree / name for name in ("include", "arch/arm64/include", "scripts")]
    named = set().union(*map(identifiers, folders))
    named |= set().union(*(identifiers(feature.path / "linux") for feature in SPACE.features()))
    assert {"GPL-2.0-only", "GPL-2.0-or-later", "MIT", "Linux-syscall-note"} <= named
    said = paragraphs_of_licenses()
    assert named - set(said) == set()
    for license, text in said.items():
        if short := re.search(r"/usr/share/common-licenses/(\S+)\.$", text.strip()):
            assert license.startswith(short[1])
            assert (Path("/usr/share/common-licenses") / short[1]).exists()
        elif "These packages have them under the latter" not in " ".join(text.split()):
            [file] = (tree / "LICENSES").glob(f"*/{license}")
            whole = file.read_text().split("License-Text:\n")[1].split()
            assert [word for word in text.split() if word != "."][-len(whole) :] == [
                word for word in whole if word != "."
            ]


# A kernel begins with so many characters, of which a signature changes some: the checksum, and
# where the certificate table is and how large. They are 88 and 168 bytes behind the place that the
# number at 60 names.
HEADER = "MZ".ljust(60, ".") + "@\0\0\0PE\0\0".ljust(240, "\0").ljust(4036, ".")
# The variables of UEFI that say whether only signed kernels are booted, and whether shim boots all.
SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
NO_VALIDATION = "MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23"


class Machine:
    """A folder in which maintainer scripts run, with stand-ins for Debian's programs."""

    def __init__(self, debian: Path, root: Path) -> None:
        """Make the folder."""
        self.debian, self.root = debian, root
        self.log = root / "log"
        for folder in ("bin", "boot", "usr/lib/modules", "usr/src"):
            (root / folder).mkdir(parents=True)
        for program in ("linux-update-symlinks", "linux-check-removal", "depmod"):
            self.program(program)
        self.program("linux-run-hooks")
        self.image = root / "boot" / f"vmlinuz-{RELEASE.name}"
        self.initramfs = root / "boot" / f"initrd.img-{RELEASE.name}"
        self.modules = root / "usr/lib/modules" / RELEASE.name
        self.headers = root / "usr/src" / f"linux-headers-{RELEASE.name}"
        # What a hook does that signs the kernel, as sbsign does: the signature is at the end.
        header = f"dd of={self.image} bs=1 conv=notrunc status=none"
        self.sign = (
            f"echo signed >>{self.image}",
            f"printf 'sum!' | {header} seek=152",
            rf"printf 'addr\1\0\0\0' | {header} seek=232",
        )
        self.free(200_000)

    def program(self, name: str, then: str = "") -> None:
        """Make a stand-in, which writes down how it was called."""
        file = self.root / "bin" / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.log}\n{then}\n')
        file.chmod(0o755)

    def free(self, kib: int) -> None:
        """Let /boot have so much space."""
        self.program("df", f"echo header; echo disk 0 0 {kib} 0% /boot")

    def hooks(self, *then: str) -> None:
        """Let the hooks of /etc/kernel be some shell commands."""
        self.program("linux-run-hooks", "\n".join(then))

    def uefi(self, **variables: int | None) -> None:
        """Have variables of UEFI, each behind four bytes of attributes; None for one without."""
        names = {"secure_boot": SECURE_BOOT, "no_validation": NO_VALIDATION}
        folder = self.root / "sys/firmware/efi/efivars"
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in variables.items():
            content = b"" if value is None else bytes([6, 0, 0, 0, value])
            (folder / names[name]).write_bytes(content)

    def dkms(self, then: str) -> None:
        """Let the hook of DKMS for a kernel that goes be a shell command."""
        hook = self.root / "etc/kernel/prerm.d/dkms"
        hook.parent.mkdir(parents=True)
        hook.write_text(f"#!/bin/sh\n{then}\n")
        hook.chmod(0o755)

    def unpack(self, kernel: str = "kernel") -> None:
        """Put the files of the package there, after preinst has run."""
        assert self.run("preinst", "install").returncode == 0
        (self.modules / "vmlinuz").write_text(HEADER + kernel)

    def have(self, *, image: bytes = b"", headers: bytes = b"") -> None:
        """Let packages be installed, of the builds whose kernels are given."""
        for folder, kernel in ((self.modules, image), (self.headers, headers)):
            shutil.rmtree(folder, ignore_errors=True)
            if kernel:
                folder.mkdir()
        if image:
            (self.modules / "vmlinuz").write_bytes(image)
        if headers:
            line = f"{hashlib.sha256(headers).hexdigest()}  {self.modules}/vmlinuz\n"
            (self.headers / "kernel.sha256").write_text(line)

    def kernel(self) -> str:
        """Return what the kernel in /boot has behind its header."""
        return self.image.read_text()[len(HEADER) :]

    def boot(self) -> list[str]:
        """Return the names of the files in /boot, where GRUB looks for kernels."""
        return sorted(file.name for file in self.image.parent.iterdir())

    def run(
        self, script: str, *arguments: str, of: str = "image"
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of the package of the kernel, or of the headers, as dpkg does."""
        text = (self.debian / f"linux-{of}-{RELEASE.name}.{script}").read_text()
        folders = ("/boot", "/usr/lib/modules", "/usr/src", "/etc/kernel", "/usr/share/kernel")
        for folder in (*folders, "/sys/firmware"):
            text = text.replace(folder, f"{self.root}{folder}")
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", "-c", text, script, *arguments],
            env={"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        """Return what was called, without arguments."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [" ".join(line.split()[:3]) for line in lines if not line.startswith("df")]


@pytest.fixture
def server(debian, tmp_path):
    return Machine(debian, tmp_path / "server")


def test_installation_makes_the_menu_before_the_links(server):
    server.unpack()
    assert server.run("postinst", "configure", "").returncode == 0
    assert server.calls() == [
        "linux-run-hooks image preinst",
        f"depmod {RELEASE.name}",
        "linux-run-hooks image postinst",
        f"linux-update-symlinks install {RELEASE.name}",
    ]
    assert server.run("postinst", "configure", "6.12.117+pagewright3-1~deb12u1").returncode == 0
    assert server.calls()[-1] == f"linux-update-symlinks upgrade {RELEASE.name}"


def test_a_full_boot_is_noticed_before_anything_is_done(server):
    (server.root / "boot" / "initrd.img-6.12.1").write_bytes(os.urandom(40 << 20))
    server.free(60_200)
    result = server.run("preinst", "install")
    assert result.returncode == 1
    assert "/boot has 58 MiB free and 60 MiB are needed" in result.stderr
    # Kernels that were installed by name are none that `apt autoremove` takes.
    todo = "Remove an old kernel (apt purge linux-image-OLD, or apt autoremove), then try again."
    assert result.stderr.endswith(f"This kernel was not installed. {todo}\n")
    assert server.calls() == []
    assert not list((server.root / "usr/lib/modules").iterdir())
    server.free(62_000)
    assert server.run("preinst", "install").returncode == 0


def test_a_full_boot_is_noticed_where_there_is_no_initramfs_to_go_by(server):
    server.free(79_000)
    result = server.run("preinst", "install")
    assert result.returncode == 1
    needed = re.search(r"(\d+) MiB are needed", result.stderr)
    assert needed
    # 64 MiB and a quarter, and the kernel.
    assert 80 <= int(needed[1]) < 100
    server.free((int(needed[1]) + 1) << 10)
    assert server.run("preinst", "install").returncode == 0


def test_an_installation_that_a_hook_ends_leaves_nothing(server):
    """Dpkg calls postrm then, of a package that it has not unpacked."""
    server.hooks("exit 1")
    assert server.run("preinst", "install").returncode == 1
    assert server.run("postrm", "abort-install").returncode == 1
    server.hooks()
    assert server.run("postrm", "abort-install").returncode == 0
    assert server.calls()[-1] == "linux-run-hooks image postrm"
    assert not server.modules.exists()
    assert server.boot() == []


def test_a_kernel_without_its_list_of_modules_gets_into_no_menu(server):
    server.unpack()
    server.program("depmod", "exit 1")
    assert server.run("postinst", "configure", "").returncode == 1
    assert server.calls()[1:] == [f"depmod {RELEASE.name}"]
    assert server.boot() == []


def test_headers_have_dkms_compile_its_modules(server):
    """They may come after their kernel, whose own hooks found none."""
    assert server.run("postinst", "configure", "", of="headers").returncode == 0
    assert server.calls() == ["linux-run-hooks headers postinst"]
    server.hooks("exit 1")
    assert server.run("postinst", "configure", "", of="headers").returncode == 1
    (server.root / "bin" / "linux-run-hooks").unlink()
    assert server.run("postinst", "configure", "", of="headers").returncode == 0


def test_headers_whose_modules_of_dkms_cannot_be_taken_stay(server):
    server.have(headers=OURS)
    server.dkms("exit 1")
    assert server.run("prerm", "remove", of="headers").returncode == 1


def test_a_hook_that_fails_leaves_the_links_alone(server):
    server.unpack()
    server.hooks("exit 1")
    result = server.run("postinst", "configure", "")
    assert result.returncode == 1
    assert "The boot menu is as it was" in result.stderr
    assert not any("symlinks" in call for call in server.calls())


def test_a_kernel_without_an_initramfs_gets_into_no_menu(server):
    """Whatever else runs update-grub meanwhile: the menu has what is in /boot."""
    server.unpack()
    assert server.boot() == []
    # The first hook is that which signs kernels.
    server.hooks(f"test -s {server.image} && echo signed >>{server.image}", "exit 1")
    assert server.run("postinst", "configure", "").returncode == 1
    assert server.boot() == []
    # The administrator has mended the cause.
    server.hooks(f"test -s {server.image} && touch {server.initramfs}")
    assert server.run("postinst", "configure", "").returncode == 0
    assert server.boot() == [server.initramfs.name, server.image.name]
    assert server.kernel() == "kernel"


def test_a_kernel_that_may_be_in_a_menu_stays_if_a_hook_fails(server):
    """An entry of a kernel that is not there is worse than one of a kernel that boots."""
    server.unpack()
    server.hooks(f"touch {server.initramfs}", "exit 1")
    assert server.run("postinst", "configure", "").returncode == 1
    assert server.image.exists()
    # One that needs no initramfs is installed, and then reinstalled.
    server.initramfs.unlink()
    server.hooks()
    assert server.run("postinst", "configure", "").returncode == 0
    server.hooks("exit 1")
    assert server.run("postinst", "configure", RELEASE.version).returncode == 1
    assert server.image.exists()


def test_a_signed_kernel_stays_when_its_package_is_reinstalled(server):
    """If a hook fails, an unsigned one in its place would be the default that firmware refuses."""
    server.unpack("kernel ")
    server.hooks(*server.sign, f"touch {server.initramfs}")
    assert server.run("postinst", "configure", "").returncode == 0
    before = server.boot()
    # The hook that signs fails, or the power does, which ends the script at once.
    for then in ("exit 1", "kill -9 $PPID"):
        server.hooks(then)
        result = server.run("postinst", "configure", RELEASE.version)
        assert result.returncode != 0
        assert server.kernel() == "kernel signed\n"
        assert server.boot() == before
    server.hooks()
    assert server.run("postinst", "configure", RELEASE.version).returncode == 0
    assert server.kernel() == "kernel signed\n"
    assert server.boot() == before


@pytest.mark.parametrize("at", [0, 62, 64, 151, 156, 231, 240, 4095])
def test_a_kernel_whose_start_is_damaged_is_mended_by_its_package(server, at):
    """A signature changes twelve bytes of the first 4 KiB, and no others."""
    server.unpack()
    server.hooks(*server.sign, f"touch {server.initramfs}")
    assert server.run("postinst", "configure", "").returncode == 0
    damaged = bytearray(server.image.read_bytes())
    damaged[at] ^= 1
    server.image.write_bytes(damaged)
    server.hooks()
    assert server.run("postinst", "configure", RELEASE.version).returncode == 0
    assert server.image.read_text() == HEADER + "kernel"


def test_a_kernel_whose_start_is_lost_is_mended_by_its_package(server):
    """As a file system does that has lost a block."""
    server.unpack()
    assert server.run("postinst", "configure", "").returncode == 0
    for start in (bytes(4096), b"\377" * 4096):
        server.image.write_bytes(start + b"kernel")
        assert server.run("postinst", "configure", RELEASE.version).returncode == 0
        assert server.image.read_text() == HEADER + "kernel"


def install_unsigned(server):
    """Install a kernel with hooks that make an initramfs, and no signature."""
    server.unpack()
    # They do it as that of initramfs-tools and that of GRUB: as dpkg removes, or configures.
    menu = f"ls {server.image.parent} | grep vmlinuz >{server.root}/menu"
    server.hooks(
        f'case "$2.$6" in postinst.configure) touch {server.initramfs} ;;',
        f"postrm.remove) rm {server.initramfs} ;; *) exit 0 ;; esac",
        f"{menu} || true",
    )
    return server.run("postinst", "configure", "")


def test_a_kernel_that_nothing_has_signed_is_not_the_default_with_secure_boot(server):
    """GRUB would wait at the console of a server that is far away."""
    server.uefi(secure_boot=1)
    result = install_unsigned(server)
    assert result.returncode == 1
    assert "Secure Boot is on, and no hook of /etc/kernel has signed" in result.stderr.replace(
        str(server.root), ""
    )
    assert "The boot menu is as it was." in result.stderr
    assert server.boot() == []
    assert (server.root / "menu").read_text() == ""
    assert not any("symlinks" in call for call in server.calls())
    # The command that is printed signs it, and then it is installed as it is.
    [command] = re.findall(r"^sbsign (.*)$", result.stderr, re.MULTILINE)
    signed, unsigned = command.split()[-2:]
    assert command == f"--key KEY --cert CERTIFICATE --output {signed} {unsigned}"
    shutil.copy(unsigned, signed)
    subprocess.run(["sh", "-c", "\n".join(server.sign)], check=True)
    assert server.run("postinst", "configure", "").returncode == 0
    assert server.kernel() == "kernelsigned\n"
    assert (server.root / "menu").read_text().split() == [server.image.name]
    assert server.calls()[-1] == f"linux-update-symlinks install {RELEASE.name}"


def test_a_menu_that_still_names_an_unsigned_kernel_is_named(server):
    server.uefi(secure_boot=1)
    server.unpack()
    server.hooks('[ "$2" = postinst ]')
    result = server.run("postinst", "configure", "")
    assert result.returncode == 1
    assert "the boot menu may name it: run update-grub." in result.stderr
    assert server.boot() == []


def test_an_unsigned_kernel_is_not_the_default_after_another_hook_has_failed(server):
    """The hook that fails may be that which signs, where it comes after the initramfs."""
    server.uefi(secure_boot=1)
    server.unpack()
    server.hooks(f'[ "$2" = postinst ] || exit 0; touch {server.initramfs}; exit 1')
    result = server.run("postinst", "configure", "")
    assert result.returncode == 1
    assert server.image.name not in server.boot()
    assert "linux-run-hooks image postrm" in server.calls()
    said = " ".join(result.stderr.replace(str(server.root), "").split())
    assert "a hook of /etc/kernel failed; see above." in said
    assert "Secure Boot is on, and the kernel is not signed." in said
    assert "The kernel is in /boot no more. The boot menu is as it was." in said
    # The one that signs may not have been reached, and is there.
    assert "no hook of /etc/kernel has signed" not in said
    # The cause is mended.
    server.hooks(f"touch {server.initramfs}", *server.sign)
    assert server.run("postinst", "configure", "").returncode == 0
    assert server.kernel() == "kernelsigned\n"


def test_a_kernel_that_a_hook_has_signed_stays_if_another_fails(server):
    server.uefi(secure_boot=1)
    server.unpack()
    server.hooks(f"touch {server.initramfs}", *server.sign, "exit 1")
    result = server.run("postinst", "configure", "")
    assert result.returncode == 1
    assert "Secure Boot" not in result.stderr
    assert "the boot menu may name it." in result.stderr
    assert server.kernel() == "kernelsigned\n"


def test_who_signs_kernels_later_is_told_of_a_hook_that_fails(server):
    server.uefi(secure_boot=1)
    meant = server.root / "etc/kernel/pagewright-unsigned"
    meant.parent.mkdir(parents=True)
    meant.touch()
    server.unpack()
    server.hooks(f"touch {server.initramfs}", "exit 1")
    result = server.run("postinst", "configure", "")
    assert result.returncode == 1
    assert "is not signed. Sign it before the next boot." in result.stderr
    assert "failed; see above." in result.stderr
    assert "the boot menu may name it." in result.stderr
    assert server.image.exists()


@pytest.mark.parametrize("gone", [False, True], ids=["kept", "gone"])
def test_an_installed_kernel_without_a_signature_stays_if_a_hook_fails(server, gone):
    """The message names both reasons not to reboot."""
    assert install_unsigned(server).returncode == 0
    server.uefi(secure_boot=1)
    server.hooks(f"rm {server.initramfs}" if gone else "", "exit 1")
    result = server.run("postinst", "configure", RELEASE.version)
    assert result.returncode == 1
    assert "failed; see above. Secure Boot is on, and the kernel is not signed." in result.stderr
    assert "the boot menu may name it, so do not reboot now." in result.stderr
    assert ("It has no initramfs." in result.stderr) == gone
    assert server.image.exists()


def test_a_kernel_that_a_hook_signs_is_installed_with_secure_boot(server):
    server.uefi(secure_boot=1)
    server.unpack()
    server.hooks(*server.sign)
    result = server.run("postinst", "configure", "")
    assert (result.returncode, result.stderr) == (0, "")


def test_who_signs_kernels_later_can_say_so(server):
    server.uefi(secure_boot=1)
    meant = server.root / "etc/kernel/pagewright-unsigned"
    meant.parent.mkdir(parents=True)
    meant.touch()
    result = install_unsigned(server)
    assert result.returncode == 0
    assert "is not signed. Sign it before the next boot." in result.stderr
    assert server.boot() == [server.initramfs.name, server.image.name]


def test_an_unsigned_kernel_that_may_be_in_a_menu_stays(server):
    """Secure Boot was off when it was installed, or its signature is lost."""
    assert install_unsigned(server).returncode == 0
    server.uefi(secure_boot=1)
    result = server.run("postinst", "configure", RELEASE.version)
    assert result.returncode == 1
    assert "the boot menu may name it, so do not reboot now." in result.stderr
    assert server.boot() == [server.initramfs.name, server.image.name]


@pytest.mark.parametrize(
    "variables",
    [
        {"secure_boot": 0},
        # Whoever has used `mokutil --disable-validation` boots unsigned kernels.
        {"secure_boot": 1, "no_validation": 1},
        {},
        {"secure_boot": None},
    ],
)
def test_a_kernel_is_not_signed_where_nothing_asks_for_it(server, variables):
    if variables:
        server.uefi(**variables)
    result = install_unsigned(server)
    assert (result.returncode, result.stderr) == (0, "")
    assert server.boot() == [server.initramfs.name, server.image.name]


def test_a_variable_that_cannot_be_read_says_nothing(server):
    """As in a container. Root can read all files, and nobody a folder."""
    (server.root / "sys/firmware/efi/efivars" / SECURE_BOOT).mkdir(parents=True)
    assert install_unsigned(server).returncode == 0


def test_an_initramfs_that_is_gone_is_named(server):
    """Dracut deletes the old one if /boot has no space for the new one."""
    server.unpack()
    server.hooks(f"touch {server.initramfs}")
    assert server.run("postinst", "configure", "").returncode == 0
    for hooks, gone in ((["exit 1"], False), ([f"rm {server.initramfs}", "exit 1"], True)):
        server.hooks(*hooks)
        said = server.run("postinst", "configure", RELEASE.version).stderr
        assert "the boot menu may name it." in said
        assert ("It has no initramfs, so do not reboot now." in said) == gone


@pytest.mark.parametrize("then", ["exit 1", "kill -9 $PPID"])
def test_there_is_a_kernel_in_boot_whatever_happens(server, then):
    """The boot menu names it, and GRUB waits for ever if the default is not there."""
    server.unpack()
    server.hooks(f"touch {server.initramfs}")
    assert server.run("postinst", "configure", "").returncode == 0
    server.image.write_text(HEADER + "damaged")
    # /boot has become read-only, or the power fails, as the new one is put there.
    server.program("mv", f'[ "$2" != {server.image} ] || {{ {then}; exit 1; }}\nexec /bin/mv "$@"')
    result = server.run("postinst", "configure", RELEASE.version)
    assert result.returncode != 0
    if then == "exit 1":
        assert "cannot be copied to /boot" in result.stderr.replace(str(server.root), "")
    assert server.kernel() == "damaged"
    (server.root / "bin" / "mv").unlink()
    assert server.run("postinst", "configure", RELEASE.version).returncode == 0
    assert server.kernel() == "kernel"
    assert server.boot() == [server.initramfs.name, server.image.name]


@pytest.mark.parametrize("package", ["image", "headers"])
@pytest.mark.parametrize(
    ("action", "installed", "named"),
    [
        (["upgrade", RELEASE.version], {"image": ANOTHER}, ["image"]),
        (["upgrade", "6.12.117+pagewright3-1"], {"image": ANOTHER}, ["image"]),
        (["install"], {"image": ANOTHER}, ["image"]),
        (["install"], {"headers": ANOTHER}, ["headers"]),
        # Its modules of DKMS may be there, also without the kernel.
        (["upgrade", RELEASE.version], {"headers": ANOTHER}, ["headers"]),
        (["upgrade", RELEASE.version], {"image": OURS, "headers": ANOTHER}, ["headers"]),
        (["upgrade", ""], {"image": ANOTHER, "headers": ANOTHER}, ["image", "headers"]),
    ],
)
def test_another_build_of_the_same_name_is_refused(server, package, action, installed, named):
    """What makes an initramfs meanwhile takes modules of the one to the kernel of the other.

    DKMS would compile against the headers of the one for the kernel of the other. Builds of two
    commits, or with two keys of modules, have the same version, too.
    """
    server.have(**installed)
    result = server.run("preinst", *action, RELEASE.version, of=package)
    assert result.returncode == 1
    others = " ".join(f"linux-{kind}-{RELEASE.name}" for kind in named)
    assert f"another build of the same name is installed: {others}." in result.stderr
    assert result.stderr.startswith(f"linux-{package}-{RELEASE.name}: ")
    assert "This one was not installed. Make it with a higher number" in result.stderr
    assert f"(apt purge {others})" in result.stderr
    assert server.calls() == []
    assert not (server.modules / ".new").exists()


def test_what_is_installed_stays_as_it_is_when_another_build_is_refused(server):
    server.have(image=ANOTHER, headers=ANOTHER)
    for package, scripts in (("image", ("postrm", "postinst")), ("headers", ("postinst",))):
        assert server.run("preinst", "upgrade", RELEASE.version, of=package).returncode == 1
        # dpkg goes back then.
        for script in scripts:
            result = server.run(script, "abort-upgrade", RELEASE.version, of=package)
            assert result.returncode == 0
        # It calls the old package's preinst, too, if that fails.
        assert server.run("preinst", "abort-upgrade", of="headers").returncode == 0
    assert server.calls() == []
    assert (server.modules / "vmlinuz").read_bytes() == ANOTHER


@pytest.mark.parametrize("package", ["image", "headers"])
@pytest.mark.parametrize("action", ["install", "upgrade"])
@pytest.mark.parametrize(
    "installed",
    [
        {"image": OURS, "headers": OURS},
        {"image": OURS},
        {"headers": OURS},
        # Whoever has lost a file reinstalls the package.
        {},
    ],
)
def test_the_same_build_is_installed(server, package, action, installed):
    server.have(**installed)
    result = server.run("preinst", action, RELEASE.version, RELEASE.version, of=package)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("package", ["image", "headers"])
@pytest.mark.parametrize(("known", "refused"), [(OURS, False), (ANOTHER, True)])
def test_a_damaged_kernel_is_mended_by_its_own_package(server, package, known, refused):
    """What dpkg knows of a file tells damage from another build."""
    server.have(image=b"damaged")
    lines = f"{hashlib.md5(known).hexdigest()}  usr/lib/modules/{RELEASE.name}/vmlinuz"
    asked = f'[ "$*" = "--control-show linux-image-{RELEASE.name} md5sums" ]'
    server.program("dpkg-query", f"{asked} && echo '{lines}'")
    result = server.run("preinst", "upgrade", RELEASE.version, RELEASE.version, of=package)
    assert (result.returncode, "another build" in result.stderr) == (int(refused), refused)


def test_headers_say_which_kernel_they_belong_to(compiled, space, tmp_path):
    built = compiled(space, "cloud-arm64", RELEASE.name)
    deb._put_in_order(space, built, RELEASE, tmp_path / "work")
    stage = tmp_path / "work" / "source" / "stage"
    line = (stage / "headers" / "kernel.sha256").read_text()
    # What `sha256sum --check` takes on a server.
    assert line == f"{digest(stage / 'boot/vmlinuz')}  /usr/lib/modules/{RELEASE.name}/vmlinuz\n"


def test_a_kernel_that_boot_has_no_space_for_is_not_half_there(server):
    server.unpack()
    server.program("cp", 'echo half >"$2"; exit 1')
    result = server.run("postinst", "configure", "")
    assert result.returncode == 1
    assert "cannot be copied to /boot" in result.stderr.replace(str(server.root), "")
    assert "The boot menu is as it was" in result.stderr
    assert server.boot() == []
    assert "linux-run-hooks image postinst" not in server.calls()


def test_a_kernel_that_boot_has_lost_comes_back(server):
    """As when the power failed after dpkg had noted that the package is unpacked."""
    server.unpack()
    server.image.touch()
    assert server.run("postinst", "configure", "").returncode == 0
    assert server.kernel() == "kernel"


def test_headers_without_a_kernel_take_the_modules_of_dkms_along(server):
    """The next build of the same name would be given them, and they do not fit it."""
    server.have(headers=OURS)
    module = server.modules / "updates/dkms/hello.ko"
    module.parent.mkdir(parents=True)
    module.touch()
    server.dkms(f'[ "$*" = {RELEASE.name} ] && rm -r {server.modules}/updates')
    for name in ("modules.dep", "modules.dep.bin"):
        (server.modules / name).touch()
    # An upgrade is none of its business.
    assert server.run("prerm", "upgrade", RELEASE.version, of="headers").returncode == 0
    assert server.run("postrm", "upgrade", RELEASE.version, of="headers").returncode == 0
    assert module.exists()
    assert server.run("prerm", "remove", of="headers").returncode == 0
    assert server.run("postrm", "remove", of="headers").returncode == 0
    assert not server.modules.exists()
    assert server.run("postrm", "purge", of="headers").returncode == 0


def test_headers_leave_the_modules_of_a_kernel_that_stays(server):
    server.have(image=OURS, headers=OURS)
    server.dkms(f"rm -r {server.modules}")
    (server.modules / "modules.dep").touch()
    for script in ("prerm", "postrm"):
        assert server.run(script, "remove", of="headers").returncode == 0
    assert sorted(file.name for file in server.modules.iterdir()) == ["modules.dep", "vmlinuz"]


def test_removal_leaves_nothing(server):
    server.unpack()
    server.hooks(f"ls {server.image.parent} >{server.root}/menu")
    assert server.run("postinst", "configure", "").returncode == 0
    assert (server.root / "menu").read_text().split() == [server.image.name]
    before = len(server.calls())
    # What depmod of Debian 13 makes.
    lists = "alias alias.bin builtin.alias.bin builtin.bin dep dep.bin devname softdep symbols"
    for name in (*lists.split(), "symbols.bin", "weakdep"):
        (server.modules / f"modules.{name}").touch()
    # Of an installation that lost power.
    (server.image.parent / f".{server.image.name}").touch()
    assert server.run("prerm", "remove").returncode == 0
    (server.modules / "vmlinuz").unlink()
    assert server.run("postrm", "remove").returncode == 0
    assert not server.modules.exists()
    assert server.boot() == []
    assert (server.root / "menu").read_text() == ""
    assert server.calls()[before:] == [
        f"linux-check-removal {RELEASE.name}",
        "linux-run-hooks image prerm",
        f"linux-update-symlinks remove {RELEASE.name}",
        "linux-run-hooks image postrm",
    ]


def test_a_removal_without_linux_base_ends(server):
    """Debian's policy, 7.2: what a package depends on may be gone when postrm runs."""
    server.unpack()
    assert server.run("postinst", "configure", "").returncode == 0
    for program in ("linux-update-symlinks", "linux-run-hooks"):
        (server.root / "bin" / program).unlink()
    (server.modules / "vmlinuz").unlink()
    result = server.run("postrm", "remove")
    assert (result.returncode, result.stderr) == (0, "")
    assert server.boot() == []
    assert not server.modules.exists()
    assert server.run("postrm", "purge").returncode == 0


def test_an_upgrade_is_no_removal_to_hooks(server):
    """Those of DKMS and systemd-boot take away what is there of the kernel, whatever dpkg does."""
    version = "6.12.117+pagewright3-1~deb12u1"
    upgrade = [("prerm", "upgrade"), ("preinst", "upgrade"), ("postrm", "upgrade")]
    # What dpkg calls when the new version cannot be unpacked, or another package is in the way.
    failure = [("postrm", "abort-upgrade"), ("preinst", "abort-upgrade")]
    failure += [("postinst", "abort-upgrade"), ("prerm", "deconfigure")]
    for script, action in (*upgrade, *failure):
        assert server.run(script, action, version).returncode == 0
    assert server.calls() == []
    assert server.run("postrm", "purge").returncode == 0
    assert server.calls() == ["linux-run-hooks image postrm"]


@pytest.mark.parametrize("why", ["another build", "no space"])
def test_a_kernel_that_is_there_stays_if_a_package_refuses_to_replace_it(server, why):
    """To dpkg it is not installed, as when it was copied there, and so it asks for no upgrade."""
    server.have(image=ANOTHER if why == "another build" else OURS)
    (server.modules / "modules.dep").touch()
    server.image.write_text("kernel")
    if why == "no space":
        server.free(10)
    assert server.run("preinst", "install").returncode == 1
    result = server.run("postrm", "abort-install")
    assert (result.returncode, result.stderr) == (0, "")
    assert server.boot() == [server.image.name]
    assert sorted(file.name for file in server.modules.iterdir()) == ["modules.dep", "vmlinuz"]
    assert server.calls() == []


def test_the_running_kernel_is_not_removed_if_the_administrator_says_no(server):
    server.program("linux-check-removal", "exit 1")
    assert server.run("prerm", "remove").returncode == 1
    assert server.calls() == [f"linux-check-removal {RELEASE.name}"]


class Signer:
    """A folder of hooks with the documented one that signs kernels, and a stand-in for sbsign."""

    name = "00-pagewright-sign"

    def __init__(self, root: Path) -> None:
        """Make the folder."""
        page = (SPACE.root / "docs" / "install.md").read_text()
        start = f"\n    server# cat >/etc/kernel/postinst.d/{self.name} <<'END'\n"
        self.hook = textwrap.dedent(page.split(start)[1].split("    END\n")[0])
        self.root, self.hooks, self.boot = root, root / "hooks", root / "boot"
        for folder in (self.hooks, self.boot, root / "bin"):
            folder.mkdir()
        self.write(self.hooks / self.name, self.hook)
        self.write(self.hooks / "zz-update-grub", f"#!/bin/sh\nls {self.boot} >{root}/menu\n")

    @staticmethod
    def write(file: Path, text: str) -> None:
        """Make a program."""
        file.write_text(text)
        file.chmod(0o755)

    def install(self, release: str, sbsign: str, kernel: str = "kernel\n") -> tuple[bool, Path]:
        """Do what the package of a kernel does; return whether the hooks passed, and the kernel."""
        self.write(self.root / "bin" / "sbsign", f"#!/bin/sh\n{sbsign}\n")
        # What it is given: --cert CERT IMAGE.
        verify = '[ "$1$2" = --cert/root/mok.crt ] && grep -q signed "$3"'
        self.write(self.root / "bin" / "sbverify", f"#!/bin/sh\n{verify}\n")
        image = self.boot / f"vmlinuz-{release}"
        image.write_text(kernel)
        # As linux-run-hooks calls it.
        words = ["run-parts", "--exit-on-error", f"--arg={release}", f"--arg={image}", self.hooks]
        env = {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(words, env=env, capture_output=True, check=False)
        return done.returncode == 0, image


# What it is given: --key KEY --cert CERT --output FILE IMAGE.
_SIGN = '[ "$1$3$5" = --key--cert--output ] && (cat "$7"; echo signed) >"$6"'


def test_a_kernel_is_signed_before_it_gets_into_the_menu(tmp_path):
    signer = Signer(tmp_path)
    passed, image = signer.install(RELEASE.name, _SIGN)
    assert passed
    assert image.read_text() == "kernel\nsigned\n"
    assert (tmp_path / "menu").read_text().split() == [image.name]
    assert [file.name for file in signer.boot.iterdir()] == [image.name]


def test_a_kernel_that_cannot_be_signed_gets_into_no_menu(tmp_path):
    signer = Signer(tmp_path)
    passed, image = signer.install(RELEASE.name, 'echo half >"$6"; exit 1')
    assert not passed
    assert image.read_text() == "kernel\n"
    assert not (tmp_path / "menu").exists()
    # What is half done would be a kernel to GRUB if it had such a name, and stays in no case.
    assert [file.name for file in signer.boot.iterdir()] == [image.name]


def test_a_kernel_that_is_signed_is_not_signed_again(tmp_path):
    """A reinstallation of its package keeps it."""
    passed, image = Signer(tmp_path).install(RELEASE.name, _SIGN, "kernel\nsigned\n")
    assert passed
    assert image.read_text() == "kernel\nsigned\n"
    assert (tmp_path / "menu").read_text().split() == [image.name]


def test_a_kernel_of_debian_is_not_signed_again(tmp_path):
    passed, image = Signer(tmp_path).install("6.12.117-cloud-arm64", "exit 1")
    assert passed
    assert image.read_text() == "kernel\n"
    assert (tmp_path / "menu").exists()


# --- A build, compiled and then packed ------------------------------------------------


@pytest.fixture
def compiled(monkeypatch):
    """Let builds come to an end without a compiler; return what writes the results of one."""

    def compile_as(space: workspace.Workspace, flavour: str, name: str) -> build.Build:
        built = build.Build(flavour, space.out / flavour, space.root, RELEASE.source)
        modules = built.modules / "usr/lib/modules" / name
        contents = {
            built.image: "kernel",
            built.out / ".config": "CONFIG_MODULES=y\n",
            built.out / "System.map": "",
            built.out / "include/config/kernel.release": f"{name}\n",
            modules / "modules.order": "kernel/hello.ko\n",
            modules / "kernel/hello.ko": "module",
        }
        for file, content in contents.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return built

    def ensure(space, flavour, release):
        return compile_as(space, flavour, release.name)

    def install_headers(space, built, target, work):
        (target / "include").mkdir(parents=True)
        (target / "include" / "hello.h").touch()

    monkeypatch.setattr(packages, "require_packaging", lambda *_: None)
    monkeypatch.setattr(deb.disk, "free", lambda _: 100_000)
    source = dataclasses.make_dataclass("Source", ["package_version"])(RELEASE.source)
    monkeypatch.setattr(deb.source, "ensure", lambda _: source)
    monkeypatch.setattr(deb.source, "newer", lambda *_: "")
    monkeypatch.setattr(deb.build, "ensure", ensure)
    monkeypatch.setattr(deb.build, "is_finished", lambda *_: True)
    monkeypatch.setattr(deb.headers, "install", install_headers)
    return compile_as


def test_a_kernel_that_was_compiled_again_meanwhile_is_not_packed(compiled, space, monkeypatch):
    def ensure(space, flavour, release):
        compiled(space, flavour, release.name)
        # While other packages are made, somebody runs `pagewright build`.
        return compiled(space, flavour, "6.12.117")

    monkeypatch.setattr(deb.build, "ensure", ensure)
    monkeypatch.setattr(deb, "_put_in_order", lambda *_: pytest.fail("it was packed"))
    with pytest.raises(
        BuildError, match=f"has compiled 6.12.117 where {RELEASE.name} was"
    ) as error:
        deb.make(space, "cloud-arm64", RELEASE.number)
    assert "run the same command again" in error.value.todo


def test_a_kernel_whose_sources_have_changed_meanwhile_is_not_packed(compiled, space, monkeypatch):
    """Its headers would be others than those it was compiled with."""
    monkeypatch.setattr(deb.build, "is_finished", lambda *_: False)
    monkeypatch.setattr(deb, "_put_in_order", lambda *_: pytest.fail("it was packed"))
    with pytest.raises(BuildError, match=f"sources of {RELEASE.name} have changed"):
        deb.make(space, "cloud-arm64", RELEASE.number)


def test_packages_say_the_commit_at_which_the_build_began(compiled, space, monkeypatch):
    now = ["a" * 12]
    ensure = deb.build.ensure

    def commit_meanwhile(*arguments):
        now[0] = "b" * 12
        return ensure(*arguments)

    monkeypatch.setattr(deb, "commit", lambda _: now[0])
    monkeypatch.setattr(deb.build, "ensure", commit_meanwhile)
    for name in ("_pack", "_write_tools"):
        monkeypatch.setattr(deb, name, lambda *_: None)
    written = "source/debian/changelog"
    monkeypatch.setattr(deb, "_move", lambda work, _: (work / written).read_text())
    assert "a" * 12 in deb.make(space, "cloud-arm64", RELEASE.number)


def test_packages_of_scripts_that_have_changed_meanwhile_are_not_made(compiled, git, space):
    """The commit that they name has other ones."""
    ensure = deb.build.ensure
    script = space.root / "packaging" / "debian" / "image.postinst.in"

    def edit_meanwhile(*arguments):
        script.write_text(f"{script.read_text()}\n# edited\n")
        return ensure(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deb.build, "ensure", edit_meanwhile)
        patch.setattr(deb, "_put_in_order", lambda *_: pytest.fail("it was packed"))
        with pytest.raises(BuildError, match="packaging/debian has changed") as error:
            deb.make(space, "cloud-arm64", RELEASE.number)
    assert "run the same command again" in error.value.todo


def test_a_new_file_of_the_packages_makes_them_another_commit(git, space):
    named = git(0, "rev-parse", "--short=12", "HEAD")
    assert repository.commit(space) == named
    for folder, suffix in (("docs", ""), ("packaging/debian", "+")):
        (space.root / folder).mkdir(exist_ok=True)
        (space.root / folder / "image.triggers.in").touch()
        assert repository.commit(space) == f"{named}{suffix}"


def test_a_clone_whose_commit_git_does_not_tell_makes_no_packages(compiled, space):
    (space.root / ".git").write_text("gitdir: /nonexistent\n")
    with pytest.raises(PagewrightError, match="git rev-parse HEAD failed"):
        deb.make(space, "cloud-arm64", RELEASE.number)


@pytest.mark.parametrize("newer", ["6.12.118-1~deb12u1", ""])
def test_a_newer_release_is_named_in_one_line(compiled, space, monkeypatch, capsys, newer):
    """Otherwise whoever makes packages of what is known good never hears of security updates."""
    monkeypatch.setattr(deb.source, "newer", lambda *_: newer)
    for name in ("_put_in_order", "_write_debian", "_write_tools", "_pack"):
        monkeypatch.setattr(deb, name, lambda *_: None)
    deb.make(space, "cloud-arm64", 1)
    said = [line for line in capsys.readouterr().err.splitlines() if "known good" in line]
    assert said == [
        f"these packages are of linux {RELEASE.source}, which is known good, and apt has {newer}: "
        "PAGEWRIGHT_KERNEL=newest takes that"
        for _ in range(bool(newer))
    ]


def test_the_page_takes_security_updates_with_the_newest_release():
    """On that page Debian's own kernel is kept from them."""
    page = (SPACE.root / "docs" / "install.md").read_text()
    section = page.split("\n## Keep it the default\n")[1].split("\n## ")[0]
    assert "apt-mark hold" in section
    assert f"\n    {source.VARIABLE}={source.NEWEST} make deb\n" in section


@pytest.fixture
def numbers(compiled, space, monkeypatch):
    """Let packages be made of builds that take no time; return the numbers that were given out."""
    given: list[int] = []

    def put_in_order(space, built, release, work):
        package = f"linux-image-{release.name}_{release.version}_arm64.deb"
        (deb.folder(space) / package).touch()

    monkeypatch.setattr(deb, "_put_in_order", put_in_order)
    for name in ("_write_debian", "_write_tools", "_pack", "_move"):
        monkeypatch.setattr(deb, name, lambda *_: [], raising=False)

    def ensure(space, flavour, release):
        given.append(release.number)
        return compiled(space, flavour, release.name)

    monkeypatch.setattr(deb.build, "ensure", ensure)
    return given


@pytest.mark.parametrize("other", ["cloud-arm64", "arm64"])
def test_two_runs_at_once_have_two_numbers(numbers, space, monkeypatch, other):
    """Of one flavour the second waits for the first. Those of two do not, which may take hours."""
    begun, second = threading.Event(), threading.Event()
    ensure = deb.build.ensure

    def ensure_at_once(space, flavour, release):
        if begun.is_set():
            second.set()
        begun.set()
        assert second.wait(60)
        return ensure(space, flavour, release)

    # The second says so when it waits for the first.
    monkeypatch.setattr("pagewright.host.lock.say", lambda _: second.set())
    monkeypatch.setattr(deb.build, "ensure", ensure_at_once)
    flavours = ("cloud-arm64", other)
    threads = [threading.Thread(target=deb.make, args=(space, flavour)) for flavour in flavours]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == [1, 2]


def test_a_number_that_led_to_no_packages_is_given_out_again(numbers, space, monkeypatch):
    ensure = deb.build.ensure

    def fail(space, flavour, release):
        ensure(space, flavour, release)
        raise BuildError("it does not compile", "mend it")

    with monkeypatch.context() as patch:
        patch.setattr(deb.build, "ensure", fail)
        for flavour in ("arm64", "cloud-arm64"):
            with pytest.raises(BuildError, match="it does not compile"):
                deb.make(space, flavour)
    deb.make(space, "arm64")
    # A run that was killed has left its own, and the power failed in another one.
    for flavour, left in (("arm64", "9"), ("arm64-16k", "")):
        file = deb.folder(space) / ".numbers" / flavour / "taken"
        file.parent.mkdir(exist_ok=True)
        file.write_text(left)
    deb.make(space, "arm64")
    assert numbers == [1, 1, 1, 2]


def test_packages_of_tests_leave_those_of_the_administrator_alone(compiled, space, monkeypatch):
    """They have the same numbers, and `make repo` would publish them."""

    def pack(source_package, seconds, log):
        log.write_text("log")
        name = {"source": "linux-image-1", "tools": "pagewright-tools"}[source_package.name]
        (source_package.parent / f"{name}.deb").write_text("made by a test")

    monkeypatch.setattr(deb, "_pack", pack)
    for name in ("_put_in_order", "_write_debian", "_write_tools"):
        monkeypatch.setattr(deb, name, lambda *_: None)
    place, own = deb.folder(space), space.root / "install-packages"
    place.mkdir(parents=True)
    ninth = RELEASE.name.replace("pagewright3", "pagewright9")
    for name in ("linux-image-1", "pagewright-tools", f"linux-image-{ninth}_1_arm64"):
        (place / f"{name}.deb").write_text("the administrator's")
    before = sorted((file, file.read_text()) for file in place.iterdir())
    made = deb.make(space, "cloud-arm64", target=own)
    # Nor do the numbers go on from theirs.
    assert (own / f"{RELEASE.name.replace('pagewright3', 'pagewright1')}.log").exists()
    assert made == [own / "linux-image-1.deb", own / "pagewright-tools.deb"]
    assert {file.read_text() for file in made} == {"made by a test"}
    assert sorted((file, file.read_text()) for file in place.iterdir()) == before
    assert deb.make(space, "cloud-arm64", 1) == [place / file.name for file in made]


def test_the_tests_of_an_installation_make_packages_in_a_folder_of_their_own():
    """They run on the computer of whoever makes packages for servers, in the same clone."""
    text = (SPACE.root / "tests" / "test_install.py").read_text()
    calls = [
        (ast.unparse(call.args[0]), {k.arg: ast.unparse(k.value) for k in call.keywords})
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "deb.make"
    ]
    assert [keywords["target"] for space, keywords in calls if space == "SPACE"] == ["PACKAGES"] * 2
    assert "deb.folder(SPACE)" not in text
    assert 'PACKAGES = SPACE.out / "packages"' not in text


@pytest.fixture
def installer(tmp_path, monkeypatch):
    """Stand in for kbuild, which installs modules; return the build and how often that was done."""
    installed: list[str] = []
    built = build.Build("cloud-arm64", tmp_path / "out", tmp_path, RELEASE.source)

    def install(command, env):
        name = (built.out / "include/config/kernel.release").read_text().strip()
        (built.modules / "usr/lib/modules" / name).mkdir(parents=True, exist_ok=True)
        installed.append(name)

    monkeypatch.setattr(build, "run", install)
    (built.out / "include/config").mkdir(parents=True)
    (built.out / "certs").mkdir()
    return built, installed


def test_modules_of_other_numbers_are_removed(installer):
    built, installed = installer
    for number, name in enumerate(("6.12.117-pagewright1-arm64", "6.12.117-pagewright2-arm64")):
        file = built.out / "include/config/kernel.release"
        file.write_text(f"{name}\n")
        os.utime(file, (number, number))
        build._install_modules(built, {})
        build._install_modules(built, {})
        assert installed[number:] == [name]
        assert [folder.name for folder in (built.modules / "usr/lib/modules").iterdir()] == [name]


def test_modules_are_signed_again_with_another_key(installer):
    built, installed = installer
    (built.out / "include/config/kernel.release").write_text("6.12.117\n")
    for key in ("one", "one", "two"):
        (built.out / signing.PLACE).write_text(key)
        build._install_modules(built, {})
    assert len(installed) == 2


# --- The package of the tools ---------------------------------------------------------


@pytest.fixture
def git(space):
    """Make the repository one of git; return what runs git there, at a time in seconds."""
    (space.root / "packaging").unlink()
    for folder in ("tools", "packaging"):
        shutil.copytree(SPACE.root / folder, space.root / folder)

    def run(seconds: int, *command: str) -> str:
        date = f"@{seconds} +0200"
        env = {}
        for role in ("AUTHOR", "COMMITTER"):
            values = {"NAME": "me", "EMAIL": "me@pagewright.test", "DATE": date}
            env |= {f"GIT_{role}_{key}": value for key, value in values.items()}
        return run_program(["git", *command], cwd=space.root, env=env).strip()

    run(0, "init", "--quiet")
    run(0, "add", "tools", "packaging")
    run(RELEASE.seconds, "commit", "--quiet", "--message=tools")
    return run


def test_the_version_of_the_tools_is_that_of_their_last_commit(git, space):
    first = deb.tools(space)
    assert first.version == f"20231114.221320.{git(0, 'rev-parse', '--short=12', 'HEAD')}"
    # What changes no tools changes nothing, whatever the kernel's number is.
    git(RELEASE.seconds + 10, "commit", "--quiet", "--allow-empty", "--message=kernel")
    assert deb.tools(space) == first
    # All of the folder is packaged, also what git has not been told of.
    (space.root / "tools" / "new").write_text("new\n")
    assert deb.tools(space).version == f"{first.version}+changed"
    (space.root / "tools" / "new").unlink()
    (space.root / "tools" / "pagewright").write_text("new\n")
    changed = deb.tools(space)
    assert changed.version == f"{first.version}+changed"
    git(RELEASE.seconds + 20, "commit", "--quiet", "--all", "--message=new tools")
    second = deb.tools(space)
    assert second.version.startswith("20231114.221340.")
    # The first versions of the tools were those of kernels.
    before = ("0.none", "6.12.117-1~deb12u1+pagewright9")
    versions = (*before, first.version, changed.version, second.version)
    for older, newer in itertools.pairwise(versions):
        subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)


def test_tools_that_were_not_cloned_have_the_lowest_version(space):
    assert deb.tools(space).version == "0.none"


def test_the_tool_and_its_page_tell_the_version_of_the_package(tmp_path):
    packaged = deb.Tools("0123456789ab", RELEASE.seconds)
    deb._write_tools(SPACE, packaged, tmp_path / "tools")
    stage = tmp_path / "tools" / "stage"

    def said(program: Path) -> str:
        done = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
        return done.stdout

    assert said(stage / "pagewright") == f"pagewright {packaged.version}\n"
    assert f'"pagewright-tools {packaged.version}"' in (stage / "pagewright.1").read_text()
    assert (stage / "pagewright").stat().st_mtime == packaged.seconds
    assert said(SPACE.root / "tools" / "pagewright") == "pagewright of a clone, in no package\n"


def test_metrics_go_with_the_tools(tmp_path):
    """No package has them in its list, and the node exporter would report them for ever."""
    deb._write_tools(SPACE, deb.Tools(), tmp_path / "tools")
    script = (tmp_path / "tools" / "debian" / "pagewright-tools.postrm").read_text()
    service = (SPACE.root / "tools" / "pagewright-export.service").read_text()
    [target] = re.findall(r"^ExecStart=/usr/bin/pagewright export (\S+)$", service, re.MULTILINE)
    written = Path(f"{tmp_path}{target}")
    other = written.with_name("apt.prom")
    written.parent.mkdir(parents=True)

    def run_script(action: str) -> None:
        text = script.replace("/var/lib/", f"{tmp_path}/var/lib/")
        subprocess.run(["sh", "-c", text, "postrm", action], check=True)

    for action, goes in (("upgrade", False), ("remove", True), ("purge", True)):
        written.touch()
        other.touch()
        run_script(action)
        assert (written.exists(), other.exists()) == (not goes, True), action
    # Where a link leads, which the exporter's user can make, nothing is ours.
    written.touch()
    folder, moved = written.parent, tmp_path / "moved"
    folder.rename(moved)
    folder.symlink_to(moved)
    run_script("remove")
    assert written.exists()
    folder.unlink()
    moved.rename(folder)
    # It was removed before it is purged, and the node exporter perhaps with its folder.
    written.unlink()
    other.unlink()
    written.parent.rmdir()
    run_script("purge")
    assert "#DEBHELPER#" in script


@pytest.mark.skipif(not shutil.which("systemd-tmpfiles"), reason="there is no systemd-tmpfiles")
def test_no_metrics_are_left_of_the_boot_before(tmp_path):
    """Another kernel may be the one that runs now, and the timer be off."""
    rules = (SPACE.root / "packaging" / "tools" / "rules").read_text()
    name = "pagewright-export.tmpfiles"
    assert re.search(
        rf"stage/{name} .*/usr/lib/tmpfiles\.d/pagewright-tools\.conf\n", rules, re.DOTALL
    )
    folder = tmp_path / "var/lib/prometheus/node-exporter"
    folder.mkdir(parents=True)
    ours, other = {"pagewright.prom", ".pagewright.prom.12"}, {"apt.prom"}
    for file in ours | other:
        (folder / file).touch()
    configuration = tmp_path / "etc/tmpfiles.d/pagewright-tools.conf"
    configuration.parent.mkdir(parents=True)
    shutil.copy(SPACE.root / "tools" / name, configuration)
    words = ["systemd-tmpfiles", f"--root={tmp_path}", "--remove", configuration.name]
    for at_boot, left in (([], ours | other), (["--boot"], other)):
        subprocess.run([*words, *at_boot], check=True)
        assert {file.name for file in folder.iterdir()} == left


def test_who_stops_the_timer_is_told_to_remove_its_metrics():
    """They would stand still, and say that features are on."""
    # What the timer has started may write its file again, and prerm of the package stops it, too.
    stop = "stop pagewright-export.service"
    prerm = (SPACE.root / "packaging" / "tools" / "pagewright-tools.prerm").read_text()
    assert f"deb-systemd-invoke {stop} " in prerm
    commands = "systemctl disable --now pagewright-export.timer", f"systemctl {stop}"
    removed = "rm /var/lib/prometheus/node-exporter/pagewright.prom"
    for name in ("README.md", "pagewright.1"):
        lines = (SPACE.root / "tools" / name).read_text().replace("\\-", "-").splitlines()
        typed = [line.strip() for line in lines]
        first = typed.index(commands[0])
        assert typed[first : first + 3] == [*commands, removed], name


@pytest.mark.skipif(not shutil.which("dh_installsystemd"), reason="there is no debhelper")
def test_a_timer_that_was_enabled_goes_on_after_an_upgrade(tmp_path):
    folder = tmp_path / "tools"
    deb._write_tools(SPACE, deb.Tools(), folder)
    for command in ("make -f debian/rules override_dh_installsystemd", "dh_installdeb"):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    made = folder / "debian" / "pagewright-tools"
    units = sorted(file.name for file in made.glob("**/pagewright-export.*"))
    assert units == ["pagewright-export.service", "pagewright-export.timer"]
    scripts = {file.name: file.read_text() for file in (made / "DEBIAN").iterdir()}
    assert "stop" not in scripts.get("preinst", "")
    # It starts only what an administrator has enabled.
    assert "deb-systemd-invoke $_dh_action 'pagewright-export.timer'" in scripts["postinst"]
    assert "if deb-systemd-helper --quiet was-enabled" in scripts["postinst"]
    assert "deb-systemd-invoke stop 'pagewright-export.timer'" in scripts["prerm"]
    # Ours is among what debhelper adds.
    assert "pagewright.prom" in scripts["postrm"]
    assert "#DEBHELPER#" not in scripts["postrm"]


def listed(package: Path) -> dict[str, str]:
    """Return the files of a package but those in /usr/share/doc, each with its mode and owner."""
    found = {}
    for line in run_program(["dpkg-deb", "--contents", package]).splitlines():
        mode, owner, _, _, _, name = line.split(maxsplit=5)
        assert owner == "root/root", line
        if not name.endswith("/") and not name.startswith("./usr/share/doc/"):
            # debhelper of Debian 13 puts units below /usr.
            found[re.sub(r"^\.(/usr(?=/lib/systemd/))?", "", name)] = mode
    return found


@pytest.mark.full
def test_packages_of_a_kernel_that_is_none(git, compiled, space, tmp_path):
    """Everything but the compiler's work is in earnest, and each file is in its package."""
    first = deb.make(space, "cloud-arm64", 4)
    contents = {file.name: digest(file) for file in first}
    assert len(contents) == 5
    usual, private, program, link = "-rw-r--r--", "-rw-------", "-rwxr-xr-x", "lrwxrwxrwx"
    release = "6.12.117-pagewright4-cloud-arm64"
    modules, source_of = f"/usr/lib/modules/{release}", f"src/linux-headers-{release}"
    units = "/lib/systemd/system/pagewright-export"
    assert {file.name.split("_")[0]: listed(file) for file in first} == {
        f"linux-image-{release}": {
            f"/boot/config-{release}": usual,
            f"/boot/System.map-{release}": private,
            # postinst copies it to /boot.
            f"{modules}/vmlinuz": usual,
            f"{modules}/modules.order": usual,
            f"{modules}/kernel/hello.ko": usual,
            f"/usr/share/lintian/overrides/linux-image-{release}": usual,
        },
        f"linux-headers-{release}": {
            f"/usr/{source_of}/include/hello.h": usual,
            f"/usr/{source_of}/kernel.sha256": usual,
            f"{modules}/build -> ../../../{source_of}": link,
        },
        "linux-image-pagewright-cloud-arm64": {},
        "linux-headers-pagewright-cloud-arm64": {},
        "pagewright-tools": {
            "/usr/bin/pagewright": program,
            "/usr/share/man/man1/pagewright.1.gz": usual,
            "/usr/share/bash-completion/completions/pagewright": usual,
            "/usr/lib/tmpfiles.d/pagewright-tools.conf": usual,
            **dict.fromkeys((f"{units}.service", f"{units}.timer"), usual),
        },
    }
    # In another folder the packages are the same, and with another kernel the tools are.
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(space.root, elsewhere, True, shutil.ignore_patterns("out", elsewhere.name))
    again = deb.make(dataclasses.replace(space, root=elsewhere), "cloud-arm64", 4)
    assert {file.name: digest(file) for file in again} == contents
    git(RELEASE.seconds + 10, "commit", "--quiet", "--allow-empty", "--message=kernel")
    second = deb.make(space, "arm64", 3)
    tools = deb.folder(space) / f"pagewright-tools_{deb.tools(space).version}_all.deb"
    assert [file for file in second if file in first] == [tools]
    assert digest(tools) == contents[tools.name]


# --- Headers --------------------------------------------------------------------------


def test_headers_have_nothing_that_names_the_folder_where_they_were_made(tmp_path):
    generated = ["genksyms/parse.tab.c", "genksyms/parse.tab.h", "genksyms/lex.lex.c"]
    generated += ["mod/devicetable-offsets.s", "mod/.gitignore"]
    kept = ["genksyms/genksyms", "genksyms/parse.y", "mod/devicetable-offsets.h"]
    for name in (*generated, *kept):
        file = tmp_path / "scripts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    headers._remove_left_over(tmp_path)
    left = [file.relative_to(tmp_path / "scripts") for file in tmp_path.rglob("*.*")]
    assert {str(file) for file in left} == {name for name in kept if "." in name}
    assert (tmp_path / "scripts" / "genksyms" / "genksyms").exists()


def test_headers_have_files_where_the_tree_has_links_to_features(tmp_path):
    for place in ("feature", "tree/include", "copy/include"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "feature" / "new.h").write_text("new\n")
    for place in ("tree", "copy"):
        folder = tmp_path / place / "include"
        (folder / "old.h").write_text("old\n")
        (folder / "same.h").symlink_to("old.h")
    (tmp_path / "tree" / "include" / "new.h").symlink_to("../../feature/new.h")
    # What tar copies is broken where it is unpacked.
    (tmp_path / "copy" / "include" / "new.h").symlink_to("../../../feature/new.h")
    headers._resolve_links(tmp_path / "copy", tmp_path / "tree")
    copied = tmp_path / "copy" / "include"
    assert not (copied / "new.h").is_symlink()
    assert (copied / "new.h").read_text() == "new\n"
    assert str((copied / "same.h").readlink()) == "old.h"


# --- Errors ---------------------------------------------------------------------------


@pytest.fixture
def never_built(monkeypatch):
    def fail(*_):
        raise AssertionError("a build was begun")

    monkeypatch.setattr(deb.build, "ensure", fail)


def test_an_unknown_build_is_an_error(space, never_built):
    with pytest.raises(PagewrightError, match="there is no build 'cloud-arm65'"):
        deb.make(space, "cloud-arm65")


NOT_THERE = packages.Need("no-such-package", "no-such-program", "test")


def test_missing_programs_are_named_before_the_build(space, never_built, monkeypatch):
    monkeypatch.setattr(packages, "OF_PACKAGES", (NOT_THERE,))
    with pytest.raises(HostError, match="making packages takes no-such-package,") as error:
        deb.make(space, "cloud-arm64")
    assert "setup --packaging" in error.value.todo


def test_programs_of_other_work_are_not_asked_for(space, never_built, monkeypatch):
    """Who makes packages need not be able to sign a repository, nor to boot a whole Debian."""
    asked = []
    monkeypatch.setattr(packages, "missing", lambda of: asked.append(of) or [])
    monkeypatch.setattr(deb.disk, "free", lambda _: 100)
    with pytest.raises(DiskFullError):
        deb.make(space, "cloud-arm64")
    with pytest.raises(PagewrightError, match="no packages yet"):
        archive.make(space, "me")
    names = [{need.package for need in needs} for needs in asked]
    assert names == [{"debhelper", "dpkg-dev"}, {"reprepro", "gnupg"}]
    tried = {need.package for need in packages.PACKAGING} - set.union(*names)
    assert tried == {"lintian", "fdisk", "dosfstools", "qemu-efi-aarch64"}


def test_missing_programs_of_a_repository_are_named(space, monkeypatch):
    monkeypatch.setattr(packages, "OF_REPOSITORY", (NOT_THERE,))
    with pytest.raises(HostError, match="making an apt repository takes no-such-package,"):
        archive.make(space, "me")


@pytest.mark.parametrize(
    ("flavour", "why"),
    [
        ("base-4k", "with none of the features"),
        ("bare-4k-kasan-without-percpu-local", "with none of the features"),
        ("naive-4k", "for no server: HVO that breaks the rules"),
        ("debug-4k", "a kernel for tests"),
        ("patched-4k", "a kernel for tests"),
    ],
)
def test_packages_are_made_of_kernels_for_servers(compiled, space, never_built, flavour, why):
    """All say that they are for servers, with the features."""
    asks = why == "a kernel for tests"
    with pytest.raises(PagewrightError, match=why) as error:
        deb.make(space, flavour)
    assert ("--for-tests" in error.value.todo) == asks
    then = (AssertionError, "a build was begun") if asks else (PagewrightError, why)
    with pytest.raises(then[0], match=then[1]):
        deb.make(space, flavour, for_tests=True)


def test_a_full_disk_is_noticed_before_the_build(space, never_built, monkeypatch):
    monkeypatch.setattr(packages, "require_packaging", lambda *_: None)
    monkeypatch.setattr(deb.disk, "free", lambda _: 100)
    with pytest.raises(DiskFullError, match="packages of cloud-arm64 needs 8000 MB"):
        deb.make(space, "cloud-arm64")
    assert not deb.folder(space).exists()


LONG = "cloud-arm64-dynamic-without-hugetlb-vmemmap"


@pytest.mark.parametrize(
    ("flavour", "number", "length"),
    [(LONG, 10, 65), ("cloud-arm64-dynamic-without-atomic-write-fault", 1, 67)],
)
def test_a_name_too_long_for_uname_is_refused_before_the_build(
    compiled, space, never_built, flavour, number, length
):
    """The kernel's Makefile refuses it as well, but its explanation was not shown."""
    with pytest.raises(BuildError, match=f"has {length} characters, and Linux takes 64") as error:
        deb.make(space, flavour, number)
    assert f"6.12.117-pagewright{number}-{flavour}," in str(error.value)
    assert "a lower --number" in error.value.todo
    assert "a build with a shorter name" in error.value.todo


def test_the_longest_name_that_uname_has_is_built(compiled, space, never_built):
    with pytest.raises(AssertionError, match="a build was begun"):
        deb.make(space, LONG, 9)


def test_a_repository_takes_packages_and_a_key(space, monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "require_packaging", lambda *_: None)
    with pytest.raises(PagewrightError, match="no packages yet"):
        archive.make(space, "me")
    (deb.folder(space) / "one_1_all.deb").touch()
    monkeypatch.setattr(archive, "run", lambda *_, **__: "gpg: error reading key\n")
    with pytest.raises(HostError, match="no secret key for 'me'"):
        archive.make(space, "me")
    assert not (space.out / "repository").exists()


# --- The key of modules ---------------------------------------------------------------


def test_the_key_of_modules_is_made_once(tmp_path, monkeypatch):
    monkeypatch.delenv(signing.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".config").write_text(f'CONFIG_MODULE_SIG_KEY="{signing.PLACE}"\n')
        signing.place(tmp_path / name)
    one, two = (tmp_path / name / signing.PLACE for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_mode & 0o777 == 0o600
    assert signing.key().stat().st_mode & 0o777 == 0o600
    text = one.read_text()
    assert "PRIVATE KEY" in text
    assert "BEGIN CERTIFICATE" in text
    before = one.stat().st_mtime_ns, one.lstat().st_mtime_ns
    signing.place(tmp_path / "one")
    assert (one.stat().st_mtime_ns, one.lstat().st_mtime_ns) == before


def test_no_build_keeps_a_copy_of_the_key(tmp_path, monkeypatch):
    """Nobody takes what is below out/ for a secret; earlier versions had a copy there."""
    monkeypatch.delenv(signing.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    build = tmp_path / "build"
    (build / "certs").mkdir(parents=True)
    (build / ".config").write_text(f'CONFIG_MODULE_SIG_KEY="{signing.PLACE}"\n')
    (build / signing.PLACE).write_bytes(signing.key().read_bytes())
    signing.place(build)
    assert (build / signing.PLACE).readlink() == signing.key()
    # Another one is wanted, whose name is not that of the file that it is in.
    (tmp_path / "other.pem").write_text("other")
    (tmp_path / "link.pem").symlink_to("other.pem")
    monkeypatch.setenv(signing.VARIABLE, str(tmp_path / "link.pem"))
    signing.place(build)
    assert (build / signing.PLACE).read_text() == "other"


def test_the_certificate_of_another_key_does_not_stay(tmp_path, monkeypatch):
    """A certificate that is newer than a key is up to date to kbuild."""
    certificate = tmp_path / "certs" / "signing_key.x509"
    key = tmp_path / "key.pem"
    monkeypatch.setenv(signing.VARIABLE, str(key))
    (tmp_path / ".config").write_text(f'CONFIG_MODULE_SIG_KEY="{signing.PLACE}"\n')
    for text in ("one", "two"):
        key.write_text(text)
        os.utime(key, (10**9, 10**9))
        signing.place(tmp_path)
        assert not certificate.exists()
        certificate.write_text(f"of {text}")
        signing.place(tmp_path)
        assert certificate.read_text() == f"of {text}"
    # Another file, of another name.
    monkeypatch.setenv(signing.VARIABLE, str(tmp_path / "older.pem"))
    (tmp_path / "older.pem").write_text("three")
    os.utime(tmp_path / "older.pem", (10**9, 10**9))
    signing.place(tmp_path)
    assert not certificate.exists()


def test_the_certificate_is_where_kbuild_makes_it():
    makefile = (source.ensure(SPACE).path / "certs" / "Makefile").read_text()
    name = signing.CERTIFICATE.replace("certs/", "$(obj)/")
    assert f"\n{name}: $(filter-out $(PKCS11_URI),$(CONFIG_MODULE_SIG_KEY)) " in makefile


def test_a_build_that_signs_nothing_gets_no_key(tmp_path, monkeypatch):
    monkeypatch.setattr(signing, "key", lambda: pytest.fail("a key was asked for"))
    (tmp_path / ".config").write_text("# CONFIG_MODULE_SIG is not set\n")
    signing.place(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [".config"]


def test_a_key_that_is_not_there_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv(signing.VARIABLE, str(tmp_path / "none.pem"))
    with pytest.raises(HostError, match="which is not there"):
        signing.key()


# --- A repository in earnest ----------------------------------------------------------

METAPACKAGE = "linux-image-pagewright-cloud-arm64"
GPG = ["gpg", "--batch", "--quiet", "--pinentry-mode=loopback", "--passphrase="]


@pytest.fixture
def key(tmp_path_factory, monkeypatch):
    """Make a key in a keyring of its own, and return the address of its owner."""
    # gpg's agent has a socket there, whose name may have 108 characters.
    home = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    subprocess.run([*GPG, "--quick-generate-key", "me@pagewright.test", "ed25519"], check=True)
    yield "me@pagewright.test"
    subprocess.run(["gpgconf", "--kill", "gpg-agent"], check=True)


def make_key(name: str, *expires: str) -> str:
    """Make another key in the keyring; return its fingerprint."""
    subprocess.run([*GPG, "--quick-generate-key", name, "ed25519", *expires], check=True)
    words = ["gpg", "--batch", "--with-colons", "--list-secret-keys", name]
    listing = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return re.findall(r"^fpr:+(\w+):", listing, re.MULTILINE)[-1]


def test_a_key_that_has_expired_is_refused(key):
    expires = make_key("two@pagewright.test", "default", "2y")
    never = make_key("never@pagewright.test", "default", "never")
    assert archive._fingerprint("two@pagewright.test") == expires
    # From here on gpg takes it to be some years later.
    later = time.strftime("%Y%m%dT000000!", time.gmtime(time.time() + 3 * 366 * 86400))
    (Path(os.environ["GNUPGHOME"]) / "gpg.conf").write_text(f"faked-system-time {later}\n")
    with pytest.raises(HostError, match=f"{expires} for 'two@pagewright.test' is exp") as error:
        archive._fingerprint("two@pagewright.test")
    assert f"`gpg --quick-set-expire {expires} 0`" in error.value.todo
    assert archive._fingerprint("never@pagewright.test") == never
    # That is the remedy.
    subprocess.run([*GPG, "--quick-set-expire", expires, "0"], check=True)
    assert archive._fingerprint("two@pagewright.test") == expires


def test_a_new_key_of_the_same_name_stands_in_for_one_that_has_expired(key):
    old = make_key("My kernels", "default", "2y")
    later = time.strftime("%Y%m%dT000000!", time.gmtime(time.time() + 3 * 366 * 86400))
    (Path(os.environ["GNUPGHOME"]) / "gpg.conf").write_text(f"faked-system-time {later}\n")
    words = [*GPG, "--yes", "--quick-generate-key", "My kernels", "ed25519", "default", "never"]
    subprocess.run(words, check=True)
    assert archive._fingerprint("My kernels") != old


def test_a_key_that_was_revoked_is_refused(key):
    revoked = make_key("lost@pagewright.test", "default", "never")
    certificate = Path(os.environ["GNUPGHOME"]) / "openpgp-revocs.d" / f"{revoked}.rev"
    # gpg puts a colon there so that nobody imports it by mistake.
    text = certificate.read_text().replace(":-----BEGIN", "-----BEGIN")
    subprocess.run([*GPG, "--import"], input=text, text=True, check=True)
    with pytest.raises(HostError, match=f"{revoked} for 'lost@pagewright.test' is revoked"):
        archive._fingerprint("lost@pagewright.test")


@pytest.mark.parametrize(("expires", "warned"), [("20d", True), ("40d", False), ("never", False)])
def test_a_key_that_expires_soon_is_named(key, capsys, expires, warned):
    fingerprint = make_key("soon@pagewright.test", "default", expires)
    assert archive._fingerprint("soon@pagewright.test") == fingerprint
    said = capsys.readouterr().err
    assert (f"the key {fingerprint} expires on 20" in said) == warned
    assert (f"`gpg --quick-set-expire {fingerprint} 0`" in said) == warned


def test_the_page_says_what_trying_a_kernel_once_does_not_cover():
    """With `panic=10` only a kernel that panics makes room for the old one."""
    section = " ".join(documents.section("install.md", "Try it once").split())
    assert "One that hangs, or that comes up without its network, waits until someone" in section
    assert "Do not do this where nobody can" in section


def test_the_key_of_the_page_never_expires(key):
    section = documents.section("install.md", "A repository for several servers")
    command = documents.scripts(section)[0].splitlines()[0]
    program, *words = shlex.split(command)
    assert program == "gpg"
    subprocess.run([*GPG, *words], check=True)
    [found] = archive._secret_keys("My kernels")
    assert (found.fault, found.expires) == ("", None)


def unattended_pattern() -> dict[str, str]:
    """Return which packages unattended-upgrades takes, as the page has it say."""
    section = documents.section("install.md", "A repository for several servers")
    [pattern] = re.findall(r'^ +Unattended-Upgrade::Origins-Pattern:: "(.*)";$', section, re.M)
    # The other place that names it.
    span = f'`Unattended-Upgrade::Origins-Pattern:: "{pattern}";`'
    assert span in documents.section("install.md", "Keep it the default")
    return dict(part.split("=") for part in pattern.split(","))


def test_unattended_upgrades_take_what_the_repository_has(space, key, reprepro):
    """By default they take what comes from Debian, and the kernel would get no fixes."""
    target = archive.make(space, key)
    lines = (target / "conf" / "distributions").read_text().splitlines()
    fields = {name.lower(): value for name, value in (line.split(": ") for line in lines)}
    assert unattended_pattern().items() <= fields.items()
    # Without one of them it would take packages of others, or of all releases.
    assert unattended_pattern().keys() == {"origin", "codename"}


def test_apt_understands_what_the_page_has_unattended_upgrades_take(tmp_path):
    section = documents.section("install.md", "A repository for several servers")
    [written] = [text for text in documents.scripts(section, server=True) if "Unattended" in text]
    [folder] = re.findall(r"^cat >(/etc/apt/apt\.conf\.d)/\w+ ", written)
    (tmp_path / "50unattended-upgrades").write_text(
        'Unattended-Upgrade::Origins-Pattern { "origin=Debian"; };\n'
    )
    subprocess.run(["sh", "-e", "-c", written.replace(folder, str(tmp_path))], check=True)
    (tmp_path / "apt.conf").write_text(f'Dir "{tmp_path}/none"; Dir::Etc::parts "{tmp_path}";\n')
    shown = subprocess.run(
        ["apt-config", "dump", "Unattended-Upgrade::Origins-Pattern"],
        env={**os.environ, "APT_CONFIG": str(tmp_path / "apt.conf")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    ours = ",".join(f"{name}={value}" for name, value in unattended_pattern().items())
    patterns = re.findall(r'^Unattended-Upgrade::Origins-Pattern:: "(.*)";$', shown, re.M)
    assert patterns == ["origin=Debian", ours]
    # Who goes back to Debian's kernel takes it back.
    [name] = (file.name for file in tmp_path.glob("*pagewright*"))
    assert f"{folder}/{name}" in documents.section("install.md", "Go back")


@pytest.fixture
def reprepro(space, tmp_path, monkeypatch):
    """Stand in for reprepro, which signs; return the file with the terminal that gpg is told of."""
    monkeypatch.setattr(packages, "require_packaging", lambda *_: None)
    deb.folder(space).mkdir(parents=True)
    (deb.folder(space) / "one_1_all.deb").touch()
    told = tmp_path / "told"
    program = tmp_path / "bin" / "reprepro"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "${{GPG_TTY-none}}" >{told}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("GPG_TTY", raising=False)
    return told


def test_other_users_can_read_the_repository(space, key, reprepro):
    """The user of a web server does, and that of apt: copies keep the permissions that are here."""
    program = reprepro.parent / "bin" / "reprepro"
    # What it is given first: --basedir FOLDER.
    program.write_text(
        '#!/bin/sh\nmkdir -p "$2/dists/pagewright"; : >"$2/dists/pagewright/InRelease"'
    )
    before = os.umask(0o077)
    try:
        target = archive.make(space, key)
    finally:
        os.umask(before)
    modes = {
        str(file.relative_to(target)): file.stat().st_mode & 0o777 for file in target.rglob("*")
    }
    assert modes[archive.KEYRING] == 0o644
    assert modes["dists/pagewright/InRelease"] == 0o644
    assert (modes["dists"], target.stat().st_mode & 0o777) == (0o755, 0o755)


def test_gpg_asks_for_a_passphrase_at_our_terminal(space, key, reprepro, monkeypatch):
    """What we start has no terminal of its own."""
    archive.make(space, key)
    assert reprepro.read_text() == "none\n"
    ours, theirs = pty.openpty()
    before = os.dup(0)
    os.dup2(theirs, 0)
    try:
        archive.make(space, key)
        assert reprepro.read_text() == f"{os.ttyname(theirs)}\n"
        # Who has said where is not contradicted.
        monkeypatch.setenv("GPG_TTY", "/dev/tty9")
        archive.make(space, key)
        assert reprepro.read_text() == "/dev/tty9\n"
    finally:
        os.dup2(before, 0)
        for descriptor in (before, ours, theirs):
            os.close(descriptor)


def test_the_page_removes_both_metapackages_of_the_old_flavour(tmp_path):
    """Otherwise the next build of that flavour would be what boots. Its kernels stay for now."""
    old, other = "cloud-arm64", "cloud-arm64-without-percpu-local"
    metapackages = [f"linux-headers-pagewright-{old}", f"linux-image-pagewright-{old}"]
    others = [f"linux-image-{RELEASE.name}", f"linux-image-pagewright-{other}", "pagewright-tools"]
    text = "Status: install ok installed\nVersion: 1\nArchitecture: arm64\nMaintainer: me\n"
    paragraphs = [f"Package: {name}\n{text}\n" for name in (*metapackages, *others)]
    (tmp_path / "status").write_text("".join(paragraphs))
    (tmp_path / "var/lib/apt/lists/partial").mkdir(parents=True)
    (tmp_path / "apt.conf").write_text(
        f'Dir "{tmp_path}"; Dir::State::status "{tmp_path}/status"; APT::Architecture "arm64";'
    )
    section = documents.section("install.md", "Change to another flavour")
    [command] = documents.scripts(section, server=True)
    words = shlex.split(command.replace("OLD", old))
    assert words[:2] == ["apt", "purge"]
    listed = subprocess.run(
        ["apt", "list", *words[2:]],
        env={**os.environ, "APT_CONFIG": str(tmp_path / "apt.conf")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert sorted(re.findall("^(.*?)/", listed, re.MULTILINE)) == metapackages


def make_package(folder: Path, name: str, version: str) -> None:
    """Make a package that is empty."""
    root = folder / "root"
    (root / "DEBIAN").mkdir(parents=True)
    lines = [f"Package: {name}", f"Version: {version}", "Architecture: all", "Section: misc"]
    lines += ["Priority: optional", "Maintainer: me <me@pagewright.test>", "Description: a test's"]
    (root / "DEBIAN" / "control").write_text("\n".join(lines) + "\n")
    file = folder / f"{name}_{version}_all.deb"
    subprocess.run(["dpkg-deb", "--build", root, file], check=True, capture_output=True)
    shutil.rmtree(root)


@pytest.mark.full
def test_apt_takes_the_last_version_from_a_signed_repository(key, tmp_path, monkeypatch):
    """All commands are those of docs/install.md. The server is a folder of this computer."""
    clone, server, programs = (tmp_path / name for name in ("clone", "server", "programs"))
    documents.clone(clone)
    packages = clone / "out" / SPACE.version / "packages"
    packages.mkdir(parents=True)
    for version in ("10", "9"):
        make_package(packages, METAPACKAGE, version)
    make_package(packages, "pagewright-tools", "1")
    # gpg asks nobody for a passphrase.
    programs.mkdir()
    asks_nobody = shlex.join([str(shutil.which("gpg")), *GPG[1:]])
    (programs / "gpg").write_text(f'#!/bin/sh\nexec {asks_nobody} "$@"\n')
    (programs / "gpg").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for folder in ("keyrings", "sources.list.d", "apt.conf.d", "preferences.d"):
        (server / "etc" / "apt" / folder).mkdir(parents=True)
    for folder in ("lib/apt/lists/partial", "cache/apt/archives/partial", "lib/dpkg"):
        (server / "var" / folder).mkdir(parents=True)
    (server / "var" / "lib" / "dpkg" / "status").touch()
    configuration = tmp_path / "apt.conf"
    configuration.write_text(
        f'Dir "{server}"; Dir::State::status "{server}/var/lib/dpkg/status"; APT::Architecture '
        '"arm64"; APT::Update::Error-Mode "any"; APT::Sandbox::User "root"; '
        'APT::Get::Simulate "true";'
    )
    monkeypatch.setenv("APT_CONFIG", str(configuration))

    def typed(script: str) -> str:
        for name, there in {
            "ADDRESS": f"file://{clone}/out/{SPACE.version}/repository",
            "/etc/apt/": f"{server}/etc/apt/",
            "scp ": "cp ",
            "root@SERVER:": "",
        }.items():
            script = script.replace(name, there)
        return subprocess.run(
            ["sh", "-e", "-c", script], cwd=clone, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    section = documents.section("install.md", "A repository for several servers")
    for script in documents.scripts(section):
        typed(script)
    commands, _ = documents.scripts(section, server=True)
    said = typed(commands)
    assert re.findall(r"^Inst (\S+) \((\S+) ", said, re.MULTILINE) == [
        *((METAPACKAGE, "10"), ("pagewright-tools", "1"))
    ]
    # What unattended-upgrades goes by is what apt knows of the repository.
    known = dict(
        re.findall(r"\b([on])=(\w+)", typed(f"apt-cache policy {METAPACKAGE}; apt-cache policy"))
    )
    assert (known["o"], known["n"]) == tuple(unattended_pattern().values())
    # Whoever changes what is in it is found out.
    release = next(clone.glob("out/*/repository/dists/*/InRelease"))
    release.write_text(release.read_text().replace("Origin: Pagewright", "Origin: Somebody"))
    with pytest.raises(subprocess.CalledProcessError):
        typed("apt update")
