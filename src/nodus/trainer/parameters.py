"""The parameters of the managed runtimes, each declared once.

Everything that concerns a parameter is generated from these records: the runtime's JSON Schema and catalog file, the
reference page, the check of a params.json, and the mapping onto TRL and PEFT (``grpo_config``). Importing this module
loads neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from nodus.core.errors import Cause

PARAMETERS_PATH = "spec.parameters"

Type = Literal["string", "integer", "number", "boolean", "object", "any"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a runtime."""

    path: str
    """Dotted path below ``spec.parameters``, such as ``lora.r``."""
    type: Type
    """JSON type; ``any`` is checked by the code that uses it."""
    description: str
    """One line for a person, as on the reference page."""
    maps_to: str
    """The field of TRL, PEFT or transformers that it sets, or what of ours reads it."""
    default: Any = None
    """Value of an unset parameter; None leaves it to the library named in ``maps_to``."""
    minimum: float | None = None
    """Smallest value allowed, itself included."""
    maximum: float | None = None
    """Largest value allowed, itself included."""
    enum: tuple[str, ...] = ()
    """The values allowed, for strings with a closed set."""
    max_properties: int | None = None
    """Most keys an object may have."""

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of this parameter's value."""
        schema: dict[str, Any] = {} if self.type == "any" else {"type": self.type}
        if self.default is not None:
            schema["default"] = self.default
        if self.enum:
            schema["enum"] = list(self.enum)
        for key, bound in (
            ("minimum", self.minimum),
            ("maximum", self.maximum),
            ("maxProperties", self.max_properties),
        ):
            if bound is not None:
                schema[key] = bound
        return {**schema, "description": self.description}

    def problem(self, value: Any) -> str | None:
        """Why ``value`` is not allowed, or None when it is."""
        if self.type == "any":
            return None
        if not _is_type(value, self.type):
            return f"{value!r} is not {_WORDS[self.type]}"
        if self.enum and value not in self.enum:
            return f"{value!r} is not one of {', '.join(self.enum)}"
        if self.minimum is not None and not self.minimum <= value <= (self.maximum or 0):
            return f"{value} is outside {_number(self.minimum)} to {_number(self.maximum or 0)}"
        if self.max_properties is not None and len(value) > self.max_properties:
            return f"{len(value)} keys are more than {self.max_properties}"
        return None


_WORDS = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping",
}

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": Mapping,
}


def _is_type(value: Any, name: str) -> bool:
    # bool is an int in Python and is not one in JSON.
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


_STRATEGIES = ("Auto", "DDP", "FSDP", "ZeRO1", "ZeRO2", "ZeRO3")

