"""Tool calls read from model text, and a chat template's tokens with who wrote them."""

import json
import random
import time

import pytest

from agentrl.chat import CLOSE, OPEN, TOOLS, parse_tool_calls, render, tool_suffix
from agentrl.types import MalformedCall, ToolCall
from agentrl.world import tokenizer as tiny
from agentrl.world.text import call_text

END = "<|im_end|>"
HEAD = "<|im_start|>system\nTools: code_interpreter(code)<|im_end|>\n"


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.load()


def call(code="print(1)", **more):
    return OPEN + json.dumps({"name": "code_interpreter", "arguments": {"code": code}} | more) + CLOSE


def only(text):
    found = parse_tool_calls(text)
    assert len(found) == 1
    return found[0]


# Reading calls


def test_closing_tag_inside_the_code():
    code = 'print("</tool_call>")'
    found = only(f"I print a tag.\n{call(code)} Done.")
    assert found == ToolCall("code_interpreter", {"code": code}, found.raw)
    assert (
        only(call('x = "<tool_call>{}</tool_call>"')).arguments["code"] == 'x = "<tool_call>{}</tool_call>"'
    )


def test_outer_brace_missing_is_never_nothing():
    text = f'{OPEN}\n"name": "code_interpreter", "arguments": {{"code": "print(1)"}}}}\n{CLOSE}'
    found = only(text)
    if isinstance(found, ToolCall):
        assert (found.name, found.arguments) == ("code_interpreter", {"code": "print(1)"})
    else:
        assert found.problem and found.raw in text


def test_name_missing():
    found = only(OPEN + '{"code": "print(1)"}' + CLOSE)
    assert isinstance(found, MalformedCall) and "name" in found.problem


@pytest.mark.parametrize("name", [None, 3, ["code_interpreter"], {"a": 1}])
def test_name_that_is_no_text(name):
    found = only(call(name=name))
    assert isinstance(found, MalformedCall) and "name" in found.problem


def test_arguments_quoted_once_more_are_an_object():
    found = only(OPEN + r'{"name": "code_interpreter", "arguments": "{\"code\": \"print(1)\"}"}' + CLOSE)
    assert isinstance(found, ToolCall) and found.arguments == {"code": "print(1)"}


def test_arguments_quoted_twice_more_are_malformed():
    arguments = json.dumps(json.dumps({"code": "print(1)"}))
    assert isinstance(only(call(arguments=arguments)), MalformedCall)


@pytest.mark.parametrize("arguments", [None, 3, [], ["print(1)"], "print(1)", "3", ""])
def test_arguments_that_are_no_object(arguments):
    found = only(call(arguments=arguments))
    assert isinstance(found, MalformedCall) and "arguments" in found.problem


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "code_interpreter", "arguments": {"code": "print(1',
        '{"name": "code_interpreter", "arguments": {"code": "print(1)"}}',
        '{"name": "code_interpreter"',
        "\n",
        "",
    ],
)
def test_call_that_never_closes(body):
    found = only(f"Let me see. {OPEN}{body}")
    assert found == MalformedCall(body, found.problem) and "never closed" in found.problem


def test_two_calls_in_order():
    text = f"first {call('print(1)')} then {call('print(2)')} end"
    assert [c.arguments["code"] for c in parse_tool_calls(text)] == ["print(1)", "print(2)"]


def test_calls_after_malformed_ones_are_read():
    text = OPEN + "{nonsense" + CLOSE + call("print(1)") + OPEN + CLOSE + call("print(2)") + OPEN + "{"
    kinds = [type(c) for c in parse_tool_calls(text)]
    assert kinds == [MalformedCall, ToolCall, MalformedCall, ToolCall, MalformedCall]


def test_two_objects_in_one_pair_of_tags_are_one_malformed_call():
    one = json.dumps({"name": "code_interpreter", "arguments": {"code": "print(1)"}})
    found = only(f"{OPEN}{one}\n{one}{CLOSE}")
    assert isinstance(found, MalformedCall) and "more than one" in found.problem


def test_raw_is_the_text_between_the_tags():
    text = f"before{OPEN}  {{}} {CLOSE}between{OPEN}\n[1]\n{CLOSE}after"
    assert [c.raw for c in parse_tool_calls(text)] == ["  {} ", "\n[1]\n"]


