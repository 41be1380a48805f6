"""Enrolment tokens, for federations that can do without certificates: a folder with two files per client.

NAME.token   the secret, for the client or operator; it can be removed here once it is handed over
NAME.json    what the server needs to recognise it: a SHA-256 of it, its end, whether it was revoked, and
             whether it is an operator's
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from common import atomic
from common.access.certificates import minute
from common.atomic import file_stamp
from common.errors import AccessError, ConfigError, StateError
from common.names import is_name, natural, require_name
from fedserver.keys.issued import CLIENT, DAYS, MAX_DAYS, OPERATOR, Issued

SECRET_BYTES = 32


@dataclass(frozen=True)
class Record:
    """What is known of a token."""

    sha256: str
    valid_from: datetime
    valid_until: datetime
    revoked: bool
    operator: bool = False

    @property
    def kind(self) -> str:
        """Whose it is."""
        return OPERATOR if self.operator else CLIENT

    def state(self, now: datetime) -> str:
        """valid, revoked or expired."""
        return "revoked" if self.revoked else "expired" if now > self.valid_until else "valid"


@dataclass(frozen=True)
class Holder:
    """Whose a token is."""

    name: str
    operator: bool


class Tokens:
    """Issues, recognises and revokes tokens."""

    def __init__(self, folder: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.folder = folder
        self._clock = clock
        self._known: dict[str, tuple[object, Record]] = {}
        """Records by name, each with the stamp of the file that it was read from."""

    def issue(self, name: str, days: int = DAYS, *, operator: bool = False, renew: bool = False) -> Issued:
        """Makes NAME.token; the token that this client or operator had is not valid any more."""
        require_name(name)
        if not 1 <= days <= MAX_DAYS:
            raise ConfigError(f"--days must be from 1 to {MAX_DAYS}, got {days}")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now, known = self._clock(), self._known_before(name, renew)
        if known is not None and known.state(now) == "valid":
            if known.operator != operator:
                raise ConfigError(f"{name!r} is already known as {known.kind}; choose another name")
            if not renew:
                until = minute(known.valid_until)
                raise ConfigError(f"{name!r} has a token until {until}; give --renew to replace it")
        token = f"{name}:{secrets.token_urlsafe(SECRET_BYTES)}"
        record = Record(_hash(token), now, now + timedelta(days=days), False, operator)
        atomic.write_bytes(self.folder / f"{name}.token", f"{token}\n".encode(), 0o600)
        self._write(name, record)
        return self._described(name, record)

    def _known_before(self, name: str, renew: bool) -> Record | None:
        """What is known of a name; a damaged record may be replaced."""
        try:
            return self._read(name)
        except StateError:
            if renew:
                return None
            raise

    def revoke(self, name: str) -> bool:
        """Makes a token invalid; returns whether it was valid before."""
        record = self._read(name) if is_name(name) else None
        if record is None:
            raise ConfigError(
                f"expected a name that has a token, got {name!r}; "
                f"see: fedserver tokens show --dir {self.folder}"
            )
        self._write(name, replace(record, revoked=True))
        return not record.revoked

    def show(self) -> list[Issued]:
        """Every token, by name."""
        names = sorted((path.stem for path in self.folder.glob("*.json") if is_name(path.stem)), key=natural)
        records = ((name, self._read(name)) for name in names)
        return [self._described(name, record) for name, record in records if record is not None]

    def holder_of(self, token: str) -> Holder:
        """Whom a token was issued to; raises unless it is valid. Any secret takes as long."""
        name = token.partition(":")[0]
        record = self._current(name) if is_name(name) else None
        expected = record.sha256 if record is not None else _hash("")
        if not hmac.compare_digest(_hash(token), expected) or record is None:
            raise AccessError("this token is not known here; ask for one: fedserver tokens issue NAME")
        state = record.state(self._clock())
        if state == "revoked":
            raise AccessError(f"the token of {name} was revoked", credential_of(token))
        if state == "expired":
            raise AccessError(
                f"the token of {name} expired on {minute(record.valid_until)}", credential_of(token)
            )
        return Holder(name, record.operator)

    def _described(self, name: str, record: Record) -> Issued:
        return Issued(
            name=name,
            kind=record.kind,
            serial=int(record.sha256[:16], 16),
            valid_from=record.valid_from,
            valid_until=record.valid_until,
            sans=(),
            state=record.state(self._clock()),
        )

    def _current(self, name: str) -> Record | None:
        """A record as it is on disk now, read again only if its file has changed: every call asks for one.

        Reading takes 40 us, so an event loop can do without a thread for it; asking for the stamp takes 3.
        """
        stamp, known = file_stamp(self.folder / f"{name}.json"), self._known.get(name)
        if known is None or known[0] != stamp:
            record = self._read(name)
            if record is None:
                return None
            known = self._known[name] = stamp, record
        return known[1]

    def _read(self, name: str) -> Record | None:
        path = self.folder / f"{name}.json"
        try:
            found = json.loads(path.read_text())
            start, end = (_moment(found[key]) for key in ("valid_from", "valid_until"))
            return Record(
                str(found["sha256"]), start, end, bool(found["revoked"]), found.get("operator") is True
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"{path} is damaged: {error!r}; issue a new token with --renew") from error

    def _write(self, name: str, record: Record) -> None:
        moments = {key: getattr(record, key).isoformat() for key in ("valid_from", "valid_until")}
        data = json.dumps(vars(record) | moments, indent=2).encode() + b"\n"
        atomic.write_bytes(self.folder / f"{name}.json", data, 0o600)


def _moment(text: str) -> datetime:
    """A point in time; without a time zone it would be none, and could not be compared with now."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return moment


def credential_of(token: str) -> str:
    """What may be said of a token without giving it away."""
    return f"token {_hash(token)[:16]}"


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
