"""Profiles, recipes and overrides."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl import config
from agentrl.config import PROFILES, RECIPES, TABLE, known_keys, load_profile, profile_values, resolve_key
from agentrl.settings import Profile, Recipe, RolloutConfig, build, flatten

ROOT = Path(config.__file__).parents[1]


# Profiles


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_loads(name):
    profile = load_profile(name)
    assert (profile.name, profile.seed, profile.overrides) == (name, 0, {})
    assert profile.recipe == RECIPES[profile.recipe.name]
    values = profile_values(profile)
    assert {k for k in values if not k.startswith("recipe.") and k != "name"} == set(TABLE) - {"recipe"}
    json.dumps(values)


def test_table_has_one_value_a_profile():
    assert all(len(v) == len(PROFILES) for v in TABLE.values() if isinstance(v, tuple))


def test_profiles_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_profile("tiny").rl.steps = 3


def test_unknown_profile_lists_the_known():
    for name in ("tyni", "", "Tiny", None, 3):
        with pytest.raises(ValueError, match="smoke.*tiny"):
            load_profile(name)


def test_profile_survives_flatten_and_build():
    profile = load_profile("tiny", **{"recipe.dual_clip": None, "rl.lr": 1e-4})
    assert build(Profile, flatten(profile) | {"overrides": {}}) == profile
    values = json.loads(json.dumps(flatten(profile)))
    assert build(RolloutConfig, values, "rollout.") == profile.rollout
    assert build(Recipe, values, "recipe.") == profile.recipe


# Overrides


@pytest.mark.parametrize(
    "key, value, read",
    [
        ("rl.steps", 7, lambda p: p.rl.steps),
        ("lr", None, None),
        ("rl.lr", 1e-5, lambda p: p.rl.lr),
        ("max_turns", 9, lambda p: p.rollout.max_turns),
        ("rollout.reward.variant", "released", lambda p: p.rollout.reward.variant),
        ("count_tool_tokens", True, lambda p: p.rollout.reward.count_tool_tokens),
        ("seed", 5, lambda p: p.seed),
        ("clip_high", 0.315, lambda p: p.recipe.clip_high),
        ("recipe.clip_high", 0.35, lambda p: p.recipe.clip_high),
        ("kl_beta", 0, lambda p: p.recipe.kl_beta),
        ("dual_clip", None, lambda p: p.recipe.dual_clip),
        ("overlong", False, lambda p: p.recipe.overlong),
        ("aggregation", "sequence", lambda p: p.recipe.aggregation),
        ("eval.temperature", 0.0, lambda p: p.eval.temperature),
    ],
)
def test_override_in_full_or_by_its_last_part(key, value, read):
    if read is None:  # sft.lr or rl.lr
        with pytest.raises(ValueError, match="sft.lr or rl.lr"):
            load_profile("tiny", **{key: 1e-3})
        return
    profile = load_profile("tiny", **{key: value})
    assert read(profile) == value
    assert profile.overrides == {resolve_key(key): value}
    changed = {k for k, v in profile_values(profile).items() if v != profile_values(load_profile("tiny"))[k]}
    assert changed <= {resolve_key(key)}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_by_name_then_changed(name):
    assert load_profile("tiny", recipe=name).recipe == RECIPES[name]
    for overrides in ({"recipe": name, "recipe.clip_high": 0.5}, {"clip_high": 0.5, "recipe": name}):
        assert load_profile("tiny", **overrides).recipe == dataclasses.replace(RECIPES[name], clip_high=0.5)


def test_unknown_recipe_lists_the_known():
    for name in ("GRPO", "grpo-tcr", None, 3, ["GRPO-T"]):
        with pytest.raises(ValueError, match="GRPO-TCR"):
            load_profile("tiny", recipe=name)


@pytest.mark.parametrize(
    "key, suggested",
    [
        ("clip_hihg", "recipe.clip_high"),
        ("recipe.clip_hihg", "recipe.clip_high"),
        ("max_turn", "rollout.max_turns"),
        ("rl.step", "rl.steps"),
        ("rollout.temprature", "rollout.temperature"),
        ("task.train", "tasks.train"),
    ],
)
def test_misspelt_key_suggests_the_nearest(key, suggested):
    with pytest.raises(ValueError) as error:
        load_profile("tiny", **{key: 0.3})
    assert repr(key) in str(error.value) and f"did you mean {suggested!r}" in str(error.value)


@pytest.mark.parametrize(
    "key", ["zzzzzz", "", ".", "rl", "rl.", "recipe.name", "recipe.", "Rl.Steps", "overrides"]
)
def test_unknown_key_lists_the_known(key):
    with pytest.raises(ValueError, match="rl.steps.*recipe.clip_high"):
        load_profile("tiny", **{key: 1})


def test_ambiguous_key_names_the_candidates():
    with pytest.raises(ValueError, match="rollout.temperature or eval.temperature"):
        load_profile("tiny", temperature=0.5)
    for key in ("steps", "lr", "train", "top_p", "grad_clip"):
        if sum(k.rsplit(".", 1)[-1] == key for k in known_keys()) > 1:
            with pytest.raises(ValueError, match=" or "):
                resolve_key(key)


@pytest.mark.parametrize("key", ["rl.steps", "recipe.clip_high", "seed", "rollout.reward.variant"])
def test_every_full_key_is_its_own(key):
    assert resolve_key(key) == key
    assert all(resolve_key(k) == k for k in known_keys())


@pytest.mark.parametrize("key", ["name", "recipe.name"])
def test_names_are_no_keys(key):
    with pytest.raises(ValueError, match="rl.steps"):
        load_profile("tiny", **{key: "mine"})


@pytest.mark.parametrize(
    "key, value",
    [
        ("rl.steps", "7"), ("rl.steps", 7.0), ("rl.steps", True), ("rl.steps", None), ("rl.steps", [7]),
        ("rl.lr", "1e-3"), ("rl.lr", True), ("rl.lr", None), ("base", 3), ("base", None), ("overlong", 1),
        ("overlong", "yes"), ("count_tool_tokens", 0), ("aggregation", "word"), ("aggregation", None),
        ("variant", "Paper"), ("variant", ["paper"]), ("dual_clip", "off"), ("dual_clip", False),
        ("seed", 1.5), ("tasks.source", ["world:gcd"]),
    ],
)  # fmt: skip
def test_wrong_type_names_the_key(key, value):
    with pytest.raises(ValueError, match=resolve_key(key)):
        load_profile("tiny", **{key: value})


@pytest.mark.parametrize(
    "key, value",
    [
        ("rl.steps", 0), ("rl.steps", -1), ("rl.lr", 0.0), ("rl.lr", -1e-3), ("rl.lr", math.nan),
        ("rl.lr", math.inf), ("group", 1), ("group", 0), ("rollout.top_p", 1.5), ("eval.top_p", 0.0),
        ("rollout.temperature", -0.1),
        ("clip_high", -0.1), ("dual_clip", 0.0), ("dual_clip", -3), ("max_tokens", 0), ("eval_tasks", 10_000),
        ("rl.updates", 3), ("seed", -1), ("tool_timeout_s", math.inf), ("threads", 0),
    ],
)  # fmt: skip
def test_out_of_range_names_the_key(key, value):
    with pytest.raises(ValueError, match=resolve_key(key)):
        load_profile("tiny", **{key: value})


def test_length_penalty_fits_its_maximum():
    with pytest.raises(ValueError, match="overlong_cache_tokens"):
        load_profile("tiny", overlong_max_tokens=100, overlong_cache_tokens=101)
    load_profile("tiny", overlong_max_tokens=100, overlong_cache_tokens=100)


def test_micro_batches_fill_an_update():
    with pytest.raises(ValueError, match="micro_batch"):
        load_profile("tiny", micro_batch=33)


def test_whole_numbers_are_fine_for_decimals():
    assert load_profile("tiny", tool_timeout_s=3).rollout.tool_timeout_s == 3.0
    assert isinstance(load_profile("tiny", tool_timeout_s=3).rollout.tool_timeout_s, float)


# Recipes


def test_recipes_are_the_paper_s():
    """Section 2.3 and App. A.1; the dual clip is the released code's."""
    assert RECIPES == {
        "GRPO-T": Recipe("GRPO-T", "token", 0.20, 0.20, 0.001, False, 10.0),
        "GRPO-TCR": Recipe("GRPO-TCR", "token", 0.20, 0.28, 0.0, True, 10.0),
        "GRPO-SCR": Recipe("GRPO-SCR", "sequence", 0.0003, 0.0004, 0.0, True, RECIPES["GRPO-SCR"].dual_clip),
    }
    fields = [f.name for f in dataclasses.fields(Recipe)]
    assert fields[:7] == ["name", "aggregation", "clip_low", "clip_high", "kl_beta", "overlong", "dual_clip"]


# Imports


@pytest.mark.parametrize(
    "modules",
    ["agentrl", "agentrl.config", "agentrl.types", "agentrl.policy", "agentrl.show", "agentrl.runs"],
)
def test_light_modules_load_no_torch(modules):
    heavy = ("torch", "transformers", "trl", "vllm", "datasets")
    code = f"import {modules}, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"tasks.train": 4}, "rl.prompts: larger than tasks.train"),
        ({"tasks.test": 1}, "tasks.test: an interval"),
        ({"rl.eval_tasks": 1}, "rl.eval_tasks: an interval"),
        ({"seed": 2**32}, "seed: must be below"),
        ({"seed": -1}, "finite number, 0 or above"),
        ({"recipe.dual_clip": 0.5}, "dual_clip: must be above 1"),
        ({"rollout.temperature": 0}, "rollout.temperature"),
        ({"rl.lr": 0}, "finite number, above 0"),
    ],
)
def test_what_would_fail_late_is_refused_early(overrides, message):
    with pytest.raises(ValueError, match=message):
        load_profile("smoke", **overrides)
