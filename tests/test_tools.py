"""tools/pagewright says what a machine says, in words, on any kernel and with any permissions.

Most tests run it on trees of files that were captured from real machines: those in
tests/machines, where a line "@@ /path" precedes the contents of each file; record.sh beside them
says how they were made. The others run it in guests.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import termios
import textwrap
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagewright.guest import image
from pagewright.host import arm64_packages, workspace
from pagewright.host.run import run
from pagewright.host.workspace import Workspace
from pagewright.kernel import source
from pagewright.machine.machine import Machine

SPACE = workspace.find()
TOOLS = SPACE.root / "tools"
COMMAND = TOOLS / "pagewright"
MACHINES = SPACE.root / "tests" / "machines"
FEATURES = [feature.name for feature in SPACE.features()]
MIB = 1 << 20


tool: Any = SPACE.tool()


def unpack(name: str, target: Path) -> Path:
    """Make the tree of files of a captured machine."""
    for block in ("\n" + (MACHINES / f"{name}.txt").read_text()).split("\n@@ ")[1:]:
        path, _, content = block.partition("\n")
        file = target / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content.rstrip("\n") + "\n")
    return target


@pytest.fixture
def tree(tmp_path: Path):
    """Return a function that makes a captured machine's tree, with some files changed."""

    def make(name: str, changes: dict[str, str | None] | None = None) -> Path:
        root = unpack(name, tmp_path / name)
        for path, content in (changes or {}).items():
            file = root / path.lstrip("/")
            if content is None:
                file.unlink()
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
        return root

    return make


@pytest.fixture
def call(capsys):
    """Return a function that runs a command on a tree: its status and its output."""

    def run_command(root: Path, *words: str) -> tuple[int, str]:
        status = tool.main(["--root", str(root), *words])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run_command


@pytest.fixture
def status(call):
    """Return a function that asks for the status of a tree as JSON."""

    def ask(root: Path) -> dict[str, Any]:
        code, output = call(root, "status", "--json")
        value = json.loads(output)
        assert value["exit_status"] == code
        return value

    return ask


def by_name(status: dict[str, Any]) -> dict[str, Any]:
    """Return the features of a status by name, with their figures by name."""
    return {
        feature["name"]: feature | {"figures": {f["name"]: f["value"] for f in feature["figures"]}}
        for feature in status["features"]
    }


def without_log(root: Path) -> Path:
    (root / "dev" / "kmsg").unlink()
    return root


def without_files(root: Path) -> Path:
    """Take away what linear-map says in files: older kernels and some sandboxes have none."""
    shutil.rmtree(root / "sys" / "kernel" / "mm" / "linear_map")
    return root


# --- status ---------------------------------------------------------------------------------------


def test_status_of_a_machine_with_all_features_on(tree, status):
    value = status(tree("all-on"))
    assert value["exit_status"] == 0
    found = by_name(value)
    assert sorted(found) == sorted(FEATURES)
    assert {feature["state"] for feature in found.values()} == {"on"}
    assert all(feature["certain"] for feature in found.values())
    assert found["linear-map"]["mode"] == "blocks"
    assert found["hugetlb-vmemmap"]["mode"] == "seamless"
    # 64 pages of 2 MiB, 24 KiB of each.
    assert found["hugetlb-vmemmap"]["figures"]["bytes_saved"] == 64 * 24 << 10
    assert found["hugetlb-vmemmap"]["figures"]["most_saved"] == 64 * 24 << 10
    # A table for each 2 MiB of the 2,091,008 kB in blocks.
    assert found["linear-map"]["figures"]["page_tables_saved"] == 2091008 // 2048 * 4096
    assert found["percpu-local"]["figures"]["page_tables"] == 4 * 28 << 10
    assert value["machine"]["cpus"]["models"] == [
        {"name": "Neoverse-V3 r0p2", "midr": "0x410fd842", "cpus": "0-3", "bbm_level_2": True}
    ]
    assert value["machine"]["page_size"] == 4096
    assert value["machine"]["memory_bytes"] == 2040768 << 10
    assert value["machine"]["preemption"] == {"model": "full", "dynamic": True, "counted": True}


def test_status_names_the_reason_for_each_feature_that_is_not_on(tree, status):
    value = status(tree("cortex-a76-pages"))
    assert value["exit_status"] == 3
    found = by_name(value)
    linear_map = found["linear-map"]
    assert (linear_map["state"], linear_map["mode"]) == ("off", "pages")
    assert linear_map["why"] == "The kernel was booted with arm64.linear_map=pages."
    assert linear_map["figures"]["page_tables_saved"] == 0
    assert [name for name, feature in found.items() if feature["state"] != "on"] == ["linear-map"]


def test_status_of_a_machine_whose_cpus_lack_level_2(tree, status):
    """It has all features, as one with level 2, and pauses."""
    value = status(tree("cortex-a76"))
    assert value["exit_status"] == 0
    found = by_name(value)
    assert {feature["state"] for feature in found.values()} == {"on"}
    linear_map = found["linear-map"]
    assert linear_map["mode"] == "blocks"
    assert linear_map["why"].startswith("All other CPUs are paused for a moment")
    assert "CPU 0, Cortex-A76 r4p1, is not known to be one" in linear_map["why"]
    assert linear_map["changes"] == []
    # All of a GiB is in blocks, but for one that was split.
    assert linear_map["figures"]["page_tables_saved"] == 511 * 4096
    assert found["hugetlb-vmemmap"]["mode"] == "seamless"
    assert found["hugetlb-vmemmap"]["why"].startswith("CPUs are paused only when")
    assert found["hugetlb-vmemmap"]["figures"]["bytes_saved"] == 32 * 24 << 10


def test_status_says_what_to_do_about_pauses_that_failed(tree, status):
    """That machine's CPUs had 1 us to stop: all 32 hugetlb pages stayed as they were."""
    found = by_name(status(tree("cortex-a76-pages")))["hugetlb-vmemmap"]
    assert found["mode"] == "pause"
    assert found["figures"]["bytes_saved"] == 0
    assert found["figures"]["most_saved"] == 32 * 28 << 10
    assert found["figures"]["not_optimized"] == 32
    assert "/sys/kernel/cpu_pause/wait_us" in found["changes"][0]


@pytest.mark.parametrize(
    ("failed", "given_up", "pauses", "often"),
    [
        # A host that was busy once, and a machine that pauses CPUs rarely or often.
        (1, 7, 0, False),
        (10, 7, 0, False),
        (66, 7, 100000, False),
        (11, 7, 1100, False),
        (11, 7, 1099, True),
        (66, 7, 0, True),
    ],
)
def test_few_pauses_that_failed_are_no_reason_to_wait_longer(
    tree, status, failed, given_up, pauses, often
):
    """They are counted since boot. So are attempts that were given up, for whatever pause."""
    counts = {"failed": failed, "given_up": given_up, "pauses": pauses}
    changes = {f"/sys/kernel/cpu_pause/{name}": f"{number}\n" for name, number in counts.items()}
    found = by_name(status(tree("cortex-a76-pages", changes)))
    texts = found["cpu-pause"]["changes"]
    hvo = found["hugetlb-vmemmap"]["changes"][0]
    assert bool(texts) == often
    assert ("wait_us" in hvo) == often
    for text in [hvo, *texts] if often else []:
        assert f"{failed} pauses have failed since boot" in text
        assert f"{given_up} attempts were given up" in text
        assert "go on growing" in text
        # Pauses also fail where no CPU was waited for.
        assert "could not be paused within" not in text


def test_pauses_that_failed_while_a_cpu_went_off_line_are_no_reason_to_wait_longer(tree, status):
    found = by_name(status(tree("cortex-a76-pages", {"/sys/kernel/cpu_pause/given_up": "0\n"})))
    assert found["cpu-pause"]["figures"]["failed"] == 66
    assert found["cpu-pause"]["changes"] == []
    assert "wait_us" not in found["hugetlb-vmemmap"]["changes"][0]


def says_of_pauses(root: Path, *lines: str) -> Path:
    """Add what cpu-pause says to a machine's log; all pauses have failed since."""
    with (root / "dev" / "kmsg").open("a") as log:
        for line in lines:
            log.write(f"3,500,999,-;cpu_pause: {line}\n")
    (root / "sys" / "kernel" / "cpu_pause" / "failed").write_text("50\n")
    return root


# As cpu_pause_lost_cpu() and have_no_pauses() of cpu_pause.c say it.
LOST = "CPU{} may run the kernel, though CPU hotplug has given it up; no CPU can be paused"
HOW_FOUND = (
    "has been brought online",
    "has gone after all",
    "has been started again, so it had gone",
)
FOUND = f"CPU{{}} {HOW_FOUND[0]}, and CPUs can be paused again"
NO_STATE = "no CPU hotplug state (-28), so no CPU can be paused"


def test_a_cpu_that_is_lost_is_named(tree, status):
    """All pauses fail at once until it is brought online, and no attempt is given up."""
    lost = says_of_pauses(
        tree("cortex-a76"), LOST.format(3), LOST.format(1), LOST.format(3), FOUND.format(1)
    )
    found = by_name(status(lost))["cpu-pause"]
    why = "The kernel says that CPU 3 may run, though CPU hotplug has given it up."
    assert found["why"].startswith(why)
    [change] = found["changes"]
    assert "Write 1 to /sys/devices/system/cpu/cpu3/online" in change
    # If it has set itself online, CPU hotplug cannot deal with it.
    (lost / "sys/devices/system/cpu/online").write_text("0-3\n")
    [change] = by_name(status(lost))["cpu-pause"]["changes"]
    assert change.startswith("Reboot.")
    assert "Write" not in change
    found = by_name(status(says_of_pauses(lost, FOUND.format(3))))["cpu-pause"]
    assert found["why"].startswith("It is ready")
    assert found["changes"] == []


@pytest.mark.parametrize("how", HOW_FOUND)
def test_a_cpu_that_is_found_again_is_not_named(tree, status, how):
    root = says_of_pauses(tree("cortex-a76"), LOST.format(3), f"CPU3 {how}")
    found = by_name(status(root))["cpu-pause"]
    assert found["why"].startswith("It is ready")
    assert found["changes"] == []


def test_a_cpu_stays_lost_when_the_log_has_lost_its_line(tree, status, call):
    """Otherwise an alert would end by itself, and nobody would bring the CPU online."""
    log = {"/dev/kmsg": "6,9000,9,-;eth0: link becomes ready\n"}
    root = tree("cortex-a76", log | {"/sys/kernel/cpu_pause/lost": "1,3\n"})
    for with_log in (True, False):
        found = by_name(status(root if with_log else without_log(root)))["cpu-pause"]
        assert (found["state"], found["certain"]) == ("off", True)
        assert "CPU 1, CPU 3 may run" in found["why"]
        assert call(root, "check")[0] == 1
        assert samples(call(root, "export")[1])["pagewright_cpus_lost"] == 2
    # The CPU has been brought online, and what the log says is over.
    line = {"/dev/kmsg": f"3,9001,9,-;cpu_pause: {LOST.format(1)}\n"}
    root = tree("cortex-a76", line | {"/sys/kernel/cpu_pause/lost": "\n"})
    assert by_name(status(root))["cpu-pause"]["state"] == "on"
    assert samples(call(root, "export")[1])["pagewright_cpus_lost"] == 0


def test_a_kernel_that_cannot_notice_hotplug_pauses_no_cpu(tree, status):
    found = by_name(status(says_of_pauses(tree("cortex-a76"), NO_STATE)))["cpu-pause"]
    assert found["why"] == "The kernel says: no CPU hotplug state (-28), so no CPU can be paused."


@pytest.mark.parametrize(("line", "lost"), [(LOST.format(1), 1), (NO_STATE, 0)])
def test_where_no_cpu_can_be_paused_programs_are_told(tree, status, call, line, lost):
    """Nobody who watches exit statuses or metrics would hear of it otherwise."""
    root = says_of_pauses(tree("cortex-a76"), line)
    value = status(root)
    assert value["exit_status"] == 3
    found = by_name(value)["cpu-pause"]
    assert (found["state"], found["certain"]) == ("off", True)
    code, output = call(root, "check")
    assert code == 1
    assert "wrong    all CPUs could be paused: none can be" in output
    found = samples(call(root, "export")[1])
    assert found['pagewright_feature_on{feature="cpu-pause",mode=""}'] == 0
    assert found["pagewright_cpus_lost"] == lost


def test_who_cannot_read_the_log_is_not_told_that_no_cpu_is_lost(tree, status, call):
    root = tree("cortex-a76")
    assert samples(call(root, "export")[1])["pagewright_cpus_lost"] == 0
    assert by_name(status(root))["cpu-pause"]["certain"]
    found = by_name(status(without_log(root)))["cpu-pause"]
    assert (found["state"], found["certain"]) == ("on", False)
    assert "pagewright_cpus_lost NaN\n" in call(root, "export")[1]
    assert "cpus_lost" not in call(tree("unpatched"), "export")[1]


def test_the_kernel_says_so_in_these_words():
    code = (SPACE.root / "features/cpu-pause/linux/arch/arm64/kernel/cpu_pause.c").read_text()
    for line in (LOST.format("%u"), NO_STATE.replace("-28", "%d")):
        assert re.search(rf'pr_err\("{re.escape(line)}\\n",', code), line
    # These go on only if no other CPU is lost.
    assert '"cpu_pause: CPU%u %s%s\\n"' in code
    assert set(re.findall(r'found_cpu\(cpu, "(.*)"\)', code)) == set(HOW_FOUND)


def test_status_of_a_kernel_without_the_features(tree, status, call):
    root = tree("unpatched")
    value = status(root)
    assert value["exit_status"] == 4
    assert {feature["state"] for feature in value["features"]} == {"absent"}
    code, output = call(root, "status")
    assert code == 4
    assert "The running kernel, 6.12.117, was built without them." in output
    assert "Boot a kernel that has them.\n" in output
    # A program of Debian's. Others have none, whatever the machine has that this runs on.
    assert "linux-version" not in output
    program = root / "usr/bin/linux-version"
    program.parent.mkdir(parents=True)
    program.touch()
    words = "Boot a kernel that has them; `linux-version list` shows those that are installed."
    assert words in " ".join(call(root, "status")[1].split())
    [change] = by_name(status(root))["linear-map"]["changes"]
    assert change == words.replace("has them", "has it")


def test_status_of_another_kernel_that_says_how_it_maps_memory(tree, status):
    """As those of x86 do; what it has in blocks is not due to the feature."""
    root = tree("unpatched", {"/boot/config-6.12.117": None})
    with (root / "proc" / "meminfo").open("a") as file:
        file.write("DirectMap4k:       4096 kB\nDirectMap2M:    1044480 kB\n")
    value = status(root)
    assert value["exit_status"] == 4
    assert {feature["state"] for feature in value["features"]} == {"absent"}
    # None of them shows in the log alone.
    value = status(without_log(root))
    assert value["exit_status"] == 4
    assert {feature["state"] for feature in value["features"]} == {"absent"}


def test_a_configuration_whose_date_has_changed_is_read(tree, status, here):
    """A chmod, a copy or a reinstallation does that, and at each boot a root that is in RAM."""
    changes = {"/proc/stat": "cpu 1 2\nbtime 1000000\n", "/dev/kmsg": "6,9000,9,-;eth0: up\n"}
    value = status(tree("all-on", UNCOUNTED | changes))
    assert value["machine"]["preemption"]["model"] == "voluntary"


@pytest.mark.parametrize("line", [True, False], ids=["whole", "lost"])
def test_percpu_local_is_absent_where_its_folder_is_not_there(tree, status, line):
    """Whatever a log says: that of another boot may lie beside a copy of /sys."""
    said = "6,27,0,-;percpu: local map of 1024 MiB/cpu, 28 KiB/cpu of tables\n"
    log = {"/dev/kmsg": f"{'5,1,0,-;Linux version 6.12.117' if line else ''}\n{said}"}
    for config in ({}, {"/boot/config-6.12.117": None}):
        percpu_local = by_name(status(tree("unpatched", log | config)))["percpu-local"]
        assert (percpu_local["state"], percpu_local["certain"]) == ("absent", True)


def test_status_of_another_architecture(tree, status, call):
    root = tree("x86")
    value = status(root)
    assert value["exit_status"] == 4
    assert {feature["state"] for feature in value["features"]} == {"absent"}
    assert "this machine is x86_64" in call(root, "status")[1]


def test_status_of_nothing_at_all(tmp_path, status, call):
    assert status(tmp_path)["exit_status"] == 4
    for command in ("status", "check", "advise", "export"):
        assert "Traceback" not in call(tmp_path, command)[1]
    for command in ("status", "advise"):
        output = " ".join(call(tmp_path, command)[1].split())
        assert "for arm64. The files do not say which architecture this is." in output
        assert "machine is unknown" not in output
        assert "that on this machine" not in output
    assert not any(feature["certain"] for feature in status(tmp_path)["features"])
    for command in ("map", "watch"):
        code, output = call(tmp_path, command)
        assert code == 1
        assert output.startswith("pagewright: this kernel ")


def test_a_feature_is_not_absent_because_nothing_can_be_read(tree, status):
    """So it is in a chroot without /proc and /sys."""
    value = by_name(status(tree("all-on", {"/proc/vmstat": None})))
    assert value["atomic-write-fault"]["state"] == "unknown"
    assert "/proc/vmstat" in value["atomic-write-fault"]["why"]
    root = without_log(tree("all-on", {"/boot/config-6.12.117": None}))
    shutil.rmtree(root / "sys")
    for name in ("vmstat", "meminfo"):
        (root / "proc" / name).unlink()
    value = status(root)
    assert value["exit_status"] == 3
    assert {feature["state"] for feature in value["features"]} == {"unknown"}
    assert not any(feature["certain"] for feature in value["features"])
    # The configuration says it just as well.
    config = root / "boot" / "config-6.12.117"
    config.parent.mkdir(exist_ok=True)
    config.write_text("CONFIG_ARM64=y\n")
    assert status(root)["exit_status"] == 4


@pytest.mark.parametrize("how", ["gone", "empty"])
@pytest.mark.parametrize("config", [True, False], ids=["config", "no-config"])
def test_a_feature_is_not_absent_because_sys_kernel_is_hidden(tree, status, call, how, config):
    """A sandbox may show the rest of /sys, with the CPUs in it."""
    root = tree("all-on", {} if config else {"/boot/config-6.12.117": None})
    shutil.rmtree(root / "sys" / "kernel")
    if how == "empty":
        (root / "sys" / "kernel").mkdir()
    value = status(root)
    assert value["exit_status"] == 3
    exported = call(root, "export")[1]
    for name, feature in by_name(value).items():
        hidden = name in ("hugetlb-vmemmap", "cpu-pause", "percpu-local")
        assert (feature["state"] == "unknown") == hidden
        assert feature["state"] == "unknown" or feature["state"] == "on"
        assert feature["certain"] != hidden
        assert ("/sys/kernel" in feature["why"]) == hidden
        labels = f'{{feature="{name}",mode="{feature["mode"]}"}}'
        assert f"pagewright_feature_on{labels} {'NaN' if hidden else 1}\n" in exported


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_not_absent_if_the_configuration_has_it(tree, status, name):
    """Nothing else shows of it, as where a sandbox hides single files."""
    config = {"/boot/config-6.12.117": f"{tool.SYMBOLS[name]}=y\n"}
    value = status(tree("unpatched", config))
    assert value["exit_status"] == 3
    for other, feature in by_name(value).items():
        has = other == name
        assert (feature["state"], feature["certain"]) == ("unknown" if has else "absent", not has)
        assert f"{tool.SYMBOLS[other]}{'=y' if has else ''})" in feature["why"]
    # A line such as "=n" is in no file of the kernel's, but in some that people have written.
    config = {"/boot/config-6.12.117": f"{tool.SYMBOLS[name]}=n\n"}
    assert status(tree("unpatched", config))["exit_status"] == 4


def cmdline(words: str) -> dict[str, str | None]:
    return {"/proc/cmdline": f"root=/dev/vda {words}\n"}


