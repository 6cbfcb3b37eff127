"""Programs we start: errors are one clear line, and nothing outlives us."""

from __future__ import annotations

import errno
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import suites
from typer.main import get_command
from typer.testing import CliRunner
from waiting import wait_until

from pagewright.cli import main
from pagewright.host import workspace
from pagewright.host.errors import DiskFullError, HostError, PagewrightError
from pagewright.host.run import run
from pagewright.kernel import signing, source

PAGEWRIGHT = str(Path(sys.executable).with_name("pagewright"))


def test_missing_program_points_to_doctor():
    with pytest.raises(PagewrightError, match="no-such-program is not installed") as error:
        run(["no-such-program"])
    assert "pagewright doctor" in error.value.todo


def test_failure_shows_the_programs_last_lines():
    with pytest.raises(PagewrightError, match="status 3") as error:
        run(["sh", "-c", "echo first; echo last >&2; exit 3"])
    assert error.value.details == "first\nlast"


def test_full_disk_is_named():
    with pytest.raises(PagewrightError, match="the disk is full"):
        run(["cp", "/etc/passwd", "/dev/full"])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_whoever_writes(number, monkeypatch, capsys):
    """Python's own error has neither a file nor advice."""
    text = os.strerror(number)
    with pytest.raises(DiskFullError) as error:
        run(["sh", "-c", f"echo cp: {text} >&2; exit 1"])

    def full():
        raise OSError(number, text)

    monkeypatch.setattr(main, "app", full)
    monkeypatch.setattr(main, "add_commands_of_features", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit):
        main.main()
    said = capsys.readouterr().err
    assert "the disk is full" in said and text in said and error.value.todo in said


def test_timeout_ends_the_program():
    started = time.monotonic()
    with pytest.raises(PagewrightError, match="did not finish"):
        run(["sleep", "100"], timeout=0.3)
    assert time.monotonic() - started < 20


def test_timeout_holds_while_lines_are_followed(tmp_path):
    mark, end = f"sleep 10.{os.getpid()}", tmp_path / "end"
    seen: list[str] = []
    for options in ({"on_line": seen.append}, {"log": tmp_path / "log"}):
        with pytest.raises(PagewrightError, match=r"did not finish within 0\.5 s"):
            run(["sh", "-c", f"echo first; {mark}; touch {end}"], timeout=0.5, **options)
        assert not running(mark)
        assert not end.exists()


def test_followed_program_is_read_to_its_end(tmp_path):
    seen: list[str] = []
    log = tmp_path / "log"
    command = ["sh", "-c", r"printf 'one\r\n\303'; sleep 0.2; printf '\244\ntwo\377'"]
    output = run(command, on_line=seen.append, log=log, timeout=100)
    assert seen == ["one", "ä", "two\ufffd"]
    assert output == log.read_text() == "one\nä\ntwo\ufffd"


