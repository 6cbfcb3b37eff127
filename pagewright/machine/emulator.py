"""labgrid's QEMUDriver, made to notice when QEMU ends and to leave nothing behind."""

from __future__ import annotations

import select
import subprocess
import time
from pathlib import Path

import attr
from labgrid.driver.qemudriver import QEMUDriver
from labgrid.factory import target_factory
from pexpect import EOF, TIMEOUT  # type: ignore[import-untyped]

# QEMU connects to its socket at once, or has found fault with its command line.
START_SECONDS = 20

# A guest that runs takes what is typed at once, if its host is not very busy.
WRITE_SECONDS = 60

_GATHER_SECONDS = 0.005

# In a session of its own, so that Ctrl-C reaches us alone and we end it; killed
# with the thread that started it, so that even our own death leaves nothing.
_WRAPPER = ["sh", "-c", 'exec setsid setpriv --pdeathsig KILL -- "$@" 2>"$0"']


@target_factory.reg_driver
@attr.s(eq=False)
class EmulatorDriver(QEMUDriver):  # type: ignore[misc]
    """A QEMUDriver whose console ends with QEMU, and which reads it quickly.

    Args:
        stderr: file that takes what QEMU itself prints.
    """

    stderr: str = attr.ib(default="/dev/null", validator=attr.validators.instance_of(str))

    def on_activate(self) -> None:
        """Prepare the command line; `on` starts it."""
        super().on_activate()
        self._cmd[:0] = [*_WRAPPER, self.stderr]
        self._socket.settimeout(START_SECONDS)

    def off(self) -> None:
        """End QEMU, in whatever state it is; its disks are snapshots."""
        self.status = 0
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child: subprocess.Popen[bytes] | None = None

    def exit_status(self, timeout: float = 5) -> int | None:
        """Return QEMU's exit status, waiting a little for it; None while it runs."""
        if self._child is None:
            return None
        try:
            status: int = self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return status

    def messages(self) -> str:
        """Return what QEMU itself printed."""
        path = Path(self.stderr)
        return path.read_text(errors="replace").strip() if path.is_file() else ""

    def _read(self, size: int = 1, timeout: float = 10, max_size: int | None = None) -> bytes:
        """Read what is there; raise EOF when QEMU has closed the console."""
        ready, _, _ = select.select([self._clientsocket], [], [], timeout)
        if not ready:
            raise TIMEOUT(f"Timeout of {timeout:.2f} seconds exceeded")
        # The guest writes a few bytes at a time, and each read of ours has all
        # that came before searched again: let some more arrive.
        time.sleep(_GATHER_SECONDS)
        try:
            data: bytes = self._clientsocket.recv(max_size or 1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            raise EOF("QEMU closed the console")
        return data

    def _write(self, data: bytes) -> int:
        """Write all of it, waiting until QEMU takes it.

        A guest that boots takes nothing, and labgrid presses Enter whenever its console is silent
        for long. Once the socket is full there are enough of these.
        """
        enter, sent = data == b"\n", 0
        while sent < len(data):
            _, ready, _ = select.select([], [self._clientsocket], [], 0 if enter else WRITE_SECONDS)
            if ready:
                sent += self._clientsocket.send(data[sent:])
            elif enter:
                break
            else:
                raise TIMEOUT(f"the console takes no input within {WRITE_SECONDS} s")
        return len(data)
