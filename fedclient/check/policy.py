"""What this client's owner would refuse in a run.

Whatever a site can refuse belongs into `refusals`: it is asked before data are loaded or a model is built.
"""

from __future__ import annotations

from collections.abc import Iterator

from common.errors import FedError
from fedclient.check.findings import Finding, failed, ok
from fedclient.rpc.probe import Terms
from fedclient.run.demands import Demands
from fedclient.site import Site


def policy_finding(terms: Terms, site: Site, examples: int, *, own_data: bool) -> Finding:
    """The first refusal, if there is one; `examples` is how many there are or will be, as far as is known."""
    for refusal in refusals(terms, site, examples, own_data=own_data):
        return failed("policy", refusal)
    return ok("policy", "nothing of what is known of this run would be refused")


def refusals(terms: Terms, site: Site, examples: int, *, own_data: bool) -> Iterator[FedError]:
    """What would be refused, by the rules that a client goes by when it takes part."""
    rules = terms.rules
    try:
        demands = Demands(terms.seat, site, own_data=own_data)
        if examples:
            demands.require_data(examples)
            train = examples - rules.held_out(examples)
            demands.require_round(rules, rules.steps(examples), rules.batch(train))
    except FedError as refusal:
        yield refusal
