"""Where control groups are made, from what the kernel says of mounts and of this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodus.server.compute.local.cgroups import Cgroup, Hierarchy, Limits, _settings, find_hierarchy


def group(path: Path, controllers: str = "cpu memory pids", enabled: str = "cpu memory pids") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").write_text(controllers)
    (path / "cgroup.subtree_control").write_text(enabled)
    (path / "cgroup.procs").write_text("")
    return path


def test_version_one_uses_the_own_group_of_each_controller(tmp_path: Path) -> None:
    for name in ("memory/own", "pids", "cpu"):
        (tmp_path / name).mkdir(parents=True)
    mounts = "".join(f"cgroup {tmp_path}/{name} cgroup rw,relatime,{name} 0 0\n" for name in ("memory", "pids", "cpu"))
    found = find_hierarchy(mounts, "4:memory:/own\n8:pids:/\n1:cpu:/elsewhere\n0::/\n")
    parents = {"memory": tmp_path / "memory/own", "pids": tmp_path / "pids", "cpu": tmp_path / "cpu"}
    assert found == Hierarchy(1, parents)


def test_version_two_uses_the_own_group_when_its_children_get_the_controllers(tmp_path: Path) -> None:
    group(tmp_path)
    own = group(tmp_path / "system.slice" / "nodus.service")
    found = find_hierarchy(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n", "0::/system.slice/nodus.service\n")
    assert found == Hierarchy(2, {"": own})


def test_version_two_goes_up_to_an_ancestor_that_hands_the_controllers_on(tmp_path: Path) -> None:
    root = group(tmp_path)
    group(tmp_path / "session", controllers="cpu", enabled="")
    found = find_hierarchy(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n", "0::/session\n")
    assert found == Hierarchy(2, {"": root})


def test_without_a_memory_controller_there_is_no_group(tmp_path: Path) -> None:
    group(tmp_path, controllers="cpu", enabled="cpu")
    assert find_hierarchy(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n", "0::/\n") is None
    assert find_hierarchy("", "") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_group_that_is_not_ours_is_not_used(tmp_path: Path) -> None:
    own = group(tmp_path / "x")
    os.chmod(own, 0o555)
    assert find_hierarchy(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n", "0::/x\n") is None


def test_limits_as_each_version_takes_them() -> None:
    limits = Limits(memory_bytes=1024, pids=8, cpu=1.5, oom_group=True)
    assert {(file, value) for _, file, value, _ in _settings(1, limits)} == {
        ("memory.limit_in_bytes", "1024"),
        ("memory.memsw.limit_in_bytes", "1024"),
        ("pids.max", "8"),
        ("cpu.cfs_period_us", "100000"),
        ("cpu.cfs_quota_us", "150000"),
    }
    assert {(file, value) for _, file, value, _ in _settings(2, limits)} == {
        ("memory.max", "1024"),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("pids.max", "8"),
        ("cpu.max", "150000 100000"),
    }
    assert _settings(2, Limits()) == []


def test_usage_is_read_in_each_version(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nmax 3\noom 1\noom_kill 2\n")
    (tmp_path / "memory.peak").write_text("4096\n")
    (tmp_path / "pids.events").write_text("max 7\n")
    second = Cgroup("x", 2, {"": tmp_path})
    assert (second.oom_kills(), second.peak_memory_bytes(), second.pids_refused()) == (2, 4096, 7)
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    (tmp_path / "memory.max_usage_in_bytes").write_text("8192\n")
    first = Cgroup("x", 1, {"memory": tmp_path, "pids": tmp_path})
    assert (first.oom_kills(), first.peak_memory_bytes(), first.pids_refused()) == (5, 8192, 7)
    assert Cgroup("x", 2, {"": tmp_path / "none"}).oom_kills() == 0
