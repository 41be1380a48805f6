"""The rules of a site: each a function of its policy and the facts to a refusal, or None. Pure.

A rule has the name of its key in site.toml. Whoever adds one adds a field to `Policy`, a function to `RULES`
and a line to the example in docs/site-policy.md; a test holds the three together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from common.errors import RefusedError, printable
from fedclient.policy.facts import Facts
from fedclient.policy.policy import Policy

Refusal = str
"""What was allowed, what came, and what to do."""
Rule = Callable[[Policy, Facts], Refusal | None]
MOST_SHOWN = 60
"""Characters of a server's words."""
_CHANGE = "its owner may change {} in site.toml"


def servers(policy: Policy, facts: Facts) -> Refusal | None:
    """Before anything is sent: a server that is not in the list."""
    return _matching("servers", policy.servers, facts.server)


def require_tls(policy: Policy, facts: Facts) -> Refusal | None:
    """Before anything is sent: a connection that is not encrypted."""
    if policy.require_tls and facts.encrypted is False:
        return "this site talks to servers under TLS only, and no --certs were given; give them"
    return None


def min_examples(policy: Policy, facts: Facts) -> Refusal | None:
    """Before the number is told: too few examples for the counts that `site.toml` lets out."""
    if facts.examples is not None and facts.examples < policy.least_examples:
        # The number itself is not for the server.
        return f"this site takes part with {policy.least_examples} examples or more, and has fewer"
    return None


def runs(policy: Policy, facts: Facts) -> Refusal | None:
    """On joining: a run that is not in the list."""
    return _matching("runs", policy.runs, facts.run)


def models(policy: Policy, facts: Facts) -> Refusal | None:
    """On joining: a model of another name."""
    return _matching("models", policy.models, facts.model)


def fingerprints(policy: Policy, facts: Facts) -> Refusal | None:
    """On joining: a model with other tensors; what is built is compared with the fingerprint too."""
    if facts.fingerprint is None or not policy.fingerprints:
        return None
    if any(facts.fingerprint.startswith(begin) for begin in policy.fingerprints):
        return None
    return f"the model's fingerprint is {_shown(facts.fingerprint)[:16]}; {_CHANGE.format('fingerprints')}"


def modules(policy: Policy, facts: Facts) -> Refusal | None:
    """On joining, before anything is imported: code that the site has not allowed."""
    for name in facts.modules:
        if name not in policy.modules:
            return (
                f"the server names {_shown(name)}, code that this site has not allowed; "
                f"to allow it, start the client with --allow-plugin {_shown(name)}, or add it to site.toml"
            )
    return None


def min_others(policy: Policy, facts: Facts) -> Refusal | None:
    """On joining and in every round: too few other participants, as the server says."""
    if facts.others is not None and facts.others < policy.min_others:
        return f"this site takes part with {policy.min_others} others or more, the run has {facts.others}"
    return None


def max_rounds(policy: Policy, facts: Facts) -> Refusal | None:
    """On joining and in every round: a run that is too long."""
    if policy.max_rounds is not None and facts.rounds is not None and facts.rounds > policy.max_rounds:
        return f"the run has {facts.rounds} rounds, this site takes part in runs of {policy.max_rounds}"
    return None


def algorithms(policy: Policy, facts: Facts) -> Refusal | None:
    """In every round, before it is trained: another algorithm."""
    return _matching("algorithms", policy.algorithms, facts.algorithm)


def codecs(policy: Policy, facts: Facts) -> Refusal | None:
    """In every round, and before an update leaves: another codec."""
    found = (_matching("codecs", policy.codecs, codec.partition(":")[0]) for codec in facts.codecs)
    return next((refusal for refusal in found if refusal is not None), None)


def approval(policy: Policy, facts: Facts) -> Refusal | None:
    """In every round, before it is trained: a kind of run that nobody has approved; the client waits."""
    if policy.approval and facts.approved is False:
        return "this kind of run was never approved here; see: fedclient approve --list"
    return None


def max_rounds_per_day(policy: Policy, facts: Facts) -> Refusal | None:
    """Before a round is trained, and before its update leaves: enough rounds for a day."""
    leaving, usage, most = facts.departure, facts.usage, policy.max_rounds_per_day
    if leaving is None or usage is None or most is None or not leaving.round:
        return None
    if (leaving.run, leaving.round) in usage.rounds or len(usage.rounds) < most:
        return None
    return f"updates have left for {len(usage.rounds)} rounds today (UTC), and {most} is all that may"


def max_bytes_per_day(policy: Policy, facts: Facts) -> Refusal | None:
    """Before a round is trained, and before anything leaves: enough bytes for a day."""
    leaving, usage, most = facts.departure, facts.usage, policy.max_bytes_per_day
    if leaving is None or usage is None or most is None or usage.bytes + leaving.bytes <= most:
        return None
    return (
        f"{usage.bytes} bytes have left today (UTC), {leaving.bytes} more were to go, "
        f"and {most} is all that may"
    )


RULES: tuple[Rule, ...] = (
    servers,
    require_tls,
    min_examples,
    runs,
    models,
    fingerprints,
    modules,
    min_others,
    max_rounds,
    algorithms,
    codecs,
    max_rounds_per_day,
    max_bytes_per_day,
    approval,
)
"""In the order in which they are asked."""


def require_allowed(policy: Policy, facts: Facts, rules: Iterable[Rule] = RULES) -> None:
    """Raises what the first rule says that forbids what is known so far."""
    for rule in rules:
        refusal = rule(policy, facts)
        if refusal is not None:
            raise RefusedError(refusal, rule.__name__)


def _matching(key: str, patterns: tuple[str, ...], value: str | None) -> Refusal | None:
    if value is None or not patterns or any(fnmatchcase(value, pattern) for pattern in patterns):
        return None
    return f"this site allows {', '.join(patterns)[:MOST_SHOWN]}, got {_shown(value)}; {_CHANGE.format(key)}"


def _shown(text: str) -> str:
    return printable(text, MOST_SHOWN)
