"""Sampling from a small random model, against transformers' own generation and plain forward passes."""

import contextlib
import signal
from types import SimpleNamespace
from unittest.mock import ANY

import numpy as np
import pytest
import torch

from agentrl.policy import Completion, HFPolicy, Sampling, ScriptedPolicy
from agentrl.world import tokenizer as tiny
from agentrl.world.base import BASES, new_model

GREEDY = Sampling(0.0, 1.0, 12)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.load()


def random_model(tokenizer):
    """Random weights, scaled so that the context matters and some tokens are much likelier than others."""
    model = new_model(BASES["strong"], len(tokenizer)).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            for p in layer.parameters():
                if p.ndim == 2:
                    p *= 5
        model.model.norm.weight *= 8
    return model


@pytest.fixture(scope="module")
def model(tokenizer):
    return random_model(tokenizer)


@pytest.fixture(scope="module")
def ending(tokenizer):
    """A model that draws the end token every few tokens."""
    model = random_model(tokenizer)
    head, bonus = model.get_output_embeddings(), torch.zeros(len(tokenizer))
    bonus[tokenizer.eos_token_id] = 6.0
    model.get_output_embeddings = lambda: lambda hidden: head(hidden) + bonus
    model.bonus = bonus
    return model


def prompts(n, seed=0, longest=30):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 400, size=rng.integers(1, longest)).tolist() for _ in range(n)]


