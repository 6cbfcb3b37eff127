"""How a command gets into a guest and its output comes back, byte for byte.

Both transports hand lines of shell to a labgrid driver, and send the command
itself in base64, so that any text survives a terminal. They differ in how the
output returns:

- `Channel`, for our own QEMU: through a virtio port that QEMU writes to a file.
  Fast, and nothing else writes there. A program of the guest does all of it (see
  pagewright/guest/command.c), because each process costs an emulated machine 20 ms.
- `Lines`, for any place: as gzip in base64, through the driver. What the kernel
  prints into the middle of it on a shared console is noticed by the checksum. It
  asks for no more than a shell and common programs.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path

from pagewright.host.errors import MachineError

Shell = Callable[[str, float], list[str]]
"""Runs one line of shell within so many seconds and returns the lines of its answer."""

# A terminal takes lines of at most 4095 bytes; a longer command goes in pieces.
_PIECE = 3000
# The kernel takes single arguments of at most 128 KiB.
_COMMAND_BYTES = 96 * 1024

_MOVE_SECONDS = 60
_TRIES = 3

# Where what is on its way is kept; our init has made it, and it is in memory.
_DIRECTORY = "/run/command"
_BEGIN = f"exec 2>/dev/null; cd {_DIRECTORY}; "


class _Transport:
    """What both transports share: bringing the command in."""

    def __init__(self, shell: Shell) -> None:
        """Remember how the guest's shell is spoken to."""
        self._shell = shell

    def close(self) -> None:
        """Give up what the transport has open on this computer."""

    def _bring(self, command: str) -> str | None:
        """Bring a command into the guest.

        Returns:
            The command in base64 if it fits into a line of shell; otherwise nothing, and the
            guest has the base64 in the file IN.
        """
        code = command.encode()
        if len(code) > _COMMAND_BYTES:
            raise MachineError(f"a command of {len(code)} bytes is too long", "use an overlay")
        text = base64.b64encode(code).decode()
        if len(text) <= _PIECE:
            return text
        for start in range(0, len(text), _PIECE):
            redirect = ">>" if start else ">"
            piece = text[start : start + _PIECE]
            self._shell(f"echo {piece} {redirect}{_DIRECTORY}/in", _MOVE_SECONDS)
        return None


class Channel(_Transport):
    """Output comes back through a virtio port, which QEMU writes to a file."""

    # The driver gives the line to a shell of its own, which has nothing else to do.
    RUN = "exec /usr/sbin/run-command"

    def __init__(self, shell: Shell, file: Path) -> None:
        """Start at the end of the file."""
        super().__init__(shell)
        self._file = file.open("rb")
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def run(self, command: str, timeout: float) -> tuple[int, bytes]:
        """Run a command; return its status and its output."""
        text = self._bring(command)
        source = f"'{text}'" if text is not None else f"<{_DIRECTORY}/in"
        answer = self._shell(f"{self.RUN} {source}", timeout)
        try:
            status, size = map(int, answer[0].split())
        except (IndexError, ValueError):
            raise MachineError(
                f"the guest's shell gave no status after: {command[:200]}",
                "is there space left in its /run, and is everything it needs still mounted?",
                "\n".join(answer[:10]),
            ) from None
        return status, self._receive(size)

    def _receive(self, size: int) -> bytes:
        """Read so many bytes; the last of them may still be on their way."""
        parts: list[bytes] = []
        give_up = time.monotonic() + _MOVE_SECONDS
        while size and time.monotonic() < give_up:
            part = self._file.read(size)
            size -= len(part)
            parts.append(part)
            if not part:
                time.sleep(0.001)
        if size:
            raise MachineError(f"{size} bytes of a command's output did not arrive")
        return b"".join(parts)


class Lines(_Transport):
    """Output comes back in the answer of the driver, in chunks."""

    # labgrid reads a serial port over the network byte by byte, and searches the
    # whole answer at each.
    CHUNK = 8 * 1024

    # The command's output goes to a file first: what it leaves running in the
    # background may go on writing there without getting into a later output.
    RUN = _BEGIN + 'rm -f out; (c="$({source})"; cd; exec sh -c "$c") >out 2>&1 </dev/null; '

    def __init__(self, shell: Shell) -> None:
        """Prepare the guest, which need not be one that our init has prepared."""
        super().__init__(shell)
        self._shell(f"mkdir -p {_DIRECTORY}", _MOVE_SECONDS)

    def run(self, command: str, timeout: float) -> tuple[int, bytes]:
        """Run a command; return its status and its output."""
        pack = f"{{ echo $?; cat out; }} | gzip -1 >out.gz; rm -f out; {self._fetch(0)}"
        text = self._bring(command)
        source = f"echo {text} | base64 -d" if text is not None else "base64 -d in"
        answer = self._shell(self.RUN.format(source=source) + pack, timeout)
        for _ in range(_TRIES):
            try:
                status, _, output = self._unpack(answer).partition(b"\n")
                return int(status), output
            except (OSError, EOFError, ValueError):
                # Garbled on the way; the guest still has it.
                answer = self._shell(_BEGIN + self._fetch(0), _MOVE_SECONDS)
        raise MachineError(f"the output of this command came back garbled: {command[:200]}")

    def _fetch(self, chunk: int) -> str:
        """Return the shell text that prints the size of the whole, and a chunk."""
        return f"wc -c <out.gz; dd if=out.gz bs={self.CHUNK} skip={chunk} count=1 | base64"

    def _unpack(self, answer: list[str]) -> bytes:
        """Fetch the chunks after the first, and unpack the whole."""
        size, packed = self._parse(answer)
        for chunk in range(1, -(-size // self.CHUNK)):
            packed += self._parse(self._shell(_BEGIN + self._fetch(chunk), _MOVE_SECONDS))[1]
        if len(packed) != size:
            raise ValueError("incomplete")
        return gzip.decompress(packed)

    def _parse(self, answer: list[str]) -> tuple[int, bytes]:
        """Split an answer into the size of the whole and a chunk's bytes."""
        try:
            return int(answer[0]), base64.b64decode("".join(answer[1:]), validate=True)
        except (IndexError, binascii.Error) as error:
            raise ValueError("not what was asked for") from error