def logged(pattern: str, line: str) -> dict[str, str | None]:
    """Replace a line of the captured log."""
    text = (MACHINES / "all-on.txt").read_text().split("@@ /dev/kmsg\n")[1].split("\n@@ ")[0]
    changed = re.sub(rf"^(\d+,\d+,\d+,-;){pattern}.*$", rf"\g<1>{line}", text, flags=re.MULTILINE)
    assert changed != text
    return {"/dev/kmsg": changed}


OFF_BY_PARAMETER = {
    "atomic-write-fault": (
        "arm64.atomic_write_fault=0",
        "atomic-write-fault: ",
        "atomic-write-fault: off (arm64.atomic_write_fault=0)",
    ),
    "linear-map": (
        "arm64.linear_map=pages",
        "linear map: ",
        "linear map: pages (arm64.linear_map=pages; MIDR_EL1 0x410fd842)",
    ),
    "percpu-local": (
        "percpu_local_map=0",
        "percpu: local map",
        "percpu: no local map: percpu_local_map=0",
    ),
}
# Everybody may read what these say in files.
IN_FILES = ("linear-map", "percpu-local")


# A kernel that has percpu-local, and does not count preemption.
UNCOUNTED = {
    "/proc/version": "Linux version 6.12.117 (a@b) #1 SMP Debian 6.12.117-1\n",
    "/boot/config-6.12.117": "CONFIG_PREEMPT_VOLUNTARY=y\nCONFIG_ARM64_PERCPU_LOCAL_MAP=y\n",
}


def local_map_says(mode: str, reason: str) -> dict[str, str | None]:
    """Change what a machine's kernel says of the local map."""
    return {f"{tool._PERCPU_LOCAL}/{n}": f"{t}\n" for n, t in (("mode", mode), ("reason", reason))}


def code_of_percpu_local() -> str:
    """Return what decides whether there is a local map, and says so."""
    return "\n".join(
        file.read_text()
        for folder in ("arch/arm64/mm", "mm")
        for file in (SPACE.root / "features/percpu-local/linux" / folder).glob("percpu*local.c")
    )


def reasons_for_and_against_a_local_map() -> list[str]:
    """Return what follows in the kernel's log, with numbers and words in it; the first is for."""
    texts = re.findall(r'percpu_local_say\("([^"]+)"', code_of_percpu_local())
    reasons = [re.sub("%l?u", "7", text.replace("%s", "page")) for text in texts]
    return sorted(reasons, key=lambda reason: "of tables" not in reason)


# What the page on status has of them.
NO_LOCAL_MAP = (
    "percpu_local_map=0",
    "percpu_alloc=",
    "address space is too small for so many CPUs",
    "no memory for tables",
)


def test_each_reason_why_there_is_no_local_map_says_what_to_do(tree, status):
    """They come from the kernel's own source."""
    _, *reasons = reasons_for_and_against_a_local_map()
    assert len(reasons) == 5
    for reason in reasons:
        says = local_map_says("classic", reason)
        local = by_name(status(tree("all-on", says)))["percpu-local"]
        assert (local["state"], local["certain"]) == ("off", True)
        assert reason in local["why"]
        # This one is there in case the layout of the address space is wrong.
        never = reason == "the kernel image is too far up"
        assert (local["changes"] == ["See the kernel's log."]) == never
        assert never or any(words in local["why"] for words in NO_LOCAL_MAP)
        uncounted = by_name(status(tree("all-on", UNCOUNTED | says)))["percpu-local"]
        assert reason in uncounted["why"]
        assert "may stay off" in uncounted["why"]
        assert uncounted["changes"] == []


def test_what_a_local_map_costs_is_what_the_kernel_says(tree, status):
    reason, *_ = reasons_for_and_against_a_local_map()
    assert reason == "7 MiB/cpu, 7 KiB/cpu of tables"
    local = by_name(status(tree("all-on", local_map_says("local", reason))))["percpu-local"]
    assert (local["state"], local["certain"]) == ("on", True)
    assert local["figures"] == {"page_tables": 4 * 7 << 10}


def test_the_files_of_the_local_map_are_the_kernels():
    code = code_of_percpu_local()
    assert re.findall(r"__ATTR\((\w+), 0444,", code) == ["mode", "reason"]
    assert 'percpu_local_used ? "local" : "classic"' in code
    [base] = re.findall(r'struct attribute_group \w+ = \{\n\t\.name = "(\w+)"', code)
    assert f"/sys/kernel/mm/{base}" == tool._PERCPU_LOCAL


@pytest.mark.parametrize("parameter", ["percpu_local_map=0", "percpu_alloc=page"])
def test_who_has_followed_the_advice_to_do_without_a_local_map_is_not_told_the_contrary(
    tree, status, parameter
):
    [change] = by_name(status(tree("all-on", UNCOUNTED)))["percpu-local"]["changes"]
    assert "Boot with percpu_local_map=0" in change
    root = tree("all-on", UNCOUNTED | local_map_says("classic", parameter))
    local = by_name(status(root))["percpu-local"]
    assert (local["state"], local["certain"]) == ("off", True)
    assert parameter in local["why"]
    assert local["changes"] == []


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("local", ""), ("", "percpu_local_map=0"), ("remote", "percpu_local_map=0"), ("", "")],
)
@pytest.mark.parametrize("config", [True, False], ids=["config", "no-config"])
def test_files_that_do_not_say_whether_there_is_a_local_map_are_not_believed(
    tree, status, call, mode, reason, config
):
    """A sandbox may hide them, or somebody may have made the tree. No log takes their place."""
    changes = local_map_says(mode, reason) | cmdline("percpu_local_map=0")
    root = tree("all-on", changes | ({} if config else {"/boot/config-6.12.117": None}))
    value = status(root)
    assert value["exit_status"] == 3
    percpu_local = by_name(value)["percpu-local"]
    assert (percpu_local["state"], percpu_local["certain"]) == ("unknown", False)
    assert "/sys/kernel/mm/percpu_local" in percpu_local["why"]
    assert "where /sys is mounted" in percpu_local["changes"][0]
    assert percpu_local["figures"] == {}
    labels = 'feature="percpu-local",mode=""'
    assert f"pagewright_feature_on{{{labels}}} NaN\n" in call(root, "export")[1]


@pytest.mark.parametrize("how", ["empty", "file", "unreadable"])
def test_percpu_local_is_not_absent_because_its_files_are_hidden(tree, status, how):
    root = tree("all-on", {"/boot/config-6.12.117": None})
    folder = root / "sys" / "kernel" / "mm" / "percpu_local"
    for file in folder.iterdir():
        file.unlink()
        if how == "unreadable":
            file.mkdir()
    if how == "file":
        folder.rmdir()
        folder.touch()
    assert by_name(status(root))["percpu-local"]["state"] == "unknown"


@pytest.mark.parametrize("name", OFF_BY_PARAMETER)
@pytest.mark.parametrize("with_log", [True, False], ids=["log", "no-log"])
def test_a_feature_that_the_command_line_turns_off(tree, status, name, with_log):
    parameter, pattern, line = OFF_BY_PARAMETER[name]
    changes = cmdline(parameter) | logged(pattern, line)
    if name == "linear-map":
        changes |= linear_map_says("pages", parameter, parameter)
    elif name == "percpu-local":
        changes |= local_map_says("classic", parameter)
    root = tree("all-on", changes)
    found = by_name(status(root if with_log else without_log(root)))
    assert found[name]["state"] == "off"
    assert parameter in found[name]["why"]
    assert parameter in found[name]["changes"][0]
    assert found[name]["certain"] == (with_log or name in IN_FILES)
    others = {key for key, feature in found.items() if feature["state"] != "on"}
    assert others == {name}


@pytest.mark.parametrize(
    ("built", "parameter", "late"),
    [
        ("0", "", True),
        ("0", "kfence.sample_interval=100", False),
        ("100", "", False),
        ("100", "kfence.sample_interval=0", True),
        # The kernel ignores what is no number.
        ("0", "kfence.sample_interval=", True),
        ("100", "kfence.sample_interval=0 kfence.sample_interval=x", True),
        ("100", "kfence.sample_interval=0x0", True),
        ("0", "kfence.sample_interval=0x64", False),
        ("0", "kfence.sample_interval=08", True),
        (None, "kfence.sample_interval=0", False),
    ],
)
def test_kfence_that_may_begin_after_boot_has_permissions_change(
    tree, call, built, parameter, late
):
    """It makes pages invalid, and so the kernel splits blocks also with rodata=on."""
    root = tree("unpatched", cmdline(f"rodata=on {parameter}"))
    config = root / "boot" / "config-6.12.117"
    text = re.sub(r"^CONFIG_KFENCE.*\n", "", config.read_text(), flags=re.MULTILINE)
    if built is not None:
        text += f"CONFIG_KFENCE=y\nCONFIG_KFENCE_SAMPLE_INTERVAL={built}\n"
    config.write_text(text)
    assert bool(advice(call, root)["linear-map"]["bytes"]) == late


def test_pauses_of_the_linear_map_are_known_without_the_log(tree, status, call):
    """All CPUs are listed, and some started after boot."""
    had = {"/sys/kernel/mm/linear_map/pauses": "9\n"}
    says = linear_map_says("blocks", f"{IN_PAUSES}: {NOT_STARTED}")
    root = without_log(tree("all-on", says | had))
    found = by_name(status(root))["linear-map"]
    assert (found["state"], found["certain"]) == ("on", True)
    assert "some CPUs had not started" in found["why"]
    assert "arm64.linear_map=live" in found["changes"][0]
    assert "linear-map needs it" in advice(call, root)["cpu-pause"]["words"]
    # Older kernels had these files only where blocks are split in pauses.
    for name in ("mode", "reason"):
        (root / "sys/kernel/mm/linear_map" / name).unlink()
    assert by_name(status(root))["linear-map"]["state"] == "unknown"
    assert "linear-map needs it" in advice(call, root)["cpu-pause"]["words"]
    # All others have but these two.
    pages = without_log(tree("all-on", linear_map_says("pages", "arm64.linear_map=pages")))
    (pages / "sys/kernel/mm/linear_map/pauses").unlink()
    assert advice(call, pages)["cpu-pause"]["words"] == "These CPUs need no pauses."


@pytest.mark.parametrize(
    ("built", "parameter", "full"),
    [
        (True, "", True),
        (False, "", False),
        (False, "rodata=full", True),
        (True, "rodata=off", False),
        # The kernel warns of such a value, and ignores it.
        (True, "rodata=nonsense", True),
        (False, "rodata=nonsense", False),
        (True, "rodata=off rodata=nonsense", False),
        (False, "rodata=full rodata", True),
    ],
)
def test_the_configuration_says_what_the_default_of_rodata_is(
    tree, status, call, built, parameter, full
):
    """Without rodata=full memory is in blocks on any kernel, and the feature saves nothing."""
    symbol = "CONFIG_RODATA_FULL_DEFAULT_ENABLED"

    def make(name: str) -> Path:
        root = tree(name, cmdline(f"{parameter} kfence.sample_interval=100"))
        config = root / "boot" / "config-6.12.117"
        text = config.read_text().replace(f"{symbol}=y\n", "")
        config.write_text(text + (f"{symbol}=y\n" if built else f"# {symbol} is not set\n"))
        return root

    root = without_log(make("all-on"))
    if not full:
        (root / "sys/kernel/mm/linear_map/reason").write_text(f"{FIXED}\n")
    linear_map = by_name(status(root))["linear-map"]
    assert linear_map["state"] == ("on" if full else "off")
    assert bool(linear_map["figures"]["page_tables_saved"]) == full
    found = samples(call(root, "export")[1])
    assert found['pagewright_feature_on{feature="linear-map",mode="blocks"}'] == full
    assert bool(found["pagewright_linear_map_saved_bytes"]) == full
    advised = advice(call, make("unpatched"))["linear-map"]
    assert bool(advised["bytes"]) == full
    if not full:
        named = "rodata=off" if "rodata=off" in parameter else symbol
        assert named in linear_map["why"]
        assert named in advised["words"]


def test_a_parameter_that_this_kernel_does_not_know_fixes_nothing(tree, status):
    """Debian's kernels are without CONFIG_DEBUG_PAGEALLOC."""
    root = without_log(tree("all-on", cmdline("debug_pagealloc=on")))
    assert by_name(status(root))["linear-map"]["state"] == "on"


def test_a_linear_map_that_was_repainted_names_the_cpu(tree, status):
    line = "linear map: blocks (split and folded back live: BBM level 2 without aborts)\n"
    again = f"6,200,0,-;linear map: pages (repainted: {SECONDARY_CPU}, and {ISOLATED})"
    changes = logged("linear map: ", line + again)
    midr = "/sys/devices/system/cpu/cpu2/regs/identification/midr_el1"
    found = status(without_files(tree("all-on", changes | {midr: "0x00000000411fd410\n"})))
    linear_map = by_name(found)["linear-map"]
    assert linear_map["state"] == "off"
    assert linear_map["why"].startswith("CPU 2, Cortex-A78 r1p0, is not known")
    models = found["machine"]["cpus"]["models"]
    assert [(model["name"], model["cpus"]) for model in models] == [
        ("Neoverse-V3 r0p2", "0-1,3"),
        ("Cortex-A78 r1p0", "2"),
    ]


LISTED, UNLISTED = "0x00000000410fd843", "0x00000000414fd0b1"
BOOT_CPU = "the boot CPU is not known to have BBM level 2 without aborts"
SECONDARY_CPU = "a secondary CPU is not known to have BBM level 2 without aborts"
NOT_STARTED = "not all CPUs have started"
LIVE_ONLY = "arm64.linear_map=live"
TOP_LEVEL = "the top level of the page tables has blocks"
NO_PAUSES = "this kernel cannot pause other CPUs"
ISOLATED = "isolated CPUs are not paused"
# A kernel without these has the parameters in vain.
ISOLATES = "CONFIG_CPU_ISOLATION=y\nCONFIG_NO_HZ_FULL=y\n"
REAL_TIME = "a real-time kernel pauses no CPUs"
AF = "arm64.linear_map=af, splits without one if they can be"
IN_PAUSES = "split and folded back in pauses"
FIXED = "its permissions do not change without rodata=full"


def linear_map_says(
    mode: str, reason: str, parameters: str = "", cpus: str = LISTED, config: str = ""
) -> dict[str, str | None]:
    """Change a machine so that its kernel says a reason for its linear map, in files and the log.

    Args:
        mode: blocks or pages.
        reason: in brackets in the log.
        parameters: on the kernel's command line.
        cpus: the MIDR_EL1 of all CPUs, or of CPU 2 if the reason is a secondary CPU.
        config: more lines of the kernel's configuration.
    """
    line = f"linear map: {mode} ({reason})"
    if SECONDARY_CPU not in reason and NOT_STARTED not in reason:
        line = line.replace(")", f"; MIDR_EL1 {cpus.replace('0x00000000', '0x')})")
    text = (MACHINES / "all-on.txt").read_text()
    meminfo, built = (
        text.split(f"@@ {file}\n")[1].split("\n@@ ")[0]
        for file in ("/proc/meminfo", "/boot/config-6.12.117")
    )
    if mode == "pages":
        meminfo = re.sub(r"(DirectMap(?:2|32)M: +)\d+", r"\g<1>0", meminfo)
        meminfo = re.sub("(DirectMap4k: +)4224", r"\g<1>2097152", meminfo)
    numbers = [2] if SECONDARY_CPU in reason else range(4)
    return (
        cmdline(parameters)
        | logged("linear map: ", line)
        | {"/proc/meminfo": meminfo, "/boot/config-6.12.117": f"{built}\n{config}"}
        | {f"{tool._LINEAR_MAP}/mode": f"{mode}\n", f"{tool._LINEAR_MAP}/reason": f"{reason}\n"}
        | {
            f"/sys/devices/system/cpu/cpu{number}/regs/identification/midr_el1": f"{cpus}\n"
            for number in numbers
        }
    )


# What the kernel says, the parameters, the CPUs, and what of it `Why` and `Change` must say.
PAGES = {
    "live": (
        f"{BOOT_CPU}, and {LIVE_ONLY}",
        LIVE_ONLY,
        UNLISTED,
        ["CPU 0, Cortex-A76 r4p1, is not known", LIVE_ONLY],
        ["Remove arm64.linear_map=live", "in blocks then", "paused"],
    ),
    "live-and-nobbml2": (
        f"arm64.nobbml2, and {LIVE_ONLY}",
        f"arm64.nobbml2 {LIVE_ONLY}",
        LISTED,
        ["booted with arm64.nobbml2", LIVE_ONLY],
        ["Remove arm64.nobbml2 ", "live"],
    ),
    "live-and-nobbml2-on-other-cpus": (
        f"arm64.nobbml2, and {LIVE_ONLY}",
        f"arm64.nobbml2 {LIVE_ONLY}",
        UNLISTED,
        ["booted with arm64.nobbml2", LIVE_ONLY],
        ["Remove arm64.linear_map=live", "in blocks then"],
    ),
    "top-level": (
        f"{BOOT_CPU}, and {TOP_LEVEL}",
        "",
        UNLISTED,
        ["CPU 0", TOP_LEVEL],
        ["more levels"],
    ),
    "no-pauses": (
        f"{BOOT_CPU}, and {NO_PAUSES}",
        "",
        UNLISTED,
        ["CPU 0", NO_PAUSES],
        ["CONFIG_ARM64_CPU_PAUSE"],
    ),
    "isolated": (
        f"{BOOT_CPU}, and {ISOLATED}",
        "isolcpus=2-3",
        UNLISTED,
        ["CPU 0", ISOLATED],
        ["Boot with arm64.linear_map=pause, if"],
    ),
    "isolated-and-nobbml2": (
        f"arm64.nobbml2, and {ISOLATED}",
        "arm64.nobbml2 nohz_full=2-3",
        LISTED,
        ["booted with arm64.nobbml2", ISOLATED],
        ["Remove arm64.nobbml2 ", "live"],
    ),
    "isolated-and-not-started": (
        f"repainted: {NOT_STARTED}, and {ISOLATED}",
        "isolcpus=3 maxcpus=2",
        LISTED,
        ["Some CPUs had not started", ISOLATED],
        ["Remove maxcpus=2 ", "live"],
    ),
    "real-time": (
        f"{BOOT_CPU}, and {REAL_TIME}",
        "",
        UNLISTED,
        ["CPU 0", REAL_TIME],
        ["Boot with arm64.linear_map=pause, if"],
    ),
    "repainted-isolated": (
        f"repainted: {SECONDARY_CPU}, and {ISOLATED}",
        "nohz_full=3",
        UNLISTED,
        ["CPU 2, Cortex-A76 r4p1, is not known", ISOLATED],
        ["Boot with arm64.linear_map=pause, if"],
    ),
    "pause-and-top-level": (
        f"arm64.linear_map=pause, and {TOP_LEVEL}",
        "arm64.linear_map=pause",
        LISTED,
        ["booted with arm64.linear_map=pause", TOP_LEVEL],
        ["Remove arm64.linear_map=pause ", "live"],
    ),
    "af-and-no-pauses": (
        f"arm64.linear_map=af, and {NO_PAUSES}",
        "arm64.linear_map=af",
        UNLISTED,
        ["booted with arm64.linear_map=af.", NO_PAUSES],
        ["CONFIG_ARM64_CPU_PAUSE"],
    ),
    "nobbml2-and-top-level": (
        f"arm64.nobbml2, and {TOP_LEVEL}",
        "arm64.nobbml2",
        LISTED,
        ["booted with arm64.nobbml2", TOP_LEVEL],
        ["Remove arm64.nobbml2 "],
    ),
    "repainted-live": (
        f"repainted: {SECONDARY_CPU}, and {LIVE_ONLY}",
        LIVE_ONLY,
        UNLISTED,
        ["CPU 2, Cortex-A76 r4p1, is not known", LIVE_ONLY],
        ["Remove arm64.linear_map=live", "in blocks then"],
    ),
    "repainted-no-pauses": (
        f"repainted: {SECONDARY_CPU}, and {NO_PAUSES}",
        "",
        UNLISTED,
        ["CPU 2, Cortex-A76 r4p1, is not known", NO_PAUSES],
        ["CONFIG_ARM64_CPU_PAUSE", "more levels"],
    ),
    "repainted-top-level": (
        f"repainted: {SECONDARY_CPU}, and {TOP_LEVEL}",
        "",
        UNLISTED,
        ["CPU 2, Cortex-A76 r4p1, is not known", TOP_LEVEL],
        ["CONFIG_ARM64_CPU_PAUSE", "more levels"],
    ),
    "repainted-by-an-older-kernel": (
        f"repainted: {SECONDARY_CPU}",
        "",
        UNLISTED,
        [f"The kernel says: repainted: {SECONDARY_CPU}."],
        ["See the kernel's log."],
    ),
    "repainted-for-a-test": (
        f"repainted: {SECONDARY_CPU}, and {LIVE_ONLY}",
        f"{LIVE_ONLY} arm64.nobbml2_cpus=2",
        LISTED,
        ["arm64.nobbml2_cpus=2"],
        ["Remove arm64.nobbml2_cpus=2 "],
    ),
    "pages": (
        "arm64.linear_map=pages",
        "arm64.linear_map=pages",
        UNLISTED,
        ["booted with arm64.linear_map=pages"],
        ["Remove arm64.linear_map=pages "],
    ),
    "debug": (
        "debug_pagealloc=on",
        "debug_pagealloc=on",
        LISTED,
        ["debug_pagealloc=on"],
        ["Remove debug_pagealloc=on "],
    ),
    "debug-built-in": (
        "debug_pagealloc=on",
        "",
        LISTED,
        ["built with CONFIG_DEBUG_PAGEALLOC_ENABLE_DEFAULT"],
        ["Boot with debug_pagealloc=off"],
    ),
    "of-another-kernel": (
        "the moon is full",
        "",
        UNLISTED,
        ["The kernel says: the moon is full."],
        ["See the kernel's log."],
    ),
}
BLOCKS = {
    "boot-cpu": (
        f"{IN_PAUSES}: {BOOT_CPU}",
        "",
        UNLISTED,
        ["All other CPUs are paused", "because CPU 0, Cortex-A76 r4p1, is not known"],
        [],
    ),
    "secondary-cpu": (
        f"{IN_PAUSES}: {SECONDARY_CPU}",
        "",
        UNLISTED,
        ["All other CPUs are paused", "because CPU 2, Cortex-A76 r4p1, is not known"],
        [],
    ),
    "not-started": (
        f"{IN_PAUSES}: {NOT_STARTED}",
        "maxcpus=2",
        LISTED,
        ["some CPUs had not started"],
        ["Remove maxcpus=2 ", "no pauses"],
    ),
    "added-later": (
        f"{IN_PAUSES}: {NOT_STARTED}",
        "",
        LISTED,
        ["some CPUs had not started"],
        ["Boot with arm64.linear_map=live", "no pauses"],
    ),
    "nobbml2": (
        f"{IN_PAUSES}: arm64.nobbml2",
        "arm64.nobbml2",
        LISTED,
        ["booted with arm64.nobbml2."],
        ["Remove arm64.nobbml2 ", "no pauses"],
    ),
    "nobbml2-on-other-cpus": (
        f"{IN_PAUSES}: arm64.nobbml2",
        "arm64.nobbml2",
        UNLISTED,
        ["booted with arm64.nobbml2."],
        [],
    ),
    "pause": (
        f"{IN_PAUSES}: arm64.linear_map=pause",
        "arm64.linear_map=pause",
        LISTED,
        ["booted with arm64.linear_map=pause."],
        ["Remove arm64.linear_map=pause ", "no pauses"],
    ),
    "pause-and-nobbml2": (
        f"{IN_PAUSES}: arm64.linear_map=pause",
        "arm64.linear_map=pause arm64.nobbml2",
        LISTED,
        ["booted with arm64.linear_map=pause."],
        ["Remove arm64.linear_map=pause and arm64.nobbml2 "],
    ),
    "af": (
        f"{IN_PAUSES}: {AF}",
        "arm64.linear_map=af",
        LISTED,
        ["booted with arm64.linear_map=af.", "nobody uses"],
        ["Remove arm64.linear_map=af ", "no pauses"],
    ),
    "live": (
        "split and folded back live: BBM level 2 without aborts",
        "",
        LISTED,
        ["All CPUs are of a model"],
        [],
    ),
    "fixed": (FIXED, "rodata=on", LISTED, ["protection of rodata=full"], ["Boot with rodata=full"]),
}


