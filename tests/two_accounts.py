"""Runs a server that keeps two accounts: python -m tests.two_accounts PROGRAM ARGUMENT...

The server knows what each message is, because it made it or has parsed it. Here a reader of bytes follows
every call besides, as one does for a capture, and the process says on how many messages the two agree.
"""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from types import TracebackType

from common.wire.messages import CallFollower, ClassifiedMessage
from fedserver.traffic.traffic import CountedCall, Traffic

Told = tuple[object, str, int, int]


class TwoAccounts:
    """Compares call by call."""

    def __init__(self) -> None:
        self.messages = 0
        self.kinds: defaultdict[str, int] = defaultdict(int)
        self._own: defaultdict[int, list[Told]] = defaultdict(list)
        self._read: defaultdict[int, list[Told]] = defaultdict(list)
        self._followers: dict[int, CallFollower] = {}

    def note(self, call: CountedCall, message: ClassifiedMessage) -> None:
        """Takes in a message as the server counts it."""
        read = self._read[call.number]
        follower = self._followers.setdefault(
            call.number, CallFollower(call.rpc, lambda message: read.append(_told(message)))
        )
        self._own[call.number].append(_told(message))
        follower.note(message.up, message.data, message.time_ns)
        self.kinds[f"{call.rpc} {message.content.kind}"] += 1

    def close(self, call: CountedCall) -> None:
        """Compares the accounts of a call that is over."""
        follower = self._followers.pop(call.number, None)
        if follower is not None:
            follower.close()
        own, read = self._own.pop(call.number, []), self._read.pop(call.number, [])
        if own != read:
            print(f"TWO ACCOUNTS of {call.rpc}: {own} {read}", flush=True)
        self.messages += len(own)


def _told(message: ClassifiedMessage) -> Told:
    return message.content, message.client, message.round, len(message.data)


def main() -> None:
    """Runs the program."""
    accounts = TwoAccounts()
    count, leave = Traffic.count, CountedCall.__exit__

    def counted(self: Traffic, call: CountedCall, message: ClassifiedMessage) -> None:
        accounts.note(call, message)
        count(self, call, message)

    def left(
        self: CountedCall,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self, kind, error, trace)
        accounts.close(self)

    Traffic.count, CountedCall.__exit__ = counted, left  # type: ignore[method-assign]
    program, sys.argv = sys.argv[1], sys.argv[1:]
    try:
        importlib.import_module(f"{program}.cli").main()
    finally:
        print(f"two accounts agree on {accounts.messages} messages: {dict(accounts.kinds)}", flush=True)


if __name__ == "__main__":
    main()
