"""The state directory: bound to its run, and a checkpoint counts only when it is whole."""

import json

import pytest

from nodus.core.errors import StateMismatch
from nodus.trainer.checkpoints import State

BINDING = {"configuration": "sha256:c", "runtime": "sha256:r", "model": "sha256:m", "environment": "sha256:e"}


def opened(path, binding=None, keep=2):
    state = State(path, binding or BINDING, keep)
    state.open()
    return state


def save(state, step, *, complete=True):
    path = state.checkpoint_dir / f"checkpoint-{step}"
    path.mkdir()
    (path / "adapter_model.safetensors").write_bytes(b"weights" * 100 + bytes([step]))
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    if complete:
        state.complete(path)
    return path


def test_same_run_opens_its_state_again(tmp_path):
    opened(tmp_path).keep("baseline", {"rows": []})
    assert opened(tmp_path).load("baseline") == {"rows": []}


@pytest.mark.parametrize("name", sorted(BINDING))
def test_state_of_another_run_is_refused_naming_both_digests(tmp_path, name):
    opened(tmp_path)
    with pytest.raises(StateMismatch) as caught:
        opened(tmp_path, {**BINDING, name: "sha256:other"})
    assert f"{name}: the state has {BINDING[name]}, this run has sha256:other" in caught.value.message


def test_state_without_a_binding_is_nobodys_and_is_cleared(tmp_path):
    state = opened(tmp_path)
    save(state, 5)
    state.keep("baseline", {})
    (tmp_path / "binding.json").write_text('{"configuration"')
    again = opened(tmp_path)
    assert again.latest() is None
    assert again.load("baseline") is None


def test_latest_is_the_newest_by_step_and_not_by_name(tmp_path):
    state = opened(tmp_path)
    for step in (9, 10, 100):
        save(state, step)
    assert state.latest().name == "checkpoint-100"


def test_unfinished_checkpoint_is_skipped_to_the_one_before(tmp_path):
    state = opened(tmp_path)
    save(state, 5)
    save(state, 10, complete=False)
    assert state.latest().name == "checkpoint-5"
    assert not (state.checkpoint_dir / "checkpoint-10").exists()


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "marker"])
def test_damaged_checkpoint_is_skipped_to_the_one_before(tmp_path, damage, capsys):
    state = opened(tmp_path)
    save(state, 5)
    weights = save(state, 10) / "adapter_model.safetensors"
    if damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "flip":
        weights.write_bytes(b"W" + weights.read_bytes()[1:])
    elif damage == "remove":
        weights.unlink()
    else:
        (weights.parent / "complete.json").write_text("{")
    assert state.latest().name == "checkpoint-5"
    assert "checkpoint-10 is not whole" in capsys.readouterr().err


def test_nothing_whole_means_a_start_from_the_beginning(tmp_path):
    state = opened(tmp_path)
    save(state, 5, complete=False)
    assert state.latest() is None


def test_older_checkpoints_go_only_when_the_new_one_is_complete(tmp_path):
    state = opened(tmp_path, keep=1)
    save(state, 5)
    path = save(state, 10, complete=False)
    assert (state.checkpoint_dir / "checkpoint-5").exists()
    state.complete(path)
    assert [p.name for p in state.checkpoint_dir.iterdir()] == ["checkpoint-10"]
