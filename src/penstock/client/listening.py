"""What listeners count, and how they keep the order within a group; for threads and tasks alike."""

from __future__ import annotations

import inspect
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar

from penstock.client.queue_settings import QueueSettings
from penstock.client.times import Seconds, length_ms
from penstock.core.backoff import backoff
from penstock.core.commands import Delivery
from penstock.core.errors import InvalidRequest
from penstock.core.queues.config import Backoff, PolicyName, QueueConfig, dead_letter_name

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper ends of the classes in which handlers' times are counted; one more class holds what took longer."""

_FIRST_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 10.0


class ListenerSettings(TypedDict, total=False):
    """What `listen` and `listener` take besides the queue and the handler."""

    workers: int
    """How many handlers run at once. Default: 8."""
    channel: str
    """The channel to read, created if it does not exist. Default: `main`."""
    policy: PolicyName
    """Given, it is set on the queue, for every reader of it."""
    consume_times: int
    """With policy `consume_times`; set on the queue."""
    backoff: Backoff
    """Given, it is set on the queue, for every reader of it."""
    lease: Seconds
    """How long a lease is before it is extended; as the queue says."""
    prefetch: int
    """How many messages wait here for a worker; what the workers do in half a second."""
    max_in_hand: int
    """How many messages wait for a worker, or are worked on, at most; those being settled do not count."""
    name: str
    """The listener's name in logs and metrics; the handler's."""


def pause_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row: anything up to twice as long each time.

    >>> pause_seconds(1) <= 0.1 and pause_seconds(50) <= 10
    True
    """
    return backoff(failures, _FIRST_PAUSE_SECONDS, _PAUSE_SECONDS_MAX, jitter=random.random())


def next_try(config: QueueConfig, queue: str, sequence: int, attempts: int) -> str:
    """What becomes of a message whose handler raised, for people.

    >>> next_try(QueueConfig(), "orders", 7, 1), next_try(QueueConfig(), "orders", 7, 10)
    ('comes again at once', "goes to 'orders.dead'")
    """
    if config.receives_max and attempts >= config.receives_max:
        return f"goes to {config.dead_letter or dead_letter_name(queue)!r}"
    delay_ms = 0 if attempts == 1 else config.backoff.delay_ms(attempts - 1, sequence)
    return f"comes again in {delay_ms / 1_000:g} s" if delay_ms else "comes again at once"


class PushTarget(Protocol):
    """Who is handed messages that it did not ask for one by one."""

    def take(self, delivery: Delivery) -> bool:
        """Messages came; False if they are not wanted any more. May be called in any thread, and must not wait."""

    def room(self) -> int:
        """How many messages may be on their way: asked where they are handed on, so that none is counted twice."""

    def ask(self) -> None:
        """Look at the stream again: it may need to be topped up, or it is over. May be called in any thread."""


class HandlerTimes:
    """How long handlers took: written by one worker, read by anybody.

    >>> times = HandlerTimes()
    >>> times.add(0.002)
    >>> times.count, times.seconds, times.classes[1]
    (1, 0.002, 1)
    """

    __slots__ = ("classes", "count", "seconds")

    def __init__(self) -> None:
        self.classes = [0] * (len(BUCKETS_SECONDS) + 1)
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """One handler has ended."""
        self.classes[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.count += 1
        self.seconds += seconds


class Counted(Protocol):
    """Who knows how many messages it has in hand."""

    @property
    def in_hand(self) -> int:
        """Messages that are leased here and not settled."""


class ListenerMetrics:
    """What a listener has done. For Prometheus, register it with prometheus_client: `REGISTRY.register(metrics)`."""

    def __init__(self, listener: Counted, queue: str, channel: str, name: str) -> None:
        self._listener = listener
        self._labels = {"queue": queue, "channel": channel, "listener": name}
        self._times: list[HandlerTimes] = []
        self.handled = 0
        """Messages whose handler returned, and whose commit was done."""
        self.failed = 0
        """Messages whose handler raised, or whose commit was refused: they were released with the error."""
        self.lost = 0
        """Messages whose lease was gone before they could be settled: somebody gets, or got, them again."""
        self.receive_errors = 0
        """Receives that failed, and were tried again."""

    @property
    def in_hand(self) -> int:
        """How many messages are leased and not settled: those waiting for a worker, being handled or being settled."""
        return self._listener.in_hand

    @property
    def handler_seconds(self) -> HandlerTimes:
        """How long handlers took, for all workers together."""
        total = HandlerTimes()
        for times in self._times:
            total.count += times.count
            total.seconds += times.seconds
            total.classes = [one + other for one, other in zip(total.classes, times.classes, strict=True)]
        return total

    def worked(self) -> tuple[int, float]:
        """How many handlers have ended, and how long they took together."""
        count, seconds = 0, 0.0
        for times in self._times:
            count += times.count
            seconds += times.seconds
        return count, seconds

    def new_worker(self) -> HandlerTimes:
        """Where one worker writes its times, without a lock."""
        self._times.append(HandlerTimes())
        return self._times[-1]

    def collect(self) -> Iterator[Metric]:
        """The metrics in the form that prometheus_client asks for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        names, values = list(self._labels), list(self._labels.values())
        for counter, help_text in (
            ("handled", "Messages that were handled and committed."),
            ("failed", "Messages that were released with an error."),
            ("lost", "Messages whose lease had ended before they were settled."),
            ("receive_errors", "Receives that failed and were tried again."),
        ):
            family = CounterMetricFamily(f"penstock_listener_{counter}", help_text, labels=names)
            family.add_metric(values, getattr(self, counter))
            yield family
        gauge = GaugeMetricFamily(
            "penstock_listener_in_hand", "Messages that are leased and not yet settled.", labels=names
        )
        gauge.add_metric(values, self.in_hand)
        yield gauge
        times = self.handler_seconds
        histogram = HistogramMetricFamily("penstock_listener_handler_seconds", "How long handlers took.", labels=names)
        histogram.add_metric(values, list(_cumulative(times)), times.seconds)
        yield histogram

    def describe(self) -> list[Metric]:
        """Nothing is known before it is collected: several listeners can be registered side by side."""
        return []

    def __repr__(self) -> str:
        return f"<ListenerMetrics: {self.handled} handled, {self.failed} failed, {self.in_hand} in hand>"


