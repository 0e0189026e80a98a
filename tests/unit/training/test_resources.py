"""Which resources a run gets: presets, the user's own, and what the machine has."""

from __future__ import annotations

from typing import Any

import pytest

from nodus.core.errors import Invalid
from nodus.server.training.resources import GIB, Shape, choose

CPU = Shape("local-cpu", 4, 32 * GIB)
L40S = Shape("local-l40s-x2", 16, 128 * GIB, "L40S", 2, 1_500_000_000)
RUNTIME: dict[str, Any] = {
    "defaults": {"resources": {"gpu": {"type": ["RTX-4090"], "count": 1}}},
    "presets": [
        {
            "model": "acme/big",
            "method": "QLoRA",
            "quantization": "nf4",
            "resources": {"gpu": {"type": ["L40S"], "count": 1}},
        },
        {"model": "acme/big", "method": "LoRA", "resources": {"gpu": {"type": ["A100-80G"], "count": 1}}},
        {"model": "acme/small", "method": "LoRA", "resources": {"cpu": "2", "memory": "6Gi"}},
    ],
}


def canonical(spelling: str) -> str:
    known = {"l40s": "L40S", "l40s-48g": "L40S", "h100": "H100", "rtx-4090": "RTX-4090", "a100-80g": "A100-80G"}
    if spelling.lower() not in known:
        raise Invalid(f"{spelling!r} is not an accelerator type")
    return known[spelling.lower()]


def chosen(
    given: dict[str, Any] | None = None, *, model: str = "acme/other", method: str = "LoRA", shapes: Any = (CPU,)
) -> Any:
    return choose(RUNTIME, given=given, model=model, method=method, shapes=shapes, canonical=canonical)


def test_cpu_machine_gives_all_its_cores_and_a_bounded_memory_with_a_warning() -> None:
    result = chosen()
    assert (result.resources, result.gpus) == ({"cpu": 4, "memory": "8Gi"}, 0)
    assert [notice.code for notice in result.warnings] == ["NoAccelerator"]


def test_cpu_preset_of_the_model_is_used_and_overridden_field_by_field() -> None:
    assert chosen(model="Acme/Small").resources == {"cpu": "2", "memory": "6Gi"}
    assert chosen({"memory": "4Gi"}, model="acme/small").resources == {"cpu": "2", "memory": "4Gi"}


def test_preset_above_the_machine_is_cut_to_it() -> None:
    small = Shape("local-cpu", 1, 4 * GIB)
    assert chosen(model="acme/small", shapes=[small]).resources == {"cpu": 1, "memory": "4Gi"}


@pytest.mark.parametrize(
    ("model", "method", "types"),
    [("acme/big", "QLoRA", ["L40S"]), ("acme/other", "LoRA", ["L40S"]), ("acme/big", "LoRA", ["L40S"])],
)
def test_gpu_machine_uses_the_preset_or_what_is_here(model: str, method: str, types: list[str]) -> None:
    result = chosen(model=model, method=method, shapes=[CPU, L40S])
    assert result.resources["gpu"] == {"type": types, "count": 1}
    assert (result.gpus, result.shape, result.blocking) == (1, L40S, ())


def test_named_gpu_in_any_spelling_is_found() -> None:
    assert chosen({"gpu": "l40s-48g:2"}, shapes=[CPU, L40S]).shape == L40S
    assert chosen({"gpu": {"type": ["H100", "l40s"], "count": 1}}, shapes=[CPU, L40S]).gpus == 1


def test_named_gpu_that_is_absent_blocks_and_says_what_is_here() -> None:
    result = chosen({"gpu": {"type": ["H100"], "count": 4}}, shapes=[CPU, L40S])
    (reason,) = result.blocking
    assert reason.message == "4 x H100 is not here; this place has 2 x L40S"
    assert chosen({"gpu": {"type": ["L40S"], "count": 4}}, shapes=[CPU, L40S]).blocking


def test_unknown_type_is_reported_and_a_count_of_none_means_cpu() -> None:
    assert chosen({"gpu": {"type": ["H1000"]}}).unknown_types == ("'H1000' is not an accelerator type",)
    result = chosen({"gpu": {"count": 0}}, shapes=[CPU, L40S])
    assert (result.gpus, "gpu" in result.resources) == (0, False)
