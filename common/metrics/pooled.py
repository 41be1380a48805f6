"""What follows from the counts of sites: metrics of each, of all together, and the worst site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from common.metrics.auroc import interval
from common.metrics.choice import AUROC, Metrics, is_better
from common.metrics.confusion import Confusion, accuracy, dense, f1s, recalls
from common.records.rounds import Evaluation
from common.records.sites import Auroc, ClassResult, SiteCounts, SiteRecord, SitesRecord


def site_record(counts: SiteCounts, class_names: Sequence[str], metrics: Metrics) -> SiteRecord:
    """x at one site."""
    matrix = dense(counts.confusion, len(class_names))
    areas = _areas(counts, matrix, class_names)
    auroc = sum(area.value for area in areas) / len(areas) if areas else None
    loss = None if counts.loss_sum is None else counts.loss_sum / counts.examples
    return SiteRecord(counts=counts, metrics=metrics.of(matrix, loss, auroc), auroc=areas)


def _areas(counts: SiteCounts, matrix: Confusion, class_names: Sequence[str]) -> tuple[Auroc, ...]:
    first = len(class_names) - len(counts.pairs)
    support, found = matrix.sum(axis=1).tolist(), []
    for k, won in enumerate(counts.pairs, start=first):
        positives, negatives = support[k], counts.examples - support[k]
        if positives and negatives:
            value = won / (2 * positives * negatives)
            low, high = interval(value, positives, negatives)
            found.append(
                Auroc(
                    label=class_names[k],
                    value=value,
                    positives=positives,
                    negatives=negatives,
                    low=low,
                    high=high,
                )
            )
    return tuple(found)


def sites_record(
    counts: Mapping[str, SiteCounts],
    class_names: Sequence[str],
    metrics: Metrics,
    judge: str,
    absent: Mapping[str, str],
) -> SitesRecord:
    """x at all sites; `judge` is the metric that says which of them is worst."""
    sites = {name: site_record(each, class_names, metrics) for name, each in counts.items()}
    matrix = sum_of(counts.values(), len(class_names))
    examples = sum(each.examples for each in counts.values())
    loss = _mean_loss(counts.values(), examples)
    support, recall, f1 = matrix.sum(axis=1).tolist(), recalls(matrix), f1s(matrix)
    return SitesRecord(
        examples=examples,
        metrics=metrics.of(matrix, loss, _weighted(sites.values(), AUROC)),
        classes={
            name: ClassResult(support=support[k], recall=recall[k], f1=f1[k])
            for k, name in enumerate(class_names)
        },
        worst=_worst(sites, judge),
        sites=sites,
        absent=dict(absent),
    )


def sum_of(counts: Iterable[SiteCounts], num_classes: int) -> Confusion:
    """The confusion matrix of all sites together."""
    total = dense((), num_classes)
    for each in counts:
        for right, found, number in each.confusion:
            total[right, found] += number
    return total


def _mean_loss(counts: Iterable[SiteCounts], examples: int) -> float | None:
    sums = [each.loss_sum for each in counts]
    return None if None in sums else sum(each for each in sums if each is not None) / examples


def _weighted(sites: Iterable[SiteRecord], metric: str) -> float | None:
    """Mean of a metric over the sites that have it, weighted by examples."""
    known = [
        (site.counts.examples, value) for site in sites if (value := site.metrics.get(metric)) is not None
    ]
    weight = sum(examples for examples, _ in known)
    return sum(examples * value for examples, value in known) / weight if weight else None


def _worst(sites: Mapping[str, SiteRecord], judge: str) -> str:
    """The site that no other is worse than; one whose metric is not defined is no site to judge by."""
    worst = next(iter(sites))
    for name, site in sites.items():
        here, there = site.metrics.get(judge), sites[worst].metrics.get(judge)
        if here is not None and (there is None or is_better(judge, there, here)):
            worst = name
    return worst


def evaluation_of(found: SitesRecord) -> Evaluation:
    """The same as what a server with a test set would say."""
    matrix = sum_of((site.counts for site in found.sites.values()), len(found.classes))
    loss = _mean_loss((site.counts for site in found.sites.values()), found.examples)
    share = accuracy(matrix)
    assert share is not None, "a site that reports has examples"
    recall = tuple(each.recall for each in found.classes.values())
    return Evaluation(accuracy=share, loss=loss, class_accuracy=recall)
