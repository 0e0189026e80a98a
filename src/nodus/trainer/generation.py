"""Sampling and greedy decoding of a batch of prompts, with the prompt of a group computed once.

Shapes: U unique prompts, G copies of each, B = U * G rows in flight, P longest prompt, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

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


@torch.no_grad()
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
    training = model.training
    model.eval()
    try:
        return _decode(model, prompts, copies, max_new_tokens, frozenset(stop_ids), pad_id, sampling)
    finally:
        model.train(training)


def _decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    copies: int,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    pad_id: int,
    sampling: Sampling,
) -> list[Completion]:
    device = next(model.parameters()).device
    ids_UP, mask_UP = left_pad(prompts, pad_id, device)
    positions_UP = (mask_UP.cumsum(dim=1) - 1).clamp(min=0)
    output = model(
        input_ids=ids_UP, attention_mask=mask_UP, position_ids=positions_UP, use_cache=True, logits_to_keep=1
    )
    cache_name, cache = _cache_of(model, output)
    cache.batch_repeat_interleave(copies)
    logits_BV = output.logits[:, -1].repeat_interleave(copies, dim=0)
    mask_BT = mask_UP.repeat_interleave(copies, dim=0)
    next_B = mask_BT.sum(dim=1)

    completions = [Completion() for _ in range(len(prompts) * copies)]
    rows = list(range(len(completions)))  # which completion each row in flight writes; -1 for a finished one
    for length in range(1, max_new_tokens + 1):
        tokens_B = sampling.choose(logits_BV)
        described: tuple[Sequence[float | None], Sequence[float | None]] = ([None] * len(rows), [None] * len(rows))
        if sampling.temperature > 0:
            described = sampling.describe(logits_BV, tokens_B)
        for position, (token, *figures) in enumerate(zip(tokens_B.tolist(), *described, strict=True)):
            if rows[position] >= 0:
                completions[rows[position]].add(token, *figures)
                if token in stop_ids:
                    rows[position] = -1
        running = [i for i, row in enumerate(rows) if row >= 0]
        if not running or length == max_new_tokens:
            break
        if len(running) < COMPACT_BELOW * len(rows):
            keep = torch.tensor(running, device=device)
            cache.batch_select_indices(keep)
            rows = [rows[i] for i in running]
            tokens_B, mask_BT, next_B = tokens_B[keep], mask_BT[keep], next_B[keep]
        mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(rows), 1)], dim=1)
        output = model(
            input_ids=tokens_B.unsqueeze(1),
            attention_mask=mask_BT,
            position_ids=next_B.unsqueeze(1),
            use_cache=True,
            **{cache_name: cache},
        )
        logits_BV = output.logits[:, -1]
        next_B = next_B + 1
    return completions


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
    # transformers renamed the argument and the output field from past_key_values to cache; both are supported.
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    names = inspect.signature(type(base).forward).parameters
    name = "cache" if "cache" in names else "past_key_values"
    return name, getattr(output, name)
