"""pagewright.machine: what a command printed and how it ended, exactly; deaths, told plainly."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pexpect import TIMEOUT

from pagewright.guest import image
from pagewright.host.errors import PagewrightError
from pagewright.kernel import build
from pagewright.machine import emulator, klog
from pagewright.machine.boot import boot
from pagewright.machine.machine import Machine
from pagewright.machine.options import MachineOptions

BUILD = "base-4k"

pytestmark = [
    pytest.mark.skipif("config.getoption('lg_env')", reason="these tests are of QEMU"),
    pytest.mark.long(2),
]


@pytest.fixture(scope="module")
def options(space):
    return MachineOptions(build.ensure(space, BUILD).image, image.ensure(space))


@pytest.fixture(scope="module")
def up(shared_machine):
    """A machine for the tests that leave it alive."""
    return shared_machine(BUILD)


@pytest.fixture(scope="module")
def over_lines(up):
    """The same machine, spoken to as a board is: through the terminal alone."""
    return Machine(up._shell)


@pytest.fixture(params=["up", "over_lines"])
def either(request):
    return request.getfixturevalue(request.param)


def emulators(parent=None):
    """The QEMUs that a process has started."""
    list_children = ["ps", "-o", "pid=,comm=", "--ppid", str(parent or os.getpid())]
    children = subprocess.run(list_children, capture_output=True, text=True, check=False).stdout
    return [line.split()[0] for line in children.splitlines() if "qemu-system" in line]


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("true", ""),
        ("echo one", "one\n"),
        ("printf one", "one"),
        (r"printf '\n\na\n\n\nb\n\n'", "\n\na\n\n\nb\n\n"),
        (r"printf 'a\r\nb\tc\033[31md\a'", "a\r\nb\tc\033[31md\a"),
        ("echo 'guest# '; echo \"it's $((1 + 1))\" \\$HOME", "guest# \nit's 2 $HOME\n"),
        ("echo one\n\n# a comment\necho two", "one\ntwo\n"),
        ("echo äöü", "äöü\n"),
        ("cat", ""),
    ],
)
def test_output_is_exact(either, command, output):
    assert either.run(command).output == output


def test_standard_error_is_in_the_output_in_order(up):
    assert up.run("echo a; echo b >&2; echo c").output == "a\nb\nc\n"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("true", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("no-such-command", 127),
        ("kill -9 $$", 137),
        ("kill -SEGV $$", 139),
    ],
)
def test_status_is_exact(either, command, status):
    assert either.run(command).status == status


def test_check_strips_trailing_newlines_and_wants_success(up):
    assert up.check("echo one; echo") == "one"
    with pytest.raises(PagewrightError, match=r"(?s)status 4 .*the reason"):
        up.check("echo the reason; exit 4")


def test_lines_of_any_length_arrive(either):
    line = "x" * 10000
    assert either.run("head -c 10000 /dev/zero | tr '\\0' x").output == line


def test_commands_of_any_length_arrive(either):
    words = "word " * 4000
    assert either.run(f"echo {words}| wc -w").output == "4000\n"


def test_megabytes_of_output_are_fast_and_whole(up):
    start = time.monotonic()
    output = up.run("seq 1000000").output
    assert output == "".join(f"{n}\n" for n in range(1, 1000001))
    assert time.monotonic() - start < 30


def test_output_larger_than_a_chunk_arrives_over_a_terminal(up, over_lines, monkeypatch):
    monkeypatch.setattr(over_lines._transport, "CHUNK", 1000)
    random = up.check("head -c 3500 /dev/urandom | base64 -w0 | tee /tmp/random")
    assert over_lines.run("cat /tmp/random").output == random


def test_what_runs_in_the_background_does_not_disturb(up):
    assert up.run("(sleep 1; echo late) & echo now").output == "now\n"
    assert up.run("sleep 2; echo next").output == "next\n"


def test_kernel_messages_are_on_the_console_and_not_in_the_output(up):
    result = up.run("for n in $(seq 50); do echo '<0>kernel says' >/dev/kmsg; echo $n; done")
    assert result.output == "".join(f"{n}\n" for n in range(1, 51))
    assert up.console().count("kernel says") == 50


def test_the_console_begins_with_the_first_message(up):
    assert "Booting Linux on physical CPU" in up.console().splitlines()[0]


def test_garbled_output_is_fetched_again(over_lines, monkeypatch):
    whole = over_lines._transport._shell
    answers = []

    def garble_once(text, timeout):
        lines = whole(text, timeout)
        answers.append(lines)
        return lines if len(answers) > 1 else [*lines[:1], "[ 1.0] the kernel", *lines[1:]]

    monkeypatch.setattr(over_lines._transport, "_shell", garble_once)
    result = over_lines.run("echo one; exit 3")
    assert (result.output, result.status, len(answers)) == ("one\n", 3, 2)


@pytest.fixture
def console(up, monkeypatch):
    """Return the driver of a console, and the guest's end of it, which nobody reads."""
    ours, guests = socket.socketpair()
    with ours, guests:
        ours.setblocking(False)
        monkeypatch.setattr(up._emulator, "_clientsocket", ours)
        yield up._emulator, guests


