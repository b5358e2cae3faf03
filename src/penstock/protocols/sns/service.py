"""The actions of SNS. One wire verb, one method; each gets a request's members and returns its result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from penstock.core.errors import PenstockError
from penstock.protocols.http import PLAIN_TEXT, Exchange
from penstock.protocols.sns import wire
from penstock.protocols.sns.http_delivery import HttpTargets
from penstock.protocols.sns.publish_actions import PublishActions
from penstock.protocols.sns.requests import UNCHECKED, Caller
from penstock.protocols.sns.subscription_actions import SubscriptionActions
from penstock.protocols.sqs.errors import INTERNAL_FAILURE, UNKNOWN_OPERATION, SqsError
from penstock.protocols.sqs.names import Scope
from penstock.server.auth import ANYBODY, STRANGER, Principal
from penstock.server.settings import SnsSettings, SqsSettings
from penstock.server.shards import Shards

log = logging.getLogger("penstock.sns")

ACTIONS = (
    "AddPermission",
    "ConfirmSubscription",
    "CreateTopic",
    "DeleteTopic",
    "GetDataProtectionPolicy",
    "GetSubscriptionAttributes",
    "GetTopicAttributes",
    "ListSubscriptions",
    "ListSubscriptionsByTopic",
    "ListTagsForResource",
    "ListTopics",
    "Publish",
    "PublishBatch",
    "PutDataProtectionPolicy",
    "RemovePermission",
    "SetSubscriptionAttributes",
    "SetTopicAttributes",
    "Subscribe",
    "TagResource",
    "Unsubscribe",
    "UntagResource",
)
CHANGES = frozenset(name for name in ACTIONS if not name.startswith(("Get", "List", "Publish")))
"""What the audit log tells."""
_FOR_STRANGERS = frozenset({"ConfirmSubscription", "Unsubscribe"})
"""Actions that a link in a notification is for: what they are given says whether they may be done."""
_CERTIFICATE_PATH = "/SimpleNotificationService-"


class SnsService(SubscriptionActions, PublishActions):
    """Answers SNS requests from a shard, and delivers what is published."""

    def __init__(self, shard: Shards, settings: SqsSettings, sns: SnsSettings, targets: HttpTargets) -> None:
        super().__init__(shard, settings, sns, targets)
        self._answering: set[asyncio.Task[None]] = set()

    def handle(self, exchange: Exchange, principal: Principal, scope: Scope, fields: dict[str, str], url: str) -> None:
        """Answer a request, later. `url` is where the client reached the server."""
        caller = Caller(principal, url, scope, exchange.request.headers.get("x-amzn-trace-id"))
        self._later(self._answer(exchange, caller, fields))

    def handle_link(self, exchange: Exchange, fields: dict[str, str], url: str, *, may_all: bool) -> bool:
        """Answer an unsigned GET of a link that is in notifications. Whether it is one."""
        if exchange.request.path.startswith(_CERTIFICATE_PATH):
            self._later(self._answer_certificate(exchange))
        elif fields.get("Action") in _FOR_STRANGERS:
            self._later(self._answer(exchange, Caller(ANYBODY if may_all else STRANGER, url), fields))
        else:
            return False
        return True

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_certificate(self, exchange: Exchange) -> None:
        """The certificate that signatures are checked with, as `SigningCertURL` names it."""
        exchange.action = "GetCertificate"
        signer = await self.deliveries.signer()
        if signer is None or exchange.request.path != signer.path:
            exchange.outcome = "NotFound"
            exchange.respond(404, PLAIN_TEXT, b"There is no such certificate.\n")
            return
        exchange.outcome = "ok"
        exchange.respond(200, (("content-type", "application/x-pem-file"),), signer.certificate)

    def _about(self, caller: Caller, action: str, fields: dict[str, str]) -> str:
        """The queue of the topic that a request is about, for the logs; what is no ARN, as it is."""
        if action == "CreateTopic":
            return self._prefix(caller) + fields.get("Name", "")
        if "SubscriptionAttributes" in action or action == "Unsubscribe":
            arn, is_topic = fields.get("SubscriptionArn", ""), False
        elif "Resource" in action or "DataProtection" in action:
            arn, is_topic = fields.get("ResourceArn", ""), True
        else:
            arn, is_topic = fields.get("TopicArn") or fields.get("TargetArn", ""), True
        try:
            return self._queue(UNCHECKED, arn if is_topic else arn.rpartition(":")[0])
        except SqsError:
            return arn

    async def _answer(self, exchange: Exchange, caller: Caller, fields: dict[str, str]) -> None:
        action = fields.get("Action", "")
        exchange.principal = caller.principal.name
        try:
            if action not in ACTIONS:
                raise SqsError(UNKNOWN_OPERATION, f"Could not find operation {action} for version 2010-03-31")
            exchange.action = action
            exchange.queue = self._about(caller, action, fields)
            result = await getattr(self, action)(caller, wire.decode(fields))
        except SqsError as error:
            wire.respond_error(exchange, error)
        except PenstockError as error:
            wire.respond_error(exchange, wire.from_core(error))
        except Exception:
            log.exception("%s failed", action)
            reason = "The request failed on the server's side: its log says more."
            wire.respond_error(exchange, SqsError(INTERNAL_FAILURE, reason))
        else:
            wire.respond(exchange, action, result)
