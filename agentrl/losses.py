"""The policy objective as pure functions on tensors: paper, section 1, Eqs. 2'-7.

Shapes: N prompts, G responses a prompt, B = N * G responses, T completion positions, V vocabulary entries.
Log-probabilities and entropies are in nats.

Two differences from the printed equations, both as in the released code: the ratio's denominator is the
policy that sampled (the paper writes pi_ref), and the token mean runs over the whole batch (the paper prints
it for one prompt's responses).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agentrl.settings import Recipe

ADVANTAGE_EPS = 1e-6  # added to the standard deviation, as in the released code
MAX_LOG_RATIO = 20.0  # exp() of more is a broken pair of policies; the bound keeps inf * 0 out of gradients
_SPREAD_TOLERANCE = 4 * torch.finfo(torch.float32).eps  # relative to the group's largest reward


def group_advantages(rewards_NxG: Tensor) -> Tensor:
    """Each response's advantage over its group (Eq. 3): (r - mean) / (std + 1e-6), std with G - 1.

    `rewards_NxG` holds one prompt's G rewards a row; the result has its shape, and its dtype where that is a
    floating one (else float32). A group without spread, rounding apart, gives exactly 0. A NaN reward (a
    lost sample) is left out of mean and deviation and gets 0; with fewer than two left all get 0. Raises
    ValueError on another shape and on an infinite reward.
    """
    rewards_NxG = torch.as_tensor(rewards_NxG)
    if rewards_NxG.dim() != 2:
        raise ValueError(f"rewards must have shape N x G, got {tuple(rewards_NxG.shape)}")
    if torch.isinf(rewards_NxG).any():
        raise ValueError("rewards must be finite, or NaN for a lost sample")
    dtype = rewards_NxG.dtype if rewards_NxG.is_floating_point() else torch.float32
    kept_NxG = ~torch.isnan(rewards_NxG)
    rewards_NxG = rewards_NxG.double().masked_fill(~kept_NxG, 0.0)
    n_kept_Nx1 = kept_NxG.sum(1, keepdim=True)
    mean_Nx1 = rewards_NxG.sum(1, keepdim=True) / n_kept_Nx1.clamp(min=1)
    centred_NxG = (rewards_NxG - mean_Nx1).masked_fill(~kept_NxG, 0.0)
    std_Nx1 = (centred_NxG.square().sum(1, keepdim=True) / (n_kept_Nx1 - 1).clamp(min=1)).sqrt()
    # 0.1 + 0.2 and 0.3 are the same reward: without this, rounding would be blown up to advantages of +-1.
    size_Nx1 = rewards_NxG.abs().amax(1, keepdim=True) if rewards_NxG.shape[1] else mean_Nx1
    flat_Nx1 = std_Nx1 <= _SPREAD_TOLERANCE * size_Nx1
    return (centred_NxG / (std_Nx1 + ADVANTAGE_EPS)).masked_fill(flat_Nx1, 0.0).to(dtype)


def policy_loss(
    logprobs_BxT: Tensor,
    old_logprobs_BxT: Tensor,
    advantages_B: Tensor,
    mask_BxT: Tensor,
    recipe: Recipe,
    ref_logprobs_BxT: Tensor | None = None,
    denominator: float | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The clipped surrogate with its KL penalty (Eq. 2'), negated to be minimised. Returns (loss, stats).

    A unit is what the recipe aggregates over: with "token" a masked-in token, ratio pi / pi_old (Eqs. 4, 6);
    with "sequence" a response with at least one masked-in token, ratio (pi / pi_old)^(1/|R|) with |R| its
    masked-in tokens (Eqs. 5, 7). The loss is the sum over units of

        -(min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) - kl_beta KL)

    divided by `denominator`, which defaults to the number of units here. To split a batch into
    micro-batches, give each the whole batch's number of units: losses and gradients then add up exactly.
    Where A < 0, `recipe.dual_clip` = c bounds a unit's surrogate from below by c A. KL is the k3 estimator
    of KL(pi || pi_ref), exp(d) - d - 1 with d = log pi_ref - log pi, for a sequence its mean over tokens.

    `mask_BxT` (boolean or numbers, nonzero = trained on) decides alone: values elsewhere may be infinite or
    NaN. No gradient flows into `old_logprobs_BxT`, `advantages_B` or `ref_logprobs_BxT`. Half precision is
    computed in float32. Log-ratios above 20, d included, are held at 20 with no gradient. With nothing
    masked in the loss is 0 and still has a gradient path.

    `stats` are floats over the units here, 0.0 where there are none:
        clip_fraction_high  share of units with A > 0 and ratio > 1 + clip_high
        clip_fraction_low   share of units with A < 0 and ratio < 1 - clip_low
        clip_fraction_dual  share of units with A < 0 and ratio > dual_clip
        ratio_mean          mean ratio
        kl_old              mean of ratio - 1 - log ratio, the k3 estimate of KL(pi_old || pi), nats
        kl_ref              mean KL as above, nats; only where `ref_logprobs_BxT` is given
        n_units             number of units: the weight with which micro-batches' stats average

    Raises ValueError on shapes that don't match, on a missing reference where kl_beta > 0, on an unknown
    aggregation, on dual_clip <= 1 and on a denominator that isn't a positive number.
    """
    _check_inputs(logprobs_BxT, old_logprobs_BxT, advantages_B, mask_BxT, recipe, ref_logprobs_BxT)
    mask_BxT = mask_BxT.bool()
    logprobs_BxT = _masked(logprobs_BxT, mask_BxT)
    log_ratio_BxT = logprobs_BxT - _masked(old_logprobs_BxT.detach(), mask_BxT)
    kl_BxT = None
    if ref_logprobs_BxT is not None:
        kl_BxT = _k3(_masked(ref_logprobs_BxT.detach(), mask_BxT) - logprobs_BxT)

    # From here on "U" is the axis of units: B x T tokens or B responses; `unit_U` says which exist.
    advantages_U = advantages_B.detach().to(logprobs_BxT.dtype)
    if recipe.aggregation == "token":
        unit_U, log_ratio_U, kl_U = mask_BxT, log_ratio_BxT, kl_BxT
        advantages_U = advantages_U[:, None].expand_as(mask_BxT)
    else:
        unit_U = mask_BxT.any(1)
        log_ratio_U = _response_mean(log_ratio_BxT, mask_BxT)
        kl_U = None if kl_BxT is None else _response_mean(kl_BxT, mask_BxT)
    log_ratio_U = log_ratio_U.clamp(max=MAX_LOG_RATIO)
    ratio_U = log_ratio_U.exp()

    objective_U = _clipped_surrogate(ratio_U, advantages_U, recipe)
    if recipe.kl_beta:
        objective_U = objective_U - recipe.kl_beta * kl_U
    total = objective_U.masked_fill(~unit_U, 0.0).sum()
    stats = _stats(ratio_U, log_ratio_U, kl_U, advantages_U, unit_U, recipe)
    return -total / _checked_denominator(denominator, stats["n_units"]), stats


