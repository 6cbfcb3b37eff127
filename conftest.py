"""Fixtures for tests that boot guests; the guests may be anywhere labgrid reaches.

By default a machine is a QEMU on this computer. With --lg-env FILE (an option of
labgrid's own pytest plugin) it is the target "main" of that environment, which
already runs a patched kernel and our guest; a test that needs what such a place
does not have is skipped, with the reason.

A test that fails leaves what its machines left (see pagewright/machine/evidence.py) in
out/VERSION/logs/TEST.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pagewright.host import ledger, packages, toolchain, workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.files import digest
from pagewright.host.workspace import Workspace
from pagewright.kernel import build as builder
from pagewright.kernel import recipes, source, tree
from pagewright.kernel.build import Build
from pagewright.kernel.recipes import DEFAULT_BUILD
from pagewright.machine import evidence
from pagewright.machine.boot import boot
from pagewright.machine.inputs import as_servers_boot, lacking, options_for
from pagewright.machine.machine import Machine
from pagewright.machine.options import MTE, UNLISTED_CPU, MachineOptions, in_bytes
from pagewright.machine.strict import MAX_CPUS
from pagewright.results import ktap
from pagewright.results.passed import SHARES, Passed
from pagewright.results.subtests import report, skip

Factory = Callable[..., Machine]
Boot = Callable[[ExitStack, str, dict[str, Any]], Machine]
Options = Callable[..., MachineOptions]
Report = Callable[[str], bool]
GuestProgram = Callable[..., set[str]]

SPACE = workspace.find()
SPACE.make_importable()

# How many seconds were spent on builds before the tests began.
_BUILT = pytest.StashKey[float]()
# What has passed before; None where it cannot be known.
_PASSED = pytest.StashKey[Passed | None]()
# Options of pytest with which it has no results.
_RUNS_NO_TEST = (
    *("collectonly", "showfixtures", "show_fixtures_per_test", "cacheshow"),
    *("help", "markers", "setupplan"),
)
# The tests that --resume has left out.
_LEFT_OUT = pytest.StashKey[list[str]]()
# How long the files of the place (--lg-env) were when a test began.
_PLACE_BEFORE = pytest.StashKey[dict[Path, int]]()
# By this name a worker of pytest-xdist tells them to the process that prints the summary.
_OF_WORKER = "left_out"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    parser.addoption("--full", action="store_true", help="also run the slow, wide tests")
    parser.addoption(
        "--build",
        default=DEFAULT_BUILD,
        metavar="NAME",
        help=f"test another build instead of {DEFAULT_BUILD}, and its unpatched twin",
    )
    parser.addoption(
        "--strict-machines",
        action="store_true",
        help="have every emulated machine check what its TLBs may hold; no test may break a rule",
    )
    parser.addoption(
        "--resume",
        action="store_true",
        help="leave out what has passed before, on the same files but for other tests",
    )
    parser.addoption(
        "--logs",
        type=Path,
        default=SPACE.out / "logs",
        metavar="DIR",
        help="where tests that fail leave the logs of their machines",
    )


# Before pytest itself reads where the results go.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register our markers, and have results written wherever tests are run."""
    config.addinivalue_line("markers", "full: slow and wide; runs only with --full")
    config.addinivalue_line("markers", "long(minutes): takes long, and therefore begins early")
    runs_tests = not any(config.getoption(name, None) for name in _RUNS_NO_TEST)
    if runs_tests and config.getoption("xmlpath", "") is None:
        config.option.xmlpath = str(results_file(config))
    try:
        recipes.recipe(SPACE, config.getoption("build"))
    except PagewrightError as error:
        raise pytest.UsageError(str(error)) from error
    logs: Path = config.getoption("logs")
    # `pagewright test` has begun one, and holds the logs. So has a suite of which a test runs this.
    if runs_tests and ledger.VARIABLE not in os.environ:
        stack = ExitStack()
        stack.enter_context(ledger.suite(logs))
        config.add_cleanup(stack.close)
    begun = os.environ.get(ledger.VARIABLE)
    config.stash[_BUILT] = ledger.total(Path(begun), "build").seconds if begun else 0.0
    config.stash[_PASSED] = _passed(config, runs_tests)
    # A shell that starts us in the background has SIGINT ignored, and so would have the
    # programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        # `nohup` has us ignore that the connection ends.
        if signal.getsignal(ending) != signal.SIG_IGN:
            signal.signal(ending, lambda number, _: pytest.exit("ended by a signal", 128 + number))
    # labgrid 26.0's console logger looks for what a console has said before it has
    # said anything; only its log suffers.
    config.addinivalue_line(
        "filterwarnings", "ignore:unhandled exception during event notification:UserWarning"
    )


