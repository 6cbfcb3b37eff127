"""The tests of a feature run on a board in a lab, unchanged, and leave logs if they fail.

All parts are real: a coordinator, an exporter and a client of labgrid, talking
over the loopback interface, and tests that are told nothing but --lg-env. Only
the board is a QEMU, which shares its one serial port, a TCP socket, between the
kernel's console and the shell, as boards do.
"""

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import suites
from labgrid.util import get_free_port

from pagewright.guest import image
from pagewright.kernel import build

ROOT = Path(__file__).parent.parent
REMOTE = Path(__file__).parent / "remote"
SELECTION = [
    f"features/atomic-write-fault/test_populate.py::{test}"
    for test in (
        "test_atomics_and_exclusives_make_huge_pages",
        "test_forced_faults_of_exclusives_are_counted",
    )
]
BOARD_BUILD = "patched-4k"

pytestmark = [
    pytest.mark.skipif("config.getoption('lg_env')", reason="this test is the lab"),
    pytest.mark.full,
]


def tool(name):
    """The path of one of labgrid's programs."""
    return str(Path(sys.executable).with_name(name))


@contextmanager
def running(command, log, **kwargs):
    """A program that runs as long as the context does."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **kwargs
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the lab."""
    return tmp_path_factory.mktemp("lab")


@contextmanager
def board(space, log):
    """The TCP port that is the serial port of a board running our kernel and guest."""
    port = get_free_port()
    command = [
        "qemu-system-aarch64",
        *("-M", "virt,gic-version=3", "-cpu", "max", "-smp", "2", "-m", "1G"),
        # Atomics must fault as on a board.
        *("-accel", "tcg,thread=single"),
        *("-nic", "none", "-display", "none", "-monitor", "none", "-no-reboot"),
        *("-serial", f"tcp:127.0.0.1:{port},server=on,wait=off"),
        *("-kernel", str(build.ensure(space, BOARD_BUILD).image)),
        *("-drive", f"if=virtio,format=raw,snapshot=on,file={image.ensure(space)}"),
        *("-append", "root=/dev/vda rw init=/init console=ttyAMA0 panic=-1"),
    ]
    with running(command, log):
        yield port


@pytest.fixture(scope="module")
def board_port(space, folder):
    """The serial port of the board in the lab."""
    with board(space, folder / "board.log") as port:
        yield port


@pytest.fixture(scope="module")
def lab(folder, board_port):
    """The environment variables of a client of a lab with that board in it, acquired."""
    coordinator = f"127.0.0.1:{get_free_port()}"
    env = {**os.environ, "LG_COORDINATOR": coordinator, "BOARD_PORT": str(board_port)}

    def client(*words):
        return subprocess.run(
            [tool("labgrid-client"), *words], env=env, capture_output=True, text=True, check=False
        )

    def wait_for(resource, *programs):
        resources = client("resources")
        for _ in range(60):
            if resources.returncode == 0 and resource in resources.stdout:
                return
            if any(program.poll() is not None for program in programs):
                break
            time.sleep(0.5)
            resources = client("resources")
        logs = "\n".join(file.read_text() for file in folder.glob("labgrid-*.log"))
        pytest.fail(f"the lab did not come up: {resources.stderr}\n{logs}")

    def start(stack, name, *arguments):
        # The coordinator keeps its places in the directory it runs in.
        command = [tool(name), *arguments]
        log = folder / f"{name}.log"
        return stack.enter_context(running(command, log, env=env, cwd=folder))

    with ExitStack() as stack:
        first = start(stack, "labgrid-coordinator", "-l", coordinator)
        wait_for("", first)
        exporter = ("labgrid-exporter", "-n", "shelf", "--hostname", "127.0.0.1")
        second = start(stack, *exporter, REMOTE / "exporter.yaml")
        wait_for("shelf/board/NetworkSerialPort", first, second)
        for words in (["create"], ["add-match", "shelf/board/*"], ["acquire"]):
            done = client("-p", "board", *words)
            assert done.returncode == 0, done.stdout + done.stderr
        yield env
        client("-p", "board", "release")


