"""The way to the server: proxy, address, port, TLS."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from common.access import diagnosis
from common.access.credentials import Access
from common.access.expiry import WARNED
from common.access.meeting import PROBE_S, host_of
from fedclient.check.findings import Finding, error, ok, skipped, warning

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
EXCEPTIONS = ("no_grpc_proxy", "no_proxy")
"""What gRPC reads, with and without TLS, in lower case only; of each, the first that is there."""


def proxy_of(server: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable and the address HOST:PORT of the proxy that gRPC would go through."""
    variable = next((name for name in PROXIES if environment.get(name)), None)
    exceptions = next((environment[name] for name in EXCEPTIONS if environment.get(name)), "")
    if variable is None or any(_covers(each.strip(), host_of(server)) for each in exceptions.split(",")):
        return None
    address = environment[variable].partition("://")[2] or environment[variable]
    address = address.partition("/")[0].rpartition("@")[2]
    return variable, address if ":" in address else f"{address}:80"


def _covers(exception: str, host: str) -> bool:
    """Whether a host is the exception, lies in its domain, or in its range of addresses."""
    name = exception.lstrip(".").lower()
    if name and (host.lower() == name or host.lower().endswith(f".{name}")):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(exception, strict=False)
    except ValueError:
        return False


def proxy_finding(server: str, proxy: tuple[str, str] | None) -> Finding:
    """A proxy that does not let gRPC through looks like a server that is not there."""
    if proxy is None:
        return ok("proxy", "none")
    variable, address = proxy
    return warning(
        "proxy",
        f"gRPC goes through {address}, because {variable} is set",
        f"let the proxy pass CONNECT {server}, or go past it: export no_proxy={host_of(server)}",
    )


def address_finding(server: str) -> Finding:
    """The server's name has an address."""
    host, _, port = server.rpartition(":")
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host.strip("[]"), int(port), 0, 1)}
    except (OSError, UnicodeError) as reason:
        why = getattr(reason, "strerror", None) or reason
        return error("address", f"{host} has no address: {why}", "check --server and this machine's DNS")
    return ok("address", f"{host} is {', '.join(sorted(found))}")


def port_finding(server: str, proxy: tuple[str, str] | None) -> Finding:
    """Something listens at the server, or at the proxy before it."""
    where = server if proxy is None else proxy[1]
    what = where if proxy is None else f"the proxy {where}"
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except ConnectionRefusedError:
        remedy = "start the server, or check the port in --server"
        return error("port", f"nothing listens at {what}", remedy)
    except (OSError, ValueError) as reason:
        why = f"no answer in {PROBE_S:.0f} s" if isinstance(reason, TimeoutError) else str(reason)
        remedy = "let outgoing connections to it through the firewall"
        return error("port", f"{what} cannot be reached: {why}", remedy)
    return ok("port", f"{what} is open")


def tls_finding(server: str, access: Access | None, proxy: tuple[str, str] | None) -> Finding:
    """Both sides accept each other's certificate, as far as that can be seen without gRPC."""
    if access is None:
        return skipped("tls", "there are no credentials to show")
    if proxy is not None:
        return skipped("tls", "the proxy is in between")
    fault = diagnosis.fault(server, access)
    if fault is not None:
        found, _, remedy = fault.partition("; ")
        return error("tls", found, remedy or "see docs/security.md")
    until = diagnosis.valid_until(server, access)
    return ok("tls", "not in use") if until is None else server_expiry(until, datetime.now(UTC))


def server_expiry(until: datetime, now: datetime) -> Finding:
    """How long the server's certificate is valid."""
    if until - now < WARNED:
        days = max((until - now) // timedelta(days=1), 0)
        found = f"the server's certificate expires in {days} days"
        return warning("tls", found, "ask whoever runs the server to renew it")
    return ok("tls", f"the server's certificate is valid until {until:%Y-%m-%d}")
