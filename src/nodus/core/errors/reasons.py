"""One class for each reason that an answer can have, in the order of their HTTP statuses.

The registry is the whole product's: reasons of parts that a server does not have are here too, so that a client raises
the class of whatever any server says.
"""

from __future__ import annotations

from nodus.core.errors.base import NodusError, detail


class BadRequest(NodusError):
    """The request can't be read: malformed JSON, a bad query, a bad header."""

    reason, status = "BadRequest", 400


class OutputIndexRequired(NodusError):
    """Several completion indexes have outputs of that name; say which."""

    reason, status = "OutputIndexRequired", 400


class Unauthorized(NodusError):
    """No key, or one that is unknown, expired or revoked."""

    reason, status = "Unauthorized", 401


class EnrollmentTokenInvalid(NodusError):
    """The token that a machine enrolls with is unknown, used up or expired."""

    reason, status = "EnrollmentTokenInvalid", 401


class InsufficientCredits(NodusError):
    """The credits left don't cover the hold."""

    reason, status = "InsufficientCredits", 402
    available_usd = detail("availableUSD", "What is left, in dollars.")
    needed_usd = detail("neededUSD", "What it takes, in dollars.")


class BudgetExceeded(NodusError):
    """A Budget or a cap blocks the spend."""

    reason, status = "BudgetExceeded", 402
    budget = detail("budget", "Name of the Budget.")
    needed_usd = detail("neededUSD", "What it takes, in dollars.")
    remaining_usd = detail("remainingUSD", "What is left of it, in dollars.")


class ArrearsOutstanding(NodusError):
    """A debt has to be settled first."""

    reason, status = "ArrearsOutstanding", 402
    arrears_usd = detail("arrearsUSD", "What is owed.")


class PaymentDisputed(NodusError):
    """A payment is disputed; spending stops until that is settled."""

    reason, status = "PaymentDisputed", 402


class PaymentMethodRequired(NodusError):
    """Spending needs a way to pay on file."""

    reason, status = "PaymentMethodRequired", 402


class Forbidden(NodusError):
    """The key is known and lacks the scope or the project."""

    reason, status = "Forbidden", 403
    missing_scope = detail("missingScope", "The scope that the key lacks.")


class ComputeSuspended(NodusError):
    """The organization may not run anything for now."""

    reason, status = "ComputeSuspended", 403


class NoSSHKey(NodusError):
    """The user has no SSH key."""

    reason, status = "NoSSHKey", 403


class TrialLimitExceeded(NodusError):
    """The trial does not cover that."""

    reason, status = "TrialLimitExceeded", 403


class WorkerNotAllowed(NodusError):
    """The machine may not take part."""

    reason, status = "WorkerNotAllowed", 403


class CloudExecuteNotEnabled(NodusError):
    """Running on clouds is not switched on."""

    reason, status = "CloudExecuteNotEnabled", 403


class NotFound(NodusError):
    """No object of that kind and name, or none that this key may see."""

    reason, status = "NotFound", 404


class OutputNotFound(NodusError):
    """The run has no output of that name."""

    reason, status = "OutputNotFound", 404


class FunctionNotFound(NodusError):
    """The App has no function of that name."""

    reason, status = "FunctionNotFound", 404


class MethodNotAllowed(NodusError):
    """The kind doesn't support the verb."""

    reason, status = "MethodNotAllowed", 405


class AlreadyExists(NodusError):
    """An object of that name exists with another spec; ``details.diff`` shows it."""

    reason, status = "AlreadyExists", 409
    diff = detail("diff", "Old and new value of each field that differs.")


class Conflict(NodusError):
    """The object changed since it was read, or the state forbids the change."""

    reason, status = "Conflict", 409


class FieldImmutable(NodusError):
    """The field can't change after creation; ``details.diff`` shows both values."""

    reason, status = "FieldImmutable", 409
    diff = detail("diff", "Old and new value of each field that would change.")


class IdempotencyKeyReused(NodusError):
    """The Idempotency-Key was used for another request within 24 hours."""

    reason, status = "IdempotencyKeyReused", 409


class RequestInProgress(NodusError):
    """The first request with this Idempotency-Key is still running."""

    reason, status, retryable = "RequestInProgress", 409, True


class VolumeBusy(NodusError):
    """Another writer holds the Volume."""

    reason, status, retryable = "VolumeBusy", 409, True
    holder = detail("holder", "Who holds it.")


class AgentGroupClosed(NodusError):
    """The group is sealed, cancelled or done, and takes no more runs."""

    reason, status = "AgentGroupClosed", 409


class AgentGroupFull(NodusError):
    """The group has as many pending runs as it may have."""

    reason, status, retryable = "AgentGroupFull", 409, True


class AgentRunFinished(NodusError):
    """The agent run is over and takes no more messages."""

    reason, status = "AgentRunFinished", 409


class AgentStopped(NodusError):
    """The Agent is stopped and starts no runs."""

    reason, status = "AgentStopped", 409


class ImageNotReady(NodusError):
    """The Image is still being built."""

    reason, status, retryable = "ImageNotReady", 409, True