def plain_logprobs(model, ids):
    """log p of each token of `ids` after the first, from one forward pass over all of them."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1] + getattr(model, "bonus", 0.0)
    return torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def transformers_greedy(model, tokenizer, prompt, n):
    ids = torch.tensor([prompt])
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=n,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return tuple(out[0, len(prompt) :].tolist())


@contextlib.contextmanager
def guard(seconds=20):
    """TimeoutError instead of a test that never ends."""

    def stop(*_):
        raise TimeoutError(f"nothing happened in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# generate


def test_greedy_is_transformers_own(model, tokenizer):
    asked = prompts(6)
    drawn = HFPolicy(model, tokenizer).generate(asked, Sampling(0.0, 1.0, 12, (0,) * 6))
    for prompt, completion in zip(asked, drawn, strict=True):
        assert completion.token_ids == transformers_greedy(model, tokenizer, prompt, 12)


@pytest.mark.parametrize("temperature, top_p", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.6), (0.0, 1.0)])
def test_logprobs_are_a_plain_forward_pass_s_at_temperature_1(model, tokenizer, temperature, top_p):
    asked, sampling = prompts(8), Sampling(temperature, top_p, 12, tuple(range(8)))
    for prompt, c in zip(asked, HFPolicy(model, tokenizer).generate(asked, sampling), strict=True):
        expected = plain_logprobs(model, prompt + list(c.token_ids))[len(prompt) - 1 :]
        np.testing.assert_allclose(c.logprobs, expected, atol=1e-5)


def test_same_seeds_same_tokens(model, tokenizer):
    asked, policy = prompts(10), HFPolicy(model, tokenizer)
    sampling = Sampling(1.0, 0.9, 16, tuple(range(10)))
    first = policy.generate(asked, sampling)
    assert policy.generate(asked, sampling) == first
    assert HFPolicy(model, tokenizer).generate(asked, sampling) == first
    others = policy.generate(asked, Sampling(1.0, 0.9, 16, tuple(range(10, 20))))
    assert all(a.token_ids != b.token_ids for a, b in zip(first, others, strict=True))


def test_seeds_of_one_prompt_differ(model, tokenizer):
    drawn = HFPolicy(model, tokenizer).generate([[5, 6, 7]] * 20, Sampling(1.0, 1.0, 8, tuple(range(20))))
    assert len({c.token_ids for c in drawn}) == 20


def test_neighbours_do_not_matter(model, tokenizer):
    asked, seeds = prompts(40), tuple(range(100, 140))
    policy = HFPolicy(model, tokenizer)
    together = policy.generate(asked, Sampling(1.0, 1.0, 10, seeds))
    for i in (0, 7, 39):
        (alone,) = policy.generate([asked[i]], Sampling(1.0, 1.0, 10, (seeds[i],)))
        assert alone.token_ids == together[i].token_ids
        np.testing.assert_allclose(alone.logprobs, together[i].logprobs, atol=1e-5)


def test_more_prompts_than_rows(ending, tokenizer):
    asked, sampling = prompts(30), Sampling(1.0, 1.0, 10, tuple(range(30)))
    many = HFPolicy(ending, tokenizer).generate(asked, sampling)
    few = HFPolicy(ending, tokenizer, max_rows=4).generate(asked, sampling)
    assert [c.token_ids for c in few] == [c.token_ids for c in many]
    assert [c.finished for c in few] == [c.finished for c in many]


def test_prompts_that_grow_while_others_wait(model, tokenizer):
    asked = [p[:n] for p, n in zip(prompts(6, longest=40), (2, 3, 1, 20, 25, 30), strict=True)]
    few = HFPolicy(model, tokenizer, max_rows=2).generate(asked, Sampling(1.0, 1.0, 9, tuple(range(6))))
    for prompt, c in zip(asked, few, strict=True):
        expected = plain_logprobs(model, prompt + list(c.token_ids))[len(prompt) - 1 :]
        np.testing.assert_allclose(c.logprobs, expected, atol=1e-5)


def test_end_token_is_kept_and_says_finished(ending, tokenizer):
    drawn = HFPolicy(ending, tokenizer).generate(prompts(40), Sampling(1.0, 1.0, 12, tuple(range(40))))
    assert {c.finished for c in drawn} == {True, False}
    for c in drawn:
        assert c.finished == (c.token_ids[-1] == tokenizer.eos_token_id)
        assert tokenizer.eos_token_id not in c.token_ids[:-1]
        assert len(c.token_ids) == len(c.logprobs) and (c.finished or len(c.token_ids) == 12)


def test_small_top_p_leaves_the_likeliest(model, tokenizer):
    asked, seeds = prompts(6), tuple(range(6))
    drawn = HFPolicy(model, tokenizer).generate(asked, Sampling(1.0, 1e-6, 12, seeds))
    greedy = HFPolicy(model, tokenizer).generate(asked, Sampling(0.0, 1.0, 12, seeds))
    assert [c.token_ids for c in drawn] == [c.token_ids for c in greedy]


@pytest.mark.parametrize("temperature, top_p", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.6)])
def test_shares_of_drawn_tokens(model, tokenizer, temperature, top_p):
    """4,000 first tokens against softmax(logits / temperature), cut at top_p: five standard errors."""
    prompt, n = [5, 6, 7], 4_000
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    probs = torch.softmax(logits / temperature, -1).numpy()
    order = np.argsort(-probs)
    kept = order if top_p == 1 else order[: int(np.searchsorted(probs[order].cumsum(), top_p)) + 1]
    expected = np.zeros_like(probs)
    expected[kept] = probs[kept] / probs[kept].sum()
    sampling = Sampling(temperature, top_p, 1, tuple(range(n)))
    drawn = HFPolicy(model, tokenizer, max_rows=n).generate([prompt] * n, sampling)
    share = np.bincount([c.token_ids[0] for c in drawn], minlength=len(probs)) / n
    assert not share[expected == 0].any()
    error = np.sqrt(expected * (1 - expected) / n)
    assert (np.abs(share - expected) <= 5 * error + 2 / n).all()


def test_changed_weights_are_used(tokenizer):
    model = random_model(tokenizer)
    policy, asked = HFPolicy(model, tokenizer), prompts(3)
    before = policy.generate(asked, Sampling(0.0, 1.0, 10, (0,) * 3))
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    after = policy.generate(asked, Sampling(0.0, 1.0, 10, (0,) * 3))
    assert [c.token_ids for c in after] == [transformers_greedy(model, tokenizer, p, 10) for p in asked]
    assert [c.token_ids for c in after] != [c.token_ids for c in before]


def test_sampling_leaves_the_model_alone(tokenizer):
    model = random_model(tokenizer).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    HFPolicy(model, tokenizer).generate(prompts(3), Sampling(1.0, 1.0, 5, (0, 1, 2)))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert model.training and all(p.grad is None and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_implementations(tokenizer, attention):
    model = random_model(tokenizer)
    model.set_attn_implementation(attention)
    (prompt,) = prompts(1, 7)
    try:
        (c,) = HFPolicy(model, tokenizer).generate([prompt], Sampling(1.0, 1.0, 12, (0,)))
    except ValueError as refusal:  # right or refused, never silently wrong
        assert attention in str(refusal) and attention != "sdpa"
        return
    expected = plain_logprobs(model, prompt + list(c.token_ids))[len(prompt) - 1 :]
    np.testing.assert_allclose(c.logprobs, expected, atol=1e-5)


def test_bad_requests(model, tokenizer):
    policy = HFPolicy(model, tokenizer)
    assert policy.generate([], Sampling(1.0, 1.0, 5)) == []
    for seeds in ((), (1,), (1, 2, 3)):
        with pytest.raises(ValueError, match="seeds"):
            policy.generate(prompts(2), Sampling(1.0, 1.0, 5, seeds))
    with pytest.raises(ValueError, match="no tokens"):
        policy.generate([[5], []], Sampling(1.0, 1.0, 5, (1, 2)))


# The stream


def talk(policy, sampling, asked, suffixes, n_turns):
    """`n_turns` turns of every conversation; returns what each holds, as (ids, drawn, logprobs) a token."""
    stream = policy.open(sampling)
    held = {}
    for key, prompt in enumerate(asked):
        stream.put(key, prompt, key)
        held[key] = [(i, 0, 0.0) for i in prompt]
    turns = dict.fromkeys(held, 0)
    under_way = len(asked)
    while under_way:
        key, c = stream.get()
        under_way -= 1
        held[key] += [(i, 1, x) for i, x in zip(c.token_ids, c.logprobs, strict=True)]
        turns[key] += 1
        room = len(asked[key]) + sampling.max_tokens - len(held[key])
        if c.finished and turns[key] < n_turns and room > len(suffixes[key]):
            stream.put(key, suffixes[key], 0)
            held[key] += [(i, 0, 0.0) for i in suffixes[key]]
            under_way += 1
        else:
            stream.drop(key)
    return held, turns


def test_turns_through_the_stream(ending, tokenizer):
    asked, suffixes = prompts(12, 1), prompts(12, 2, longest=9)
    policy = HFPolicy(ending, tokenizer, max_rows=12)
    held, turns = talk(policy, Sampling(1.0, 1.0, 60), asked, suffixes, 4)
    assert max(turns.values()) == 4
    for rows in held.values():
        ids, drawn, logprobs = (list(x) for x in zip(*rows, strict=True))
        expected = plain_logprobs(ending, ids) * np.array(drawn[1:])
        np.testing.assert_allclose(logprobs[1:], expected, atol=1e-5)
    assert talk(policy, Sampling(1.0, 1.0, 60), asked, suffixes, 4)[0] == held


def test_greedy_turns_are_transformers_own(model, tokenizer):
    prompt, suffix = prompts(1, 3)[0], [9, 10, 11]
    whole = transformers_greedy(model, tokenizer, prompt, 12)
    first = whole[: whole.index(whole[3]) + 1]
    stream = HFPolicy(model, SimpleNamespace(eos_token_id=whole[3])).open(Sampling(0.0, 1.0, 30))
    stream.put("a", prompt, 0)
    assert stream.get() == ("a", Completion(first, ANY, True))
    stream.put("a", suffix, 0)
    _, second = stream.get()
    context = prompt + list(first) + suffix
    n = len(second.token_ids)
    assert n > 1 and second.token_ids == transformers_greedy(model, tokenizer, context, n)


def test_later_turns_feed_only_what_is_new(ending, tokenizer):
    stream = HFPolicy(ending, tokenizer, max_rows=2).open(Sampling(1.0, 1.0, 400))
    prompt, suffix = prompts(1, 4)[0] + [9] * 50, [11, 12, 13]
    stream.put("a", prompt, 5)
    _, first = stream.get()
    assert first.finished
    fed = []
    hook = ending.model.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    stream.put("a", suffix, 0)
    _, second = stream.get()
    hook.remove()
    # The end token drawn first has not been read yet; the last token drawn need not be.
    assert sum(fed) == 1 + len(suffix) + len(second.token_ids) - 1


def test_max_tokens_counts_all_turns(ending, tokenizer):
    asked, suffixes = prompts(12, 5), prompts(12, 6, longest=6)
    held, turns = talk(HFPolicy(ending, tokenizer), Sampling(1.0, 1.0, 20), asked, suffixes, 10)
    assert max(turns.values()) > 1
    for key, rows in held.items():
        n = len(rows) - len(asked[key])
        assert n <= 20 and (n == 20 or rows[-1][0] == tokenizer.eos_token_id)


def parked(policy, max_tokens=20, key="a"):
    """A stream with one finished, parked conversation, and what was drawn in it."""
    stream = policy.open(Sampling(1.0, 1.0, max_tokens))
    for seed in range(100):
        stream.put(key, [5, 6, 7], seed)
        _, c = stream.get()
        if c.finished:
            return stream, c
        stream.drop(key)
    raise AssertionError("no end token in 100 tries")


def test_put_that_leaves_no_room(ending, tokenizer):
    stream, c = parked(HFPolicy(ending, tokenizer))
    room = 20 - len(c.token_ids)
    with pytest.raises(ValueError, match="room"):
        stream.put("a", [9] * room, 0)
    with pytest.raises(ValueError, match="no tokens"):
        stream.put("a", [], 0)
    stream.put("a", [9] * (room - 1), 0)
    _, last = stream.get()
    assert len(last.token_ids) == 1


def test_put_on_a_key_that_waits_for_a_place(model, tokenizer):
    stream = HFPolicy(model, tokenizer, max_rows=1).open(Sampling(1.0, 1.0, 5))
    stream.put("a", [5, 6], 0)
    with pytest.raises(ValueError):
        stream.put("a", [7], 0)
    stream.put("b", [8], 0)
    assert stream.get()[0] == "a"
    with pytest.raises(ValueError):
        stream.put("b", [7], 0)


@pytest.mark.parametrize("state", ["being drawn", "drawn, not fetched"])
def test_key_under_way_takes_no_tokens_and_keeps_its_place(ending, tokenizer, state):
    policy, n = HFPolicy(ending, tokenizer), 20
    alone = policy.generate([[5, 6, 7]] * n, Sampling(1.0, 1.0, 30, tuple(range(n))))
    lengths = [len(c.token_ids) for c in alone]
    stream = policy.open(Sampling(1.0, 1.0, 30))
    for key in range(n):
        stream.put(key, [5, 6, 7], key)
    fetched, _ = stream.get()
    assert lengths[fetched] <= min(lengths) + 1
    if state == "being drawn":
        keys = [key for key in range(n) if lengths[key] > min(lengths) + 1]
    else:
        keys = [key for key in range(n) if lengths[key] == lengths[fetched] and key != fetched]
    assert keys
    for key in keys:
        with pytest.raises(ValueError):
            stream.put(key, [7], 0)
        with pytest.raises(ValueError):
            stream.drop(key)
    rest = dict(stream.get() for _ in range(n - 1))
    assert {k: c.token_ids for k, c in rest.items()} == {
        k: alone[k].token_ids for k in range(n) if k != fetched
    }


def test_drop_frees_a_place(model, tokenizer):
    stream = HFPolicy(model, tokenizer, max_rows=1).open(Sampling(1.0, 1.0, 5))
    drawn = []
    for n in range(4):
        stream.put(n, [5, 6], 0)
        key, completion = stream.get()
        assert key == n
        drawn.append(completion.token_ids)
        stream.drop(n)
    assert len(set(drawn)) == 1
    stream.put(0, [5, 6], 1)  # a dropped key is new again
    assert stream.get()[1].token_ids != drawn[0]


def test_drop_of_a_key_that_is_not_there(model, tokenizer):
    with pytest.raises((KeyError, ValueError)):
        HFPolicy(model, tokenizer).open(GREEDY).drop("a")


def test_get_with_nothing_under_way(model, tokenizer):
    stream = HFPolicy(model, tokenizer).open(Sampling(1.0, 1.0, 2))
    with pytest.raises(LookupError):
        stream.get()
    stream.put("a", [5], 0)
    stream.get()
    with pytest.raises(LookupError):
        stream.get()


def test_get_with_every_place_parked_ends(ending, tokenizer):
    stream, _ = parked(HFPolicy(ending, tokenizer, max_rows=1))
    stream.put("b", [5], 0)
    with guard(5), contextlib.suppress(LookupError):  # an answer or an error, but not for ever
        assert stream.get()[0] == "b"


# ScriptedPolicy


def test_scripted_policy_cuts_at_max_tokens(tokenizer):
    seen = []
    policy = ScriptedPolicy(lambda text, seed: seen.append((text, seed)) or "123", tokenizer)
    prompt = tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n")
    ids = tokenizer.encode("123", add_special_tokens=False) + [tokenizer.eos_token_id]
    for room in (len(ids), len(ids) - 1, 1):
        (c,) = policy.generate([prompt], Sampling(1.0, 1.0, room, (7,)))
        assert c.token_ids == tuple(ids[:room]) and c.finished == (room == len(ids))
        assert c.logprobs == (0.0,) * room
    assert seen == [("<|im_start|>user\nHi<|im_end|>\n", 7)] * 3
    with pytest.raises(ValueError):
        policy.generate([prompt], Sampling(1.0, 1.0, 5))
