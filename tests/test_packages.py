"""What the host must have: by its architecture and its user; and when backports are given up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagewright.cli.main import app
from pagewright.host import doctor, packages, workspace
from pagewright.host.errors import DiskFullError, HostError, NetworkError, ProgramError
from pagewright.host.workspace import Workspace

NATIVE = {"gcc", "binutils", "libc6-dev"}
CROSS = {"gcc-aarch64-linux-gnu", "binutils-aarch64-linux-gnu", "libc6-dev-arm64-cross"}


def names(machine: str, root: bool = True) -> set[str]:
    """Return the packages that a computer needs."""
    return {need.package for need in packages.needs(machine, root)}


def test_arm64_computer_compiles_with_its_own_compiler():
    assert names("aarch64") >= NATIVE
    assert not names("aarch64") & CROSS
    assert names("x86_64") >= CROSS
    assert names("x86_64") - names("aarch64") == CROSS


def test_same_programs_are_there_on_both():
    def programs(machine: str) -> set[str]:
        return {need.probe for need in packages.needs(machine, True) if "/" not in need.probe}

    assert programs("aarch64") == programs("x86_64") > {"aarch64-linux-gnu-gcc", "gcc"}


def test_this_computer_is_the_default(monkeypatch):
    monkeypatch.setattr(packages.platform, "machine", lambda: "aarch64")
    assert {need.package for need in packages.needs()}.isdisjoint(CROSS)


def test_package_that_is_needed_twice_is_installed_once():
    lacking = packages.needs("aarch64", True)
    listed = packages.package_names(lacking)
    assert len(listed) == len(set(listed)) < len(lacking)


def test_user_makes_the_guest_without_root():
    assert names("x86_64", root=False) - names("x86_64", root=True) == {"uidmap"}


# --- Ranges of ids ----------------------------------------------------------------


@pytest.fixture
def id_files(tmp_path: Path) -> list[Path]:
    """Make a subuid and a subgid in which one user has a range."""
    files = [tmp_path / "subuid", tmp_path / "subgid"]
    for file in files:
        file.write_text("one:100000:65536\n")
    return files


def test_user_with_a_range_of_ids_gets_no_other(id_files):
    assert packages.id_range_command("one", id_files) == []


def test_user_without_a_range_of_ids_gets_one_of_his_own(id_files):
    command = packages.id_range_command("two", id_files)
    assert command == [
        *("usermod", "--add-subuids", "165536-231071", "--add-subgids", "165536-231071", "two")
    ]


def test_range_that_is_in_one_file_alone_is_not_enough(id_files):
    id_files[1].unlink()
    assert packages.id_range_command("one", id_files)[0] == "usermod"


# --- Set-up -----------------------------------------------------------------------


class Apt:
    """Stands for `run`: notes what is run, and fails when backports are installed from."""

    def __init__(self, error: Exception | None = None) -> None:
        """Take what is raised."""
        self.error = error
        self.commands: list[str] = []

    def __call__(self, command, **_) -> str:
        """Note a command."""
        text = " ".join(map(str, command))
        self.commands.append(text)
        if "bookworm-backports" in text and self.error:
            raise self.error
        return ""


@pytest.fixture
def bookworm(monkeypatch):
    """Make us root on a Debian 12 that gets backports."""
    monkeypatch.setattr(packages, "as_root", list)
    monkeypatch.setattr(
        packages, "apt_sites", lambda _: [("s", "bookworm"), ("s", "bookworm-backports")]
    )


APT = ["apt-get"]
INSTALL = ["apt-get", "install"]
OWN = "apt-get install qemu-system-arm"


def test_qemu_comes_from_backports(bookworm, monkeypatch):
    apt = Apt()
    monkeypatch.setattr(packages, "run", apt)
    packages._install_qemu_from_backports(APT, INSTALL)
    assert apt.commands == ["apt-get install -t bookworm-backports qemu-system-arm"]


@pytest.mark.parametrize("error", [ProgramError("no such suite"), NetworkError("no mirror")])
def test_release_s_own_qemu_if_there_are_no_backports(bookworm, monkeypatch, error):
    apt = Apt(error)
    monkeypatch.setattr(packages, "run", apt)
    packages._install_qemu_from_backports(APT, INSTALL)
    assert apt.commands[-1] == OWN


@pytest.mark.parametrize("error", [DiskFullError("full"), HostError("sudo refused")])
def test_full_disk_is_not_taken_for_a_lack_of_backports(bookworm, monkeypatch, error):
    apt = Apt(error)
    monkeypatch.setattr(packages, "run", apt)
    with pytest.raises(type(error)):
        packages._install_qemu_from_backports(APT, INSTALL)
    assert OWN not in apt.commands


def test_complete_host_is_not_asked_for_root(monkeypatch):
    monkeypatch.setattr(packages, "debian_release", lambda: "bookworm")
    monkeypatch.setattr(packages, "missing", list)
    monkeypatch.setattr(packages, "lacking_id_range", list)
    monkeypatch.setattr(packages, "offered", lambda *_: ["known"])
    monkeypatch.setattr(packages, "as_root", None)
    packages.setup(workspace.find())


@pytest.mark.parametrize("error", [HostError("no sudo"), ProgramError("no such user")])
def test_range_of_ids_that_cannot_be_given_is_no_error(monkeypatch, capsys, error):
    def as_root(command):
        raise error

    monkeypatch.setattr(packages, "debian_release", lambda: "bookworm")
    monkeypatch.setattr(packages, "missing", list)
    monkeypatch.setattr(packages, "lacking_id_range", lambda: ["usermod"])
    monkeypatch.setattr(packages, "offered", lambda *_: ["known"])
    monkeypatch.setattr(packages, "as_root", as_root)
    packages.setup(workspace.find())
    assert f"that failed: {error.what}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("", ()),
        ("--packaging", packages.PACKAGING),
        ("--full", (*packages.PACKAGING, *packages.FULL_TESTS)),
    ],
)
def test_what_few_commands_use_is_installed_if_asked_for(monkeypatch, option, wanted):
    """A browser is large, and who makes packages has no use for it."""
    asked = []
    monkeypatch.setattr(packages, "debian_release", lambda: "trixie")
    monkeypatch.setattr(packages, "lacking_id_range", list)
    monkeypatch.setattr(packages, "offered", lambda *_: ["known"])
    monkeypatch.setattr(packages, "missing", lambda of=(): asked.extend(of) or [])
    CliRunner().invoke(app, ["setup", *option.split()], catch_exceptions=False)
    assert tuple(asked) == wanted


def test_what_apt_makes_of_its_lists_is_kept(tmp_path):
    """It takes a second, where the system's own is switched off."""
    space = Workspace(tmp_path, tmp_path / "cache")
    found = packages.offered(space, packages.SOURCE)
    [index] = tmp_path.glob("*/apt/*")
    made = index.stat()
    assert packages.offered(space, packages.SOURCE) == found
    assert made.st_size > 0
    assert index.stat().st_mtime_ns == made.st_mtime_ns


def test_downloads_are_tried_again():
    assert "Acquire::Retries=3" in packages.APT_OPTIONS
    bootstrap = Path(packages.__file__).resolve().parents[2] / "bootstrap"
    assert "Acquire::Retries=3" in bootstrap.read_text()
    command = ["apt-config", *packages.APT_OPTIONS, "dump", "Acquire::Retries"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout == 'Acquire::Retries "3";\n'


# --- KVM --------------------------------------------------------------------------


def test_doctor_says_whether_kvm_can_be_used(tmp_path, monkeypatch):
    device = tmp_path / "kvm"
    assert doctor.kvm("x86_64", device) == ""
    assert doctor.kvm("aarch64", device) == f"guests are emulated: there is no {device}"
    device.touch()
    assert doctor.kvm("aarch64", device).startswith(f"{device} can be used: `--accel kvm`")
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert "you may not use" in doctor.kvm("aarch64", device)
