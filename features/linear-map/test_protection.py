"""What the linear map must not give access to, it does not."""

from __future__ import annotations

import pytest

from pagewright.guest import programs

TESTS = programs.path("linear-map")

# Writes to what the kernel image holds read-only, and calls of what is data; each ends the process
# that tries, in this function or one that it has called.
FORBIDDEN = {
    "WRITE_RO": "lkdtm_WRITE_RO",
    "WRITE_RO_AFTER_INIT": "lkdtm_WRITE_RO_AFTER_INIT",
    "WRITE_KERN": "lkdtm_WRITE_KERN",
    "EXEC_DATA": "execute_location",
    "EXEC_KMALLOC": "execute_location",
}

builds = pytest.mark.parametrize(
    "build", ["patched-4k", pytest.param("base-4k", marks=pytest.mark.full)]
)


@builds
@pytest.mark.parametrize("memory", ["1G", pytest.param("3G", marks=pytest.mark.full)])
def test_protected_pages_are_out_of_reach(blocks, guest_program, build, memory):
    guest_program(blocks(build, memory=memory), f"{TESTS}/protection", may_skip=())


@builds
def test_forbidden_accesses_fault(own_blocks, subtests, build):
    """Also while there are modules, whose aliases have been split off."""
    place = own_blocks(build)
    place.check("modprobe veth && echo 0 >/proc/sys/kernel/panic_on_oops")
    for crash, function in FORBIDDEN.items():
        with subtests.test(crash):
            place.check("dmesg -C")
            result = place.run(f"(echo {crash} >/sys/kernel/debug/provoke-crash/DIRECT)")
            assert result.status != 0
            log = place.check("dmesg")
            assert "Unable to handle kernel" in log
            assert f"{function}+0x" in log
