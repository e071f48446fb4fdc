"""Where peers find each other: every runner listens once, for its life, and a generation's members meet at slot 0's.

Meeting ends with connections between all members, or with the slots that were not met. What is said over the
connections is left to `peers.py`; who may be a member was decided by claims, so nothing here fences anybody.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from ..errors import DeviceError, LaneBrokenError
from .addresses import host_and_port

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torch.distributed import Store  # type: ignore[attr-defined]

    from .messages import Run

CONNECT_SECONDS = 3.0
"""To reach the place of meeting: it listens before its address is known to anybody."""

STORE_SECONDS = 8.0
"""And to speak there: torch looks up the name of the address, and a name server that is silent costs 5 s."""

MEET_SECONDS = 10.0
"""For all to come: they start as soon as they see the last claim. And once more for the connections."""

ACCOUNT_SECONDS = 2.0
"""For the others to say that they too could not connect; whoever says nothing is lost."""

LOOK_SECONDS = 0.005


class Rendezvous:
    """A runner's place to be met at: a small key-value server of torch's in this process.

    Args:
        host: name or address of a network interface of this machine, as others know it.

    Raises:
        DeviceError: this host cannot be listened on.
    """

    def __init__(self, host: str) -> None:
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind, protocol)
            listener.bind(place)
            listener.listen(128)
        except OSError as error:
            raise DeviceError(f"this worker cannot listen on {host!r} (--address): {error.strerror}") from error
        port = listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._server: TCPStore | None = TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )  # fmt: skip

    def close(self) -> None:
        """Nobody is to meet here any more; it ends with the process, too."""
        self._server = None


class Meeting:
    """One member's way to the others of its generation.

    Args:
        job, run: which generation. host: see `Rendezvous`.
        over: whether nobody wants to meet any more.
    """

    def __init__(self, job: str, run: Run, host: str, over: Callable[[], bool]) -> None:
        self._run, self._host, self._over = run, host, over
        self._prefix = f"{job}/{run.generation}/"
        self._others = [slot for slot in range(len(run.members)) if slot != run.slot]
        self.missing: tuple[int, ...] = (0,) if run.slot else ()
        """Slots that have not been met so far."""

    def connect(self) -> tuple[ProcessGroupGloo, Store]:
        """Meet, and make connections to all others.

        Raises:
            LaneBrokenError: names the slots that were not met.
        """
        run = self._run
        store = self._find()
        try:
            store.set(f"here/{run.slot}", "")
            self._await(store, ["here"], MEET_SECONDS, self._others)
        except RuntimeError as error:  # what torch raises for a store that is gone
            raise LaneBrokenError((0,), f"{self._named(0)} went away while peers were meeting: {error}") from error
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined] # noqa: SLF001 - no other way to a group
        options._timeout = timedelta(seconds=MEET_SECONDS)  # noqa: SLF001
        options._devices = [ProcessGroupGloo.create_device(hostname=self._host)]  # noqa: SLF001
        options._threads = 1  # noqa: SLF001 - for collectives, of which there are none
        try:
            group = ProcessGroupGloo(store, run.slot, len(run.members), options)
            store.set(f"formed/{run.slot}", "")
        except RuntimeError as error:
            raise self._not_formed(store, str(error)) from error
        return group, store

    def _find(self) -> Store:
        """The store at slot 0."""
        try:
            host, port = host_and_port(self._run.addresses[0])
            # It is refused at once where nobody listens any more, which TCPStore would try for long.
            socket.create_connection((host, port), CONNECT_SECONDS).close()
            timeout = timedelta(seconds=STORE_SECONDS)
            store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
        except (OSError, RuntimeError, ValueError) as error:  # ValueError: it is no address
            raise LaneBrokenError((0,), f"{self._named(0)} is not met at {self._run.addresses[0]}: {error}") from error
        return PrefixStore(self._prefix, store)

    def _await(self, store: Store, kinds: list[str], seconds: float, slots: Collection[int]) -> None:
        """Wait until each of these slots has said something of these kinds.

        Raises:
            LaneBrokenError: some have not, or nobody wants to know any more.
        """
        deadline = time.monotonic() + seconds
        self.missing = tuple(slots)
        while True:
            said = (slot for slot in self.missing if any(store.check([f"{kind}/{slot}"]) for kind in kinds))
            self.missing = tuple(sorted(set(self.missing) - set(said)))
            if not self.missing:
                return
            if self._over() or time.monotonic() > deadline:
                names = ", ".join(map(self._named, self.missing))
                raise LaneBrokenError(self.missing, f"not met within {seconds:.0f} s: {names}")
            time.sleep(LOOK_SECONDS)

    def _not_formed(self, store: Store, why: str) -> LaneBrokenError:
        """Connections could not be made: those who live come to know it too, and say so."""
        lost: tuple[int, ...] = ()
        with suppress(LaneBrokenError):
            try:
                store.set(f"failed/{self._run.slot}", "")
                self._await(store, ["formed", "failed"], ACCOUNT_SECONDS, self._others)
            except RuntimeError:
                lost = (0,)
        return LaneBrokenError(lost or self.missing, f"peers could not connect to each other: {why}")

    def _named(self, slot: int) -> str:
        return f"slot {slot} ({self._run.members[slot].worker})"