def test_a_console_that_takes_no_input_ends_no_boot(console):
    """A guest that boots takes none, and labgrid presses Enter as long as it prints nothing."""
    driver, guests = console
    assert {driver._write(b"\n") for _ in range(10_000)} == {1}
    assert set(guests.recv(100_000)) == {ord("\n")}


def test_what_is_typed_waits_until_there_is_room(console, monkeypatch):
    driver, guests = console
    text, came = bytes(range(256)) * 10_000, b""
    with ThreadPoolExecutor() as pool:
        typed = pool.submit(driver._write, text)
        while len(came) < len(text):
            came += guests.recv(1_000_000)
        assert typed.result() == len(text)
    assert came == text
    monkeypatch.setattr(emulator, "WRITE_SECONDS", 0.1)
    with pytest.raises(TIMEOUT, match="takes no input"):
        driver._write(text)


def test_orphans_are_reaped(up):
    up.check("for n in 1 2 3; do (sleep 0.1 &) ; done; sleep 0.5")
    assert up.run("ps -eo stat= | busybox grep -c ^Z").output == "0\n"


def test_a_healthy_machine_has_no_warnings(up):
    assert up.warnings() == ""


def test_a_warning_is_reported(options):
    with boot(options) as machine:
        machine.check("echo 'WARNING: CPU: 0 PID: 1 at mm/x.c:1 f+0x1/0x2' >/dev/kmsg")
        assert "mm/x.c:1" in machine.warnings()


DYING_CPU = (
    "------------[ cut here ]------------",
    "Dying CPU not properly vacated!",
    "---[ end trace 0000000000000000 ]---",
)


@pytest.mark.full
def test_what_the_base_says_of_cpus_that_go_is_left_out_on_request_alone(options):
    with boot(options) as machine:
        # The kernel makes one message of each write.
        for line in DYING_CPU:
            machine.check(f"echo '{line}' >/dev/kmsg")
        machine.check("echo 512 >/proc/sys/kernel/tainted")
        assert "Dying CPU" in machine.warnings()
        assert machine.warnings(klog.without_dying_cpus) == ""
        machine.check("echo 32 >/proc/sys/kernel/tainted")
        assert machine.warnings(klog.without_dying_cpus) == "the kernel is tainted: bad page"


NO_STACK = """\
[ 1.1] kthreadd: vmalloc error: size 0, failed to allocate pages, mode:0xdc2(GFP_KERNEL)
[ 1.2] CPU: 0 UID: 0 PID: 2 Comm: kthreadd Not tainted 6.12.117 #13
[ 1.3] Call trace:
[ 1.4]  copy_process+0x268/0x15a8
[ 1.5] Mem-Info:
[ 1.6] active_anon:4 inactive_anon:62 isolated_anon:0
"""


def test_a_kernel_thread_without_memory_is_left_out_on_request_alone():
    assert "copy_process" in klog.splats(NO_STACK)
    assert klog.splats(klog.without_failed_threads(NO_STACK)) == ""
    another = NO_STACK.replace("kthreadd:", "sh:")
    assert klog.without_failed_threads(another) == another
    late = klog.without_failed_threads(f"{NO_STACK}[ 1.7] BUG: another\n")
    assert klog.splats(late) == "[ 1.7] BUG: another"


