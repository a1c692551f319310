"""Settings: the paper's recipes and the profiles, as frozen values. Nothing here reads the environment.

`TABLE` is the one place where a number lives: a row a setting, a column a profile. `load_profile` turns a
column into a `Profile`, with overrides checked by name and type.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from agentrl.settings import Profile, Recipe, build, flatten

RECIPES = {
    r.name: r
    for r in (
        Recipe("GRPO-T", "token", 0.2, 0.2, 0.001, False, 10.0),
        Recipe("GRPO-TCR", "token", 0.2, 0.28, 0.0, True, 10.0),
        Recipe("GRPO-SCR", "sequence", 0.0003, 0.0004, 0.0, True, None),
    )
}


PROFILES = ("smoke", "tiny")
_FAMILIES = "world:gcd,lcm,products,chain_sum,count_bits,count_primes"

# key: one value for all profiles, or a tuple with one value a profile, in the order of PROFILES.
TABLE: dict[str, Any] = {
    "seed": 0,
    "base": "world:strong",
    "threads": 2,
    "tasks.source": _FAMILIES,
    "tasks.train": (400, 3000),
    "tasks.validation": (24, 72),
    "tasks.test": (24, 120),
    "teacher.trajectories": (400, 3000),
    "sft.steps": (25, 250),
    "sft.batch": 32,
    "sft.lr": 1e-3,
    "sft.warmup": (5, 20),
    "sft.grad_clip": 1.0,
    "rollout.max_turns": 4,
    "rollout.max_tokens": 160,
    "rollout.temperature": 1.0,
    "rollout.top_p": 1.0,
    "rollout.tool_timeout_s": 5.0,
    "rollout.tool_cpu_s": 1.0,
    "rollout.tool_memory_mb": 512,
    "rollout.tool_budget_s": 10.0,
    "rollout.max_tool_output_chars": 64,
    "rollout.tool_error_lines": 1,
    "rollout.reward.variant": "paper",
    "rollout.reward.overlong_max_tokens": 160,
    "rollout.reward.overlong_cache_tokens": 32,
    "rollout.reward.count_tool_tokens": False,
    "rl.steps": (4, 32),
    "rl.prompts": (8, 16),
    "rl.group": 8,
    "rl.updates": (2, 4),  # 4 in the paper; with 1 the ratio is 1 and clipping never acts
    "rl.lr": (3e-4, 1.5e-4),  # four updates at 3e-4 forgot a family late in one run
    "rl.grad_clip": 1.0,
    "rl.micro_batch": 32,
    "rl.eval_every": (2, 8),
    "rl.eval_tasks": (24, 72),
    "rl.eval_samples": (2, 4),
    "recipe": "GRPO-TCR",
    "eval.samples": (4, 8),
    "eval.temperature": 1.0,
    "eval.top_p": 1.0,
}  # fmt: skip


def load_profile(name: str, /, **overrides: Any) -> Profile:
    """The profile `name` with `overrides` applied.

    A key is dotted ("rl.steps"), or its last part alone where that is unique. `recipe` takes a recipe's
    name; `recipe.clip_high` and its siblings then change it. Raises ValueError, listing or suggesting what
    is known, on an unknown profile or key, and on a value of the wrong type or out of range.
    """
    if name not in PROFILES:
        raise ValueError(f"unknown profile {name!r}; known profiles: {', '.join(PROFILES)}")
    column = PROFILES.index(name)
    values = {k: v[column] if isinstance(v, tuple) else v for k, v in TABLE.items()}
    applied = {resolve_key(k): v for k, v in overrides.items()}
    recipe = applied.get("recipe", values["recipe"])
    if not isinstance(recipe, str) or recipe not in RECIPES:
        raise ValueError(f"recipe: unknown recipe {recipe!r}; known recipes: {', '.join(RECIPES)}")
    values.pop("recipe")
    values |= {f"recipe.{k}": v for k, v in dataclasses.asdict(RECIPES[recipe]).items()}
    values |= {k: v for k, v in applied.items() if k != "recipe"}
    profile = build(Profile, values | {"name": name, "overrides": applied})
    _check(profile)
    return profile


def known_keys() -> list[str]:
    """Every key that can be overridden, dotted."""
    recipe_fields = [f.name for f in dataclasses.fields(Recipe) if f.name != "name"]
    return [*TABLE, *(f"recipe.{f}" for f in recipe_fields)]


def resolve_key(key: str) -> str:
    """The dotted form of `key`. Raises ValueError with the nearest known key, or the candidates."""
    keys = known_keys()
    if key in keys:
        return key
    by_tail = [k for k in keys if k.rsplit(".", 1)[-1] == key]
    if len(by_tail) == 1:
        return by_tail[0]
    if by_tail:
        raise ValueError(f"parameter {key!r} could be {' or '.join(by_tail)}; write it in full")
    tails = {k.rsplit(".", 1)[-1]: k for k in keys}
    near = difflib.get_close_matches(key, [*keys, *tails], n=1, cutoff=0.5)
    hint = f"; did you mean {tails.get(near[0], near[0])!r}?" if near else ""
    raise ValueError(f"unknown parameter {key!r}{hint} Known: {', '.join(keys)}")


def profile_values(profile: Profile) -> dict[str, Any]:
    """The profile as a flat table of dotted keys, for manifests and for reading beside another one."""
    return flatten(profile)


def _check(profile: Profile) -> None:
    """Raise ValueError where a value can't be meant."""
    values = profile_values(profile)
    zero_allowed = {  # not rollout.temperature: at 0 a group's samples are all alike, and nothing is learned
        "seed", "sft.warmup", "eval.temperature", "rollout.tool_error_lines",
        "rollout.reward.overlong_cache_tokens", "recipe.kl_beta", "recipe.clip_low", "recipe.clip_high",
    }  # fmt: skip
    for key, value in values.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            least = "0 or above" if key in zero_allowed else "above 0"
            if not 0 <= value < float("inf") or (value == 0 and key not in zero_allowed):
                raise ValueError(f"{key}: {value!r} is out of range; it must be a finite number, {least}")
    if profile.rl.group < 2:
        raise ValueError("rl.group: a group needs at least 2 rollouts, or no advantage exists (Eq. 3)")
    if profile.rl.prompts > profile.tasks.train:
        raise ValueError("rl.prompts: larger than tasks.train, so that no batch could be filled")
    for key in ("tasks.test", "rl.eval_tasks"):
        if values[key] < 2:
            raise ValueError(f"{key}: an interval over problems needs at least 2")
    if profile.seed >= 2**32:
        raise ValueError("seed: must be below 2**32")
    if profile.recipe.dual_clip is not None and profile.recipe.dual_clip <= 1:
        raise ValueError("recipe.dual_clip: must be above 1, or null for off")
    if profile.rl.prompts % profile.rl.updates:
        raise ValueError("rl.updates: must divide rl.prompts, so that every update sees whole groups")
    per_update = profile.rl.prompts * profile.rl.group // profile.rl.updates
    if per_update % profile.rl.micro_batch:
        raise ValueError(f"rl.micro_batch: must divide the {per_update} trajectories of an update")
    if values["rollout.reward.overlong_cache_tokens"] > values["rollout.reward.overlong_max_tokens"]:
        raise ValueError("rollout.reward.overlong_cache_tokens: larger than overlong_max_tokens")
    for key in ("rollout.top_p", "eval.top_p"):
        if values[key] > 1:
            raise ValueError(f"{key}: {values[key]!r} is out of range; it must lie in (0, 1]")
    if profile.rl.eval_tasks > profile.tasks.validation:
        raise ValueError("rl.eval_tasks: larger than tasks.validation")
