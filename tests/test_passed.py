"""A suite that was interrupted goes on with what has not passed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import suites

from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.repository import commit
from pagewright.host.run import run
from pagewright.host.toolchain import GCC
from pagewright.kernel import source
from pagewright.results.passed import OF_KERNELS, OF_OTHER_TESTS, SHARES, Passed

# What a test has in its text that looks at others: it collects them, has a pattern for their
# names, or names one by its path.
LOOKS_AT_OTHERS = r"--collect-only|OF_KERNELS|test_\*|\"(tests|features/[\w-]+)/test_\w+\.py"
# These do so to a suite that they write, and to themselves.
LOOK_AT_THEIR_OWN = {"tests/test_evidence.py", "tests/test_cli.py"}
NAMES = ("NAME", "EMAIL")


@pytest.fixture
def clone(tmp_path):
    """Return a repository with two files of tests and a program, and where to write."""
    root = tmp_path / "clone"
    root.mkdir()
    run(["git", "init", "-q"], cwd=root)
    for name in ("test_a.py", "test_b.py", "program.c"):
        (root / name).write_text(f"{name}\n")
    return SimpleNamespace(root=root), tmp_path / "passed.jsonl"


def begun(clone, how="patched-4k"):
    passed = Passed(*clone, how)
    passed.begin()
    return passed


def ended(passed, test, *outcomes, shares=False):
    phases = ("setup", *("call" for _ in outcomes[1:-1]), "teardown")
    for phase, outcome in zip(phases, outcomes, strict=True):
        report = SimpleNamespace(nodeid=test, when=phase, outcome=outcome, duration=1.5)
        setattr(report, SHARES, shares)
        passed.pytest_runtest_logreport(report)


def test_only_what_has_passed_is_kept(clone):
    passed = begun(clone)
    ended(passed, "test_a.py::passes", "passed", "passed", "passed")
    ended(passed, "test_a.py::has_a_skipped_case", "passed", "skipped", "passed", "passed")
    ended(passed, "test_a.py::fails", "passed", "failed", "passed")
    ended(passed, "test_a.py::has_a_failed_case", "passed", "failed", "passed", "passed")
    ended(passed, "test_a.py::fails_at_its_end", "passed", "passed", "failed")
    ended(passed, "test_a.py::is_skipped", "passed", "skipped", "passed")
    ended(passed, "test_a.py::is_skipped_at_once", "skipped", "passed")
    assert begun(clone).tests == {"test_a.py::passes", "test_a.py::has_a_skipped_case"}


@pytest.mark.parametrize("outcomes", [("passed", "failed", "passed"), ("skipped", "passed")])
def test_what_passed_before_and_no_longer_does_runs_again(clone, outcomes):
    for ending in (("passed", "passed", "passed"), outcomes):
        ended(begun(clone), "test_a.py::sometimes", *ending)
    assert begun(clone).tests == set()
    ended(begun(clone), "test_a.py::sometimes", "passed", "passed", "passed")
    assert begun(clone).tests == {"test_a.py::sometimes"}


def test_what_is_wrong_with_a_shared_machine_may_be_of_each_test_that_shares_it(clone):
    """Whether a rule was broken is known when the last of them has ended, and is called its own."""
    passing, failing = ("passed", "passed", "passed"), ("passed", "passed", "failed")
    for last in (passing, failing):
        passed = begun(clone)
        ended(passed, "test_a.py::breaks_a_rule", *passing, shares=True)
        ended(passed, "test_a.py::has_its_own_machine", *passing)
        ended(passed, "test_b.py::passes", *passing, shares=True)
        ended(passed, "test_a.py::is_the_last", *last, shares=True)
        tests = {"test_a.py::has_its_own_machine", "test_b.py::passes"}
        both = {"test_a.py::breaks_a_rule", "test_a.py::is_the_last"}
        assert begun(clone).tests == (tests | both if last == passing else tests)
    # They passed before, and only the last one runs again.
    for test in both:
        ended(begun(clone), test, *passing, shares=True)
    ended(begun(clone), "test_a.py::is_the_last", *failing, shares=True)
    assert begun(clone).tests == tests


SHARED = """
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def boot_one():
    def start(stack, name, options):
        def look_at_the_end():
            assert not Path("broken").exists()

        stack.callback(look_at_the_end)

    return start

def test_breaks_a_rule(shared_machine):
    shared_machine()
    Path("broken").touch()

def test_is_the_last():
    pass
