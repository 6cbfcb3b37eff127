"""Stop and run single virtual CPUs of a guest, as a host does that has too few for all."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from pagewright.host.errors import GuestDiedError

# How long QEMU may take to answer.
_TIMEOUT_SECONDS = 30
_STOP_ALL = b"\x03"


def arguments(path: Path) -> tuple[str, ...]:
    """Return the arguments for QEMU with which it listens for VirtualCpus at a socket."""
    return ("-gdb", f"unix:{path},server=on,wait=off")


class VirtualCpus:
    """A guest's CPUs, by the protocol with which debuggers talk to QEMU.

    It stops all of them when it connects, and has all of them run when it is closed.
    """

    def __init__(self, path: Path) -> None:
        """Connect to the socket of a guest that was started with arguments()."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_TIMEOUT_SECONDS)
        self._socket.connect(str(path))
        self._received = b""
        self._stopped = True
        self._ask("?")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Have all CPUs run, unless the guest has died."""
        with self._socket, suppress(ConnectionError, GuestDiedError):
            self._stop()
            self._ask("D")

    def run(self, cpus: Iterable[int]) -> None:
        """Have these CPUs run, by their number, and no others.

        Raises:
            GuestDiedError: QEMU has ended.
        """
        self._stop()
        # A debugger's numbers begin with 1.
        self._send("vCont" + "".join(f";c:{cpu + 1:x}" for cpu in cpus))
        self._stopped = False

    def run_until(self, address: int) -> None:
        """Have all CPUs run until one is about to execute what is at an address.

        All of them are stopped then.

        Raises:
            GuestDiedError: QEMU has ended.
            TimeoutError: no CPU comes there in half a minute.
        """
        with self.running_until(address):
            pass

    @contextmanager
    def running_until(self, address: int) -> Iterator[None]:
        """Do what has a CPU come to an address, while all CPUs run; see run_until()."""
        self._stop()
        self._ask(f"Z1,{address:x},4")
        self._send("c")
        yield
        # The answer comes when they have stopped.
        self._answer()
        self._ask(f"z1,{address:x},4")

    def _stop(self) -> None:
        if not self._stopped:
            self._socket.sendall(_STOP_ALL)
            self._answer()
            self._stopped = True

    def _send(self, text: str) -> None:
        self._socket.sendall(f"${text}#{sum(text.encode()) % 256:02x}".encode())

    def _ask(self, text: str) -> None:
        self._send(text)
        self._answer()

    def _answer(self) -> None:
        """Wait for an answer, which ends with a checksum of two digits, and acknowledge it."""
        while (end := self._received.find(b"#")) < 0 or len(self._received) < end + 3:
            part = self._socket.recv(4096)
            if not part:
                raise GuestDiedError("QEMU has closed the connection to its debugger")
            self._received += part
        self._received = self._received[end + 3 :]
        self._socket.sendall(b"+")
