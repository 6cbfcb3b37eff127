"""Commands that run a test in a guest and print its results: kunit, selftest."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from pagewright.cli.options import (
    Accel,
    Accelerator,
    BuildOption,
    CpuModel,
    Cpus,
    MemorySize,
    Parameters,
    Timeout,
    builds,
    completes,
)
from pagewright.guest import programs
from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.workspace import Workspace
from pagewright.kernel.recipes import DEFAULT_BUILD

DEBUG_BUILD = "checked-4k"


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(kunit)
    app.command(context_settings={"ignore_unknown_options": True})(selftest)


def _suites(space: Workspace) -> list[str]:
    """Return what `kunit` takes: suites, and each with each of its cases."""
    return [
        name
        for suite in suites_of(space)
        for name in (suite, *(f"{suite}.{case}" for case in cases_of(space, suite)))
    ]


def _selftests(space: Workspace) -> list[str]:
    return [*guest_programs(space), *kernel_selftests(space)]


def kunit(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE", help="its name, or SUITE.CASE", autocompletion=completes(_suites)
        ),
    ],
    build: Annotated[
        str | None,
        typer.Argument(metavar="[BUILD]", help="as a rule patched-4k", autocompletion=builds),
    ] = None,
    cpu: CpuModel = None,
    smp: Cpus = 2,
    memory: MemorySize = "1G",
    append: Parameters = "",
    accel: Accel = Accelerator.TCG,
    timeout: Timeout = 600,
) -> None:
    """Run a KUnit suite of a feature while a guest boots, and print its results."""
    from pagewright.kernel import source
    from pagewright.machine.boot import boot
    from pagewright.machine.inputs import options_for
    from pagewright.results import ktap

    space = workspace.find()
    name, _, case = suite.partition(".")
    suites = suites_of(space)
    if name not in suites:
        raise PagewrightError(
            f"there is no KUnit suite {name!r}", f"the suites are: {', '.join(suites)}"
        )
    cases = cases_of(space, name)
    if case and not fnmatch.filter(cases, case):
        raise PagewrightError(
            f"the suite {name} has no case {case!r}", f"its cases are: {', '.join(cases)}"
        )
    options = options_for(
        space,
        build or suites[name],
        cpu=cpu,
        smp=smp,
        memory=memory,
        accel=accel.value,
        append=f"kunit.enable=1 kunit.filter_glob={suite} {append}".strip(),
    )
    with boot(options, timeout=int(timeout)) as machine:
        found = machine.run(f"cat /sys/kernel/debug/kunit/{name}/results")
        complaints = machine.warnings()
    if found.status != 0:
        raise PagewrightError(
            f"the kernel {build or suites[name]} has no results of {suite}",
            "is the feature on in that build, and the case compiled there?",
        )
    ended = ktap.parse(found.output, source.ensure(space).path)
    for one in ended:
        print(f"{one.outcome:5} {one.name}")
        if one.outcome in ("fail", "crash"):
            print(one.log)
    failed = [one for one in ended if one.outcome in ("fail", "crash")]
    print(f"{len(ended)} cases, {len(failed)} failed")
    if complaints:
        print(f"the kernel complained:\n{complaints}")
    raise typer.Exit(1 if failed or complaints or not ended else 0)


def selftest(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="FEATURE/PROGRAM, or COLLECTION/PROGRAM",
            autocompletion=completes(_selftests),
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENT]...", help="the program's own")
    ] = None,
    build: BuildOption = DEFAULT_BUILD,
    cpu: CpuModel = None,
    smp: Cpus = 2,
    memory: MemorySize = "2G",
    append: Parameters = "",
    accel: Accel = Accelerator.TCG,
    timeout: Timeout = 600,
) -> None:
    """Run a guest program of a feature, or one of the kernel's own selftests, in a guest.

    Its output is printed, and its status is the exit status. The kernel's tests of hugepages
    need some: --append hugepages=128.
    """
    import shlex

    from pagewright.guest import kselftest
    from pagewright.machine.boot import boot
    from pagewright.machine.inputs import options_for

    space = workspace.find()
    ours, kernels = list(guest_programs(space)), list(kernel_selftests(space))
    if name not in (*ours, *kernels):
        raise PagewrightError(
            f"there is no selftest {name!r}",
            f"the features' programs are: {', '.join(ours)}\n"
            f"the kernel's own are: {', '.join(kernels)}",
        )
    collection, _, program = name.partition("/")
    folder = f"{kselftest.SELFTESTS}/{collection}"
    if name in ours:
        folder = programs.path(collection)
    options = options_for(
        space,
        build or DEFAULT_BUILD,
        cpu=cpu,
        smp=smp,
        memory=memory,
        accel=accel.value,
        append=append,
        overlay=None if name in ours else kselftest.ensure(space),
    )
    command = shlex.join([f"./{program}", *(arguments or ())])
    with boot(options, timeout=int(timeout)) as machine:
        result = machine.run(f"cd {folder} && {command}", timeout)
        complaints = machine.warnings()
    sys.stdout.write(result.output)
    if complaints:
        print(f"the kernel complained:\n{complaints}")
    raise typer.Exit(result.status or (1 if complaints else 0))


def suites_of(space: Workspace) -> Mapping[str, str]:
    """Return the KUnit suites of the features, each with the build that it is in."""
    suites: dict[str, str] = {}
    for feature in space.features():
        suites |= dict.fromkeys(feature.kunit_suites, DEFAULT_BUILD)
        suites |= dict.fromkeys(feature.debug_kunit_suites, DEBUG_BUILD)
    return suites


def cases_of(space: Workspace, suite: str) -> list[str]:
    """Return the cases of a KUnit suite of a feature, those that only some builds have included."""
    texts = [
        file.read_text()
        for feature in space.features()
        for file in sorted(feature.overlay.rglob("*_kunit.c"))
    ]
    return [
        case
        for text in texts
        if f'.name = "{suite}"' in text
        for case in re.findall(r"\bKUNIT_CASE\w*\((\w+)", text)
    ]


def guest_programs(space: Workspace) -> Iterator[str]:
    """Yield the features' guest programs, as FEATURE/PROGRAM."""
    for program in programs.listed(space):
        if program.target.is_relative_to(programs.TESTS):
            yield str(program.target.relative_to(programs.TESTS))


def kernel_selftests(space: Workspace) -> Iterator[str]:
    """Yield the kernel's own selftests that features ask for, as COLLECTION/PROGRAM."""
    from pagewright.guest import kselftest

    for collection, names in kselftest.collections(space).items():
        yield from (f"{collection}/{name}" for name in names)
