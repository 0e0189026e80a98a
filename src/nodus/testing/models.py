"""Tiny random models that are made in a second, for tests and for trying a trainer without weights.

Importing this module loads no torch; making a model does.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'][0] + '>' + message['content'] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)
TOOLS_TEMPLATE = "{% if tools %}{{ '<s>' + (tools | tojson) + '<end>' }}{% endif %}" + CHAT_TEMPLATE
"""As ``CHAT_TEMPLATE``, with a place for tools."""
_SPECIAL = ("<pad>", "<end>", "<s>", "<u>", "<a>")


def tiny_llama(
    directory: Path,
    *,
    seed: int = 0,
    hidden: int = 32,
    layers: int = 2,
    chat: bool = True,
    tools: bool = False,
    vocabulary: str | None = None,
    words: Sequence[str] = (),
    positions: int = 512,
) -> Path:
    """Write a random Llama model with a character tokenizer and return its directory.

    Args:
        directory: Made when missing.
        seed: Seed of the weights; the same seed gives the same files.
        hidden: Width; heads are 8 wide.
        layers: Number of layers.
        chat: Whether the tokenizer has a chat template.
        tools: Whether that template has a place for tools.
        vocabulary: The characters the tokenizer knows; letters, digits and some punctuation when None.
        words: Texts that are one token each, such as a call of a tool, which a random model says now and then.
        positions: Most tokens of prompt and replies together.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = character_tokenizer(chat=chat, vocabulary=vocabulary)
    if tools:
        tokenizer.chat_template = TOOLS_TEMPLATE
    tokenizer.add_tokens(list(words))
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 8,
        num_key_value_heads=max(hidden // 16, 1),
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        # Far above a real model's: its next token is far from uniform, so that an adapter has something to turn.
        initializer_range=0.25,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def character_tokenizer(*, chat: bool = True, vocabulary: str | None = None):  # type: ignore[no-untyped-def]
    """A tokenizer with one token a character, ``<end>`` to end a reply and, with ``chat``, a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = vocabulary or string.ascii_letters + string.digits + " .,?!+-*/=:\n"
    vocab = {token: i for i, token in enumerate([*_SPECIAL, "<unk>", *dict.fromkeys(characters)])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        additional_special_tokens=["<s>", "<u>", "<a>"],
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE if chat else None
    return tokenizer
