"""The error tree: unique reasons, a round trip over the wire and through pickle."""

import pickle

import pytest

import nodus.errors
from nodus.core import errors


def test_reasons_are_unique_but_for_declared_aliases() -> None:
    seen: dict[str, type[errors.NodusError]] = {}
    for cls in errors.all_errors():
        if "reason" not in cls.__dict__ or cls in (errors.NodusError, errors.StoreError):
            continue
        assert cls.reason not in seen, f"{cls} and {seen.get(cls.reason)} share a reason"
        seen[cls.reason] = cls


@pytest.mark.parametrize(
    # The tree's own classes: a server part that was imported before may have refined some of them.
    "cls",
    [c for c in errors.all_errors() if c is not errors.StoreError and c.__module__.startswith(errors.__name__)],
    ids=lambda c: c.__name__,
)
def test_status_round_trip_rebuilds_the_class(cls: type[errors.NodusError]) -> None:
    error = cls(
        "it broke", fix="mend it", causes=[errors.Cause("spec.x", "FieldValueInvalid", "no")], details={"name": "x"}
    )
    rebuilt = errors.from_status(error.to_status("req_1"), cls.status)
    wanted = errors.Conflict if cls is errors.StaleLease else cls
    assert rebuilt.reason == cls.reason
    assert isinstance(rebuilt, wanted) or cls is errors.NodusError
    assert (rebuilt.message, rebuilt.fix, rebuilt.causes, rebuilt.request_id) == (
        "it broke",
        "mend it",
        error.causes,
        "req_1",
    )


# Reason -> HTTP status of the product's registry; a star says that a client may try again.
REGISTRY = """
400 BadRequest OutputIndexRequired
401 Unauthorized EnrollmentTokenInvalid
402 InsufficientCredits BudgetExceeded ArrearsOutstanding PaymentDisputed PaymentMethodRequired
403 Forbidden ComputeSuspended NoSSHKey TrialLimitExceeded WorkerNotAllowed CloudExecuteNotEnabled
404 NotFound OutputNotFound FunctionNotFound
405 MethodNotAllowed
409 AlreadyExists Conflict FieldImmutable IdempotencyKeyReused RequestInProgress* AgentGroupClosed AgentGroupFull*
409 AgentRunFinished AgentStopped ImageNotReady* VolumeBusy* SandboxFailed SandboxNotRunning ConnectionNotReady*
410 Expired PromoCodeExpired
412 PreconditionFailed SHA256Mismatch
413 RequestEntityTooLarge FileTooLarge FunctionCallBatchTooLarge
415 UnsupportedMediaType
422 Invalid Unsupported EnvironmentTasksFailed ImageNotFound ImagePullFailed* SecretValueInEnv PriceConsentRequired
429 TooManyRequests* QuotaExceeded StdinBackpressure* TopUpLimitReached
500 InternalError*
503 Unavailable* CapacityUnavailable SandboxStarting* WorkspaceStarting* AdmissionsPaused* EncryptionFailed*
503 ImageBuildUnavailable
"""


@pytest.mark.parametrize(
    ("status", "word"), [(int(line[:3]), word) for line in REGISTRY.split("\n") if line for word in line.split()[1:]]
)
def test_every_reason_of_the_registry_has_a_class_of_its_name(status: int, word: str) -> None:
    name = word.rstrip("*")
    cls = getattr(nodus.errors, name)
    raised = errors.from_status({"reason": name, "message": "m"}, status)
    assert type(raised) is cls
    assert (cls.reason, cls.status, cls.retryable) == (name, status, word.endswith("*"))


def test_details_of_a_reason_are_attributes() -> None:
    body = {"reason": "InsufficientCredits", "details": {"availableUSD": "1.00", "neededUSD": "2.50"}}
    error = errors.from_status(body, 402)
    assert isinstance(error, errors.InsufficientCredits)
    assert (error.available_usd, error.needed_usd) == ("1.00", "2.50")
    assert errors.Forbidden("no").missing_scope is None


def test_errors_pickle() -> None:
    error = errors.Invalid("bad", causes=[errors.Cause("spec.x", "FieldValueInvalid", "no")], retry_after_s=2)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.Invalid
    assert (copy.message, copy.causes, copy.retry_after_s) == (error.message, error.causes, 2)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(404, errors.NotFound), (418, errors.NodusError), (500, errors.InternalError), (502, errors.Unavailable)],
)
def test_a_body_without_reason_maps_by_status(status: int, expected: type[errors.NodusError]) -> None:
    assert type(errors.from_status({}, status)) is expected


def test_a_hostile_status_body_is_survived() -> None:
    error = errors.from_status(
        {"details": {"causes": ["x", {"field": 1}], "retryAfterSeconds": "soon"}, "reason": "Invalid"}, 422
    )
    assert error.causes == (errors.Cause("1", "", ""),)
    assert error.retry_after_s is None


def test_a_traceback_says_the_fix() -> None:
    error = errors.NotFound("gone", fix="Make it.")
    assert error.__notes__ == ["fix: Make it."]
    assert str(error) == "gone"
