"""Commands that tell what there is: list, logs."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from pagewright.cli.options import completes
from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.run import tail
from pagewright.host.workspace import Workspace
from pagewright.kernel import recipes

# How many failed tests `logs` shows, and how many last lines of each file.
_TESTS = 3
_LINES = 12


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("list")(show)
    app.command()(logs)


def show() -> None:
    """List the builds and the experiments, and which builds are there."""
    from pagewright.results.experiment import experiments, load

    space = workspace.find()
    builds = {name: recipes.recipe(space, name).purpose for name in recipes.names(space)}
    width = max(map(len, builds))
    print("Builds (pagewright build NAME, pagewright boot NAME); * is built:")
    for name, purpose in builds.items():
        print(f"  {'*' if is_built(space, name) else ' '} {name:{width}}  {purpose}")
    print("  NAME-without-FEATURE is a build with a feature's symbol off,")
    print("  NAME-without-tests one without the KUnit suites and the rest of what tests take.")
    found = [load(space, name) for name in experiments(space)]
    width = max(len(experiment.name) for experiment in found)
    print("\nExperiments (pagewright bench NAME):")
    for experiment in found:
        print(f"  {experiment.name:{width}}  {experiment.title} ({experiment.feature})")


def is_built(space: Workspace, name: str) -> bool:
    """Tell whether a build has an image; it may be older than its sources."""
    return (space.out / name / "arch" / "arm64" / "boot" / "Image").is_file()


def logs(
    test: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEST]",
            help="show all that one test has left",
            autocompletion=completes(lambda space: [folder.name for folder in left(space)]),
        ),
    ] = None,
) -> None:
    """Show what failed in the last `pagewright test`, and what its machines have left."""
    space = workspace.find()
    results = space.out / "logs" / "junit.xml"
    nothing = "no test has failed" if results.exists() else "this clone has no results of tests"
    kept = left(space)
    if test is not None:
        exact = [f for f in kept if f.name == test] or [f for f in kept if test in f.name]
        if len(exact) != 1:
            what = "is more than one log that" if exact else "is no log that"
            names = ", ".join(f.name for f in exact or kept) or f"none: {nothing}"
            raise PagewrightError(f"there {what} matches {test!r}", f"the logs are: {names}")
        for text in machine_files(exact[0]):
            print(text)
        return
    failures = list(failed_tests(results))
    for line in failures:
        print(line)
    begun = begin_of(results)
    last = [f for f in kept if f.stat().st_mtime >= begun]
    if not failures and not last:
        print(nothing)
    for one in last[:_TESTS]:
        print(f"\n{one.name} (pagewright logs {one.name} shows all of it)")
        for text in machine_files(one, _LINES):
            print(text)
    for what, others in (("older ones", last[_TESTS:]), ("of earlier runs", kept[len(last) :])):
        if others:
            print(f"\n{what}: {', '.join(f.name for f in others)}")


def left(space: Workspace) -> list[Path]:
    """Return what the machines of failed tests have left, the newest first: a folder for each."""
    return sorted(
        (f for f in (space.out / "logs").glob("*") if f.is_dir() and not f.name.startswith(".")),
        key=lambda f: f.stat().st_mtime,
        reverse=True,
    )


def machine_files(folder: Path, lines: int | None = None) -> Iterator[str]:
    """Yield what the machines of a test have left: each file with a heading.

    Args:
        folder: the test's; a subfolder for each machine.
        lines: only so many of each file's last lines.
    """
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        text = file.read_text(errors="replace").replace("\r\n", "\n")
        if text.strip():
            yield f"== {file}"
            yield (tail(text, lines) if lines else text).rstrip("\n")


def begin_of(junit: Path) -> float:
    """Return when the run of a JUnit XML file began; 0 if the file does not say it."""
    try:
        suite = ElementTree.parse(junit).find("testsuite")
        text = "" if suite is None else suite.get("timestamp", "")
        return datetime.fromisoformat(text).timestamp()
    except (OSError, ValueError, ElementTree.ParseError):
        return 0


def failed_tests(junit: Path) -> Iterator[str]:
    """Yield a line for each failure that a JUnit XML file tells of."""
    if not junit.is_file():
        return
    try:
        root = ElementTree.parse(junit).getroot()
    except ElementTree.ParseError as error:
        yield f"{junit} is not complete: {error}"
        return
    for case in root.iter("testcase"):
        for bad in (*case.findall("failure"), *case.findall("error")):
            message = (bad.get("message") or bad.text or "").strip().splitlines()
            name = f"{case.get('classname', '')}.{case.get('name', '')}".strip(".")
            yield f"failed: {name}: {message[0] if message else ''}"