"""


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_shared_machine_says_at_its_end_is_not_forgotten(tmp_path, workers):
    """The last test of a file need not share the machine that ends with it."""
    (tmp_path / "test_suite.py").write_text(SHARED)
    command = suites.command(tmp_path, "-n", str(workers), "--dist=loadfile", "--resume")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    for _ in range(2):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "2 passed, 1 error" in done.stdout


@pytest.mark.full
def test_a_test_that_its_worker_does_not_survive_has_not_passed(tmp_path):
    text = (
        "import os\nimport pathlib\n"
        "def test_sometimes():\n    pathlib.Path('die').exists() and os._exit(1)\n"
    )
    (tmp_path / "test_suite.py").write_text(text)
    command = suites.command(tmp_path, "-n1")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}

    def said(*words, status=0):
        done = subprocess.run(
            [*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == status
        return done.stdout

    assert "1 passed" in said("--resume")
    # Nothing is left to run, and nothing has failed.
    assert "1 test was left out" in said("--resume")
    (tmp_path / "die").touch()
    assert "crashed while running" in said(status=1)
    (tmp_path / "die").unlink()
    assert "1 passed" in said("--resume")


def test_the_time_of_a_test_is_that_of_its_parts_with_subtests_counted_once(clone):
    passed = begun(clone)
    ended(passed, "test_a.py::passes", "passed", "passed", "passed")
    ended(passed, "test_b.py::has_cases", "passed", "passed", "passed", "passed", "passed")
    assert begun(clone).seconds == {"test_a.py::passes": 4.5, "test_b.py::has_cases": 4.5}
    # What an earlier version wrote down has no time, and counts.
    clone[1].write_text(re.sub(r', "seconds": [0-9.]+', "", clone[1].read_text(), count=1))
    assert begun(clone).seconds == {"test_a.py::passes": 0, "test_b.py::has_cases": 4.5}


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_left_out_is_said_with_the_time_that_it_took(tmp_path, workers):
    text = "import time\ndef test_long():\n    time.sleep(1)\ndef test_fails():\n    assert 0\n"
    (tmp_path / "test_suite.py").write_text(text)
    command = suites.command(tmp_path, "-n", str(workers))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}

    def said(*words):
        return subprocess.run(
            [*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        ).stdout

    assert "left out" not in said("--resume")
    pattern = r"^1 test was left out, which passed before in 0 min [1-9] s$"
    assert re.search(pattern, said("--resume"), re.MULTILINE)
    assert "left out" not in said()


@pytest.mark.parametrize(
    ("file", "again"),
    [("program.c", {"a", "b"}), ("new.c", {"a", "b"}), ("test_a.py", {"a"}), ("test_c.py", set())],
)
def test_what_may_depend_on_a_changed_file_runs_again(clone, file, again):
    passed = begun(clone)
    tests = {name: f"test_{name}.py::passes" for name in ("a", "b")}
    for test in tests.values():
        ended(passed, test, "passed", "passed", "passed")
    (clone[0].root / file).write_text("changed\n")
    assert begun(clone).tests == {test for name, test in tests.items() if name not in again}


def test_all_tests_that_look_at_others_are_known():
    root = Path(__file__).parent.parent
    found = {
        str(file.relative_to(root))
        for pattern in ("tests/test_*.py", "features/*/test_*.py")
        for file in root.glob(pattern)
        if re.search(LOOKS_AT_OTHERS, file.read_text())
    }
    assert found > LOOK_AT_THEIR_OWN
    # The checkers of all files are told a folder, and no test.
    assert found - LOOK_AT_THEIR_OWN == {*OF_OTHER_TESTS} - {"tests/test_style.py"}


@pytest.mark.parametrize("file", OF_OTHER_TESTS)
def test_what_looks_at_other_tests_runs_again_when_one_changed(clone, file):
    assert (Path(__file__).parent.parent / file).is_file()
    ended(begun(clone), f"{file}::passes", "passed", "passed", "passed")
    assert begun(clone).tests == {f"{file}::passes"}
    (clone[0].root / "test_a.py").write_text("changed\n")
    assert begun(clone).tests == set()


@pytest.mark.parametrize(
    ("test", "kept"),
    [
        ("features/linear-map/test_users.py::passes", True),
        ("tests/test_wide.py::passes", True),
        ("tests/test_documents.py::passes", False),
        ("tests/test_style.py::passes", False),
    ],
)
@pytest.mark.parametrize("file", ["README.md", "docs/figures.json", "packaging/debian/rules"])
def test_documents_and_packages_make_no_difference_to_a_kernel(clone, file, test, kept):
    ended(begun(clone), test, "passed", "passed", "passed")
    (clone[0].root / file).parent.mkdir(parents=True, exist_ok=True)
    (clone[0].root / file).write_text("changed\n")
    assert begun(clone).tests == ({test} if kept else set())


@pytest.mark.parametrize("file", ["figures.json", "features/linear-map/hooks/a.patch", "tools/a"])
def test_all_else_makes_a_difference_to_a_kernel(clone, file):
    test = "features/linear-map/test_users.py::passes"
    ended(begun(clone), test, "passed", "passed", "passed")
    (clone[0].root / file).parent.mkdir(parents=True, exist_ok=True)
    (clone[0].root / file).write_text("changed\n")
    assert begun(clone).tests == set()


def test_tests_of_kernels_look_at_no_document_and_no_package():
    root = Path(__file__).parent.parent
    files = [file for pattern in OF_KERNELS for file in root.glob(pattern)]
    assert len(files) > len(OF_KERNELS)
    of_others = r'\.md\b|figures\.json|["/](docs|packaging)["/]'
    assert [file for file in files if re.search(of_others, file.read_text())] == []


def test_other_options_are_another_test(clone):
    ended(begun(clone), "test_a.py::passes", "passed", "passed", "passed")
    assert begun(clone, "patched-64k").tests == set()
    assert begun(clone).tests == {"test_a.py::passes"}


def test_a_line_that_was_cut_off_is_no_obstacle(clone):
    ended(begun(clone), "test_a.py::passes", "passed", "passed", "passed")
    with clone[1].open("a") as file:
        file.write('{"test": "test_b.py::pa')
    assert begun(clone).tests == {"test_a.py::passes"}


def test_sources_that_were_not_cloned_are_refused(tmp_path):
    with pytest.raises(PagewrightError):
        Passed(SimpleNamespace(root=tmp_path), tmp_path / "passed.jsonl", "patched-4k")


@pytest.mark.full
def test_another_kernel_place_compiler_or_qemu_is_another_test(tmp_path):
    """What has passed on one board, or on one point release, has not passed on another one."""
    (tmp_path / "test_suite.py").write_text("def test_passes():\n    pass\n")
    command = suites.command(tmp_path, "--resume")
    for place in ("one", "other"):
        (tmp_path / f"{place}.yaml").write_text(f"targets: {{{place}: {{}}}}\n")
    # Stand-ins that say what is in a file, and nothing to other commands.
    programs = {"apt-cache": "madison", "qemu-system-aarch64": "--version", GCC: "--version"}
    for name, asked in programs.items():
        script = f'#!/bin/sh\n[ "$1" != {asked} ] || cat {tmp_path}/{name}.says\n'
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    known_good = workspace.find().base().known_good
    seen = []
    for place, kernel, offered, qemu, compiler in (
        ("one", "", known_good, "10.0", "12.2"),
        ("one", "", known_good, "10.0", "12.2"),
        ("other", "", known_good, "10.0", "12.2"),
        ("other", "newest", "6.12.998", "10.0", "12.2"),
        ("other", "newest", "6.12.998", "10.0", "12.2"),
        # The same words of the user, but apt has something else.
        ("other", "newest", "6.12.999", "10.0", "12.2"),
        ("other", "", "6.12.999", "10.0", "12.2"),
        ("other", "", "6.12.999", "10.1", "12.2"),
        ("other", "", "6.12.999", "10.1", "14.2"),
    ):
        (tmp_path / "apt-cache.says").write_text(f"p | {offered}-1 | http://localhost\n")
        (tmp_path / "qemu-system-aarch64.says").write_text(f"QEMU emulator version {qemu}\n")
        (tmp_path / f"{GCC}.says").write_text(f"{GCC} (Debian) {compiler}\n")
        done = subprocess.run(
            [*command, f"--lg-env={place}.yaml"],
            cwd=tmp_path,
            env=environment | {source.VARIABLE: kernel},
            capture_output=True,
            text=True,
            check=False,
        )
        seen.append("1 passed" in done.stdout)
    assert seen == [True, False, True, True, False, True, False, True, True]


def test_a_new_file_that_goes_into_a_kernel_is_a_change_since_the_commit(clone):
    """It is in what is built and measured, though git does not know it yet."""
    space, _ = clone
    identity = {f"GIT_{role}_{key}": "x" for role in ("AUTHOR", "COMMITTER") for key in NAMES}
    run(["git", "add", "--all"], cwd=space.root)
    run(["git", "commit", "-q", "-m", "first"], cwd=space.root, env=identity)
    run(["git", "config", "status.showUntrackedFiles", "no"], cwd=space.root)
    (space.root / "notes").write_text("of no kernel\n")
    name = commit(space)
    assert re.fullmatch("[0-9a-f]{12}", name)
    new = space.root / "features" / "one" / "linux" / "mm" / "new.c"
    new.parent.mkdir(parents=True)
    new.write_text("int new;\n")
    assert commit(space) == f"{name}+"
    run(["git", "add", "--all"], cwd=space.root)
    run(["git", "commit", "-q", "-m", "second"], cwd=space.root, env=identity)
    assert not commit(space).endswith("+")
    (space.root / "program.c").write_text("changed\n")
    assert commit(space).endswith("+")