def token_entropy(logits_BxTxV: Tensor, mask_BxT: Tensor) -> Tensor:
    """Mean entropy of the next-token distribution over masked-in positions, in nats: a scalar tensor.

    Position t of `mask_BxT` (boolean or numbers, nonzero = counted) belongs to `logits_BxTxV[:, t]`. Logits
    elsewhere never matter, and a logit of -inf (a forbidden token) contributes 0. With nothing masked in
    the result is 0 and still has a gradient path. Raises ValueError on shapes that don't match.
    """
    if logits_BxTxV.dim() != 3 or logits_BxTxV.shape[:2] != mask_BxT.shape:
        raise ValueError(
            "logits B x T x V and mask B x T don't match: "
            f"{tuple(logits_BxTxV.shape)}, {tuple(mask_BxT.shape)}"
        )
    logits_MxV = logits_BxTxV[mask_BxT.bool()]  # M masked-in positions
    logprobs_MxV = torch.log_softmax(_at_least_float32(logits_MxV), dim=-1)
    finite_MxV = logprobs_MxV.masked_fill(logprobs_MxV.detach() == -math.inf, 0.0)  # 0 log 0 = 0
    entropy_M = -(logprobs_MxV.exp() * finite_MxV).sum(-1)
    return entropy_M.sum() / max(entropy_M.numel(), 1)


