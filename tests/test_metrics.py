"""Metrics against hand-computed values, and intervals against their promise."""

import itertools
import math
import subprocess
import sys
import time

import numpy as np
import pytest

from agentrl.metrics import (
    _bca_levels,
    average_at_k,
    bootstrap_ci,
    holm,
    maj_at_k,
    paired_difference,
    pass_at_k,
)

NAN = float("nan")


def with_right(n_right, n_samples):
    return [[1] * n_right + [0] * (n_samples - n_right)]


# average@k, pass@k, maj@k


def test_average():
    assert average_at_k([[1, 0], [1, 1]]) == 0.75
    assert average_at_k([[True, False, False]]) == pytest.approx(1 / 3)
    assert average_at_k([[0.25, 0.75]]) == 0.5


def test_pass_at_k_by_hand():
    assert pass_at_k(with_right(1, 4), 4) == 1.0
    assert pass_at_k(with_right(2, 32), 8) == pytest.approx(1 - (24 * 23) / (32 * 31), abs=1e-12)
    assert pass_at_k(with_right(2, 32), 8) == pytest.approx(0.443548, abs=1e-6)
    assert pass_at_k(with_right(0, 4), 4) == 0.0
    assert pass_at_k(with_right(1, 4), 1) == 0.25
    assert pass_at_k([[1, 0, 0, 0], [0, 0, 0, 0]], 2) == pytest.approx(0.25)
    assert pass_at_k(np.array(with_right(3, 4), dtype=bool), 2) == 1.0


def test_pass_at_k_is_the_mean_over_all_subsets():
    for n_right, k in itertools.product(range(7), range(1, 7)):
        row = with_right(n_right, 6)
        subsets = list(itertools.combinations(row[0], k))
        assert pass_at_k(row, k) == pytest.approx(sum(map(max, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_is_stable_for_many_samples():
    want = 1 - math.comb(99_990, 50_000) / math.comb(100_000, 50_000)  # integers, divided once
    assert pass_at_k(with_right(10, 100_000), 50_000) == pytest.approx(want, abs=1e-12)


def test_pass_at_k_refuses():
    for k in (0, -1, 5):
        with pytest.raises(ValueError, match=r"1\.\.4"):
            pass_at_k(with_right(1, 4), k)
    with pytest.raises(ValueError, match="partial"):
        pass_at_k([[0.5, 1.0]], 1)
    with pytest.raises(TypeError):
        pass_at_k(with_right(1, 4), 1.5)


def test_majority():
    right = [["7", "7", None, None]]
    assert maj_at_k(right, [[1, 1, 0, 0]]) == 1.0
    assert maj_at_k([["7", "", "  ", None]], [[1, 0, 0, 0]]) == 1.0
    assert maj_at_k([["7", "8", "8"]], [[1, 0, 0]]) == 0.0
    assert maj_at_k([[" 7", "7 ", "8"]], [[1, 1, 0]]) == 1.0
    assert maj_at_k([["7", "8"]], [[1, 0]]) == 0.5
    assert maj_at_k([["7", "8", "9", "9", "7"]], [[1, 0, 0, 0, 1]]) == 0.5
    assert maj_at_k([[None, ""]], [[0, 0]]) == 0.0
    assert maj_at_k([[7, 7, NAN]], [[1, 1, 0]]) == 1.0
    assert maj_at_k([["7", "7", "8"], [None, None, "3"]], [[1, 1, 0], [0, 0, 0]]) == 0.5
    assert maj_at_k(np.array([["7", None]], dtype=object), [[1, 0]]) == 1.0


@pytest.mark.parametrize("bad", [[1, 0], [[]], [], [[1.5]], [[-0.1]], [[NAN]], [[[1]]]])
def test_bad_scores(bad):
    for metric in (average_at_k, lambda x: pass_at_k(x, 1), lambda x: maj_at_k([["a"]], x)):
        with pytest.raises(ValueError):
            metric(bad)


def test_majority_refuses_other_shapes():
    for answers in ([["a", "b"]], [["a"], ["b"]], []):
        with pytest.raises(ValueError, match="shape"):
            maj_at_k(answers, [[1]])


# Intervals


def coverage(draw, truth, n_tries=300, **kwargs):
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(n_tries):
        low, high = bootstrap_ci(draw(rng), n_resamples=500, **kwargs)
        inside += low <= truth <= high
    return inside / n_tries


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda rng: rng.normal(size=30), 0.0),
        (lambda rng: rng.exponential(size=30), 1.0),
        (lambda rng: rng.binomial(8, rng.beta(0.3, 1, 30)) / 8, 0.3 / 1.3),
        (lambda rng: (rng.random(60) < 0.9) * 1.0, 0.9),
    ],
    ids=["normal", "exponential", "average@8", "share"],
)
def test_the_interval_covers_as_often_as_it_says(draw, truth):
    # The binomial error of 300 tries is 0.0126 and 0.023; shares are coarse, so theirs overshoots at 0.8.
    assert 0.91 <= coverage(draw, truth) <= 0.985
    assert 0.74 <= coverage(draw, truth, level=0.8) <= 0.9


def test_the_interval_agrees_with_theory_on_many_problems():
    values = np.random.default_rng(1).normal(3.0, 2.0, 2000)
    low, high = bootstrap_ci(values)
    half = 1.96 * values.std(ddof=1) / math.sqrt(2000)
    assert low == pytest.approx(values.mean() - half, abs=0.05 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.05 * half)


def test_the_interval_leans_with_the_skew():
    values = [0.0] * 27 + [1.0] * 3
    low, high = bootstrap_ci(values)
    assert 0 <= low < 0.1 < high <= 1
    assert high - 0.1 > 0.1 - low