GRPO_LORA: tuple[Parameter, ...] = (
    Parameter(
        "attention",
        "string",
        "Attention kernel",
        "from_pretrained(attn_implementation=)",
        enum=("eager", "sdpa", "flash_attention_2"),
    ),
    Parameter(
        "batchSize",
        "integer",
        "Examples per GPU per step",
        "GRPOConfig.per_device_train_batch_size",
        default=1,
        minimum=1,
        maximum=1024,
    ),
    Parameter(
        "beta",
        "number",
        "KL penalty toward the base model; 0 disables the reference model",
        "GRPOConfig.beta",
        default=0,
        minimum=0,
        maximum=10,
    ),
    Parameter(
        "distributed.findUnusedParameters",
        "boolean",
        "DDP: tolerate parameters without gradients",
        "GRPOConfig.ddp_find_unused_parameters",
    ),
    Parameter(
        "distributed.strategy",
        "string",
        "Auto and DDP replicate the model; FSDP and ZeRO shard it",
        "GRPOConfig.fsdp or GRPOConfig.deepspeed",
        default="Auto",
        enum=_STRATEGIES,
    ),
    Parameter(
        "epochs",
        "number",
        "Passes over the data when steps is -1",
        "GRPOConfig.num_train_epochs",
        default=1,
        minimum=0.01,
        maximum=100,
    ),
    Parameter(
        "evalSteps",
        "integer",
        "Steps between validation passes; unset evaluates at the end only",
        "validation pass of the trainer",
        minimum=1,
        maximum=100000,
    ),
    Parameter(
        "evaluationBatchSize",
        "integer",
        "Prompts generated together during Environment baseline and final evaluation",
        "batch of the greedy evaluation",
        minimum=1,
        maximum=1024,
    ),
    Parameter(
        "generationBatchSize",
        "integer",
        "Total sampled completions per generation batch; must divide evenly across GPUs and numGenerations",
        "GRPOConfig.generation_batch_size",
        minimum=2,
        maximum=65536,
    ),
    Parameter(
        "gradientAccumulation",
        "integer",
        "Steps whose gradients are summed before an update",
        "GRPOConfig.gradient_accumulation_steps",
        default=4,
        minimum=1,
        maximum=1024,
    ),
    Parameter(
        "gradientCheckpointing",
        "boolean",
        "Recompute activations to save GPU memory",
        "GRPOConfig.gradient_checkpointing",
        default=True,
    ),
    Parameter(
        "learningRate",
        "number",
        "Peak learning rate",
        "GRPOConfig.learning_rate",
        default=0.000001,
        minimum=0,
        maximum=1,
    ),
    Parameter(
        "loggingSteps",
        "integer",
        "Steps between metric reports",
        "log lines and trackers of the trainer",
        default=10,
        minimum=1,
        maximum=10000,
    ),
    Parameter(
        "lora.alpha",
        "integer",
        "Adapter scaling numerator",
        "LoraConfig.lora_alpha",
        default=16,
        minimum=1,
        maximum=4096,
    ),
    Parameter(
        "lora.dropout", "number", "Adapter dropout", "LoraConfig.lora_dropout", default=0.05, minimum=0, maximum=0.9
    ),
    Parameter("lora.r", "integer", "Adapter rank", "LoraConfig.r", default=8, minimum=1, maximum=1024),
    Parameter("lora.targetModules", "any", "Module names, or all-linear", "LoraConfig.target_modules"),
    Parameter(
        "lrScheduler",
        "string",
        "Learning-rate schedule",
        "GRPOConfig.lr_scheduler_type",
        default="cosine",
        enum=("cosine", "linear", "constant", "constant_with_warmup"),
    ),
    Parameter(
        "maxCompletionLength",
        "integer",
        "Tokens per completion; in a multi-turn episode, tokens per reply",
        "GRPOConfig.max_completion_length",
        default=64,
        minimum=8,
        maximum=32768,
    ),
    Parameter(
        "maxEpisodeTokens",
        "integer",
        "Tokens of a whole multi-turn episode after the prompt, the model’s and the Environment’s",
        "end of an episode; bound on GRPOConfig.max_completion_length",
        minimum=8,
        maximum=131072,
    ),
    Parameter(
        "maxGradNorm",
        "number",
        "Gradient clipping norm",
        "GRPOConfig.max_grad_norm",
        minimum=0,
        maximum=100,
    ),
    Parameter(
        "maxLength",
        "integer",
        "Tokens per example after truncation (packed block size for pretraining)",
        "prompts keep their last maxLength - maxCompletionLength tokens",
        default=2048,
        minimum=16,
        maximum=131072,
    ),
    Parameter(
        "maxTurns",
        "integer",
        "Model turns per episode of a multi-turn Environment; 1 grades the first reply alone",
        "turns of an episode",
        minimum=1,
        maximum=31,
    ),
    Parameter(
        "method",
        "string",
        "Full fine-tuning, a LoRA adapter, or LoRA on a 4-bit quantized base (GPU only)",
        "peft_config and quantization_config",
        default="LoRA",
        enum=("Full", "LoRA", "QLoRA"),
    ),
    Parameter(
        "numGenerations",
        "integer",
        "Completions sampled per prompt (the GRPO group)",
        "GRPOConfig.num_generations",
        default=4,
        minimum=2,
        maximum=64,
    ),
    Parameter(
        "precision",
        "string",
        "Numeric precision; Auto is bf16 where the GPU supports it, else fp16",
        "GRPOConfig.bf16 and GRPOConfig.fp16",
        default="Auto",
        enum=("Auto", "bf16", "fp16", "fp32"),
    ),
    Parameter(
        "sampling.temperature",
        "number",
        "Sampling temperature",
        "GRPOConfig.temperature",
        default=0.7,
        minimum=0,
        maximum=5,
    ),
    Parameter(
        "sampling.topK",
        "integer",
        "Keep the highest-probability K tokens; 0 disables top-k filtering",
        "GRPOConfig.top_k",
        minimum=0,
        maximum=1000000,
    ),
    Parameter("sampling.topP", "number", "Nucleus sampling mass", "GRPOConfig.top_p", default=1, minimum=0, maximum=1),
    Parameter(
        "saveSteps",
        "integer",
        "Steps between recovery checkpoints",
        "checkpoints of the trainer, at generation boundaries",
        default=25,
        minimum=1,
        maximum=100000,
    ),
    Parameter(
        "saveTotalLimit",
        "integer",
        "Recovery checkpoints kept in the state directory",
        "checkpoints of the trainer; unset keeps 2",
        minimum=1,
        maximum=10,
    ),
    Parameter(
        "seed",
        "integer",
        "Seed for data order, splits and initialization",
        "GRPOConfig.seed and GRPOConfig.data_seed",
        default=42,
        minimum=0,
        maximum=2147483647,
    ),
    Parameter(
        "steps",
        "integer",
        "Optimizer steps; -1 trains for epochs instead",
        "GRPOConfig.max_steps",
        default=50,
        minimum=-1,
        maximum=1000000,
    ),
    Parameter(
        "taskFilter",
        "object",
        "Keep only tasks whose metadata has these values (such as family on reasoning-gym), before trainTasks and "
        "heldOutTasks count them",
        "task manifests, before the trainer fetches them",
        max_properties=8,
    ),
    Parameter(
        "warmupRatio",
        "number",
        "Fraction of steps spent warming up the learning rate",
        "GRPOConfig.warmup_steps, as a share",
        default=0.03,
        minimum=0,
        maximum=0.5,
    ),
    Parameter("weightDecay", "number", "AdamW weight decay", "GRPOConfig.weight_decay", minimum=0, maximum=1),
)
"""The 36 parameters of ``nodus/grpo-lora``, in the order of the reference page."""