@pytest.mark.parametrize(
    ("mode", "case"),
    [("pages", name) for name in PAGES] + [("blocks", name) for name in BLOCKS],
)
def test_a_reason_for_the_linear_map_is_told_whole_with_what_to_do(tree, status, mode, case):
    reason, parameters, cpus, why, change = (PAGES if mode == "pages" else BLOCKS)[case]
    changes = linear_map_says(mode, reason, parameters, cpus, ISOLATES)
    linear_map = by_name(status(without_log(tree("all-on", changes))))["linear-map"]
    assert linear_map["certain"]
    # Without files it is the log that says it.
    assert by_name(status(without_files(tree("all-on", changes))))["linear-map"] == linear_map
    on = mode == "blocks" and case != "fixed"
    assert (linear_map["state"], linear_map["mode"]) == ("on" if on else "off", mode)
    assert [words for words in why if words not in linear_map["why"]] == []
    assert bool(linear_map["changes"]) == bool(change)
    changes = " ".join(linear_map["changes"])
    assert [words for words in change if words not in changes] == []
    assert "Only other CPUs" not in changes


@pytest.mark.parametrize(
    ("words", "isolated"),
    [
        ("quiet", False),
        ("isolcpus=2-3", True),
        ("isolcpus=", True),
        ("isolcpus=managed_irq,2-3", False),
        ("isolcpus=managed_irq,domain,2-3", True),
        ("isolcpus=nohz,managed_irq,2-3", True),
        ("isolcpus=2-3 isolcpus=managed_irq,2-3", True),
        ("nohz_full=2-3", True),
        ("nohz-full=2-3", True),
        ("isolcpus nohz_full", False),
    ],
)
def test_cpus_are_isolated_by_what_the_kernel_takes_for_that(tree, words, isolated):
    """linear-map's note_isolcpus() is called for each of these, without a value for the last."""
    machine = tool.read_machine(tool.Files(tree("cortex-a76", cmdline(words))))
    assert tool._left_alone(replace(machine, config={})) == (ISOLATED if isolated else "")


def test_each_reason_of_the_kernel_is_among_those():
    """Whatever the kernel may say of the linear map at boot, the test above has it said."""
    folder = SPACE.root / "features/linear-map/linux/arch/arm64/mm"
    code = (folder / "linear_map.c").read_text()
    choice = code.split(" why_no_pauses(void)\n")[1].split("*blocks_or_pages(void)\n")[0]
    texts = re.findall(r'"([^"]+)"', choice)
    for name in ("linear_map_pause.c", "linear_map.h"):
        texts += re.findall(
            r'why_linear_map_cannot_pause\(void\)\n\{.*?return "([^"]+)"',
            (folder / name).read_text(),
            re.DOTALL,
        )
    assert len(texts) == 14
    later = code.split(" why_not_live(void)\n")[1].split("\n}\n")[0]
    assert re.findall(r'"([^"]+)"', later) == [NOT_STARTED, SECONDARY_CPU]
    texts += [NOT_STARTED, SECONDARY_CPU]
    reasons = [case[0] for case in (*PAGES.values(), *BLOCKS.values())]
    assert [text for text in texts if not any(text in reason for reason in reasons)] == []
    # After a repaint it also says why there are no pauses.
    finalise = code.split(" linear_map_finalise(void)\n")[1].split("\n}\n")[0]
    assert "mode_reason = why;" in finalise
    assert "no_pause_reason = why_no_pauses();" in finalise
    assert 'no_pause_reason ? ", and " : ""' in code
    ways = code.split("*way_of_splits(void)\n")[1].split("\n}\n")[0]
    ways = re.findall(r'"([^"]+)"', ways)
    assert ways == [f"{tool._IN_PAUSES}: ", f"{tool._LIVE}: ", "repainted: "]
    for way in ways:
        assert any(reason.startswith(way) for reason in reasons), way
    assert tool._IN_PAUSES == IN_PAUSES
    ours = (tool._LIVE_ONLY, tool._NOT_STARTED, tool._ISOLATED, tool._REAL_TIME)
    assert ours == (LIVE_ONLY, NOT_STARTED, ISOLATED, REAL_TIME)


def test_the_files_of_the_linear_map_are_the_kernels():
    folder = SPACE.root / "features/linear-map/linux/arch/arm64/mm"
    code = "".join((folder / f"linear_map{part}").read_text() for part in (".c", ".h", "_pause.c"))
    names = re.findall(r"struct kobj_attribute (\w+)_attr = __ATTR_RO\(\1\);", code)
    assert names == ["mode", "reason"]
    assert "_ATTR(pauses," in code
    assert '"%s\\n", blocks_or_pages()' in code
    [base] = re.findall(r'^#define LINEAR_MAP_SYSFS "(\w+)"$', code, re.MULTILINE)
    assert f"/sys/kernel/mm/{base}" == tool._LINEAR_MAP


@pytest.mark.parametrize("levels", [2, 3])
def test_a_parameter_whose_removal_would_not_bring_blocks_is_not_all_to_change(
    tree, status, levels
):
    reason = f"{BOOT_CPU}, and {LIVE_ONLY}"
    config = f"CONFIG_PGTABLE_LEVELS={levels}\n"
    changes = linear_map_says("pages", reason, LIVE_ONLY, UNLISTED, config)
    linear_map = by_name(status(tree("all-on", changes)))["linear-map"]
    assert len(linear_map["changes"]) == 1
    assert linear_map["changes"][0].startswith("Boot a kernel that can pause CPUs")
    assert f"without {LIVE_ONLY}" in linear_map["changes"][0]


def test_a_parameter_is_not_removed_where_it_is_the_default(tree, status):
    """Without it the kernel would do the same."""
    config = "CONFIG_DEBUG_PAGEALLOC=y\nCONFIG_DEBUG_PAGEALLOC_ENABLE_DEFAULT=y\n"
    changes = linear_map_says("pages", "debug_pagealloc=on", "debug_pagealloc=1", LISTED, config)
    linear_map = by_name(status(tree("all-on", changes)))["linear-map"]
    assert linear_map["changes"] == ["Boot with debug_pagealloc=off."]


NOTHING_SAID = {"no-log": "cannot be read", "lost": "has lost its start", "silent": "does not say"}


@pytest.mark.parametrize("mode", ["pages", "blocks"])
@pytest.mark.parametrize("log", NOTHING_SAID)
def test_a_linear_map_of_which_the_kernel_says_nothing_is_unknown(tree, status, call, mode, log):
    """Whatever its command line asked for, and whatever CPUs there are."""
    changes = linear_map_says(mode, "lost", "arm64.nobbml2 arm64.linear_map=pages", UNLISTED)
    if log == "lost":
        changes["/dev/kmsg"] = "6,9000,9,-;eth0: link becomes ready\n"
    elif log == "silent":
        changes |= logged("linear map: ", "eth0: link becomes ready")
    root = without_files(tree("all-on", changes))
    if log == "no-log":
        without_log(root)
    value = status(root)
    assert value["exit_status"] == 3
    linear_map = by_name(value)["linear-map"]
    assert (linear_map["state"], linear_map["mode"]) == ("unknown", mode)
    assert not linear_map["certain"]
    assert "/sys/kernel/mm/linear_map" in linear_map["why"]
    assert f"the kernel's log {NOTHING_SAID[log]}." in linear_map["why"]
    [change] = linear_map["changes"]
    assert "where /sys is mounted" in change
    # Root reads no more than is there.
    assert (", or as root" in change) == (log != "silent")
    assert ("soon after a boot" in change) == (log == "lost")
    # What is counted is known, and what of it the feature has saved is not.
    assert "mapped_by_pages" in linear_map["figures"]
    assert "page_tables_saved" not in linear_map["figures"]
    exported = call(root, "export")[1]
    assert f'feature_on{{feature="linear-map",mode="{mode}"}} NaN\n' in exported
    assert "pagewright_linear_map_saved_bytes NaN\n" in exported
    code, output = call(root, "check")
    assert code == 0
    words = f"/sys/kernel/mm/linear_map does not say it, and the kernel's log {NOTHING_SAID[log]}"
    assert f"skipped  the linear map is what the kernel says: {words}\n" in output


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("blocks", ""), ("", "arm64.linear_map=pages"), ("bricks", "arm64.linear_map=pages")],
)
def test_files_that_do_not_say_what_the_linear_map_is_are_not_believed(tree, status, mode, reason):
    """As in a tree that somebody made; the log may say it then."""
    names = {"mode": mode, "reason": reason}
    changes = {f"/sys/kernel/mm/linear_map/{name}": f"{text}\n" for name, text in names.items()}
    linear_map = by_name(status(tree("all-on", changes)))["linear-map"]
    assert linear_map == by_name(status(tree("all-on")))["linear-map"]
    linear_map = by_name(status(without_log(tree("all-on", changes))))["linear-map"]
    assert linear_map["state"] == "unknown"


def test_files_say_what_the_linear_map_is_whatever_a_log_says(tree, status):
    """That of another boot may lie beside a copy of /sys."""
    changes = linear_map_says("pages", "arm64.linear_map=pages")
    del changes["/dev/kmsg"]
    linear_map = by_name(status(tree("all-on", changes)))["linear-map"]
    assert (linear_map["state"], linear_map["mode"], linear_map["certain"]) == (
        "off",
        "pages",
        True,
    )


def test_struct_pages_that_are_in_pages_anyway_do_not_depend_on_the_cpus(tree, status, call):
    """So it is with pages of 16 KiB and 64 KiB, on any CPU."""
    changes = linear_map_says("blocks", f"{IN_PAUSES}: {BOOT_CPU}", "", UNLISTED)
    changes["/sys/kernel/mm/hugetlb_vmemmap/reason"] = "the vmemmap consists of pages\n"
    root = tree("all-on", changes)
    why = by_name(status(root))["hugetlb-vmemmap"]["why"]
    assert why.startswith("No CPU is paused")
    assert "of a model" not in why
    words = advice(call, root)["cpu-pause"]["words"]
    assert words.startswith("linear-map needs it")


def test_cpus_that_had_not_started_have_blocks_split_in_pauses(tree, status, call):
    """Also where all CPUs are of a model that could do it live."""
    changes = linear_map_says("blocks", f"{IN_PAUSES}: {NOT_STARTED}")
    reason = "CPUs are paused only to split a block, once\n"
    root = tree("all-on", changes | {"/sys/kernel/mm/hugetlb_vmemmap/reason": reason})
    why = by_name(status(root))["hugetlb-vmemmap"]["why"]
    assert why.endswith("because some had not started at boot, and may be of another model.")
    words = advice(call, root)["cpu-pause"]["words"]
    assert "hugetlb-vmemmap does without it" not in words


def without_linear_map(root: Path, built: bool = False) -> None:
    """Take away what a kernel with linear-map counts, and the symbol unless it was built so."""
    vmstat = root / "proc" / "vmstat"
    vmstat.write_text(re.sub(r"(?m)^linear_map_.*\n", "", vmstat.read_text()))
    if not built:
        config = root / "boot" / "config-6.12.117"
        config.write_text(config.read_text().replace("CONFIG_ARM64_LINEAR_MAP_BLOCKS=y\n", ""))


@pytest.mark.parametrize(
    ("given", "built", "because"),
    [
        ("arm64.nobbml2", True, "because the kernel was booted with arm64.nobbml2."),
        (
            "",
            False,
            "because this kernel was built without CONFIG_ARM64_LINEAR_MAP_BLOCKS, which splits",
        ),
        ("", True, "and the kernel does not say what the reason is."),
    ],
    ids=["nobbml2", "without-linear-map", "unknown"],
)
def test_struct_pages_are_split_in_pauses_for_the_reason_that_there_is(
    tree, status, call, given, built, because
):
    """The kernel gives the same one whatever keeps it from splitting blocks live."""
    changes = linear_map_says("blocks", f"{IN_PAUSES}: arm64.nobbml2", given)
    reason = "CPUs are paused only to split a block, once\n"
    root = tree("all-on", changes | {"/sys/kernel/mm/hugetlb_vmemmap/reason": reason})
    users = "linear-map and hugetlb-vmemmap need it"
    if not given:
        without_linear_map(root, built)
        users = "hugetlb-vmemmap needs it"
    hvo = by_name(status(root))["hugetlb-vmemmap"]
    assert because in hvo["why"]
    assert ("Remove arm64.nobbml2 " in " ".join(hvo["changes"])) == bool(given)
    assert advice(call, root)["cpu-pause"]["words"].startswith(users)


@pytest.mark.parametrize(
    ("given", "way", "size", "pauses"),
    [
        ("arm64.nobbml2", f"{IN_PAUSES}: arm64.nobbml2", 4, True),
        ("arm64.nobbml2", f"{IN_PAUSES}: arm64.nobbml2", 16, False),
        ("arm64.linear_map=pages arm64.nobbml2", "arm64.linear_map=pages", 4, True),
        ("", f"{IN_PAUSES}: {NOT_STARTED}", 4, True),
        # How the linear map is split is not asked.
        ("arm64.linear_map=pause", f"{IN_PAUSES}: arm64.linear_map=pause", 4, False),
        ("", "split and folded back live: BBM level 2 without aborts", 4, False),
        # A kernel without linear-map splits nothing live.
        ("", None, 4, True),
    ],
)
def test_a_mode_that_was_asked_for_does_not_hide_pauses(tree, status, given, way, size, pauses):
    """The kernel gives no other reason then, and splits blocks in pauses all the same."""
    changes = linear_map_says("blocks", way or "", f"hugetlb_vmemmap=seamless {given}")
    changes["/sys/kernel/mm/hugetlb_vmemmap/reason"] = "asked for with hugetlb_vmemmap=\n"
    root = tree("all-on", changes)
    smaps = root / "proc/self/smaps"
    smaps.parent.mkdir(exist_ok=True)
    smaps.write_text(f"KernelPageSize: {size} kB\n")
    if way is None:
        without_linear_map(root)
    found = by_name(status(root))
    assert ("does without it" in found["cpu-pause"]["why"]) == (not pauses)
    hvo = found["hugetlb-vmemmap"]
    assert hvo["why"].startswith("The kernel was booted with hugetlb_vmemmap=seamless.")
    assert ("CPUs are paused only when" in hvo["why"]) == pauses
    assert ("Remove arm64.nobbml2 " in " ".join(hvo["changes"])) == (
        pauses and "arm64.nobbml2" in given
    )
    if "arm64.nobbml2" in given and pauses:
        assert "because the kernel was booted with arm64.nobbml2." in hvo["why"]


def test_linear_map_needs_pauses_for_whatever_reason_the_kernel_gives(tree, call):
    """A parameter keeps these CPUs from splitting blocks live; the list of models has them."""
    for reason in ("arm64.nobbml2", "arm64.linear_map=pause", NOT_STARTED):
        root = tree("all-on", linear_map_says("blocks", f"{IN_PAUSES}: {reason}"))
        words = advice(call, root)["cpu-pause"]["words"]
        assert words.startswith("linear-map needs it"), reason
    # Where the CPUs say it themselves the kernel knows better than the list.
    live = linear_map_says("blocks", "split and folded back live: BBM level 3", "", UNLISTED)
    assert "linear-map" not in advice(call, tree("all-on", live))["cpu-pause"]["words"]


@pytest.mark.parametrize(
    ("value", "on"), [(None, False), ("N", False), ("Y", True), ("force", True)]
)
@pytest.mark.parametrize("not_optimized", [0, 8])
def test_memory_that_holds_its_own_struct_pages_saves_none(tree, status, value, on, not_optimized):
    """Hugetlb pages in it are never optimized, and not counted as such that were not."""
    hvo = "/sys/kernel/mm/hugetlb_vmemmap"
    changes: dict[str, str | None] = {
        f"{hvo}/bytes_saved": f"{56 * 24 << 10}\n",
        f"{hvo}/not_optimized": f"{not_optimized}\n",
    }
    if value:
        changes["/sys/module/memory_hotplug/parameters/memmap_on_memory"] = f"{value}\n"
    (change,) = by_name(status(tree("all-on", changes)))["hugetlb-vmemmap"]["changes"]
    usual = "Some hugetlb pages kept all" if not_optimized else "allocated while it was off"
    assert usual in change
    assert ("memory_hotplug.memmap_on_memory" in change) == on
    whole = changes | {f"{hvo}/bytes_saved": f"{64 * 24 << 10}\n"}
    assert by_name(status(tree("all-on", whole)))["hugetlb-vmemmap"]["changes"] == []


