"""The experiments as lists of run configs, made from a profile. Nothing here trains by itself."""

from __future__ import annotations

from agentrl.runs import RunConfig
from agentrl.settings import Profile, flatten
from agentrl.train.models import model_sha256


def _values(profile: Profile, *parts: str) -> dict:
    """The profile's values under `parts`: what decides a run, and nothing else."""
    return {k: v for k, v in flatten(profile).items() if k.split(".")[0] in parts}


def data_run(profile: Profile) -> RunConfig:
    """The teacher's trajectories for fine-tuning."""
    values = _values(profile, "tasks", "teacher", "rollout")
    return RunConfig("data", "real", "agentrl.data:run", profile.seed, values)


def sft_run(profile: Profile) -> RunConfig:
    """The base, fine-tuned on the teacher's trajectories."""
    values = _values(profile, "base", "threads", "sft") | {"model_sha256": model_sha256(profile.base)}
    name = profile.base.rsplit(":", 1)[-1].rsplit("/", 1)[-1]
    return RunConfig("sft", name, "agentrl.train.sft:run", profile.seed, values, {"data": data_run(profile)})


def rl_run(profile: Profile) -> RunConfig:
    """Reinforcement learning with the profile's recipe, from the fine-tuned model."""
    values = _values(profile, "threads", "tasks", "rollout", "rl", "recipe")
    return RunConfig(
        "rl", profile.recipe.name, "agentrl.train.rl:run", profile.seed, values, {"model": sft_run(profile)}
    )


def eval_run(profile: Profile, model: RunConfig | None, split: str) -> RunConfig:
    """`model` (or, where None, the base as it is shipped) on `split`."""
    values = _values(profile, "threads", "tasks", "rollout", "eval") | {"split": split}
    if model is None:
        values |= {"base": profile.base, "model_sha256": model_sha256(profile.base)}
    name = f"{model.kind if model else 'base'}-{split}"
    inputs = {"model": model} if model else {}
    return RunConfig("eval", name, "agentrl.evaluate:run", profile.seed, values, inputs)
