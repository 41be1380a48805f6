"""What sites count when they evaluate x on data of their own, and what follows from the counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.records.base import Count, Positive


@dataclass(frozen=True, kw_only=True)
class SiteCounts:
    """What a site reports of x: counts, from which everybody can compute the rest."""

    examples: Positive
    """Examples that x was evaluated on."""
    loss_sum: float | None
    """Sum of their losses; null where it is not finite."""
    confusion: tuple[tuple[Count, Count, Count], ...]
    """[right class, class with the highest score, examples]; pairs of classes without any are left out."""
    pairs: tuple[Count, ...] = ()
    """For AUROC, by class, one against the rest; of two classes only the second. Twice the pairs of one
    example of the class and one of the rest in which the one has the higher probability; ties once."""


@dataclass(frozen=True, kw_only=True)
class Auroc:
    """Area under the ROC curve of one class against the rest, at one site."""

    label: str
    """Name of the class."""
    value: float
    """The area."""
    positives: Positive
    """Examples of the class."""
    negatives: Positive
    """All others."""
    low: float
    """Lower end of its 95 % interval (Hanley and McNeil 1982)."""
    high: float
    """Upper end."""


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """One class, over the examples of all sites."""

    support: Count
    """Examples of the class."""
    recall: float | None
    """Share of them that x finds; null without any."""
    f1: float | None
    """Harmonic mean of precision and recall; null for a class that neither occurs nor is found."""


@dataclass(frozen=True, kw_only=True)
class SiteRecord:
    """x at one site."""

    counts: SiteCounts
    """As the site reported them."""
    metrics: dict[str, float | None]
    """What follows from them, by name; null where a metric is not defined."""
    auroc: tuple[Auroc, ...] = ()
    """By class, for classes that occur and are not the only one."""


@dataclass(frozen=True, kw_only=True)
class SitesRecord:
    """x at all sites that evaluated it, each on data of its own."""

    examples: Positive
    """Of all of them."""
    metrics: dict[str, float | None]
    """From the counts of all sites together, so that a site weighs what its examples do. `auroc`, which has
    no common counts, is the sites' mean, weighted by their examples."""
    classes: dict[str, ClassResult]
    """By name of the class."""
    worst: str
    """The site whose model is worst, by --best or else by accuracy."""
    sites: dict[str, SiteRecord]
    """By client name."""
    absent: dict[str, str] = field(default_factory=dict)
    """After the last round: clients that were asked and have not answered, and why."""
