"""Text to messages and ids, and back: the Hermes tool-call format and the chat template's tokens.

What a policy draws is kept as it was drawn. `render` says which of a template's tokens a policy would have
drawn; `parse_tool_calls` reads the calls in a drawn text.
"""

from __future__ import annotations

import json
import re

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
_MAX_NESTING = 50
_BLANK = re.compile(r"\s*")
_JSON_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[\s:,.+0-9A-Za-z-]+', re.DOTALL)


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
    start = _BLANK.match(text, body).end()
    end = _object_end(text, start)
    close = text.find(CLOSE, body if end is None else end)
    if close < 0:
        return MalformedCall(text[body:], "the tool call is never closed"), len(text)
    raw, after = text[body:close], close + len(CLOSE)
    if end is None:
        problem = "is not a JSON object, or its braces and quotes do not match" if raw.strip() else "is empty"
        return MalformedCall(raw, f"the tool call {problem}"), after
    if text[end:close].strip():
        return MalformedCall(raw, "there is more than one JSON object in the tool call"), after
    try:
        # A raw line break inside a string is common in model text, and harmless.
        value = json.loads(text[start:end], strict=False)
    except ValueError as error:
        return MalformedCall(
            raw, f"the tool call is not valid JSON ({getattr(error, 'msg', 'a number is too long')})"
        ), after
    except RecursionError:
        return MalformedCall(raw, "the tool call is nested too deeply"), after
    return _check_call(value, raw), after


def _object_end(text: str, start: int) -> int | None:
    """Where the JSON object that starts at `start` ends, or None. Strings are skipped whole, so tags in them
    don't matter; outside strings a character that JSON never has there ends the search at once, so the search
    can't run over call after call, and the time stays linear in the text."""
    if not text.startswith("{", start):
        return None
    depth, at = 0, start
    while token := _JSON_PIECE.match(text, at):
        depth += (token.group() in ("{", "[")) - (token.group() in ("}", "]"))
        at = token.end()
        if depth == 0:
            return at
    return None


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
    if _deeper_than(_MAX_NESTING, arguments):
        return MalformedCall(raw, "the tool call is nested too deeply")
    return ToolCall(name, arguments, raw)


def _deeper_than(limit: int, value) -> bool:
    """Whether `value` nests more than `limit` containers: what is kept must be writable from any stack."""
    layer = [value]
    for _ in range(limit + 1):
        inside = [v.values() if isinstance(v, dict) else v for v in layer if isinstance(v, (dict, list))]
        layer = [x for values in inside for x in values]
        if not layer:
            return False
    return True


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
    messages, tools = list(messages), list(tools or ()) or None

    def as_text(n: int, prompt: bool) -> str:
        return tokenizer.apply_chat_template(
            messages[:n], tools=tools, tokenize=False, add_generation_prompt=prompt
        )

    text = as_text(len(messages), add_generation_prompt)
    spans = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = as_text(i, True), as_text(i + 1, False)
        end = after.rfind(tokenizer.eos_token, len(before)) + len(tokenizer.eos_token)
        if end < len(before) or not text.startswith(before) or not text.startswith(after[:end]):
            raise ValueError(f"the chat template rewrites the turns before message {i}; masks would be wrong")
        spans.append((len(before), end))
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
    before = tokenizer.apply_chat_template(turn, tools=list(tools or ()) or None, tokenize=False)
    after = tokenizer.apply_chat_template(
        turn + answers, tools=list(tools or ()) or None, tokenize=False, add_generation_prompt=True
    )
    cut = before.rindex(tokenizer.eos_token) + len(tokenizer.eos_token)
    if not after.startswith(before[:cut]):
        raise ValueError("the chat template rewrites an assistant turn once a tool has answered")
    return tokenizer.encode(after[cut:], add_special_tokens=False)
