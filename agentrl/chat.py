"""Text to messages and ids, and back: the Hermes tool-call format and the chat template's tokens.

What a policy draws is kept as it was drawn. `render` says which of a template's tokens a policy would have
drawn; `parse_tool_calls` reads the calls in a drawn text.
"""

from __future__ import annotations

import json

from agentrl.types import MalformedCall, ToolCall

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "code_interpreter",
            "description": "Run a Python program and read what it prints.",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string", "description": "The program."}},
                "required": ["code"],
            },
        },
    },
)
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_DECODER = json.JSONDecoder(strict=False)  # a raw newline inside a string is common in model text


def parse_tool_calls(text: str) -> list[ToolCall | MalformedCall]:
    """The calls in `text`, in order of appearance. Never raises and never drops one silently.

    A JSON scanner finds where an object ends, so tags inside the code's string don't matter. What can't
    be read is a `MalformedCall` whose `problem` says, in a sentence for the model, what is wrong. Two
    objects inside one pair of tags are one malformed call.
    """
    found: list[ToolCall | MalformedCall] = []
    at = 0
    while (start := text.find(OPEN, at)) >= 0:
        body = start + len(OPEN)
        call, at = _read_call(text, body)
        found.append(call)
    return found


def _read_call(text: str, body: int) -> tuple[ToolCall | MalformedCall, int]:
    """Read one call whose text starts at `body`; returns it and where to go on."""
    at = body
    while at < len(text) and text[at].isspace():
        at += 1
    if text.startswith(CLOSE, at):
        return MalformedCall(text[body:at], "the tool call is empty"), at + len(CLOSE)
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        close = text.find(CLOSE, body)
        if close < 0:
            return MalformedCall(text[body:], "the tool call is never closed"), len(text)
        problem = f"the tool call is not valid JSON ({getattr(error, 'msg', 'nested too deeply')})"
        return MalformedCall(text[body:close], problem), close + len(CLOSE)
    close = text.find(CLOSE, end)
    if close < 0:
        return MalformedCall(text[body:], "the tool call is never closed"), len(text)
    raw, after = text[body:close], close + len(CLOSE)
    if text[end:close].strip():
        return MalformedCall(raw, "there is more than one JSON object in the tool call"), after
    return _check_call(value, raw), after


def _check_call(value, raw: str) -> ToolCall | MalformedCall:
    if not isinstance(value, dict):
        return MalformedCall(raw, "the tool call is not a JSON object")
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str):
        return MalformedCall(raw, "the tool call has no name")
    if isinstance(arguments, str):  # some models quote the object once more
        try:
            arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            return MalformedCall(raw, "the arguments are not valid JSON")
    if not isinstance(arguments, dict):
        return MalformedCall(raw, "the arguments are not a JSON object")
    return ToolCall(name, arguments, raw)


def render(messages, tools, tokenizer, add_generation_prompt: bool) -> tuple[list[int], list[int]]:
    """The chat template's own tokens for `messages`, and which of them a policy would draw.

    Returns (ids, assistant_mask), both with one entry a token. The mask is 1 from after the generation
    prompt to and including the end token of each assistant turn, and 0 elsewhere; the newline that a
    template writes after the end token is the template's. Raises ValueError where the tokenizer has no
    chat template, or where the template rewrites earlier turns, so that no prefix of the conversation is
    what the policy saw.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("this tokenizer has no chat template; set tokenizer.chat_template before rendering")
    messages, tools = list(messages), list(tools) or None

    def as_text(n: int, prompt: bool) -> str:
        return tokenizer.apply_chat_template(
            messages[:n], tools=tools, tokenize=False, add_generation_prompt=prompt
        )

    text = as_text(len(messages), add_generation_prompt)
    spans = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = as_text(i, True)
        end = text.find(tokenizer.eos_token, len(as_text(i + 1, False).rstrip()) - len(tokenizer.eos_token))
        if not text.startswith(before) or end < 0:
            raise ValueError(f"the chat template rewrites the turns before message {i}; masks would be wrong")
        spans.append((len(before), end + len(tokenizer.eos_token)))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask, span = [], 0
    for start, _ in encoded["offset_mapping"]:
        while span < len(spans) and start >= spans[span][1]:
            span += 1
        mask.append(int(span < len(spans) and spans[span][0] <= start))
    return encoded["input_ids"], mask


def tool_suffix(texts: list[str], tools, tokenizer) -> list[int]:
    """The ids that the template writes after an assistant's end token: the tool messages, then the next
    generation prompt. Appended to what was drawn, so nothing drawn is ever tokenised again."""
    turn = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    answers = [{"role": "tool", "content": t} for t in texts]
    before = tokenizer.apply_chat_template(turn, tools=list(tools) or None, tokenize=False)
    after = tokenizer.apply_chat_template(
        turn + answers, tools=list(tools) or None, tokenize=False, add_generation_prompt=True
    )
    cut = before.rindex(tokenizer.eos_token) + len(tokenizer.eos_token)
    if not after.startswith(before[:cut]):
        raise ValueError("the chat template rewrites an assistant turn once a tool has answered")
    return tokenizer.encode(after[cut:], add_special_tokens=False)