def _cumulative(times: HandlerTimes) -> Iterator[tuple[str, float]]:
    total = 0
    for end, count in zip((*BUCKETS_SECONDS, "+Inf"), times.classes, strict=True):
        total += count
        yield str(end), total


class Grouped(Protocol):
    """Something that may belong to a group."""

    @property
    def group(self) -> str | None:
        """Its group."""


M = TypeVar("M", bound=Grouped)


class GroupOrder(Generic[M]):
    """One message of a group at a time: a FIFO queue hands out several at once, and workers run side by side.

    >>> class Item:
    ...     def __init__(self, group, number): self.group, self.number = group, number
    ...     def __repr__(self): return f"{self.group}{self.number}"
    >>> order, items = GroupOrder(), [Item("a", 1), Item("a", 2), Item("b", 1), Item("a", 3)]
    >>> order.admit(items)
    [a1, b1]
    >>> order.done(items[0]), order.failed(items[1])
    ([a2], [a3])
    """

    def __init__(self) -> None:
        self._behind: dict[Any, deque[M]] = {}
        """Group that is in work -> what waits behind it."""

    def admit(self, messages: list[M]) -> list[M]:
        """Which of these may be worked on now; the others wait for their turn."""
        free: list[M] = []
        for message in messages:
            behind = self._behind.get(message.group)
            if behind is None:
                self._behind[message.group] = deque()
                free.append(message)
            else:
                behind.append(message)
        return free

    def done(self, message: M) -> list[M]:
        """A message is settled: the next of its group may be worked on."""
        behind = self._behind.get(message.group)
        if behind:
            return [behind.popleft()]
        self._behind.pop(message.group, None)
        return []

    def failed(self, message: M) -> list[M]:
        """A message goes back: those behind it have to go back too, or they would overtake it."""
        return list(self._behind.pop(message.group, ()))

    def drain(self) -> list[M]:
        """Take back all that waits."""
        waiting = [message for behind in self._behind.values() for message in behind]
        for behind in self._behind.values():
            behind.clear()
        return waiting


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


_GENERATOR = "the handler {name!r} is a generator, which would never run: use return instead of yield"


def check_callable(handler: Callable[..., Any]) -> None:
    """`InvalidRequest` for what cannot be called, and for what does nothing when it is.

    >>> check_callable(print)
    """
    name = getattr(handler, "__name__", handler)
    if not callable(handler):
        raise InvalidRequest(f"the handler is {handler!r}: give a function that takes a message")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidRequest(_GENERATOR.format(name=name))


def check_result(handler: Callable[..., Any], result: Any) -> None:
    """`InvalidRequest` if a handler has only begun: it turned out to be a generator, and its work is not done."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise InvalidRequest(_GENERATOR.format(name=getattr(handler, "__name__", handler)))


def wants_unit_of_work(handler: Callable[..., Any]) -> bool:
    """Whether a handler is called with `(message, tx)` and not with `(message)` alone.

    It is when it needs two arguments: a second one with a default is the handler's own.

    >>> def store(message, tx): ...
    >>> def show(message, width=80): ...
    >>> wants_unit_of_work(store), wants_unit_of_work(show), wants_unit_of_work([].append)
    (True, False, False)
    """
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # something built in, which does not say
        return False
    needed = [each for each in parameters if each.default is each.empty and each.kind in _POSITIONAL]
    keywords = [each.name for each in parameters if each.default is each.empty and each.kind is each.KEYWORD_ONLY]
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    takes_one = bool([each for each in parameters if each.kind in _POSITIONAL]) or takes_any
    if keywords or len(needed) > 2 or not takes_one:
        raise InvalidRequest(
            f"the handler {getattr(handler, '__name__', handler)!r} cannot be called with (message) or (message, tx): "
            "let it take one or two arguments"
        )
    return len(needed) == 2


def seconds_of(timeout: Seconds | None) -> float | None:
    ms = length_ms(timeout, "timeout")
    return None if ms is None else ms / 1_000


def check_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and (not isinstance(value, int) or not low <= value <= high):
        raise InvalidRequest(f"{name} is {value!r}: it must be from {low} to {high}")


def settings_of(policy: PolicyName | None, consume_times: int | None, backoff: Backoff | None) -> QueueSettings:
    """What the listener was told about its queue."""
    settings: QueueSettings = {}
    if policy is not None:
        settings["policy"] = policy
    if consume_times is not None:
        settings["consume_times"] = consume_times
    if backoff is not None:
        settings["backoff"] = backoff
    return settings
