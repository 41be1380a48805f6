"""Work in a thread: however it is cancelled, it ends, and nothing but it does."""

from __future__ import annotations

import threading

import pytest

from common.errors import CancelledError
from common.processes.background import Background


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_is_cancelled_while_it_starts_threads_ends_and_they_do_not() -> None:
    """As a gRPC channel does with every call."""

    def work(begun: threading.Event) -> None:
        while True:
            thread = threading.Thread(target=begun.set)
            thread.start()
            thread.join()

    for _ in range(100):
        begun = threading.Event()
        background = Background("the work", lambda begun=begun: work(begun))  # type: ignore[misc]
        assert begun.wait(60)
        background.cancel()
        with pytest.raises(CancelledError, match="the work was cancelled"):
            background.wait(10)


def test_what_has_ended_cannot_be_cancelled_any_more() -> None:
    background = Background("the work", lambda: 3)
    assert background.wait(60) == 3
    background.cancel()
    background.close()
    assert background.wait(60) == 3
