"""Losses against hand-computed values and a plain loop (paper, Eqs. 2'-7)."""

import dataclasses
import math

import pytest
import torch

from agentrl.config import RECIPES, Recipe
from agentrl.losses import group_advantages, policy_loss, token_entropy

TOKEN = Recipe("token", "token", 0.2, 0.28, 0.0, False, None)
SEQUENCE = dataclasses.replace(TOKEN, name="sequence", aggregation="sequence")
INF, NAN = float("inf"), float("nan")


def logs(*ratios_BxT):
    """Log-probabilities whose ratio to old log-probabilities of 0 is as given."""
    return torch.tensor(ratios_BxT, dtype=torch.float64).log()


def loss_of(logprobs, advantages, mask=None, recipe=TOKEN, **kwargs):
    mask = torch.ones_like(logprobs) if mask is None else torch.as_tensor(mask)
    return policy_loss(
        logprobs,
        torch.zeros_like(logprobs),
        torch.tensor(advantages, dtype=logprobs.dtype),
        mask,
        recipe,
        **kwargs,
    )


def random_batch(B=6, T=7, seed=0, spread=0.5):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    old = -draw(B, T).abs()
    mask = torch.rand(B, T, generator=g) < 0.6
    mask[:, 0] = True
    return old + spread * draw(B, T), old, draw(B), mask, old + spread * draw(B, T)


def loop_loss(logprobs, old, advantages, mask, recipe, ref):
    """The equations again, one Python number at a time."""

    def surrogate(ratio, a):
        clipped = min(max(ratio, 1 - recipe.clip_low), 1 + recipe.clip_high)
        value = min(ratio * a, clipped * a)
        if a < 0 and recipe.dual_clip is not None:
            value = max(value, recipe.dual_clip * a)
        return value

    per_token, per_response = [], []
    for i, a in enumerate(advantages.tolist()):
        steps = [t for t in range(mask.shape[1]) if mask[i, t]]
        log_ratios = [float(logprobs[i, t] - old[i, t]) for t in steps]
        kls = [math.exp(d) - d - 1 for d in (float(ref[i, t] - logprobs[i, t]) for t in steps)]
        per_token += [
            surrogate(math.exp(x), a) - recipe.kl_beta * kl for x, kl in zip(log_ratios, kls, strict=True)
        ]
        log_ratio, kl = sum(log_ratios) / len(steps), sum(kls) / len(steps)
        per_response.append(surrogate(math.exp(log_ratio), a) - recipe.kl_beta * kl)
    terms = per_token if recipe.aggregation == "token" else per_response
    return -sum(terms) / len(terms)


# Advantages (Eq. 3)


def test_advantages_by_hand():
    got = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 1.0, 2.0, 2.0]]))
    first, second = math.sqrt(1 / 3), math.sqrt(2 / 3)  # standard deviations with G - 1
    want = torch.tensor([[0.5, -0.5, -0.5, 0.5], [1.0, -1.0, 0.0, 0.0]])
    want = want / (torch.tensor([[first], [second]]) + 1e-6)
    assert torch.allclose(got, want, atol=1e-6)
    assert got.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "row", [[0.1 + 0.2, 0.3, 0.3], [-0.9, -1 + 0.1, -0.9], [0.0] * 3, [1e6 / 3, 1e6 / 3, 1e6 / 3]]
)
def test_a_group_without_spread_gives_exactly_zero(row, dtype):
    assert group_advantages(torch.tensor([row], dtype=dtype)).tolist() == [[0.0] * 3]


def test_rounding_in_float32_before_a_cast_is_no_spread():
    reward = torch.tensor(0.3)
    rewards = torch.stack([reward, torch.nextafter(reward, torch.tensor(1.0))]).double()
    assert rewards[0] != rewards[1]
    assert group_advantages(rewards[None]).tolist() == [[0.0, 0.0]]


def test_a_small_true_spread_is_kept():
    got = group_advantages(torch.tensor([[1.0, 1.001]], dtype=torch.float64))
    assert got[0, 1] == pytest.approx(0.0005 / (0.001 / math.sqrt(2) + 1e-6))