def _passed(config: pytest.Config, runs_tests: bool) -> Passed | None:
    """Return what has passed before, and begin to write down what passes if tests are run.

    Raises:
        UsageError: --resume is given, and these sources were not cloned.
    """
    how = [config.getoption("build"), _kernel(), f"QEMU {packages.qemu_version()}"]
    how += [toolchain.version(name) for name in toolchain.COMPILERS if shutil.which(name)]
    # Git does not see these, as the tree is below out/.
    how += [f"{name} {text}" for name, text in tree.edits(SPACE).items()]
    how += ["--strict-machines"] if config.getoption("--strict-machines") else []
    if place := config.getoption("--lg-env"):
        how.append(f"--lg-env {digest(Path(place))}")
    try:
        passed = Passed(SPACE, config.getoption("logs") / "passed.jsonl", " ".join(how))
    except PagewrightError as error:
        if config.getoption("--resume"):
            raise pytest.UsageError(f"--resume takes a clone of the repository: {error}") from error
        return None
    # Of several processes the one that hears of all tests writes.
    if runs_tests and not hasattr(config, "workerinput"):
        passed.begin()
        config.pluginmanager.register(passed)
    return passed


def _kernel() -> str:
    """Return the version of the kernel's source, as apt may have another one than last time."""
    try:
        return source.wanted_version(SPACE)
    except PagewrightError:
        # Tests that need no kernel can pass where apt does not know one.
        return os.environ.get(source.VARIABLE, "")


def _take_away(
    config: pytest.Config, items: list[pytest.Item], unwanted: Callable[[pytest.Item], object]
) -> None:
    """Deselect tests."""
    taken = [item for item in items if unwanted(item)]
    if taken:
        config.hook.pytest_deselected(items=taken)
        items[:] = [item for item in items if not unwanted(item)]


