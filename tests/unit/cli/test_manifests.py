"""What manifests may hold: hostile and careless files are one line, never a traceback and never a surprise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodus.cli.manifests import read_manifests
from nodus.core.errors import NodusError

HEAD = "apiVersion: nodus.dev/v1\nkind: Volume\nmetadata: {name: a}\n"
JSON = '{"apiVersion": "nodus.dev/v1", "kind": "Volume", "metadata": {"name": "a"}, "spec": %s}'
BOMB = HEAD + "spec:\n  a: &a [x, x, x, x, x, x, x, x, x]\n"
for before, after in zip("abcdefgh", "bcdefghi", strict=True):
    BOMB += f"  {after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"


def read(tmp_path: Path, text: str | bytes, name: str = "m.yaml") -> list[Any]:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_manifests([str(path)])


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("apiVersion: v1\nkind: Volume\nmetadata: {name: a, name: b}\n", "m.yaml", "the key 'name' stands twice"),
        (JSON % '{"a": 1, "a": 2}', "m.json", "the key 'a' stands twice"),
        (BOMB, "m.yaml", "too large when its aliases are unfolded"),
        (HEAD + "spec: &a {b: *a}\n", "m.yaml", "nested too deeply"),
        (HEAD + "spec: " + "[" * 5000 + "]" * 5000, "m.yaml", "nested too deeply"),
        (JSON % ("[" * 100_000 + "]" * 100_000), "m.json", "nested too deeply"),
        (HEAD + "spec: {a: .inf}\n", "m.yaml", "spec.a is inf"),
        (JSON % '{"a": NaN}', "m.json", "spec.a is nan"),
        (HEAD + "spec: {a: !!binary aGVsbG8=}\n", "m.yaml", "spec.a is a bytes"),
        (HEAD + "spec: {a: " + "9" * 5000 + "}\n", "m.yaml", "not valid YAML"),
        (HEAD + "spec: {1: a}\n", "m.yaml", "the key 1 in spec is no text; put it in quotes"),
        ("apiVersion: v1\nkind: Volume\nmetadata: [name]\n", "m.yaml", "metadata is ['name']"),
        ("apiVersion: v1\nkind: Volume\nmetadata: {name: 5}\n", "m.yaml", "metadata.name is 5; put it in quotes"),
        ("apiVersion: v1\nkind: Volume\nmetadata: {name: a, labels: [b]}\n", "m.yaml", "metadata.labels"),
        ("apiVersion: 1\nkind: [x]\nmetadata: {name: a}\n", "m.yaml", "apiVersion is 1"),
        (b"kind: \xff\n", "m.yaml", "it is not UTF-8 text"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(tmp_path: Path, text: str, name: str, says: str) -> None:
    with pytest.raises(NodusError) as caught:
        read(tmp_path, text, name)
    assert says in caught.value.message
    assert name in caught.value.message


def test_an_unreadable_file_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff")
    with pytest.raises(NodusError, match=r"bad\.yaml can't be read"):
        read_manifests([str(tmp_path)])


def test_anchors_merges_dates_and_a_byte_order_mark_work(tmp_path: Path) -> None:
    spec_text = "spec:\n  in: {a: &a {x: 1, y: 1}, b: &b {<<: *a, x: 2}}\n  c: {<<: *b, z: 3}\n"
    text = f"\ufeff{HEAD}{spec_text}  d: 2026-01-01\n  e: [*a, *a]\n"
    spec = read(tmp_path, text)[0]["spec"]
    one = {"x": 1, "y": 1}
    assert spec["in"] == {"a": one, "b": {"x": 2, "y": 1}}
    assert (spec["c"]["z"], spec["d"], spec["e"]) == (3, "2026-01-01", [one, one])