_EVALUATE = (
    "attention",
    "evaluationBatchSize",
    "maxCompletionLength",
    "maxEpisodeTokens",
    "maxLength",
    "maxTurns",
    "precision",
    "seed",
    "taskFilter",
)

EVALUATE: tuple[Parameter, ...] = tuple(
    # An evaluation draws nothing, so its seed only names the run's record.
    replace(p, description="Seed recorded with the run", maps_to="provenance.json") if p.path == "seed" else p
    for p in GRPO_LORA
    if p.path in _EVALUATE
)
"""The parameters of ``nodus/evaluate``: those of a GRPO run that its evaluations read."""


def json_schema(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """The JSON Schema of ``spec.parameters``, with ``lora.r`` below ``lora`` and unknown names refused."""
    root: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
    for parameter in parameters:
        *parents, name = parameter.path.split(".")
        node = root
        for parent in parents:
            empty = {"type": "object", "additionalProperties": False, "properties": {}}
            node = node["properties"].setdefault(parent, empty)
        node["properties"][name] = parameter.schema()
    return root


def defaults(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """The nested defaults of the parameters that have one."""
    result: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.default is not None:
            *parents, name = parameter.path.split(".")
            node = result
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = parameter.default
    return result


class Values:
    """The parameters of one run, read by dotted path, with the declared default of what is unset.

    Example:
        >>> Values({"lora": {"r": 4}}, GRPO_LORA)["lora.r"]
        4
    """

    def __init__(self, given: Mapping[str, Any], parameters: tuple[Parameter, ...]) -> None:
        self._given = flatten(given, {p.path for p in parameters if p.type == "object"})
        self._defaults = {p.path: p.default for p in parameters}

    def __getitem__(self, path: str) -> Any:
        """The value of a declared parameter; None when unset without a default.

        Raises:
            KeyError: When no parameter of that path is declared; a mistake in the trainer, not in the run.
        """
        default = self._defaults[path]
        value = self._given.get(path)
        return default if value is None else value

    def is_set(self, path: str) -> bool:
        """Whether the run carries a value of its own for ``path``."""
        return self._given.get(path) is not None


def flatten(given: Mapping[str, Any], whole: set[str], prefix: str = "") -> dict[str, Any]:
    """Nested parameters as dotted paths; the mappings named in ``whole`` are values and stay as they are."""
    result: dict[str, Any] = {}
    for key, value in given.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and path not in whole:
            result.update(flatten(value, whole, f"{path}."))
        else:
            result[path] = value
    return result


def problems(given: Mapping[str, Any], parameters: tuple[Parameter, ...]) -> Iterator[Cause]:
    """Yield every parameter that is unknown, mistyped or out of bounds, with its path."""
    declared = {p.path: p for p in parameters}
    for path, value in flatten(given, {p.path for p in parameters if p.type == "object"}).items():
        field = f"{PARAMETERS_PATH}.{path}"
        if path not in declared:
            yield Cause(field, "FieldValueNotSupported", "unknown parameter")
        elif value is not None and (problem := declared[path].problem(value)) is not None:
            yield Cause(field, "FieldValueInvalid", problem)