def test_hvo_that_is_switched_off(tree, status):
    found = by_name(status(tree("all-on", {"/proc/sys/vm/hugetlb_optimize_vmemmap": "0\n"})))
    assert found["hugetlb-vmemmap"]["state"] == "off"
    assert "vm.hugetlb_optimize_vmemmap=1" in found["hugetlb-vmemmap"]["changes"][0]


@pytest.mark.parametrize(
    ("words", "saved", "config", "state"),
    [
        ("hugetlb_free_vmemmap=off", "0", "", "off"),
        ("hugetlb_free_vmemmap=on", "0", "", "on"),
        # What is freed says that it was on at least.
        ("", "1572864", "", "on"),
        ("", "0", "CONFIG_HUGETLB_PAGE_OPTIMIZE_VMEMMAP_DEFAULT_ON=y\n", "on"),
        ("", "0", "CONFIG_HUGETLB_PAGE=y\n", "off"),
        ("", "0", None, "unknown"),
    ],
)
def test_hvo_whose_setting_cannot_be_read(tree, status, words, saved, config, state):
    """As in a copy without /proc/sys, or in a kernel without CONFIG_SYSCTL."""
    changes = cmdline(words) | {
        "/proc/sys/vm/hugetlb_optimize_vmemmap": None,
        "/sys/kernel/mm/hugetlb_vmemmap/bytes_saved": f"{saved}\n",
    }
    root = tree("all-on", changes)
    file = root / "boot" / "config-6.12.117"
    if config is None:
        file.unlink()
    elif config:
        file.write_text(config)
    hvo = by_name(status(root))["hugetlb-vmemmap"]
    assert (hvo["state"], hvo["certain"]) == (state, False)
    if state == "off":
        assert "hugetlb_free_vmemmap" in hvo["why"]
    if state == "unknown":
        assert "/proc/sys/vm/hugetlb_optimize_vmemmap" in hvo["why"]


@pytest.mark.parametrize("version", [{}, UNCOUNTED], ids=["counted", "uncounted"])
def test_cpus_whose_features_cannot_be_read_are_not_said_to_lack_lse(tree, status, version):
    root = tree("all-on", {"/proc/cpuinfo": None} | version)
    found = by_name(status(root))["percpu-local"]
    assert (found["state"], found["mode"], found["certain"]) == ("on", "", True)
    table = "Each CPU has a kernel page table of its own"
    assert re.match(f"{table}, which replaces about 20 |{re.escape(table)}\\.$", found["why"])
    assert "LSE" not in found["why"]
    assert "load-exclusive" not in found["why"]
    assert "atomic instruction" not in found["why"]


def test_a_kernel_without_a_preemption_count_is_said_to_gain_little(tree, status):
    value = status(tree("all-on", UNCOUNTED))
    assert value["machine"]["preemption"] == {
        "model": "voluntary",
        "dynamic": False,
        "counted": False,
    }
    assert "does not count preemption" in by_name(value)["percpu-local"]["changes"][0]


@pytest.mark.parametrize(
    ("version", "symbol", "model", "dynamic"),
    [
        # Debian's cloud-arm64 of 7.3.4.
        ("PREEMPT Debian 7.3.4-1~bpo13+1", "PREEMPT_LAZY", "lazy", False),
        ("PREEMPT Debian 7.3.4-1~bpo13+1", "PREEMPT", "full", False),
        ("PREEMPT Debian 7.3.4-1~bpo13+1", None, "full", False),
        ("PREEMPT_RT Debian 7.3.4-1~bpo13+1", "PREEMPT_LAZY", "rt", False),
        ("PREEMPT_DYNAMIC", "PREEMPT_LAZY", "lazy", True),
        ("PREEMPT_DYNAMIC", None, "full", True),
    ],
)
def test_the_preemption_model_is_the_configurations_where_the_version_does_not_tell(
    tree, status, version, symbol, model, dynamic
):
    config = f"CONFIG_{symbol}=y\nCONFIG_PREEMPT_COUNT=y\n" if symbol else "CONFIG_ARM64=y\n"
    changes = {
        "/proc/version": f"Linux version 6.12.117 (a@b) #1 SMP {version}\n",
        "/boot/config-6.12.117": config,
    }
    found = status(without_log(tree("unpatched", changes)))["machine"]["preemption"]
    assert found == {"model": model, "dynamic": dynamic, "counted": True}


@pytest.mark.parametrize(
    ("release", "parameters", "symbol", "model"),
    [
        ("6.12.117", "preempt=none", "PREEMPT", "none"),
        ("6.12.117", "preempt=none preempt=voluntary", "PREEMPT", "voluntary"),
        ("6.12.117", "preempt=lazy", "PREEMPT", "full"),
        ("6.12.117", "preempt=bogus", "PREEMPT_VOLUNTARY", "voluntary"),
        ("6.12.117", "preempt=none preempt=bogus", "PREEMPT", "none"),
        ("6.12.117", "preempt=none preempt= preempt", "PREEMPT", "none"),
        ("6.13.1", "preempt=lazy", "PREEMPT", "lazy"),
    ],
)
def test_a_preemption_model_that_the_kernel_does_not_know_is_none(
    tree, status, release, parameters, symbol, model
):
    """Where debugfs and the log cannot be read, which takes root as a rule."""
    changes = cmdline(parameters) | {
        "/proc/sys/kernel/osrelease": f"{release}\n",
        "/boot/config-6.12.117": None,
        f"/boot/config-{release}": f"CONFIG_{symbol}=y\nCONFIG_PREEMPT_DYNAMIC=y\n",
    }
    found = status(without_log(tree("unpatched", changes)))["machine"]["preemption"]
    assert found == {"model": model, "dynamic": True, "counted": True}


@pytest.mark.parametrize("parameter", ["preempt=lazy", "preempt=voluntary"])
def test_the_kernel_says_which_preemption_model_it_has(tree, status, parameter):
    """A parameter may have been refused, and debugfs may have changed the model since."""
    wrong = "Dynamic Preempt: unsupported mode: lazy"
    changes = cmdline(parameter) | logged("Dynamic Preempt: ", "Dynamic Preempt: none")
    root = tree("all-on", changes)
    with (root / "dev/kmsg").open("a") as log:
        log.write(f"4,500,999,-;{wrong}\n")
    assert status(root)["machine"]["preemption"]["model"] == "none"
    file = root / "sys/kernel/debug/sched/preempt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("none (voluntary) full \n")
    assert status(root)["machine"]["preemption"]["model"] == "voluntary"


def test_the_kernel_says_the_preemption_model_in_these_words():
    code = (source.ensure(SPACE).path / "kernel/sched/core.c").read_text()
    known = re.search(r"^int sched_dynamic_mode\(.*?^}", code, re.MULTILINE | re.DOTALL)
    assert known
    assert set(re.findall(r'!strcmp\(str, "(\w+)"\)', known[0])) == set(tool._MODELS)
    said = re.findall(r'pr_info\("(Dynamic Preempt: .*)\\n"\)', code)
    assert {tool._SAID_MODEL.match(line)[1] for line in said} == set(tool._MODELS)
    assert not tool._SAID_MODEL.match("Dynamic Preempt: unsupported mode: full")
    assert 'pr_warn("Dynamic Preempt: unsupported mode: %s\\n", str);' in code


@pytest.mark.parametrize(
    ("words", "on"),
    [
        ("arm64.atomic_write_fault=0 arm64.atomic_write_fault=x", False),
        ("arm64.atomic_write_fault=0 arm64.atomic_write_fault", False),
        ("arm64.atomic_write_fault=0 arm64.atomic_write_fault=", False),
        ("arm64.atomic_write_fault=0 arm64.atomic-write-fault=1", True),
        ("arm64.atomic_write_fault=x", True),
    ],
)
def test_a_switch_that_the_kernel_does_not_understand_is_ignored(tree, status, words, on):
    found = by_name(status(without_log(tree("all-on", cmdline(words)))))
    assert found["atomic-write-fault"]["state"] == ("on" if on else "off")


@pytest.mark.parametrize(
    ("words", "on"),
    [
        # The only one of these switches that is on where nothing stands behind it.
        ("hugetlb_free_vmemmap", True),
        ("hugetlb_free_vmemmap=off hugetlb_free_vmemmap", True),
        ("hugetlb_free_vmemmap=on hugetlb_free_vmemmap=", True),
        ("hugetlb_free_vmemmap=off hugetlb_free_vmemmap=x", False),
    ],
)
def test_a_switch_of_hugetlb_pages_is_read_as_the_kernel_does(tree, status, words, on):
    changes = cmdline(words) | {
        "/proc/sys/vm/hugetlb_optimize_vmemmap": None,
        "/sys/kernel/mm/hugetlb_vmemmap/bytes_saved": "0\n",
        "/boot/config-6.12.117": "CONFIG_HUGETLB_PAGE=y\n",
    }
    found = by_name(status(tree("all-on", changes)))["hugetlb-vmemmap"]
    assert found["state"] == ("on" if on else "off")


def test_a_parameter_that_takes_no_value_has_none(tree, call):
    """The kernel looks for the word alone."""
    for word, needed in (("arm64.nobbml2", True), ("arm64.nobbml2=1", False)):
        root = tree("unpatched", cmdline(word))
        for number in range(2):
            name = f"sys/devices/system/cpu/cpu{number}/regs/identification/midr_el1"
            (root / name).write_text(f"{AMPERE_1A}\n")
        assert ("linear-map" in advice(call, root)["cpu-pause"]["words"]) == needed


@pytest.mark.parametrize(
    ("config", "counted"),
    [
        (None, None),
        ("CONFIG_PREEMPT_VOLUNTARY=y\n", False),
        # As one that looks for sleeping in atomic context has it.
        ("CONFIG_PREEMPT_VOLUNTARY=y\nCONFIG_PREEMPT_COUNT=y\n", True),
    ],
)
def test_without_a_configuration_no_kernel_is_said_to_be_without_a_count(
    tree, status, call, config, counted
):
    """The version of one with PREEMPT_NONE or PREEMPT_VOLUNTARY does not tell."""
    changes = UNCOUNTED | {"/boot/config-6.12.117": config}
    root = tree("all-on", changes)
    value = status(root)
    assert value["machine"]["preemption"]["counted"] is counted
    found, advised = by_name(value)["percpu-local"], advice(call, root)["percpu-local"]
    unknown = "Whether this kernel counts preemption"
    assert [unknown in words for words in (found["why"], advised["words"])] == [counted is None] * 2
    assert (advised["gain"] == "unknown") == (counted is None)
    assert bool(found["changes"]) == (counted is False)
    said = call(root, "status")[1]
    assert "not counted" not in said or counted is False
    assert ("it is unknown whether that is counted" in said) == (counted is None)


def test_a_real_time_kernel_is_known_without_its_configuration(tree, call):
    """It pauses no CPUs unless that is asked for."""
    version = "Linux version 6.12.117 (a@b) #1 SMP PREEMPT_RT Debian 6.12.117-1\n"
    changes: dict[str, str | None] = {"/proc/version": version, "/boot/config-6.12.117": None}
    words = advice(call, tree("cortex-a76", changes))["linear-map"]["words"]
    assert f"As {REAL_TIME}, that takes the boot parameter arm64.linear_map=pause." in words


@pytest.mark.parametrize(("byte", "words"), [(1, "Secure Boot on"), (0, "Secure Boot off")])
def test_secure_boot_and_lockdown(tree, status, call, byte, words):
    root = tree("all-on", {"/sys/kernel/security/lockdown": "none [integrity] confidentiality\n"})
    variable = root / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    variable.parent.mkdir(parents=True)
    variable.write_bytes(bytes([6, 0, 0, 0, byte]))
    value = status(root)["machine"]
    assert (value["secure_boot"], value["lockdown"]) == (bool(byte), "integrity")
    assert f"{words}; lockdown integrity" in call(root, "status")[1]


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """Return the tree of a machine as a user sees it, while this process is no longer root's."""
    with tempfile.TemporaryDirectory() as folder:
        root = unpack("all-on", Path(folder))
        (root / "dev" / "kmsg").chmod(0)
        (root / "sys" / "kernel" / "debug").chmod(0)
        root.chmod(0o755)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            yield root
        finally:
            if is_root:
                os.seteuid(0)
            (root / "sys" / "kernel" / "debug").chmod(0o755)


def test_without_permission_it_says_what_it_could_not_read(unprivileged, call):
    code, output = call(unprivileged, "status", "--json")
    value = json.loads(output)
    assert code == 0
    assert {missed["path"]: missed["why"] for missed in value["unreadable"]} == {
        "/dev/kmsg": "it takes root",
        "/sys/kernel/debug/sched/preempt": "it takes root",
    }
    found = by_name(value)
    assert {feature["state"] for feature in found.values()} == {"on"}
    assert all(found[name]["certain"] for name in IN_FILES)
    assert "of a model that can change the size" in found["linear-map"]["why"]
    assert found["percpu-local"]["figures"]["page_tables"] == 4 * 28 << 10
    inferred = "That is inferred, because the kernel's log cannot be read."
    for name, feature in found.items():
        assert (inferred in feature["why"]) != feature["certain"], name
    assert not found["cpu-pause"]["certain"]
    code, output = call(unprivileged, "status")
    assert code == 0
    assert "/dev/kmsg cannot be read: it takes root." in output
    code, output = call(unprivileged, "map")
    assert code == 0
    assert "kernel_page_tables cannot be read: it takes root." in " ".join(output.split())
    assert "DirectMap32M" in output


@pytest.fixture
def here(monkeypatch):
    """Let a tree be this machine, whose journal says nothing."""
    live = property(lambda _: True, lambda *_: None)
    monkeypatch.setattr(tool.Files, "live", live, raising=False)
    monkeypatch.setattr(tool, "_ask_journal", tuple)


AS_ROOT = ("as root", "the kernel forbids it to root, too")
OUTSIDE = ("outside of the container", "it takes root outside of the container")
# A hardened unit of the administrator's is no container. Lockdown, for one, forbids other files.
WITHOUT_SYSLOG = (
    "with CAP_SYSLOG, which containers and hardened units lack",
    "it takes CAP_SYSLOG, which containers and hardened units lack",
)


@pytest.mark.parametrize(
    ("user", "uids", "capabilities", "words"),
    [
        (0, "0 0 4294967295", "000001ffffffffff", AS_ROOT),
        # What the exporter's unit keeps.
        (0, "0 0 4294967295", "0000000400000002", AS_ROOT),
        (0, "0 0 4294967295", "00000000a80425fb", WITHOUT_SYSLOG),
        (0, "0 100000 65536", "000001ffffffffff", OUTSIDE),
        (1000, "0 100000 65536", "0000000000000000", ("as root", "it takes root")),
    ],
    ids=["root", "unit", "docker", "user-namespace", "user"],
)
def test_root_that_lacks_something_is_told_what(
    tree, status, here, monkeypatch, user, uids, capabilities, words
):
    process = {"/self/uid_map": f" {uids}\n", "/self/status": f"CapEff:\t{capabilities}\n"}
    root = without_files(without_log(tree("all-on", process)))
    monkeypatch.setattr(tool, "_PROCESS", root / "self")
    monkeypatch.setattr(tool.os, "geteuid", lambda: user)
    how, why = words
    [change] = by_name(status(root))["linear-map"]["changes"]
    assert f", or {how}. If" in change
    files = tool.Files(root)
    for name in ("/dev/kmsg", "/sys/kernel/debug/sched/preempt"):
        files.note(name, PermissionError(errno.EPERM, "no"))
    log, other = files.unreadable
    assert log.why.startswith(why)
    assert other.why.startswith(AS_ROOT[1] if words == WITHOUT_SYSLOG else why)
    (root / "proc" / "vmstat").unlink()
    [change] = by_name(status(root))["atomic-write-fault"]["changes"]
    assert how in change


@pytest.mark.parametrize("user", [0, 1000])
def test_nobody_is_sent_to_root_for_page_tables_that_the_kernel_does_not_show(
    tree, call, monkeypatch, user
):
    """Debian's own kernels are such; everyone may read how they were configured."""
    root = tree("all-on", {"/sys/kernel/debug/kernel_page_tables": None})
    monkeypatch.setattr(tool.os, "geteuid", lambda: user)
    config = root / "boot" / "config-6.12.117"
    symbol = "CONFIG_PTDUMP_DEBUGFS"
    config.write_text(config.read_text().replace(f"{symbol}=y", f"# {symbol} is not set"))
    code, output = call(root, "map")
    assert code == 0
    assert f"The kernel has no kernel_page_tables ({symbol})." in " ".join(output.split())
    assert "DirectMap" in output


# What a user without rights can have the kernel or a program of root write to the log: the name of
# a control group, the path of a program, a name that came over the network.
TALES = (
    "cpu_pause: CPU3 may run the kernel, though",
    "cpu_pause: no CPU hotplug state (-28), so no CPU can be paused",
    "atomic-write-fault: off (arm64.atomic_write_fault=0)",
    "linear map: pages (arm64.linear_map=pages)",
    "Dynamic Preempt: none",
    "HugeTLB: 25 KiB vmemmap can be freed for a 2.00 MiB page",
    "Linux version 1",
)


@pytest.mark.parametrize(
    "record",
    [
        "6,900,9,-;oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user.slice/{},task=a,pid=7",
        "4,901,9,-;process '{}' started with executable stack",
        "4,902,9,-;process '\\x0a{}' started with executable stack",
        # A process wrote these to /dev/kmsg: their facility is not that of the kernel.
        "12,903,9,-;{}",
        "30,904,9,-,caller=T7;{}",
    ],
)
def test_what_others_have_in_the_log_is_not_the_kernels_word(tree, call, record):
    root = tree("all-on")
    commands = (["status", "--json"], ["check"], ["export"])
    expected = [call(root, *words) for words in commands]
    assert [code for code, _ in expected] == [0, 0, 0]
    with (root / "dev" / "kmsg").open("a") as log:
        log.writelines(f"{record.format(tale)}\n" for tale in TALES)
    assert [call(root, *words) for words in commands] == expected


def test_a_tale_of_others_does_not_make_a_log_complete(tree):
    """Otherwise no CPU would be lost for certain."""
    tale = "4,901,9,-;process '/home/Linux version 1' started with executable stack\n"
    assert not tool.read_log(tool.Files(tree("all-on", {"/dev/kmsg": tale}))).complete


@pytest.mark.parametrize(
    "line",
    [
        "6,8,0,-,caller=T0;{}",
        "[    0.000000] {}",
        "<6>[    0.000000] {}",
        "[    0.000000][    T0] {}",
        "[    0.000000] [    T0] {}",
        "<6>[    0.000000][   C12] {}",
        "[Sat Nov 28 05:14:44 2026] {}",
        "{}",
    ],
)
def test_lines_of_the_kernels_log_come_with_different_beginnings(line):
    """With CONFIG_PRINTK_CALLER they name who has written them."""
    assert tool.parse_log(line.format("linear map: pages (x)\n")) == ("linear map: pages (x)",)


def test_a_line_that_a_process_has_written_is_none_of_the_kernels():
    text = "<6>[    0.1] percpu: a\n<12>[    0.2] percpu: b\n"
    assert tool.parse_log(text) == ("percpu: a",)


def test_the_log_is_no_command_to_the_terminal(tree, call):
    line = "6,900,0,-;cpu_pause: no CPU hotplug state \x1b]0;owned\x07\n"
    output = call(tree("all-on", {"/dev/kmsg": line}), "status")[1]
    assert "?]0;owned?" in output
    assert "\x1b" not in output