def test_the_tests_of_a_feature_pass_on_a_remote_board(lab, tmp_path):
    results = tmp_path / "results.xml"
    child = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", *SELECTION, "-p", "no:cacheprovider"),
            *("--lg-env", REMOTE / "environment.yaml", f"--junit-xml={results}"),
            # Another worker may run the same tests, and write where they keep their logs.
            f"--logs={tmp_path / 'logs'}",
        ],
        cwd=ROOT,
        env=lab,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    counts = ElementTree.parse(results).getroot().find("testsuite").attrib
    assert int(counts["tests"]) >= len(SELECTION)
    assert (counts["skipped"], counts["failures"], counts["errors"]) == ("0", "0", "0")


def test_a_place_that_the_lab_does_not_have_is_told_with_those_it_has(lab, tmp_path):
    wrong = tmp_path / "environment.yaml"
    wrong.write_text((REMOTE / "environment.yaml").read_text().replace("name: board", "name: bord"))
    command = [ROOT / "bin" / "pagewright", "bench", "atomic-populate", "--lg-env", wrong]
    child = subprocess.run(command, env=lab, capture_output=True, text=True, check=False)
    assert child.returncode == 1
    told = f"pagewright: {wrong}: the coordinator does not have its place: "
    assert child.stderr.startswith(told), child.stderr
    assert child.stderr.endswith("\nit has these: board\n")
    assert len(child.stderr.splitlines()) == 2


def test_a_test_that_the_board_cannot_run_is_skipped_with_the_reason(lab, tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "test_there.py").write_text(
        "def test_here(machine):\n"
        "    board = machine()\n"
        "    assert board.fixed\n"
        "    assert board.check('uname -m') == 'aarch64'\n"
        "    assert board.warnings() == ''\n"
        "def test_cpu(machine):\n"
        "    machine(cpu='a64fx')\n"
        "def test_build(machine):\n"
        "    machine('base-4k')\n"
    )
    child = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-rs", tmp_path / "test_there.py"),
            *("--rootdir", tmp_path, "--lg-env", REMOTE / "environment.yaml"),
            f"--logs={tmp_path / 'logs'}",
        ],
        cwd=tmp_path,
        env=lab,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed, 2 skipped" in child.stdout, child.stdout + child.stderr
    assert "does not have cpu=a64fx" in child.stdout
    assert "runs patched-4k, not base-4k" in child.stdout


# A board beside this computer, of which no lab knows.
BESIDE = """
targets:
  main:
    resources:
      NetworkSerialPort:
        host: 127.0.0.1
        port: {port}
        protocol: raw
    drivers:
      SerialDriver: {{}}
      ShellDriver:
        prompt: 'guest# '
        login_prompt: ' login: '
        username: root
options:
  build: {build}
"""

SUITE = """
def test_passes(machine):
    machine().check("echo '<0>the first' >/dev/kmsg")


def test_fails(machine):
    machine().check("echo '<0>the second' >/dev/kmsg; echo wrong; exit 7")


def test_dies(machine):
    machine().check("echo c >/proc/sysrq-trigger", timeout=30)
"""


def test_a_test_that_fails_leaves_what_the_board_said_meanwhile(space, tmp_path):
    environment, logs = tmp_path / "beside.yaml", tmp_path / "logs"
    (tmp_path / "test_it.py").write_text(SUITE)
    with board(space, tmp_path / "board.log") as port:
        environment.write_text(BESIDE.format(port=port, build=BOARD_BUILD))
        child = subprocess.run(
            suites.command(tmp_path, "--lg-env", environment, tmp_path),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert "2 failed, 1 passed" in child.stdout, child.stdout + child.stderr
    # Nothing else is left, of the test that passed or of the whole session.
    assert sorted(path.name.split("py-")[-1] for path in logs.iterdir() if path.is_dir()) == [
        "test_dies",
        "test_fails",
    ]
    consoles, commands = (
        {path.parent.parent.name.split("py-")[-1]: path.read_text() for path in found}
        for found in (logs.glob("*/place/console.log"), logs.glob("*/place/commands.log"))
    )
    assert ">/dev/kmsg; echo wrong; exit 7\nwrong\n" in commands["test_fails"]
    # What a board runs is encoded there, so this is the kernel.
    assert "the second" in consoles["test_fails"]
    assert "the first" not in commands["test_fails"] + consoles["test_fails"]
    assert commands["test_dies"].endswith("$ echo c >/proc/sysrq-trigger\n")
    assert "sysrq triggered crash" in consoles["test_dies"]
    # The error says it, too.
    assert "the guest kernel died while running: echo c >/proc/sysrq-trigger" in child.stdout
