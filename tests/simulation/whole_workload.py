"""Clients that do all that there is, beside what those of `workload` do.

Pauses of queues, acks that wait for no commit, marked work, channels that are moved on by offset, deliveries that are
given back, backlogs that are purged, rates, limits by size, in the queue and in what is pushed, and changes of settings
under messages.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from penstock.core import commands as c
from penstock.core.errors import PenstockError
from tests.simulation.workload import DAY_MS, MINUTE_MS, Held, Maker, Plan, Workload

STREAMS = ("one", "two")
"""Names of marked work."""


class WholeWorkload(Workload):
    """Commands for a step at a time, of every kind."""

    def __init__(self, *arguments: Any, operates: bool = False, **options: Any) -> None:
        """With `operates`, operators do more of what the console offers."""
        self.operates = operates
        self.tasks: list[int] = []
        """Redrives that were started."""
        self.ends: dict[str, int] = {}
        """Queue -> the offset after the last message that was sent, as far as clients know."""
        self.marks: dict[str, int] = {}
        """The last number of marked work, as far as its owner knows."""
        super().__init__(*arguments, **options)

    def _plan(self, index: int) -> Plan:
        plan = super()._plan(index)
        if plan.config.policy == "at_least_once" and self.rng.random() < 0.15:
            limit = self.rng.choice([100, 1_000, 20_000])
            plan.config = msgspec.structs.replace(
                plan.config, retention_bytes=limit, retention_ms=None, max_receives=0, dead_letter=None
            )  # no dead letters, which would be dropped before anybody could see where they went
        if plan.config.is_fifo and self.rng.random() < 0.4:
            scope = self.rng.choice(["queue", plan.config.dedup_scope])
            rate = self.rng.choice([2, 20, 1_000])
            plan.config = msgspec.structs.replace(plan.config, throughput_scope=scope, throughput_per_second=rate)
        return plan

    def _weights(self) -> dict[Maker, float]:
        operating: dict[Maker, float] = {}
        if self.operates:
            operating = {self._redrive: 8, self._cancel_redrive: 2, self._list_sessions: 4, self._end_session: 2}
        return (
            super()._weights()
            | operating
            | {
                self._ack_lazily: 8,
                self._give_back: 4,
                self._marked_work: 4,
                self._last_mark: 1,
                self._ack_up_to: 1.5,
                self._pause_queue: 2.5,
                self._purge_backlog: 0.5,
                self._look_up: 1,
                self._delete_messages: 1.5,
                self._reschedule: 3,
            }
        )

    def observe(self, command: c.Command, outcome: Any) -> None:
        """A reply was released."""
        super().observe(command, outcome)
        if isinstance(outcome, PenstockError):
            return
        if isinstance(command, c.StartRedrive) and outcome.task:
            self.tasks.append(outcome.task)
        if isinstance(command, c.Send):
            self._sent(command, outcome)
        elif isinstance(command, c.CommitWork) and not command.check_only:
            if isinstance(outcome, c.AlreadyDone):
                self.marks[outcome.name] = outcome.number
            elif command.mark is not None:
                self.marks[command.mark[0]] = command.mark[1]

    def _sent(self, command: c.Send, sent: c.Sent) -> None:
        last = max(sent.sequence(index) for index in range(sent.count))
        self.ends[command.queue] = max(last + 1, self.ends.get(command.queue, 0))

    # -- settling ------------------------------------------------------------------------------------------------------

    def _sequences(self, held: Held) -> Any:
        sequences = [s for span in held.spans for s in range(span.first, span.last + 1)]
        self.rng.shuffle(sequences)
        return np.array(sequences, dtype=np.int64)

    def _ack_lazily(self, now_ms: int) -> c.Command | None:
        held = self._take_held()
        if held is None:
            return None
        return c.AckSequences(
            queue=held.queue,
            channel=held.channel,
            sequences=self._sequences(held),
            session=held.session,
            durable=False,
        )

    def _give_back(self, now_ms: int) -> c.Command | None:
        held = self._take_held()
        return c.GiveBack(queue=held.queue, channel=held.channel, spans=held.spans) if held else None

    def _marked_work(self, now_ms: int) -> c.Command | None:
        """The next work of a stream; now and then that of before once more, as after a crash."""
        work = self._work(now_ms)
        assert isinstance(work, c.CommitWork)
        name = self.rng.choice(STREAMS)
        last = self.marks.get(name, -1)
        work.mark = (name, last + self.rng.choice([-1, 0, 1, 1, 1, 3]))
        if self.rng.random() < 0.3:
            work.mark_after = self.rng.choice([last, last, last - 1])
        work.check_only = self.rng.random() < 0.1
        return work

    def _last_mark(self, now_ms: int) -> c.Command | None:
        name = self.rng.choice(STREAMS)
        number = max(0, self.marks.get(name, -1) + self.rng.choice([-1, 0, 1]))
        return self.rng.choice([c.LastMark(name=name), c.RecallWork(mark=(name, number))])

    # -- what an operator does to messages that he names ---------------------------------------------------------------

    def _named(self) -> tuple[str, str, list[int]]:
        """A queue, one of its channels, and numbers of messages: some of them are there."""
        plan = self.rng.choice(self.plans)
        end = self.ends.get(plan.name, 0)
        sequences = [self.rng.randint(max(0, end - 30), end + 1) for _ in range(self.rng.choice([1, 1, 3, 12]))]
        return plan.name, self.rng.choice([*plan.channels, c.MAIN]), sequences

    def _look_up(self, now_ms: int) -> c.Command | None:
        queue, _, sequences = self._named()
        return c.LookUp(queue=queue, sequences=sequences)

    def _delete_messages(self, now_ms: int) -> c.Command | None:
        queue, channel, sequences = self._named()
        return c.DeleteMessages(queue=queue, sequences=sequences, channel=self.rng.choice([None, channel]))

    def _reschedule(self, now_ms: int) -> c.Command | None:
        queue, channel, sequences = self._named()
        found = c.RescheduleMessages(queue=queue, sequences=sequences, channel=channel)
        if self.rng.random() < 0.5:
            # what is put off further than retention reaches is kept until then, as after a release: not modelled
            longest = [DAY_MS] if all(plan.config.retention_ms is None for plan in self.plans) else []
            found.delay_ms = self.rng.choice([0, 1, 1_000, MINUTE_MS, *longest])
        elif self.rng.random() < 0.5:
            found.due_ms = now_ms + self.rng.choice([-1_000, 1, 1_000, MINUTE_MS])
        return found

    def _redrive(self, now_ms: int) -> c.Command | None:
        redrive = super()._redrive(now_ms)
        if not self.operates or not isinstance(redrive, c.StartRedrive):
            return redrive
        if self.rng.random() < 0.3:
            redrive.queue = self.rng.choice([plan.name for plan in self.plans])
        redrive.discard = self.rng.random() < 0.4
        if self.rng.random() < (0.05 if redrive.discard else 0.4):
            redrive.target = self.rng.choice([*(plan.name for plan in self.plans), "elsewhere", "elsewhere.fifo"])
        return redrive

    def _cancel_redrive(self, now_ms: int) -> c.Command | None:
        return c.CancelRedrive(task=self.rng.choice([*self.tasks[-3:], 99_999]))

    def _list_sessions(self, now_ms: int) -> c.Command | None:
        queue = self.rng.choice([None, self._place()[0]])
        return c.ListSessions(queue=queue, after=self.rng.choice([-1, -1, 0, 3]))

    def _end_session(self, now_ms: int) -> c.Command | None:
        end = super()._end_session(now_ms)
        if self.operates and isinstance(end, c.EndSession):
            end.shard = self.rng.choice([None, 0, 0, 1])
            end.error = self.rng.choice([end.error, "ended by ann"])
        return end

    # -- queues and channels -------------------------------------------------------------------------------------------

    def _offset(self, queue: str) -> int:
        end = self.ends.get(queue, 0)
        return self.rng.choice([0, end, end + 1, self.rng.randint(0, end), self.rng.randint(0, end)])

    def _ack_up_to(self, now_ms: int) -> c.Command | None:
        queue, channel = self._place()
        if self.rng.random() < 0.2:
            channel = "extra"
        return c.AckUpTo(queue=queue, channel=channel, offset=self._offset(queue))

    def _create_channel(self, now_ms: int) -> c.Command | None:
        create = super()._create_channel(now_ms)
        assert isinstance(create, c.CreateChannel)
        if self.rng.random() < 0.4:
            create.offset = self._offset(create.queue)
        elif self.rng.random() < 0.3:
            create.start = "first"
        elif not self.times_rise and isinstance(create.start, int):
            create.start = "tail"  # which message is the first one since a time is not clear
        return create

    def _delete_channel(self, now_ms: int) -> c.Command | None:
        delete = super()._delete_channel(now_ms)
        assert isinstance(delete, c.DeleteChannel)
        delete.purge_last = self.rng.random() < 0.4
        delete.unless_subscribed = self.rng.random() < 0.4
        return delete

    def _delete(self, now_ms: int) -> c.Command | None:
        return c.DeleteQueue(name=self._place()[0], unless_channels=self.rng.random() < 0.4)

    def _with_room(self, subscribe: c.Command | None) -> c.Command | None:
        if isinstance(subscribe, c.Subscribe) and self.rng.random() < 0.4:
            subscribe.room_bytes = self.rng.choice([0, 1, 100, 2_000])
        return subscribe

    def _subscribe(self, now_ms: int) -> c.Command | None:
        return self._with_room(super()._subscribe(now_ms))

    def _subscribe_in_flight(self, now_ms: int) -> c.Command | None:
        return self._with_room(super()._subscribe_in_flight(now_ms))

    def _credit(self, now_ms: int) -> c.Command | None:
        command = super()._credit(now_ms)
        if isinstance(command, c.SetCredit) and self.rng.random() < 0.6:
            command.room_bytes = self.rng.choice([0, 50, 1_000])
            command.credit = self.rng.choice([None, command.credit])
        return command

    def _pause_queue(self, now_ms: int) -> c.Command | None:
        return c.PauseQueue(queue=self._place()[0], paused=self.rng.random() < 0.45)

    def _purge_backlog(self, now_ms: int) -> c.Command | None:
        return c.PurgeBacklog(queue=self._place()[0])

    def _change(self, now_ms: int) -> c.Command | None:
        plan = self.rng.choice(self.plans)
        if plan.config.retention_bytes is not None:
            changes = {"retention_bytes": self.rng.choice([100, 2_000, 50_000]), "max_receives": 0}
            return c.ChangeQueue(name=plan.name, changes=changes)
        if self.rng.random() < 0.5:
            return self._change_plainly(plan)
        choices: list[dict[str, Any]] = [
            {"message_bytes_max": self.rng.choice([100, 1_000_000])},
            {"receive_wait_ms": self.rng.choice([0, 1_000])},
            {"partitions": 2},
        ]
        if plan.config.is_fifo:
            choices += [
                {"content_dedup": self.rng.random() < 0.5},
                {"throughput_per_second": self.rng.choice([None, 2, 50])},
            ]
        else:
            choices += [{"retention_ms": self.rng.choice([None, 2 * MINUTE_MS, DAY_MS])}]
        return c.ChangeQueue(name=plan.name, changes=self.rng.choice(choices))
