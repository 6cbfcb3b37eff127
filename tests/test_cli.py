"""The command line: what it prints, what it passes on, and that bad input is one clear line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

from pagewright.cli import guest, main, overview, pytest_arguments
from pagewright.cli import test as test_command
from pagewright.host import ledger, workspace
from pagewright.host.errors import GuestDiedError, MachineError, PagewrightError
from pagewright.host.run import run
from pagewright.host.workspace import Workspace
from pagewright.kernel import source
from pagewright.kernel.build import Build
from pagewright.machine import inputs
from pagewright.machine.boot import boot, console
from pagewright.machine.options import MachineOptions

SPACE = workspace.find()
LAUNCHER = SPACE.root / "bin" / "pagewright"
PAGEWRIGHT = Path(sys.executable).with_name("pagewright")

main.add_commands_of_features()


def call(*words: str) -> int:
    """Run a command in this process and return its exit status."""
    return main.app(list(words), standalone_mode=False) or 0


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Workspace:
    """Have commands work with the repository's sources, but another out/ and cache."""
    for name in ("features", "base", "tests", "tools"):
        (tmp_path / name).symlink_to(SPACE.root / name)
    space = Workspace(tmp_path, tmp_path / "cache")
    monkeypatch.setattr(workspace, "find", lambda: space)
    return space


# --- Bad input --------------------------------------------------------------------


WRONG = [
    (["build", "nope"], "no build 'nope'", "patched-4k"),
    (["build", "patched-4k", "--without", "nope"], "no feature 'nope'", "linear-map"),
    (["boot", "nope"], "no build 'nope'", "patched-4k"),
    (["boot", "nope", "--run", "true"], "no build 'nope'", "patched-4k"),
    (["boot"], "what is to be booted?", "patched-4k"),
    (["deb", "nope"], "no build 'nope'", "cloud-arm64"),
    (["map", "nope"], "no build 'nope'", "patched-4k"),
    (["series", "nope"], "no feature 'nope'", "linear-map"),
    (["bench", "nope"], "no experiment 'nope'", "atomic-populate"),
    (["bench", "linear-map", "--part", "nope"], "no part 'nope' in linear-map", "programs"),
    (["bench", "linear-map", "--side", "nope"], "no side 'nope' in linear-map", "rodata=on"),
    (["kunit", "nope"], "no KUnit suite 'nope'", "cpu_pause"),
    (["kunit", "cpu_pause.nope"], "no case 'nope'", "initiators_take_turns"),
    (["kunit", "cpu_pause", "nope"], "no build 'nope'", "patched-4k"),
    (["selftest", "nope"], "no selftest 'nope'", "atomic-write-fault/semantics"),
    (["status", "--json"], "a command of the tool for servers", "tools/pagewright status"),
    (["selftest", "mm/nope"], "no selftest 'mm/nope'", "mm/hugepage-mmap"),
    (["selftest", "percpu-local/memcgs", "--build", "nope"], "no build", "patched-4k"),
    (["test", "no/such/file"], "no test file or folder no/such/file", "tests/test_cli.py"),
    (["test", "tests/no.py::test_x"], "no test file or folder", "tests/test_cli.py"),
    (["test", f"{__file__}::nope[x]"], "no test 'nope' in", "test_shells_complete_names"),
    (["test", "--durations-min", "5"], "no test file or folder 5", "write --durations-min=5; "),
    (["test", "--lg-env", "no.yaml"], "no environment file no.yaml", "environment.yaml"),
    (["test", "--lg-env=no.yaml"], "no environment file no.yaml", "environment.yaml"),
    (["bench", "linear-map", "--lg-env", "no.yaml"], "no environment file", "environment.yaml"),
    (["logs", "nope"], "no log that matches 'nope'", "none: this clone has no results"),
    (["boot", "patched-4k", "--gdb", "--run", "true"], "--gdb", "leave --run out"),
]


