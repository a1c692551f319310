"""The trainers: masks, micro-batches and steps, on a random tiny model and on made-up groups."""

import dataclasses

import pandas as pd
import pytest
import torch

from agentrl import losses
from agentrl.config import RECIPES, load_profile
from agentrl.data import load_tasks
from agentrl.policy import HFPolicy, ScriptedPolicy
from agentrl.rollout import collect
from agentrl.sandbox import Sandbox
from agentrl.train import models, rl, sft
from agentrl.types import Reward, TrajectoryGroup
from agentrl.world import base, teacher, tokenizer

SETTINGS = {
    "rl.steps": 2,
    "rl.updates": 1,
    "rl.prompts": 4,
    "rl.group": 4,
    "rl.micro_batch": 4,
    "sft.steps": 3,
    "sft.batch": 4,
}


@pytest.fixture(scope="module")
def tok():
    return tokenizer.load()


@pytest.fixture(scope="module")
def profile():
    return load_profile("smoke", **SETTINGS)


@pytest.fixture
def model(tok):
    return base.new_model(
        dataclasses.replace(base.BASES["strong"], layers=1, hidden=32, feed_forward=32), len(tok)
    )


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(level="L0") as box:
        yield box


@pytest.fixture(scope="module")
def groups(tok, profile, sandbox):
    """Teacher's groups, with rewards that make the first flat and lose a sample of the second."""
    tasks = load_tasks(profile.tasks.source, "train", 4)
    found = collect(teacher.teacher(tok), tasks, sandbox, 4, profile.rollout, seed=3)
    rewards = [[1.0] * 4, [1.0, -1.0, float("nan"), 0.5], [0.1, 0.2, 0.3, 0.4], [-1.0, 1.0, 1.0, 1.0]]
    return [
        TrajectoryGroup(
            g.task,
            tuple(dataclasses.replace(t, reward=Reward(r)) for t, r in zip(g.trajectories, row, strict=True)),
        )
        for g, row in zip(found, rewards, strict=True)
    ]


def trainer_for(model, tok, profile, recipe, tmp_path, sample=None, **changes):
    settings = dataclasses.replace(profile.rl, **changes)
    args = rl.grpo_config(settings, recipe, profile.rollout, 0, str(tmp_path), True)
    tasks = load_tasks(profile.tasks.source, "train", 8)
    return rl.AgenticGRPOTrainer(model, tok, tasks, sample, recipe, settings, args)


def test_sft_labels_are_the_drawn_tokens(tok, groups):
    trajectory = groups[1].trajectories[0]
    rows = [{"messages": list(trajectory.messages), "tools": list(rl_tools())}]
    (encoded,) = sft.encode(rows, tok)
    drawn = [i for i, m in zip(trajectory.completion_ids, trajectory.sampled_mask, strict=True) if m]
    assert [i for i in encoded["labels"] if i != -100] == drawn


def rl_tools():
    from agentrl.chat import TOOLS

    return TOOLS


def test_sft_lowers_the_loss_and_repeats(tok, profile, groups):
    rows = [{"messages": list(t.messages), "tools": list(rl_tools())} for g in groups for t in g.trajectories]
    settings = dataclasses.replace(profile.sft, steps=12, batch=8, lr=3e-3)
    curves = []
    for _ in range(2):
        models.prepare(0, 1)
        small = dataclasses.replace(base.BASES["strong"], layers=1, hidden=32, feed_forward=32)
        curves.append(sft.train(base.new_model(small, len(tok)), tok, rows, settings, seed=5))
    assert curves[0][-1]["loss"] < curves[0][0]["loss"] - 0.1
    assert [r["loss"] for r in curves[0]] == [r["loss"] for r in curves[1]]
    assert [r["step"] for r in curves[0]] == list(range(1, 13))


def test_no_rows_is_an_error(tok, profile, model):
    with pytest.raises(ValueError, match="no trajectories"):
        sft.train(model, tok, [], profile.sft, 0)


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("micro_batch", [4, 16])
def test_micro_batches_give_the_whole_batch_s_gradient(
    tok, profile, model, groups, tmp_path, name, micro_batch
):
    recipe = RECIPES[name]
    trainer = trainer_for(model, tok, profile, recipe, tmp_path, micro_batch=micro_batch)
    batches, flat = trainer._micro_batches_of(groups)
    assert len(batches) == 16 // micro_batch and flat == 0.25
    for batch in batches:
        trainer._compute_loss(model, batch).backward()
    found = torch.cat([p.grad.flatten() for p in model.parameters()])

    model.zero_grad()
    everyone = [t for g in groups for t in g.trajectories]
    advantages = losses.group_advantages(
        torch.tensor([[t.reward.total for t in g.trajectories] for g in groups])
    )
    whole = trainer._tensors(list(zip(everyone, advantages.flatten().tolist(), strict=True)), 1)
    logprobs, _ = rl._token_logprobs(model, whole)
    reference = whole.get("reference_BxT")
    mask = whole["mask_BxT"].clone()
    mask[[i for i, t in enumerate(everyone) if t.reward.total != t.reward.total]] = 0  # the lost sample
    units = mask.sum() if recipe.aggregation == "token" else (mask.sum(1) > 0).sum()
    loss, _ = losses.policy_loss(
        logprobs, logprobs.detach(), whole["advantages_B"], mask, recipe, reference, denominator=units.item()
    )
    loss.backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(found, wanted, atol=1e-6)
    assert wanted.abs().max() > 1e-3