def test_the_skew_correction_by_hand():
    # Unbiased resampled means; skew 24 / (6 * 12^1.5) = 0.09623; reach sqrt(4 / 3) * t(3; 0.9) = 1.891.
    # -1.891 / (1 + 0.182) = -1.600 and 1.891 / (1 - 0.182) = 2.312, as shares of the normal distribution.
    levels = _bca_levels(np.array([0.0, 0.0, 0.0, 4.0]), np.array([0.5, 1.5]), 0.8)
    assert levels == pytest.approx([0.0548, 0.9896], abs=2e-4)


def test_intervals_are_deterministic_and_nested():
    values = np.random.default_rng(2).random(40)
    assert bootstrap_ci(values, seed=3) == bootstrap_ci(list(values), seed=3)
    assert bootstrap_ci(values, seed=3) != bootstrap_ci(values, seed=4)
    (a, d), (b, c) = bootstrap_ci(values, level=0.99), bootstrap_ci(values, level=0.5)
    assert a < b < values.mean() < c < d
    assert all(type(x) is float for x in (a, b, c, d))


def test_a_point_where_all_values_are_equal():
    assert bootstrap_ci([0.1] * 30) == (0.1, 0.1)
    assert bootstrap_ci([1.0, 1.0]) == (1.0, 1.0)


@pytest.mark.parametrize("values", [[0, 1], [0, 0, 1], [0, 1, 1], [1e-12, 1.0, 1e6]])
def test_tiny_samples_stay_in_range(values):
    low, high = bootstrap_ci(values, level=0.999)
    assert min(values) <= low <= high <= max(values)


def test_bad_values():
    for bad in ([], [1.0], [[1.0, 2.0]], [1.0, NAN], [1.0, float("inf")]):
        with pytest.raises(ValueError, match="values"):
            bootstrap_ci(bad)
    for kwargs in ({"level": 0}, {"level": 1}, {"level": 95}, {"n_resamples": 0}):
        with pytest.raises(ValueError, match=next(iter(kwargs))):
            bootstrap_ci([0.0, 1.0], **kwargs)


# Paired differences


def test_paired_difference_exact_p():
    # All signs alike: only 2 of the 2^5 sign patterns are as extreme.
    difference, low, high, p = paired_difference([2, 3, 4, 5, 6], [1, 1, 1, 1, 1])
    assert (difference, p) == (3.0, 2 / 32)
    assert 1 <= low < 3 < high <= 5


def test_paired_difference_p_by_hand():
    # Differences 1, 1, -1: sums 3, 1, 1, 1 and their negatives; |sum| >= 1 always.
    assert paired_difference([1, 1, 0], [0, 0, 1])[3] == 1.0
    # Differences 3, 1, -1: |sum| is 5, 3, 3, 1 or the negative; 3 was seen, so 6 of 8 are as extreme.
    assert paired_difference([3, 1, 0], [0, 0, 1])[3] == 0.75


def test_rounding_breaks_no_ties():
    a = np.array([0.1, 0.2, 0.3, 0.6, 0.7])
    assert paired_difference(a, a[::-1])[3] == 1.0
    assert paired_difference([0.3, 0.3], [0.1, 0.1])[3] == 0.5


def test_no_difference_at_all():
    assert paired_difference([0.5, 0.25], [0.5, 0.25]) == (0.0, 0.0, 0.0, 1.0)


def test_random_flips_agree_with_the_exact_test():
    rng = np.random.default_rng(5)
    a, b = rng.normal(0.5, 1, 12), rng.normal(0, 1, 12)
    exact = paired_difference(a, b, n_resamples=2**12)[3]
    sampled = paired_difference(a, b, n_resamples=2**12 - 1)[3]
    assert sampled != exact and sampled == pytest.approx(exact, abs=4 * math.sqrt(exact / 2**12))


def test_p_never_reaches_zero_and_direction_is_a_minus_b():
    a, b = np.full(100, 1.0) + np.arange(100) / 1000, np.zeros(100)
    difference, low, _, p = paired_difference(a, b, n_resamples=999)
    assert p == 1 / 1000 and low > 1 and difference == pytest.approx(1.0495)
    assert paired_difference(b, a, n_resamples=999)[0] == pytest.approx(-1.0495)


def test_pairing_narrows_the_interval():
    rng = np.random.default_rng(6)
    hardness = rng.random(60)
    _, low, high, p = paired_difference(hardness + 0.05 + 0.01 * rng.random(60), hardness)
    assert 0.05 <= low < high <= 0.06 and p < 0.001


def test_p_is_uniform_without_a_difference():
    rng = np.random.default_rng(7)
    ps = [paired_difference(rng.random(40), rng.random(40), n_resamples=199)[3] for _ in range(300)]
    assert np.mean(np.array(ps) <= 0.05) == pytest.approx(0.05, abs=0.04)


def test_unpaired_lengths():
    with pytest.raises(ValueError, match="paired"):
        paired_difference([1, 2, 3], [1, 2])


# Holm


def test_holm_by_hand():
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04 -> running maximum.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.02]) == pytest.approx([0.02])
    assert holm([0.01, 0.01]) == pytest.approx([0.02, 0.02])
    assert holm([]).tolist() == []


def test_holm_refuses():
    for bad in ([NAN], [-0.1], [1.1], [[0.1]]):
        with pytest.raises(ValueError):
            holm(bad)


# Cost


def test_quick_and_without_torch_or_scipy():
    code = (
        "import numpy, sys, time; t = time.perf_counter(); import agentrl.metrics;"
        "print(time.perf_counter() - t); assert not {'torch', 'scipy', 'pandas'} & set(sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(out) < 0.2
    a = np.random.default_rng(8).random((2, 500))
    start = time.perf_counter()
    paired_difference(*a)
    assert time.perf_counter() - start < 2
