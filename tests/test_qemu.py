"""The command line that is made for QEMU; nothing boots here."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from labgrid.util.yaml import load

from pagewright.host.errors import MachineError
from pagewright.host.workspace import Workspace
from pagewright.machine import inputs, plugin
from pagewright.machine.boot import boot, console
from pagewright.machine.options import MachineOptions, in_bytes, unmet
from pagewright.machine.qemu import describe
from pagewright.machine.strict import MAX_CPUS, Strict


@pytest.fixture
def images(tmp_path: Path) -> dict[str, Path]:
    """Make files that stand for a kernel and a root file system."""
    files = {"kernel": tmp_path / "Image", "rootfs": tmp_path / "root.ext4"}
    for file in files.values():
        file.touch()
    return files


def emulator(options: MachineOptions, directory: Path) -> dict[str, str]:
    """Return what labgrid is told of the emulator."""
    with describe(options, directory, directory, 10).open() as file:
        place = load(file)
    return place["targets"]["main"]["drivers"]["EmulatorDriver"]


def values(words: str, option: str) -> list[str]:
    """Return the values of an option, in their order."""
    listed = shlex.split(words)
    return [value for word, value in pairwise(listed) if word == option]


def test_guest_is_emulated_by_default(images, tmp_path):
    told = emulator(MachineOptions(**images), tmp_path)
    assert values(told["extra_args"], "-accel") == ["tcg,thread=multi"]
    assert told["cpu"].startswith("max,")
    assert "gic-version=host" not in told["extra_args"]


def test_kvm_runs_the_computer_s_own_cpus(images, tmp_path):
    told = emulator(MachineOptions(**images, accel="kvm"), tmp_path)
    assert values(told["extra_args"], "-accel") == ["kvm"]
    assert told["cpu"] == "host"
    machine = ",".join(values(told["extra_args"], "-machine")).split(",")
    assert [word for word in machine if word.startswith("gic-version")][-1] == "gic-version=host"


def test_last_version_of_the_interrupt_controller_counts():
    requests = [{"execute": "qmp_capabilities"}]
    path = {"path": "/machine", "property": "gic-version"}
    requests += [{"execute": "qom-get", "arguments": path}, {"execute": "quit"}]
    shown = subprocess.run(
        [
            *("qemu-system-aarch64", "-M", "virt", "-S", "-display", "none", "-qmp", "stdio"),
            *("-nodefaults", "-cpu", "max"),
            *("-machine", "gic-version=3,mte=off", "-machine", "gic-version=2"),
        ],
        input="\n".join(map(json.dumps, requests)),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert {"return": "2"} in map(json.loads, shown.stdout.splitlines())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"icount": True}, "icount counts instructions, which KVM cannot: use the default"),
        ({"count": Path("x")}, "count counts instructions, which KVM cannot: use the default"),
        ({"single_threaded": True}, "single_threaded is about emulated CPUs"),
        ({"virtualization": True}, "virtualization needs CPUs with EL2"),
        ({"cpu": "cortex-a72"}, "the computer's own CPU and not cpu cortex-a72"),
    ],
)
def test_kvm_refuses_what_only_an_emulator_can(images, options, message):
    with pytest.raises(MachineError, match=message):
        MachineOptions(**images, accel="kvm", **options)


@pytest.mark.parametrize("thread", ["icount", "single_threaded"])
def test_a_strict_machine_of_one_thread_has_one_cpu(images, thread):
    strict = Strict(Path("plugin"))
    MachineOptions(**images, strict=strict, **{thread: True})
    MachineOptions(**images, strict=strict, smp=2)
    with pytest.raises(MachineError, match="QEMU tells the plugin of the wrong CPU"):
        MachineOptions(**images, strict=strict, smp=2, **{thread: True})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smp": MAX_CPUS + 1}, f"strict knows the tables of {MAX_CPUS} CPUs"),
        ({"virtualization": True}, "takes the kernel of a guest in the machine for its own"),
    ],
)
def test_machines_that_the_model_of_a_strict_one_does_not_fit(images, options, message):
    strict = Strict(Path("plugin"))
    MachineOptions(**images, strict=strict, smp=MAX_CPUS)
    with pytest.raises(MachineError, match=message):
        MachineOptions(**images, strict=strict, **options)


@pytest.mark.parametrize("start", [lambda options: boot(options).__enter__(), console])
def test_what_the_machine_of_a_killed_run_has_left_is_swept(monkeypatch, tmp_path, start):
    """It is as large as the modules and the overlay, and may be in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "pagewright-machine-killed" / "deep").mkdir(parents=True)
    with pytest.raises(MachineError, match="there is no kernel"):
        start(MachineOptions(tmp_path / "none", tmp_path / "none"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "memory", ["lots", "", "8GiB", "inf", "nan", "1e400G", "-1G", "0", "1023K"]
)
def test_a_size_of_memory_that_is_none_is_refused(images, memory):
    with pytest.raises(MachineError, match="no size of memory") as error:
        MachineOptions(**images, memory=memory, smp=2, nodes=2)
    assert "1G" in error.value.todo


@pytest.mark.parametrize(("memory", "nodes"), [("1G", 3), ("1.5G", 2), ("1000008K", 2)])
def test_nodes_have_the_whole_memory(images, tmp_path, memory, nodes):
    """QEMU refuses to start if the sum is another one."""
    told = emulator(MachineOptions(**images, memory=memory, smp=nodes, nodes=nodes), tmp_path)
    sizes = [int(size) for size in re.findall(r"id=ram\d,size=(\w+)", told["extra_args"])]
    assert len(sizes) == nodes
    assert sum(sizes) == in_bytes(memory)
    # Nodes that begin at a MiB share no page, whatever the size of base pages is.
    assert [size % (1 << 20) for size in sizes[:-1]] == [0] * (nodes - 1)


def test_unknown_accel_lists_what_there_is(images):
    with pytest.raises(MachineError) as error:
        MachineOptions(**images, accel="hvf")
    assert str(error.value) == "there is no accel 'hvf'\nit is tcg or kvm"


def test_accel_asks_nothing_of_a_place(images):
    def check(command: str) -> str:
        assert command == "cat /proc/cmdline"
        return ""

    assert unmet(MachineOptions(**images, accel="kvm"), check) == []


def test_a_plugin_whose_source_was_put_back_is_compiled_again(tmp_path):
    """`cp -p`, `rsync -a` and `tar -x` give it a time that is older than the plugin."""
    source = tmp_path / "a.c"
    space = Workspace(tmp_path, tmp_path / "cache")
    for text in ("old", "experiment", "old"):
        source.write_text(f'const char text[] = "it is {text}";\n')
        if text == "old":
            os.utime(source, (10**9, 10**9))
        made = plugin.compiled(space, "a", [source])
        assert f"it is {text}".encode() in made.read_bytes()
    before = made.stat().st_ino
    assert plugin.compiled(space, "a", [source]).stat().st_ino == before


def test_another_compiler_compiles_a_plugin_again(tmp_path, monkeypatch):
    source = tmp_path / "a.c"
    source.write_text("const char text[] = __VERSION__;\n")
    space = Workspace(tmp_path, tmp_path / "cache")
    before = plugin.compiled(space, "a", [source]).stat().st_ino
    monkeypatch.setattr(plugin, "version", "{} of another time".format)
    assert plugin.compiled(space, "a", [source]).stat().st_ino != before


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"memory": "xx"}, "no size of memory"),
        ({"nodes": 2}, "cannot be divided"),
        ({"accel": "kvm", "icount": True}, "KVM cannot"),
        ({"accel": "kvm", "count": True}, "KVM cannot"),
        ({"strict": True, "icount": True, "smp": 2}, "share a thread"),
        ({"count": True, "smp": 2}, "take turns in one thread"),
        ({"cpu": "nope,pauth=off"}, "QEMU has no CPU model 'nope'\nits models are: .*cortex-a76"),
        ({"accel": "kvm"}, "KVM runs arm64 guests on arm64 computers"),
        ({"tlb": True}, "one CPU in one thread"),
        ({"tlb": True, "icount": True, "strict": True}, "no room for strict"),
        ({"tlb": True, "icount": True, "tlb_ranges": {"a": "x"}}, "is not one"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_built(
    tmp_path, monkeypatch, options, what
):
    """A first build takes many minutes, at the end of which nobody wants to hear of a typo."""
    monkeypatch.setattr(inputs.build, "ensure", lambda *_: pytest.fail("a build was begun"))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(MachineError, match=what):
        inputs.options_for(Workspace(tmp_path, tmp_path), "patched-4k", **options)