def test_what_the_journal_says_is_the_kernels_and_no_command_to_the_terminal(tmp_path, monkeypatch):
    """It has what processes wrote to /dev/kmsg, too, and line breaks that are in a name."""
    name = "a\nlinear map: pages (x)"
    messages = [
        {"MESSAGE": "Linux version 6.12.117"},
        {"MESSAGE": f"process '{name}' started with executable stack"},
        {"MESSAGE": "percpu: \x1b]0;a\x07"},
        # As the journal writes what is not printable, and what is too long.
        {"MESSAGE": [*b"percpu: \x1b]0;b\x07"]},
        {"MESSAGE": None},
    ]
    (tmp_path / "messages").write_text("\n".join(map(json.dumps, messages)) + '\n{"MESSAGE": "cu')
    journal = tmp_path / "journalctl"
    journal.write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/words\ncat {tmp_path}/messages\n')
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert tool._ask_journal() == (
        "Linux version 6.12.117",
        "process 'a?linear map: pages (x)' started with executable stack",
        "percpu: ?]0;a?",
    )
    words = (tmp_path / "words").read_text().split()
    assert {"--dmesg", "--boot", "--output=json", "SYSLOG_FACILITY=0"} <= set(words)


def test_a_journal_of_months_is_read_as_far_as_the_boot_goes(tmp_path, monkeypatch):
    """The exporter asks for it each minute."""
    journal = tmp_path / "journalctl"
    first = """echo '{"MESSAGE": "Linux version 6.12.117"}'"""
    more = """yes '{"MESSAGE": "x"}' | head -n 2000000"""
    journal.write_text(f"#!/bin/sh\n{first}; {more}; exec sleep 60\n")
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    lines = tool._ask_journal()
    assert lines[:2] == ("Linux version 6.12.117", "x")
    assert len(lines) < 2000000
    journal.write_text(f"#!/bin/sh\n{first}\n")
    assert tool._ask_journal() == ("Linux version 6.12.117",)
    journal.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool._ask_journal() == ()


def test_whoever_interrupts_the_journal_need_not_wait_for_it(tmp_path, monkeypatch):
    journal = tmp_path / "journalctl"
    # Not before it is waited for.
    journal.write_text(f"#!/bin/sh\nsleep 0.5\nkill -INT {os.getpid()}\nexec sleep 60\n")
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # Threads of earlier tests may end meanwhile.
    earlier = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        tool._ask_journal()
    for thread in set(threading.enumerate()) - earlier:
        thread.join(5)
    assert not set(threading.enumerate()) - earlier


def test_a_folder_that_may_not_be_looked_into_is_no_error(unprivileged, call, monkeypatch):
    """Neither as that of --root, nor as /sys/firmware, in a container for example."""
    closed = unprivileged / "sys" / "kernel" / "debug"
    assert call(closed / "root", "status") == (1, f"pagewright: {closed}/root: Permission denied\n")
    find = tool.Files.path
    monkeypatch.setattr(
        tool.Files, "path", lambda *at: find(at[0], at[1].replace("firmware", "kernel/debug"))
    )
    code, output = call(unprivileged, "status")
    assert code == 0
    assert "Secure Boot unknown" in output
    assert "/sys/firmware cannot be read: it takes root." in output


def test_without_uefi_there_is_no_secure_boot_if_that_can_be_seen(tree, call):
    """In a container /sys/firmware is empty as a rule, whatever started the computer."""
    firmware = tree("all-on") / "sys" / "firmware"
    firmware.mkdir()
    assert "Secure Boot unknown; lockdown" in call(tree("all-on"), "status")[1]
    (firmware / "devicetree").mkdir()
    assert "no UEFI, so no Secure Boot; lockdown" in call(tree("all-on"), "status")[1]
    (firmware / "efi").mkdir()
    assert "Secure Boot unknown; lockdown" in call(tree("all-on"), "status")[1]


def test_a_log_that_has_lost_its_start_is_asked_of_the_journal(tree, monkeypatch):
    files = tool.Files(tree("all-on", {"/dev/kmsg": "6,9000,9,-;eth0: link becomes ready\n"}))
    journal = ("Linux version 6.12.117", "Dynamic Preempt: none")
    monkeypatch.setattr(tool, "_ask_journal", lambda: journal)
    assert tool.read_log(files).complete is False
    files.live = True
    log = tool.read_log(files)
    assert (log.source, log.complete) == ("journalctl", True)
    assert log.last(r"Dynamic Preempt: (\w+)")[1] == "none"
    monkeypatch.setattr(tool, "_ask_journal", tuple)
    assert tool.read_log(files).source == "/dev/kmsg"


def test_the_newest_lines_are_those_of_the_ring(tree, monkeypatch):
    """The journal is read from its start, and only so far."""
    lost = f"3,9001,9,-;cpu_pause: {LOST.format(1)}\n"
    files = tool.Files(tree("cortex-a76", {"/dev/kmsg": lost}))
    files.live = True
    journal = ("Linux version 6.12.117", f"cpu_pause: {FOUND.format(1)}")
    monkeypatch.setattr(tool, "_ask_journal", lambda: journal)
    log = tool.read_log(files)
    assert (log.source, log.complete) == ("journalctl", True)
    assert log.lines == (*journal, f"cpu_pause: {LOST.format(1)}")
    assert tool.lost_cpus(replace(tool.read_machine(files), log=log)) == (1,)


def test_export_asks_the_journal_only_for_what_nothing_else_says(tree, monkeypatch, capsys):
    """It runs each minute, and the log of a machine that has been up for long has lost its start.

    Of all that the log says the state of linear-map alone cannot be inferred, in a kernel that has
    no files for it.
    """
    asked = []

    def ask() -> tuple[str, ...]:
        asked.append(1)
        return (
            "Linux version 6.12.117",
            "linear map: blocks (split and folded back live: BBM level 2 without aborts)",
        )

    monkeypatch.setattr(tool, "_ask_journal", ask)
    # Only of the machine that it runs on is the journal asked.
    live = property(lambda _: True, lambda *_: None)
    monkeypatch.setattr(tool.Files, "live", live, raising=False)

    def states(changes: dict[str, str | None]) -> tuple[dict[str, float], int]:
        asked.clear()
        assert tool.main(["--root", str(tree("all-on", changes)), "export"]) == 0
        found = samples(capsys.readouterr().out)
        return {n: v for n, v in found.items() if "feature_on" in n}, len(asked)

    lost = {"/dev/kmsg": "6,9000,9,-;eth0: link becomes ready\n"}
    expected, number = states({})
    assert (set(expected.values()), len(expected), number) == ({1}, len(FEATURES), 0)
    assert states(lost) == (expected, 0)
    assert states(lost | {"/boot/config-6.12.117": None}) == (expected, 0)
    no_files = {f"/sys/kernel/mm/linear_map/{name}": None for name in ("mode", "reason")}
    found, number = states(lost | no_files)
    assert number == 1
    assert found['pagewright_feature_on{feature="linear-map",mode="blocks"}'] == 1
    # Who asks for the status wants to have the kernel's own word.
    asked.clear()
    tool.main(["--root", str(tree("all-on", lost)), "status"])
    assert len(asked) == 1


def test_a_copy_that_tar_has_made_of_sys(tree, status):
    """Each file has the length that /sys says, filled up with zeros."""
    expected = status(tree("all-on"))
    root = tree("all-on")
    for file in (root / "sys").rglob("*"):
        if file.is_file() and "debug" not in file.parts:
            file.write_bytes(file.read_bytes().ljust(4096, b"\0"))
    assert status(root) == expected


@pytest.fixture
def other_pages(monkeypatch):
    """Let this computer have larger pages than all of those that were recorded."""
    monkeypatch.setattr(tool.os, "sysconf", {"SC_PAGE_SIZE": 64 << 10}.get)


def without_pages(root: Path, *kinds: str) -> Path:
    """Take what says how large pages are away from a tree."""
    files = {"mapping": "proc/self/smaps", "config": "boot/config-6.12.117"}
    for kind in kinds:
        if kind == "meminfo":
            meminfo = root / "proc" / "meminfo"
            meminfo.write_text(re.sub(r"(?m)^DirectMap.*\n", "", meminfo.read_text()))
        else:
            (root / files[kind]).unlink()
    return root


def test_the_size_of_pages_is_that_of_the_machine_whose_files_are_read(tree, status, other_pages):
    def size(root: Path) -> int | None:
        return status(root)["machine"]["page_size"]

    assert size(tree("all-on")) == 4096
    root = without_pages(tree("all-on"), "mapping")
    assert size(root) == 4096
    config = root / "boot" / "config-6.12.117"
    for pages in ("16K", "64K"):
        config.write_text(f"# CONFIG_ARM64_4K_PAGES is not set\nCONFIG_ARM64_{pages}_PAGES=y\n")
        assert size(root) == int(pages[:-1]) << 10
    # Without a configuration the smallest leaf is a page, though none is in use.
    config.unlink()
    assert size(root) == 4096
    meminfo = root / "proc" / "meminfo"
    text = re.sub(r"(?m)^DirectMap.*\n", "", meminfo.read_text())
    meminfo.write_text(f"{text}DirectMap16k:  0 kB\nDirectMap2M: 0 kB\nDirectMap32M: 2031616 kB\n")
    assert size(root) == 16384
    assert size(without_pages(root, "meminfo")) is None


def test_the_size_of_pages_here_is_what_the_kernel_says(tree, other_pages):
    files = tool.Files(without_pages(tree("all-on"), "mapping"))
    files.live = True
    assert tool.read_machine(files).page_size == 64 << 10


@pytest.mark.parametrize("name", ["all-on", "cortex-a76-pages", "unpatched"])
def test_a_machine_that_does_not_say_how_large_pages_are(tree, call, status, other_pages, name):
    java = "Name:\tjava\nRssAnon:\t 8388608 kB\n"
    changes = {"/proc/77/status": java, "/proc/77/cmdline": "java\0-XX:+AlwaysPreTouch\0"}
    changes |= {"/sys/kernel/debug/kernel_page_tables": "---[ Linear Mapping start ]---\n"}
    root = without_pages(tree(name, changes), "mapping", "config", "meminfo")
    value = status(root)
    assert value["machine"]["page_size"] is None
    assert "in pages of unknown size" in call(root, "status")[1]
    hvo = by_name(value)["hugetlb-vmemmap"]
    assert "most_saved" not in hvo["figures"]
    if name == "cortex-a76-pages":
        # It is not known how much is missing, but that something is.
        assert "/sys/kernel/cpu_pause/wait_us" in hvo["changes"][0]
    code, output = call(root, "check")
    assert code == (4 if name == "unpatched" else 0)
    assert len(re.findall("nothing says how large pages are", output)) == (
        0 if name == "unpatched" else 2
    )
    found = advice(call, root)
    assert "java (77) touch their heaps at the start" in found["atomic-write-fault"]["words"]
    assert "Some page tables can go" in found["linear-map"]["words"]
    assert found["linear-map"]["bytes"] is None
    pages = any(int(f.read_text()) for f in root.glob("sys/kernel/mm/hugepages/*/nr_hugepages"))
    assert found["hugetlb-vmemmap"]["gain"] == ("unknown" if pages else "nothing")
    assert samples(call(root, "export")[1])
    code, output = call(root, "map")
    assert code == 1
    assert "something says how large pages are" in output


def test_a_model_that_the_kernel_does_not_say(tree, status):
    midr = "/sys/devices/system/cpu/cpu1/regs/identification/midr_el1"
    models = status(tree("all-on", {midr: ""}))["machine"]["cpus"]["models"]
    assert [(model["midr"], model["cpus"]) for model in models] == [
        ("0x410fd842", "0,2-3"),
        (None, "1"),
    ]


def test_a_tree_of_a_stranger_is_left_by_no_link(tree, status, tmp_path):
    """With --root nothing of this machine is told as that of another one."""
    root = tree("all-on")
    expected = status(root)
    vmstat = root / "proc" / "vmstat"
    vmstat.rename(root / "proc" / "vmstat.real")
    vmstat.symlink_to("vmstat.real")
    assert status(root) == expected
    (tmp_path / "vmstat").write_text("atomic_write_fault 7\n")
    for outside in (tmp_path / "vmstat", "../../vmstat"):
        vmstat.unlink()
        vmstat.symlink_to(outside)
        value = status(root)
        assert by_name(value)["atomic-write-fault"]["state"] == "unknown"
        assert value["unreadable"] == [
            {"path": "/proc/vmstat", "why": "a link leads out of the folder of --root"}
        ]
    vmstat.unlink()
    vmstat.symlink_to("vmstat")
    assert by_name(status(root))["atomic-write-fault"]["state"] == "unknown"


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/osrelease",
        "/proc/sys/kernel/arch",
        "/sys/kernel/security/lockdown",
        "/sys/kernel/mm/linear_map/reason",
        "/sys/kernel/mm/percpu_local/reason",
        # It cannot be read, and is named.
        "/sys/kernel/cpu_pause/\x1b[2J/file",
    ],
)
def test_a_tree_of_a_stranger_is_no_command_to_the_terminal(tree, call, path):
    """The characters of an escape are told from those that only look odd."""
    root = tree("all-on", {path: "6.12 \u00b5 \x1b]0;owned\x07\x1b[2J \x9b2J \u202e\n"})
    for command in ("status", "map", "check", "advise", "export"):
        _, output = call(root, command)
        assert [c for c in output if not c.isprintable() and c != "\n"] == [], command
    if path == "/proc/sys/kernel/osrelease":
        assert "Linux 6.12 \u00b5 ?]0;owned??[2J ?2J ? on" in call(root, "status")[1]


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/sys/kernel/cpu_pause/pauses", "\u00b2\n"),
        ("/sys/kernel/cpu_pause/pauses", f"{DIGITS}\n"),
        ("/proc/meminfo", f"MemTotal: {DIGITS} kB\n"),
        ("/proc/meminfo", f"MemTotal: {DIGITS[:4000]} kB\n"),
        ("/sys/kernel/mm/hugepages/hugepages-0kB/nr_hugepages", "1\n"),
    ],
    ids=["superscript", "pauses", "memory", "more-memory", "no-size"],
)
def test_a_number_that_no_machine_has_is_an_error_in_words(tree, call, path, text):
    root = tree("all-on", {path: text})
    for command in ("status", "check", "advise", "export"):
        code, output = call(root, command)
        said = output.splitlines()[-1].startswith(f"pagewright: {root} is of no machine: ")
        assert code in ((tool.FAILED,) if said else (tool.ALL_ON, tool.FAILED))
        assert said or command != "status" or DIGITS[:4000] not in text


def test_there_are_no_more_cpus_than_a_kernel_can_have(tree, status):
    root = tree("all-on", {"/sys/devices/system/cpu/possible": "0-3,2-99999999\n"})
    assert status(root)["machine"]["cpus"]["possible"] == 4 + tool.TOO_MANY_CPUS - 2


def test_a_pipe_in_a_tree_of_a_stranger_is_not_waited_for(tree):
    root = tree("all-on", {"/proc/version": None, "/dev/kmsg": None})
    for name in ("proc/version", "dev/kmsg"):
        os.mkfifo(root / name)
    words = [sys.executable, "-B", str(COMMAND), "--root", str(root), "status"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    assert "/proc/version cannot be read: it is no regular file." in done.stdout


@pytest.mark.parametrize("uptime", ["", "  \n", "long\n", "nan\n"])
def test_an_uptime_that_is_none_ends_no_watch(tree, call, uptime):
    code, output = call(tree("all-on", {"/proc/uptime": uptime}), "watch")
    assert code == 0
    assert "Traceback" not in output


def test_a_root_that_is_none(call, tmp_path):
    code, output = call(tmp_path / "nothing", "status")
    assert code == 1
    assert output.endswith("nothing is not a folder\n")


# --- What it knows of kernels ---------------------------------------------------------------------


def test_the_list_of_processors_is_the_kernels():
    """The names of bbml2.c, with the numbers of the kernel's cputype.h and our hook's."""
    feature = SPACE.root / "features" / "linear-map"
    text = (source.ensure(SPACE).path / "arch/arm64/include/asm/cputype.h").read_text()
    for hook in sorted(feature.glob("hooks/*/*.patch")):
        text += "\n".join(re.findall(r"^\+(#define .*)$", hook.read_text(), re.MULTILINE)) + "\n"
    values = dict(re.findall(r"^#define (\w+_CPU_(?:IMP|PART)_?\w*)\s+(0x\w+)", text, re.MULTILINE))
    found = re.findall(r"#define MIDR_(\w+)\s+MIDR_CPU_MODEL\((\w+), (\w+)\)", text)
    numbers = {
        name: (int(values[maker], 16), int(values[part], 16))
        for name, maker, part in found
        if maker in values and part in values
    }
    text = (feature / "linux/arch/arm64/kernel/bbml2.c").read_text()
    listed = text.split("bbml2_noabort_list[]")[1].split("};")[0]
    expected = {
        numbers[name]: (0, 0) for name in re.findall(r"MIDR_ALL_VERSIONS\(MIDR_(\w+)\)", listed)
    }
    for name, variant, revision in re.findall(
        r"MIDR_RANGE\(MIDR_(\w+), (\d), (\d), 0xf, 0xf\)", listed
    ):
        expected[numbers[name]] = (int(variant), int(revision))
    assert len(expected) == listed.count("MIDR_RANGE(") + listed.count("MIDR_ALL_VERSIONS(")
    assert expected == tool.LEVEL_2
    assert set(tool.LEVEL_2) <= set(tool.PROCESSORS)


def test_what_hugetlb_pages_free_is_what_the_kernels_document_says():
    document = SPACE.root / (
        "features/hugetlb-vmemmap/linux/Documentation/arch/arm64/hugetlb-vmemmap.rst"
    )
    row = r"^(\d+) KiB +(\d+) ([MG])iB +(\d+) of (\d+)(?: KiB)? +(\d+) of \d+(?: KiB)?$"
    rows = re.findall(row, document.read_text(), re.MULTILINE)
    assert len(rows) == 7
    for page, size, unit, pause, _, seamless in rows:
        page_size = int(page) << 10
        bytes_ = int(size) << {"M": 20, "G": 30}[unit]
        assert tool.freed_of_page(bytes_, page_size, "pause") == int(pause) << 10
        assert tool.freed_of_page(bytes_, page_size, "seamless") == int(seamless) << 10


def test_the_parameters_and_counters_are_the_kernels():
    """Whatever the command names of the kernel is named there, too."""
    kernel = "".join(
        file.read_text(errors="replace")
        for folder in ("linux", "hooks")
        for file in SPACE.root.glob(f"features/*/{folder}/**/*")
        if file.is_file()
    )
    text = COMMAND.read_text()
    names = set(re.findall(r"arm64\.\w+|percpu_local_map|linear_map_(?:split|fold)_", text))
    names |= {"atomic_write_fault", "exclusive_write_fault", "hugetlb_vmemmap"}
    names |= {"Local", *tool.SYMBOLS.values()} - {"Local"}
    for name in names:
        assert name.removeprefix("CONFIG_") in kernel, name
    for file in ("bytes_saved", "not_optimized", "not_restored", "given_up", "longest_ns"):
        assert f"({file}," in kernel, file
    parameters = re.findall(r"/sys/module/arm64/parameters/(\w+)", text)
    assert parameters
    for name in parameters:
        assert f"module_param_named({name}," in kernel or f"module_param_cb({name}," in kernel, name


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("Y", True), ("on", True), ("off", False), ("0", False)]
)
def test_switches_are_read_as_the_kernel_reads_them(text, value):
    assert tool.as_bool(text) is value
    assert tool.as_bool("x") is None


def test_lists_of_cpus():
    assert tool.parse_ranges("0-3,8,10-11") == (0, 1, 2, 3, 8, 10, 11)
    assert tool.in_ranges([11, 0, 1, 2, 3, 8, 10]) == "0-3,8,10-11"


# --- The other commands ---------------------------------------------------------------------------


def test_map_shows_what_the_tables_hold(tree, call, tmp_path):
    picture = tmp_path / "map.svg"
    code, output = call(tree("all-on"), "map", "--svg", str(picture))
    assert code == 0
    # The DirectMap lines of the same machine, in leaves.
    assert "1,056 x 4k, 30 x 64k, 29 x 2M, 62 x 32M" in output
    assert "2 GiB rw, 12 MiB ro, 1 MiB none" in output
    drawing = ElementTree.parse(picture).getroot()
    words = " ".join("".join(element.itertext()) for element in drawing.iter())
    assert "Linear Mapping: 2 GiB mapped" in words
    assert "leaves of 32M, read-write" in words


