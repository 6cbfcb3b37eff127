"""Fixtures for tests that boot guests; the guests may be anywhere labgrid reaches.

By default a machine is a QEMU on this computer. With --lg-env FILE (an option of
labgrid's own pytest plugin) it is the target "main" of that environment, which
already runs a patched kernel and our guest; a test that needs what such a place
does not have is skipped, with the reason.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pagewright.machine import Machine, MachineOptions, boot
from pagewright.place import options_for

Factory = Callable[..., Machine]

# What a place runs unless its environment file says otherwise (options: build:).
DEFAULT_BUILD = "patched-4k"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    parser.addoption("--full", action="store_true", help="also run the slow, wide tests")


def pytest_configure(config: pytest.Config) -> None:
    """Register our markers."""
    config.addinivalue_line("markers", "full: slow and wide; runs only with --full")
    # A shell that starts us in the background has SIGINT ignored, and so would have the
    # programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: pytest.exit("ended by a signal", 128 + number))
    # labgrid 26.0's console logger looks for what a console has said before it has
    # said anything; only its log suffers.
    config.addinivalue_line(
        "filterwarnings", "ignore:unhandled exception during event notification:UserWarning"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only --full runs."""
    if config.getoption("--full"):
        return
    wide = [item for item in items if item.get_closest_marker("full")]
    if wide:
        config.hook.pytest_deselected(items=wide)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest) -> Iterator[Machine | None]:
    """Connect to the place that --lg-env names, once; None without that option."""
    given = request.config.getoption("lg_env")
    if given is None:
        yield None
        return
    with boot(MachineOptions(Path(), Path()), env=Path(given)) as machine:
        yield machine


def _boot(place: Machine | None, stack: ExitStack, name: str, options: dict[str, Any]) -> Machine:
    """Return the place, if the test can run there; or boot a machine, until the stack closes."""
    if place is None:
        return stack.enter_context(boot(options_for(name, **options)))
    if name != (runs := place.build or DEFAULT_BUILD):
        pytest.skip(f"the place given by --lg-env runs {runs}, not {name}")
    if missing := place.unmet(MachineOptions(Path(), Path(), **options)):
        pytest.skip(f"the place given by --lg-env does not have {', '.join(missing)}")
    return place


@pytest.fixture
def machine(place: Machine | None) -> Iterator[Factory]:
    """Boot machines for one test.

    Called with the name of a build and fields of MachineOptions:
    machine("patched-4k", memory="4G").
    """
    with ExitStack() as stack:

        def factory(build: str = DEFAULT_BUILD, **options: Any) -> Machine:
            return _boot(place, stack, build, options)

        yield factory


@pytest.fixture(scope="module")
def shared_machine(place: Machine | None) -> Iterator[Factory]:
    """Boot machines that all tests of a module share, one for each set of arguments.

    For tests that leave the machine as they found it. One that has died is
    replaced.
    """
    stacks: dict[str, tuple[ExitStack, Machine]] = {}

    def factory(build: str = DEFAULT_BUILD, **options: Any) -> Machine:
        key = repr((build, sorted(options.items())))
        if key in stacks and stacks[key][1].broken and not stacks[key][1].fixed:
            stacks.pop(key)[0].close()
        if key not in stacks:
            with ExitStack() as stack:
                booted = _boot(place, stack, build, options)
                stacks[key] = (stack.pop_all(), booted)
        return stacks[key][1]

    with ExitStack() as all_stacks:
        all_stacks.callback(lambda: [stack.close() for stack, _ in stacks.values()])
        yield factory
