"""What is wrong with a reward function or its tasks, found on the user's machine before anything is sent."""

from __future__ import annotations

from nodus.core.errors import NodusError


class RewardError(NodusError):
    """The reward can't be packaged or does not work; the message starts with ``FILE:LINE:`` where there is a line."""

    reason, status = "RewardInvalid", 422


class TasksError(NodusError):
    """The tasks can't be used; the message names the task by its position."""

    reason, status = "TasksInvalid", 422


class RewardNotTried(UserWarning):
    """The reward could not be tried on this machine, which lacks a library that the grader has; the server tries it."""