# After pytest has left out what -k and -m do not name.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only --full runs or --resume need not, and begin with what takes long.

    With several workers (pytest-xdist's --dist loadfile) all tests of a file go to one of them,
    because they may share machines; the last file to end should not be a long one. So files
    begin in the order of the minutes that `long` says of their tests, about, in `make test`.
    """
    if not config.getoption("--full"):
        _take_away(config, items, lambda item: item.get_closest_marker("full"))
    if config.getoption("--resume") and (passed := config.stash[_PASSED]):
        config.stash[_LEFT_OUT] = [item.nodeid for item in items if item.nodeid in passed.tests]
        _take_away(config, items, lambda item: item.nodeid in passed.tests)
    minutes: dict[Path, float] = defaultdict(float)
    for item in items:
        for mark in item.iter_markers("long"):
            minutes[item.path] = max(minutes[item.path], *mark.args)
    items.sort(key=lambda item: -minutes[item.path])


def results_file(config: pytest.Config) -> Path:
    """Return where the results go, in JUnit's format, unless --junit-xml says it."""
    logs: Path = config.getoption("logs")
    return logs / "junit.xml"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Tell the process that prints the summary what was left out, from one that has the tests.

    If that was all that there is to run, nothing has failed.
    """
    config = session.config
    left_out = config.stash.get(_LEFT_OUT, [])
    if hasattr(config, "workeroutput"):
        config.workeroutput[_OF_WORKER] = left_out
    elif exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and left_out:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker tells, which all workers tell alike."""
    # One that crashed tells nothing.
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get(
        _OF_WORKER, node.config.stash.get(_LEFT_OUT, [])
    )


def _say_what_was_left_out(terminalreporter: Any) -> None:
    """Say how long the tests took when they passed that --resume has left out."""
    config = terminalreporter.config
    passed, names = config.stash[_PASSED], config.stash.get(_LEFT_OUT, [])
    if passed is None or not names:
        return
    minutes, seconds = divmod(round(sum(passed.seconds[name] for name in names)), 60)
    words = "1 test was" if len(names) == 1 else f"{len(names)} tests were"
    terminalreporter.write_line(
        f"{words} left out, which passed before in {minutes} min {seconds} s"
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many guests were booted, and what took how long."""
    _say_what_was_left_out(terminalreporter)
    # A suite that a test runs counts for the suite that has the test.
    if (file := ledger.begun_here()) is None:
        return
    builds, boots = ledger.total(file, "build"), ledger.total(file, "boot")
    within = builds.seconds - terminalreporter.config.stash[_BUILT]
    reports = [
        report
        for outcome in terminalreporter.stats.values()
        for report in outcome
        if isinstance(report, pytest.TestReport)
    ]
    tests = sum(report.duration for report in reports) - boots.seconds - within
    minutes, seconds = divmod(round(ledger.age(file)), 60)
    terminalreporter.write_sep("-", "time")
    terminalreporter.write_line(
        f"{boots.number} guests booted; building {builds.seconds:.0f} s, booting "
        f"{boots.seconds:.0f} s, testing {tests:.0f} s, added up over all workers; "
        f"altogether {minutes} min {seconds} s"
    )


# --- Evidence -----------------------------------------------------------------


def logs_of(node: pytest.Item | pytest.Collector) -> Path:
    """Return the folder for what the machines of a test leave if it fails."""
    name = re.sub(r"[^\w.-]+", "-", node.nodeid.removesuffix("]")).strip("-")
    logs: Path = node.config.getoption("logs")
    return logs / name


def own_logs(item: pytest.Item) -> Path:
    """Return where machines write that are booted while a test runs."""
    return logs_of(item).with_name(f".{logs_of(item).name}")


def shared_logs(module: pytest.Item | pytest.Collector) -> Path:
    """Return where machines write that the tests of a module share."""
    return logs_of(module).with_name(f".{logs_of(module).name}-shared")


def place_logs(config: pytest.Config) -> Path:
    """Return where the place writes that --lg-env names, which all tests share."""
    logs: Path = config.getoption("logs")
    return logs / f".place-{os.getpid()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep what machines write while the test runs, until it is known how it ended."""
    for old in (logs_of(item), own_logs(item)):
        shutil.rmtree(old, ignore_errors=True)
    item.stash[_PLACE_BEFORE] = evidence.sizes(place_logs(item.config))
    with evidence.kept_in(own_logs(item)):
        result = yield
    shutil.rmtree(own_logs(item), ignore_errors=True)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Copy what the machines of a failed test have written, and say where it is."""
    report = yield
    shares = "shared_machine" in getattr(item, "fixturenames", ())
    # What the machines of a file have to say at their end is said at that of its last test.
    ends_them = report.when == "teardown" and report.failed
    setattr(report, SHARES, shares or ends_them)
    if report.failed:
        target = logs_of(item)
        for folder in own_logs(item).glob("*"):
            evidence.copy(folder, target / folder.name)
        if shares:
            module = item.getparent(pytest.Module)
            for folder in shared_logs(module).glob("*"):
                evidence.copy(folder, target / f"shared-{folder.name}")
        for folder in place_logs(item.config).glob("*"):
            evidence.copy(folder, target / "place", item.stash[_PLACE_BEFORE])
        if target.exists():
            report.sections.append(("machines", f"their logs are in {target}"))
    return report


# --- Machines -----------------------------------------------------------------


@pytest.fixture(scope="session")
def space() -> Workspace:
    """Return the repository."""
    return SPACE


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest) -> Iterator[Machine | None]:
    """Connect to the place that --lg-env names, once; None without that option."""
    given = request.config.getoption("lg_env")
    if given is None:
        yield None
        return
    logs = place_logs(request.config)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, logs, ignore_errors=True)
        with evidence.kept_in(logs):
            machine = stack.enter_context(boot(MachineOptions(Path(), Path()), env=Path(given)))
        yield machine


def _instead(name: str, chosen: str) -> str:
    """Return what is tested in place of a build, where --build chose another one."""
    if chosen == DEFAULT_BUILD:
        return name
    if name == DEFAULT_BUILD:
        return chosen
    if name == recipes.unpatched(SPACE, DEFAULT_BUILD):
        return recipes.unpatched(SPACE, chosen) or pytest.skip(f"{chosen} has no unpatched twin")
    pytest.skip(f"this is a test of {name} (--build)")


# A guest of this much memory or more must not touch all of it.
_LARGE = in_bytes("6G")


def _sparing(build: str, options: dict[str, Any]) -> dict[str, Any]:
    """Have a large guest not clear memory for its own sake: the host may not have as much.

    Debian's kernels clear what they allocate (init_on_alloc), hugepages before they are used.
    """
    memory = in_bytes(options.get("memory", "1G"))
    if memory < _LARGE or not recipes.recipe(SPACE, build).debian:
        return options
    return options | {"append": f"init_on_alloc=0 {options.get('append', '')}".strip()}


def _may_be_strict(options: dict[str, Any]) -> bool:
    """Tell whether --strict-machines is about a machine.

    One that is strict already belongs to a test that looks at the reports itself, and QEMU
    has one plugin at a time here. If several CPUs share a thread, it tells of the wrong one.
    Under this plugin a guest with tagged memory finds a copied page without its tags, for
    a reason that is not known. It takes a guest's guest for its own, and knows few CPUs.
    """
    one_thread = options.get("icount") or options.get("single_threaded")
    return not (
        options.get("strict")
        or options.get("count")
        or options.get("tlb")
        or (one_thread and options.get("smp", 1) > 1)
        or options.get("smp", 1) > MAX_CPUS
        or options.get("virtualization")
        or options.get("extra_args") == MTE
    )


def _level_to_kernel(cpu: str | None) -> int | None:
    """Return FEAT_BBM's level for the strict machine; None if it is what the ID register says.

    The kernel must not rely on the ID register of a CPU that is not on its list.
    """
    return 0 if cpu == UNLISTED_CPU else None


def _no_violations(guest: Machine) -> None:
    found = guest.violations()
    assert not found, "\n".join(map(str, found))


@pytest.fixture(scope="session")
def tested(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return what is tested in place of a build, where --build chose another one."""
    return lambda name: _instead(name, request.config.getoption("build"))


@pytest.fixture(scope="session")
def usual(tested: Callable[[str], str]) -> Callable[[Machine], bool]:
    """Tell whether a machine is one of ours, whose skipped tests are known: see --build."""
    return lambda place: tested(DEFAULT_BUILD) == DEFAULT_BUILD and not place.fixed


def asked_of(build: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Complete what a test asks for by what a build's machines have by default."""
    return _sparing(build, as_servers_boot(recipes.recipe(SPACE, build), options))


@pytest.fixture(scope="session")
def tested_options(tested: Callable[[str], str]) -> Options:
    """Return options of a machine with what is tested in place of a build; see `machine`."""

    def options_of(name: str = DEFAULT_BUILD, **options: Any) -> MachineOptions:
        build = tested(name)
        return options_for(SPACE, build, **asked_of(build, options))

    return options_of


@pytest.fixture(scope="session")
def boot_one(
    request: pytest.FixtureRequest, place: Machine | None, tested: Callable[[str], str]
) -> Boot:
    """Boot a machine until a stack closes, or return the place if the test can run there."""
    strict = request.config.getoption("--strict-machines")

    def start(stack: ExitStack, name: str, options: dict[str, Any]) -> Machine:
        if place is None:
            build = tested(name)
            options = asked_of(build, options)
            if not strict or not _may_be_strict(options):
                return stack.enter_context(boot(options_for(SPACE, build, **options)))
            options = options | {"strict": True, "bbm_level": _level_to_kernel(options.get("cpu"))}
            guest = stack.enter_context(boot(options_for(SPACE, build, **options)))
            stack.callback(_no_violations, guest)
            return guest
        if reason := lacking(place, name, **options):
            pytest.skip(f"{reason} (--lg-env)")
        return place

    return start


@pytest.fixture(scope="session")
def built(tested: Callable[[str], str]) -> Callable[[str], Build]:
    """Build what is tested in place of a build, where --build chose another one."""
    return lambda name: builder.ensure(SPACE, tested(name))


@pytest.fixture(scope="session")
def needs_symbol(
    request: pytest.FixtureRequest, built: Callable[[str], Build]
) -> Callable[..., None]:
    """Skip a test if what is tested in place of a build lacks a symbol of Kconfig.

    What the kernel of a place (--lg-env) was configured with is not known here.
    """

    def need(symbol: str, name: str = DEFAULT_BUILD) -> None:
        if request.config.getoption("lg_env"):
            return
        kernel = built(name)
        if not kernel.has(symbol):
            pytest.skip(f"{kernel.name} is without CONFIG_{symbol}")

    return need


@pytest.fixture
def kernel_overlay(
    tmp_path: Path, built: Callable[[str], Build], needs_symbol: Callable[..., None]
) -> Callable[[str], Path]:
    """Make an overlay that has a build's image at /boot/Image, for a kernel that can load it."""

    def make(build: str) -> Path:
        needs_symbol("KEXEC_FILE", build)
        overlay = tmp_path / "overlay"
        (overlay / "boot").mkdir(parents=True)
        shutil.copy(built(build).image, overlay / "boot" / "Image")
        return overlay

    return make


@pytest.fixture
def fault_injection(needs_symbol: Callable[..., None]) -> None:
    """Skip a test that has allocations fail on a kernel that cannot have them fail."""
    needs_symbol("FAULT_INJECTION")


@pytest.fixture
def machine(boot_one: Boot) -> Iterator[Factory]:
    """Boot machines for one test.

    Called with the name of a build and fields of MachineOptions:
    machine("patched-4k", memory="4G").
    """
    with ExitStack() as stack:

        def factory(build: str = DEFAULT_BUILD, **options: Any) -> Machine:
            return boot_one(stack, build, options)

        yield factory


@pytest.fixture(scope="module")
def shared_machine(boot_one: Boot, request: pytest.FixtureRequest) -> Iterator[Factory]:
    """Boot machines that all tests of a module share, one for each set of arguments.

    For tests that leave the machine as they found it. One that has died is
    replaced.
    """
    stacks: dict[str, tuple[ExitStack, Machine]] = {}
    logs = shared_logs(request.node)

    def factory(build: str = DEFAULT_BUILD, **options: Any) -> Machine:
        key = repr((build, sorted(options.items())))
        if key in stacks and stacks[key][1].broken and not stacks[key][1].fixed:
            stacks.pop(key)[0].close()
        if key not in stacks:
            with ExitStack() as stack, evidence.kept_in(logs):
                booted = boot_one(stack, build, options)
                stacks[key] = (stack.pop_all(), booted)
        return stacks[key][1]

    with ExitStack() as all_stacks:
        all_stacks.callback(shutil.rmtree, logs, ignore_errors=True)
        yield factory
        # Each is closed, whatever the end of another one raises.
        for stack, _ in stacks.values():
            all_stacks.push(stack)


# --- Results of guests ----------------------------------------------------------


# The exit status of a selftest that has skipped all its tests.
_SKIPPED = 4


@pytest.fixture
def report_ktap(subtests: pytest.Subtests) -> Report:
    """Report each case of a text in KTAP or TAP as a result of its own.

    Returns whether there was one that was not skipped.
    """

    def report_text(text: str) -> bool:
        return report(ktap.parse(text, source.ensure(SPACE).path), subtests)

    return report_text


@pytest.fixture
def guest_program(report_ktap: Report, usual: Callable[[Machine], bool]) -> GuestProgram:
    """Run a guest program, each of its tests a result of its own; no complaint may follow.

    Returns the names of the tests that were skipped.

    Called with the machine, the command, a function that returns unexpected complaints of
    the kernel, seconds of time, and which tests may be skipped; that is any if it is None, and
    where --build or a fixed place has others than we know. Each test that the command chooses with
    -t must be there: the harness of selftests passes where nothing has that name.
    """

    def run(
        place: Machine,
        command: str,
        complaints: Callable[[Machine], str] = Machine.warnings,
        timeout: float = 600,
        may_skip: Collection[str] | None = None,
    ) -> set[str]:
        result = place.run(command, timeout)
        some_ran = report_ktap(result.output)
        said = complaints(place)
        good = (0,) if some_ran else (0, _SKIPPED)
        assert result.status in good, f"{result.output}\n{said}"
        assert said == ""
        assert set(re.findall(r" -t (\w+)", command)) <= ktap.tests(result.output)
        skipped = ktap.skipped(result.output)
        if may_skip is not None and usual(place):
            assert skipped <= set(may_skip)
            assert some_ran or may_skip
        if not some_ran:
            skip()
        return skipped

    return run


@pytest.fixture
def kunit_suites(report_ktap: Report) -> Callable[..., set[str]]:
    """Report the results of KUnit suites that ran while a machine booted.

    If all cases of all suites were skipped, so is the test. It fails if that is so of one of the
    suites that must run, or if a case that must run was skipped.
    Returns the names of the cases that were.
    """

    def run(place: Machine, suites: Sequence[str], must_run: Collection[str] = ()) -> set[str]:
        results = place.read(*(f"/sys/kernel/debug/kunit/{s}/results" for s in suites))
        ran = {suite for suite, text in zip(suites, results, strict=True) if report_ktap(text)}
        for text in results:
            ran |= set(re.findall(r"^ +ok \d+ (\w+)$", text, re.MULTILINE))
        assert set(must_run) <= ran
        if ran.isdisjoint(suites):
            assert place.warnings() == ""
            skip()
        return ktap.skipped("\n".join(results))

    return run
