"""A client that claims more examples than it has: python -m tests.boastful ARGUMENT... of fedclient."""

from __future__ import annotations

import sys

from fedclient.store.stored_update import Sender, StoredUpdate
from fedpvr.v1 import federation_pb2 as pb


def main() -> None:
    """Runs the client."""
    honest = StoredUpdate.header

    def header(self: StoredUpdate, sender: Sender) -> pb.UpdateHeader:
        found = honest(self, sender)
        found.examples += 1
        return found

    StoredUpdate.header = header  # type: ignore[method-assign]
    sys.argv[0] = "fedclient"
    from fedclient.cli import main as run

    run()


if __name__ == "__main__":
    main()