def test_who_may_read_a_picture_is_for_the_umask_to_say(tree, call, tmp_path):
    """It has addresses in it, which the kernel shows to root alone; metrics are for everyone."""
    before = os.umask(0o077)
    try:
        call(tree("all-on"), "map", "--svg", str(tmp_path / "map.svg"))
        call(tree("all-on"), "export", str(tmp_path / "pagewright.prom"))
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("map.svg", "pagewright.prom")]
    assert modes == [0o600, 0o644]


def test_map_without_page_tables_shows_what_meminfo_says(tree, call, tmp_path):
    picture = tmp_path / "map.svg"
    code, output = call(tree("cortex-a76-pages"), "map", "--svg", str(picture))
    assert code == 0
    assert re.search(r"^DirectMap4k +1,012 MiB  #+$", output, re.MULTILINE)
    ElementTree.parse(picture)


def test_map_of_a_kernel_with_39_bits_of_address():
    """There blocks of 1 GiB are in the table of the first level."""
    text = """\
---[ Linear Mapping start ]---
0xffffff8000000000-0xffffff8040000000           1G PMD       RW NX SHD AF        BLK UXN MEM/NORMAL
0xffffff8040000000-0xffffff8100000000           3G PGD       RW NX SHD AF        BLK UXN MEM/NORMAL
---[ Linear Mapping end ]---
"""
    (region,) = tool.parse_page_tables(text, 4096)
    assert region.by("leaf") == {2 * MIB: 1 << 30, 1 << 30: 3 << 30}


def test_map_of_another_architecture(tree, call):
    root = tree("x86")
    debugfs = root / "sys" / "kernel" / "debug"
    debugfs.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        code, output = call(root, "map")
        assert code == 0
        assert "DirectMap2M" in output
        assert "Page tables are shown of arm64 only." in output
        # Nothing is said that would not help.
        assert "debugfs" not in output
        assert "root" not in output
        (debugfs / "kernel_page_tables").write_text("---[ User Space ]---\n")


def runs(*parts: tuple[int, int, int]) -> Any:
    return tool.Region("r", tuple(tool.Run(a << 20, b << 20, leaf, "rw") for a, b, leaf in parts))


def test_rows_that_look_alike_are_drawn_once_and_holes_are_left_out():
    region = runs((0, 64, 2 * MIB), (64, 65, 4096), (1024, 1028, 2 * MIB))
    cell, rows = tool.rows_of(region, 64, 1 << 16, 40)
    assert cell == 1 << 16
    assert [(row.start >> 20, row.repeated) for row in rows] == [(0, 15), (64, 0), (1024, 0)]
    assert sum((1 + row.repeated) * run.size for row in rows for run in row.runs) == 69 * MIB


def test_rows_get_longer_until_they_are_few():
    parts = [(n * 4, n * 4 + 2, 4096 if n % 2 else 2 * MIB) for n in range(100)]
    cell, rows = tool.rows_of(runs(*parts), 64, 1 << 16, 40)
    assert len(rows) <= 40
    assert cell > 1 << 16


def test_tables_saved_are_those_of_an_example():
    """4 GiB in blocks of 1 GiB do without 2048 tables of pages, and 4 of blocks."""
    assert tool.tables_saved({4096: 0, 1 << 30: 4 << 30}, 4096) == (2048 + 4) * 4096
    assert tool.tables_saved({4096: 4 << 30, 1 << 30: 0}, 4096) == 0
    assert tool.tables_saved({16384: 0, 1 << 25: 1 << 30}, 16384) == 32 * 16384


@pytest.mark.parametrize(
    ("command", "unread"),
    [
        ("watch", r"efivars|midr_el1|/boot/|kmsg"),
        ("export", "efivars"),
        ("map", "efivars"),
        ("check", "efivars"),
    ],
)
def test_commands_that_are_run_often_do_without_what_is_slow(
    tree, call, monkeypatch, command, unread
):
    """Each read of a variable of UEFI has the firmware called, while the machine serves others."""
    names: list[str] = []
    read = tool.Files.read_bytes

    def read_bytes(files: Any, name: str) -> bytes | None:
        names.append(name)
        return read(files, name)

    monkeypatch.setattr(tool.Files, "read_bytes", read_bytes)
    root = tree("cortex-a76")
    assert call(root, command)[0] == 0
    assert "/proc/vmstat" in names
    assert [name for name in names if re.search(unread, name)] == []
    # Those that say whether Secure Boot is on do read it.
    call(root, "status")
    assert [name for name in names if "efivars" in name]


def test_watch_counts_what_happened_since_the_line_before(tree, monkeypatch, capsys):
    root = tree("all-on")
    vmstat = root / "proc" / "vmstat"

    def pass_time(seconds: float) -> None:
        text = vmstat.read_text()
        before = re.search(r"^atomic_write_fault (\d+)$", text, re.MULTILINE)
        assert before
        now = int(before[1]) + round(500 * seconds)
        vmstat.write_text(text.replace(before[0], f"atomic_write_fault {now}"))
        clock[0] += seconds

    clock = [100.0]
    monkeypatch.setattr(tool.time, "sleep", pass_time)
    monkeypatch.setattr(tool.time, "monotonic", lambda: clock[0])
    assert tool.main(["--root", str(root), "watch", "2", "3"]) == 0
    heading, units, _, *lines = capsys.readouterr().out.splitlines()
    assert (heading.split()[0], units.split()[0]) == ("atomic", "/s")
    assert [line.split()[0] for line in lines] == ["500", "500"]


def test_each_column_of_watch_shows_its_counter(tree, monkeypatch, capsys):
    """A rate is what a counter grew by, divided by the time; the rest is what there is now."""
    root = tree("all-on")
    grown = {
        "atomic_write_fault": 7,
        "exclusive_write_fault": 14,
        # Sizes are added up.
        "linear_map_split_pmd": 8,
        "linear_map_split_cont_pte": 12,
        "linear_map_fold_pmd": 24,
    }
    pauses = {"pauses": 28, "given_up": 400, "failed": 32, "total_ns": 9_000_000}
    sizes = {"DirectMap4k": 3, "DirectMap64k": 2, "DirectMap2M": 100, "DirectMap32M": 320}
    clock = [100.0]

    def pass_time(seconds: float) -> None:
        vmstat = root / "proc" / "vmstat"
        text = vmstat.read_text()
        numbers = tool.parse_numbers(text)
        for name, more in grown.items():
            text = re.sub(rf"(?m)^{name} \d+$", f"{name} {numbers[name] + more}", text)
        vmstat.write_text(text)
        for name, more in pauses.items():
            file = root / "sys/kernel/cpu_pause" / name
            file.write_text(f"{int(file.read_text()) + more}\n")
        meminfo = root / "proc" / "meminfo"
        text = meminfo.read_text()
        for name, mib in sizes.items():
            text = re.sub(rf"(?m)^({name}:).*$", rf"\1 {mib << 10} kB", text)
        meminfo.write_text(text)
        (root / "sys/kernel/mm/hugetlb_vmemmap/bytes_saved").write_text(f"{9 * MIB}\n")
        clock[0] += 4

    monkeypatch.setattr(tool.time, "sleep", pass_time)
    monkeypatch.setattr(tool.time, "monotonic", lambda: clock[0])
    assert tool.main(["--root", str(root), "watch", "1", "2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    headings, units, _, shown = lines
    assert list(zip(headings, units, shown, strict=True)) == [
        ("atomic", "/s", "2"),
        ("excl", "/s", "4"),
        ("split", "/s", "5"),
        ("fold", "/s", "6"),
        ("blocks", "MiB", "420"),
        ("pages", "MiB", "5"),
        ("freed", "MiB", "9"),
        ("pauses", "/s", "7"),
        ("paused", "µs/s", "2250"),
        ("failed", "/s", "8"),
    ]


def test_watch_fits_into_a_terminal(tree, call):
    """Also on a machine with 4 TiB of memory."""
    meminfo = {"/proc/meminfo": f"MemTotal: 9 kB\nDirectMap2M: {4 << 30} kB\n"}
    _, output = call(tree("all-on", meminfo), "watch")
    lines = output.splitlines()
    assert {len(line) for line in lines} == {79}
    assert lines[-1].split()[4] == str(4 << 20)
    # Headings and values end in the same column.
    ends = [[match.end() for match in re.finditer(r"\S+", line)] for line in lines]
    assert ends == [list(range(7, 80, 8))] * 3


def test_check_of_machines_that_are_as_they_should_be(tree, call):
    for name in ("all-on", "cortex-a76"):
        code, output = call(tree(name), "check")
        assert code == 0
        assert {line.split()[0] for line in output.splitlines()} == {"ok", "skipped"}
    code, output = call(tree("cortex-a76-pages"), "check")
    assert code == 0
    assert "note     all CPUs could be paused: 66 pauses failed" in output
    assert call(tree("unpatched"), "check")[0] == 4
    assert call(tree("x86"), "check")[0] == 4


@pytest.fixture
def time_passes(monkeypatch):
    """Return the sleeps so far, none of which takes time, and what is done in each."""
    sleeps: list[float] = []
    events: list[Any] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        for event in events:
            event()

    monkeypatch.setattr(tool.time, "sleep", sleep)
    return sleeps, events


@pytest.mark.parametrize(
    ("file", "pattern", "by", "name"),
    [
        ("/proc/meminfo", r"DirectMap32M: .*", "DirectMap32M:        64 kB", "has all memory"),
        ("/proc/meminfo", r"DirectMap4k: .*", "DirectMap4k:  99999999 kB", "what the kernel says"),
        ("/sys/kernel/mm/linear_map/mode", "blocks", "pages", "what the kernel says"),
        ("/sys/kernel/mm/hugetlb_vmemmap/bytes_saved", r"\d+", "9999999999", "fits the hugetlb"),
        ("/dev/kmsg", "24 KiB vmemmap", "25 KiB vmemmap", "each hugetlb page frees"),
        ("/sys/kernel/cpu_pause/longest_ns", r"\d+", "5", "could be paused"),
    ],
)
def test_check_sees_what_does_not_agree(tree, call, time_passes, file, pattern, by, name):
    root = tree("all-on")
    text = (root / file.lstrip("/")).read_text()
    changed = re.sub(pattern, by, text)
    assert changed != text
    (root / file.lstrip("/")).write_text(changed)
    code, output = call(root, "check")
    assert code == 1
    assert re.search(rf"^wrong .*{name}", output, re.MULTILINE)


@pytest.mark.parametrize(
    ("reason", "cpus", "result"),
    [
        (f"{IN_PAUSES}: {BOOT_CPU}", UNLISTED, "ok"),
        (f"{IN_PAUSES}: {BOOT_CPU}", LISTED, "note"),
        ("split and folded back live: BBM level 2 without aborts", UNLISTED, "note"),
        ("split and folded back live: BBM level 2 without aborts", LISTED, "ok"),
    ],
)
def test_check_compares_the_models_with_what_the_kernel_says_of_them(tree, reason, cpus, result):
    root = tree("all-on", linear_map_says("blocks", reason, "", cpus))
    assert tool.check_level_2(tool.read_machine(tool.Files(root))).result == result


@pytest.mark.parametrize(
    ("sizes", "mode", "result"),
    [
        # In MiB: leaves of 64 KiB, of 2 MiB (contiguous pages), of 512 MiB (blocks).
        ((20, 1004, 0), "blocks", "ok"),
        ((1024, 0, 0), "", "skipped"),
        ((1024, 0, 15 * 512), "blocks", "ok"),
        ((16 * 512, 0, 0), "pages", "wrong"),
    ],
    ids=["live", "in-pauses", "large", "pages"],
)
def test_a_block_of_a_kernel_with_large_pages_may_be_half_of_memory(tree, sizes, mode, result):
    """Then it is in pages, as a part of it is the kernel's image or firmware's."""
    names = ("DirectMap64k", "DirectMap2M", "DirectMap512M")
    leaves = {name: size * MIB for name, size in zip(names, sizes, strict=True)}
    machine = tool.read_machine(tool.Files(tree("all-on")))
    machine = replace(machine, page_size=64 << 10, meminfo={"MemTotal": 900 * MIB} | leaves)
    assert tool.check_linear_map(machine).result == result
    assert tool.linear_map(machine).mode == "blocks"
    # Where the kernel's word cannot be read that is all there is, and may not be enough.
    found = tool.linear_map(replace(machine, log=tool.Log(), linear_map={}))
    assert (found.state, found.mode) == ("unknown", mode)


@pytest.mark.parametrize(("splits", "result"), [(300, "note"), (10, "wrong")])
def test_a_linear_map_may_have_been_split_for_the_most_part(tree, splits, result):
    """By memfd_secret(2), for one. The kernel counts what it has split."""
    machine = tool.read_machine(tool.Files(tree("all-on")))
    leaves = {"DirectMap4k": 600 * MIB, "DirectMap2M": 424 * MIB}
    machine = replace(machine, meminfo={"MemTotal": 900 * MIB} | leaves)
    machine = replace(machine, vmstat=machine.vmstat | {"linear_map_split_pmd": splits})
    assert tool.check_linear_map(machine).result == result


def test_check_sees_an_atomic_that_faults_twice(tree):
    machine = tool.read_machine(tool.Files(tree("all-on")))
    assert tool.check_faults(machine, tool.Touched(256, 256, 256)).result == "ok"
    assert tool.check_faults(machine, tool.Touched(256, 513, 0)).result == "wrong"
    assert "emulated" in tool.check_faults(machine, tool.Touched(256, 257, 0)).words


def test_check_waits_for_surplus_pages_that_are_gathered(tree, call, time_passes):
    """In pause mode they are no longer counted for up to 2 s before they are restored."""
    sleeps, events = time_passes
    hvo = "/sys/kernel/mm/hugetlb_vmemmap"
    root = tree("all-on", {f"{hvo}/mode": "pause\n", f"{hvo}/bytes_saved": f"{80 * 28 << 10}\n"})
    # The log is that of a machine in seamless mode, where a page frees less.
    (root / "dev" / "kmsg").unlink()
    saved = root / hvo.lstrip("/") / "bytes_saved"
    gathered = saved.read_text()
    events.append(lambda: saved.write_text(f"{64 * 28 << 10}\n"))
    code, output = call(root, "check")
    assert code == 0, output
    assert "come or go at the moment" in output
    assert len(sleeps) == 1
    assert sleeps[0] > 2
    # What is restored is not waited for.
    assert call(root, "check")[0] == 0
    assert len(sleeps) == 1
    # What nobody restores is wrong.
    events.clear()
    saved.write_text(gathered)
    code, output = call(root, "check")
    assert (code, len(sleeps)) == (1, 2)
    assert re.search("^wrong .*the memory freed fits the hugetlb pages", output, re.MULTILINE)


def test_check_judges_nothing_while_hugetlb_pages_come_or_go(tree, monkeypatch, call, time_passes):
    """The kernel counts them no longer, while their struct pages are still to be restored."""
    root = tree("all-on")
    pages = root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    saved = root / "sys/kernel/mm/hugetlb_vmemmap/bytes_saved"
    pages.write_text("2\n")
    assert call(root, "check")[0] == 1

    def restore(_):
        saved.write_text(f"{2 * 24 << 10}\n")

    monkeypatch.setattr(tool, "touch", restore)
    code, output = call(root, "check")
    assert code == 0
    assert "come or go at the moment" in output


def test_check_knows_that_load_exclusives_may_be_switched_off(tree):
    """On CPUs without LSE atomics glibc has nothing else."""
    root = without_log(tree("all-on", cmdline("arm64.atomic_write_fault_exclusive=0")))
    machine = tool.read_machine(tool.Files(root))
    twice = tool.Touched(256, 513, 0)
    assert tool.check_faults(machine, twice).result == "wrong"
    old = replace(machine, cpu_features=machine.cpu_features - {"atomics"})
    assert tool.check_faults(old, twice).result == "skipped"


def test_check_sees_a_counter_that_falls(tree):
    machine = tool.read_machine(tool.Files(tree("all-on")))
    more = replace(machine, vmstat=machine.vmstat | {"atomic_write_fault": 7})
    assert tool.check_counters(machine, more).result == "ok"
    assert tool.check_counters(more, machine).result == "wrong"


def advice(call, root: Path) -> dict[str, Any]:
    _, output = call(root, "advise", "--json")
    return {one["name"]: one for one in json.loads(output)["features"]}


def test_advise_works_on_a_kernel_without_the_features(tree, call):
    root = tree("unpatched")
    found = advice(call, root)
    assert list(found) == list(tool.FEATURES)
    assert found["linear-map"]["gain"] == "some"
    memory = tool.read_machine(tool.Files(root)).memory
    assert found["linear-map"]["bytes"] == memory // 512
    assert found["hugetlb-vmemmap"]["bytes"] == 16 * 24 << 10
    assert found["percpu-local"]["gain"] == "some"
    assert found["atomic-write-fault"]["gain"] == "nothing"


def test_advise_by_processor(tree, call):
    found = advice(call, tree("cortex-a76"))
    assert found["linear-map"]["gain"] == "some"
    assert "CPUs are paused" in found["linear-map"]["words"]
    assert "Cortex-A76 r4p1" in found["linear-map"]["words"]
    assert found["hugetlb-vmemmap"]["bytes"] == 32 * 24 << 10
    assert found["cpu-pause"]["words"].startswith("linear-map and hugetlb-vmemmap need it")
    assert "arm64.linear_map=pause" not in found["linear-map"]["words"]
    words = "As isolated CPUs are not paused, that takes the boot parameter arm64.linear_map=pause."
    machine = tool.read_machine(tool.Files(tree("cortex-a76", cmdline("nohz_full=2-3"))))
    for symbol, isolated in (("CONFIG_CPU_ISOLATION", False), ("CONFIG_NO_HZ_FULL", True)):
        other = replace(machine, config=machine.config | {symbol: "y"})
        told = {one.name: one.words for one in tool.advise(other, ())}
        assert (words in told["linear-map"]) == isolated


def test_advise_calls_the_same_amount_much_whatever_frees_it(tree, call):
    """A virtual machine of 1 GiB has page tables of 2 MiB."""
    for number, gain in ((1, "some"), (32, "much")):
        # 64 MiB are the page tables of 32 GiB, and what is freed of 2,731 pages of 2 MiB.
        root = tree("unpatched")
        meminfo = root / "proc" / "meminfo"
        text = re.sub(r"MemTotal: +\d+", f"MemTotal: {number << 20}", meminfo.read_text())
        meminfo.write_text(text)
        pool = root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        pool.write_text(f"{2731 * number // 32}\n")
        found = advice(call, root)
        for name in ("linear-map", "hugetlb-vmemmap"):
            assert (found[name]["gain"], found[name]["bytes"] >= 64 * MIB) == (
                gain,
                gain == "much",
            )


# Of Debian's trixie-backports. That of 6.18 and later has no CONFIG_RODATA_FULL_DEFAULT_ENABLED.
NEWER = "7.3.4+deb13-cloud-arm64"
NEWER_CONFIG = "CONFIG_ARM64_4K_PAGES=y\nCONFIG_KFENCE=y\nCONFIG_KFENCE_SAMPLE_INTERVAL=100\n"
NEOVERSE_N1, AMPERE_1A = "0x00000000413fd0c1", "0x00000000c00fac40"


@pytest.mark.parametrize("release", [NEWER, "6.18.0", "6.17.13", "6.12.117"])
@pytest.mark.parametrize("midr", [NEOVERSE_N1, AMPERE_1A], ids=["n1", "ampere-1a"])
@pytest.mark.parametrize("rodata", ["", "on", "off", "full", "noalias"])
def test_advise_knows_what_newer_kernels_do_by_themselves(tree, call, release, midr, rodata):
    """Since 6.18 memory is in blocks where CPUs split them live, and rodata=on is rodata=full."""
    newer = release in (NEWER, "6.18.0")
    changes = cmdline(f"rodata={rodata}" if rodata else "quiet") | {
        "/proc/sys/kernel/osrelease": f"{release}\n",
        "/boot/config-6.12.117": None,
        f"/boot/config-{release}": NEWER_CONFIG,
    }
    for number in range(2):
        file = f"/sys/devices/system/cpu/cpu{number}/regs/identification/midr_el1"
        changes[file] = f"{midr}\n"
    found = advice(call, tree("unpatched", changes))["linear-map"]
    full = rodata not in ("off", "noalias") if newer else rodata == "full"
    by_itself = newer and midr == AMPERE_1A
    assert bool(found["bytes"]) == (full and not by_itself)
    assert ("Since Linux 6.18 the kernel itself" in found["words"]) == (full and by_itself)
    assert ("RODATA_FULL" in found["words"]) == (not newer and rodata not in ("on", "off", "full"))
    if newer and not full:
        assert f"booted with rodata={rodata}" in found["words"]


@pytest.mark.parametrize(
    ("release", "rodata", "why"),
    [
        # rodata=noalias is unknown to the one kernel, and rodata=full to the other.
        ("6.12.117", "on rodata=noalias", "booted with rodata=on"),
        (NEWER, "noalias rodata=full", "booted with rodata=noalias"),
        (NEWER, "off rodata=x", "booted with rodata=off"),
    ],
)
def test_a_value_of_rodata_that_the_kernel_does_not_know_is_ignored(
    tree, call, release, rodata, why
):
    changes = cmdline(f"rodata={rodata}") | {
        "/proc/sys/kernel/osrelease": f"{release}\n",
        "/boot/config-6.12.117": None,
        f"/boot/config-{release}": NEWER_CONFIG,
    }
    assert why in advice(call, tree("unpatched", changes))["linear-map"]["words"]


@pytest.mark.parametrize("mode", [None, "seamless", "pause"])
def test_advise_promises_pauses_of_struct_pages_only_where_blocks_are_split(tree, call, mode):
    """Larger pages than those of 4 KiB map struct pages by pages, which need no split."""
    changes: dict[str, str | None] = {}
    if mode:
        changes["/sys/kernel/mm/hugetlb_vmemmap/mode"] = f"{mode}\n"
        changes["/sys/kernel/mm/hugetlb_vmemmap/reason"] = "asked for with hugetlb_vmemmap=\n"
    midr = {
        f"/sys/devices/system/cpu/cpu{number}/regs/identification/midr_el1": f"{UNLISTED}\n"
        for number in range(2)
    }
    machine = tool.read_machine(tool.Files(tree("unpatched", changes | midr)))
    for size, pauses in ((4, True), (16, mode == "pause"), (64, mode == "pause"), (None, True)):
        other = replace(machine, page_size=None if size is None else size << 10)
        assert tool._hvo_pauses(other) == pauses
        words = {one.name: one.words for one in tool.advise(other, ())}
        needs = "linear-map and hugetlb-vmemmap need it" if pauses else "linear-map needs it"
        assert words["cpu-pause"].startswith(needs)


def test_advise_names_processes_with_large_heaps(tree, call):
    java = "Name:\tjava\nRssAnon:\t 8388608 kB\n"
    changes = {
        "/proc/77/status": java,
        "/proc/77/cmdline": "java\0-XX:+AlwaysPreTouch\0",
        "/proc/78/status": "Name:\tsmall\nRssAnon:\t 4096 kB\n",
    }
    found = advice(call, tree("unpatched", changes))["atomic-write-fault"]
    # Which version it is, and how that touches its heap, is not known.
    assert found["gain"] == "some"
    assert "java (77)" in found["words"]
    assert "small" not in found["words"]
    # README.md: 1 GiB of 4 KiB pages takes 524,288 faults, and 262,144 with the feature.
    readme = (SPACE.root / "README.md").read_text()
    row = re.search(r"^\| page faults of LDADD.* \| ([\d,]+) \| ([\d,]+) \|$", readme, re.MULTILINE)
    assert row
    without, with_feature = (int(number.replace(",", "")) for number in row.groups())
    words = (
        "they take two page faults for each page without the feature, up to {:,} in all, and half "
        "with it."
    )
    assert with_feature * 2 == without
    assert words.format(8 * without) in found["words"]


def test_the_name_of_a_process_is_no_command_to_the_terminal(tree, call):
    java = {"/proc/77/status": "Name:\t\x1b]0;java\x07\nRssAnon:\t 8388608 kB\n"}
    output = call(tree("unpatched", java), "advise")[1]
    assert "?]0;java? (77)" in output
    assert "\x1b" not in output


def test_advise_on_another_architecture(tree, call):
    code, output = call(tree("x86"), "advise")
    assert code == 4
    assert "this machine is x86_64" in output


def samples(text: str) -> dict[str, float]:
    """Read Prometheus's text format."""
    found = {}
    kinds = dict(re.findall(r"^# TYPE (\w+) (counter|gauge)$", text, re.MULTILINE))
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP \w+ \S.*|TYPE \w+ (counter|gauge))", line)
            continue
        label = r'\w+="(?:[^"\\]|\\[\\"n])*"'
        match = re.fullmatch(rf"(\w+)((?:\{{{label}(?:,{label})*\}})?) (\S+)", line)
        assert match, line
        assert match[1] in kinds
        assert (kinds[match[1]] == "counter") == match[1].endswith("_total")
        # Prometheus refuses a whole file for one that is there twice.
        assert match[1] + match[2] not in found, line
        found[match[1] + match[2]] = float(match[3])
    return found


def test_export_writes_what_status_says(tree, call, tmp_path):
    root, target = tree("cortex-a76-pages"), tmp_path / "pagewright.prom"
    code, output = call(root, "export", str(target))
    assert (code, output) == (0, "")
    found = samples(target.read_text())
    assert target.stat().st_mode & 0o777 == 0o644
    assert found['pagewright_feature_on{feature="linear-map",mode="pages"}'] == 0
    assert found['pagewright_feature_on{feature="hugetlb-vmemmap",mode="pause"}'] == 1
    assert found["pagewright_cpu_pauses_failed_total"] == 66
    paused = int((root / "sys/kernel/cpu_pause/total_ns").read_text())
    assert found["pagewright_cpu_paused_seconds_total"] == pytest.approx(paused / 1e9)
    assert found['pagewright_linear_map_bytes{leaf="2M"}'] == 12 * MIB
    assert call(root, "export")[1] == target.read_text()
    assert list(tmp_path.glob(".pagewright*")) == []


def test_export_on_a_kernel_without_the_features(tree, call):
    found = samples(call(tree("x86"), "export")[1])
    assert {value for name, value in found.items() if "feature_on" in name} == {0}


def test_what_a_stranger_writes_in_a_tree_is_only_a_label_in_metrics(tree, call):
    """Prometheus would refuse the whole file, or take the rest of the label for a metric."""
    release = 'a\\b"} 1\npagewright_info{release="c'
    found = samples(call(tree("all-on", {"/proc/sys/kernel/osrelease": release}), "export")[1])
    [info] = (name for name in found if name.startswith("pagewright_info"))
    written = r"a\\b\"} 1\npagewright_info{release=\"c"
    assert info == f'pagewright_info{{release="{written}",architecture="aarch64"}}'


def test_export_follows_no_link_at_the_name_that_it_writes_first(tree, call, tmp_path):
    """Root writes in a folder of the exporter's, whose user can guess that name."""
    folder = tmp_path / "node-exporter"
    folder.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("what it was\n")
    victim.chmod(0o600)
    link = folder / f".pagewright.prom.{os.getpid()}"
    link.symlink_to(victim)
    code, output = call(tree("all-on"), "export", str(folder / "pagewright.prom"))
    assert victim.read_text() == "what it was\n"
    assert victim.stat().st_mode & 0o777 == 0o600
    assert code == 1
    assert f"{link}, which would become it, is there already" in output
    # It is not ours to remove.
    assert list(folder.iterdir()) == [link]
    link.unlink()
    assert call(tree("all-on"), "export", str(folder / "pagewright.prom")) == (0, "")
    assert [file.name for file in folder.iterdir()] == ["pagewright.prom"]


@pytest.mark.parametrize("words", [["export"], ["map", "--svg"]], ids=["export", "map"])
def test_a_folder_that_is_a_link_is_not_written_to(tree, call, tmp_path, words):
    """The user of the node exporter can put one in the place of the folder of its files."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "node-exporter").symlink_to("etc")
    target = tmp_path / "node-exporter" / "pagewright.prom"
    code, output = call(tree("all-on"), *words, str(target))
    assert code == 1
    assert output.endswith(f"{target} cannot be written: {target.parent} is a link\n")
    assert list((tmp_path / "etc").iterdir()) == []


@pytest.mark.parametrize("words", [["export"], ["map", "--svg"]], ids=["export", "map"])
def test_a_device_or_a_link_is_not_replaced(tree, call, tmp_path, words):
    """Otherwise root would lose /dev/null and /dev/stdout."""
    target = tmp_path / "target"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(target)
    for name in ("fifo", "link"):
        code, output = call(tree("all-on"), *words, str(tmp_path / name))
        assert code == 1
        assert output.endswith(f"{name} cannot be written: it is a link, a device or a pipe\n")
    assert (tmp_path / "fifo").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert not target.exists()


def test_export_leaves_nothing_behind_where_it_fails(tree, call, tmp_path):
    (tmp_path / "pagewright.prom" / "a").mkdir(parents=True)
    code, output = call(tree("all-on"), "export", str(tmp_path / "pagewright.prom"))
    assert code == 1
    assert "cannot be written: Is a directory" in output
    assert list(tmp_path.glob(".pagewright*")) == []


@pytest.mark.parametrize("words", [["export"], ["map", "--svg"]], ids=["export", "map"])
@pytest.mark.parametrize("name", [".", "..", "/", "", "./"])
def test_a_folder_without_a_name_of_its_own_is_an_error_in_words(
    tree, call, tmp_path, monkeypatch, words, name
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, output = call(tree("all-on"), *words, name)
    named = "." if name in ("", "./") else name
    assert (code, output) == (1, f"pagewright: {named} cannot be written: Is a directory\n")
    assert list((tmp_path / "here").iterdir()) == []


def test_export_says_why_it_cannot_write(tree, call, tmp_path):
    code, output = call(tree("all-on"), "export", str(tmp_path / "no" / "folder"))
    assert code == 1
    assert "cannot be written: No such file or directory" in output


# --- What comes with it ---------------------------------------------------------------------------


def options() -> dict[str, set[str]]:
    """Return the options of each command."""
    parser = tool.make_parser()
    commands = next(a for a in parser._actions if a.dest == "command").choices
    return {
        name: {word for action in one._actions for word in action.option_strings}
        for name, one in commands.items()
    }


def keys_of(value: Any) -> set[str]:
    """Return the names in JSON, at any depth."""
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def test_the_man_page_has_all_commands_options_and_names(tree, call):
    page = (TOOLS / "pagewright.1").read_text().replace("\\-", "-")
    for name, words in options().items():
        assert re.search(rf"^\.SS .*\b{name}\b", page, re.MULTILINE), name
        for word in words:
            assert word in page, word
    java = "Name:\tjava\nRssAnon:\t 8388608 kB\n"
    root = tree("cortex-a76-pages", {"/proc/77/status": java})
    (root / "dev" / "kmsg").unlink()
    (root / "dev" / "kmsg").mkdir()
    for command in ("status", "check", "advise"):
        names = keys_of(json.loads(call(root, command, "--json")[1]))
        assert len(names) > 4
        for name in names:
            assert re.search(rf"\b{name}\b", page), f"{command}: {name}"
    for machine in (root, tree("all-on")):
        for feature in json.loads(call(machine, "status", "--json")[1])["features"]:
            for figure in feature["figures"]:
                assert re.search(rf"\b{figure['name']}\b", page), figure
    for line in call(root, "export")[1].splitlines():
        if line.startswith("# TYPE pagewright_"):
            assert line.split()[2].removeprefix("pagewright_") in page, line


def test_nobody_is_asked_to_report_a_cpu_that_firmware_has_lost(tree, call):
    """The check has the result wrong, but what is wrong is no fault of ours."""
    root = tree("cortex-a76", {"/sys/kernel/cpu_pause/lost": "3\n"})
    assert "wrong    all CPUs could be paused" in call(root, "check")[1]
    page = " ".join((TOOLS / "pagewright.1").read_text().split())
    result = page.split(".B wrong ")[1].split(")")[0]
    assert result.startswith("(please report it, unless no CPU can be paused because one is lost")


@pytest.mark.skipif(not shutil.which("man"), reason="there is no man")
def test_the_man_page_is_well_formed():
    command = ["man", "--warnings", "-l", "-Tutf8", str(TOOLS / "pagewright.1")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"MANROFFSEQ": ""}
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_completion_offers_commands_and_options():
    script = f"""
        . {TOOLS / "pagewright.bash-completion"}
        complete() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _pagewright
            printf '%s\\n' "${{COMPREPLY[@]}}"; }}
        complete pagewright ''; echo --; complete pagewright status --; echo --
        complete pagewright map --; echo --
        complete pagewright --root = /proc status --; echo --
        complete pagewright --root = {TOOLS.parent}/too
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    parts = re.split(r"^--$", done.stdout, flags=re.MULTILINE)
    commands, of_status, of_map, of_root, roots = (part.split() for part in parts)
    assert set(options()) <= set(commands)
    assert "--json" in of_status
    assert "--svg" in of_map
    assert of_root == of_status
    assert roots == [str(TOOLS)]


