"""Accelerator types: every spelling of ``catalog/accelerators.yaml``, and what is near a wrong one."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from nodus.core.errors import Invalid

if TYPE_CHECKING:
    from nodus.core.kinds.resources import Gpu
    from nodus.server.kinds.base import Draft


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A type of accelerator."""

    family: str
    """How tables and messages spell it."""
    memory: str
    """Memory of one, a quantity."""
    offering: str
    """Stem of the names of its offerings."""


class UnknownAccelerator(Invalid):
    """No type is spelled like that; the message names what is near."""


@cache
def _catalog() -> dict[str, Accelerator]:
    """Types by normal form of every spelling."""
    import yaml  # late: only needed where a GPU is named

    text = resources.files("nodus.catalog").joinpath("accelerators.yaml").read_text(encoding="utf-8")
    found: dict[str, Accelerator] = {}
    for entry in yaml.safe_load(text)["accelerators"]:
        accelerator = Accelerator(entry["family"], entry["memory"], entry["offering"])
        for spelling in entry["spellings"]:
            found[_normal(spelling)] = accelerator
    return found


def _normal(spelling: str) -> str:
    return re.sub(r"[^a-z0-9]", "", spelling.lower().removeprefix("nvidia"))


def families() -> list[str]:
    """Every family, in the order of the catalog."""
    return list(dict.fromkeys(accelerator.family for accelerator in _catalog().values()))


def find(spelling: str) -> Accelerator:
    """The type that a spelling means.

    Raises:
        UnknownAccelerator: no type is spelled like that.
    """
    accelerator = _catalog().get(_normal(spelling))
    if accelerator is not None:
        return accelerator
    near = difflib.get_close_matches(_normal(spelling), list(_catalog()), n=3, cutoff=0.6)
    names = list(dict.fromkeys(_catalog()[name].family for name in near)) or families()
    hint = f"did you mean {' or '.join(names)}?" if near else f"known types are {', '.join(names)}"
    raise UnknownAccelerator(f"{spelling!r} is not an accelerator type; {hint}")


def of_device(product: str) -> Accelerator | None:
    """The type of a device by the product name its driver reports, such as ``NVIDIA H100 80GB HBM3``."""
    normal = _normal(product)
    best = max((name for name in _catalog() if normal.startswith(name)), key=len, default=None)
    return _catalog()[best] if best else None


def check_gpu(draft: Draft, gpu: Gpu, path: str) -> list[Accelerator]:
    """The types a request accepts; unknown ones are noted as mistakes of the draft."""
    found: list[Accelerator] = []
    for number, spelling in enumerate(gpu.type):
        try:
            found.append(find(spelling))
        except UnknownAccelerator as error:
            draft.reject(f"{path}.type[{number}]", error.message)
    return found


def family_of(spelling: str) -> str:
    """The family that a spelling means; an unknown one is left as it is."""
    known = _catalog().get(_normal(spelling))
    return known.family if known else spelling
