"""Queues: made, changed, emptied, deleted, described."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.queues.config import QueueConfig
from tests.simulation.model.ground import Ground
from tests.simulation.model.verdict import Outcome, demand


class Queues(Ground):
    """Rules of queues as such."""

    def _accept_CreateQueue(self, command: c.CreateQueue, outcome: Outcome) -> None:
        known = self.queues.get(command.name)
        if self._refused(outcome, [e.QueueExists] if known and known.config != command.config else []):
            return
        if known is None:
            self._new_queue(command.name, command.config, command.channels)

    def _accept_ChangeQueue(self, command: c.ChangeQueue, outcome: Outcome) -> None:
        must = self._missing(command.name)
        config = None
        if not must:
            try:
                config = self.queues[command.name].config.changed(command.changes)
            except e.InvalidConfig:
                must.append(e.InvalidConfig)
            if config is not None and self._is_unchangeable(self.queues[command.name].config, config):
                must.append(e.InvalidConfig)
        if not self._refused(outcome, must):
            assert config is not None
            self.queues[command.name].config = config
            demand(outcome.config == config, f"changed to {outcome.config}, not {config}")

    def _is_unchangeable(self, before: QueueConfig, after: QueueConfig) -> bool:
        return (before.kind, before.partitions) != (after.kind, after.partitions)

    def _accept_DeleteQueue(self, command: c.DeleteQueue, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.name)):
            return
        if command.unless_channels and self.queues[command.name].channels:
            return
        del self.queues[command.name]
        self._end_waiters(command.name, None, e.QueueNotFound)
        for redrive in self.redrives.values():
            redrive.due = {s for s in redrive.due if redrive.queue != command.name}
            redrive.allowed = redrive.allowed if redrive.queue != command.name else set()

    def _accept_PurgeQueue(self, command: c.PurgeQueue, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.name)):
            return
        self._purge(self.queues[command.name], outcome)

    def _accept_DescribeQueue(self, command: c.DescribeQueue, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.name)):
            return
        queue = self.queues[command.name]
        demand(outcome.config == queue.config, f"{command.name} has {outcome.config}, not {queue.config}")
        demand(set(outcome.channels) == set(queue.channels), f"channels {outcome.channels}, not {set(queue.channels)}")
        demand(queue.queue_id in (None, outcome.queue_id), "the queue's id changed")
        queue.queue_id = outcome.queue_id

    def _accept_ListQueues(self, command: c.ListQueues, outcome: Outcome) -> None:
        names = [n for n in sorted(self.queues) if n.startswith(command.prefix) and n > command.after]
        demand(outcome == names[: command.limit], f"queues are {outcome}, not {names}")
