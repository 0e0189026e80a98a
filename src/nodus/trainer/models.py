"""Loading the model and its tokenizer from the mounted directory."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from nodus.core.errors import BadRequest, Cause, Invalid
from nodus.trainer.grpo_config import Device, precision
from nodus.trainer.parameters import PARAMETERS_PATH, Values

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def quiet() -> None:
    """Keep the training stack's progress bars, and what it says of its own deprecations, out of the run's log."""
    transformers.utils.logging.disable_progress_bar()
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category, module=r"(transformers|trl|peft|accelerate|torch)(\.|$)")


def detect_device(processes: int) -> Device:
    """The device this process trains on."""
    if torch.cuda.is_available():
        return Device("cuda", bool(torch.cuda.is_bf16_supported()), processes)
    return Device("cpu", True, processes)


def load_tokenizer(model_dir: Path) -> Any:
    """The tokenizer beside the weights, padding on the left.

    Raises:
        BadRequest: When the directory holds no tokenizer that transformers can read.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True, padding_side="left")
    except (OSError, ValueError, KeyError) as error:
        raise BadRequest(f"no tokenizer can be read from {model_dir}: {error}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(model_dir: Path, values: Values, device: Device, *, training: bool) -> Any:
    """The causal language model in the run's precision and attention, on its device.

    A frozen base (LoRA, evaluation) is kept in the precision that computes; weights that are trained themselves are
    kept in fp32 and computed in a lower precision by autocast.

    Raises:
        BadRequest: When the directory holds no causal language model.
        Invalid: When the attention kernel asked for is not available for it.
    """
    full = training and values["method"] == "Full"
    arguments: dict[str, Any] = {"dtype": torch.float32 if full else _DTYPES[precision(values, device)]}
    if values["attention"] is not None:
        arguments["attn_implementation"] = values["attention"]
    if training and values["method"] == "QLoRA":
        arguments["quantization_config"] = _four_bit(values, device)
    try:
        model = AutoModelForCausalLM.from_pretrained(model_dir, local_files_only=True, **arguments)
    except (ImportError, ValueError) as error:
        if values["attention"] is not None:
            cause = Cause(f"{PARAMETERS_PATH}.attention", "FieldValueNotSupported", str(error).splitlines()[0])
            raise Invalid("the attention kernel is not available", causes=[cause]) from error
        raise BadRequest(f"no causal language model can be read from {model_dir}: {error}") from error
    except OSError as error:
        raise BadRequest(f"no causal language model can be read from {model_dir}: {error}") from error
    if device.gpu and "quantization_config" not in arguments:
        model = model.to("cuda")
    return model


def _four_bit(values: Values, device: Device) -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=_DTYPES[precision(values, device)],
    )


def stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a reply: the tokenizer's, and those the model's generation config names."""
    declared = model.generation_config.eos_token_id
    declared = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return list(dict.fromkeys([*own, *declared]))
