"""``graph-coloring``: colour the vertices of a small graph with three colours so that no edge joins equal colours.

Graphs are made with a colouring hidden in them, so each has a solution; any valid colouring is accepted, not just the
hidden one.
"""

from __future__ import annotations

import json
import random
from typing import Any

PURE = True
"""The reward computes from its arguments alone; see ``grader/direct.py``."""
TRAIN_TASKS, TEST_TASKS = 1000, 200
COLORS = 3
_LEAST_VERTICES, _MOST_VERTICES = 5, 9
_EDGE_SHARE = 0.6
_SEED = 20250101
_PROMPT = """Color the vertices of this graph with the colors {colors} so that no edge joins two vertices of one color.

Vertices: {vertices}
Edges: {edges}

Reply with only a JSON object from each vertex to its color, such as {{"0": 1, "1": 2}}."""


def tasks(split: str) -> list[dict[str, Any]]:
    """Return the graphs of a split; no graph occurs twice, in one split or in both."""
    rng = random.Random(_SEED)
    seen: set[str] = set()
    graphs: list[tuple[int, list[tuple[int, int]]]] = []
    while len(graphs) < TRAIN_TASKS + TEST_TASKS:
        vertices, edges = _graph(rng)
        key = f"{vertices}:{edges}"
        if key not in seen:
            seen.add(key)
            graphs.append((vertices, edges))
    chosen = graphs[TRAIN_TASKS:] if split == "test" else graphs[:TRAIN_TASKS]
    return [_task(vertices, edges) for vertices, edges in chosen]


def _graph(rng: random.Random) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of vertices and edges between vertices of different hidden colours."""
    vertices = rng.randint(_LEAST_VERTICES, _MOST_VERTICES)
    hidden = [rng.randrange(COLORS) for _ in range(vertices)]
    possible = [(a, b) for a in range(vertices) for b in range(a + 1, vertices) if hidden[a] != hidden[b]]
    edges = sorted(edge for edge in possible if rng.random() < _EDGE_SHARE)
    return (vertices, edges) if len(edges) >= vertices - 1 else _graph(rng)


def _task(vertices: int, edges: list[tuple[int, int]]) -> dict[str, Any]:
    prompt = _PROMPT.format(
        colors=", ".join(str(color) for color in range(1, COLORS + 1)),
        vertices=", ".join(str(vertex) for vertex in range(vertices)),
        edges=", ".join(f"{a}-{b}" for a, b in edges),
    )
    answer = {"vertices": vertices, "edges": [list(edge) for edge in edges]}
    return {"prompt": prompt, "answer": answer, "metadata": {"vertices": vertices, "edges": len(edges)}}


def reward(completion: str, answer: dict[str, Any]) -> float | None:
    """Return 1 for a valid colouring, 0 for another one, None when the completion holds no JSON object of colours."""
    coloring = _last_object(completion)
    if coloring is None:
        return None
    if set(coloring) != {str(vertex) for vertex in range(answer["vertices"])}:
        return 0.0
    if any(isinstance(c, bool) or not isinstance(c, int) or not 1 <= c <= COLORS for c in coloring.values()):
        return 0.0
    return float(all(coloring[str(a)] != coloring[str(b)] for a, b in answer["edges"]))


def _last_object(completion: str) -> dict[str, Any] | None:
    """Return the last JSON object in a text that is not inside another one."""
    decoder = json.JSONDecoder()
    found: dict[str, Any] | None = None
    position = completion.find("{")
    while position >= 0:
        end = position + 1
        try:
            value, end = decoder.raw_decode(completion, position)
            found = value if isinstance(value, dict) else found
        except (ValueError, RecursionError):
            pass
        position = completion.find("{", end)
    return found