def test_no_network_is_named(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    # Without the retries, which take their time.
    monkeypatch.setattr(source, "DOWNLOAD_OPTIONS", ("-o", "Acquire::Retries=0"))
    space = workspace.Workspace(workspace.find().root, tmp_path)
    with pytest.raises(PagewrightError, match="network is not reachable"):
        source.ensure(space)
    assert list((tmp_path / "source").iterdir()) == [tmp_path / "source" / ".lock"]


def test_unknown_point_release_lists_what_there_is(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGEWRIGHT_KERNEL", "6.12.0")
    space = workspace.Workspace(workspace.find().root, tmp_path)
    with pytest.raises(PagewrightError, match=r"no version 6\.12\.0") as error:
        source.ensure(space)
    assert "6.12." in error.value.todo


def test_all_that_names_a_repository_to_git_is_ours_alone(monkeypatch):
    """An alias of git, a hook or `git bisect run` may have started us, for another repository."""
    names = run(["git", "rev-parse", "--local-env-vars"]).split()
    # These two tell of a configuration, such as that of `git -c`, and not of a repository.
    names = [name for name in names if name not in ("GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS")]
    assert "GIT_DIR" in names
    for name in names:
        monkeypatch.setenv(name, "theirs")
    assert "theirs" not in run(["env"])
    assert run(["env"], env={"GIT_INDEX_FILE": "ours"}).count("=ours") == 1


# What the kernel's makefiles, and make itself, take from the environment.
OF_KERNEL_DEVELOPERS = {
    "LLVM": "1",
    "KCFLAGS": "-O3",
    "HOSTCFLAGS": "-O3",
    "LOCALVERSION": "-mine",
    "CROSS_COMPILE_COMPAT": "arm-linux-gnueabihf-",
    "KCONFIG_CONFIG": "/nonexistent",
    "KBUILD_OUTPUT": "/nonexistent",
    "INSTALL_MOD_STRIP": "1",
    "MAKEFLAGS": "ki -- CONFIG=arm64",
    "MFLAGS": "-ki",
    "MAKEOVERRIDES": "CONFIG=arm64",
    "MAKELEVEL": "1",
}


def test_kbuild_works_as_it_is_told_to(tmp_path, monkeypatch):
    """`make -k test` tells make in its environment, and who works on kernels may export LLVM=1."""
    (tmp_path / "Makefile").write_text(
        "all: bad\n\t@echo '$(LLVM)$(KCFLAGS)$(LOCALVERSION)$(CONFIG)' $$KBUILD_BUILD_USER\n"
        "bad: ; @! [ '$(findstring i,$(firstword -$(MAKEFLAGS)))' ]\n"
    )
    for name, value in OF_KERNEL_DEVELOPERS.items():
        monkeypatch.setenv(name, value)
    told = {"KBUILD_BUILD_USER": "builder"}
    assert run(["make", "--silent", "-C", tmp_path], env=told) == " builder\n"
    there = {line.split("=")[0] for line in run(["env"]).splitlines()}
    assert there.isdisjoint(OF_KERNEL_DEVELOPERS)


def test_programs_speak_the_language_in_which_we_know_their_errors(monkeypatch):
    """LANGUAGE counts before LC_ALL, unless the locale is C itself."""
    monkeypatch.setenv("LANGUAGE", "de:fr")
    assert run(["sh", "-c", 'echo "$LC_ALL:$LANGUAGE"']) == "C.UTF-8:\n"
    assert run(["sh", "-c", 'echo "$LANGUAGE"'], env={"LANGUAGE": "de"}) == "de\n"


@pytest.mark.parametrize("name", ["HOME", "PATH", "TMPDIR", "XDG_CACHE_HOME", "http_proxy"])
def test_what_programs_need_is_handed_on(monkeypatch, name):
    value = os.environ["PATH"] if name == "PATH" else "/as/it/is"
    monkeypatch.setenv(name, value)
    assert f"{name}={value}" in run(["env"], env={"CCACHE_DIR": "/ccache"}).splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_leaves_nothing_running(number):
    mark = f"sleep 1234.{os.getpid()}"
    code = (
        "from pagewright.cli import main as cli; from pagewright.host.run import run\n"
        f"cli.app = lambda: run(['sh', '-c', '{mark} & {mark}'])\n"
        "cli.add_commands_of_features = lambda: None\n"
        "cli.main()"
    )
    # Under `nohup` the tests ignore one of them, and so would the child.
    child = subprocess.Popen(["env", "--default-signal", sys.executable, "-c", code])
    wait_until(lambda: running(mark), 20)
    child.send_signal(number)
    assert child.wait(timeout=20) == 128 + number
    # They were sent a signal, which they take when they get a CPU.
    wait_until(lambda: not running(mark), 20)


def test_nohup_goes_on_when_the_connection_ends():
    code = (
        "import os, signal; from pagewright.cli import main as cli\n"
        "cli.app = lambda: (os.kill(os.getpid(), signal.SIGHUP), print('went on'))\n"
        "cli.add_commands_of_features = lambda: None\n"
        "cli.main()"
    )
    command = ["nohup", sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "went on\n"


def test_nohup_has_tests_go_on_when_the_connection_ends(tmp_path):
    text = "import os, signal\ndef test_it():\n    os.kill(os.getpid(), signal.SIGHUP)\n"
    (tmp_path / "test_suite.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        ["nohup", *suites.command(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "1 passed" in done.stdout


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch, tmp_path):
    """`docker run --user 12345` has neither HOME nor an entry in /etc/passwd."""

    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", signing.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for ask, variable in ((workspace.find, "XDG_CACHE_HOME"), (signing.key, "XDG_CONFIG_HOME")):
        with pytest.raises(HostError, match="no home") as error:
            ask()
        assert error.value.todo == f"set HOME, or {variable}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert workspace.find().cache == tmp_path / "pagewright"


def running(command: str) -> bool:
    """Tell whether a process with exactly this command line exists."""
    wanted = "\0".join(command.split()) + "\0"
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_text() == wanted:
                return True
        except OSError:
            continue
    return False


def test_every_command_has_help():
    overview = subprocess.run([PAGEWRIGHT, "--help"], capture_output=True, text=True, check=True)
    commands = get_command(main.app).commands
    assert {"build", "boot", "bench", "test", "tree", "refresh", "series", "doctor"} < set(commands)
    for name, command in commands.items():
        assert command.hidden or f" {name} " in overview.stdout
        shown = CliRunner().invoke(main.app, [name, "--help"], catch_exceptions=False)
        assert "Usage:" in shown.stdout
        assert shown.exit_code == 0


def test_help_loads_nothing_that_takes_long():
    """Each shell completion starts the command; labgrid alone takes half a second."""
    code = (
        "import sys; from pagewright.cli import main; sys.argv[1:] = ['--help']\n"
        "try: main.main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Usage:" in shown.stdout
    slow = {"labgrid", "matplotlib", "numpy", "pytest"}
    assert slow.isdisjoint(shown.stderr.split())


def lock_elsewhere(folder: Path) -> subprocess.Popen[str]:
    """Start a process that locks a folder until its standard input ends."""
    code = (
        "import sys; from pathlib import Path; from pagewright.host.lock import lock\n"
        "with lock(Path(sys.argv[1]), 'the thing'): print('in', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def waiting_for(process: subprocess.Popen[str]) -> str:
    """Return what whoever waits for a process says."""
    return f"waiting for another pagewright (process {process.pid}) that holds the thing\n"


def test_second_run_waits_and_says_for_whom(tmp_path):
    first = lock_elsewhere(tmp_path)
    assert first.stdout is not None
    assert first.stdout.readline() == "in\n"
    second = lock_elsewhere(tmp_path)
    assert second.stderr is not None
    assert second.stderr.readline() == waiting_for(first)
    assert second.poll() is None
    first.communicate()
    assert second.communicate()[0] == "in\n"


def test_a_lock_that_was_removed_while_one_waited_for_it_is_none(tmp_path):
    """`pagewright clean` removes what it holds; two that come then must not both get it."""
    folder = tmp_path / "locked"
    first = lock_elsewhere(folder)
    assert first.stdout is not None
    assert first.stdout.readline() == "in\n"
    second = lock_elsewhere(folder)
    assert second.stdout is not None and second.stderr is not None
    assert second.stderr.readline() == waiting_for(first)
    shutil.rmtree(folder)
    first.communicate()
    assert second.stdout.readline() == "in\n"
    third = lock_elsewhere(folder)
    assert third.stderr is not None
    # If it had the lock it would say so on the other one.
    assert select.select([third.stdout, third.stderr], [], [])[0] == [third.stderr]
    assert third.stderr.readline() == waiting_for(second)
    second.communicate()
    assert third.communicate()[0] == "in\n"


def test_killed_run_leaves_nothing_running():
    mark = f"sleep 4321.{os.getpid()}"
    code = f"from pagewright.host.run import run; run(['sh', '-c', 'exec {mark}'])"
    child = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: running(mark), 20)
    child.kill()
    child.wait()
    wait_until(lambda: not running(mark), 20)


def test_timeout_ends_what_the_program_left_behind():
    mark = f"sleep 2143.{os.getpid()}"
    with pytest.raises(PagewrightError, match="did not finish"):
        run(["sh", "-c", f"{mark} & exit"], timeout=0.5)
    assert not running(mark)
