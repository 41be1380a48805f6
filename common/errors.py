"""Everything that can go wrong, as one tree.

FedError                    exit code 1
  ConfigError               exit code 2: a setting or argument that cannot work
  DataError                 a data set, partition or capture that cannot be used
  StateError                files on disk that are damaged, foreign or in use
    DiskError               files that cannot be written now
    LaterReleaseError       files that a later release has written
  WireError                 bytes from a peer that break the contract (names a fault and a tensor)
    DamagedError            a message that did not come as it was sent
  CertificateError          a certificate that cannot be read or does not say whose it is
  AccessError               a peer that may not do what it asks for
  JoinError                 the server will not seat this client
    SupersededError         another client, or another stream, of this name took over
  UnknownClientError        a client that has not joined
  WrongRunError             a peer of another run, protocol version or model
  RefusedError              a demand of a server that this client's site does not allow
  UnavailableError          no server answers (yet)
    NoConnectionError       not even a connection comes about
    TooLargeError           a message that does not get through because of its size
    OverdueError            a call without an answer from a server that answers others
  RunError                  the run itself cannot go on
  CancelledError            the program that started it has ended it
  DivergedError             exit code 4: training left the finite numbers
  LeftOutError              exit code 3: a run is finished, but somebody who was to take part is not in it

A message is one line: what was expected, what came, what to do.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from pathlib import Path
from traceback import extract_tb

MOST_SHOWN = 4000
"""Characters of an error."""


class ExitCode(IntEnum):
    """How every command ends; `fedlab.documents.exit_codes` says what each number means for which of them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    LEFT_OUT = 3
    DIVERGED = 4
    INTERRUPTED = 130


class FedError(Exception):
    """Root of all errors that a user may see."""

    exit_code = ExitCode.FAILED

    def __str__(self) -> str:
        """One line, whatever words of a peer are in it, and however many."""
        return printable(super().__str__(), MOST_SHOWN)


def printable(text: str, most: int | None = None) -> str:
    """A peer's words, fit for one line: what cannot be printed is a space, what goes beyond `most` is cut."""
    return "".join(character if character.isprintable() else " " for character in text[:most])


def place_in_plugin(error: BaseException) -> str:
    """Where in a plug-in's own code, which is below the current directory, an error was raised."""
    here = Path.cwd()
    for frame in reversed(extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(here) and "site-packages" not in path.parts:
            return f" in {path.relative_to(here)}, line {frame.lineno}"
    return ""


class ConfigError(FedError):
    """A setting or argument that cannot work."""

    exit_code = ExitCode.USAGE


class DataError(FedError):
    """A data set, partition or capture that cannot be used."""


class StateError(FedError):
    """Files on disk that are damaged, foreign or in use."""


class DiskError(StateError):
    """Files that cannot be written now; nothing is lost, and a restart goes on."""


class LaterReleaseError(StateError):
    """Files on disk in a format that this release does not know yet; nothing is wrong with them."""


class Fault(StrEnum):
    """What is wrong with an update; the names are those of `PushUpdateReply.Fault`."""

    WRONG_SHAPE = "WRONG_SHAPE"
    WRONG_DTYPE = "WRONG_DTYPE"
    UNKNOWN_TENSOR = "UNKNOWN_TENSOR"
    MISSING_TENSOR = "MISSING_TENSOR"
    NOT_FINITE = "NOT_FINITE"
    BAD_CHECKSUM = "BAD_CHECKSUM"
    WRONG_OFFSET = "WRONG_OFFSET"
    TOO_MANY_BYTES = "TOO_MANY_BYTES"
    TOO_FEW_BYTES = "TOO_FEW_BYTES"
    WRONG_ROUND = "WRONG_ROUND"
    WRONG_MODEL = "WRONG_MODEL"
    MALFORMED = "MALFORMED"
    """Bytes that are no message of the contract: a bad link may have damaged them."""
    BROKEN_CONTRACT = "BROKEN_CONTRACT"
    """A message that came as it was sent and says what the contract does not allow."""


class WireError(FedError):
    """Bytes from a peer that break the contract."""

    def __init__(self, fault: Fault, message: str, tensor: str = "") -> None:
        super().__init__(f"{tensor}: {message}" if tensor else message)
        self.fault = fault
        self.tensor = tensor

    @classmethod
    def malformed(cls, message: str) -> WireError:
        """Bytes that are not of the agreed form at all."""
        return cls(Fault.MALFORMED, message)

    @classmethod
    def broken_contract(cls, message: str, tensor: str = "") -> WireError:
        """A message of the agreed form that says what it must not say."""
        return cls(Fault.BROKEN_CONTRACT, message, tensor)


class DamagedError(WireError):
    """A message that is none, or whose checksum is wrong: a bad link may have damaged it."""


class CertificateError(FedError):
    """A certificate that cannot be read or does not say whose it is."""


class AccessError(FedError):
    """A peer that has not shown who it is, is not admitted any more, or speaks for somebody else."""

    def __init__(self, message: str, credential: str = "") -> None:
        """`credential` tells which one a peer has shown that was good once."""
        super().__init__(message)
        self.credential = credential


class JoinError(FedError):
    """The server will not seat this client."""


class SupersededError(JoinError):
    """Another client joined under the same name, or another stream goes on with its update."""


class UnknownClientError(FedError):
    """A client that has not joined this run."""


class WrongRunError(FedError):
    """A peer that belongs to another run, protocol version or model."""


class RefusedError(FedError):
    """A demand of a server that this client's site does not allow."""

    def __init__(self, message: str, rule: str = "") -> None:
        """`rule` is the one that forbids it, by its name in site.toml or the flag's."""
        super().__init__(f"rule {rule}: {message}" if rule else message)
        self.rule = rule


class UnavailableError(FedError):
    """No server answers."""


class NoConnectionError(UnavailableError):
    """No connection to the server comes about; `common.access.diagnosis` may know why."""


class TooLargeError(UnavailableError):
    """A message that does not get through because of its size, or because a bad link changed its length."""


class OverdueError(UnavailableError):
    """A call without an answer from a server that answers others: damaged bytes may have lost it."""


class RunError(FedError):
    """The run cannot go on."""


class CancelledError(FedError):
    """The program that started something has ended it."""


class DivergedError(FedError):
    """Training left the finite numbers: the same settings would do so again."""

    exit_code = ExitCode.DIVERGED


class LeftOutError(FedError):
    """A run is finished, but went on without somebody whom no setting leaves out."""

    exit_code = ExitCode.LEFT_OUT
