"""Signals of a command in the foreground: once, twice, and once too often."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from easyscale.pipeline.interrupts import EXIT_CODE, Interrupts

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@BOTH
def test_a_signal_interrupts_and_the_old_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


@BOTH
def test_where_there_is_something_to_finish_the_first_is_noted_and_the_second_interrupts(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with Interrupts() as interrupts:
        with interrupts.gracefully("finishing"):
            assert not interrupts.stopping
            signal.raise_signal(number)
            assert interrupts.stopping
            assert capfd.readouterr().err == f"\n{number.name}: finishing\n"
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert interrupts.stopping


def test_afterwards_there_is_nothing_to_finish() -> None:
    with Interrupts() as interrupts:
        with interrupts.gracefully("finishing"):
            pass
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_one_more_while_cleaning_up_ends_the_process_at_once() -> None:
    program = (
        "import signal\n"
        "from easyscale.pipeline.interrupts import Interrupts\n"
        "with Interrupts():\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    finally:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "        print('not reached')\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_CODE, b"", b"")
