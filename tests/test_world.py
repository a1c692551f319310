"""The tiny world: problems that share no question, programs that do what they claim, an untidy teacher."""

import dataclasses
import itertools
import json
import math
import random
import re

import pytest

from agentrl import data
from agentrl.chat import TOOLS, render
from agentrl.config import load_profile
from agentrl.sandbox import Sandbox, Status
from agentrl.types import StopReason
from agentrl.world import base, build, tasks, text
from agentrl.world import tokenizer as tiny
from agentrl.world.families import FAMILIES, Family
from agentrl.world.teacher import Habits, parse_question, reply, teacher

NAMES = list(FAMILIES)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(workers=2, level="L0") as opened:
        yield opened


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.load()


@pytest.fixture(scope="module")
def problems():
    """20 problems of each family."""
    return {name: tasks.load([name], "train", 20, 3) for name in NAMES}


def run_programs(sandbox, problems, templates):
    """(task, result) of every program of every problem."""
    asked = [(t, p) for ts in problems.values() for t in ts for p in getattr(FAMILIES[t.source], templates)]
    requests = [{"code": p.format(**t.meta["numbers"]), "timeout_s": 10} for t, p in asked]
    return [(t, r) for (t, _), r in zip(asked, sandbox.run_many(requests), strict=True)]


# Problems


@pytest.mark.parametrize("seeds", [(0, 0, 0), (0, 1, 2), (7, 7, 0)])
@pytest.mark.parametrize("sizes", [(60, 12, 12), (900, 120, 120)])
def test_splits_share_no_question(seeds, sizes):
    splits = {
        split: {t.prompt for t in tasks.load(NAMES, split, n, seed)}
        for split, n, seed in zip(tasks.SPLITS, sizes, seeds, strict=True)
    }
    assert [len(s) for s in splits.values()] == list(sizes)  # no question twice in a split either
    for a, b in itertools.combinations(splits.values(), 2):
        assert not a & b


def test_assert_disjoint():
    train, test = tasks.load(NAMES, "train", 12, 0), tasks.load(NAMES, "test", 12, 0)
    data.assert_disjoint(train=train, test=test)
    spaced = dataclasses.replace(train[3], id="other", prompt=train[3].prompt + "\n")
    with pytest.raises(ValueError, match="train"):
        data.assert_disjoint(train=train, test=[*test, spaced])


def test_same_seed_same_tasks():
    assert tasks.load(NAMES, "train", 30, 5) == tasks.load(NAMES, "train", 30, 5)
    a, b = ({t.prompt for t in tasks.load(NAMES, "train", 30, seed)} for seed in (5, 6))
    assert len(a & b) < 10


def test_families_take_turns():
    assert [t.source for t in tasks.load(["lcm", "gcd"], "test", 5, 0)] == ["lcm", "gcd", "lcm", "gcd", "lcm"]
    ids = [t.id for t in tasks.load(NAMES, "train", 600, 0)]
    assert len(set(ids)) == 600


def test_unknown_names():
    for names in (["gcd", "gdc"], [], [""], ["GCD"]):
        with pytest.raises(ValueError, match="count_primes"):
            tasks.load(names, "train", 5, 0)
    with pytest.raises(ValueError, match="validation"):
        tasks.load(["gcd"], "dev", 5, 0)
    with pytest.raises(ValueError, match="gcd"):
        data.load_tasks("world:gdc")
    with pytest.raises(ValueError, match="world:"):
        data.load_tasks("reasoning_gym:gcd")
    with pytest.raises(ValueError, match="unknown reasoning-gym datasets"):
        data.load_tasks("reasoning-gym:gdc")


def test_family_named_twice_asks_nothing_twice():
    try:
        prompts = [t.prompt for t in tasks.load(["gcd", "gcd"], "train", 10, 0)]
    except ValueError:
        return
    assert len(set(prompts)) == 10


def test_too_few_problems():
    with pytest.raises(ValueError, match="lcm"):
        tasks.load(["lcm"], "test", 1_000, 0)


def test_no_problems():
    assert tasks.load(["gcd"], "train", 0, 0) == []
    assert data.load_tasks("world:gcd", "train", 0) == []


def test_source_string():
    assert data.load_tasks("world:gcd, lcm", "test", 6, 1) == tasks.load(["gcd", "lcm"], "test", 6, 1)


def test_profiles_have_their_problems():
    for name in ("smoke", "tiny"):
        settings = load_profile(name).tasks
        splits = {s: data.load_tasks(settings.source, s, getattr(settings, s), 0) for s in tasks.SPLITS}
        data.assert_disjoint(**splits)
        assert [len(s) for s in splits.values()] == [settings.train, settings.validation, settings.test]


# Families


