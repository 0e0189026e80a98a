"""Log-probabilities of completions, with the prompt that several of them share computed once.

A group's completions differ only after their prompt. Laid out as one row, ``prompt | completion 1 | completion 2 |
...``, with an attention mask that lets a completion see the prompt and itself alone and with positions that restart
after the prompt, the model computes for every completion exactly what it computes for it alone, at P + G*C tokens
instead of G*(P + C). Only positions that predict a completion's token reach the LM head.

Shapes: N completions (rows of a TRL batch), P prompt and C completion columns of that batch, R packed rows, L their
length, S scored tokens.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import torch
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import FusedCausalLMOutput

PACKED_TOKENS = 2048
"""Longest packed row, unless one prompt with one completion is longer: attention over a packed row costs its square."""
_VOCABULARY_CHUNK = 32768


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch of completions laid out with shared prompts."""

    ids_RL: torch.Tensor
    positions_RL: torch.Tensor
    mask_R1LL: torch.Tensor
    """True where a position (row) may attend to another (column)."""
    at_S: torch.Tensor
    """Index into the flattened (R * L) positions whose next token is scored."""
    labels_S: torch.Tensor
    """That next token."""
    into_S: torch.Tensor
    """Index into the flattened (N * C) completion tokens that it is."""


def pack(
    ids_NT: torch.Tensor,
    mask_NT: torch.Tensor,
    completion_columns: int,
    pad_id: int,
    own_NC: torch.Tensor | None = None,
) -> Packed:
    """Lay a TRL batch out in packed rows.

    Args:
        ids_NT: Token ids (N, P + C), prompts padded on the left and completions on the right.
        mask_NT: Ones at real tokens, same shape. A completion without any is scored nowhere.
        completion_columns: C.
        pad_id: Fills packed rows of different lengths.
        own_NC: Ones at completion tokens of the model, (N, C); the others are attended to and not scored. None where
            all are the model's.
    """
    prompt_columns = ids_NT.size(1) - completion_columns
    ids, mask = ids_NT.tolist(), mask_NT.bool().tolist()
    own = None if own_NC is None else own_NC.bool().tolist()
    rows: list[_Row] = []
    open_rows: dict[tuple[int, ...], _Row] = {}
    for n, (tokens, real) in enumerate(zip(ids, mask, strict=True)):
        prompt = tuple(t for t, m in zip(tokens[:prompt_columns], real[:prompt_columns], strict=True) if m)
        completion = [t for t, m in zip(tokens[prompt_columns:], real[prompt_columns:], strict=True) if m]
        scored = None if own is None else [o for o, m in zip(own[n], real[prompt_columns:], strict=True) if m]
        if scored is not None:  # nothing is asked of what follows the model's last token
            completion = completion[: max((i + 1 for i, o in enumerate(scored) if o), default=0)]
        if not completion:
            continue
        row = open_rows.get(prompt)
        if row is None or len(row.ids) + len(completion) - 1 > PACKED_TOKENS:
            row = _Row(prompt)
            open_rows[prompt] = row
            rows.append(row)
        row.add(completion, n * completion_columns, scored)
    # A batch with nothing to score still runs one token: other processes wait for this one's gradients.
    return _stack(rows or [_Row((pad_id,))], pad_id, ids_NT.device)


class _Row:
    """One packed row while it is built."""

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self.prompt_length = len(prompt)
        self.ids = list(prompt)
        self.positions = list(range(len(prompt)))
        self.segments = [0] * len(prompt)  # 0 for the prompt, then one number a completion
        self.at: list[int] = []
        self.labels: list[int] = []
        self.into: list[int] = []

    def add(self, completion: list[int], target: int, scored: list[bool] | None) -> None:
        start = len(self.ids)
        # A completion's last token is only ever predicted, so it need not be run.
        inner = completion[:-1]
        self.ids += inner
        self.positions += range(self.prompt_length, self.prompt_length + len(inner))
        self.segments += [self.segments[-1] + 1 if self.segments else 1] * len(inner)
        places = [place for place in range(len(completion)) if scored is None or scored[place]]
        self.at += [self.prompt_length - 1 if place == 0 else start + place - 1 for place in places]
        self.labels += [completion[place] for place in places]
        self.into += [target + place for place in places]


