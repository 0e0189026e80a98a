"""A trainer that torchrun started alone is a process like any other; one of several stays one of them."""

import importlib
import os

import pytest

from nodus.trainer import main as entry
from nodus.trainer.torchrun import leave_group_of_one

SET = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_ERROR_FILE": "/tmp/x/error.json",
}


def test_only_process_forgets_torchruns_variables_and_keeps_the_others():
    env = {**SET, "OMP_NUM_THREADS": "2", "NODUS_ATTEMPT": "a"}
    leave_group_of_one(env)
    assert env == {"OMP_NUM_THREADS": "2", "NODUS_ATTEMPT": "a"}


@pytest.mark.parametrize("env", [{**SET, "WORLD_SIZE": "2"}, {"MASTER_ADDR": "set by hand"}])
def test_one_of_several_and_a_process_without_torchrun_keep_everything(env):
    before = dict(env)
    leave_group_of_one(env)
    assert env == before


def test_trainer_forgets_before_it_imports_its_task(monkeypatch, tmp_path):
    from nodus.trainer.run import Run

    class Task:
        seen: dict[str, str]

        @staticmethod
        def run(*_):
            Task.seen = {name: value for name, value in os.environ.items() if name in SET}

    params = {"trainingJob": "run", "project": "default", "environment": {}, "parameters": {}}
    monkeypatch.setattr("nodus.trainer.run._read_params", lambda _: params)
    monkeypatch.setattr(importlib, "import_module", lambda _: Task)
    for name in ("INPUT_PARAMS", "ATTEMPT", "INPUT_MODEL", "STATE_DIR", "OUTPUT_DIR", "RUNTIME_SOCKET"):
        monkeypatch.setenv(f"NODUS_{name}", str(tmp_path))
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    assert entry.main([]) == 0
    assert Task.seen == {}
    assert Run.load().world == {"rank": 0, "size": 1}