def test_gold_by_hand():
    by_question = {
        "gcd": lambda a, b: max(d for d in range(1, a + 1) if a % d == b % d == 0),
        "lcm": lambda a, b: next(m for m in range(a, a * b + 1, a) if m % b == 0),
        "products": lambda a, b: sum(a for _ in range(b)),
        "count_bits": lambda n: sum(n >> i & 1 for i in range(40)),
        "count_primes": lambda a, b: sum(
            n > 1 and 0 not in [n % d for d in range(2, n)] for n in range(a, b + 1)
        ),
        "chain_sum": lambda *terms: sum(terms),
    }
    for name, answer in by_question.items():
        for t in tasks.load([name], "validation", 30, 0):
            question = t.prompt.replace("1 bits", "bits")
            if name == "chain_sum":
                question = question.replace("- ", "-")
            numbers = [int(n) for n in re.findall(r"-?\d+", question)]
            assert t.gold == str(answer(*numbers)), t.prompt


def test_right_programs_print_the_gold_answer(sandbox, problems):
    ran = run_programs(sandbox, problems, "right")
    assert len(ran) >= 120
    for t, r in ran:
        assert (r.status, r.stdout.strip(), r.stderr) == (Status.OK, t.gold, ""), t.prompt


def test_wrong_programs_run_and_are_wrong(sandbox, problems):
    wrong = dict.fromkeys(NAMES, ())
    for t, r in run_programs(sandbox, problems, "wrong"):
        assert r.status is Status.OK, (t.prompt, r.stderr)
        wrong[t.source] += (r.stdout.strip() != t.gold,)
    for name, share in wrong.items():
        assert sum(share) >= 0.8 * len(share), name


def test_failing_programs_fail(sandbox, problems):
    for t, r in run_programs(sandbox, problems, "failing"):
        assert r.status is Status.ERROR and "Error" in r.stderr, t.prompt


def test_parse_question_inverts_every_question():
    for t in tasks.load(NAMES, "train", 600, 1):
        family, numbers = parse_question(t.prompt)
        assert family is FAMILIES[t.source]
        assert numbers == {k: str(v) for k, v in t.meta["numbers"].items()}


@pytest.mark.parametrize(
    "question", ["", "What is?", "What is the gcd of 4 and 6? ", "Repeat 5", "What is x?", "why"]
)
def test_parse_question_of_no_family(question):
    with pytest.raises(ValueError):
        parse_question(question)


def test_family_needs_every_kind_of_program():
    with pytest.raises(ValueError, match="failing"):
        Family("f", "Q {a}?", ("print({a})",), ("print(0)",), (), dict, {})


# Base documents


def as_turns(doc):
    return [doc] if isinstance(doc, str) else [m["content"] for m in doc]


def test_base_documents_ask_no_question_and_show_no_error():
    questions = {t.prompt for split in tasks.SPLITS for t in tasks.load(NAMES, split, 600, 0)}
    kinds = set()
    for doc in itertools.islice(build.documents(1), 8_000):
        turns = as_turns(doc)
        kinds.add((type(doc), len(turns)))
        joined = "\n".join(turns)
        assert not any(
            word in joined for word in ("Error", "Traceback", "refused", "stopped:", "failed", "What", "How")
        )
        assert not questions.intersection(turns)
    assert kinds == {(str, 1), (list, 2), (list, 4)}


def test_patterns_match_every_question():
    patterns = build.question_patterns()
    for split in tasks.SPLITS:
        for t in tasks.load(NAMES, split, 120, 2):
            assert any(p.search(t.prompt) for p in patterns) and any(
                p.search(f"Run {t.prompt} now") for p in patterns
            )


def test_document_that_asks_a_question_is_refused(monkeypatch):
    monkeypatch.setattr(
        text, "document", lambda rng: [{"role": "user", "content": "What is the gcd of 4 and 6?"}]
    )
    with pytest.raises(ValueError, match="gcd of 4 and 6"):
        next(build.documents(0))


def test_documents_repeat_with_their_seed():
    a, b, c = (list(itertools.islice(build.documents(seed), 50)) for seed in (4, 4, 5))
    assert a == b != c


def test_call_in_a_document_is_the_template_s(tokenizer):
    code = "print(\"a\\n\")\nprint('é')"
    function = {"name": "code_interpreter", "arguments": {"code": code}}
    question = {"role": "user", "content": "Hi"}
    structured = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
    plain = {"role": "assistant", "content": text.call_text(code)}
    assert render([question, structured], TOOLS, tokenizer, False) == render(
        [question, plain], TOOLS, tokenizer, False
    )


def test_copying_document_labels(tokenizer):
    ids, labels = build.encode("12 + 3 = 12 + 3", tokenizer)
    assert tokenizer.decode(ids) == "12 + 3 = 12 + 3<|im_end|>"
    assert tokenizer.decode([i for i in labels if i != -100]) == " 12 + 3<|im_end|>"
    assert all(label in (-100, i) for i, label in zip(ids, labels, strict=True))


def test_packed_rows(tokenizer):
    config = base.BASES["weak"]
    for ids, labels in itertools.islice(build.packed_rows(config, tokenizer, 0), 20):
        assert len(ids) == len(labels) == build.MAX_DOCUMENT_TOKENS
        assert tokenizer.eos_token_id in ids
        assert all(label in (-100, i) for i, label in zip(ids, labels, strict=True))
        assert all(label == -100 for i, label in zip(ids, labels, strict=True) if i == tokenizer.pad_token_id)


