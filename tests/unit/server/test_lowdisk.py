"""The low-disk brake: on below its mark, off only with some room to spare."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nodus.server.lowdisk import MIB, LowDiskBrake


def test_it_lets_go_only_with_room_to_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 100 * MIB
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, free))
    brake = LowDiskBrake(tmp_path, 100 * MIB)
    assert brake.problem() is None
    free = 100 * MIB - 1
    told = f"99 MiB are free under {tmp_path}, less than low_disk allows; runs go on from 125 MiB"
    assert brake.problem() == told
    free = 124 * MIB
    assert brake.problem() == told  # what is told changes in steps
    free = 10 * MIB
    assert str(brake.problem()).startswith("10 MiB are free")
    free = 125 * MIB
    assert brake.problem() is None


def test_a_real_disk_has_room_for_nothing_and_not_for_everything(tmp_path: Path) -> None:
    assert LowDiskBrake(tmp_path, 0).problem() is None
    assert str(tmp_path) in str(LowDiskBrake(tmp_path, 1 << 60).problem())
