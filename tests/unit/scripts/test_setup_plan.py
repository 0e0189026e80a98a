"""What scripts/setup would do on other machines: the machine is a folder of programs that answer as that one would."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
REAL = ("bash", "dirname", "uname", "grep", "sed")


class Machine:
    """A PATH of its own, with the few real programs that the script needs and stand-ins for the rest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in REAL:
            program = shutil.which(name)
            assert program
            (folder / name).symlink_to(program)
        self.python("python3", "3.12")
        self.program("bwrap")
        self.program("apt-get")
        self.user(0)

    def program(self, name: str, script: str = "exit 0") -> None:
        """Add a program that runs this shell script."""
        (self.folder / name).unlink(missing_ok=True)
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def without(self, name: str) -> None:
        """Remove a program."""
        (self.folder / name).unlink()

    def user(self, uid: int) -> None:
        """Be this user."""
        self.program("id", f"echo {uid}")

    def python(self, name: str, version: str, *, venv: bool = True) -> None:
        """Add an interpreter of this version, with or without the modules that make virtual environments."""
        minor = int(version.split(".")[1])
        self.program(
            name,
            'case "$2" in\n'
            f"  *ensurepip*) exit {0 if venv else 1} ;;\n"
            f"  *print*) echo {version} ;;\n"
            f"  *) exit {0 if 11 <= minor < 14 else 1} ;;\n"
            "esac",
        )

    def plan(self, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `scripts/setup --print-plan` there."""
        command = [str(self.folder / "bash"), str(ROOT / "scripts" / "setup"), "--print-plan", *options]
        environment = {"PATH": str(self.folder), **variables}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )

    def planned(self, *options: str, **variables: str) -> dict[str, str]:
        """The plan's lines by name."""
        done = self.plan(*options, **variables)
        assert done.returncode == 0, done.stderr
        return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine where nothing is missing."""
    return Machine(tmp_path)


def test_complete_machine_needs_no_packages_and_a_cpu_torch(machine: Machine) -> None:
    assert machine.planned() == {
        "python": "python3",
        "system packages": "none",
        "environment": ".venv",
        "torch": "torch==2.13.0+cpu",
        "extras": "server,train,environments",
    }


def test_bare_machine_gets_venv_module_and_bubblewrap_as_root(machine: Machine) -> None:
    machine.python("python3", "3.12", venv=False)
    machine.without("bwrap")
    plan = machine.planned()
    assert plan["system packages"] == "python3.12-venv bubblewrap"
    assert plan["system packages by"] == "root"


def test_user_with_sudo_installs_through_it(machine: Machine) -> None:
    machine.without("bwrap")
    machine.user(1000)
    machine.program("sudo")
    assert machine.planned()["system packages by"] == "sudo"


@pytest.mark.parametrize("sudo", [None, "exit 1"], ids=["no sudo", "sudo asks for a password without a terminal"])
def test_user_who_cannot_become_root_is_told_the_command(machine: Machine, sudo: str | None) -> None:
    machine.without("bwrap")
    machine.user(1000)
    if sudo:
        machine.program("sudo", sudo)
    assert machine.planned()["system packages by"] == "you"


def test_machine_without_apt_is_told_the_packages(machine: Machine) -> None:
    machine.without("bwrap")
    machine.without("apt-get")
    assert machine.planned()["system packages by"] == "you"


def test_gpu_takes_the_ordinary_build(machine: Machine) -> None:
    machine.program("nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'")
    assert machine.planned()["torch"] == "torch==2.13.0"


def test_driver_without_a_gpu_takes_the_cpu_build(machine: Machine) -> None:
    machine.program("nvidia-smi", "echo 'No devices were found'; exit 6")
    assert machine.planned()["torch"] == "torch==2.13.0+cpu"


def test_torch_variable_wins(machine: Machine) -> None:
    machine.program("nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'")
    assert machine.planned(TORCH="torch==2.11.0")["torch"] == "torch==2.11.0"


def test_tests_need_postgresql_what_handles_images_and_every_extra(machine: Machine) -> None:
    machine.program("initdb")
    plan = machine.planned("--test")
    assert plan["extras"] == "all,dev"
    assert plan["system packages"] == "skopeo buildah docker-registry"
    for program in ("skopeo", "buildah", "docker-registry"):
        machine.program(program)
    assert machine.planned("--test")["system packages"] == "none"


def test_too_old_python3_falls_back_to_one_that_fits(machine: Machine) -> None:
    machine.python("python3", "3.10")
    machine.python("python3.13", "3.13")
    assert machine.planned()["python"] == "python3.13"


def test_no_python_that_fits_is_said_in_one_line(machine: Machine) -> None:
    machine.python("python3", "3.14")
    done = machine.plan()
    assert done.returncode == 1
    assert "needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_unfit_python_variable_is_refused(machine: Machine) -> None:
    machine.python("old", "3.9")
    assert "PYTHON=old is not Python 3.11" in machine.plan(PYTHON="old").stderr
    assert "PYTHON=absent is not a program" in machine.plan(PYTHON="absent").stderr


def test_unknown_option_is_refused(machine: Machine) -> None:
    done = machine.plan("--tests")
    assert done.returncode == 2
    assert "--tests" in done.stderr