def test_lost_samples_are_left_out():
    got = group_advantages(torch.tensor([[1.0, NAN, 0.0], [NAN, 5.0, NAN], [NAN, NAN, NAN]]))
    std = math.sqrt(0.5) + 1e-6
    assert torch.allclose(got, torch.tensor([[0.5 / std, 0, -0.5 / std], [0, 0, 0], [0, 0, 0]]))


def test_advantages_of_integers_and_bad_input():
    assert torch.allclose(
        group_advantages(torch.tensor([[1, 0]])), torch.tensor([[0.7071, -0.7071]]), atol=1e-4
    )
    with pytest.raises(ValueError, match="N x G"):
        group_advantages(torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="finite"):
        group_advantages(torch.tensor([[1.0, INF]]))


# Surrogate and aggregation (Eqs. 2', 4-7)


def test_token_level_by_hand():
    logprobs = logs([1.5, 1.1, 0.5], [0.5, 1.5, 1.0])
    loss, stats = loss_of(logprobs, [1.0, -2.0], [[1, 1, 1], [1, 1, 0]])
    # A = 1: 1.28 (clipped), 1.1, 0.5; A = -2: 0.8 * -2 (clipped), 1.5 * -2.
    assert loss.item() == pytest.approx(-(1.28 + 1.1 + 0.5 - 1.6 - 3.0) / 5)
    assert stats["clip_fraction_high"] == pytest.approx(1 / 5)
    assert stats["clip_fraction_low"] == pytest.approx(1 / 5)
    assert stats["ratio_mean"] == pytest.approx((1.5 + 1.1 + 0.5 + 0.5 + 1.5) / 5)
    k3 = sum(r - 1 - math.log(r) for r in (1.5, 1.1, 0.5, 0.5, 1.5)) / 5
    assert stats["kl_old"] == pytest.approx(k3)
    assert stats["n_units"] == 5


def test_sequence_level_by_hand():
    logprobs = logs([4.0, 1.0, 9.0], [0.25, 1.0, 1.0])
    loss, stats = loss_of(logprobs, [1.0, -1.0], [[1, 1, 0], [1, 1, 0]], SEQUENCE)
    # Ratios (4 * 1)^(1/2) = 2 and (1/4)^(1/2) = 0.5, clipped to 1.28 and 0.8.
    assert loss.item() == pytest.approx(-(1.28 - 0.8) / 2)
    assert stats["clip_fraction_high"] == stats["clip_fraction_low"] == 0.5
    assert stats["ratio_mean"] == pytest.approx(1.25)
    assert stats["n_units"] == 2


def test_sequence_ratio_is_length_normalised():
    one, _ = loss_of(logs([1.1, 1.0, 1.0, 1.0]), [1.0], [[1, 0, 0, 0]], SEQUENCE)
    four, _ = loss_of(logs([1.1, 1.1, 1.1, 1.1]), [1.0], None, SEQUENCE)
    assert one.item() == pytest.approx(-1.1) and four.item() == pytest.approx(-1.1)


def test_aggregations_weigh_long_responses_differently():
    logprobs, mask = logs([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]), [[1, 1, 1], [1, 0, 0]]
    assert loss_of(logprobs, [1.0, -1.0], mask)[0].item() == pytest.approx(-(3 - 1) / 4)
    assert loss_of(logprobs, [1.0, -1.0], mask, SEQUENCE)[0].item() == pytest.approx(0)


def test_clip_fractions_count_only_where_the_clip_binds():
    # Beyond a bound on the side that the minimum ignores: nothing is clipped.
    _, stats = loss_of(logs([0.5, 1.5]), [1.0])
    assert (stats["clip_fraction_low"], stats["clip_fraction_high"]) == (0.0, 0.5)
    _, stats = loss_of(logs([0.5, 1.5]), [-1.0])
    assert (stats["clip_fraction_low"], stats["clip_fraction_high"]) == (0.5, 0.0)
    _, stats = loss_of(logs([0.5, 1.5]), [0.0])
    assert (stats["clip_fraction_low"], stats["clip_fraction_high"]) == (0.0, 0.0)
    _, stats = loss_of(logs([0.81, 1.27]), [1.0])
    assert (stats["clip_fraction_low"], stats["clip_fraction_high"]) == (0.0, 0.0)