def test_units_start_what_there_is():
    service = (TOOLS / "pagewright-export.service").read_text()
    started = re.search(r"^ExecStart=/usr/bin/pagewright (.*)$", service, re.MULTILINE)
    assert started
    tool.make_parser().parse_args(started[1].split())
    timer = (TOOLS / "pagewright-export.timer").read_text()
    assert "WantedBy=timers.target" in timer
    assert "WantedBy" not in service
    # It runs as root, and needs to change nothing but its one file.
    written = re.findall(r"^ReadWritePaths=(.*)$", service, re.MULTILINE)
    assert written == [str(Path(started[1].split()[1]).parent)]
    assert {"ProtectSystem=strict", "ProtectKernelTunables=yes"} <= set(service.splitlines())
    # The folder that holds it belongs to the exporter.
    assert f"ConditionPathIsSymbolicLink=!{written[0]}" in service.splitlines()
    # These file systems ProtectSystem leaves out, and root may write to disks without a capability.
    assert {"ProtectControlGroups=yes", "DevicePolicy=closed"} <= set(service.splitlines())
    # One that hangs does not keep the timer from starting the next one.
    [seconds] = re.findall(r"^TimeoutStartSec=(\d+)$", service, re.MULTILINE)
    assert "OnUnitActiveSec=1min" in timer.splitlines()
    assert 0 < int(seconds) < 60
    # The kernel's log is the one device that it reads.
    assert re.findall(r"^DeviceAllow=(.*)$", service, re.MULTILINE) == ["/dev/kmsg r"]


def test_commands_in_the_readme_can_be_typed():
    text = (TOOLS / "README.md").read_text()
    typed = re.findall(r"^ {4}(?:sudo )?pagewright (.*)$", text, re.MULTILINE)
    assert len(typed) >= len(options())
    for words in typed:
        tool.make_parser().parse_args(words.split("#")[0].split())


def test_the_output_in_the_readme_is_what_is_printed(tree, call):
    """The readme shows one feature of a recorded guest, as the command prints it."""
    text = (TOOLS / "README.md").read_text()
    shown = text.split("`pagewright status` on a guest with cortex-a76")[1].split("\n\n")[1]
    printed = call(tree("cortex-a76"), "status")[1].split("\n\n")
    assert textwrap.dedent(shown) in printed


def test_links_in_the_readme_lead_somewhere():
    targets = re.findall(r"\]\(([^)#\s]+)", (TOOLS / "README.md").read_text())
    assert targets
    for target in targets:
        assert (TOOLS / target).exists(), target


def test_without_sys_nothing_is_said_of_the_cpus(tree, call):
    """As in a chroot that can read the kernel's log."""
    root = tree("all-on")
    shutil.rmtree(root / "sys" / "devices" / "system" / "cpu")
    _, output = call(root, "status")
    assert "  CPUs:    unknown\n" in output
    assert "0 bytes" not in output
    assert not re.search(r":\s*\.", output)
    told = json.loads(call(root, "status", "--json")[1])
    assert "page_tables" not in by_name(told)["percpu-local"]["figures"]
    assert told["machine"]["cpus"] == {"online": None, "possible": None, "models": []}


def test_without_a_list_of_possible_cpus_none_is_made_up(tree, call, status):
    root = tree("all-on", {"/sys/devices/system/cpu/possible": None})
    cpus = status(root)["machine"]["cpus"]
    assert (cpus["online"], cpus["possible"]) == (4, None)
    assert "  CPUs:    4 online, Neoverse-V3" in call(root, "status")[1]


def test_without_meminfo_nothing_is_said_of_the_memory(tree, call, status, tmp_path):
    root = tree("all-on", {"/proc/meminfo": None})
    assert status(root)["machine"]["memory_bytes"] is None
    said = call(root, "status")[1]
    assert "  Memory:  of unknown size in pages of " in said
    linear_map = advice(call, root)["linear-map"]
    assert (linear_map["gain"], linear_map["bytes"]) == ("unknown", None)
    assert "How much memory there is cannot be read, in /proc/meminfo." in linear_map["words"]
    picture = tmp_path / "map.svg"
    said += call(root, "advise")[1] + call(root, "map", "--svg", str(picture))[1]
    said += call(root, "check")[1] + picture.read_text()
    assert "0 bytes" not in said
    # It may be cut off.
    root = tree("all-on", {"/proc/meminfo": "DirectMap2M:      2091008 kB\n"})
    _, checked = call(root, "check")
    assert "skipped  the linear map has all memory: /proc/meminfo does not say how much" in checked


UNKNOWN_PREEMPTION = {"model": None, "dynamic": None, "counted": None}


def without_version(root: Path) -> Path:
    """Take away all that says how the kernel preempts, but for its configuration."""
    for file in (root / "proc/version", root / "sys/kernel/debug/sched/preempt"):
        file.unlink(missing_ok=True)
    return without_log(root)


def test_without_version_and_configuration_nothing_is_said_of_preemption(tree, call, status):
    root = without_version(tree("all-on"))
    for file in (*root.glob("boot/config-*"), *root.glob("usr/lib/modules/*/config")):
        file.unlink()
    (root / "proc/config.gz").unlink(missing_ok=True)
    told = status(root)
    assert told["machine"]["preemption"] == UNKNOWN_PREEMPTION
    assert "  Kernel:  preemption unknown;" in call(root, "status")[1]
    percpu = by_name(told)["percpu-local"]
    assert (percpu["state"], percpu["changes"]) == ("on", [])
    advised = advice(call, root)["percpu-local"]
    assert advised["gain"] == "unknown"
    for words in (percpu["why"], advised["words"]):
        assert "Whether this kernel counts preemption" in words
    # One that is off is not said to be as good as on.
    folder = root / "sys/kernel/mm/percpu_local"
    (folder / "mode").write_text("classic\n")
    (folder / "reason").write_text("percpu_local_map=0\n")
    percpu = by_name(status(root))["percpu-local"]
    assert (percpu["state"], len(percpu["changes"])) == ("off", 1)
    assert "does not count" not in percpu["why"]


@pytest.mark.parametrize(
    ("symbols", "model", "dynamic", "counted"),
    [
        (["HAVE_PREEMPT_DYNAMIC", "PREEMPT_VOLUNTARY"], "voluntary", False, False),
        (["PREEMPT_VOLUNTARY", "PREEMPT_COUNT", "PREEMPT_DYNAMIC"], "voluntary", True, True),
        (["PREEMPT", "PREEMPT_COUNT"], "full", False, True),
        (["PREEMPT_RT", "PREEMPT_COUNT"], "rt", False, True),
    ],
)
def test_without_version_the_configuration_says_how_the_kernel_preempts(
    tree, status, symbols, model, dynamic, counted
):
    config = "".join(f"CONFIG_{symbol}=y\n" for symbol in symbols)
    root = without_version(tree("unpatched", {"/boot/config-6.12.117": config}))
    found = status(root)["machine"]["preemption"]
    assert found == {"model": model, "dynamic": dynamic, "counted": counted}