def _check_inputs(logprobs_BxT, old_logprobs_BxT, advantages_B, mask_BxT, recipe, ref_logprobs_BxT) -> None:
    if logprobs_BxT.dim() != 2:
        raise ValueError(f"logprobs must have shape B x T, got {tuple(logprobs_BxT.shape)}")
    beside = {"old_logprobs": old_logprobs_BxT, "mask": mask_BxT, "ref_logprobs": ref_logprobs_BxT}
    for name, values in beside.items():
        if values is not None and values.shape != logprobs_BxT.shape:
            raise ValueError(
                f"{name} must have the shape of logprobs, {tuple(logprobs_BxT.shape)}, "
                f"got {tuple(values.shape)}"
            )
    if advantages_B.shape != logprobs_BxT.shape[:1]:
        raise ValueError(
            f"advantages must have one value a response, shape ({logprobs_BxT.shape[0]},), "
            f"got {tuple(advantages_B.shape)}"
        )
    if recipe.aggregation not in ("token", "sequence"):
        raise ValueError(f"unknown aggregation {recipe.aggregation!r}; known: token, sequence")
    if recipe.kl_beta and ref_logprobs_BxT is None:
        raise ValueError(f"recipe {recipe.name!r} has kl_beta {recipe.kl_beta}: ref_logprobs are needed")
    if recipe.dual_clip is not None and recipe.dual_clip <= 1:
        raise ValueError(f"dual_clip must be above 1, or None for off; got {recipe.dual_clip}")


def _checked_denominator(denominator: float | None, n_units: float) -> float:
    if denominator is None or (float(denominator) == 0 and n_units == 0):  # a batch that lost every sample
        return max(n_units, 1.0)
    denominator = float(denominator)
    if not 0 < denominator < math.inf:
        raise ValueError(f"denominator must be a positive number, got {denominator}")
    return denominator


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _masked(values_BxT: Tensor, mask_BxT: Tensor) -> Tensor:
    """`values_BxT` with 0 wherever the mask is 0: before any arithmetic, so that gradients stay clean too."""
    return _at_least_float32(values_BxT).masked_fill(~mask_BxT, 0.0)


def _response_mean(values_BxT: Tensor, mask_BxT: Tensor) -> Tensor:
    """Mean over each response's masked-in tokens, shape B; 0 for a response with none."""
    return values_BxT.sum(1) / mask_BxT.sum(1).clamp(min=1)


def _k3(d: Tensor) -> Tensor:
    """Schulman's k3 estimate exp(d) - d - 1: unbiased for KL(p || q) with d = log q - log p drawn from p."""
    d = d.clamp(max=MAX_LOG_RATIO)
    return d.exp() - d - 1


def _clipped_surrogate(ratio_U: Tensor, advantages_U: Tensor, recipe: Recipe) -> Tensor:
    clipped_U = ratio_U.clamp(1 - recipe.clip_low, 1 + recipe.clip_high)
    surrogate_U = torch.minimum(ratio_U * advantages_U, clipped_U * advantages_U)
    if recipe.dual_clip is None:
        return surrogate_U
    floor_U = recipe.dual_clip * advantages_U
    return torch.where(advantages_U < 0, torch.maximum(surrogate_U, floor_U), surrogate_U)


@torch.no_grad()
def _stats(ratio_U, log_ratio_U, kl_U, advantages_U, unit_U, recipe: Recipe) -> dict[str, float]:
    dual_clip = math.inf if recipe.dual_clip is None else recipe.dual_clip
    summed = {
        "clip_fraction_high": (advantages_U > 0) & (ratio_U > 1 + recipe.clip_high),
        "clip_fraction_low": (advantages_U < 0) & (ratio_U < 1 - recipe.clip_low),
        "clip_fraction_dual": (advantages_U < 0) & (ratio_U > dual_clip),
        "ratio_mean": ratio_U,
        "kl_old": ratio_U - 1 - log_ratio_U,
    }
    if kl_U is not None:
        summed["kl_ref"] = kl_U
    sums = [values.double().masked_fill(~unit_U, 0.0).sum() for values in summed.values()]
    *sums, n_units = torch.stack([*sums, unit_U.sum().double()]).tolist()  # one transfer from the device
    means = [total / max(n_units, 1.0) for total in sums]
    return dict(zip(summed, means, strict=True)) | {"n_units": n_units}
