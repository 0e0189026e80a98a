"""Where this process is in its gang: ``nodus.cluster.info()``. A run on one machine, or none, is a gang of one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ClusterInfo", "info"]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A gang as one of its members sees it."""

    rank: int
    """Of this node; 0 hosts the rendezvous."""
    size: int
    """How many nodes there are."""
    ips: list[str]
    """Their addresses, by rank; empty outside of a gang."""
    master_addr: str
    master_port: int
    epoch: int
    """How often the gang was started, from 1; 0 outside of Nodus."""
    transport: str | None
    gpus_per_node: int


def info(env: Mapping[str, str] | None = None) -> ClusterInfo:
    """Return this member's gang.

    Args:
        env: Environment variables; the process's own when left out.

    Raises:
        ValueError: A variable that should be a number is none.
    """
    given = os.environ if env is None else env
    return ClusterInfo(
        rank=int(given.get("NODUS_NODE_RANK") or 0),
        size=int(given.get("NODUS_NUM_NODES") or 1),
        ips=[ip for ip in (given.get("NODUS_NODE_IPS") or "").split(",") if ip],
        master_addr=given.get("MASTER_ADDR") or "127.0.0.1",
        master_port=int(given.get("MASTER_PORT") or 29500),
        epoch=int(given.get("NODUS_GANG_EPOCH") or given.get("NODUS_ATTEMPT_EPOCH") or 0),
        transport=given.get("NODUS_GANG_TRANSPORT") or None,
        gpus_per_node=int(given.get("NODUS_GPUS_PER_NODE") or 0),
    )
