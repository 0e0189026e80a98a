"""A trainer that fails says why, in message.json, and its exit code says whether another attempt may help."""

import errno
import json

import pytest

from nodus.core.errors import Cause, GraderFailed, Invalid, StateMismatch, Unavailable
from nodus.trainer.failures import EXIT_FAILED, EXIT_REFUSED, report
from nodus.trainer.main import main


def failing(error):
    def run():
        raise error

    return run


def reported(tmp_path, error):
    code = report(failing(error), {"NODUS_TERMINATION_DIR": str(tmp_path)})
    return code, json.loads((tmp_path / "message.json").read_text())


def test_success_is_silent(tmp_path):
    assert report(lambda: None, {"NODUS_TERMINATION_DIR": str(tmp_path)}) == 0
    assert list(tmp_path.iterdir()) == []


def test_invalid_run_lists_every_cause_with_its_path(tmp_path):
    causes = [Cause("spec.parameters.steps", "FieldValueInvalid", "0 steps train nothing"), Cause("spec.x", "R", "no")]
    code, message = reported(tmp_path, Invalid("can't be trained", causes=causes, fix="correct them"))
    assert code == EXIT_REFUSED
    assert message == {
        "reason": "Invalid",
        "message": "can't be trained\nspec.parameters.steps: 0 steps train nothing\nspec.x: no",
        "fix": "correct them",
        "retryable": False,
    }


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (StateMismatch("another run"), EXIT_REFUSED, "StateMismatch"),
        (GraderFailed("20 of 32"), EXIT_REFUSED, "GraderFailed"),
        (Unavailable("server away"), EXIT_FAILED, "Unavailable"),
        (OSError(errno.ENOSPC, "No space left", "/nodus/state/x"), EXIT_FAILED, "DiskFull"),
        (MemoryError(), EXIT_FAILED, "OutOfMemory"),
        (RuntimeError("shape mismatch"), EXIT_FAILED, "TrainerError"),
    ],
)
def test_reason_and_exit_code_follow_from_the_error(tmp_path, error, code, reason):
    assert reported(tmp_path, error)[0] == code
    assert reported(tmp_path, error)[1]["reason"] == reason


def test_unwritable_termination_directory_does_not_hide_the_failure(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert report(failing(RuntimeError("boom")), {"NODUS_TERMINATION_DIR": str(blocked)}) == EXIT_FAILED
    assert "TrainerError: RuntimeError: boom" in capsys.readouterr().err


def test_main_without_its_environment_names_the_variable(tmp_path, monkeypatch, capsys):
    for name in ("NODUS_INPUT_PARAMS", "NODUS_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NODUS_TERMINATION_DIR", str(tmp_path))
    assert main([]) == EXIT_REFUSED
    assert "NODUS_INPUT_PARAMS is not set" in json.loads((tmp_path / "message.json").read_text())["message"]


def test_help_prints_usage(capsys):
    assert main(["--help"]) == 0
    assert "usage: python -m nodus.trainer" in capsys.readouterr().out