def test_dual_clip_bounds_negative_advantages_alone():
    recipe = dataclasses.replace(TOKEN, dual_clip=3.0)
    negative, stats = loss_of(logs([5.0, 2.0]), [-1.0], recipe=recipe)
    assert negative.item() == pytest.approx((3.0 + 2.0) / 2)
    assert stats["clip_fraction_dual"] == 0.5
    assert loss_of(logs([5.0, 2.0]), [-1.0])[0].item() == pytest.approx(3.5)
    positive, stats = loss_of(logs([5.0, 0.5]), [1.0], recipe=recipe)
    assert positive.item() == pytest.approx(-(1.28 + 0.5) / 2)
    assert stats["clip_fraction_dual"] == 0.0


def test_kl_is_k3_against_the_reference():
    recipe = dataclasses.replace(TOKEN, kl_beta=0.5)
    logprobs = torch.zeros(1, 2, dtype=torch.float64)
    loss, stats = loss_of(
        logprobs, [1.0], recipe=recipe, ref_logprobs_BxT=torch.tensor([[math.log(2.0), 0.0]])
    )
    kl = (2 - math.log(2) - 1) / 2
    assert stats["kl_ref"] == pytest.approx(kl, abs=1e-6)
    assert loss.item() == pytest.approx(-1 + 0.5 * kl, abs=1e-6)


def test_kl_gradient_pulls_towards_the_reference():
    recipe = dataclasses.replace(TOKEN, kl_beta=1.0)
    logprobs = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    ref = torch.full((1, 1), math.log(2.0), dtype=torch.float64)
    loss_of(logprobs, [0.0], recipe=recipe, ref_logprobs_BxT=ref)[0].backward()
    assert logprobs.grad.item() == pytest.approx(1 - 2)  # d/dlogp of exp(d) - d - 1


def test_a_reference_without_a_penalty_is_only_reported():
    args = random_batch()
    without, stats = policy_loss(*args[:4], TOKEN)
    given, stats_given = policy_loss(*args[:4], TOKEN, args[4])
    assert without == given
    assert stats_given["kl_ref"] > 0 and "kl_ref" not in stats


@pytest.mark.parametrize("recipe", [*RECIPES.values(), TOKEN, SEQUENCE], ids=lambda r: r.name)
@pytest.mark.parametrize(
    "changes", [{}, {"kl_beta": 0.3, "dual_clip": 1.5}, {"clip_low": 0.0, "clip_high": 0.0}]
)
def test_parity_with_a_plain_loop(recipe, changes):
    recipe = dataclasses.replace(recipe, **changes)
    for seed in range(5):
        logprobs, old, advantages, mask, ref = random_batch(seed=seed)
        loss, _ = policy_loss(logprobs, old, advantages, mask, recipe, ref)
        assert loss.item() == pytest.approx(
            loop_loss(logprobs, old, advantages, mask, recipe, ref), abs=1e-12
        )


# Denominators


def test_micro_batches_add_up_by_tokens_not_by_batches():
    # 1 token with loss 1, then 9 tokens with loss 0: the mean is 0.1.
    a, _ = loss_of(logs([1.0]), [-1.0], denominator=10)
    b, _ = loss_of(logs([1.0] * 9), [0.0], denominator=10)
    assert a.item() + b.item() == pytest.approx(0.1)


@pytest.mark.parametrize(
    "recipe", [TOKEN, SEQUENCE, RECIPES["GRPO-T"], RECIPES["GRPO-SCR"]], ids=lambda r: r.name
)
@pytest.mark.parametrize("cuts", [[6], [1, 5], [2, 2, 2], [1] * 6, [5, 1]])
def test_any_split_gives_the_same_loss_and_gradient(recipe, cuts):
    logprobs, old, advantages, mask, ref = random_batch()
    mask[3] = False  # a lost sample

    def gradient(parts, denominator):
        leaf = logprobs.clone().requires_grad_()
        total, at = 0.0, 0
        for n in parts:
            rows = slice(at, at + n)
            tensors = (leaf[rows], old[rows], advantages[rows], mask[rows])
            loss, _ = policy_loss(*tensors, recipe, ref[rows], denominator=denominator)
            loss.backward()
            total, at = total + loss.item(), at + n
        return total, leaf.grad

    whole, whole_grad = gradient([6], None)
    units = mask.sum() if recipe.aggregation == "token" else mask.any(1).sum()
    split, split_grad = gradient(cuts, units)
    assert split == pytest.approx(whole, abs=1e-12)
    assert torch.allclose(split_grad, whole_grad, atol=1e-12)
    assert whole_grad.abs().sum() > 0


