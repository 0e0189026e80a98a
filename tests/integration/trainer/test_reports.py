"""What a trainer reports to its supervisor, and that it saves a checkpoint when it is asked for one."""

from pathlib import Path

import pytest

from nodus.server.compute.local.attemptdir import AttemptDir
from nodus.server.compute.local.reported import read_reported
from nodus.server.compute.local.reporting import Reporting
from nodus.testing.eventually import eventually
from tests.integration.trainer.conftest import HELD_OUT, TRAIN, letters

pytestmark = pytest.mark.timeout(240)


def test_trainer_reports_its_steps_and_saves_when_it_is_asked(runs, tmp_path: Path) -> None:
    run = runs(parameters={"steps": 400, "saveSteps": 1000})
    attempt = AttemptDir(tmp_path / "attempt")
    attempt.run.mkdir(parents=True)
    mounts = [{"host": str(run.directory / "state"), "path": "/nodus/state", "readonly": False}]
    reporting = Reporting(attempt, {"checkpoint": {"paths": ["/nodus/state"]}, "mounts": mounts})
    reporting.start()
    with run.server(TRAIN, HELD_OUT, letters):
        process = run.start_warm(NODUS_EVENTS_SOCKET=str(attempt.run / "events.sock"))
        try:
            ask = eventually(reporting.ask, timeout_s=120)
            eventually(lambda: ask.settled, timeout_s=60)
        finally:
            process.kill()
            process.wait(60)
            reporting.close()
    saved = list((run.directory / "state" / "checkpoints").glob("checkpoint-*/complete.json"))
    assert (ask.state, len(saved)) == ("Ready", 1), run.log()
    found = read_reported(attempt.path)
    assert found.checkpoint["size"] > 10_000
    assert found.progress["stage"] == "Training"
    assert found.progress["units"]["total"] == 400
    assert {"reward", "loss", "step"} <= found.progress["metrics"].keys()