def test_a_wrong_name_of_a_place_lists_the_files_beside_it(tmp_path):
    for name in ("shelf.yaml", "desk.yaml", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(PagewrightError) as error:
        call("test", "--lg-env", str(tmp_path / "shlef.yaml"))
    assert error.value.todo.startswith(
        f"the files there are: {tmp_path}/desk.yaml, {tmp_path}/shelf.yaml; or write one"
    )


def test_a_file_without_the_target_main_lists_its_targets(tmp_path):
    file = tmp_path / "shelf.yaml"
    file.write_text("targets:\n  first: {}\n  second: {}\n")
    with (
        pytest.raises(MachineError) as error,
        boot(MachineOptions(Path(), Path()), env=file),
    ):
        pass
    assert error.value.what == f"{file} has no target named main"
    assert error.value.todo == "its targets are: first, second"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("targets: [", "Error in configuration file: while parsing"),
        ("targets: {main: hello}", "'str' object has no attribute"),
        ("targets: {main: {drivers: {SSHDriver: }}}", "'NoneType' object has no attribute"),
        ("targets: {main: {drivers: {NopeDriver: {}}}}", "unknown driver class NopeDriver"),
        ("targets: {main: {drivers: {SSHDriver: {}}}}", "no NetworkService resource found"),
        ("targets: {main: {drivers: {}, features: [x]}}", "no CommandProtocol driver found"),
    ],
)
def test_what_labgrid_finds_wrong_in_a_file_is_said(tmp_path, text, said):
    file = tmp_path / "shelf.yaml"
    file.write_text(text)
    with (
        pytest.raises(MachineError) as error,
        boot(MachineOptions(Path(), Path()), env=file),
    ):
        pass
    assert error.value.what == f"{file} describes no place that commands can be run on"
    assert said in error.value.details
    assert "docs/lab.md" in error.value.todo


@pytest.mark.parametrize(
    ("words", "what", "listed"), WRONG, ids=[" ".join(words) for words, _, _ in WRONG]
)
def test_a_wrong_name_is_one_line_that_lists_what_there_is(
    elsewhere, monkeypatch, words, what, listed
):
    """It is found out before anything is fetched, built or run."""

    def begun(*_: object) -> None:
        raise AssertionError("work began before the name was known")

    monkeypatch.setattr(source, "ensure", begun)
    monkeypatch.setattr(pytest, "main", begun)
    with pytest.raises(PagewrightError) as error:
        call(*words)
    assert what in error.value.what
    assert "\n" not in error.value.what
    assert listed in error.value.todo