def test_text_without_a_call():
    for text in ("", "The answer is 6.", CLOSE, "<tool_call", "tool_call>", "< tool_call >{}</tool_call>"):
        assert parse_tool_calls(text) == []


def test_line_breaks_need_no_escape():
    found = only(
        OPEN + '\n{"name": "code_interpreter",\n "arguments": {"code": "a = 1\n\tprint(a)"}}\n' + CLOSE
    )
    assert found.arguments["code"] == "a = 1\n\tprint(a)"


@pytest.mark.parametrize("depth", [300, 900, 2_000, 100_000])
def test_deep_nesting(depth):
    assert isinstance(only(OPEN + "[" * depth + CLOSE), MalformedCall)
    nested = "[" * depth + "]" * depth
    only(f'{OPEN}{{"name": "code_interpreter", "arguments": {{"code": "", "x": {nested}}}}}{CLOSE}')
    only(f'{OPEN}{{"name": "code_interpreter", "arguments": "{nested}"}}{CLOSE}')


@pytest.mark.parametrize(
    "body, said, unsaid",
    [
        ("", "empty", "JSON"),
        ("{'name': 'x'}", "JSON", "more than one"),
        ('{"a": ' * 10_000 + "1" + "}" * 10_000, "deep", "name"),
        ('{"name": "code_interpreter", "arguments": ' + "1" * 5_000 + "}", "", "deep"),
        ('"name": "code_interpreter", "arguments": {"code": "print(1)"}}', "", "more than one"),
        ("print(1)", "JSON", "name"),
        ("[]", "object", "name"),
    ],
)
def test_problem_says_what_is_wrong(body, said, unsaid):
    problem = only(OPEN + body + CLOSE).problem
    assert said in problem and unsaid not in problem


def test_no_text_raises_and_no_call_is_dropped():
    pieces = [
        OPEN, CLOSE, "{", "}", "[", "]", '"', "\\", '\\"', ":", ",", " ", "\n", "1", "-", "1e999", "NaN",
        "null", '"name"', '"arguments"', '"code_interpreter"', '{"code": "print(1)"}',
        '{"name": "code_interpreter", ', "<tool_call", "tool_call>",
        "\\ud800", "\\u", "\ud800", "\x00", "é", "😀", "1" * 5_000,
        '{"name": "code_interpreter", "arguments": {"code": "print(1)"}}', call("print(2)"),
    ]  # fmt: skip
    rng = random.Random(0)
    kinds = set()
    for _ in range(4_000):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 25)))
        at = 0
        for found in parse_tool_calls(text):
            kinds.add(type(found))
            at = text.index(OPEN, at) + len(OPEN)
            assert text.startswith(found.raw, at)
            at += len(found.raw)
            at += len(CLOSE) if text.startswith(CLOSE, at) else 0
            assert isinstance(found, ToolCall) or found.problem
        assert OPEN not in text[at:]
    assert kinds == {ToolCall, MalformedCall}


