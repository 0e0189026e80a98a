"""Sampling and greedy decoding of a batch of prompts, with the prompt of a group computed once.

Shapes: U unique prompts, G copies of each, B = U * G rows in flight, P longest prompt, T columns computed so far, W new
ones, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

COMPACT_BELOW = 0.75
"""Finished rows leave the batch once fewer than this share of its rows is still being written."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most likely token."""
    top_k: int = 0
    """Keep only the K most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the most likely tokens that together reach this mass; at least one."""

    def choose(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Draw one token id a row, shape (B,), from torch's global generator."""
        if self.temperature == 0:
            return logits_BV.argmax(dim=-1)
        scores_BV = logits_BV.float() / self.temperature
        if 0 < self.top_k < scores_BV.size(-1):
            floor_B1 = scores_BV.topk(self.top_k, dim=-1).values[:, -1:]
            scores_BV = scores_BV.masked_fill(scores_BV < floor_B1, -torch.inf)
        if self.top_p < 1:
            ordered_BV, order_BV = scores_BV.sort(dim=-1, descending=True)
            before_BV = ordered_BV.softmax(dim=-1).cumsum(dim=-1) - ordered_BV.softmax(dim=-1)
            cut_BV = before_BV >= self.top_p
            cut_BV[:, 0] = False  # the most likely token stays, whatever the mass asked for
            scores_BV = scores_BV.masked_fill(cut_BV.scatter(1, order_BV, cut_BV), -torch.inf)
        # One uniform number a row, looked up in the distribution: torch.multinomial draws one a vocabulary entry.
        mass_BV = scores_BV.softmax(dim=-1).double().cumsum(dim=-1)
        drawn_B1 = torch.rand(len(mass_BV), 1, dtype=torch.double, device=mass_BV.device) * mass_BV[:, -1:]
        return torch.searchsorted(mass_BV, drawn_B1, right=True).squeeze(1).clamp(max=mass_BV.size(1) - 1)

    def describe(self, logits_BV: torch.Tensor, tokens_B: torch.Tensor) -> tuple[list[float], list[float]]:
        """Log-probability of every chosen token and entropy of what it was chosen from, B each.

        Both are of the distribution at this temperature before filtering, as in the loss.
        """
        scores_BV = logits_BV.float() / self.temperature
        total_B1 = scores_BV.logsumexp(dim=-1, keepdim=True)
        chosen_B1 = scores_BV.gather(1, tokens_B.unsqueeze(1)) - total_B1
        entropy_B = total_B1.squeeze(1) - ((scores_BV - total_B1).exp_() * scores_BV).sum(dim=-1)
        return chosen_B1.squeeze(1).tolist(), entropy_B.tolist()


GREEDY = Sampling(temperature=0)


@dataclass(slots=True)
class Completion:
    """One completion while it is written and after."""

    tokens: list[int] = field(default_factory=list)
    """Token ids; the last is a stop token unless the length ran out."""
    log_probs: list[float] = field(default_factory=list)
    """The policy's log-probability of each, same length; empty for greedy decoding."""
    entropies: list[float] = field(default_factory=list)
    """Entropy of the distribution each was drawn from, same length; empty for greedy decoding."""

    def add(self, token: int, log_prob: float | None, entropy: float | None) -> None:
        """Append a token."""
        self.tokens.append(token)
        if log_prob is not None and entropy is not None:
            self.log_probs.append(log_prob)
            self.entropies.append(entropy)


def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    copies: int,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    pad_id: int,
    sampling: Sampling,
) -> list[Completion]:
    """Complete every prompt ``copies`` times.

    The model is put into eval mode for the time of the call: adapter dropout is no part of the policy.

    Args:
        model: A causal language model, with or without adapter, not wrapped for distributed training.
        prompts: U token id lists, each of at least one token.
        copies: G, completions of each prompt.
        max_new_tokens: Longest completion, its stop token included.
        stop_ids: Tokens that end a completion and belong to it.
        pad_id: Fills prompts on the left; never seen by attention.
        sampling: How tokens are chosen; greedy decoding draws nothing from the random generator.

    Returns:
        U * G completions, the G of the first prompt first; each ends with its stop token or has ``max_new_tokens``.
    """
    decoder = Decoder(model, stop_ids=stop_ids, pad_id=pad_id, sampling=sampling)
    return decoder.start(prompts, copies, [max_new_tokens] * (len(prompts) * copies))


