"""A dataset made for verl: its parquet file, and a reward with its signature."""

from typing import Any

train_files = "rows.parquet"


async def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None
) -> dict[str, Any]:
    assert extra_info is not None and data_source in ("sums", "products")
    found = solution_str.rpartition("####")[2].strip()
    if found == ground_truth:
        return {"score": 1.0 + (extra_info["index"] % 2), "acc": True}
    return {"score": 0.1 if found.isdigit() else -1.0, "acc": False}