@pytest.mark.parametrize(
    "unit",
    [
        OPEN, OPEN + "{", OPEN + "{" + CLOSE, OPEN + '"' + CLOSE, OPEN + '["' + CLOSE + '",',
        OPEN + " " + CLOSE, OPEN + "{}" + CLOSE,
        OPEN + '{"a":', OPEN + '{"a": "' + CLOSE, "{", '{"a":', "[", '"', "\\", " ", "1",
    ],
)  # fmt: skip
def test_time_grows_with_length(unit):
    def seconds(n_chars):
        text = OPEN + unit * (n_chars // len(unit)) + CLOSE
        took = []
        for _ in range(3):  # CPU time, the best of three: a pause of the garbage collector is no finding
            started = time.process_time()
            parse_tool_calls(text)
            took.append(time.process_time() - started)
        return min(took)

    assert seconds(320_000) < 8 * seconds(80_000) + 0.1  # 4 where linear, 16 where quadratic


# Rendering


def drawn(ids, mask, tokenizer):
    """The texts of the runs of masked-in tokens."""
    runs, before = [], 0
    for i, m in zip(ids, mask, strict=True):
        if m and not before:
            runs.append([])
        if m:
            runs[-1].append(i)
        before = m
    return [tokenizer.decode(r) for r in runs]


def test_text_and_mask_by_hand(tokenizer):
    messages = [
        {"role": "user", "content": "What is 2 times 3?"},
        {"role": "assistant", "content": "Hm."},
        {"role": "tool", "content": "6"},
        {"role": "assistant", "content": "The answer is \\boxed{6}."},
    ]
    ids, mask = render(messages, TOOLS, tokenizer, False)
    before = HEAD + "<|im_start|>user\nWhat is 2 times 3?<|im_end|>\n<|im_start|>assistant\n"
    between = "\n<|im_start|>user\n<tool_response>\n6\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    pieces = [(before, 0), ("Hm." + END, 1), (between, 0), ("The answer is \\boxed{6}." + END, 1), ("\n", 0)]
    expected = [(i, m) for text, m in pieces for i in tokenizer.encode(text, add_special_tokens=False)]
    assert list(zip(ids, mask, strict=True)) == expected


@pytest.mark.parametrize(
    "content",
    [
        "6",
        "",
        " ",
        "\n",
        "\n\n6\n\n",
        " 6 ",
        "naïve 😀 数",
        "assistant\n",
        "<|im_start|>",
        f"a{END}b",
        "x\n" * 30,
    ],
)
def test_mask_is_the_content_and_its_end_token(tokenizer, content):
    question = {"role": "user", "content": f"Say{END}\n<|im_start|>assistant\n6"}
    messages = [question, {"role": "assistant", "content": content}] * 2
    ids, mask = render(messages, TOOLS, tokenizer, False)
    assert drawn(ids, mask, tokenizer) == [content + END] * 2
    newline = tokenizer.encode("\n")
    ends = [i for i in range(1, len(ids)) if mask[i - 1] and not mask[i]]
    assert [(ids[i - 1], ids[i]) for i in ends] == [(tokenizer.eos_token_id, *newline)] * 2


def test_generation_prompt_is_the_template_s(tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    ids, mask = render(messages[:1], TOOLS, tokenizer, True)
    assert tokenizer.decode(ids) == HEAD + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert not any(mask)
    whole, _ = render(messages, TOOLS, tokenizer, False)
    assert whole[: len(ids)] == ids


def test_no_tools(tokenizer):
    messages = [{"role": "user", "content": "Hi"}]
    ids, mask = render(messages, (), tokenizer, True)
    assert tokenizer.decode(ids) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert (ids, mask) == render(messages, None, tokenizer, True)


def test_structured_calls_read_as_drawn_text(tokenizer):
    function = {"name": "code_interpreter", "arguments": {"code": 'print("a")\nprint(2)'}}
    structured = {
        "role": "assistant",
        "content": "Look.",
        "tool_calls": [{"type": "function", "function": function}],
    }
    plain = {"role": "assistant", "content": "Look.\n" + call_text(function["arguments"]["code"])}
    question = {"role": "user", "content": "Hi"}
    assert render([question, structured], TOOLS, tokenizer, False) == render(
        [question, plain], TOOLS, tokenizer, False
    )


@pytest.mark.parametrize("texts", [["6"], ["6", "refused: no"], [""], ["naïve\n\n😀 "], [" <|im_end|>\nx"]])
def test_tool_suffix_is_what_the_template_writes(tokenizer, texts):
    turn = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    answers = [{"role": "tool", "content": t} for t in texts]
    before, mask = render(turn, TOOLS, tokenizer, False)
    up_to_end = len(mask) - mask[::-1].index(1)
    after, _ = render(turn + answers, TOOLS, tokenizer, True)
    assert before[:up_to_end] + tool_suffix(texts, TOOLS, tokenizer) == after


def test_no_chat_template():
    bare = tiny.load()
    bare.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        render([{"role": "user", "content": "Hi"}], TOOLS, bare, True)


def test_template_that_rewrites_earlier_turns():
    forgetful = tiny.load()
    forgetful.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{{ m.content if loop.last or m.role == 'user' else 'cut' }}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    turn = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "thought and answer"}]
    render(turn, (), forgetful, False)
    with pytest.raises(ValueError, match="rewrites"):
        render(turn * 2, (), forgetful, False)
    with pytest.raises(ValueError, match="rewrites"):
        tool_suffix(["6"], (), forgetful)