@pytest.mark.parametrize(
    "words",
    [
        ["boot", "patched-4k", "--run", "true"],
        ["kunit", "cpu_pause"],
        ["selftest", "atomic-write-fault/semantics"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize(
    ("option", "unit"),
    [
        *(("--memory=" + value, "G") for value in ("inf", "1e400G", "-1G", "0")),
        *(("--timeout=" + value, "seconds") for value in ("inf", "nan", "-1", "0", "0.5", "1e7")),
    ],
)
def test_a_number_that_is_none_is_one_line_before_anything_is_built(
    monkeypatch, words, option, unit
):
    monkeypatch.setattr(inputs.build, "ensure", lambda *_: pytest.fail("a build was begun"))
    with pytest.raises(PagewrightError) as error:
        call(*words, option)
    assert "\n" not in error.value.what
    assert unit in error.value.todo


def test_an_error_is_plain_and_its_status_is_1():
    ended = subprocess.run([PAGEWRIGHT, "kunit", "nope"], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("pagewright: there is no KUnit suite 'nope'\nthe suites are: ")


def test_ctrl_c_before_the_command_runs_ends_it_quietly(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "add_commands_of_features", interrupted)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_debug_shows_where_an_error_comes_from():
    ended = subprocess.run([PAGEWRIGHT, "--debug", "bench", "nope"], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr


def test_debug_shows_the_programs_that_are_run():
    logger = "import logging; logging.basicConfig(level=logging.DEBUG)\n"
    code = f"{logger}from pagewright.host.run import run; run(['echo', 'a b'])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "echo 'a b'" in shown.stderr


# --- The launcher -----------------------------------------------------------------


@pytest.fixture
def clone(tmp_path) -> Path:
    """Make a clone with the launcher, and a bootstrap whose Python only notes what it makes."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "python3"
    python.write_text(
        "#!/bin/sh\n[ $2 = venv ] || exit 0\nmkdir -p .venv/bin; echo made >>log\n"
        "printf '#!/bin/sh\\necho \"pip $*\" >>log\\n' >.venv/bin/pip\n"
        'printf \'#!/bin/sh\\necho "uv $*" >>log; [ ! -e killed ] || kill -9 $PPID\\n'
        "exec [ ! -e broken ]\\n' >.venv/bin/uv\n"
        "printf '#!/bin/sh\\necho \"called with $*\"' >.venv/bin/pagewright\n"
        "chmod +x .venv/bin/*\n"
    )
    bootstrap = (SPACE.root / "bootstrap").read_text().replace("/usr/bin/python3", str(python))
    (tmp_path / "bootstrap").write_text(bootstrap)
    (tmp_path / "bin" / "pagewright").write_text(LAUNCHER.read_text())
    (tmp_path / "pyproject.toml").touch()
    for file in (python, tmp_path / "bootstrap", tmp_path / "bin" / "pagewright"):
        file.chmod(0o755)
    return tmp_path


def made_how_often(clone):
    return (clone / "log").read_text().splitlines().count("made")


@pytest.mark.parametrize("broken", [False, True], ids=["uv", "uv-fails"])
def test_uv_installs_and_pip_what_uv_cannot(clone, broken):
    if broken:
        (clone / "broken").touch()
    run([clone / "bin" / "pagewright", "list"])
    log = (clone / "log").read_text().splitlines()
    assert [line.split()[0] for line in log] == ["made", "pip", "uv", *["pip"] * broken]
    assert log[-1].endswith("-e .")


def test_the_launcher_makes_the_environment_once(clone):
    launcher = clone / "bin" / "pagewright"
    for _ in range(2):
        ended = subprocess.run([launcher, "list", "a b"], capture_output=True, text=True, cwd="/")
        assert ended.stdout == "called with list a b\n"
    assert made_how_often(clone) == 1


def test_the_launcher_makes_it_again_when_pyproject_changed(clone):
    launcher = clone / "bin" / "pagewright"
    run([launcher, "list"])
    made = (clone / ".venv" / "bin" / "pagewright").stat().st_mtime
    os.utime(clone / "pyproject.toml", (made + 10, made + 10))
    run([launcher, "list"])
    assert made_how_often(clone) == 2


def test_an_environment_whose_update_was_interrupted_is_made_again(clone):
    """The command may be written before what it imports."""
    launcher = clone / "bin" / "pagewright"
    run([launcher, "list"])
    os.utime(clone / ".venv" / "bin" / "pagewright", (0, 0))
    (clone / "killed").touch()
    with pytest.raises(PagewrightError):
        run([launcher, "list"])
    (clone / "killed").unlink()
    assert "called with list" in run([launcher, "list"])
    assert made_how_often(clone) == 3


def test_a_clone_that_was_copied_or_moved_makes_its_own(clone, tmp_path_factory):
    run([clone / "bin" / "pagewright", "list"])
    copied = tmp_path_factory.mktemp("copied") / "clone"
    shutil.copytree(clone, copied)
    for _ in range(2):
        assert "called with list" in run([copied / "bin" / "pagewright", "list"])
    assert (made_how_often(clone), made_how_often(copied)) == (1, 2)


def test_the_environment_is_made_again_for_another_python(clone):
    """An upgrade of Debian leaves the folders of the old one, where the new one does not look."""
    launcher, python = clone / "bin" / "pagewright", clone / "python3"
    for release in ("3.11", "3.13"):
        shutil.copy(python, clone / f"python{release}")
    for release in ("3.11", "3.13", "3.13"):
        python.unlink()
        python.symlink_to(f"python{release}")
        run([launcher, "list"])
    assert made_how_often(clone) == 2


def test_the_launcher_works_through_a_link(clone, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(clone / "bin" / "pagewright")
    assert "called with list" in run([link, "list"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("build patched-6", ["patched-64k"]),
        ("kunit cpu_pause patched-6", ["patched-64k"]),
        ("kunit pgt", ["pgtable_transition", "pgtable_transition.violations_trip"]),
        ("selftest percpu-local/mem", ["percpu-local/memcgs"]),
        ("bench li", ["list", "linear-map"]),
        ("bench linear-map --part prog", ["programs"]),
        # Another side begins so, but has spaces.
        ("bench switched-off --part with-BBM-level-2 --side off", ["off"]),
        ("bench nope --part ", []),
    ],
)
def test_shells_complete_names(line, words):
    environment = {
        "_PAGEWRIGHT_COMPLETE": "complete_bash",
        "COMP_WORDS": f"pagewright {line}",
        "COMP_CWORD": str(len(line.split(" "))),
    }
    completed = run([PAGEWRIGHT], env=environment).split()
    assert set(words) <= set(completed)
    assert all(word.startswith(line.split(" ")[-1]) for word in completed)
    assert bool(words) == bool(completed)


def test_shells_complete_tests_that_failed(failed):
    [logs] = [one for one in main.app.registered_commands if one.callback is overview.logs]
    assert logs.callback
    hints = get_type_hints(logs.callback, include_extras=True)
    assert hints["test"].__metadata__[0].autocompletion("test_a") == ["test_a.py-test_bad"]


# --- How many tests run at once -----------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "gigabytes", "full", "wanted"),
    [
        (1, 24, False, 1),
        (2, 24, False, 3),
        (2, 13, False, 2),
        (2, 4, False, 1),
        (2, 24, True, 2),
        (8, 24, True, 2),
    ],
)
def test_as_many_at_once_as_there_are_cpus_and_memory_for(
    monkeypatch, cpus, gigabytes, full, wanted
):
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": gigabytes * 10**9 // 4096 + 1}
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    assert test_command.workers(full) == wanted


# --- What there is ----------------------------------------------------------------


def test_list_has_every_build_and_experiment(elsewhere, capsys):
    image = elsewhere.out / "base-16k" / "arch" / "arm64" / "boot" / "Image"
    image.parent.mkdir(parents=True)
    image.touch()
    assert call("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  * base-16k                  the unpatched kernel, pages of 16 KiB" in lines
    assert any(line.startswith("    patched-4k ") for line in lines)
    assert any(line.startswith("  hugetlb-sizes ") for line in lines)


def test_version_names_commit_and_kernel(capsys):
    call("--version")
    out = capsys.readouterr().out
    assert run(["git", "rev-parse", "--short=12", "HEAD"], cwd=SPACE.root).strip() in out
    assert f"known good with {SPACE.base().known_good}" in out


JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.test_a" name="test_fine"/>
<testcase classname="tests.test_a" name="test_bad"><failure message="assert 1 == 2&#10;more"/>
</testcase></testsuite></testsuites>"""


@pytest.fixture
def failed(elsewhere) -> Path:
    """Leave what a failed test leaves, and what one that runs at the moment does."""
    logs = elsewhere.out / "logs"
    for name in ("test_a.py-test_bad", ".test_a.py-test_running"):
        (logs / name / "1").mkdir(parents=True)
        text = "".join(f"line {number} of {name}\n" for number in range(100))
        (logs / name / "1" / "console.log").write_text(text)
    (logs / "junit.xml").write_text(JUNIT)
    return logs


def test_logs_show_what_failed(failed, capsys):
    call("logs")
    out = capsys.readouterr().out
    assert "failed: tests.test_a.test_bad: assert 1 == 2\n" in out
    assert "line 99 of test_a.py-test_bad" in out
    assert "line 0 of" not in out
    assert "running" not in out


def test_logs_of_earlier_runs_are_only_named(failed, capsys):
    begun = "2030-01-02T03:04:05.678901+00:00"
    (failed / "junit.xml").write_text(
        JUNIT.replace("<testsuite>", f'<testsuite timestamp="{begun}">')
    )
    call("logs")
    out = capsys.readouterr().out
    assert "line 99 of" not in out
    assert out.endswith("of earlier runs: test_a.py-test_bad\n")
    later = datetime.fromisoformat(begun).timestamp() + 1
    os.utime(failed / "test_a.py-test_bad", (later, later))
    call("logs")
    out = capsys.readouterr().out
    assert "line 99 of test_a.py-test_bad" in out
    assert "of earlier runs" not in out


def test_logs_do_not_say_that_none_has_failed_where_none_has_run(elsewhere, capsys):
    call("logs")
    assert capsys.readouterr().out == "this clone has no results of tests\n"
    (elsewhere.out / "logs").mkdir(parents=True)
    (elsewhere.out / "logs" / "junit.xml").write_text("<testsuites/>")
    call("logs")
    assert capsys.readouterr().out == "no test has failed\n"


def test_logs_of_one_test_are_whole(failed, capsys):
    call("logs", "test_bad")
    out = capsys.readouterr().out
    assert "line 0 of test_a.py-test_bad" in out
    assert "line 99 of test_a.py-test_bad" in out


def test_logs_say_that_a_report_is_incomplete(failed):
    (failed / "junit.xml").write_text("<testsuites>")
    assert "is not complete" in next(overview.failed_tests(failed / "junit.xml"))


def test_clean_keeps_the_cache_unless_asked(elsewhere):
    for folder in (elsewhere.out, elsewhere.cache):
        folder.mkdir(parents=True)
    call("clean")
    assert not (elsewhere.root / "out").exists()
    assert elsewhere.cache.exists()
    call("clean", "--cache")
    assert not elsewhere.cache.exists()
    assert (SPACE.root / "features").exists()


def test_clean_empties_what_links_lead_to(elsewhere, tmp_path, capsys):
    """Who has moved these folders to a larger disk is sent to this command when it is full."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    links = {elsewhere.root / "out": tmp_path / "big-out", elsewhere.cache: tmp_path / "big-cache"}
    for link, folder in links.items():
        (folder / "6.12" / "tree").mkdir(parents=True)
        (folder / ".hidden").touch()
        (folder / "elsewhere").symlink_to(kept)
        link.symlink_to(folder)
    call("clean", "--cache")
    said = "".join(capsys.readouterr())
    for link, folder in links.items():
        assert link.readlink() == folder
        assert list(folder.iterdir()) == []
        assert f"emptied {folder}, which {link} leads to" in said
    assert (kept / "file").exists()
    # There is nothing to remove where a link leads nowhere.
    for folder in links.values():
        folder.rmdir()
    call("clean", "--cache")
    assert all(link.is_symlink() for link in links)


USES = """
import sys
from pathlib import Path
from pagewright.host.lock import lock
from pagewright.host.scratch import claim
kind, entry = sys.argv[1], Path(sys.argv[2])
with lock(entry.parent, "the source cache"):
    claim(entry)
    if kind == "lock":
        print("in", flush=True)
        sys.stdin.read()
if kind == "claim":
    print("in", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["lock", "claim"])
def test_clean_refuses_while_another_process_uses_the_cache(elsewhere, kind):
    entry = elsewhere.cache / "source" / "6.12.1-1"
    entry.mkdir(parents=True)
    elsewhere.out.mkdir(parents=True)
    command = [sys.executable, "-c", USES, kind, str(entry)]
    pipe = subprocess.PIPE
    # Of two that have used it, the one that has not ended is named.
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=pipe, check=True)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(PagewrightError) as error:
            call("clean", "--cache")
        assert error.value.what == f"process {other.pid} uses {entry.parent}"
        assert entry.exists()
        assert elsewhere.out.exists()
        other.communicate()
    call("clean", "--cache")
    assert not elsewhere.cache.exists()


def test_clean_leaves_a_build_that_may_be_booted(elsewhere, monkeypatch):
    """Whoever has asked for a machine's options may boot it until the process ends."""
    built = Build("any", elsewhere.out / "any", elsewhere.root, "6.12.1-1")
    built.out.mkdir(parents=True)
    monkeypatch.setattr(inputs.build, "ensure", lambda space, name: built)
    monkeypatch.setattr(inputs.image, "ensure", lambda space: elsewhere.root)
    inputs.options_for(elsewhere, "any")
    with pytest.raises(PagewrightError, match=f"process {os.getpid()} uses {elsewhere.out}"):
        call("clean")
    assert built.out.exists()


@pytest.mark.parametrize("what", ["", "bench"])
def test_clean_refuses_while_another_process_works_in_this_clone(elsewhere, what):
    """A build would go on in what is left, and a bench lose the runs of hours."""
    folder = elsewhere.out / what
    folder.mkdir(parents=True)
    (folder / "kept").touch()
    code = USES.replace("claim(entry)", "pass")
    command = [sys.executable, "-c", code, "lock", str(folder / "entry")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(PagewrightError) as error:
            call("clean")
        assert error.value.what == f"process {other.pid} uses {folder}"
        assert (folder / "kept").exists()
        other.communicate()
    call("clean")
    assert not (elsewhere.root / "out").exists()


# --- What is passed on ------------------------------------------------------------


def test_tests_are_found_from_any_folder():
    folders = [str(SPACE.root / name) for name in ("tests", "features")]
    assert pytest_arguments.complete(SPACE, ["-k", "x"]) == ["-k", "x", *folders]
    assert pytest_arguments.complete(SPACE, ["-n", "2", "--tb=short"])[-2:] == folders
    assert pytest_arguments.complete(SPACE, ["--logs", "not/there/yet"])[-2:] == folders
    one = f"{__file__}::test_tests_are_found_from_any_folder"
    assert pytest_arguments.complete(SPACE, ["-x", one]) == ["-x", one]


@pytest.mark.parametrize("words", [["--logs", "{}"], ["--logs={}"], ["--logs=not", "--logs", "{}"]])
def test_a_suite_holds_the_logs_that_it_writes(words, tmp_path, monkeypatch):
    """Another suite may run meanwhile that has its logs elsewhere."""
    held = []
    monkeypatch.setattr(ledger, "suite", lambda logs: held.append(logs) or nullcontext())
    monkeypatch.setattr(pytest, "main", lambda _: 0)
    call("test", "-k", "x", *(word.format(tmp_path) for word in words))
    call("test", "-k", "x")
    assert held == [tmp_path, SPACE.out / "logs"]


@pytest.fixture
def consoles(monkeypatch) -> list[dict[str, Any]]:
    """Collect the options of machines instead of booting them."""
    from pagewright.kernel import build
    from pagewright.machine import inputs

    seen: list[dict[str, Any]] = []

    def options_for(_space: Workspace, _name: str, **options: object) -> None:
        seen.append(options)

    monkeypatch.setattr(inputs, "options_for", options_for)
    monkeypatch.setattr("pagewright.machine.boot.console", lambda *_: 0)
    built = SimpleNamespace(vmlinux=Path("/clone/out/vmlinux"))
    monkeypatch.setattr(build, "ensure", lambda *_: built)
    return seen


def test_boot_passes_arguments_to_qemu(consoles):
    call("boot", "patched-4k", "--qemu-args", "-d 'a b'", "--qemu-args", "-s", "--single-threaded")
    assert consoles[0]["extra_args"] == ["-d", "a b", "-s"]
    assert consoles[0]["single_threaded"]


def test_arguments_for_qemu_with_an_odd_quote_are_refused(consoles):
    with pytest.raises(PagewrightError, match="cannot be divided into words"):
        call("boot", "patched-4k", "--qemu-args", "-d 'a b")
    assert consoles == []


@pytest.mark.parametrize("option", ["-append", "--append"])
def test_arguments_for_qemu_that_replace_the_kernels_are_refused(consoles, option):
    with pytest.raises(PagewrightError, match="replace the kernel parameters") as error:
        call("boot", "patched-4k", "--qemu-args", f"-d unimp {option} quiet")
    assert "--append" in error.value.todo
    assert consoles == []


def test_boot_names_a_file_that_cannot_be_written_before_the_guest_runs(consoles, tmp_path):
    file = tmp_path / "nowhere" / "x"
    with pytest.raises(PagewrightError, match=f"{file} cannot be written"):
        call("boot", "patched-4k", "--strict", "--strict-json", str(file))
    assert consoles == []


def test_boot_waits_for_a_debugger(consoles, capsys):
    call("boot", "patched-4k", "--gdb", "--append", "quiet")
    # Not ":1234", which other computers reach, too.
    assert consoles[0]["extra_args"] == ["-gdb", "tcp:localhost:1234", "-S"]
    assert consoles[0]["append"] == "nokaslr quiet"
    command = "gdb-multiarch /clone/out/vmlinux -ex 'target remote localhost:1234'"
    assert command in capsys.readouterr().err


@pytest.mark.parametrize("words", ["boot patched-4k", "map patched-4k", "kunit cpu_pause"])
def test_what_counts_no_instructions_takes_the_hosts_processors(monkeypatch, words):
    from pagewright.machine import inputs

    asked: dict[str, object] = {}

    def options_for(*_: object, **options: object) -> None:
        asked.update(options)
        raise PagewrightError("nothing is booted here")

    monkeypatch.setattr(inputs, "options_for", options_for)
    with pytest.raises(PagewrightError, match="nothing is booted here"):
        call(*words.split(), "--accel", "kvm")
    assert asked["accel"] == "kvm"


# --- Guests -----------------------------------------------------------------------


def test_a_console_says_why_its_guest_died(space, patched):
    """QEMU ends with status 0 when the kernel has panicked."""
    with pytest.raises(GuestDiedError, match="panic: Requested init /no/such failed") as error:
        console(patched)
    assert "Kernel panic" in error.value.details


@pytest.fixture
def patched(space) -> MachineOptions:
    """Return a machine whose kernel finds no init."""
    from pagewright.machine.inputs import options_for

    return options_for(space, "patched-4k", smp=1, append="init=/no/such")


def test_kunit_prints_the_results_of_a_suite(capsys):
    assert call("kunit", "cpu_pause.initiators_take_turns", "--smp", "2") == 0
    out = capsys.readouterr().out
    assert "pass  cpu_pause.initiators_take_turns\n" in out
    assert "1 cases, 0 failed" in out


def test_every_kunit_suite_has_cases_that_can_be_named():
    suites = guest.suites_of(SPACE)
    assert {suite for suite in suites if not guest.cases_of(SPACE, suite)} == set()
    # Those with parameters, and of one suite only where a feature has several.
    assert "test_group" in guest.cases_of(SPACE, "aarch64_insn_rmw")
    assert "violations_trip" in guest.cases_of(SPACE, "pgtable_transition")
    assert "violations_trip" not in guest.cases_of(SPACE, "linear_map")


@pytest.mark.full
def test_selftest_has_the_programs_status_and_output(capsys):
    assert call("selftest", "linear-map/instructions", "sh", "-c", "echo $HOME; exit 3") == 3
    assert "instructions=" in capsys.readouterr().out
