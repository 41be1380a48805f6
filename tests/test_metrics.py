"""Metrics from counts are those of scikit-learn on the pooled predictions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from common.metrics import confusion
from common.metrics.auroc import interval, pairs_by_class
from common.metrics.choice import Metrics, is_better
from common.metrics.confusion import Confusion, cells, dense
from common.metrics.pooled import evaluation_of, sites_record
from common.records.sites import SiteCounts

Labels = npt.NDArray[np.int64]
NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def scikit() -> Any:
    """Imported here, because that takes longer than the tests."""
    from sklearn import metrics

    return metrics


def matrix_of(labels: Labels, found: Labels, num_classes: int) -> Confusion:
    matrix = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(matrix, (labels, found), 1)
    return matrix


def counts_of(labels: Labels, probabilities: npt.NDArray[np.float64], loss_sum: float = 1.0) -> SiteCounts:
    return SiteCounts(
        examples=len(labels),
        loss_sum=loss_sum,
        confusion=cells(matrix_of(labels, probabilities.argmax(1), probabilities.shape[1])),
        pairs=pairs_by_class(probabilities, labels),
    )


def drawn(
    random: np.random.Generator, n: int, classes: list[int], k: int
) -> tuple[Labels, npt.NDArray[np.float64]]:
    """A site with examples of some classes; coarse scores, so that there are ties."""
    labels = random.choice(classes, n).astype(np.int64)
    scores = np.round(random.random((n, k)) + 0.4 * np.eye(k)[labels], 2)
    return labels, scores / scores.sum(axis=1, keepdims=True)


@given(
    st.integers(2, 5).flatmap(
        lambda k: st.lists(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1)), min_size=1, max_size=60)
    )
)
def test_metrics_of_a_confusion_matrix_are_those_of_scikit_learn(
    scikit: Any, pairs: list[tuple[int, int]]
) -> None:
    labels, found = np.array(pairs, np.int64).T
    matrix = matrix_of(labels, found, 6)
    present = sorted({*labels.tolist(), *found.tolist()})
    assert confusion.accuracy(matrix) == scikit.accuracy_score(labels, found)
    assert confusion.macro_f1(matrix) == scikit.f1_score(labels, found, average="macro")
    known = [value for value in confusion.f1s(matrix) if value is not None]
    assert known == scikit.f1_score(labels, found, average=None).tolist()
    occurring = sorted(set(labels.tolist()))
    recalls = [confusion.recalls(matrix)[k] for k in occurring]
    assert recalls == scikit.recall_score(labels, found, labels=occurring, average=None).tolist()
    if occurring == present and len(present) > 1:  # scikit-learn warns of what is one class, or only found.
        assert confusion.balanced_accuracy(matrix) == scikit.balanced_accuracy_score(labels, found)
    assert (dense(cells(matrix), 6) == matrix).all()


@pytest.mark.parametrize("num_classes", [2, 4])
def test_pooled_metrics_of_sites_are_those_of_their_predictions_together(
    scikit: Any, num_classes: int
) -> None:
    random = np.random.default_rng(num_classes)
    subsets = itertools.cycle([[0, 1], list(range(num_classes)), [1, num_classes - 1]])
    drawn_sites = [drawn(random, n, next(subsets), num_classes) for n in (40, 75, 31)]
    counts = {f"site-{k}": counts_of(*site) for k, site in enumerate(drawn_sites)}
    names = NAMES[:num_classes]
    record = sites_record(counts, names, Metrics.load((), num_classes), "accuracy", {})
    labels = np.concatenate([labels for labels, _ in drawn_sites])
    found = np.concatenate([probabilities.argmax(1) for _, probabilities in drawn_sites])
    assert record.metrics["accuracy"] == scikit.accuracy_score(labels, found)
    assert record.metrics["balanced_accuracy"] == scikit.balanced_accuracy_score(labels, found)
    assert record.metrics["f1"] == scikit.f1_score(labels, found, average="macro")
    assert record.metrics["loss"] == 3 / len(labels)
    assert [each.support for each in record.classes.values()] == np.bincount(labels).tolist()
    accuracies = {name: site.metrics["accuracy"] for name, site in record.sites.items()}
    assert accuracies[record.worst] == min(accuracies.values(), key=lambda value: value or 0.0)
    pooled = evaluation_of(record)
    assert pooled.accuracy == record.metrics["accuracy"]
    assert pooled.class_accuracy == tuple(scikit.recall_score(labels, found, average=None).tolist())


@pytest.mark.parametrize("num_classes", [2, 4])
def test_auroc_of_a_site_is_that_of_scikit_learn_with_support_and_interval(
    scikit: Any, num_classes: int
) -> None:
    labels, probabilities = drawn(np.random.default_rng(7), 90, list(range(num_classes)), num_classes)
    counts = counts_of(labels, probabilities)
    record = sites_record({"a": counts}, NAMES[:num_classes], Metrics.load((), num_classes), "auroc", {})
    areas = record.sites["a"].auroc
    for area in areas:
        k = NAMES.index(area.label)
        expected = scikit.roc_auc_score(labels == k, probabilities[:, k])
        assert area.value == pytest.approx(expected, abs=1e-12)
        assert (area.positives, area.negatives) == ((labels == k).sum(), (labels != k).sum())
        assert 0 <= area.low < area.value < area.high <= 1
    whole = scikit.roc_auc_score(
        labels, probabilities[:, 1] if num_classes == 2 else probabilities, multi_class="ovr"
    )
    assert record.metrics["auroc"] == pytest.approx(whole, abs=1e-12)
    assert len(areas) == (1 if num_classes == 2 else num_classes)


def test_an_interval_is_that_of_hanley_and_mcneil() -> None:
    """Their example, counted there from the ratings: 0.893 with 51 and 58 examples has an error of 0.032."""
    low, high = interval(0.893, 51, 58)
    assert (high - low) / 2 / 1.96 == pytest.approx(0.032, abs=1e-3)
    assert interval(1.0, 5, 5) == (1.0, 1.0)


def test_a_site_without_one_of_two_classes_has_no_auroc() -> None:
    labels, probabilities = drawn(np.random.default_rng(1), 9, [1], 2)
    record = sites_record({"a": counts_of(labels, probabilities)}, ("a", "b"), Metrics.load((), 2), "f1", {})
    assert record.sites["a"].auroc == ()
    assert record.metrics["auroc"] is None
    assert record.classes["a"].recall is None


def test_better_is_lower_for_a_loss_and_never_what_is_not_a_number() -> None:
    assert is_better("f1", 0.5, None)
    assert is_better("loss", 0.4, 0.5)
    assert not is_better("loss", 0.5, 0.4)
    assert not is_better("f1", None, None)
    assert not is_better("f1", float("nan"), 0.1)


def test_metrics_of_users_are_tried_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_metrics.py").write_text(
        "def hits(confusion): return confusion.trace()\n"
        "def broken(confusion): return 'many'\n"
        "def share(confusion): return int(confusion[0, 0]) / int(confusion[0].sum())\n"
    )
    metrics = Metrics.load(("accuracy", "own_metrics:hits", "own_metrics:share"), 3)
    assert metrics.of(np.diag([0, 5, 1]), None, None) == {
        "accuracy": 1.0,
        "own_metrics:hits": 6.0,
        "own_metrics:share": None,
    }
    with pytest.raises(ConfigError, match=r"metric own_metrics:broken: expected function\(confusion\)"):
        Metrics.load(("own_metrics:broken",), 3)
    with pytest.raises(ConfigError, match="defines no function or class 'absent'"):
        Metrics.load(("own_metrics:absent",), 3)