# What is masked out never matters


@pytest.mark.parametrize("recipe", [TOKEN, SEQUENCE, RECIPES["GRPO-T"]], ids=lambda r: r.name)
@pytest.mark.parametrize("garbage", [INF, -INF, NAN, 1e30, -1e30])
def test_masked_values_never_matter(recipe, garbage):
    clean = random_batch()
    mask = clean[3]
    mask[2] = False
    results = []
    for fill in (0.0, garbage):
        logprobs, old, ref = (x.masked_fill(~mask, fill) for x in (clean[0], clean[1], clean[4]))
        advantages = clean[2].clone()
        advantages[2] = fill  # a response without a trained token
        leaf = logprobs.requires_grad_()
        loss, stats = policy_loss(leaf, old, advantages, mask, recipe, ref)
        loss.backward()
        results.append((loss.item(), stats, leaf.grad))
    assert results[0][:2] == results[1][:2]
    assert torch.equal(results[0][2], results[1][2])
    assert (results[1][2][~mask] == 0).all() and (results[1][2][mask] != 0).any()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32])
def test_mask_types(dtype):
    logprobs, old, advantages, mask, _ = random_batch()
    assert policy_loss(logprobs, old, advantages, mask.to(dtype), TOKEN) == policy_loss(
        logprobs, old, advantages, mask, TOKEN
    )


@pytest.mark.parametrize("recipe", [TOKEN, SEQUENCE], ids=lambda r: r.name)
@pytest.mark.parametrize("denominator", [None, 0, 7])
def test_an_empty_mask_gives_zero_with_a_gradient_path(recipe, denominator):
    logprobs = torch.full((2, 3), NAN, requires_grad=True)
    loss, stats = policy_loss(
        logprobs, logprobs, torch.tensor([1.0, -1.0]), torch.zeros(2, 3), recipe, denominator=denominator
    )
    loss.backward()
    assert loss.item() == 0 and logprobs.grad.tolist() == [[0.0] * 3] * 2
    assert set(stats.values()) == {0.0}


# Gradients


