"""A trajectory as HTML: the conversation, and its tokens coloured by who wrote them. Model text is escaped."""

from __future__ import annotations

import html
import math

_CSS = """<style>
.agentrl{font-family:system-ui,sans-serif;font-size:13px;max-width:860px;border:1px solid #8886;border-radius:6px;
padding:8px 12px;margin:6px 0}
.agentrl pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:2px 0;font-size:12px;font-family:ui-monospace,monospace}
.agentrl .m{border-left:3px solid #888;padding-left:8px;margin:6px 0}
.agentrl .assistant{border-color:#0072B2}.agentrl .tool{border-color:#E69F00}
.agentrl .who{font-size:11px;opacity:.7}.agentrl .env{outline:1px dotted #888;opacity:.6}
</style>"""


def trajectory_html(t) -> str:
    """`t` as a self-contained piece of HTML for a notebook: messages, tool results, reward, and a fold with tokens."""
    parts = [_CSS, '<div class="agentrl">']
    results = iter(t.tool_results)
    for message in t.messages:
        who = message["role"]
        note = ""
        if who == "tool" and (result := next(results, None)) is not None:
            note = f" · {html.escape(result.status)} · {result.wall_s * 1000:.0f} ms"
        text = html.escape(message.get("content") or "")
        who = html.escape(who)
        parts.append(f'<div class="m {who}"><span class="who">{who}{note}</span><pre>{text}</pre></div>')
    verdict = "not scored"
    if t.reward is not None:
        shares = ", ".join(f"{html.escape(k)} {v:+.2f}" for k, v in t.reward.parts.items())
        verdict = f"reward {t.reward.total:+.2f} ({shares})"
    parts.append(
        f'<div class="who">{verdict} · ended: {html.escape(t.stop_reason.value)} · {t.n_sampled} tokens drawn, '
    )
    parts.append(f"{len(t.completion_ids) - t.n_sampled} from the environment</div>")
    if t.token_texts:
        parts.append(
            "<details><summary>tokens: blue by how surprising the draw was, dotted where the environment wrote"
        )
        parts.append("</summary><pre>")
        parts += [_token(*x) for x in zip(t.token_texts, t.sampled_mask, t.logprobs, strict=True)]
        parts.append("</pre></details>")
    return "".join(parts) + "</div>"


def _token(text: str, sampled: int, logprob: float) -> str:
    shown = html.escape(text)
    if not sampled:
        return f'<span class="env">{shown}</span>'
    strength = min(1.0, -logprob / 3) * 0.7
    title = f"log p {logprob:.2f}, p {math.exp(logprob):.3f}"
    return f'<span title="{title}" style="background:rgba(0,114,178,{strength:.2f})">{shown}</span>'
