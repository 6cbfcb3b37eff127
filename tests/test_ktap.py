"""pagewright.ktap: a flat list of cases in which nothing missing looks like a success."""

import sys
from types import SimpleNamespace

import pytest

from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.kernel import source
from pagewright.machine.machine import Result
from pagewright.results import ktap

pytest_plugins = "pytester"

SUITE = """KTAP version 1
1..1
    KTAP version 1
    # Subtest: split
    # module: linear_map_kunit
    1..3
    ok 1 block
    # table: EXPECTATION FAILED at split_kunit.c:12
    not ok 2 table
    ok 3 contiguous # SKIP the CPU has no BBM level 2
# split: pass:1 fail:1 skip:1 total:3
not ok 1 split
"""
GOOD_SUITE = SUITE.replace("not ok", "ok")

PARAMETERS = """KTAP version 1
1..1
    KTAP version 1
    # Subtest: split
    1..1
        KTAP version 1
        # Subtest: sizes
        ok 1 64K
        ok 2 2M
    ok 1 sizes
ok 1 split
"""

HARNESS = """TAP version 13
1..2
# Starting 2 tests from 1 test cases.
#  RUN           global.read ...
#            OK  global.read
ok 1 global.read
#  RUN           global.write ...
#      SKIP      needs root
#            OK  global.write
ok 2 global.write # SKIP needs root
# PASSED: 2 / 2 tests passed.
"""


def test_what_was_skipped_is_known_by_name():
    assert ktap.skipped(SUITE) == {"contiguous"}
    assert ktap.skipped(HARNESS) == {"global.write"}
    assert ktap.skipped(PARAMETERS) == set()


@pytest.fixture(scope="module")
def parse():
    """The parser of the kernel we build, with its tree filled in."""
    tree = source.ensure(workspace.find()).path
    return lambda text: ktap.parse(text, tree)


def outcomes(cases):
    return {case.name: case.outcome for case in cases}


def is_bad(cases):
    return any(case.outcome in ("fail", "crash") for case in cases)


def test_kunit_cases_are_listed_with_their_suite_outcome_and_log(parse):
    cases = parse(SUITE)
    assert outcomes(cases) == {
        "split.block": "pass",
        "split.table": "fail",
        "split.contiguous": "skip",
    }
    assert "EXPECTATION FAILED at split_kunit.c:12" in cases[1].log
    assert "the CPU has no BBM level 2" in cases[2].log


def test_parameters_of_a_case_are_cases(parse):
    assert outcomes(parse(PARAMETERS)) == {"split.sizes.64K": "pass", "split.sizes.2M": "pass"}


def test_harness_programs_are_understood(parse):
    assert outcomes(parse(HARNESS)) == {"global.read": "pass", "global.write": "skip"}


def test_what_stands_before_the_version_line_does_not_matter(parse):
    assert not is_bad(parse("hello\n" + HARNESS))


def test_a_program_that_skips_everything_is_a_skip(parse):
    assert outcomes(parse("TAP version 13\n1..0 # SKIP no hugepages\n")) == {"all": "skip"}


@pytest.mark.parametrize("text", ["", "sh: not found\n", "KTAP version 1\n1..0\n"])
def test_no_result_is_a_crash(parse, text):
    assert is_bad(parse(text))


@pytest.mark.parametrize("text", [GOOD_SUITE, PARAMETERS, HARNESS])
def test_every_truncation_is_a_crash(parse, text):
    assert not is_bad(parse(text))
    lines = text.splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if line.lstrip().startswith("ok "))
    for length in range(last + 1):
        assert is_bad(parse("".join(lines[:length]))), f"after {length} lines"


@pytest.mark.parametrize("text", [GOOD_SUITE, PARAMETERS, HARNESS])
def test_a_missing_case_is_a_crash(parse, text):
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        # The number of parameters is not announced, so one of them is not missed.
        if line.lstrip().startswith("ok ") and not line.startswith(" " * 8):
            assert is_bad(parse("".join(lines[:number] + lines[number + 1 :]))), line


def test_a_failure_after_the_plan_is_fulfilled_is_seen(parse):
    assert is_bad(parse(HARNESS + "not ok 3 global.late\n"))


def test_a_suite_that_fails_without_a_failing_case_is_a_failure(parse):
    assert is_bad(parse(GOOD_SUITE.replace("ok 1 split", "not ok 1 split")))


def test_a_tree_without_the_parser_is_an_error(tmp_path):
    with pytest.raises(PagewrightError, match="no KUnit parser"):
        ktap.parse(HARNESS, tmp_path)


def test_the_parser_is_gone_after_use(parse):
    before = list(sys.path)
    parse(HARNESS)
    assert sys.path == before
    assert "kunit_parser" not in sys.modules
    assert "kunit_printer" not in sys.modules