def test_all_groups_flat_cost_nothing_and_change_nothing(tok, profile, model, groups, tmp_path):
    flat = [
        TrajectoryGroup(g.task, tuple(dataclasses.replace(t, reward=Reward(1.0)) for t in g.trajectories))
        for g in groups
    ]
    trainer = trainer_for(model, tok, profile, RECIPES["GRPO-TCR"], tmp_path, lambda tasks, step: flat)
    before = [p.clone() for p in model.parameters()]
    trainer.train()
    assert [r["zero_spread_groups"] for r in trainer.rows] == [1.0, 1.0]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("updates", [1, 2])
def test_steps_are_recorded_and_repeat(tok, profile, sandbox, tmp_path, updates):
    rows = []
    for _ in range(2):
        models.prepare(0, 1)
        small = dataclasses.replace(base.BASES["strong"], layers=1, hidden=32, feed_forward=32)
        policy_model = base.new_model(small, len(tok))
        policy = HFPolicy(policy_model, tok, 16)
        rollout = dataclasses.replace(profile.rollout, max_tokens=24)

        def sample(tasks, step, policy=policy, rollout=rollout):
            found = collect(policy, tasks, sandbox, 4, rollout, step)
            # A random model is never right: reward an accident, so that there is something to learn.
            return [
                TrajectoryGroup(
                    g.task,
                    tuple(
                        dataclasses.replace(t, reward=Reward(float(t.completion_ids[0] % 2)))
                        for t in g.trajectories
                    ),
                )
                for g in found
            ]

        settings = dataclasses.replace(profile.rl, updates=updates, micro_batch=4, lr=1e-2)
        tasks = load_tasks(profile.tasks.source, "train", 8)
        recipe = RECIPES["GRPO-TCR"]
        rows.append(rl.train(policy_model, tok, tasks, sample, recipe, settings, profile.rollout, seed=1))
    first, second = rows
    assert [r["step"] for r in first] == [1, 2]
    timeless = [pd.DataFrame(curve).drop(columns=["rollout_s", "train_s"]) for curve in rows]
    pd.testing.assert_frame_equal(*timeless, check_exact=True)
    assert first[0]["ratio_mean"] == pytest.approx(1.0, abs=1e-4 if updates == 1 else 0.5)
    # With one update a batch the policy that sampled is the policy that learns: nothing can be clipped.
    if updates == 1:
        assert first[1]["kl_old"] == pytest.approx(0, abs=1e-6)
    else:
        assert first[1]["kl_old"] > 0
    assert first[0]["grad_norm"] > 0


def test_samplers_and_trainers_logprobs_agree(tok, profile, model, sandbox, tmp_path):
    tasks = load_tasks(profile.tasks.source, "train", 4)
    found = collect(HFPolicy(model, tok, 16), tasks, sandbox, 4, profile.rollout, 0)
    trainer = trainer_for(model, tok, profile, RECIPES["GRPO-TCR"], tmp_path)
    everyone = [t for g in found for t in g.trajectories]
    batch = trainer._tensors([(t, 1.0) for t in everyone], 1)
    logprobs, _ = rl._token_logprobs(model, batch)
    for t, row, mask in zip(everyone, logprobs, batch["mask_BxT"].bool(), strict=True):
        drawn = [p for p, m in zip(t.logprobs, t.sampled_mask, strict=True) if m]
        assert torch.allclose(row[mask], torch.tensor(drawn), atol=1e-4)


def test_missing_model_says_how_to_make_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="run the notebook that makes it"):
        models.load(str(tmp_path / "model"))
    with pytest.raises(FileNotFoundError, match="known bases: strong, weak"):
        models.load("world:huge")


def test_a_model_that_never_answers_is_scored_and_recorded(tok, profile, sandbox):
    silent = ScriptedPolicy(lambda text, seed: "hm " * 200, tok)
    (group,) = collect(silent, load_tasks(profile.tasks.source, "train", 1), sandbox, 2, profile.rollout, 0)
    for t in group.trajectories:
        assert t.stop_reason.value == "max_tokens" and t.reward.parts["outcome"] == -1


def test_training_that_breaks_down_is_no_result(tok, profile, model, groups, tmp_path):
    rows = [{"messages": list(t.messages), "tools": list(rl_tools())} for g in groups for t in g.trajectories]
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        sft.train(model, tok, rows, dataclasses.replace(profile.sft, steps=8, lr=1e30, warmup=0), 0)


def test_too_few_tasks_are_no_finished_run(tok, profile, model):
    settings = dataclasses.replace(profile.rl, prompts=4)
    with pytest.raises(RuntimeError, match="0 of 2 RL steps"):
        rl.train(model, tok, load_tasks(profile.tasks.source, "train", 2), None, RECIPES["GRPO-TCR"], settings,
                 profile.rollout, 0)  # fmt: skip
