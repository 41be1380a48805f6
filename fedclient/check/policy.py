"""What this client's owner would refuse in a run.

Whatever a site can refuse belongs into `refusals`: it is asked before data are loaded or a model is built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from common.errors import FedError
from fedclient.check.findings import Finding, failed, ok
from fedclient.flags import Flags
from fedclient.policy.facts import Facts
from fedclient.policy.guarded import offer
from fedclient.policy.policy import Policy, policy_of
from fedclient.policy.rules import require_allowed
from fedclient.rpc.probe import Terms
from fedclient.run.demands import Demands


def policy_finding(
    terms: Terms, flags: Flags, state_dir: Path, examples: int, *, own_data: bool, encrypted: bool
) -> Finding:
    """The first refusal, if there is one; `examples` is how many there are or will be, as far as is known."""
    try:
        found = policy_of(flags.site_file, state_dir)
    except FedError as error:
        return failed("policy", error)
    policy, path = found or (Policy(), None)
    policy = policy.allowing(*flags.allow_plugin, flags.model)
    facts = Facts(server=flags.server, encrypted=encrypted, **offer(terms.seat, has_data=own_data))
    for refusal in refusals(terms, flags, policy, facts, examples, own_data=own_data):
        return failed("policy", refusal)
    by = "the flags" if path is None else f"{path} and the flags"
    return ok("policy", f"{by} forbid nothing of what is known of this run")


def refusals(
    terms: Terms, flags: Flags, policy: Policy, facts: Facts, examples: int, *, own_data: bool
) -> Iterator[FedError]:
    """What would be refused, by the rules that a client goes by when it takes part."""
    rules, site = terms.rules, replace(flags.site, plugins=frozenset(policy.modules))
    try:
        demands = Demands(terms.seat, site, own_data=own_data)
        if examples:
            facts = replace(facts, examples=examples)
            demands.require_data(examples)
            train = examples - rules.held_out(examples)
            demands.require_round(rules, rules.steps(examples), rules.batch(train))
        require_allowed(
            policy,
            replace(facts, algorithm=rules.algorithm, codecs=(rules.update_codec,), rounds=rules.rounds),
        )
    except FedError as refusal:
        yield refusal
