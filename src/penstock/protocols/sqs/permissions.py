"""AddPermission and RemovePermission: statements of a queue's Policy. They are kept and shown, as the policy is.

Who may do what here is said in the server's settings, by access key.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.core.commands import ChangeQueue
from penstock.core.queues.config import QueueConfig
from penstock.protocols.sqs.context import RequestContext
from penstock.protocols.sqs.errors import OVER_LIMIT, SqsError, invalid_value, missing
from penstock.protocols.sqs.moves import MoveActions
from penstock.protocols.sqs.shapes import AddPermissionRequest, RemovePermissionRequest

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_ACCOUNT = re.compile(r"\d{12}\Z", re.ASCII)
_POLICY = "sqs.Policy"
_ACTIONS_MAX = 7
_STATEMENTS_MAX = 20

SHAREABLE = frozenset(
    {
        "*",
        "SendMessage",
        "ReceiveMessage",
        "DeleteMessage",
        "ChangeMessageVisibility",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
    }
)
"""The actions that a permission may name."""


class PermissionActions(MoveActions):
    """The actions on a queue's policy, beside all the others."""

    async def AddPermission(self, context: RequestContext, request: AddPermissionRequest) -> None:
        """Add a statement to the policy."""
        name = self.queue_name(context, request.queue_url, ChangeQueue)
        await self.existing(name)
        _check(request)
        await self.change(name, lambda config: _added(config, request, self.arns.of(name)))

    async def RemovePermission(self, context: RequestContext, request: RemovePermissionRequest) -> None:
        """Take a statement out of the policy. The policy goes with its last one."""
        name = self.queue_name(context, request.queue_url, ChangeQueue)
        label = request.label
        if not label:
            await self.existing(name)
            raise missing("Label")
        await self.change(name, lambda config: _removed(config, label, self.arns.of(name)))


def _added(config: QueueConfig, request: AddPermissionRequest, arn: str) -> dict[str, Any]:
    policy = _policy(config.labels.get(_POLICY), arn)
    statements = policy["Statement"]
    if any(statement.get("Sid") == request.label for statement in statements):
        raise invalid_value(request.label, "Label", "Already exists.")
    if len(statements) >= _STATEMENTS_MAX:
        raise SqsError(OVER_LIMIT, f"{_STATEMENTS_MAX} statements are as many as a policy may have.")
    statements.append(_statement(request, arn))
    return {"labels": config.labels | {_POLICY: msgspec.json.encode(policy).decode()}}


def _removed(config: QueueConfig, label: str, arn: str) -> dict[str, Any]:
    policy = _policy(config.labels.get(_POLICY), arn)
    kept = [statement for statement in policy["Statement"] if statement.get("Sid") != label]
    if len(kept) == len(policy["Statement"]):
        raise invalid_value(label, "Label", "can't find label.")
    labels = {key: value for key, value in config.labels.items() if key != _POLICY}
    if kept:
        labels[_POLICY] = msgspec.json.encode(policy | {"Statement": kept}).decode()
    return {"labels": labels}


def _check(request: AddPermissionRequest) -> None:
    if not request.label:
        raise missing("Label")
    if not _LABEL.match(request.label):
        raise invalid_value(
            request.label,
            "Label",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.",
        )
    if not request.aws_account_ids:
        raise missing("AWSAccountIds")
    if not request.actions:
        raise missing("Actions")
    for account in request.aws_account_ids:
        if not _ACCOUNT.match(account):
            raise invalid_value(account, "PrincipalId", "Unable to verify.")
    for action in request.actions:
        if action not in SHAREABLE:
            raise invalid_value(f"SQS:{action}", "ActionName", "Only the queue owner is allowed to invoke this action.")
    if len(request.actions) > _ACTIONS_MAX:
        raise SqsError(OVER_LIMIT, f"{len(request.actions)} Actions were found, maximum allowed is {_ACTIONS_MAX}.")


def _policy(stored: str | None, arn: str) -> dict[str, Any]:
    """The policy as it is, with a list of statements; a new one if there is none."""
    if stored is None:
        return {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    policy: dict[str, Any] = msgspec.json.decode(stored)
    statements = policy.get("Statement", [])
    listed = statements if isinstance(statements, list) else [statements]
    return policy | {"Statement": [statement for statement in listed if isinstance(statement, dict)]}


def _statement(request: AddPermissionRequest, arn: str) -> dict[str, Any]:
    accounts = [f"arn:aws:iam::{account}:root" for account in request.aws_account_ids or ()]
    actions = [f"SQS:{action}" for action in request.actions or ()]
    return {
        "Sid": request.label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_many(accounts)},
        "Action": _one_or_many(actions),
        "Resource": arn,
    }


def _one_or_many(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