def test_report_gives_each_case_a_result_of_its_own(pytester):
    pytester.makepyfile(
        """
        from pagewright.results.ktap import Case
        from pagewright.results.subtests import report

        def test_some(subtests):
            assert report([Case("a", "pass"), Case("b", "fail", "why"), Case("c", "crash"),
                    Case("d", "skip", "# SKIP no hugepages")], subtests)

        def test_none(subtests):
            report([], subtests)

        def test_skips(subtests):
            assert not report([Case("d", "skip", "# SKIP no hugepages")], subtests)
        """
    )
    result = pytester.runpytest_subprocess("-rA", "-o", "verbosity_subtests=1")
    result.stdout.fnmatch_lines(["*b: fail*", "*why*"])
    result.stdout.fnmatch_lines(["*c: crash*"])
    result.stdout.fnmatch_lines(["*SUBSKIPPED*no hugepages*"])
    result.stdout.fnmatch_lines(["SUBFAILED*test_some*"])
    result.stdout.fnmatch_lines(["FAILED*test_none*"])
    result.stdout.fnmatch_lines(["PASSED*test_skips*"])
    assert result.ret == 1


SKIPPED = "TAP version 13\n1..1\nok 1 one # SKIP no hugepages\n"
WITHOUT_ANY = "TAP version 13\n1..0 # SKIP no hugepages\n"
PASSED = "TAP version 13\n1..1\nok 1 one\n"
BROKEN = "TAP version 13\n1..1\nnot ok 1 one\n"


@pytest.fixture
def reported():
    return []


@pytest.fixture
def report_ktap(reported):
    """Stand in for the fixture that reports what a guest printed."""

    def report_text(text):
        reported.append(text)
        return text not in (SKIPPED, WITHOUT_ANY)

    return report_text


def guest(*results, status=0, complaint=""):
    """A machine in which programs print something, and the suites have these results."""
    return SimpleNamespace(
        read=lambda *files: [text for _, text in zip(files, results, strict=True)],
        run=lambda command, timeout: Result(results[0], status),
        warnings=lambda: complaint,
        fixed=False,
    )


def end_of(fixture, *arguments, **options):
    """Return how a fixture ends: a skip that nobody expects would hide itself."""
    try:
        fixture(*arguments, **options)
    except pytest.skip.Exception:
        return "skip"
    except AssertionError:
        return "failure"
    return "pass"


def test_a_suite_that_is_skipped_does_not_hide_the_next_one(kunit_suites, reported):
    assert end_of(kunit_suites, guest(SKIPPED, BROKEN), ["first", "second"]) == "pass"
    assert reported == [SKIPPED, BROKEN]


def test_a_test_whose_suites_are_all_skipped_is_skipped(kunit_suites, reported):
    assert end_of(kunit_suites, guest(SKIPPED, SKIPPED), ["first", "second"]) == "skip"
    assert reported == [SKIPPED, SKIPPED]
    assert end_of(kunit_suites, guest(SKIPPED, complaint="BUG"), ["first"]) == "failure"


def test_what_must_run_and_is_skipped_fails(kunit_suites):
    assert end_of(kunit_suites, guest(SKIPPED), ["first"], ["first"]) == "failure"
    assert end_of(kunit_suites, guest(SKIPPED, BROKEN), ["first", "second"], ["second"]) == "pass"


@pytest.mark.parametrize(
    ("output", "status", "complaint", "end"),
    [
        (PASSED, 0, "", "pass"),
        (PASSED, 4, "", "failure"),
        (PASSED, 0, "BUG", "failure"),
        (SKIPPED, 0, "", "skip"),
        (SKIPPED, 4, "", "skip"),
        (SKIPPED, 1, "", "failure"),
        (SKIPPED, 4, "BUG", "failure"),
    ],
)
def test_a_program_that_skips_all_is_looked_at(guest_program, output, status, complaint, end):
    place = guest(output, status=status)
    assert end_of(guest_program, place, "program", lambda _: complaint) == end


@pytest.mark.parametrize(
    ("may_skip", "end"), [((), "failure"), (["one"], "pass"), (["two"], "failure"), (None, "pass")]
)
def test_a_program_skips_no_more_than_it_may(guest_program, usual, may_skip, end):
    place = guest("TAP version 13\n1..2\nok 1 one # SKIP no hugepages\nok 2 two\n")
    ended = end_of(guest_program, place, "program", lambda _: "", may_skip=may_skip)
    assert ended == (end if usual(place) else "pass")


@pytest.mark.parametrize(
    ("command", "end"),
    [
        ("program -t one", "pass"),
        ("program -t one -t two", "pass"),
        ("sh -c 'exec program -t two'", "pass"),
        ("program -t three", "failure"),
        ("program -t one -t three -v both", "failure"),
    ],
)
def test_a_program_has_the_tests_that_its_command_chooses(guest_program, command, end):
    place = guest("TAP version 13\n1..2\nok 1 global.one\nok 2 pool.of_2M.two\n")
    assert end_of(guest_program, place, command, lambda _: "") == end


@pytest.mark.parametrize("text", [SKIPPED, WITHOUT_ANY])
@pytest.mark.parametrize(("may_skip", "end"), [((), "failure"), (["one"], "skip"), (None, "skip")])
def test_a_program_that_may_not_skip_all_fails(guest_program, usual, text, may_skip, end):
    place = guest(text)
    ended = end_of(guest_program, place, "program", lambda _: "", may_skip=may_skip)
    assert ended == (end if usual(place) else "skip")