INJECTED = """\
[ 1.1] FAULT_INJECTION: forcing a failure.
[ 1.1] name fail_cpu_pause, interval 1, probability 100, space 0, times 12
[ 1.1] CPU: 0 UID: 0 PID: 9 Comm: kworker/u8:0 Tainted: G        W          6.12.117 #13
[ 1.1] Tainted: [W]=WARN
[ 1.1] Hardware name: linux,dummy-virt (DT)
[ 1.1] Workqueue: linear_map_fold fold_work_fn
[ 1.1] Call trace:
[ 1.1]  should_fail_ex+0x1cc/0x1f0
[ 1.1]  ret_from_fork+0x10/0x20
"""
LOCKDEP = """\
[ 1.2] ======================================================
[ 1.2] WARNING: possible circular locking dependency detected
[ 1.2] 6.12.117 #13 Not tainted
[ 1.2] ------------------------------------------------------
[ 1.2] kworker/u8:0/9 is trying to acquire lock:
[ 1.2] Call trace:
[ 1.2]  lock_acquire+0x10/0x20
"""


def test_injected_faults_are_left_out_on_request_and_no_report_with_them():
    assert "should_fail_ex" in klog.splats(INJECTED)
    assert klog.without_injected_faults(f"{INJECTED}{INJECTED}[ 1.3] on\n") == "[ 1.3] on\n"
    for log in (f"{INJECTED}{LOCKDEP}", f"{LOCKDEP}{INJECTED}"):
        assert klog.without_injected_faults(log) == LOCKDEP
    # Another CPU reports something amid it.
    name, trace = INJECTED.split("[ 1.1] CPU:")
    amid = klog.without_injected_faults(f"{name}{LOCKDEP}[ 1.1] CPU:{trace}")
    assert "circular locking" in klog.splats(amid)
    # Without a trace it is no report, nor does it hide that of another one.
    alone = name + LOCKDEP
    assert klog.without_injected_faults(alone) == alone


def test_a_taint_without_its_report_is_named(options):
    with boot(options) as machine:
        machine.check("echo 512 >/proc/sys/kernel/tainted")
        assert "warning" in machine.warnings()


@pytest.mark.full
def test_a_report_that_the_kernel_has_overwritten_is_given(options):
    fill = """
    echo on >/proc/sys/kernel/printk_devkmsg
    line=$(printf '%0900d' 0)
    for n in $(seq 500); do echo "$line"; done >/dev/kmsg
    """
    with boot(options) as machine:
        # It leaves no taint.
        machine.check("echo 'INFO: possible recursive locking detected' >/dev/kmsg")
        machine.check(fill)
        assert "recursive locking" not in machine.check("dmesg")
        assert "recursive locking" in machine.warnings()
        # What was cleared before records were lost is not held against what came later.
        machine.check("dmesg -c >/dev/null; echo 'all is well' >/dev/kmsg")
        assert machine.warnings() == ""


@pytest.mark.full
def test_a_place_is_only_blamed_for_what_happens_while_we_are_there(options):
    with boot(options) as machine:
        machine.check("echo 'BUG: old' >/dev/kmsg; echo 512 >/proc/sys/kernel/tainted")
        place = Machine(machine._shell)
        assert place.fixed
        assert place.warnings() == ""
        machine.check("echo 'BUG: new' >/dev/kmsg")
        assert "new" in place.warnings()


def test_what_a_place_does_not_meet_is_told(over_lines, options):
    assert over_lines.unmet(options) == []
    assert over_lines.unmet(replace(options, single_threaded=True, smp=1)) == []
    assert over_lines.unmet(replace(options, append="panic=-1 nokaslr")) == ["append=nokaslr"]
    asked = replace(options, cpu="a64fx", smp=64, memory="100G", icount=True)
    assert over_lines.unmet(asked) == ["cpu=a64fx", "icount=True", "smp=64", "memory=100G"]


def test_a_panic_is_told_with_the_console(options):
    with boot(options) as machine:
        start = time.monotonic()
        with pytest.raises(PagewrightError, match="panic: sysrq triggered crash") as caught:
            machine.run("echo before >/dev/kmsg; echo c >/proc/sysrq-trigger")
        assert time.monotonic() - start < 30
        assert "before" in caught.value.details
        assert "Call trace" in caught.value.details
        with pytest.raises(PagewrightError, match="failed before"):
            machine.run("true")


def test_a_hang_is_told_and_the_machine_given_up(options):
    with boot(options) as machine:
        with pytest.raises(PagewrightError, match=r"no answer within 2 s while running: sleep 60"):
            machine.run("sleep 60", timeout=2)
        assert machine.broken


