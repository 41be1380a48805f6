"""The worker's beginning: from its first moment on it ends at once when its server does.

Run as `python -m fedserver.worker.lifeline FD`. Importing torch takes seconds in which nobody listens to the
socket; a server that is killed meanwhile would leave a process behind.
"""

from __future__ import annotations

import os
import select
import sys
import threading


def end_with_server(connection: int) -> None:
    """Ends this process as soon as the other end of a socket is closed, however that happens."""
    threading.Thread(target=_wait_for_the_end, args=(connection,), daemon=True).start()


def _wait_for_the_end(connection: int) -> None:
    server = select.poll()
    server.register(connection, 0)  # A hang-up is told in any case; what is to be read is not for here.
    server.poll()
    os._exit(0)


if __name__ == "__main__":
    end_with_server(int(sys.argv[1]))
    try:
        from fedserver.worker.__main__ import main
    except ImportError as error:
        from fedserver.worker.unable import tell

        tell(int(sys.argv[1]), error)
    else:
        main()
