"""A test that fails leaves what its machines wrote; one that passes leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
import suites

import conftest
from pagewright.host import ledger
from pagewright.host.lock import lock
from pagewright.machine import evidence

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif("config.getoption('lg_env')", reason="boots machines in QEMU")

SUITE = """
import pytest

from conftest import SPACE
from pagewright.machine.inputs import options_for
from pagewright.machine.boot import boot


def test_passes(machine):
    machine().check("echo fine")


def test_fails(machine):
    # QEMU itself says of this that there is no such class.
    place = machine(extra_args=("-global", "no-such-class.property=on"))
    place.check("echo '<1>on the console' >/dev/kmsg; echo a command")
    assert place.check("echo wrong") == "right"


def test_fails_with_a_machine_of_its_own():
    with boot(options_for(SPACE, "patched-4k")) as place:
        place.check("echo c >/proc/sysrq-trigger")


def test_shares(shared_machine):
    shared_machine().check("echo before")


def test_fails_with_a_shared_machine(shared_machine):
    shared_machine().check("echo shared; exit 7")
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Run a suite of our own, with the repository's fixtures; return its folder of logs."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "test_it.py").write_text(SUITE)
    command = suites.command(folder, folder)
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "3 failed, 2 passed" in child.stdout, child.stdout + child.stderr
    return folder


def written(suite: Path, test: str, file: str) -> list[str]:
    """Return the texts of a file of each machine of a test."""
    return [path.read_text() for path in sorted((suite / "logs").glob(f"*{test}/*/{file}"))]


def test_only_tests_that_fail_leave_logs(suite):
    folders = [path for path in (suite / "logs").iterdir() if path.is_dir()]
    names = sorted(path.name.split("py-")[-1] for path in folders)
    assert [name.removeprefix("test_") for name in names] == [
        "fails",
        "fails_with_a_machine_of_its_own",
        "fails_with_a_shared_machine",
    ]


def test_console_and_commands_are_kept(suite):
    assert "on the console" in written(suite, "test_fails", evidence.CONSOLE)[0]
    commands = written(suite, "test_fails", evidence.COMMANDS)[0]
    assert "$ echo wrong\nwrong\n" in commands
    assert "status 0" in commands


def test_what_qemu_itself_says_is_kept(suite):
    assert "no-such-class" in written(suite, "test_fails", evidence.STDERR)[0]


def test_the_last_command_of_a_machine_that_died_is_kept(suite):
    test = "test_fails_with_a_machine_of_its_own"
    assert written(suite, test, evidence.COMMANDS)[0].endswith("$ echo c >/proc/sysrq-trigger\n")
    assert "sysrq triggered crash" in written(suite, test, evidence.CONSOLE)[0]


def test_a_shared_machine_leaves_its_logs_to_the_test_that_fails(suite):
    commands = written(suite, "test_fails_with_a_shared_machine", evidence.COMMANDS)[0]
    assert "$ echo before" in commands
    assert "status 7" in commands


# Machines that write one word stand for servers.
INSTALLS = """
import pytest

from pagewright.machine import evidence
from tests.test_install import logs


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_server(ends, tmp_path):
    (evidence.claim(tmp_path) / evidence.CONSOLE).write_text(ends)
    assert ends == "well"
"""


@pytest.mark.full
def test_servers_leave_logs_always_and_among_those_of_failed_tests_if_theirs_fails(tmp_path):
    (tmp_path / "test_it.py").write_text(INSTALLS)
    shared = f"pythonpath={ROOT / 'tests' / 'shared'}"
    command = suites.command(tmp_path, "-o", shared, tmp_path)
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in child.stdout, child.stdout + child.stderr
    consoles = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob(evidence.CONSOLE)}
    assert consoles == {
        "install-logs/test_server[well]/1/console.log",
        "install-logs/test_server[badly]/1/console.log",
        "logs/test_it.py-test_server-badly/1/console.log",
    }
    assert "their logs are in" in child.stdout


def failed(junit: Path) -> list[str]:
    """Return the names of the tests that have failed by a file of results."""
    cases = ElementTree.parse(junit).getroot().iter("testcase")
    return [case.attrib["name"] for case in cases if case.find("failure") is not None]


def test_junit_names_what_failed(suite):
    assert len(failed(suite / "logs" / "junit.xml")) == 3


def small_suite(folder: Path, *words: object) -> list[object]:
    """Make a suite of a test that fails, and return the command that runs it."""
    (folder / "test_small.py").write_text("def test_small():\n    assert 0\n")
    return suites.command(folder, *words, folder)


def test_a_run_ends_with_what_took_longest(tmp_path):
    command = small_suite(tmp_path, "--config-file", ROOT / "pyproject.toml")
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "slowest 10 durations" in child.stdout


