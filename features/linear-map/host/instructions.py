"""The guest program that counts the instructions of a command, and as `init=` those of the boot."""

from __future__ import annotations

# What it prints, and what it leaves out, is in guest/instructions.c.
COUNTER = "/usr/lib/tests/linear-map/instructions"
