"""Numbers from numbers, with intervals: average@k, pass@k, maj@k (paper, App. A.1, Table 1) and comparisons.

Axes: N problems, K samples a problem. Every score is a share in [0, 1], not a percentage. The unit of
resampling is the problem: intervals and p-values speak of other problems drawn like these, and take the
samples of a problem as they are. They assume that problems are independent of each other.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from statistics import NormalDist

import numpy as np

_NORMAL = NormalDist()
_CHUNK_ENTRIES = 4_000_000  # resampled entries held at once (32 MB of float64)


def average_at_k(correct_NxK) -> float:
    """average@k: the mean over problems of the share of their K samples that are right.

    `correct_NxK` holds booleans or scores in [0, 1]. Raises ValueError where it isn't N x K with N, K >= 1,
    or holds anything else (NaN, a lost sample, included: leave such a problem out, visibly).
    """
    return float(_scores(correct_NxK).mean())


def pass_at_k(correct_NxK, k: int) -> float:
    """pass@k: the chance that k of a problem's K samples, drawn without replacement, hold a right one.

    The unbiased estimator 1 - C(K - c, k) / C(K, k) for c right samples (Chen et al. 2021), as a product, so
    that nothing overflows; mean over problems. The paper's pass@32 looks like verl's estimate with
    replacement instead, which is lower. Raises ValueError unless `correct_NxK` is N x K of 0 and 1, and
    unless 1 <= k <= K.
    """
    correct_NxK = _scores(correct_NxK)
    n_samples = correct_NxK.shape[1]
    k = operator.index(k)
    if not 1 <= k <= n_samples:
        raise ValueError(f"k must lie in 1..{n_samples}, the number of samples a problem; got {k}")
    if not np.isin(correct_NxK, (0.0, 1.0)).all():
        raise ValueError("pass@k needs right or wrong (1 or 0), not partial scores")
    # All k wrong given c right: the product over i = K-c+1..K of (1 - k / i), one more factor for each c.
    factors_K = np.maximum(1 - k / np.arange(n_samples, 0, -1), 0.0)
    all_wrong_by_count = np.concatenate([[1.0], np.cumprod(factors_K)])
    counts_N = correct_NxK.sum(1).astype(int)
    return float((1 - all_wrong_by_count[counts_N]).mean())


def maj_at_k(answers_NxK, correct_NxK) -> float:
    """maj@k: the mean over problems of the score of the answer that most of its K samples gave.

    `answers_NxK` holds each sample's answer (text, compared exactly but for space at its ends, or any
    hashable value); `None`, NaN and empty text don't vote. Answers tied for most votes share: their scores
    are averaged. An answer's score is the mean of `correct_NxK` over the samples that gave it. A problem
    without a vote scores 0. Raises ValueError where the two shapes differ or as `average_at_k` does.
    """
    correct_NxK = _scores(correct_NxK)
    answers = [list(row) for row in answers_NxK]
    if [len(row) for row in answers] != [correct_NxK.shape[1]] * correct_NxK.shape[0]:
        raise ValueError(f"answers must have the shape of correct, {correct_NxK.shape}")
    return float(np.mean([_majority_score(*pair) for pair in zip(answers, correct_NxK, strict=True)]))


def bootstrap_ci(
    values_N, n_resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """A confidence interval (low, high) for the mean of `values_N`, one value a problem, in their unit.

    The BCa bootstrap over problems (Efron 1987), with the normal quantile widened to
    sqrt(N / (N - 1)) t(N - 1) for small N (Hesterberg 2015). It stays within the values' own range. Weak
    spots: with N = 10 it covers about 0.93 of the time where it says 0.95, less for values that are nearly
    all alike; where all are equal it is the single point (v, v), which is not certainty. Deterministic for
    a seed. Raises ValueError on fewer than two values, on a value that isn't finite, on `level` outside
    (0, 1) and on `n_resamples` < 1.
    """
    values_N = _values(values_N, "values")
    _check_resampling(n_resamples, level)
    if values_N.min() == values_N.max():
        return float(values_N[0]), float(values_N[0])
    means_R = _resampled_means(values_N, n_resamples, np.random.default_rng([seed, 0]))
    low, high = np.quantile(means_R, _bca_levels(values_N, means_R, level))
    return float(low), float(high)


def paired_difference(
    a_N, b_N, n_resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> tuple[float, float, float, float]:
    """(difference, low, high, p) for mean(a) - mean(b), where entry i of both belongs to the same problem.

    low and high: `bootstrap_ci` of the differences. p: two-sided sign-flip permutation test of no
    difference (each problem's difference is as likely to have either sign); exact where 2 to the number of
    non-zero differences is at most `n_resamples`, else from that many random flips and never below
    1 / (n_resamples + 1). Raises ValueError on different lengths, and as `bootstrap_ci` does.
    """
    a_N, b_N = _values(a_N, "a"), _values(b_N, "b")
    if a_N.shape != b_N.shape:
        raise ValueError(f"a and b must be paired by problem: {a_N.size} and {b_N.size} values")
    differences_N = a_N - b_N
    low, high = bootstrap_ci(differences_N, n_resamples, level, seed)
    return float(differences_N.mean()), low, high, _sign_flip_p(differences_N, n_resamples, seed)


def holm(p_values) -> np.ndarray:
    """Holm's step-down adjusted p-values (1979), in input order: reject where they are <= alpha.

    They bound the chance of any false rejection in the family, however the tests depend on each other.
    Raises ValueError unless `p_values` is one-dimensional with entries in [0, 1].
    """
    p_M = np.asarray(p_values, dtype=float)
    if p_M.ndim != 1 or not ((p_M >= 0) & (p_M <= 1)).all():
        raise ValueError("p-values must be a flat sequence of numbers in [0, 1]")
    order = np.argsort(p_M, kind="stable")
    adjusted_M = np.empty_like(p_M)
    adjusted_M[order] = np.minimum(np.maximum.accumulate(p_M[order] * np.arange(p_M.size, 0, -1)), 1.0)
    return adjusted_M


def _scores(correct_NxK) -> np.ndarray:
    correct_NxK = np.asarray(correct_NxK, dtype=float)
    if correct_NxK.ndim != 2 or 0 in correct_NxK.shape:
        raise ValueError(f"expected N problems x K samples with N, K >= 1, got shape {correct_NxK.shape}")
    if not ((correct_NxK >= 0) & (correct_NxK <= 1)).all():
        raise ValueError("scores must lie in [0, 1]; NaN (a lost sample) has no score")
    return correct_NxK


def _majority_score(answers: list, correct_K: np.ndarray) -> float:
    votes, scores = Counter(), Counter()
    for answer, correct in zip(answers, correct_K, strict=True):
        answer = answer.strip() if isinstance(answer, str) else answer
        is_nan = isinstance(answer, float) and math.isnan(answer)
        if answer is None or answer == "" or is_nan:
            continue
        votes[answer] += 1
        scores[answer] += correct
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = [scores[answer] / most for answer, n in votes.items() if n == most]
    return sum(tied) / len(tied)


def _values(values_N, name: str) -> np.ndarray:
    values_N = np.asarray(values_N, dtype=float)
    if values_N.ndim != 1 or values_N.size < 2:
        raise ValueError(
            f"{name} must hold one value a problem, of two problems or more; got shape {values_N.shape}"
        )
    if not np.isfinite(values_N).all():
        raise ValueError(f"{name} must be finite numbers")
    return values_N


def _check_resampling(n_resamples: int, level: float) -> None:
    if operator.index(n_resamples) < 1:
        raise ValueError(f"n_resamples must be 1 or more, got {n_resamples}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level}")


def _chunks(n_rows: int, row_length: int):
    """Sizes of the slices in which `n_rows` rows are worked through, so that memory stays bounded."""
    size = max(1, _CHUNK_ENTRIES // row_length)
    return [min(size, n_rows - start) for start in range(0, n_rows, size)]


def _resampled_means(values_N: np.ndarray, n_resamples: int, rng: np.random.Generator) -> np.ndarray:
    n = values_N.size
    return np.concatenate(
        [values_N[rng.integers(0, n, (rows, n))].mean(1) for rows in _chunks(n_resamples, n)]
    )


def _bca_levels(values_N: np.ndarray, means_R: np.ndarray, level: float) -> list[float]:
    """The two shares of the resampled means between which the interval lies, corrected for bias and skew."""
    n, mean = values_N.size, values_N.mean()
    below = ((means_R < mean).mean() + (means_R <= mean).mean()) / 2
    edge = 1 / (means_R.size + 1)
    bias = _NORMAL.inv_cdf(float(np.clip(below, edge, 1 - edge)))
    centred_N = values_N - mean
    skew = float((centred_N**3).sum() / (6 * (centred_N**2).sum() ** 1.5))
    reach = math.sqrt(n / (n - 1)) * _t_quantile((1 + level) / 2, n - 1)
    shares = []
    for z in (bias - reach, bias + reach):
        shrink = 1 - skew * z
        shares.append(_NORMAL.cdf(bias + z / shrink) if shrink > 0 else float(z > 0))
    return shares


def _t_quantile(p: float, df: int) -> float:
    """Student's t quantile as a series (Abramowitz & Stegun 26.7.5): within 1% for df >= 2 at p = 0.975."""
    z = _NORMAL.inv_cdf(p)
    series = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / df**power for power, term in enumerate(series, 1))


def _sign_flip_p(differences_N: np.ndarray, n_resamples: int, seed: int) -> float:
    differences_M = differences_N[differences_N != 0]  # a zero is the same under either sign
    if differences_M.size == 0:
        return 1.0
    # Ties with what was seen count as at least as extreme; rounding must not break them.
    threshold = abs(differences_M.sum()) - 1e-9 * np.abs(differences_M).sum()
    m = differences_M.size
    if m < 63 and 2**m <= n_resamples:
        signs_RxM = 1.0 - 2.0 * ((np.arange(2**m)[:, None] >> np.arange(m)) & 1)
        return float((np.abs(signs_RxM @ differences_M) >= threshold).mean())
    rng, extreme = np.random.default_rng([seed, 1]), 0
    for rows in _chunks(n_resamples, m):
        signs_RxM = 1.0 - 2.0 * rng.integers(0, 2, (rows, m), dtype=np.int8)
        extreme += int((np.abs(signs_RxM @ differences_M) >= threshold).sum())
    return (extreme + 1) / (n_resamples + 1)
