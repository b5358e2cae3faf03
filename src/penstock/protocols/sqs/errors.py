"""Every error of SQS in one table, and which of them each of the core's errors is.

An error has a shape name (`__type` in JSON, with a namespace), a code (in Query, in `x-amzn-query-error`, and in
failed entries of batches), and a status. Codes and statuses are those of the AWS API reference.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core import errors as core

_SQS = "com.amazonaws.sqs"
_COMMON = "com.amazon.coral.service"
_PREFIX = "AWS.SimpleQueueService."


class ErrorKind(NamedTuple):
    """A row of the table."""

    shape: str
    code: str
    status: int
    namespace: str = _SQS

    @property
    def is_senders_fault(self) -> bool:
        """Whether trying the same again is pointless."""
        return self.status < 500


BATCH_ENTRY_IDS_NOT_DISTINCT = ErrorKind("BatchEntryIdsNotDistinct", _PREFIX + "BatchEntryIdsNotDistinct", 400)
BATCH_REQUEST_TOO_LONG = ErrorKind("BatchRequestTooLong", _PREFIX + "BatchRequestTooLong", 400)
EMPTY_BATCH_REQUEST = ErrorKind("EmptyBatchRequest", _PREFIX + "EmptyBatchRequest", 400)
INVALID_ADDRESS = ErrorKind("InvalidAddress", "InvalidAddress", 404)
INVALID_ATTRIBUTE_NAME = ErrorKind("InvalidAttributeName", "InvalidAttributeName", 400)
INVALID_ATTRIBUTE_VALUE = ErrorKind("InvalidAttributeValue", "InvalidAttributeValue", 400)
INVALID_BATCH_ENTRY_ID = ErrorKind("InvalidBatchEntryId", _PREFIX + "InvalidBatchEntryId", 400)
INVALID_MESSAGE_CONTENTS = ErrorKind("InvalidMessageContents", "InvalidMessageContents", 400)
MESSAGE_NOT_INFLIGHT = ErrorKind("MessageNotInflight", _PREFIX + "MessageNotInflight", 400)
OVER_LIMIT = ErrorKind("OverLimit", "OverLimit", 403)
PURGE_QUEUE_IN_PROGRESS = ErrorKind("PurgeQueueInProgress", _PREFIX + "PurgeQueueInProgress", 403)
QUEUE_DELETED_RECENTLY = ErrorKind("QueueDeletedRecently", _PREFIX + "QueueDeletedRecently", 400)
QUEUE_DOES_NOT_EXIST = ErrorKind("QueueDoesNotExist", _PREFIX + "NonExistentQueue", 400)
QUEUE_NAME_EXISTS = ErrorKind("QueueNameExists", "QueueAlreadyExists", 400)
RECEIPT_HANDLE_IS_INVALID = ErrorKind("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404)
REQUEST_THROTTLED = ErrorKind("RequestThrottled", "RequestThrottled", 403)
RESOURCE_NOT_FOUND = ErrorKind("ResourceNotFoundException", "ResourceNotFoundException", 404)
TOO_MANY_ENTRIES = ErrorKind("TooManyEntriesInBatchRequest", _PREFIX + "TooManyEntriesInBatchRequest", 400)
UNSUPPORTED_OPERATION = ErrorKind("UnsupportedOperation", _PREFIX + "UnsupportedOperation", 400)

INVALID_PARAMETER_VALUE = ErrorKind("InvalidParameterValueException", "InvalidParameterValue", 400, _COMMON)
MISSING_PARAMETER = ErrorKind("MissingRequiredParameterException", "MissingParameter", 400, _COMMON)
MALFORMED_INPUT = ErrorKind("SerializationException", "MalformedInput", 400, _COMMON)
UNKNOWN_OPERATION = ErrorKind("UnknownOperationException", "InvalidAction", 400, _COMMON)
ACCESS_DENIED = ErrorKind("AccessDeniedException", "AccessDenied", 403, _COMMON)
METHOD_NOT_ALLOWED = ErrorKind("MethodNotAllowedException", "MethodNotAllowed", 405, _COMMON)
MISDIRECTED_REQUEST = ErrorKind("MisdirectedRequestException", "MisdirectedRequest", 421, _COMMON)
SERVICE_UNAVAILABLE = ErrorKind("ServiceUnavailableException", "ServiceUnavailable", 503, _COMMON)
INTERNAL_FAILURE = ErrorKind("InternalFailure", "InternalFailure", 500, _COMMON)

MISSING_AUTHENTICATION_TOKEN = ErrorKind(
    "MissingAuthenticationTokenException", "MissingAuthenticationToken", 403, _COMMON
)
INCOMPLETE_SIGNATURE = ErrorKind("IncompleteSignatureException", "IncompleteSignature", 400, _COMMON)
INVALID_CLIENT_TOKEN_ID = ErrorKind("UnrecognizedClientException", "InvalidClientTokenId", 403, _COMMON)
SIGNATURE_DOES_NOT_MATCH = ErrorKind("InvalidSignatureException", "SignatureDoesNotMatch", 403, _COMMON)
REQUEST_EXPIRED = ErrorKind("RequestExpiredException", "RequestExpired", 400, _COMMON)

KINDS: tuple[ErrorKind, ...] = tuple(kind for kind in list(globals().values()) if isinstance(kind, ErrorKind))
"""The whole table."""

NO_SUCH_QUEUE = "The specified queue does not exist."


class SqsError(Exception):
    """An error that a client of SQS gets to see.

    >>> SqsError(OVER_LIMIT, "too many").kind.status
    403
    """

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def invalid_value(value: object, parameter: str, reason: str) -> SqsError:
    """A parameter that is out of its range.

    >>> invalid_value(11, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.").message
    'Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.'
    """
    return SqsError(INVALID_PARAMETER_VALUE, f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing(parameter: str) -> SqsError:
    return SqsError(MISSING_PARAMETER, f"The request must contain the parameter {parameter}.")


def no_such_queue() -> SqsError:
    return SqsError(QUEUE_DOES_NOT_EXIST, NO_SUCH_QUEUE)


_CORE: tuple[tuple[type[core.PenstockError], ErrorKind], ...] = (
    (core.QueueExists, QUEUE_NAME_EXISTS),
    (core.StaleReceipt, MESSAGE_NOT_INFLIGHT),
    (core.ReceiptRefused, RECEIPT_HANDLE_IS_INVALID),
    (core.OverLimit, OVER_LIMIT),
    (core.Throttled, REQUEST_THROTTLED),
    (core.TaskNotFound, RESOURCE_NOT_FOUND),
    (core.NotFound, INVALID_PARAMETER_VALUE),
    (core.InvalidRequest, INVALID_PARAMETER_VALUE),
    (core.StoreError, SERVICE_UNAVAILABLE),
    (core.PenstockError, SERVICE_UNAVAILABLE),
)


def from_core(error: core.PenstockError) -> SqsError:
    """What an error of the core is in SQS.

    >>> from_core(core.QueueNotFound("there is no queue 'a'")).kind.code
    'AWS.SimpleQueueService.NonExistentQueue'
    """
    if isinstance(error, core.QueueNotFound):
        return no_such_queue()
    return next(SqsError(kind, str(error)) for type_, kind in _CORE if isinstance(error, type_))