def test_what_takes_longest_begins_first(tmp_path):
    """All tests of a file are for one worker, and the last one to end should not be a long one."""
    head = "import pytest\n"
    for name, mark in (("a", ""), ("b", "@pytest.mark.long(1)\n"), ("c", "@pytest.mark.long(2)\n")):
        text = f"{head}def test_first():\n    pass\n{mark}def test_second():\n    pass\n"
        (tmp_path / f"test_{name}.py").write_text(text)
    command = suites.command(tmp_path, "--collect-only", tmp_path)
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [line.split("::")[0] for line in shown.splitlines() if "::" in line]
    assert files == [f"test_{name}.py" for name in "ccbbaa"]


def test_results_go_where_the_user_says(tmp_path):
    given = f"--junit-xml={tmp_path / 'mine.xml'}"
    subprocess.run(small_suite(tmp_path, given), cwd=ROOT, capture_output=True, check=False)
    assert failed(tmp_path / "mine.xml") == ["test_small"]
    assert not (tmp_path / "logs" / "junit.xml").exists()


@pytest.mark.full
def test_results_stay_if_no_test_is_run(tmp_path):
    for words in ((), ("--collect-only",), ("--fixtures",)):
        subprocess.run(small_suite(tmp_path, *words), cwd=ROOT, capture_output=True, check=False)
        assert failed(tmp_path / "logs" / "junit.xml") == ["test_small"], words


def waits_for_a_lock(process: int) -> bool:
    """Tell whether the kernel has a process wait for a lock on a file."""
    locks = map(str.split, Path("/proc/locks").read_text().splitlines())
    return any("->" in words and str(process) in words for words in locks)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_one_run_at_a_time_has_the_logs(tmp_path, workers, monkeypatch):
    """Another one would take the logs away of machines that run."""
    monkeypatch.delenv(ledger.VARIABLE, raising=False)
    file = tmp_path / "logs" / "junit.xml"
    command = small_suite(tmp_path, "-n", str(workers))
    with lock(file.parent, ledger.LOGS):
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while child.poll() is None and not waits_for_a_lock(child.pid):
            time.sleep(0.1)
        assert child.poll() is None
        assert not file.exists()
    _, said = child.communicate()
    assert failed(file) == ["test_small"]
    assert f"(process {os.getpid()}) that holds {ledger.LOGS}" in said.decode()


def test_ledger_adds_up(tmp_path, monkeypatch):
    monkeypatch.delenv(ledger.VARIABLE, raising=False)
    with ledger.timed("boot"):
        pass
    ledger.begin(tmp_path / "ledger")
    assert ledger.begun_here() == tmp_path / "ledger"
    for _ in range(3):
        with ledger.timed("boot"):
            pass
    with pytest.raises(ZeroDivisionError), ledger.timed("build"):
        raise ZeroDivisionError
    boots, builds = (ledger.total(tmp_path / "ledger", kind) for kind in ("boot", "build"))
    assert (boots.number, builds.number) == (3, 1)
    assert 0 <= boots.seconds < 60


class Terminal:
    """Stands for pytest's terminal, and notes what is written to it."""

    def __init__(self, *reports: pytest.TestReport) -> None:
        """Take the reports of all tests, of which half failed."""
        self.config = SimpleNamespace(stash=pytest.Stash())
        self.config.stash[conftest._BUILT] = 40.0
        self.config.stash[conftest._PASSED] = None
        # Among what pytest counts there are warnings, which took no time.
        self.stats = {"passed": reports[::2], "failed": reports[1::2], "warnings": ["a warning"]}
        self.lines: list[str] = []

    def write_sep(self, *_: str) -> None:
        """Draw a line."""

    def write_line(self, line: str) -> None:
        """Note a line."""
        self.lines.append(line)


def test_the_summary_says_what_took_how_long(tmp_path, monkeypatch):
    monkeypatch.setenv(ledger.VARIABLE, "")
    file = tmp_path / "ledger"
    ledger.begin(file)
    # What was built before the tests began is not part of their time: 40 of 50 seconds.
    for kind, seconds in (("build", 50), ("boot", 3), ("boot", 4)):
        with file.open("a") as added:
            added.write(json.dumps({"kind": kind, "seconds": seconds}) + "\n")
    reports = [
        pytest.TestReport(f"test_{number}", ("f", 1, "t"), {}, "passed", None, "call", duration=20)
        for number in range(3)
    ]
    terminal = Terminal(*reports)
    conftest.pytest_terminal_summary(terminal)
    assert terminal.lines == [
        "2 guests booted; building 50 s, booting 7 s, testing 43 s, added up over all workers; "
        "altogether 0 min 0 s"
    ]


def test_a_suite_within_a_suite_has_no_summary(tmp_path, monkeypatch):
    file = tmp_path / "ledger"
    file.write_text(json.dumps({"kind": "begin", "process": 0, "at": 0}) + "\n")
    monkeypatch.setenv(ledger.VARIABLE, str(file))
    terminal = Terminal()
    conftest.pytest_terminal_summary(terminal)
    assert terminal.lines == []


def test_long_output_is_cut_in_the_log_of_commands(tmp_path):
    transcript = evidence.Transcript(tmp_path / "log")
    transcript.begin("seq 100000")
    transcript.end(0, "x" * 50_000 + "end")
    text = (tmp_path / "log").read_text()
    assert "[30003 characters left out]" in text
    assert "end\n" in text