class Decoder:
    """Writes completions, and with ``keep`` goes on with any of them after tokens that were put behind it.

    What was computed of a sequence is kept and computed once: going on costs the new tokens alone. A model whose layers
    keep anything but plain keys and values computes the sequence again instead.

    Args:
        model: A causal language model, with or without adapter, not wrapped for distributed training.
        stop_ids: Tokens that end a completion and belong to it.
        pad_id: Fills what is shorter on the left; never seen by attention.
        sampling: How tokens are chosen; greedy decoding draws nothing from the random generator.
        keep: Whether completions are gone on with.

    Example:
        >>> decoder = Decoder(model, stop_ids=[2], pad_id=0, sampling=GREEDY, keep=True)
        >>> first, second = decoder.start([[5, 6], [7]], 1, [16, 16])
        >>> (more,) = decoder.go_on([1], [[8, 9]], [16])  # after the second prompt and completion and 8, 9
    """

    def __init__(
        self, model: Any, *, stop_ids: Sequence[int], pad_id: int, sampling: Sampling, keep: bool = False
    ) -> None:
        self._model = model
        self._stop_ids = frozenset(stop_ids)
        self._pad_id = pad_id
        self._sampling = sampling
        self._keep = keep
        self._device = next(model.parameters()).device
        self._kept: dict[int, tuple[_Part, int]] = {}
        self._sequences: dict[int, list[int]] = {}

    def start(self, prompts: Sequence[Sequence[int]], copies: int, limits: Sequence[int]) -> list[Completion]:
        """Complete every prompt ``copies`` times; row ``u * copies + g`` is the g-th completion of prompt u.

        Args:
            prompts: U token id lists, each of at least one token.
            copies: G, completions of each prompt.
            limits: Longest completion of every row, its stop token included, U * G of at least 1.
        """
        if self._keep:
            self._sequences = {row: list(prompts[row // copies]) for row in range(len(limits))}
        with _evaluating(self._model):
            return self._prefill(prompts, copies, list(range(len(limits))), limits)

    def go_on(self, rows: Sequence[int], added: Sequence[Sequence[int]], limits: Sequence[int]) -> list[Completion]:
        """Write what follows in some rows; the others are forgotten.

        Args:
            rows: Rows that were written by the last call, each once.
            added: Tokens put behind each row's last completion.
            limits: Longest completion of each, its stop token included, at least 1.
        """
        for row, tokens in zip(rows, added, strict=True):
            self._sequences[row] += tokens
        with _evaluating(self._model):
            if any(row not in self._kept for row in rows):
                return self._prefill([self._sequences[row] for row in rows], 1, rows, limits)
            return self._extend(rows, limits)

    def _prefill(
        self, sequences: Sequence[Sequence[int]], copies: int, rows: Sequence[int], limits: Sequence[int]
    ) -> list[Completion]:
        ids_UP, mask_UP = left_pad(sequences, self._pad_id, self._device)
        positions_UP = (mask_UP.cumsum(dim=1) - 1).clamp(min=0)
        output = self._model(
            input_ids=ids_UP, attention_mask=mask_UP, position_ids=positions_UP, use_cache=True, logits_to_keep=1
        )
        name, cache = _cache_of(self._model, output)
        cache.batch_repeat_interleave(copies)
        logits_BV = output.logits[:, -1].repeat_interleave(copies, dim=0)
        mask_BT = mask_UP.repeat_interleave(copies, dim=0)
        return self._write(rows, limits, name, cache, logits_BV, mask_BT)

    def _extend(self, rows: Sequence[int], limits: Sequence[int]) -> list[Completion]:
        """Compute what is new in every row, on top of what was kept of it."""
        parts = [self._kept[row] for row in rows]
        lengths = [part.length(at) for part, at in parts]
        cache, mask_BT = _joined(parts, lengths)
        new = [self._sequences[row][length:] for row, length in zip(rows, lengths, strict=True)]
        ids_BW, mask_BW = left_pad(new, self._pad_id, self._device)
        mask_BT = torch.cat([mask_BT, mask_BW], dim=1)
        positions_BW = (mask_BT.cumsum(dim=1) - 1)[:, -ids_BW.size(1) :].clamp(min=0)
        self._kept = {}
        name = _cache_name(self._model)
        output = self._model(
            input_ids=ids_BW,
            attention_mask=mask_BT,
            position_ids=positions_BW,
            use_cache=True,
            logits_to_keep=1,
            **{name: cache},
        )
        return self._write(rows, limits, name, cache, output.logits[:, -1], mask_BT)

    def _write(
        self,
        names: Sequence[int],
        limits: Sequence[int],
        cache_name: str,
        cache: Any,
        logits_BV: torch.Tensor,
        mask_BT: torch.Tensor,
    ) -> list[Completion]:
        keeps = self._keep and _is_plain(cache)
        next_B = mask_BT.sum(dim=1)
        completions = [Completion() for _ in names]
        at = list(range(len(names)))  # which completion each row in flight belongs to, ended or not
        rows = list(at)  # the same while it is written; -1 for a finished one
        while True:
            tokens_B = self._sampling.choose(logits_BV)
            self._take(completions, rows, limits, logits_BV, tokens_B)
            running = [i for i, row in enumerate(rows) if row >= 0]
            if not running:
                break
            if len(running) < COMPACT_BELOW * len(rows):
                if keeps:
                    ended = [i for i, row in enumerate(rows) if row < 0]
                    self._park(_Part.of(cache, mask_BT, ended), [names[at[i]] for i in ended])
                keep = torch.tensor(running, device=self._device)
                cache.batch_select_indices(keep)
                rows, at = [rows[i] for i in running], [at[i] for i in running]
                tokens_B, mask_BT, next_B = tokens_B[keep], mask_BT[keep], next_B[keep]
            column_B1 = mask_BT.new_ones(len(rows), 1)
            if keeps:  # what a finished row is fed is no part of it
                column_B1[[i for i, row in enumerate(rows) if row < 0]] = 0
            mask_BT = torch.cat([mask_BT, column_B1], dim=1)
            output = self._model(
                input_ids=tokens_B.unsqueeze(1),
                attention_mask=mask_BT,
                position_ids=next_B.unsqueeze(1),
                use_cache=True,
                **{cache_name: cache},
            )
            logits_BV = output.logits[:, -1]
            next_B = next_B + 1
        if keeps:
            self._park(_Part.of(cache, mask_BT, None), [names[i] for i in at])
        if self._keep:
            for name, completion in zip(names, completions, strict=True):
                self._sequences[name] += completion.tokens
        return completions

    def _take(
        self,
        completions: Sequence[Completion],
        rows: list[int],
        limits: Sequence[int],
        logits_BV: torch.Tensor,
        tokens_B: torch.Tensor,
    ) -> None:
        """Append a token to every completion that is still written, and mark those that it ended."""
        described: tuple[Sequence[float | None], Sequence[float | None]] = ([None] * len(rows), [None] * len(rows))
        if self._sampling.temperature > 0:
            described = self._sampling.describe(logits_BV, tokens_B)
        for position, (token, *figures) in enumerate(zip(tokens_B.tolist(), *described, strict=True)):
            row = rows[position]
            if row >= 0:
                completions[row].add(token, *figures)
                if token in self._stop_ids or len(completions[row].tokens) >= limits[row]:
                    rows[position] = -1

    def _park(self, part: _Part, names: Sequence[int]) -> None:
        self._kept.update({name: (part, at) for at, name in enumerate(names)})


@dataclass(frozen=True, slots=True)
class _Part:
    """Keys and values of rows that were in flight together, as they were when the rows left."""

    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """Keys and values (B, heads, T, size) of every layer."""
    mask_BT: torch.Tensor
    """Ones at columns that belong to a row."""
    lengths: tuple[int, ...]
    """Tokens of every row."""

    @classmethod
    def of(cls, cache: Any, mask_BT: torch.Tensor, rows: Sequence[int] | None) -> _Part:
        """Some rows of a cache, copied; all of them as they are for None."""
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        if rows is not None:
            index = torch.tensor(rows, device=mask_BT.device)
            layers = [(keys[index], values[index]) for keys, values in layers]
            mask_BT = mask_BT[index]
        return cls(tuple(layers), mask_BT, tuple(mask_BT.sum(dim=1).tolist()))

    def length(self, row: int) -> int:
        """Tokens of a row: all of its sequence but the last, which was never run."""
        return self.lengths[row]


def _joined(parts: Sequence[tuple[_Part, int]], lengths: Sequence[int]) -> tuple[Any, torch.Tensor]:
    """Rows out of parts, side by side in a new cache, filled on the left; and their mask."""
    longest = max(lengths)
    columns = [part.mask_BT[row].nonzero().squeeze(1) for part, row in parts]
    first = parts[0][0]
    mask_BT = first.mask_BT.new_zeros(len(parts), longest)
    for b, length in enumerate(lengths):
        mask_BT[b, longest - length :] = 1
    cache = DynamicCache()
    for layer, pair in enumerate(first.layers):
        joined = [tensor.new_zeros(len(parts), tensor.size(1), longest, tensor.size(3)) for tensor in pair]
        for b, ((part, row), length) in enumerate(zip(parts, lengths, strict=True)):
            for which, into in enumerate(joined):
                into[b, :, longest - length :] = part.layers[layer][which][row].index_select(1, columns[b])
        cache.update(*joined, layer)
    return cache, mask_BT


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def left_pad(
    sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (U, P) padded on the left, and their mask of ones and zeros, same shape."""
    longest = max(len(ids) for ids in sequences)
    ids_UP = torch.full((len(sequences), longest), pad_id, dtype=torch.long)
    mask_UP = torch.zeros((len(sequences), longest), dtype=torch.long)
    for row, ids in enumerate(sequences):
        ids_UP[row, longest - len(ids) :] = torch.tensor(ids, dtype=torch.long)
        mask_UP[row, longest - len(ids) :] = 1
    return ids_UP.to(device), mask_UP.to(device)


def _cache_of(model: Any, output: Any) -> tuple[str, Any]:
    name = _cache_name(model)
    return name, getattr(output, name)


def _cache_name(model: Any) -> str:
    # transformers renamed the argument and the output field from past_key_values to cache; both are supported.
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    names = inspect.signature(type(base).forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def _is_plain(cache: Any) -> bool:
    """Whether every layer keeps the keys and values of all tokens, and nothing else."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)
