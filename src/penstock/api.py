"""Everything that `import penstock` offers, by name. A name added here is there as `penstock.<name>`."""

from penstock.client.aio.batch import AsyncBatch
from penstock.client.aio.listener import AsyncListener
from penstock.client.aio.message import AsyncMessage
from penstock.client.aio.penstock import AsyncPenstock, AsyncRedrive, AsyncSession
from penstock.client.aio.queue import AsyncChannel, AsyncConsumer, AsyncQueue
from penstock.client.aio.unit_of_work import AsyncUnitOfWork
from penstock.client.connecting import connect, connect_async
from penstock.client.content import (
    FailedAttempt,
    PeekedMessage,
    Record,
    RecordList,
    RunView,
    SentMessage,
    SentMessages,
)
from penstock.client.life import MessageLife
from penstock.client.listening import ListenerMetrics
from penstock.client.opening import open, open_async
from penstock.client.queue_settings import QueueSettings
from penstock.client.sync.batch import Batch
from penstock.client.sync.listener import Listener
from penstock.client.sync.message import Message
from penstock.client.sync.penstock import Penstock, Redrive, Session
from penstock.client.sync.queue import Channel, Consumer, Queue
from penstock.client.sync.unit_of_work import UnitOfWork
from penstock.core.commands import ChannelStats, Damage, QueueInfo, RedriveTask, Stats
from penstock.core.delivery.states import State
from penstock.core.errors import (
    AccessDenied,
    BatchTooLarge,
    ChannelNotFound,
    ChunkDamaged,
    ConnectionLost,
    ConsumerNotFound,
    ForeignReceipt,
    ForgedReceipt,
    InvalidConfig,
    InvalidName,
    InvalidRequest,
    LeaseTooLong,
    MessageNotFound,
    MessageTooLarge,
    NoCommonVersion,
    NotFound,
    NotSent,
    OutcomeUnknown,
    OverLimit,
    PenstockError,
    QueueChanged,
    QueueDamaged,
    QueueExists,
    QueueNotFound,
    QueueReplaced,
    RateLimited,
    ReceiptRefused,
    RewindRefused,
    SessionNotFound,
    StaleReceipt,
    StoreError,
    TaskNotFound,
    Throttled,
    WorkRefused,
)
from penstock.core.queues.config import Backoff, QueueConfig
from penstock.server.shard import ShardClosed
from penstock.store.errors import (
    CommitFailed,
    DiskFailed,
    DiskFull,
    StoreDamaged,
    StoreLocked,
    StoreReadOnly,
    StoreVersion,
)

__all__ = [
    "AccessDenied",
    "AsyncBatch",
    "AsyncChannel",
    "AsyncConsumer",
    "AsyncListener",
    "AsyncMessage",
    "AsyncPenstock",
    "AsyncQueue",
    "AsyncRedrive",
    "AsyncSession",
    "AsyncUnitOfWork",
    "Backoff",
    "Batch",
    "BatchTooLarge",
    "Channel",
    "ChannelNotFound",
    "ChannelStats",
    "ChunkDamaged",
    "CommitFailed",
    "ConnectionLost",
    "Consumer",
    "ConsumerNotFound",
    "Damage",
    "DiskFailed",
    "DiskFull",
    "FailedAttempt",
    "ForeignReceipt",
    "ForgedReceipt",
    "InvalidConfig",
    "InvalidName",
    "InvalidRequest",
    "LeaseTooLong",
    "Listener",
    "ListenerMetrics",
    "Message",
    "MessageLife",
    "MessageNotFound",
    "MessageTooLarge",
    "NoCommonVersion",
    "NotFound",
    "NotSent",
    "OutcomeUnknown",
    "OverLimit",
    "PeekedMessage",
    "Penstock",
    "PenstockError",
    "Queue",
    "QueueChanged",
    "QueueConfig",
    "QueueDamaged",
    "QueueExists",
    "QueueInfo",
    "QueueNotFound",
    "QueueReplaced",
    "QueueSettings",
    "RateLimited",
    "ReceiptRefused",
    "Record",
    "RecordList",
    "Redrive",
    "RedriveTask",
    "RewindRefused",
    "RunView",
    "SentMessage",
    "SentMessages",
    "Session",
    "SessionNotFound",
    "ShardClosed",
    "StaleReceipt",
    "State",
    "Stats",
    "StoreDamaged",
    "StoreError",
    "StoreLocked",
    "StoreReadOnly",
    "StoreVersion",
    "TaskNotFound",
    "Throttled",
    "UnitOfWork",
    "WorkRefused",
    "connect",
    "connect_async",
    "open",
    "open_async",
]