def test_without_sys_what_is_not_known_is_not_told(tree, call, status):
    """As in a chroot that can read the kernel's log."""
    root = tree("cortex-a76")
    shutil.rmtree(root / "sys")
    found = advice(call, root)
    assert (found["hugetlb-vmemmap"]["gain"], found["hugetlb-vmemmap"]["bytes"]) == (
        "unknown",
        None,
    )
    assert "/sys/kernel/mm/hugepages" in found["hugetlb-vmemmap"]["words"]
    assert found["linear-map"]["gain"] == "unknown"
    assert found["cpu-pause"]["words"].startswith("linear-map needs it")
    checked = call(root, "check")[1]
    assert "/sys/kernel does not say whether this kernel has hugetlb-vmemmap" in checked
    assert "/sys/kernel does not say whether this kernel has cpu-pause" in checked
    assert "the models of the CPUs cannot be read" in checked
    assert "this kernel does not" not in checked
    # That is what the kernel said at boot.
    why = by_name(status(root))["linear-map"]["why"]
    assert "because the boot CPU is not known to be one" in why
    assert "online now" not in why
    # Without the log there is no reason for a pause, and none against it.
    linear_map = by_name(status(without_log(root)))["linear-map"]
    assert (linear_map["state"], linear_map["mode"]) == ("unknown", "blocks")
    assert "the kernel's log cannot be read." in linear_map["why"]
    words = advice(call, root)["cpu-pause"]["words"]
    assert "depends on the models of the CPUs, which cannot be read;" in words


def test_pools_that_are_hidden_are_not_taken_for_none(tree, call, status):
    """That is so where a sandbox has an empty folder in their place."""
    root = tree("all-on")
    shutil.rmtree(root / "sys" / "kernel" / "mm" / "hugepages")
    (root / "sys" / "kernel" / "mm" / "hugepages").mkdir()
    shutil.rmtree(root / "sys" / "devices" / "system" / "cpu")
    assert advice(call, root)["hugetlb-vmemmap"]["gain"] == "unknown"
    assert "how many hugetlb pages there are cannot be read" in call(root, "check")[1]
    hvo = by_name(status(root))["hugetlb-vmemmap"]
    assert "most_saved" not in hvo["figures"]
    assert "no hugetlb pages" not in " ".join(hvo["changes"])
    # A kernel without CONFIG_HUGETLBFS has no such folder.
    (root / "sys" / "kernel" / "mm" / "hugepages").rmdir()
    assert advice(call, root)["hugetlb-vmemmap"]["gain"] == "nothing"


def test_it_has_no_syntax_that_python_3_9_does_not_know():
    """That of the package's dependency. What it calls is tried below, where there is a 3.9."""
    ast.parse(COMMAND.read_text(), feature_version=(3, 9))


def old_python() -> str | None:
    """Return a Python 3.9, if this computer has one."""
    places = [shutil.which("python3.9"), *Path.home().glob(".pyenv/versions/3.9.*/bin/python3.9")]
    for place in places:
        if place and subprocess.run([place, "--version"], capture_output=True).returncode == 0:
            return str(place)
    return None


@pytest.mark.skipif(old_python() is None, reason="there is no Python 3.9")
@pytest.mark.parametrize("command", ["status --json", "check", "advise", "export", "map", "watch"])
def test_it_runs_with_python_3_9(tree, command):
    words = [str(old_python()), "-B", str(COMMAND), "--root", str(tree("all-on")), *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# What each command says on a computer that is not arm64: the exit status, and the words with which
# it says so. The picture of memory needs no feature, and so it is no failure there.
ON_X86 = {
    "status": (4, "They are for arm64, and this machine is x86_64."),
    "status --json": (4, '"architecture": "x86_64"'),
    "check": (4, "an atomic takes one page fault: it takes a running arm64 machine"),
    "advise": (4, "The features are for arm64, and this machine is x86_64."),
    "map": (0, "Page tables are shown of arm64 only."),
}


@pytest.mark.parametrize("command", ON_X86)
def test_it_runs_on_this_computer(command):
    words = [sys.executable, "-B", str(COMMAND), *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    if os.uname().machine != "x86_64":
        assert done.returncode in (0, 1, 3, 4)
        return
    code, said = ON_X86[command]
    assert done.returncode == code
    assert said in " ".join(done.stdout.split())


def test_it_imports_nothing_that_python_does_not_bring():
    """It is one file that an administrator copies to a server, which may have no network."""
    imported = set()
    for node in ast.walk(ast.parse(COMMAND.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, ast.unparse(node)
            imported.add(str(node.module))
    assert "json" in imported
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


def test_a_disk_that_is_full_is_an_error_in_words(tree):
    words = [sys.executable, "-B", str(COMMAND), "--root", str(tree("all-on")), "status"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    expected = "pagewright: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_an_output_that_is_closed_is_an_error_in_words(tree):
    words = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-B", str(COMMAND)]
    words += ["--root", str(tree("all-on")), "status"]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
    expected = "pagewright: the standard output is closed\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize("command", ["status", "map", "watch", "export"])
def test_whoever_has_stopped_reading_gets_no_error_in_words(tree, command):
    """As `pagewright map | head -1`; the man page documents the exit status, which is a shell's."""
    words = [sys.executable, "-B", str(COMMAND), "--root", str(tree("all-on")), command]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(words, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_terminal_of_ascii_is_no_error(tree):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    for command, expected in (("map", "++++"), ("status", "0.0 ?s was the longest attempt")):
        words = [sys.executable, "-B", str(COMMAND), "--root", str(tree("all-on")), command]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert expected in " ".join(done.stdout.split())


def on_terminal(columns: int, root: Path, *words: str, **environment: str) -> list[str]:
    """Return the lines that a command writes to a terminal with so many columns."""
    around = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-B", str(COMMAND), "--root", str(root), *words]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=around | environment
    ):
        os.close(theirs)
        parts = []
        # Where nobody writes any more, Linux ends it with an error.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 1 << 16):
                parts.append(part)
    os.close(ours)
    return b"".join(parts).decode().splitlines()


@pytest.mark.parametrize(
    ("columns", "expected"), [(0, 80), (20, 40), (60, 60), (80, 80), (300, 100)]
)
def test_prose_is_as_wide_as_the_terminal(tree, columns, expected):
    """One that does not know its width, as a serial console, has 80 columns."""
    lines = on_terminal(columns, tree("cortex-a76"), "status")
    prose = [line for line in lines if line.startswith(" " * 11)]
    # No word there is longer than 15 characters.
    assert expected - 16 < max(map(len, prose)) <= expected


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
    ],
    ids=["xterm", "none", "dumb", "no-color"],
)
def test_map_has_colours_on_a_terminal_that_shows_them(tree, environment, coloured):
    text = "\n".join(on_terminal(80, tree("all-on"), "map", **environment))
    assert ("\x1b[34m" in text) == coloured
    assert ("\x1b" in text) == coloured
    # The words of the legend would say nothing without their colours.
    assert ("read-only" in text) == coloured


def test_no_word_is_broken_at_the_end_of_a_line(tree):
    """Parameters and names are there to be copied."""
    root = tree("all-on", cmdline("rodata=full arm64.linear_map=pages"))
    # A file that cannot be read is named at the end, and its name is longer than some lines.
    midr = root / "sys/devices/system/cpu/cpu3/regs/identification/midr_el1"
    midr.unlink()
    midr.mkdir()
    whole = " ".join(" ".join(on_terminal(300, without_log(root), "status")).split())
    for columns in range(40, 100, 10):
        lines = on_terminal(columns, root, "status")
        assert " ".join(" ".join(lines).split()) == whole


# --- In guests ------------------------------------------------------------------------------------

PYTHON = ("python3-minimal", "libpython3-stdlib")
USER = "setpriv --reuid 65534 --regid 65534 --clear-groups"


def lay_out(space: Workspace, target: Path) -> Path:
    """Make the folder to lay over a guest's root: the command, and Python if there is none."""
    (target / "opt").mkdir(parents=True)
    shutil.copy(COMMAND, target / "opt" / "pagewright")
    guest = arm64_packages.fetch(space, image.PACKAGES)
    if re.search(r"^python3-minimal ", guest.listing.read_text(), re.MULTILINE):
        return target
    with tarfile.open(guest.tar) as archive:
        there = set(archive.getnames())
    packages = arm64_packages.fetch(space, PYTHON).tar
    with tarfile.open(packages) as archive:
        names = [member.name for member in archive if not member.isdir()]
    wanted = [name for name in names if name not in there and name.startswith("./usr/")]
    run(
        ["tar", "-x", "--no-same-owner", "-f", packages, "-C", target, "-T", "-"],
        stdin="\n".join(wanted),
    )
    return target


@pytest.fixture(scope="module")
def overlay(space, tmp_path_factory) -> Path:
    return lay_out(space, tmp_path_factory.mktemp("overlay") / "root")


def ask(guest: Machine, words: str, user: str = "") -> tuple[int, str]:
    # The first call also compiles the modules of Python, which the packages bring as source.
    result = guest.run(f"{user} python3 /opt/pagewright {words}", timeout=900)
    assert "Traceback" not in result.output, result.output
    return result.status, result.output


def ask_status(guest: Machine, user: str = "") -> tuple[int, dict[str, Any]]:
    code, output = ask(guest, "status --json", user)
    return code, by_name(json.loads(output)) | {"": json.loads(output)}


def must_equal_what_the_guest_says(guest: Machine, found: dict[str, Any]) -> None:
    """Compare figures with the guest's own files."""
    meminfo = guest.meminfo()
    whole = found[""]["machine"]
    assert whole["memory_bytes"] == meminfo["MemTotal"] << 10
    assert whole["release"] == guest.check("uname -r")
    assert whole["page_size"] == int(guest.check("getconf PAGESIZE"))
    assert whole["cpus"]["online"] == int(guest.check("nproc"))
    saved, pauses = guest.read(
        "/sys/kernel/mm/hugetlb_vmemmap/bytes_saved", "/sys/kernel/cpu_pause/pauses"
    )
    assert found["hugetlb-vmemmap"]["figures"]["bytes_saved"] == int(saved)
    assert found["cpu-pause"]["figures"]["pauses"] == int(pauses)
    direct_map = {k: v << 10 for k, v in meminfo.items() if k.startswith("DirectMap")}
    figures = found["linear-map"]["figures"]
    assert figures["mapped_by_blocks"] + figures["mapped_by_pages"] == sum(direct_map.values())
    vmstat = dict(re.findall(r"(\w+) (\d+)", guest.check("cat /proc/vmstat")))
    splits = sum(int(v) for k, v in vmstat.items() if k.startswith("linear_map_split_"))
    assert figures["splits"] == splits


@pytest.mark.long(1)
def test_in_a_guest_with_all_features(machine, overlay):
    guest = machine("patched-4k", overlay=overlay, append="hugepages=16")
    code, found = ask_status(guest)
    assert code == 0, found
    assert {found[name]["state"] for name in FEATURES} == {"on"}
    must_equal_what_the_guest_says(guest, found)
    assert found["hugetlb-vmemmap"]["figures"]["bytes_saved"] == 16 * 24 << 10

    code, output = ask(guest, "check")
    assert code == 0, output
    assert {line.split()[0] for line in output.splitlines()} == {"ok"}
    # With one CPU the emulator reports the first fault of an atomic as a read, as hardware does.
    assert re.search(r"one page fault: \d+ faults for 256 pages$", output, re.MULTILINE)
    counted = found["atomic-write-fault"]["figures"]["atomic_write_faults"]
    again = ask_status(guest)[1]["atomic-write-fault"]["figures"]["atomic_write_faults"]
    assert again >= counted + 256

    assert guest.warnings() == ""


@pytest.mark.full
def test_all_commands_in_a_guest_and_what_a_user_is_told(machine, overlay):
    guest = machine("patched-4k", overlay=overlay, append="hugepages=16")
    for words in ("map", "advise", "export", "watch 0.1 2"):
        assert ask(guest, words)[0] == 0

    guest.check("echo 1 >/proc/sys/kernel/dmesg_restrict")
    found = ask_status(guest, USER)[1]
    assert {found[name]["state"] for name in FEATURES} <= {"on", "unknown"}
    for name in IN_FILES:
        assert (found[name]["state"], found[name]["certain"]) == ("on", True)
    assert "/dev/kmsg" in [missed["path"] for missed in found[""]["unreadable"]]
    must_equal_what_the_guest_says(guest, found)
    assert ask(guest, "check", USER)[0] == 0
    assert guest.warnings() == ""


@pytest.mark.full
def test_in_a_guest_whose_processor_lacks_level_2(machine, overlay):
    guest = machine("patched-4k", overlay=overlay, cpu="cortex-a76", smp=2, append="hugepages=16")
    code, found = ask_status(guest)
    assert code == 0
    assert {found[name]["state"] for name in FEATURES} == {"on"}
    assert found["linear-map"]["mode"] == "blocks"
    assert found["linear-map"]["why"].startswith("All other CPUs are paused")
    assert found["hugetlb-vmemmap"]["mode"] == "seamless"
    assert found["hugetlb-vmemmap"]["why"].startswith("CPUs are paused only when")
    must_equal_what_the_guest_says(guest, found)
    code, output = ask(guest, "check")
    assert code == 0, output


@pytest.mark.full
def test_in_a_guest_with_all_features_off(machine, overlay):
    off = " ".join(feature.boot_off for feature in SPACE.features())
    guest = machine("patched-4k", overlay=overlay, append=off)
    code, found = ask_status(guest)
    assert code == 3
    states = {name: found[name]["state"] for name in FEATURES}
    assert {name for name, state in states.items() if state == "on"} == {"cpu-pause"}
    assert set(states.values()) == {"on", "off"}
    for feature in SPACE.features():
        if feature.boot_off:
            assert feature.boot_off in found[feature.name]["why"]
    code, output = ask(guest, "check")
    assert code == 0, output
    # What check would take for wrong if the feature were on.
    faults = re.search(
        r"one page fault: (\d+) faults for 256 pages; the feature is off$", output, re.M
    )
    assert faults
    assert int(faults[1]) >= 2 * 256


@pytest.mark.full
def test_in_a_guest_with_the_unpatched_kernel(machine, overlay):
    guest = machine("base-4k", overlay=overlay)
    assert ask_status(guest)[0] == 4
    assert ask(guest, "check")[0] == 4
    assert ask(guest, "advise")[0] == 0


@pytest.mark.full
@pytest.mark.parametrize("build", ["patched-16k", "patched-64k", "patched-voluntary-4k"])
def test_in_guests_with_other_kernels(machine, overlay, build):
    guest = machine(build, overlay=overlay, memory="2G")
    code, found = ask_status(guest)
    assert code == 0, found
    must_equal_what_the_guest_says(guest, found)
    counted = found[""]["machine"]["preemption"]["counted"]
    assert counted == ("voluntary" not in build)
    code, output = ask(guest, "check")
    assert code == 0, output
    assert ask(guest, "map")[0] == 0


# --- the page that explains status ----------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(file.stem for file in MACHINES.glob("*.txt")))
def test_the_page_on_status_has_each_line_that_is_printed(tree, call, status, name):
    text = (SPACE.root / "docs" / "status.md").read_text()
    root = tree(name)
    for feature in status(root)["features"]:
        section = text.split(f"\n## {feature['name']}\n", 1)[1].split("\n## ", 1)[0]
        assert f"| `{feature['state']}` |" in text
        assert f"`{feature['mode']}`" in section or not feature["mode"]
        for figure in feature["figures"]:
            assert f"| {figure['words']} |" in section, figure["words"]
    _, printed = call(root, "status")
    labels = set(re.findall(r"^  (\w+):", printed, re.MULTILINE))
    (root / "proc" / "vmstat").unlink()
    (root / "proc" / "vmstat").mkdir()
    labels.update(re.findall(r"^  (\w+):", call(root, "status")[1], re.MULTILINE))
    assert {"CPUs", "Memory", "Kernel", "Why", "Note"} <= labels
    assert {label for label in labels if f"`{label}`" not in text} == set()


def test_what_is_there_once_is_counted_in_the_singular(status, tree, call):
    """Whatever figure it is of."""
    for name in ("all-on", "cortex-a76-pages"):
        for feature in status(tree(name))["features"]:
            for figure in feature["figures"]:
                one = tool.figure_text(tool.Figure(**(figure | {"value": 1})))
                several = tool.figure_text(tool.Figure(**(figure | {"value": 2})))
                if figure["unit"] == "" and not figure["words"].startswith("of "):
                    assert one[1:] != several[1:], one
                assert not re.match(r"1 (page faults|leaves|times|pauses|attempts|failures)\b", one)
    changes = {"/sys/kernel/cpu_pause/failed": "1\n"}
    assert ": 1 pause failed;" in call(tree("cortex-a76-pages", changes), "check")[1]
    pauses = {"/sys/kernel/cpu_pause/pauses": "1\n"}
    assert ": 1 pause, the longest" in call(tree("all-on", pauses), "check")[1]
    pool = {"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "1\n"}
    assert "(1 page of 2 MiB)" in call(tree("unpatched", pool), "advise")[1]


def test_a_time_is_written_in_microseconds(tree, call):
    longest = tool.Figure("longest", 2_345_600, "ns", "was the longest attempt")
    assert tool.figure_text(longest) == "2,345.6 µs was the longest attempt"
    names = {"longest_ns": "2345600\n", "total_ns": "2345700\n", "pauses": "2\n"}
    changes = {f"/sys/kernel/cpu_pause/{name}": text for name, text in names.items()}
    printed = " ".join(call(tree("all-on", changes), "status")[1].split())
    assert "2,345.6 µs was the longest attempt; 2,345.7 µs in all attempts." in printed
    checked = call(tree("all-on", changes), "check")[1]
    assert "2 pauses, the longest took 2,345.6 µs" in checked


def test_the_page_on_status_has_nothing_that_is_never_printed(status, tree):
    text = (SPACE.root / "docs" / "status.md").read_text()
    figures = [
        figure["words"]
        for name in ("all-on", "cortex-a76-pages")
        for feature in status(tree(name))["features"]
        for figure in feature["figures"]
    ]
    tables = re.findall(r"\| figure \| meaning \|\n\| --- \| --- \|\n((?:\|.*\n)+)", text)
    documented = re.findall(r"^\| (.+?) \|", "".join(tables), re.MULTILINE)
    assert set(documented) == set(figures)


def test_the_page_on_status_says_what_to_do_about_each_reason():
    """Its tables on linear-map and percpu-local have each reason that the kernel may give."""
    text = (SPACE.root / "docs" / "status.md").read_text()

    def table(name: str) -> list[tuple[str, str]]:
        section = text.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]
        return re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)

    local = table("percpu-local")
    for words in NO_LOCAL_MAP:
        assert any(words in why and change for why, change in local), words
    rows = table("linear-map")
    parameters = (
        "arm64.linear_map=live",
        "arm64.linear_map=pages",
        "arm64.linear_map=pause",
        "arm64.linear_map=af",
        "arm64.nobbml2",
        "debug_pagealloc=on",
        "rodata=full",
    )
    for words in (*parameters, NO_PAUSES, TOP_LEVEL):
        assert any(words in why and change for why, change in rows), words
    for why, change in rows + local:
        if "booted with" in why:
            assert change.startswith("Remove"), why


def test_documents_for_administrators_say_what_other_cpus_gain(tree, status):
    """Where CPUs lack level 2, linear-map has blocks, and hugetlb-vmemmap is seamless."""
    found = by_name(status(tree("cortex-a76")))
    docs = SPACE.root / "docs"
    kvm = (docs / "hosts.md").read_text().split("\n## KVM\n")[1].split("\n## ")[0]
    logged_line = (MACHINES / "cortex-a76.txt").read_text().split("linear map: ")[1]
    quotes = re.findall(r"`(blocks \([^`]+?)[.) ]*`", " ".join(kvm.split()))
    assert len(quotes) == 1
    assert logged_line.startswith(quotes[0])
    reference = (docs / "reference.md").read_text()
    row = re.search(r"^\| `hugetlb_vmemmap` \|.*$", reference, re.MULTILINE)
    assert row
    assert found["hugetlb-vmemmap"]["mode"] == "seamless"
    assert "`auto` is seamless on all CPUs" in row[0]
    stale = (
        r"gain nothing|nothing is lost|[Oo]nly other CPUs|no BBM level 2|where all CPUs can do it"
        r"|on on any CPU"
    )
    texts = [TOOLS / "README.md", COMMAND, TOOLS / "pagewright.1", docs / "status.md"]
    for file in texts:
        assert not re.search(stale, " ".join(file.read_text().split())), file
    assert not re.search(stale, kvm + row[0])
