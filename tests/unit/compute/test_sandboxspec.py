"""The command line of a sandbox: what is seen inside is what was named, in an order that works."""

from __future__ import annotations

import dataclasses

from nodus.server.compute.local import mounts
from nodus.server.compute.local.cgroups import Cgroup
from nodus.server.compute.local.mounts import Mount, system_mounts
from nodus.server.compute.local.sandboxspec import SandboxSpec, bwrap_options, inner_argv, prlimit

SPEC = SandboxSpec(
    argv=("/usr/bin/env",),
    env={"A": "1"},
    mounts=(Mount("/data/deep", "/tmp/in/deep", readonly=False), Mount("usr/bin", "/bin", symlink=True)),
    tmpfs={"/tmp": 1024},
    devices=("/dev/nvidia0",),
)


def options(spec: SandboxSpec = SPEC, mode: str = "root") -> list[str]:
    return bwrap_options(spec, mode, {"/etc/passwd": 9})  # type: ignore[arg-type]


def test_outer_paths_come_before_inner_ones() -> None:
    made = options()
    assert made.index("/tmp") < made.index("/tmp/in/deep")
    assert made.index("--dev") < made.index("/dev/nvidia0")
    assert made[-2:] == ["--chdir", "/tmp"] and made[-4:-2] == ["--remount-ro", "/"]


def test_missing_parents_are_made_readable() -> None:
    text = " ".join(options())
    assert "--perms 0755 --dir /tmp/in --bind /data/deep /tmp/in/deep" in text
    assert "--perms 0755 --dir /etc --perms 0444 --ro-bind-data 9 /etc/passwd" in text


def test_every_namespace_is_its_own_and_nothing_is_inherited() -> None:
    for flag in ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--clearenv", "--die-with-parent"):
        assert flag in options()
    assert "--setenv A 1" in " ".join(options())


def test_root_drops_the_uid_inside_and_another_user_maps_it() -> None:
    assert "--unshare-user" not in options(mode="root")
    assert "--unshare-user --uid 10001 --gid 10001" in " ".join(options(mode="userns"))
    dropped = " ".join(inner_argv(SPEC, "root", None))
    assert "--reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all" in dropped
    group = Cgroup("x", 2, {})
    assert inner_argv(SPEC, "userns", group) == ["/usr/bin/env"]


def test_without_a_control_group_resource_limits_stand_in() -> None:
    spec = dataclasses.replace(SPEC, memory_bytes=100, pids_by_rlimit=16)
    assert inner_argv(spec, "userns", None) == ["/usr/bin/prlimit", "--nproc=16", "--", "/usr/bin/env"]
    many = dataclasses.replace(spec, pids_by_rlimit=4096)  # more than what is set outside can't be had inside
    assert inner_argv(many, "userns", None)[1] == "--nproc=512"
    assert inner_argv(spec, "root", None)[:3] == ["/usr/bin/prlimit", "--nproc=16", "--"]
    assert "--as=200" in prlimit(spec, None) and any(limit.startswith("--nproc=") for limit in prlimit(spec, None))
    assert not any(limit.startswith(("--as=", "--nproc=")) for limit in prlimit(spec, Cgroup("x", 2, {})))


def test_host_paths_are_a_stated_list() -> None:
    seen = {mount.path for mount in system_mounts()}
    assert "/usr" in seen
    assert not seen & {"/", "/etc", "/root", "/home", "/var", "/run", "/tmp", "/dev", "/proc", "/sys"}
    assert all(mount.readonly for mount in system_mounts())


def test_only_outermost_directories_are_mounted() -> None:
    assert mounts._outermost(["/a/b/c", "/a/b", "/usr/lib/x", "/a/bc", "/a/b"]) == ["/a/b", "/a/bc"]
