"""Sampling from a transformers model: rows of any length side by side, one cache kept across turns.

Each row sits at its own position, without padding. A prompt that several rows share is read once and its
keys and values are copied. Rows that wait for a tool are parked behind the active ones and cost nothing;
rows that are done free their place. Tool output is fed through the same loop, one token a step.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentrl.policy.base import Completion, Sampling


class _RowCache:
    """Keys and values of many rows, each written at its own position (transformers' cache protocol)."""

    def __init__(self, config, n_rows: int, length: int, dtype, device):
        kv_heads = config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, n_rows, kv_heads, length, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.rows = self.positions = None
        self.length = 0

    def at(self, rows: torch.Tensor, positions_RxT: torch.Tensor, length: int) -> _RowCache:
        """Where the next forward pass writes, and how many positions it reads. `rows` must be 0..R-1."""
        self.rows, self.positions, self.length = rows[:, None], positions_RxT, length
        return self

    def update(self, keys, values, layer: int, *args, **kwargs):
        """Write (R, heads, T, dim) at the rows' positions; return all that those rows hold."""
        n = keys.shape[0]
        self.keys[layer][self.rows, :, self.positions] = keys.transpose(1, 2)
        self.values[layer][self.rows, :, self.positions] = values.transpose(1, 2)
        return self.keys[layer, :n, :, : self.length], self.values[layer, :n, :, : self.length]

    def get_seq_length(self, layer: int = 0) -> int:
        return self.length

    def swap(self, i: int, j: int, length: int) -> None:
        """Exchange the first `length` positions of two rows."""
        for kept in (self.keys, self.values):
            a, b = kept[:, i, :, :length], kept[:, j, :, :length]
            held = a.clone()
            a.copy_(b)
            b.copy_(held)


def _grouped_attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Attention for one new token a row: heads that share keys are queries side by side, so that keys and
    values are read in place. transformers' own function, used for longer inputs, first copies them for
    every head, which took a third of a step."""
    if query.shape[2] > 1 or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    rows, heads, _, dim = query.shape
    grouped = query.view(rows, key.shape[1], heads // key.shape[1], dim)
    out = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return out.reshape(rows, 1, heads, dim), None


ATTENTION = "agentrl_grouped"
AttentionInterface.register(ATTENTION, _grouped_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class HFPolicy:
    """A policy over a `transformers` causal model. Sampling never changes the model; training may, between calls.

    `max_rows` rows are decoded side by side; more wait for a free place. With the same seeds and the same
    sequence of calls the same tokens are drawn on the same machine.
    """

    def __init__(self, model, tokenizer, max_rows: int = 128):
        self.model, self.tokenizer, self.max_rows = model, tokenizer, max_rows
        model.set_attn_implementation(ATTENTION)

    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Completion]:
        """One completion a prompt, in order. Raises ValueError on an empty prompt or missing seeds."""
        if len(sampling.seeds) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts need as many seeds, got {len(sampling.seeds)}")
        stream = self.open(sampling)
        for key, (prompt, seed) in enumerate(zip(prompts, sampling.seeds, strict=True)):
            stream.put(key, prompt, seed)
        out: list[Completion | None] = [None] * len(prompts)
        for _ in prompts:
            key, out[key] = stream.get()
            stream.drop(key)
        return out

    def open(self, sampling: Sampling) -> HFStream:
        """A stream of conversations; see the package docstring."""
        return HFStream(self, sampling)


class HFStream:
    """Rows under way. Active rows are 0..n_active-1 of the cache; parked rows come after them."""

    def __init__(self, policy: HFPolicy, sampling: Sampling):
        self._policy, self._sampling = policy, sampling
        self._queue: deque = deque()  # (key, prompt, seed) waiting for a place
        self._done: deque = deque()  # (key, Completion) not yet handed out
        self._keys: list = []  # key of each row in use, active ones first
        self._under_way: set = set()  # keys that were put and not yet fetched
        self._n_active = 0
        self._cache: _RowCache | None = None
        self.places = n = policy.max_rows
        self._fed = np.zeros(n, dtype=np.int64)  # tokens of the row that the cache holds
        self._known = np.zeros(n, dtype=np.int64)  # tokens of the row that are known
        self._turn_start = np.zeros(n, dtype=np.int64)  # where the tokens of this turn begin
        self._limit = np.zeros(n, dtype=np.int64)  # a row never holds more tokens than this
        self._tokens = np.zeros((n, 0), dtype=np.int64)
        self._logprobs = np.zeros((n, 0), dtype=np.float64)
        self._uniforms = np.zeros((n, 0))  # a row's draws, by position: the batch around it doesn't matter
        self._state = ("_fed", "_known", "_turn_start", "_limit", "_tokens", "_logprobs", "_uniforms")

    def put(self, key, token_ids, seed: int) -> None:
        """A new conversation, or what is appended to a parked one (the seed is then not used)."""
        if not len(token_ids):
            raise ValueError(f"key {key!r}: no tokens to read")
        if key in self._under_way:
            raise ValueError(f"key {key!r} is under way; get() it first")
        if key not in self._keys:
            self._under_way.add(key)
            self._queue.append((key, list(token_ids), seed))
            return
        row = self._keys.index(key)
        known = self._known[row]
        if known + len(token_ids) >= self._limit[row]:
            raise ValueError(f"key {key!r}: {len(token_ids)} more tokens leave no room to answer in")
        self._tokens[row, known : known + len(token_ids)] = token_ids
        self._known[row] += len(token_ids)
        self._turn_start[row] = self._known[row]
        self._swap(row, self._n_active)
        self._n_active += 1
        self._under_way.add(key)

    def get(self):
        """The next (key, Completion). Raises LookupError where nothing is under way, or where what is waits
        for a place and every place is parked."""
        while not self._done:
            if not (self._n_active or self._queue):
                raise LookupError("nothing is being drawn: put() something first")
            with torch.no_grad():
                self._admit()
                if not self._n_active and not self._done:
                    raise LookupError("every place is parked: put() more or drop() one first")
                if self._n_active:
                    self._step()
        key, completion = self._done.popleft()
        self._under_way.discard(key)
        return key, completion

    def drop(self, key) -> None:
        """Forget a parked conversation and free its place."""
        if key in self._under_way:
            raise ValueError(f"key {key!r} is under way; get() it first")
        row, last = self._keys.index(key), len(self._keys) - 1
        self._swap(row, last)
        self._keys.pop()

    def _swap(self, i: int, j: int) -> None:
        if i == j:
            return
        self._keys[i], self._keys[j] = self._keys[j], self._keys[i]
        for name in self._state:
            array = getattr(self, name)
            array[[i, j]] = array[[j, i]]
        self._cache.swap(i, j, int(self._known[[i, j]].max()))

    def _admit(self) -> None:
        """Give waiting prompts the free places; each distinct prompt is read once."""
        free = self._policy.max_rows - len(self._keys)
        batch = [self._queue.popleft() for _ in range(min(free, len(self._queue)))]
        if not batch:
            return
        self._reserve(max(len(prompt) for _, prompt, _ in batch) + self._sampling.max_tokens)
        prompts = list(dict.fromkeys(tuple(prompt) for _, prompt, _ in batch))
        order = {prompt: i for i, prompt in enumerate(prompts)}
        model, device = self._policy.model, self._policy.model.device
        lengths = np.array([len(p) for p in prompts])
        width = int(lengths.max())
        ids = np.zeros((len(prompts), width), dtype=np.int64)
        for i, prompt in enumerate(prompts):
            ids[i, : len(prompt)] = prompt
        read = _RowCache(model.config, len(prompts), width, model.dtype, device)
        positions = torch.arange(width, device=device).expand(len(prompts), width)
        causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()[None, None]
        hidden = self._forward(torch.from_numpy(ids).to(device), positions, causal, read, width)
        last = hidden[torch.arange(len(prompts)), torch.from_numpy(lengths - 1)]
        logits = model.get_output_embeddings()(last)
        rows = []
        for key, prompt, seed in batch:  # new rows go between the active and the parked ones
            row = len(self._keys)
            self._keys.append(key)
            self._swap(row, self._n_active)
            row, n = self._n_active, len(prompt)
            self._n_active += 1
            self._tokens[row, :n] = prompt
            self._fed[row] = self._known[row] = self._turn_start[row] = n
            self._limit[row] = n + self._sampling.max_tokens
            self._uniforms[row] = np.random.default_rng(seed).random(self._uniforms.shape[1])
            rows.append(row)
        source = torch.tensor([order[tuple(prompt)] for _, prompt, _ in batch])
        for kept, new in ((self._cache.keys, read.keys), (self._cache.values, read.values)):
            kept[:, rows[0] : rows[-1] + 1, :, :width] = new[:, source]
        self._draw(np.array(rows), logits[source])

    def _reserve(self, length: int) -> None:
        """Room for rows of `length` tokens."""
        have = self._tokens.shape[1]
        if length <= have:
            return
        model, n = self._policy.model, self._policy.max_rows
        old, self._cache = self._cache, _RowCache(model.config, n, length, model.dtype, model.device)
        if old is not None:
            self._cache.keys[:, :, :, :have] = old.keys
            self._cache.values[:, :, :, :have] = old.values
        for name in ("_tokens", "_logprobs"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros((n, length - have), array.dtype)], 1))
        # A row keeps the draws that it began with; only rows put in later use the new columns.
        self._uniforms = np.concatenate([self._uniforms, np.zeros((n, length - have))], 1)

    def _step(self) -> None:
        """Feed one token to every active row; draw where the row has no more known tokens."""
        n = self._n_active
        rows, at = np.arange(n), self._fed[:n].copy()
        width = int(at.max()) + 1
        device = self._policy.model.device
        positions = torch.from_numpy(at).to(device)[:, None]
        mask = (torch.arange(width, device=device)[None] <= positions)[:, None, None]
        ids = torch.from_numpy(self._tokens[rows, at]).to(device)[:, None]
        hidden = self._forward(ids, positions, mask, self._cache, width)
        self._fed[:n] += 1
        drawing = rows[self._fed[:n] == self._known[:n]]
        if len(drawing):
            logits = self._policy.model.get_output_embeddings()(hidden[torch.from_numpy(drawing), 0])
            self._draw(drawing, logits)

    def _forward(self, ids, positions, mask, cache: _RowCache, width: int):
        rows = torch.arange(ids.shape[0], device=ids.device)
        return self._policy.model.base_model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache.at(rows, positions, width),
            use_cache=True,
        ).last_hidden_state

    def _draw(self, rows: np.ndarray, logits_RxV: torch.Tensor) -> None:
        """Draw one token a row, and park the rows whose turn is over."""
        logits = logits_RxV.float()
        at = self._known[rows]
        logprobs = torch.log_softmax(logits, -1)
        uniforms = torch.from_numpy(self._uniforms[rows, at]).to(logits.device)
        drawn = _inverse_cdf(logits, uniforms, self._sampling.temperature, self._sampling.top_p)
        self._tokens[rows, at] = drawn.cpu().numpy()
        self._logprobs[rows, at] = logprobs.gather(1, drawn[:, None])[:, 0].cpu().numpy()
        self._known[rows] += 1
        ended = self._tokens[rows, at] == self._policy.tokenizer.eos_token_id
        over = ended | (self._known[rows] >= self._limit[rows])
        for row, finished in sorted(zip(rows[over], ended[over], strict=True), reverse=True):
            start, stop = self._turn_start[row], self._known[row]
            completion = Completion(
                tuple(self._tokens[row, start:stop].tolist()),
                tuple(self._logprobs[row, start:stop].tolist()),
                bool(finished),
            )
            self._done.append((self._keys[row], completion))
            self._n_active -= 1
            self._swap(row, self._n_active)


def _inverse_cdf(logits_RxV, uniforms_R, temperature: float, top_p: float) -> torch.Tensor:
    """One token a row from softmax(logits / temperature) cut at `top_p`; temperature 0 is the likeliest."""
    if temperature == 0:
        return logits_RxV.argmax(-1)
    probs = torch.softmax(logits_RxV.double() / temperature, -1)
    if top_p < 1:
        ordered, index = probs.sort(dim=-1, descending=True, stable=True)
        kept = ordered.cumsum(-1) - ordered < top_p  # the token that crosses top_p is kept
        probs = torch.zeros_like(probs).scatter(1, index, ordered * kept)
    totals = probs.cumsum(-1)
    drawn = torch.searchsorted(totals, uniforms_R[:, None] * totals[:, -1:], right=True)[:, 0]
    return drawn.clamp_(max=probs.shape[1] - 1)