class SandboxFailed(NodusError):
    """The Sandbox could not be started, or failed; its status says why."""

    reason, status = "SandboxFailed", 409


class SandboxNotRunning(NodusError):
    """The Sandbox is stopped; start it first."""

    reason, status = "SandboxNotRunning", 409


class ConnectionNotReady(NodusError):
    """The Connection is missing or has no key yet."""

    reason, status, retryable = "ConnectionNotReady", 409, True


class Expired(NodusError):
    """The resourceVersion, link or page token is too old; start again."""

    reason, status = "Expired", 410


class PromoCodeExpired(NodusError):
    """The promotion code is over."""

    reason, status = "PromoCodeExpired", 410


class PreconditionFailed(NodusError):
    """If-Match names a plan that no longer holds; dry-run again."""

    reason, status = "PreconditionFailed", 412


class SHA256Mismatch(NodusError):
    """The bytes don't have the digest that was announced."""

    reason, status = "SHA256Mismatch", 412


class RequestEntityTooLarge(NodusError):
    """The body is over the limit."""

    reason, status = "RequestEntityTooLarge", 413


class FileTooLarge(NodusError):
    """The file is over the limit."""

    reason, status = "FileTooLarge", 413


class FunctionCallBatchTooLarge(NodusError):
    """The batch has more calls than fit one request."""

    reason, status = "FunctionCallBatchTooLarge", 413


class UnsupportedMediaType(NodusError):
    """The content type isn't one the route takes."""

    reason, status = "UnsupportedMediaType", 415


class Invalid(NodusError):
    """The object is well-formed and wrong; ``causes`` lists every mistake."""

    reason, status = "Invalid", 422


class Unsupported(NodusError):
    """The request asks for something this installation doesn't do."""

    reason, status = "Unsupported", 422


class EnvironmentTasksFailed(NodusError):
    """The Environment could not list its tasks."""

    reason, status = "EnvironmentTasksFailed", 422


class SecretValueInEnv(NodusError):
    """A value that looks like a Secret's stands in plain env; use a reference."""

    reason, status = "SecretValueInEnv", 422


class ImageNotFound(NodusError):
    """There is no image of that name or digest."""

    reason, status = "ImageNotFound", 422


class ImagePullFailed(NodusError):
    """The image could not be fetched."""

    reason, status, retryable = "ImagePullFailed", 422, True


class PriceConsentRequired(NodusError):
    """The price changed; agree to the new one first."""

    reason, status = "PriceConsentRequired", 422


class TooManyRequests(NodusError):
    """A rate limit; retry after ``retry_after_s``."""

    reason, status, retryable = "TooManyRequests", 429, True


class QuotaExceeded(NodusError):
    """A quota is used up."""

    reason, status = "QuotaExceeded", 429
    quota = detail("quota", "Which quota.")


class StdinBackpressure(NodusError):
    """The process has not read the input it was given before; send it again shortly."""

    reason, status, retryable = "StdinBackpressure", 429, True


class TopUpLimitReached(NodusError):
    """No more credits can be bought for now."""

    reason, status = "TopUpLimitReached", 429


class InternalError(NodusError):
    """A fault of Nodus itself; the log has the trace under the request id."""

    retryable = True


class Unavailable(NodusError):
    """Something needed is out of reach for now; retry shortly."""

    reason, status, retryable = "Unavailable", 503, True


class CapacityUnavailable(NodusError):
    """No capacity of that kind."""

    reason, status = "CapacityUnavailable", 503
    eta = detail("eta", "When there may be some.")


class SandboxStarting(NodusError):
    """The Sandbox is on its way; retry shortly."""

    reason, status, retryable = "SandboxStarting", 503, True


class WorkspaceStarting(NodusError):
    """The Workspace is starting."""

    reason, status, retryable = "WorkspaceStarting", 503, True


class AdmissionsPaused(NodusError):
    """New work is not taken for now."""

    reason, status, retryable = "AdmissionsPaused", 503, True


class EncryptionFailed(NodusError):
    """A value could not be sealed or opened."""

    reason, status, retryable = "EncryptionFailed", 503, True


class ImageBuildUnavailable(NodusError):
    """Images can not be built here for now."""

    reason, status = "ImageBuildUnavailable", 503


# Raised within Nodus, by the trainer or by the client; not in the registry ------------------------------------------


class StoreError(NodusError):
    """The database can't be used; the message says why and what to do. Never sent to API clients in detail."""

    reason, status, retryable = "Unavailable", 503, True


class StaleLease(Conflict):
    """The lease was taken over; the write is dropped."""


class StateMismatch(NodusError):
    """A checkpoint belongs to another configuration; names both values. Raised in the trainer."""

    reason, status = "StateMismatch", 409


class JobFailed(NodusError):
    """A run ended in Failed or Cancelled; raised by the client's ``wait``. ``details`` has ``reason`` and ``phase``."""

    reason, status = "JobFailed", 409


class NodusTimeout(NodusError):
    """A client-side wait ran out of time; the run goes on."""

    reason, status = "Timeout", 504


class GraderFailed(NodusError):
    """Too many completions could not be graded; the evidence of the last ones is in the message."""

    reason, status = "GraderFailed", 422
