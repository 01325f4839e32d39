"""Ctrl-C unwinds once, in order."""

from __future__ import annotations

import signal

import pytest

from trimtab.ui.interrupts import interruptible, uninterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_and_a_second_one_does_not_disturb_that(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    done = []

    def work() -> None:
        with interruptible():
            try:
                signal.raise_signal(number)
                done.append("what was interrupted")
            finally:
                signal.raise_signal(number)
                done.append("cleaning up")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["cleaning up"]
    assert signal.getsignal(number) == before


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_waits_for_the_end_of_what_must_not_be_torn() -> None:
    done = []

    def work() -> None:
        with interruptible(), uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