def _stack(rows: list[_Row], pad_id: int, device: torch.device) -> Packed:
    longest = max(len(row.ids) for row in rows)
    ids_RL = torch.full((len(rows), longest), pad_id, dtype=torch.long)
    positions_RL = torch.zeros((len(rows), longest), dtype=torch.long)
    # Padding is a segment of its own: it sees only itself, so no row of the mask is empty (softmax would give NaN).
    segments_RL = torch.full((len(rows), longest), -1, dtype=torch.long)
    at, labels, into = [], [], []
    for r, row in enumerate(rows):
        ids_RL[r, : len(row.ids)] = torch.tensor(row.ids)
        positions_RL[r, : len(row.ids)] = torch.tensor(row.positions)
        segments_RL[r, : len(row.ids)] = torch.tensor(row.segments)
        at += [r * longest + p for p in row.at]
        labels += row.labels
        into += row.into
    causal_LL = torch.ones(longest, longest, dtype=torch.bool).tril()
    query_RL1, key_R1L = segments_RL.unsqueeze(2), segments_RL.unsqueeze(1)
    mask_RLL = causal_LL & ((query_RL1 == key_R1L) | ((key_R1L == 0) & (query_RL1 > 0)))
    return Packed(
        ids_RL.to(device),
        positions_RL.to(device),
        mask_RLL.unsqueeze(1).to(device),
        torch.tensor(at, dtype=torch.long, device=device),
        torch.tensor(labels, dtype=torch.long, device=device),
        torch.tensor(into, dtype=torch.long, device=device),
    )


def supports_packing(model: Any) -> bool:
    """Whether every layer has plain full attention and the head no scaling, so that a packed row is exact."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    scaled = ("final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")
    return (
        config._attn_implementation in ("sdpa", "eager")
        and kinds == {"full_attention"}
        and not (getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True))
        and not any(getattr(config, name, None) for name in scaled)
        and config.model_type in ("llama", "qwen2", "qwen3", "mistral")
    )


def add_scoring(model: Any, temperature: float) -> None:
    """Teach a model's forward the keyword ``score``: ``(at_S, labels_S)`` to log_probs and entropy, each (S,).

    The call has to go through the model's own forward, so that adapters and distributed wrappers around it still act.
    Without the keyword the forward is unchanged.
    """
    forward = model.forward

    def scoring_forward(
        self: Any, *args: Any, score: tuple[torch.Tensor, torch.Tensor] | None = None, **kwargs: Any
    ) -> Any:
        if score is None:
            return forward(*args, **kwargs)
        at_S, labels_S = score
        kwargs = {k: v for k, v in kwargs.items() if v is not None and k not in ("labels", "return_dict")}
        hidden_RLH = self.base_model(*args, use_cache=False, **kwargs).last_hidden_state
        head = self.get_output_embeddings()
        log_probs_S, entropy_S, *_ = ChunkedLogProbFunction.apply(
            # Not indexing: its gradient adds rows of one prompt up in whatever order the threads come.
            hidden_RLH.reshape(-1, hidden_RLH.size(-1)).index_select(0, at_S),
            head.weight,
            head.bias,
            labels_S,
            temperature,
            _VOCABULARY_CHUNK,
            None,
            1.0,
            ("entropy",),
        )
        return FusedCausalLMOutput(log_probs=log_probs_S, entropy=entropy_S)

    # `generate` and PEFT look at the signature of the class's forward, which stays what it was.
    model.forward = types.MethodType(scoring_forward, model)


def score(model: Any, packed: Packed, shape: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of every scored completion token, each (N, C), zeros elsewhere.

    Args:
        model: A model that ``add_scoring`` was applied to, as it stands in the training loop.
        packed: From ``pack``.
        shape: (N, C) of the batch that was packed.
        dtype: Type of an attention mask's zeros, when the kernel takes an additive one.
    """
    mask = packed.mask_R1LL
    if model_attention(model) == "eager":
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    output = model(
        input_ids=packed.ids_RL,
        attention_mask=mask,
        position_ids=packed.positions_RL,
        score=(packed.at_S, packed.labels_S),
    )
    return _spread(output.log_probs, packed, shape), _spread(output.entropy, packed, shape)


def model_attention(model: Any) -> str:
    """The attention kernel in force on a model, wrapped or not."""
    inner = getattr(model, "module", model)
    return inner.config.get_text_config()._attn_implementation


def _spread(values_S: torch.Tensor, packed: Packed, shape: tuple[int, int]) -> torch.Tensor:
    flat = values_S.new_zeros(shape[0] * shape[1])
    return flat.index_copy(0, packed.into_S, values_S).view(shape)
