"""What a process tree uses, seen from outside."""

from __future__ import annotations

import subprocess
import sys

from nodus.server.compute.local.usage import tree_usage
from nodus.testing.eventually import eventually

# A child that holds 32 MiB and works, below a shell that does neither.
BUSY = "x = bytearray(32 << 20)\nwhile True: pass"


def test_usage_of_a_tree_grows_and_ends_with_it() -> None:
    process = subprocess.Popen(["sh", "-c", '"$0" -c "$1"; true', sys.executable, BUSY])
    try:
        assert process.pid in tree_usage([process.pid])
        eventually(lambda: tree_usage([process.pid])[process.pid].memory_bytes > 32 << 20, timeout_s=20)
        before = tree_usage([process.pid])[process.pid].cpu_s
        eventually(lambda: tree_usage([process.pid])[process.pid].cpu_s > before, timeout_s=20)
    finally:
        subprocess.run(["pkill", "-P", str(process.pid)], check=False)
        process.kill()
        process.wait()
    assert tree_usage([process.pid, 2**30]) == {}
