"""The last evaluation at the clients, for a status."""

from __future__ import annotations

from collections.abc import Mapping

from common.records.sites import SitesRecord
from fedpvr.v1 import federation_pb2 as pb


def sites_result(r: int, found: SitesRecord) -> pb.SitesResult:
    """What the clients found of the x of round r."""
    return pb.SitesResult(
        round=r,
        pooled=_result("", found.examples, found.metrics),
        sites=[_result(name, each.counts.examples, each.metrics) for name, each in found.sites.items()],
        worst=found.worst,
    )


def own_sites(found: pb.SitesResult, name: str) -> pb.SitesResult:
    """The same as the client of this name sees it: its own row. Of two, all less one is the other."""
    return pb.SitesResult(round=found.round, sites=[site for site in found.sites if site.client == name])


def _result(client: str, examples: int, metrics: Mapping[str, float | None]) -> pb.SiteResult:
    values = [pb.Metric(name=name, value=value) for name, value in metrics.items()]
    return pb.SiteResult(client=client, examples=examples, metrics=values)
