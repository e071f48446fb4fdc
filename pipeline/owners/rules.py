"""When a worker that uses only what is spare keeps away from its device, and when it is back. Pure.

The owner is obeyed quickly and trusted slowly: what disturbs him must be seen for `notice` seconds before the worker
goes, and must not have been seen for `quiet` seconds before it is back. So it does not come and go with every command
that he types.
"""

from __future__ import annotations

import pwd
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, time

NOTICE_SECONDS = 0.2
"""Of two looks one after the other: a process that has only just gone is not worth a step."""

QUIET_SECONDS = 60.0

LOAD = 0.25
"""Share of the processors, or of a GPU's time, that others may use without being called busy."""

WINDOW = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})\s*")


@dataclass(slots=True)
class Patience:
    """Turns looks at a device into being away and being back.

    Args:
        notice, quiet: seconds; see above.
    """

    notice: float = NOTICE_SECONDS
    quiet: float = QUIET_SECONDS
    away: str = ""
    _since: float | None = field(default=None)
    _last: float = float("-inf")

    def expect(self, why: str, now: float, seconds: float) -> None:
        """Be away (`why`, for people) until so many seconds have passed in which nothing is seen."""
        self.away, self._last = why, now + seconds - self.quiet

    def look(self, why: str, now: float) -> str:
        """Why the worker is to be away; "" if it may work.

        Args:
            why: what of its owner's is seen on the device now; "" if nothing is. now: seconds, of any clock that only
                goes forward.
        """
        if why:
            self._since = now if self._since is None else self._since
            self._last = now
            if self.away or now - self._since >= self.notice:
                self.away = why
            return self.away
        self._since = None
        if self.away and now - self._last >= self.quiet:
            self.away = ""
        return self.away


@dataclass(frozen=True, slots=True)
class Hours:
    """Times of day in which a device may be used: `20:00-07:00`, or several of these with commas.

    Args:
        windows: minutes since midnight, from and until; of one that goes past midnight the second is the smaller one.
    """

    windows: tuple[tuple[int, int], ...]

    @staticmethod
    def parse(text: str) -> Hours:
        """Read what a user wrote.

        Raises:
            UserError: it is no list of such times.
        """
        windows = []
        for part in text.split(","):
            match = WINDOW.fullmatch(part)
            numbers = [int(number) for number in match.groups()] if match else []
            if not numbers or any(hour > 24 or minute > 59 or hour * 60 + minute > 24 * 60
                                  for hour, minute in (numbers[:2], numbers[2:])):  # fmt: skip
                raise UserError(f"--hours {text!r}: {part.strip()!r} is no time of day", "write it like 20:00-07:00")
            begin, end = numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]
            if begin == end:
                raise UserError(f"--hours {text!r}: {part.strip()!r} is empty", "leave --hours out to serve all day")
            windows.append((begin % (24 * 60), end))
        return Hours(tuple(windows))

    def why_not(self, at: time | datetime) -> str:
        """Why the device may not be used at this time of day; "" if it may."""
        now = at.hour * 60 + at.minute
        if any(begin <= now < end if begin < end else (now >= begin or now < end) for begin, end in self.windows):
            return ""
        return f"it serves {self} only"

    def __str__(self) -> str:
        return ", ".join(f"{a // 60:02}:{a % 60:02}-{b // 60:02}:{b % 60:02}" for a, b in self.windows)


def user_ids(text: str) -> frozenset[int]:
    """Ids of users by name, with commas between them.

    Raises:
        UserError: there is none of this name here.
    """
    found = set()
    for name in text.split(","):
        try:
            found.add(pwd.getpwnam(name.strip()).pw_uid)
        except KeyError:
            raise UserError(
                f"--owner {text!r}: there is no user {name.strip()!r} on this machine", "see `getent passwd`"
            ) from None
    return frozenset(found)


def first(reasons: Sequence[str]) -> str:
    """The first of these that is one."""
    return next((why for why in reasons if why), "")
