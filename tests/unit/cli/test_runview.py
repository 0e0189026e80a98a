"""What `nodus run` says while a Job waits."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nodus.cli.runview import RunView
from nodus.cli.session import Session


def job(phase: str, **status: str) -> dict[str, Any]:
    return {"metadata": {"name": "j", "namespace": "default"}, "status": {"phase": phase, **status}}


def test_a_pause_is_told_once_for_each_reason_and_with_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    view = RunView(cast(Session, None), job("Queued"))
    for left in ("4", "3", "2"):
        view._see(job("Suspended", reason="LowDisk", message=f"{left} MiB are free", fix="Make room."))
    view._see(job("Suspended", reason="MaxCostReached", message="it has $0.50 left", fix="Raise spec.maxCostUSD."))
    assert capsys.readouterr().err.splitlines() == [
        " … Suspended      4 MiB are free",
        "   fix: Make room.",
        " … Suspended      it has $0.50 left",
        "   fix: Raise spec.maxCostUSD.",
    ]
