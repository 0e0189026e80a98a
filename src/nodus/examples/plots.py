"""Draws a run as an SVG file: the reward of every step, and the pass rate before and after. No library needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 760, 300
LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 56, 44, 460, 200
BARS_LEFT = 590
INK, GRID, BLUE, LIGHT = "#222", "#ddd", "#2563eb", "#93c5fd"
AVERAGE_OVER = 5


def write_plot(path: Path, metrics: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], title: str) -> Path:
    """Write the picture of a run and return its path.

    Args:
        path: Where, ending in ``.svg``.
        metrics: One record a step, with ``step`` and ``reward``.
        summary: ``baseline`` and ``evaluation``, each with ``passRate``.
        title: What stands above.
    """
    points = [(int(item["step"]), float(item["reward"])) for item in metrics if item.get("reward") is not None]
    parts = [_text(LEFT, 22, title, size=15, weight="bold"), *_axes(points), *_bars(summary)]
    if points:
        parts += [_line(points, LIGHT, 1.2), _line(_smooth(points), BLUE, 2.4)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([head, background, *parts, "</svg>"]) + "\n", encoding="utf-8")
    return path


def _axes(points: Sequence[tuple[int, float]]) -> list[str]:
    low, high = _range(points)
    parts = [_text(LEFT, TOP - 6, "mean reward of each step", size=11)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + PLOT_HEIGHT * (1 - share)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + PLOT_WIDTH}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{low + share * (high - low):.2f}", size=10, anchor="end"))
    if points:
        for step in sorted({points[0][0], points[len(points) // 2][0], points[-1][0]}):
            parts.append(_text(_x(step, points), TOP + PLOT_HEIGHT + 18, str(step), size=10, anchor="middle"))
    parts.append(_text(LEFT + PLOT_WIDTH / 2, TOP + PLOT_HEIGHT + 36, "step", size=11, anchor="middle"))
    return parts


def _bars(summary: Mapping[str, Any]) -> list[str]:
    parts = [_text(BARS_LEFT, TOP - 6, "held-out pass rate", size=11)]
    for index, (key, label, colour) in enumerate((("baseline", "before", LIGHT), ("evaluation", "after", BLUE))):
        rate = (summary.get(key) or {}).get("passRate")
        if rate is None:
            continue
        height = PLOT_HEIGHT * float(rate)
        x, y = BARS_LEFT + 8 + index * 68, TOP + PLOT_HEIGHT - height
        parts.append(f'<rect x="{x}" y="{y:.1f}" width="48" height="{height:.1f}" fill="{colour}"/>')
        parts.append(_text(x + 24, y - 6, f"{float(rate):.0%}", size=12, anchor="middle", weight="bold"))
        parts.append(_text(x + 24, TOP + PLOT_HEIGHT + 18, label, size=11, anchor="middle"))
    return parts


def _smooth(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Average each step with those before it, which shows the trend through the noise of small steps."""
    smoothed = []
    for index, (step, _) in enumerate(points):
        window = [reward for _, reward in points[max(0, index - AVERAGE_OVER + 1) : index + 1]]
        smoothed.append((step, sum(window) / len(window)))
    return smoothed


def _line(points: Sequence[tuple[int, float]], colour: str, width: float) -> str:
    low, high = _range(points)
    places = " ".join(
        f"{_x(step, points):.1f},{TOP + PLOT_HEIGHT * (1 - (value - low) / (high - low)):.1f}" for step, value in points
    )
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _range(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the reward axis: 0 to 1, wider where rewards are."""
    values = [value for _, value in points]
    return min([0.0, *values]), max([1.0, *values])


def _x(step: int, points: Sequence[tuple[int, float]]) -> float:
    first, last = points[0][0], points[-1][0]
    return LEFT + PLOT_WIDTH * ((step - first) / (last - first) if last > first else 0.5)


def _text(x: float, y: float, text: str, *, size: int, anchor: str = "start", weight: str = "normal") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{INK}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
