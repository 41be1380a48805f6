"""Why no connection to a server comes about, in plain words; asked only after gRPC has failed to make one.

gRPC tells it in the terms of its TLS library, or not at all: a server that does not accept a certificate just
hangs up. So the server is met once more, without gRPC; it gets to see a certificate, but never a token. What
may heal by waiting, such as a server that is not there yet, is no fault.
"""

from __future__ import annotations

import ssl
from datetime import datetime

from common.access.credentials import Access, Credentials
from common.access.meeting import Meeting, host_of, is_http2, is_tls
from common.errors import CertificateError, printable

QUOTED = 40
_EXPIRED, _NOT_YET_VALID, _WRONG_PURPOSE = 10, 9, 26
_WRONG_NAME = (62, 64)
_FOREIGN = (2, 7, 18, 19, 20, 21)
"""Numbers by which OpenSSL tells why it does not accept a certificate."""


def fault(server: str, access: Access) -> str | None:
    """What is the matter and what to do about it; None if waiting may help.

    A server that is just being stopped or started may do anything, so what is seen once does not count.
    """
    found = _met(server, access)
    return found if found is not None and found == _met(server, access) else None


def valid_until(server: str, access: Access) -> datetime | None:
    """Until when the certificate that a server shows is valid; None without TLS, or if it cannot be seen."""
    from common.access.certificates import shown_certificate

    credentials = access.read()
    if credentials.ca is None:
        return None
    try:
        with Meeting(server) as meeting:
            return shown_certificate(meeting.look(_verifying(access, credentials))).not_valid_after_utc
    except (OSError, ValueError, CertificateError):
        return None


def _met(server: str, access: Access) -> str | None:
    credentials = access.read()
    try:
        if credentials.ca is None:
            return _without_tls(server)
        return _with_tls(server, access, credentials)
    except (OSError, ValueError, CertificateError):  # A name that is no host's is a ValueError.
        return None


def _without_tls(server: str) -> str | None:
    try:
        with Meeting(server) as meeting:
            answer = meeting.greet()
    except OSError:
        answer = b""
    if is_http2(answer):
        return None
    if answer and not is_tls(answer):
        return _stranger(server, answer)
    with Meeting(server) as meeting:
        meeting.look(_unverified())
    return f"the server at {server} speaks TLS: give --certs DIR"


def _with_tls(server: str, access: Access, credentials: Credentials) -> str | None:
    with Meeting(server) as meeting:
        try:
            meeting.shake_hands(_verifying(access, credentials))
        except ssl.SSLCertVerificationError as error:
            return _not_accepted(server, access, error)
        except ssl.SSLError:
            if is_tls(meeting.heard):
                return None
            if not is_http2(meeting.heard):
                return _stranger(server, meeting.heard)
            return (
                f"the server at {server} does not speak TLS: start it with --certs DIR or, "
                "if nothing is to be encrypted, leave out --certs here"
            )
        if meeting.read():
            return None
    return _hung_up(server, access, credentials)


def _not_accepted(server: str, access: Access, error: ssl.SSLCertVerificationError) -> str:
    """What is wrong with the server's certificate."""
    from common.access.certificates import hosts_of, minute, remedy, shown_certificate

    assert access.certs is not None, "without --certs nothing is verified"
    if error.verify_code in _FOREIGN:
        return (
            f"the server's certificate is signed by another authority than {access.certs}/ca.pem; "
            "ask whoever runs the server for its ca.pem"
        )
    if error.verify_code == _WRONG_PURPOSE:
        new = remedy(access.certs, "--server")
        return f"the server's certificate is not a server's but a client's; issue one with: {new}"
    with Meeting(server) as meeting:
        shown = shown_certificate(meeting.look(_unverified()))
    if error.verify_code == _EXPIRED:
        return (
            f"the server's certificate expired on {minute(shown.not_valid_after_utc)}; if the clock here is "
            f"right, renew it with: {remedy(access.certs, '--server')}"
        )
    if error.verify_code == _NOT_YET_VALID:
        start = minute(shown.not_valid_before_utc)
        return f"the server's certificate is not valid before {start}; set the clock right, here or there"
    if error.verify_code in _WRONG_NAME:
        hosts, host = hosts_of(shown), host_of(server)
        every = (word for name in [*hosts, host] for word in ("--host", name))
        return (
            f"the server's certificate is for {', '.join(hosts) or 'nobody'}, not {host}; connect by such a "
            f"name or issue one with: {remedy(access.certs, '--server', *every)}"
        )
    return f"the server's certificate is not accepted: {error.verify_message}"


def _hung_up(server: str, access: Access, credentials: Credentials) -> str:
    """What is wrong with this client's certificate: the server has shown a good one, and hangs up."""
    from common.access.certificates import CLIENT_USE, certificate, is_for, is_issued_by, read, remedy

    if credentials.certificate is None:
        return f"the server at {server} wants a certificate and no token: leave the token out"
    path, _ = access.files()
    own, ca = (read(file, certificate) for file in (path, path.with_name("ca.pem")))
    if not is_issued_by(own, ca):
        return (
            f"the server does not accept {path}, which is signed by another authority than "
            f"{path.with_name('ca.pem')}; issue one with: {remedy(path.parent, path.stem)}"
        )
    if not is_for(own, CLIENT_USE):
        return f"the server does not accept {path}, which is a server's certificate; give a client's --name"
    return f"the server at {server} does not accept {path}; compare its ca.pem and its clock with those here"


def _stranger(server: str, heard: bytes) -> str:
    said = printable(heard.partition(b"\n")[0].decode("ascii", "replace").strip(), QUOTED)
    return f"what listens at {server} is not a server of a federation: it says {said!r}; check the port"


def _unverified() -> ssl.SSLContext:
    """For a look at a server that is told nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _verifying(access: Access, credentials: Credentials) -> ssl.SSLContext:
    """As strict as gRPC, and with the same certificate."""
    assert access.certs is not None, "without --certs nothing is verified"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_verify_locations(access.certs / "ca.pem")
    context.set_alpn_protocols(["h2"])
    if credentials.certificate is not None:
        context.load_cert_chain(*access.files())
    return context