def test_the_end_of_qemu_is_told(options):
    with (
        boot(options) as machine,
        pytest.raises(PagewrightError, match="QEMU exited with status 0"),
    ):
        machine.run("busybox reboot -f")


def test_a_kernel_that_finds_no_root_is_told(options):
    with (
        pytest.raises(PagewrightError, match=r"while booting: panic: .*init"),
        boot(replace(options, append="init=/nowhere")),
    ):
        pass


def test_what_qemu_refuses_is_told(options):
    with (
        pytest.raises(PagewrightError, match=r"(?s)QEMU exited .*no-such-cpu"),
        boot(replace(options, cpu="no-such-cpu")),
    ):
        pass


def test_a_missing_image_is_told(options):
    with (
        pytest.raises(PagewrightError, match="no kernel"),
        boot(replace(options, kernel=Path("x"))),
    ):
        pass


def test_the_overlay_is_laid_over_the_root(options, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hello").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "bin" / "hello").chmod(0o755)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "hostname").write_text("over\n")
    with boot(replace(options, overlay=tmp_path)) as machine:
        assert machine.check("hello; cat /etc/hostname") == "hello\nover"
        # What the root has under a link stays there.
        assert machine.check("readlink /bin; stat -c %U /usr/bin/hello") == "usr/bin\nroot"


@pytest.mark.full
def test_the_root_is_as_it_was_at_the_next_boot(options):
    for _ in range(2):
        with boot(options) as machine:
            machine.check("[ ! -e /left ] && touch /left && sync")


@pytest.mark.full
def test_memory_may_exceed_the_hosts(options):
    with boot(replace(options, memory="64G")) as machine:
        assert machine.meminfo()["MemTotal"] > 60 << 20


@pytest.mark.full
def test_options_reach_the_machine(options):
    asked = replace(
        options, cpu="max,midr=0xc00fac30", smp=3, append="test.word=1", single_threaded=True
    )
    with boot(asked) as machine:
        assert machine.check("nproc") == "3"
        assert "test.word=1" in machine.check("cat /proc/cmdline").split()
        midr = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1"
        assert machine.check(f"cat {midr}") == "0x00000000c00fac30"


def test_counted_instructions_repeat(options):
    def seconds_until_all_cpus_run():
        with boot(replace(options, icount=True, smp=1)) as machine:
            return re.search(r"\[ *([\d.]+)\] SMP: Total", machine.console())[1]

    assert seconds_until_all_cpus_run() == seconds_until_all_cpus_run()


@pytest.mark.full
def test_two_machines_run_at_once(options):
    with boot(options) as one, boot(options) as two:
        one.check("echo one >/tmp/name")
        two.check("echo two >/tmp/name")
        assert (one.check("cat /tmp/name"), two.check("cat /tmp/name")) == ("one", "two")


def test_an_exception_leaves_nothing_running(options):
    before = set(emulators())
    with pytest.raises(ZeroDivisionError), boot(options) as machine:
        machine.check("true")
        directory = machine._directory
        output = machine._transport._file
        assert len(set(emulators()) - before) == 1
        raise ZeroDivisionError
    assert set(emulators()) == before
    assert output.closed
    assert not directory.exists()


CHILD = """
import sys
from pathlib import Path
from pagewright.machine.boot import boot
from pagewright.machine.options import MachineOptions

with boot(MachineOptions(Path(sys.argv[1]), Path(sys.argv[2]))) as machine:
    print("up", flush=True)
    machine.run("sleep 60")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_nothing_running(options, number, tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, options.kernel, options.rootfs],
        # A process that is killed leaves its files; here, where they do no harm.
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout.readline() == b"up\n"
    (emulator,) = emulators(child.pid)
    child.send_signal(number)
    child.wait(timeout=30)
    child.stdout.close()
    for _ in range(50):
        if not Path(f"/proc/{emulator}").exists():
            return
        time.sleep(0.1)
    pytest.fail("QEMU is still there")


OOPS = """\
[    1.0] Unable to handle kernel NULL pointer dereference at virtual address 0000000000000000
[    1.1] Internal error: Oops: 0000000096000044 [#1] PREEMPT SMP
[    1.2] Kernel panic - not syncing: Oops: Fatal exception
"""


def test_the_cause_of_an_oops_is_its_first_line():
    assert klog.cause_of_death(OOPS).startswith("oops: Unable to handle kernel NULL pointer")
    assert klog.cause_of_death("[ 1.0] Run /init as init process") == ""


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CPU: 0 PID: 1 at mm/vmalloc.c:1 f+0x1/0x2",
        "WARNING: possible circular locking dependency detected",
        "WARNING: suspicious RCU usage",
        "BUG: sleeping function called from invalid context at mm/x.c:1",
        "BUG: KASAN: slab-out-of-bounds in f+0x1/0x2",
        "BUG: Bad page state in process insmod  pfn:1",
        "INFO: possible recursive locking detected",
        "INFO: task insmod:1 blocked for more than 120 seconds.",
        "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "Call trace:",
        "../tree/mm/memory.c:123: bad pmd 00000000deadbeef",
        "mm/pgtable-generic.c:48: bad pud 0000000000000001.",
        "EXT4-fs error (device vda): ext4_lookup:1: inode #2",
    ],
)
def test_a_report_is_recognised_up_to_its_end(line):
    log = f"[ 0.9] fine\n[ 1.0] {line}\n[ 1.1]  f+0x1/0x2\n[ 1.2] ---[ end trace 0 ]---\n[ 1.3] on"
    assert klog.splats(log) == "\n".join(log.splitlines()[1:4])


def test_a_warning_is_given_with_what_it_is_about():
    log = (
        "[ 0.9] fine\n[ 1.0] ------------[ cut here ]------------\n"
        "[ 1.0] the third wheel is loose\n[ 1.0] WARNING: CPU: 0 PID: 1 at cart.c:3 f+0x1/0x2\n"
        "[ 1.2] ---[ end trace 0 ]---\n[ 1.3] on"
    )
    assert klog.splats(log) == "\n".join(log.splitlines()[1:5])


def test_data_races_are_told_by_the_functions_that_have_them():
    line = "=" * 66
    races = (
        f"[ 1.0] {line}\n[ 1.0] BUG: KCSAN: data-race in a_writer+0x8/0x20 / a_reader+0x4/0x10\n"
        f"[ 1.0] \n[ 1.0] write to 0x1 of 8 bytes by task 1 on cpu 0:\n[ 1.0] {line}\n"
        f"[ 2.0] {line}\n[ 2.0] BUG: KCSAN: data-race in alone+0x8/0x20\n[ 2.0] \n[ 2.0] {line}\n"
    )
    log = f"{races}[ 3.0] BUG: sleeping function called\n"
    assert set(klog.races(log)) == {frozenset({"a_writer", "a_reader"}), frozenset({"alone"})}
    assert "write to" in klog.races(log)[frozenset({"a_writer", "a_reader"})]
    assert "KCSAN" in klog.splats(log)
    left = klog.splats(klog.without_races(log))
    assert left == "[ 3.0] BUG: sleeping function called"


SHOWN = "[    1.000002] on\n[    1.000003] off"


@pytest.mark.parametrize(
    ("log", "first", "lacks"),
    [
        ("[    0.000000] Booting Linux", "6,0,0,-;Booting Linux", False),
        # Cleared, and nothing or something was said since.
        ("", "6,0,0,-;Booting Linux", False),
        (SHOWN, "6,0,0,-;Booting Linux", False),
        # Overwritten: as far as is shown, farther since then, and only what was cleared before.
        (SHOWN, "6,41,1000002,-;on", True),
        (SHOWN, "6,42,1000003,-,caller=T1;off", True),
        (SHOWN, "6,40,1000001,-;cleared", False),
        ("", "6,40,1000001,-;cleared", False),
        # Overwritten while it was read.
        (SHOWN, "", True),
    ],
)
def test_a_log_that_lacks_records_is_told_from_one_that_was_cleared(log, first, lacks):
    assert klog.lacks_records(log, first) == lacks


def test_a_console_has_what_the_last_kernel_said():
    boots = "[ 0.0] Booting Linux on physical CPU 0x0\n[ 1.0] BUG: old\n"
    assert klog.splats(klog.since_boot(boots)) == "[ 1.0] BUG: old"
    assert klog.splats(klog.since_boot(f"{boots}[ 0.0] Booting Linux on physical CPU 0\n")) == ""
    assert klog.since_boot("no such line") == "no such line"


@pytest.mark.parametrize(
    "line", ["kasan: KernelAddressSanitizer initialized (generic)", "kunit: disabled", "bug"]
)
def test_ordinary_messages_are_no_reports(line):
    assert klog.splats(f"[ 1.0] {line}") == ""
