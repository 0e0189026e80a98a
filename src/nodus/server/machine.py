"""What the machine of this server has: cores, memory, GPUs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import cache

from nodus.server import accelerators
from nodus.server.compute.local.capacity import Machine

_NVIDIA_SMI_TIMEOUT_S = 10
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class GPUs:
    """GPUs of one type."""

    family: str
    memory: str
    """Memory of one, a quantity."""
    stem: str
    """For the offering's name."""
    count: int


@dataclass(frozen=True, slots=True)
class Description:
    """A machine as its offerings describe it."""

    cores: int
    """Cores for runs."""
    memory: str
    """Memory for runs, a quantity in whole Gi."""
    gpus: tuple[GPUs, ...]


@cache
def describe() -> Description:
    """Look at this machine, once a process; nvidia-smi is asked only where there is one."""
    here = Machine.this_one()
    return Description(len(here.cores), f"{max(1, here.memory_bytes // _GIB)}Gi", _gpus())


def _gpus() -> tuple[GPUs, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_nvidia_smi(answer.stdout)


def parse_nvidia_smi(text: str) -> tuple[GPUs, ...]:
    """GPUs by type from ``name, MiB`` lines; a product the catalog does not know keeps its own name."""
    found: Counter[tuple[str, str, str]] = Counter()
    for line in text.splitlines():
        product, _, mebibytes = line.rpartition(",")
        if not product.strip() or not mebibytes.strip().isdecimal():
            continue
        known = accelerators.of_device(product)
        memory = f"{round(int(mebibytes) / 1024)}Gi"
        if known is not None:
            found[(known.family, memory, known.offering)] += 1
        else:
            stem = re.sub(r"[^a-z0-9]+", "-", product.lower()).strip("-")[:40]
            found[(product.strip(), memory, stem)] += 1
    return tuple(GPUs(family, memory, stem, count) for (family, memory, stem), count in sorted(found.items()))
