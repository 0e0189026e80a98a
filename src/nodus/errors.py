"""Every error Nodus raises, by the name that the server sends.

Example::

    try:
        nodus.TrainingJob.from_name("run-1")
    except nodus.errors.NotFound as error:
        print(error.message, error.fix)
"""

from nodus.client.config import ConfigError
from nodus.client.http import ConnectionFailed
from nodus.core.errors import (
    AlreadyExists,
    BadRequest,
    BudgetExceeded,
    CapacityUnavailable,
    Cause,
    Conflict,
    EnvironmentTasksFailed,
    Expired,
    FieldImmutable,
    FileTooLarge,
    Forbidden,
    GraderFailed,
    IdempotencyKeyReused,
    InsufficientCredits,
    InternalError,
    Invalid,
    JobFailed,
    MethodNotAllowed,
    NodusError,
    NodusTimeout,
    NotFound,
    OutputIndexRequired,
    OutputNotFound,
    PreconditionFailed,
    QuotaExceeded,
    RequestEntityTooLarge,
    RequestInProgress,
    SecretValueInEnv,
    SHA256Mismatch,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unsupported,
    UnsupportedMediaType,
    VolumeBusy,
)
from nodus.recipes.errors import RewardError, TasksError

__all__ = [
    "AlreadyExists",
    "BadRequest",
    "BudgetExceeded",
    "CapacityUnavailable",
    "Cause",
    "ConfigError",
    "Conflict",
    "ConnectionFailed",
    "EnvironmentTasksFailed",
    "Expired",
    "FieldImmutable",
    "FileTooLarge",
    "Forbidden",
    "GraderFailed",
    "IdempotencyKeyReused",
    "InsufficientCredits",
    "InternalError",
    "Invalid",
    "JobFailed",
    "MethodNotAllowed",
    "NodusError",
    "NodusTimeout",
    "NotFound",
    "OutputIndexRequired",
    "OutputNotFound",
    "PreconditionFailed",
    "QuotaExceeded",
    "RequestEntityTooLarge",
    "RequestInProgress",
    "RewardError",
    "SHA256Mismatch",
    "SecretValueInEnv",
    "TasksError",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "Unsupported",
    "UnsupportedMediaType",
    "VolumeBusy",
]
