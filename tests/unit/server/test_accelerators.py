"""Accelerator types and machines: spellings, near misses, what a driver reports."""

from __future__ import annotations

import pytest

from nodus.server import accelerators, machine
from nodus.server.machine import GPUs


@pytest.mark.parametrize(
    ("spelling", "family"),
    [
        ("H100", "H100"),
        ("h100", "H100"),
        ("h100-sxm-80g", "H100"),
        ("NVIDIA H100", "H100"),
        ("rtx4090-24g", "RTX-4090"),
        ("RTX-4090", "RTX-4090"),
        ("RTX_4090", "RTX-4090"),
        ("A100-80G", "A100-80G"),
        ("A100", "A100-80G"),
        ("a100-40gb", "A100-40G"),
        ("L40S", "L40S"),
        ("RTX-A6000", "RTX-A6000"),
        ("L4", "L4"),
    ],
)
def test_every_spelling_is_found(spelling: str, family: str) -> None:
    assert accelerators.find(spelling).family == family


@pytest.mark.parametrize(("spelling", "near"), [("H1000", "H100"), ("RTX-4900", "RTX-4090"), ("L40X", "L40S")])
def test_unknown_type_names_what_is_near(spelling: str, near: str) -> None:
    with pytest.raises(accelerators.UnknownAccelerator, match=near):
        accelerators.find(spelling)


def test_unknown_type_without_a_neighbour_lists_the_known_ones() -> None:
    with pytest.raises(accelerators.UnknownAccelerator, match="known types are"):
        accelerators.find("banana")


def test_no_spelling_means_two_types() -> None:
    import yaml

    text = (accelerators.resources.files("nodus.catalog") / "accelerators.yaml").read_text()
    seen: dict[str, str] = {}
    for entry in yaml.safe_load(text)["accelerators"]:
        for spelling in entry["spellings"]:
            assert seen.setdefault(accelerators._normal(spelling), entry["family"]) == entry["family"], spelling


def test_devices_are_recognised_by_product_name() -> None:
    text = (
        "NVIDIA H200, 143771\nNVIDIA H200, 143771\nNVIDIA GeForce RTX 4090, 24564\nNVIDIA Quantum 9, 8192\nnonsense\n\n"
    )
    assert machine.parse_nvidia_smi(text) == (
        GPUs("H200", "140Gi", "h200", 2),
        GPUs("NVIDIA Quantum 9", "8Gi", "nvidia-quantum-9", 1),
        GPUs("RTX-4090", "24Gi", "rtx4090", 1),
    )


@pytest.mark.parametrize(
    ("product", "family"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("NVIDIA A100-PCIE-40GB", "A100-40G"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA H100 80GB HBM3", "H100"),
    ],
)
def test_product_names_of_drivers(product: str, family: str) -> None:
    found = accelerators.of_device(product)
    assert found is not None
    assert found.family == family