def test_gradient_at_the_sampling_policy_is_the_policy_gradient():
    logprobs = torch.full((2, 2), -1.0, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([2.0, -1.0], dtype=torch.float64)
    policy_loss(logprobs, logprobs, advantages, torch.tensor([[1, 1], [1, 0]]), TOKEN)[0].backward()
    assert torch.allclose(logprobs.grad, torch.tensor([[-2.0, -2.0], [1.0, 0.0]], dtype=torch.float64) / 3)


def test_a_clipped_unit_has_no_gradient():
    for ratio, advantage, flows in ((1.5, 1.0, 0), (1.5, -1.0, 1), (0.5, -1.0, 0), (0.5, 1.0, 1)):
        logprobs = logs([ratio]).requires_grad_()
        loss_of(logprobs, [advantage])[0].backward()
        assert logprobs.grad.item() == pytest.approx(-advantage * ratio * flows)
    logprobs = logs([11.0]).requires_grad_()
    loss_of(logprobs, [-1.0], recipe=dataclasses.replace(TOKEN, dual_clip=10.0))[0].backward()
    assert logprobs.grad.item() == 0


@pytest.mark.parametrize("recipe", [TOKEN, SEQUENCE], ids=lambda r: r.name)
def test_gradient_by_finite_differences(recipe):
    recipe = dataclasses.replace(recipe, kl_beta=0.3, dual_clip=1.5)
    logprobs, old, advantages, mask, ref = random_batch(B=3, T=4)
    assert torch.autograd.gradcheck(
        lambda x: policy_loss(x, old, advantages, mask, recipe, ref)[0], logprobs.requires_grad_()
    )


@pytest.mark.parametrize("recipe", [TOKEN, SEQUENCE, RECIPES["GRPO-T"]], ids=lambda r: r.name)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("gap", [1000.0, -1000.0])
def test_extreme_ratios_keep_loss_and_gradient_finite(recipe, advantage, gap):
    logprobs = torch.full((1, 2), gap, requires_grad=True)
    loss, _ = loss_of(logprobs, [advantage], recipe=recipe, ref_logprobs_BxT=torch.zeros(1, 2))
    loss.backward()
    assert loss.isfinite() and logprobs.grad.isfinite().all()


def test_nothing_but_the_policy_gets_a_gradient():
    tensors = [x.requires_grad_() if x.is_floating_point() else x for x in random_batch()]
    loss, stats = policy_loss(*tensors[:4], dataclasses.replace(TOKEN, kl_beta=0.1), tensors[4])
    loss.backward()
    assert tensors[0].grad is not None
    assert all(tensors[i].grad is None for i in (1, 2, 4))
    assert all(isinstance(v, float) for v in stats.values())


def test_half_precision_is_computed_in_float32():
    logprobs = torch.full((1, 2), -1.0, dtype=torch.bfloat16)
    loss, _ = loss_of(logprobs, [1.0])
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(-math.exp(-1), rel=1e-6)


# Bad input


def test_bad_input_is_named():
    logprobs, old, advantages, mask, ref = random_batch()

    def call(*args, recipe=TOKEN, **kwargs):
        return policy_loss(*args, recipe, **kwargs)

    with pytest.raises(ValueError, match="ref_logprobs are needed"):
        call(logprobs, old, advantages, mask, recipe=RECIPES["GRPO-T"])
    for args, name in (
        ((logprobs[0], old, advantages, mask), "B x T"),
        ((logprobs, old[:, 1:], advantages, mask), "old_logprobs"),
        ((logprobs, old, advantages[1:], mask), "advantages"),
        ((logprobs, old, advantages[:, None], mask), "advantages"),
        ((logprobs, old, advantages, mask[:1]), "mask"),
    ):
        with pytest.raises(ValueError, match=name):
            call(*args)
    with pytest.raises(ValueError, match="ref_logprobs"):
        call(logprobs, old, advantages, mask, ref_logprobs_BxT=ref[:, 1:])
    for denominator in (0, -1, NAN, INF):
        with pytest.raises(ValueError, match="denominator"):
            call(logprobs, old, advantages, mask, denominator=denominator)
    with pytest.raises(ValueError, match="aggregation"):
        call(logprobs, old, advantages, mask, recipe=dataclasses.replace(TOKEN, aggregation="word"))
    with pytest.raises(ValueError, match="dual_clip"):
        call(logprobs, old, advantages, mask, recipe=dataclasses.replace(TOKEN, dual_clip=0.5))


# Entropy


def test_entropy_by_hand():
    logits = torch.log(torch.tensor([[[0.5, 0.5, 1e-30], [1.0, 1.0, 1.0], [0.9, 0.1, 1e-30]]]))
    got = token_entropy(logits, torch.tensor([[1, 1, 0]]))
    assert got.item() == pytest.approx((math.log(2) + math.log(3)) / 2, abs=1e-6)


def test_entropy_with_forbidden_tokens_and_masked_garbage():
    logits = torch.tensor([[[0.0, 0.0, -INF], [NAN, INF, 1.0]]], requires_grad=True)
    got = token_entropy(logits, torch.tensor([[True, False]]))
    assert got.item() == pytest.approx(math.log(2), abs=1e-6)
    got.backward()
    assert logits.grad.isfinite().all()


def test_entropy_gradient_lowers_peaks():
    logits = torch.tensor([[[2.0, 0.0]]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: token_entropy(x, torch.ones(1, 1)), logits)


def test_entropy_of_nothing_and_bad_shapes():
    logits = torch.zeros(1, 2, 3, requires_grad=True)
    got = token_entropy(logits, torch.zeros(1, 2))
    got.backward()
    assert got.item() == 0 and logits.grad.abs().sum() == 0
    with pytest.raises(ValueError, match="B x T"):
        token_entropy(torch.zeros(1, 2, 3), torch.zeros(2, 1))
