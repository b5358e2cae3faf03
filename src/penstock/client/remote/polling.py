"""The transports without a websocket: every frame is a POST, and its response is the answer.

By *long poll* a receive that waits has a request for itself, which the server answers when there is something, or the
wait is over. By *plain poll* no request waits: the receive is asked again and again, with growing pauses. A long poll
that is cut on the way (a proxy with little patience) twice in a row makes the link go on by plain poll.

Every frame is for itself: what a `Route` says holds for the rest of its frame. So a route that the caller gives is told
anew in each frame, before the requests that it is about.

The server keeps a session for the link, and ends it when nothing is heard for some time; a link that has nothing to say
sends a heartbeat. Waits are measured by the server's clock, which comes with every answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from penstock.client.remote.address import PORT, Address, Options, TransportName
from penstock.client.remote.http import BrokenConnection, HttpConnection, Response
from penstock.client.remote.request import Listener
from penstock.client.remote.websocket import tls_of
from penstock.core.backoff import backoff
from penstock.core.commands import Command, DescribeQueue, EndSession, Heartbeat, QueueInfo, Receive
from penstock.core.errors import (
    AccessDenied,
    BatchTooLarge,
    ConnectionLost,
    InvalidRequest,
    NotSent,
    OutcomeUnknown,
    PenstockError,
)
from penstock.wire.answers import (
    Answer,
    KeyedDelivery,
    Kind,
    Welcome,
    decode_answers,
    unpack_failure,
    unpack_reply,
)
from penstock.wire.requests import (
    COMMANDS_PATH,
    MEDIA_TYPE,
    RECEIVED_HEADER,
    SESSION_HEADER,
    VERSIONS,
    Cancel,
    Hello,
    Request,
    Route,
    encode_requests,
)

Directed = tuple[Request | None, Request]
"""A request, and the `Route` that holds for it, if there is one."""

_WAITS_MAX = 100
"""Requests that wait at a time, each with a connection of its own; more receives wait for their turn."""
_EXCHANGES_MAX = 4
"""Other requests at a time. While they are on their way, the next ones gather into fuller frames."""
_CUTS_MAX = 2
_GRACE_S = 30.0
_FIRST_PAUSE_S = 0.01
_PAUSE_S_MAX = 1.0
_CUT_STATUSES = (408, 502, 503, 504)
_NOTHING = msgspec.Raw(msgspec.msgpack.encode(None))


async def connect_long_poll(address: Address, options: Options, listener: Listener) -> PollLink:
    return await _connect("long_poll", address, options, listener)


async def connect_poll(address: Address, options: Options, listener: Listener) -> PollLink:
    return await _connect("poll", address, options, listener)


async def _connect(transport: TransportName, address: Address, options: Options, listener: Listener) -> PollLink:
    link = PollLink(transport, address, options, listener)
    try:
        await link.open()
    except BaseException:
        link.abort()
        raise
    return link


class PollLink:
    """A conversation of many HTTP requests."""

    def __init__(self, transport: TransportName, address: Address, options: Options, listener: Listener) -> None:
        self.transport: TransportName = transport
        self.welcome: Welcome
        self._address = address
        self._options = options
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._tls = tls_of(address, options)
        self._idle: list[HttpConnection] = []
        self._room = asyncio.Semaphore(_WAITS_MAX)
        self._exchanges = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: dict[int, asyncio.Task[None]] = {}
        """Receives that wait: the tasks that ask for them."""
        self._asking: set[int] = set()
        """Those of them that the server is asked for now."""
        self._called_off: set[int] = set()
        """Those of them that need not wait any longer."""
        self._cuts = 0
        self._is_open = False
        self._controls = 0
        self._received: list[int] = []
        """Requests whose answers have come, which the server has not been told."""
        self._said_s = 0.0
        self._heard_s = 0.0
        self._beat: asyncio.TimerHandle | None = None
        self._life: asyncio.TimerHandle | None = None

    @property
    def is_writable(self) -> bool:
        """Whether another frame may leave now."""
        return self._exchanges < _EXCHANGES_MAX

    async def open(self) -> None:
        """Say hello."""
        oldest, newest = VERSIONS
        hello = Hello(version=oldest, newest=newest, name=self._options.name, session=self._listener.old_session)
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                _, answers = await self._post(encode_requests([(0, hello)]))
        except TimeoutError:
            raise NotSent(f"{self._address} does not answer within {self._options.connect_timeout:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise AccessDenied(f"{self._address} is not trusted: {error.verify_message}") from None
        except OSError as error:
            if isinstance(error, PenstockError):
                raise
            raise NotSent(f"{self._address} cannot be reached: {error}") from None
        self.welcome = unpack_reply(Hello, answers[0][2])
        self._is_open = True
        self._beat_later()
        self._life = self._loop.call_later(self._options.heartbeat, self._check_life)

    # -- what the caller does --

    def send(self, requests: Sequence[Request]) -> None:
        """Send requests: those that are answered at once together, each that waits for itself."""
        at_once: list[Directed] = []
        waiting: list[Directed] = []
        route: Request | None = None
        for request in requests:
            if isinstance(request[1], Route):
                route = request
            else:
                (waiting if _waits(request[1]) else at_once).append((route, request))
        if at_once:
            self._send_at_once(at_once)
        for directed in waiting:
            self._wait_for(directed)

    def _send_at_once(self, requests: Sequence[Directed]) -> None:
        frame = self._encoded(requests)
        if isinstance(frame, bytes):
            self._start(self._exchange(frame, {number for _, (number, _) in requests}))
        elif len(requests) > 1:
            middle = len(requests) // 2
            self._send_at_once(requests[:middle])
            self._send_at_once(requests[middle:])
        else:
            self._refuse(requests[0], frame)

    def _encoded(self, requests: Sequence[Directed]) -> bytes | InvalidRequest:
        """The frame; or why there is none. One request that cannot be sent must not keep the others from it."""
        try:
            frame = _frame_of(requests)
        except InvalidRequest as error:
            return error
        limit = self.welcome.limits.frame_bytes_max
        if len(frame) <= limit:
            return frame
        return BatchTooLarge(f"{len(frame)} bytes are too many for one call: {self._address} takes {limit}")

    def _refuse(self, directed: Directed, error: InvalidRequest) -> None:
        self._loop.call_soon(self._listener.refused, directed[1][0], error)

    def cancel(self, request: int) -> None:
        waiting = self._waits.get(request)
        if waiting is not None and request not in self._asking:
            waiting.cancel()
            self._listener.answered(0, [(request, Kind.REPLY, _NOTHING)])
            return
        if waiting is not None:  # its answer may bring messages, which have to go back
            self._called_off.add(request)
        self._control(Cancel(request=request))

    async def close(self) -> None:
        """End the session, so that what it holds is released now."""
        if self._is_open:
            self._is_open = False
            frame = encode_requests([(-1, EndSession(session=self.welcome.session, error="the client said goodbye"))])
            try:
                async with asyncio.timeout(1.0):
                    await self._post(frame)
            except (OSError, PenstockError):
                pass
        self.abort()

    def abort(self) -> None:
        self._is_open = False
        for timer in (self._beat, self._life):
            if timer is not None:
                timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    # -- exchanges --

    def _start(self, coroutine: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(coroutine)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _control(self, command: Command) -> None:
        self._controls -= 1
        self._start(self._exchange(encode_requests([(self._controls, command)]), {self._controls}))

    async def _exchange(self, frame: bytes, numbers: set[int]) -> None:
        """Send a frame, hand its answers on."""
        self._exchanges += 1
        try:
            async with asyncio.timeout(self._options.timeout):
                now_ms, answers = await self._post(frame)
        except (OSError, TimeoutError, PenstockError) as error:
            self._lose(error)
            return
        finally:
            self._exchanges -= 1
        self._hand_on(now_ms, answers)
        if not numbers <= {number for number, _, _ in answers}:
            self._lose(ConnectionLost(f"{self._address} stops"))
        elif self._is_open:
            self._listener.writable()

    def _hand_on(self, now_ms: int, answers: list[Answer]) -> None:
        if self._is_open:
            self._received += [number for number, _, _ in answers if number > 0]
            self._listener.answered(now_ms, answers)

    def _lose(self, error: Exception) -> None:
        if self._is_open:
            self.abort()
            self._listener.lost(self, error if isinstance(error, PenstockError) else ConnectionLost(str(error)))

    # -- receives that wait --

    def _wait_for(self, directed: Directed) -> None:
        frame = self._encoded([directed])
        if not isinstance(frame, bytes):
            self._refuse(directed, frame)
            return
        number = directed[1][0]
        waiting = self._start(self._receive(directed))
        self._waits[number] = waiting
        waiting.add_done_callback(lambda _: self._forget_wait(number))

    def _forget_wait(self, number: int) -> None:
        self._waits.pop(number, None)
        self._called_off.discard(number)

    async def _receive(self, directed: Directed) -> None:
        began_s = self._loop.time()
        try:
            async with self._room:
                if self.transport == "long_poll" and await self._long_poll(directed, began_s):
                    return
                await self._poll(directed, began_s)
        except (OSError, TimeoutError, PenstockError) as error:
            self._lose(error)

    async def _long_poll(self, directed: Directed, began_s: float) -> bool:
        """Whether the server had the time to answer; False when long polls are cut on the way."""
        route, (number, command) = directed
        assert isinstance(command, Receive)
        wait_s = self._options.timeout if command.wait_ms is None else command.wait_ms / 1_000

        def frame() -> bytes:
            wait_ms = None if command.wait_ms is None else self._left_ms(number, command.wait_ms, began_s)
            return _frame_of([(route, (number, msgspec.structs.replace(command, wait_ms=wait_ms)))])

        while True:
            try:
                async with asyncio.timeout(wait_s + _GRACE_S):
                    now_ms, answers = await self._ask(number, frame)
            except (TimeoutError, BrokenConnection):
                self._cuts += 1
                if self._cuts < _CUTS_MAX:
                    continue
                self.transport = "poll"
                return False
            self._cuts = 0
            self._hand_on(now_ms, answers)
            if not answers:
                self._lose(ConnectionLost(f"{self._address} stops"))
            return True

    async def _poll(self, directed: Directed, began_s: float) -> None:
        """Ask again and again, until there is something or the wait is over by the server's clock."""
        route, (number, command) = directed
        assert isinstance(command, Receive)
        wait_ms = command.wait_ms
        if wait_ms is None:
            wait_ms = await self._configured_wait_ms(command.queue)
        wait_ms = self._left_ms(number, wait_ms, began_s)
        frame = partial(_frame_of, [(route, (number, msgspec.structs.replace(command, wait_ms=0)))])
        until_ms: int | None = None
        looks = 0
        while True:
            now_ms, answers = await self._ask(number, frame)
            until_ms = now_ms + wait_ms if until_ms is None else until_ms
            if not answers:
                self._lose(ConnectionLost(f"{self._address} stops"))
                return
            if answers[0][1] == Kind.MOVED:  # another node is asked with what is left of the wait
                command.wait_ms = max(0, until_ms - now_ms)
            if now_ms >= until_ms or number in self._called_off or not _is_empty(answers[0]):
                self._hand_on(now_ms, answers)
                return
            looks += 1
            pause_s = backoff(looks, _FIRST_PAUSE_S, _PAUSE_S_MAX, factor=1.5)
            await asyncio.sleep(min(pause_s, max(0.001, (until_ms - now_ms) / 1_000)))

    def _left_ms(self, number: int, wait_ms: int, began_s: float) -> int:
        """What is left of a wait that began then: it may have waited for its turn, or have been cut on the way."""
        passed_ms = round((self._loop.time() - began_s) * 1_000)
        return 0 if number in self._called_off else max(0, wait_ms - passed_ms)

    async def _ask(self, number: int, frame: Callable[[], bytes]) -> tuple[int, list[Answer]]:
        """Ask for one thing. No answer: the server stops."""
        self._asking.add(number)
        try:
            now_ms, answers = await self._post(frame)
        finally:
            self._asking.discard(number)
        return now_ms, [answer for answer in answers if answer[0] == number]

    async def _configured_wait_ms(self, queue: str) -> int:
        _, answers = await self._post(encode_requests([(1, DescribeQueue(name=queue))]))
        if not answers or answers[0][1] != Kind.REPLY:
            return 0
        info: QueueInfo = unpack_reply(DescribeQueue, answers[0][2])
        return info.config.receive_wait_ms

    # -- HTTP --

    async def _post(self, frame: bytes | Callable[[], bytes]) -> tuple[int, list[Answer]]:
        """One request. One that meets a connection which the server had just closed is sent again over another."""
        headers = {"Content-Type": MEDIA_TYPE}
        if self._options.token is not None:
            headers["Authorization"] = f"Bearer {self._options.token}"
        if self._is_open or hasattr(self, "welcome"):
            headers[SESSION_HEADER] = str(self.welcome.session)
        self._said_s = self._loop.time()
        confirmed, self._received = self._received, []
        if confirmed:
            headers[RECEIVED_HEADER] = ",".join(map(str, confirmed))
        while True:
            connection, is_new = await self._connection()
            try:
                body = frame if isinstance(frame, bytes) else frame()
                response = await connection.post(COMMANDS_PATH, headers, body)
            except BrokenConnection as error:
                if is_new or not error.was_silent:
                    raise
                continue
            self._heard_s = self._loop.time()
            if connection.is_usable:
                self._idle.append(connection)
            return self._taken(response)

    async def _connection(self) -> tuple[HttpConnection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection, False
        return await HttpConnection.open(self._address, self._tls), True

    def _taken(self, response: Response) -> tuple[int, list[Answer]]:
        if not response.content_type.startswith(MEDIA_TYPE):
            if response.status in _CUT_STATUSES:
                raise BrokenConnection(f"{self._address} answers {response.status}", was_silent=False)
            raise NotSent(
                f"{self._address.authority} answered HTTP {response.status}: it does not look like a Penstock server. "
                f"Its HTTP port is {PORT} by default."
            )
        try:
            now_ms, answers = decode_answers(response.body)
        except msgspec.MsgspecError as error:
            raise ConnectionLost(f"{self._address} sent an answer that cannot be read: {error}") from None
        if response.status != 200:
            raise unpack_failure(answers[0][2])
        return now_ms, answers

    # -- life --

    def _beat_later(self) -> None:
        self._beat = self._loop.call_later(self.welcome.session_ttl_ms / 3_000, self._keep_alive)

    def _check_life(self) -> None:
        """A server that owes answers for a while is asked for one that waits for nothing."""
        if self._tasks and self._loop.time() - self._heard_s >= self._options.heartbeat:
            self._start(self._ask_for_life())
        self._life = self._loop.call_later(self._options.heartbeat, self._check_life)

    async def _ask_for_life(self) -> None:
        heartbeat_s = self._options.heartbeat
        try:
            async with asyncio.timeout(heartbeat_s):
                connection = await HttpConnection.open(self._address, self._tls)
                try:
                    await connection.post("/livez", {}, b"")  # whatever it answers
                finally:
                    connection.close()
        except (OSError, TimeoutError):
            if self._loop.time() - self._heard_s >= heartbeat_s:
                self._lose(OutcomeUnknown(f"{self._address} has been silent for {2 * heartbeat_s:g} s"))
        else:
            self._heard_s = self._loop.time()

    def _keep_alive(self) -> None:
        if self._loop.time() - self._said_s >= self.welcome.session_ttl_ms / 4_000:
            self._control(Heartbeat(session=self.welcome.session))
        self._beat_later()


def _waits(command: Command) -> bool:
    return isinstance(command, Receive) and command.wait_ms != 0


def _frame_of(requests: Sequence[Directed]) -> bytes:
    """Requests, and before each the route that holds for it, unless it does already."""
    framed: list[Request] = []
    told: Request | None = None
    for route, request in requests:
        if route is not None and route is not told:
            framed.append(route)
            told = route
        framed.append(request)
    return encode_requests(framed)


def _is_empty(answer: Answer) -> bool:
    """Whether a receive was answered with no messages."""
    if answer[1] != Kind.REPLY:
        return False
    delivery: KeyedDelivery | None = unpack_reply(Receive, answer[2])
    return delivery is None or not delivery.runs
