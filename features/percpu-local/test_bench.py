"""The experiments measure what they say, and the feature keeps its promises."""

from __future__ import annotations

import itertools
import re

import pytest
from workloads import COUNTER

from pagewright.guest import programs
from pagewright.host import workspace
from pagewright.host.run import run
from pagewright.host.toolchain import OBJDUMP
from pagewright.kernel import build
from pagewright.machine.boot import boot
from pagewright.machine.inputs import options_for
from pagewright.results import measure
from pagewright.results.experiment import base_and_patched, load
from pagewright.results.plan import Choice

SPACE = workspace.find()

# What README's second table says of the patched kernel: the instruction that chooses at boot
# computes the address.
INSTRUCTIONS = {
    **{f"{name} 8": 4 for name in ("read", "write", "add", "or", "xchg", "cmpxchg", "cmpxchg64")},
    **{f"{name} 8": 5 for name in ("inc", "add_return", "and")},
}
# Where the compiler has no asm goto with an output, it is a NOP besides, as in the first table.
COMPUTES_THE_ADDRESS = "CC_HAS_ASM_GOTO_OUTPUT"
# How many more than in the base there are with the map off: what chooses is a branch, and a value
# has to be copied.
OFF = {
    **{f"{name} 8": 1 for name in ("write", "inc", "add", "and", "or")},
    **{f"{name} 8": 2 for name in ("read", "add_return", "xchg")},
}
# With Clang an increment forms an address again, for an operand that no instruction uses.
CLANG = {"read": 4, "add": 4, "inc": 7}
# README's table of forms that were not made, and of raw_cpu operations as they are.
FORMS = {
    "raw": {"read 8": 4, "inc 8": 6, "add 8": 6},
    "raw local": {"read 8": 4, "inc 8": 5, "add 8": 4},
    "raw offset": {"read 8": 4, "inc 8": 6, "add 8": 5},
    "near": {"read 8": 3, "inc 8": 5, "add 8": 4},
    "near compiled": {"read 8": 6, "inc 8": 7, "add 8": 6},
}

pytestmark = [
    pytest.mark.skipif("config.getoption('lg_env')", reason="counts instructions in QEMU"),
    pytest.mark.full,
    pytest.mark.long(2),
]


def measured(
    part: str, quick: bool = True, name: str = "percpu-local"
) -> dict[tuple[str, str], dict[str, float]]:
    """Return values of an experiment, by group and name of the figure and then by side."""
    experiment = load(SPACE, name)
    choice = Choice(quick=quick, parts=(part,))
    report = measure.measure(SPACE, experiment, base_and_patched(), choice)
    return {(figure.group, figure.name): figure.values for figure in report.figures}


def of_their_own(figures):
    """Return instructions of each operation on a static variable, in a function of its own."""
    return {
        name: values
        for (group, name), values in figures.items()
        if group.endswith("static variable, in a function of its own")
    }


@pytest.fixture(scope="module")
def operations():
    """Instructions of each operation on 8 bytes."""
    return of_their_own(measured("operations"))


@pytest.fixture(scope="module")
def nop():
    """How many instructions of an operation are a NOP with the compiler of patched-4k."""
    return 0 if build.ensure(SPACE, "patched-4k").has(COMPUTES_THE_ADDRESS) else 1


def test_an_operation_is_a_few_instructions(operations, nop):
    patched = {name: values["patched"] for name, values in operations.items()}
    assert patched == {name: number + nop for name, number in INSTRUCTIONS.items()}
    for name, values in operations.items():
        assert values["patched"] < values["base"] / 2, name
    assert {name: operations[name]["off"] - operations[name]["base"] for name in OFF} == OFF


def straight_path(module, function):
    """Return the names of a function's instructions until it returns, without its stack frame.

    The first branch is what chooses: where there is a local map, it computes the address instead.
    """
    text = run([OBJDUMP, "-d", "--no-show-raw-insn", f"--disassemble={function}", module])
    lines = re.findall(r"^ +[0-9a-f]+:\t(.*)$", text.split(f"<{function}>:")[1], re.MULTILINE)
    frame = re.compile(r"bti|paciasp|autiasp|.*\bx(29|30)\b")
    return [
        line.split()[0]
        for line in itertools.takewhile(lambda line: line != "ret", lines)
        if not frame.match(line)
    ]


def test_with_clang_the_choice_computes_the_address():
    """Clang makes a stack frame for all that may call the scheduler, but for a read."""
    kernel = build.ensure(SPACE, "clang-4k")
    assert kernel.has(COMPUTES_THE_ADDRESS)
    found = of_their_own(measured("operations-clang", quick=False))
    assert found["read 8"]["Clang"] == CLANG["read"]
    module = kernel.out / "lib" / "percpu_bench.ko"
    for name, number in CLANG.items():
        path = straight_path(module, f"do_once_{name}_8_static")
        assert path.count("b") == 1
        assert len(path) == number, path


@pytest.mark.parametrize("side", FORMS)
def test_forms_that_were_not_made_take_what_readme_says(side, nop):
    found = of_their_own(measured(f"operations-{side.replace(' ', '-')}", quick=False))
    # Those that are chosen as this feature's are have a NOP, too, if those have.
    more = nop if side == "raw local" else 0
    expected = {name: number + more for name, number in FORMS[side].items()}
    assert {name: values[side] for name, values in found.items()} == expected


def test_tables_of_large_pages_take_what_readme_says():
    """The top levels of 8 CPUs share a block; each has a private table and one of its chunk."""
    figures = measured("memory-64k-52-4", quick=False, name="percpu-memory")
    tables, total = (
        figures["64 KiB pages, 52 bits", f"{key}, 4 CPUs"] for key in ("tables", "MemTotal")
    )
    assert tables == {"tiny-64k-52, off": 0, "tiny-64k-52, patched": 768}
    less = total["tiny-64k-52, off"] - total["tiny-64k-52, patched"]
    # Where other memory is kept in whole pages, one of them may differ.
    assert 768 <= less <= 768 + 2 * 64


def test_workloads_count_kernel_and_programs():
    figures = measured("workloads-4")
    for (group, name), values in figures.items():
        if group.startswith("instructions of"):
            assert all(value > 0 for value in values.values()), name
    # It differs least from run to run: for 1000 of them the difference is 2.4 million of 106, and
    # the standard error of three runs' mean 0.12 million. For 100 of them one run did not tell.
    kernel = figures["instructions of the kernel, 4 CPUs", "create memcgs"]
    assert kernel["patched"] < kernel["base"]


def test_the_counts_are_those_of_icount():
    """Kernel and programs together are what the virtual counter says."""
    loop = "busybox sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done'"
    count = programs.path("percpu-local", "count")
    with boot(options_for(SPACE, "base-4k", icount=True, count=True, smp=2)) as machine:
        machine.check(loop)
        output = machine.check(f"{COUNTER} {count} {loop}")
        empty = machine.check(f"{COUNTER} {count} true")
    found, none = (
        {key: int(number) for key, number in re.findall(r"(\w+)=(\d+)", text)}
        for text in (output, empty)
    )
    total = found["instructions"] - none["instructions"]
    counted = sum(found[key] - none[key] for key in ("kernel", "user"))
    assert counted == pytest.approx(total, rel=0.01)
    assert found["user"] > 10 * found["kernel"]
