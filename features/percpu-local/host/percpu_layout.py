"""Where kernels with this feature have per-CPU data, for machines that tell addresses apart.

The constants are those of asm/percpu_local_layout.h, for pages of 4 KiB, a kernel for 52 bits of
addresses, and a CPU with 48.
"""

from __future__ import annotations

_VA_BITS_MIN = 48
_LOCAL_BIT = 1 << _VA_BITS_MIN - 3
_LOWER_START = (1 << 64) - (1 << _VA_BITS_MIN - 1)
_AREAS_START = _LOWER_START + _LOCAL_BIT // 4 * 3
_LOWER_END = _LOWER_START + _LOCAL_BIT

# The classes that a machine counts: one CPU's data at local addresses, and that of all CPUs in the
# areas that per_cpu_ptr() points into. Kernels without this feature have other things there.
LOCAL, AREAS = "percpu-local", "percpu-areas"
RANGES = {
    LOCAL: f"{_LOWER_START:x}-{_AREAS_START - 1:x}",
    AREAS: f"{_AREAS_START:x}-{_LOWER_END - 1:x}",
}