# Tokenizer


def test_tokenizer_keeps_text(tokenizer):
    rng = random.Random(0)
    for _ in range(200):
        s = "".join(
            rng.choice(["1", "23", " ", "\n", "é", "😀", "print(", '"}}', "\\n", "\\boxed{", "\t", "a", "<"])
            for _ in range(20)
        )
        assert tokenizer.decode(tokenizer.encode(s, add_special_tokens=False)) == s
    assert len(tokenizer.encode("1234567890", add_special_tokens=False)) == 10
    assert tokenizer.decode([tokenizer.eos_token_id]) == "<|im_end|>"


def test_prompt_is_short(tokenizer):
    lengths = [
        len(render([{"role": "user", "content": t.prompt}], TOOLS, tokenizer, True)[0])
        for t in tasks.load(NAMES, "train", 120, 0)
    ]
    assert max(lengths) <= 64


# The teacher


@pytest.fixture(scope="module")
def taught(tokenizer, sandbox):
    asked = tasks.load(NAMES, "train", 240, 0)
    return data.real_trajectories(teacher(tokenizer), asked, sandbox, load_profile("tiny").rollout, 0)


def statuses(t):
    return [r.status for r in t.tool_results]


def test_teacher_runs_its_programs(taught):
    for group in taught:
        (t,) = group.trajectories
        shown = [m["content"] for m in t.messages if m["role"] == "tool"]
        assert shown == [r.text for r in t.tool_results]
        for result, output in zip(t.tool_results, shown, strict=True):
            assert ("Error" in output) == (result.status == "ERROR") and result.status in ("OK", "ERROR")
        if statuses(t)[-1:] == ["OK"] and t.stop_reason is StopReason.ANSWERED:
            assert t.messages[-1]["content"] == f"The answer is \\boxed{{{shown[-1]}}}."


def test_teacher_recovers_sometimes_and_errs_sometimes(taught):
    ts = [g.trajectories[0] for g in taught]
    right = [t for t in ts if t.reward.parts["outcome"] > 0]
    failed = [t for t in ts if "ERROR" in statuses(t)]
    recovered = [t for t in failed if statuses(t)[-1] == "OK" and t in right]
    assert 0.25 * len(ts) < len(right) < 0.75 * len(ts)
    assert len(recovered) >= 10 and len(failed) - len(recovered) >= 10
    assert any(statuses(t)[:2] == ["ERROR", "ERROR"] for t in ts)
    assert any(not t.tool_calls for t in ts) and any(statuses(t) == ["OK"] and t not in right for t in ts)
    assert sum(t.stop_reason is StopReason.ANSWERED for t in ts) > 0.8 * len(ts)


def test_teacher_repeats_with_its_seed(tokenizer, sandbox):
    asked, config = tasks.load(NAMES, "train", 12, 0), load_profile("tiny").rollout
    runs = [data.real_trajectories(teacher(tokenizer), asked, sandbox, config, seed) for seed in (0, 0, 1)]
    a, b, c = ([g.trajectories[0].messages for g in groups] for groups in runs)
    assert a == b != c


def test_habits():
    question = "What is the gcd of 12 and 18?"
    opening = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    family = FAMILIES["gcd"]

    def code(message):
        body = message.split("<tool_call>")[1].split("</tool_call>")[0]
        return json.loads(body)["arguments"]["code"]

    for share in ("right", "wrong", "failing"):
        habits = Habits(**({"right": 0.0, "wrong": 0.0, "failing": 0.0} | {share: 1.0}))
        written = {code(reply(opening, seed, habits)) for seed in range(50)}
        assert written == {p.format(a=12, b=18) for p in getattr(family, share)}
    nothing = Habits(right=0.0, wrong=0.0, failing=0.0)
    assert all("tool_call" not in reply(opening, seed, nothing) for seed in range(20))
    after = "<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    said = opening + "I will.<|im_end|>\n" + after.format("NameError: name 'gcd' is not defined")
    mended = {code(reply(said, seed, Habits(mend=1.0, fail_again=0.0))) for seed in range(20)}
    assert mended == {p.format(a=12, b=18) for p in family.right}
    assert "boxed" in reply(said, 0, Habits(mend=0.0, fail_again=0.0))
    assert (
        reply(opening + "I will.<|im_end|>\n" + after.format("6"), 0, Habits()) == "The answer is \\boxed{6}."
    )


def test_reasoning_gym_s_own_questions():
    found = {
        split: data.load_tasks("reasoning-gym:gcd, letter_counting", split, 40) for split in tasks.SPLITS
    }
    data.assert_disjoint(**found)
    first = found["train"][0]
    assert first.source == "gcd" and first.prompt.startswith("Find the Greatest Common Divisor")
    numbers = [int(n) for n in re.findall(r"\d+", first.prompt)]
    assert first.gold == str(math.gcd(*numbers))
    assert len(data.load_tasks("reasoning-gym:gcd")) == 100
