"""The websocket transport: one connection, requests and answers in both directions at any time.

An asyncio protocol around the sans-I/O half of the `websockets` library: a frame that arrives is decoded, and its
answers are handed on in the same turn of the loop, without a task in between. Plain frames are read and made without
the library (see `penstock.wire.frames`).

When the server says goodbye, nothing is sent any more: the link is not writable, and what is outgoing waits for the
next one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from time import perf_counter
from typing import cast

import msgspec
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from penstock.client.remote.address import PORT, Address, Options, TransportName
from penstock.client.remote.request import Listener, UpgradeRefused
from penstock.core.errors import (
    AccessDenied,
    BatchTooLarge,
    ConnectionLost,
    InvalidRequest,
    NotSent,
    OutcomeUnknown,
    PenstockError,
)
from penstock.wire.answers import BadAnswer, Kind, Welcome, decode_answers, unpack_failure, unpack_reply
from penstock.wire.frames import Frames, masked_frame
from penstock.wire.requests import SOCKET_PATH, VERSIONS, Cancel, Hello, Request, encode_requests

_HELLO = 0
"""The number of the first request; those of the caller start above, those of this file are negative."""
_CLOSE_TIMEOUT_S = 1.0
_READ_FIRST_S = 0.05
_HIGH_WATER_BYTES = 4 * 1024 * 1024
_FRAME_BYTES_MAX = 1024 * 1024
_HEAD_END = b"\r\n\r\n"


async def connect(address: Address, options: Options, listener: Listener) -> WebsocketLink:
    """A link that is ready for requests. `UpgradeRefused` if something on the way knows no websockets."""
    loop = asyncio.get_running_loop()
    tls = tls_of(address, options)
    try:
        async with asyncio.timeout(options.connect_timeout):
            _, link = await loop.create_connection(
                lambda: WebsocketLink(address, options, listener),
                address.ip or address.host,
                address.port,
                ssl=tls,
                server_hostname=address.host if tls else None,
            )
            try:
                await link.ready
            except BaseException:
                link.abort()
                raise
    except TimeoutError:
        raise NotSent(f"{address} does not answer within {options.connect_timeout:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise AccessDenied(f"{address} is not trusted: {error.verify_message}") from None
    except PenstockError:
        raise
    except ssl.SSLError as error:
        reason = error.reason or error
        raise NotSent(f"{address} cannot be reached with TLS: {reason}. Does the server speak TLS there?") from None
    except OSError as error:
        raise NotSent(f"{address} cannot be reached: {error.strerror or error}. Does a server run there?") from None
    return link


def tls_of(address: Address, options: Options) -> ssl.SSLContext | None:
    """How to speak TLS, if the address says so."""
    if not address.is_tls:
        return None
    return options.tls or ssl.create_default_context()


class WebsocketLink(asyncio.Protocol):
    transport: TransportName = "websocket"

    def __init__(self, address: Address, options: Options, listener: Listener) -> None:
        self._address = address
        self._options = options
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        scheme = "wss" if address.is_tls else "ws"
        self._websocket = ClientProtocol(parse_uri(f"{scheme}://{address.authority}{SOCKET_PATH}"), max_size=None)
        self._socket: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._frames: Frames | None = None
        """What comes after the handshake; None before it, and while that is the library's."""
        self._heard_s = 0.0
        self._beat: asyncio.TimerHandle | None = None
        self._is_open = False
        self._can_send = False
        """Whether neither side has said goodbye."""
        self._over: Exception | None = None
        self._controls = 0
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._frame_bytes_max = _FRAME_BYTES_MAX
        self.welcome: Welcome
        self._has_room = True
        """Whether the socket takes more."""
        self.is_writable = False
        """Whether it takes requests now; if not, it is lost soon, or `writable` will be heard."""
        self._poll = BusyPoll(self._loop, options.busy_poll) if options.busy_poll else None
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Resolved when requests may be sent."""

    # -- what the caller does --

    def send(self, requests: Sequence[Request]) -> None:
        """Send requests as one frame, or as few as there have to be. After the server's goodbye nothing is sent."""
        if not self._can_send:
            return
        assert self._socket is not None
        try:
            frame = encode_requests(requests)
            if len(frame) > self._frame_bytes_max:
                raise BatchTooLarge(
                    f"{len(frame)} bytes are too many for one call: "
                    f"{self._address} takes {self._frame_bytes_max} at a time"
                )
        except InvalidRequest as error:  # one request that cannot be sent must not keep the others from it
            if len(requests) > 1:
                middle = len(requests) // 2
                self.send(requests[:middle])
                self.send(requests[middle:])
            else:
                self._loop.call_soon(self._listener.refused, requests[0][0], error)
            return
        self._socket.write(masked_frame(frame))
        if self._poll is not None:
            self._poll.expect()

    def cancel(self, request: int) -> None:
        """A receive need not wait any longer."""
        self._controls -= 1
        self.send([(self._controls, Cancel(request=request))])

    async def close(self) -> None:
        """Say goodbye, and wait a moment for the other side to say it as well."""
        self._is_open = False
        self._stop_beating()
        if self._socket is None or self._gone.done():
            return
        if self._can_send:
            self._websocket.send_close(1000)
            self._look()
            self._flush()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._gone
        except TimeoutError:
            self._socket.abort()

    def abort(self) -> None:
        """End it now; nothing is heard of it any more."""
        self._is_open = False
        self._stop_beating()
        if self._socket is not None:
            self._socket.abort()
        if self.ready.done() and not self.ready.cancelled():
            self.ready.exception()

    # -- what asyncio does --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self._socket = socket = cast("asyncio.Transport", transport)
        socket.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        request = self._websocket.connect()
        if self._options.token is not None:
            request.headers["Authorization"] = f"Bearer {self._options.token}"
        self._websocket.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        if self._frames is not None and self._can_send:
            messages, data, _ = self._frames.split(data)
            for message in messages:
                self._take_message(message)
        if data:
            self._take_bytes(data)
        if self._poll is not None:
            self._look_out(self._poll)

    def _look_out(self, poll: BusyPoll) -> None:
        """Something came: look for more, if there may be more."""
        if self._listener.expects:
            poll.expect()
        else:
            poll.rest()

    def _take_bytes(self, data: bytes) -> None:
        """The long way, through the library."""
        self._websocket.receive_data(data)
        self._look()
        for event in self._websocket.events_received():
            if isinstance(event, Frame):
                self._take_frame(event)
            elif isinstance(event, Response):
                self._take_response(event)
                if data.find(_HEAD_END) == len(data) - len(_HEAD_END):  # else frames have come with it
                    self._frames = Frames(masked=False, bytes_max=_FRAME_BYTES_MAX)
        self._flush()
        if self._websocket.close_expected() and self._socket is not None:
            self._socket.close()

    def eof_received(self) -> None:
        """The other side has ended. That its answer to the upgrade breaks off does not say that it refuses it."""
        was_refused = self._websocket.handshake_exc is not None
        self._websocket.receive_eof()
        self._look()
        if self._heard_s and not was_refused and isinstance(self._websocket.handshake_exc, InvalidMessage):
            self._over = ConnectionLost(
                f"the connection to {self._address} broke in the answer to its upgrade: is that the HTTP port of a "
                f"Penstock server? It is {PORT} by default."
            )

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_beating()
        if not self._gone.done():
            self._gone.set_result(None)
        over = self._over or self._reason(error)
        if not self.ready.done():
            self.ready.set_exception(over)
        elif self._is_open:
            self._is_open = False
            self._listener.lost(self, over)

    def pause_writing(self) -> None:
        self._has_room = self.is_writable = False

    def resume_writing(self) -> None:
        self._has_room, self.is_writable = True, self._can_send
        if self._is_open and self._can_send:
            self._listener.writable()

    # -- the websocket --

    def _take_response(self, response: Response) -> None:
        failure = self._websocket.handshake_exc
        if failure is None:
            hello = Hello(version=VERSIONS.oldest, newest=VERSIONS.newest, name=self._options.name)
            assert self._socket is not None
            self._socket.write(masked_frame(encode_requests([(_HELLO, hello)])))
            return
        self._over = _refusal(self._address, failure, response)

    def _take_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY or frame.opcode is Opcode.CONT:
            self._parts.append(bytes(frame.data))
            if frame.fin:
                parts, self._parts = self._parts, []
                self._take_message(parts[0] if len(parts) == 1 else b"".join(parts))

    def _take_message(self, message: bytes) -> None:
        try:
            now_ms, answers = decode_answers(message)
            if not self.ready.done():
                self._take_welcome(answers[0][1], answers[0][2])
                answers = answers[1:]
            if self._is_open:
                self._listener.answered(now_ms, answers)
        except (msgspec.MsgspecError, BadAnswer, IndexError) as error:
            self._fail(ConnectionLost(f"{self._address} sent an answer that cannot be read: {error}"))

    def _take_welcome(self, kind: int, value: msgspec.Raw) -> None:
        if kind != Kind.REPLY:
            self._fail(unpack_failure(value))
            return
        self.welcome = unpack_reply(Hello, value)
        self._frame_bytes_max = self.welcome.limits.frame_bytes_max
        self._is_open = True
        self.ready.set_result(None)
        self._beat = self._loop.call_later(self._options.heartbeat, self._check_life)

    def _look(self) -> None:
        """The library may have got into another state: kept here, since every message asks for it."""
        self._can_send = self._websocket.state is State.OPEN
        self.is_writable = self._has_room and self._can_send

    def _flush(self) -> None:
        assert self._socket is not None
        for part in self._websocket.data_to_send():
            if part:
                self._socket.write(part)

    def _fail(self, error: Exception) -> None:
        """The other side breaks the rules, or is dead: no use to wait for its goodbye."""
        self._over = self._over or error
        if self._socket is not None:
            self._socket.abort()

    # -- life --

    def _check_life(self) -> None:
        """Ask who was silent for a heartbeat; one that was for two is dead."""
        heartbeat_s, now_s = self._options.heartbeat, self._loop.time()
        silent_s = now_s - self._heard_s
        if silent_s >= 2 * heartbeat_s:  # if this process stood still, there may be something to read
            self._beat = self._loop.call_later(_READ_FIRST_S, self._give_up, self._heard_s)
            return
        if silent_s >= heartbeat_s and self._can_send:
            self._websocket.send_ping(b"alive?")
            self._flush()
        self._beat = self._loop.call_at(
            self._heard_s + (2 if silent_s >= heartbeat_s else 1) * heartbeat_s, self._check_life
        )

    def _give_up(self, heard_s: float) -> None:
        if self._heard_s == heard_s:
            silent_s = self._loop.time() - heard_s
            self._fail(OutcomeUnknown(f"{self._address} has been silent for {silent_s:.1f} s"))
        else:
            self._check_life()

    def _stop_beating(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def _reason(self, error: Exception | None) -> Exception:
        close = self._websocket.close_rcvd
        if close is not None:
            return ConnectionLost(f"{self._address} ended the connection: {close.code} {close.reason}".rstrip())
        if self._websocket.handshake_exc is not None and not self.ready.done():
            return UpgradeRefused(f"{self._address} does not speak websocket: {self._websocket.handshake_exc}")
        return ConnectionLost(f"the connection to {self._address} broke: {error or 'it ended'}")


def _refusal(address: Address, failure: Exception, response: Response) -> Exception:
    """What a refused upgrade means."""
    if isinstance(failure, InvalidStatus):
        said = bytes(response.body or b"").decode("utf-8", "replace").strip()
        if response.status_code == 503:
            return NotSent(f"{address} is busy: {said}")
        return UpgradeRefused(f"{address} answers {response.status_code} to a websocket: {said}")
    if isinstance(failure, InvalidHandshake):
        return UpgradeRefused(f"{address} does not speak websocket: {failure}")
    return NotSent(f"{address} cannot be reached: {failure}")


class BusyPoll:
    """Keeps one loop awake: it looks for what is about to come, instead of falling asleep until it does.

    Waking a processor takes its time, on virtual machines tens of microseconds: a fifth or so of what a message needs
    from its sender to its handler, where nobody waits for a disk. Whoever would rather spend processor time has the
    loop look again and again, for a moment, while something is expected. It costs nothing while nothing is.

    >>> async def example() -> bool:
    ...     poll = BusyPoll(asyncio.get_running_loop(), 0.01)
    ...     poll.expect()
    ...     await asyncio.sleep(0.05)
    ...     return poll.is_awake
    >>> asyncio.run(example())
    False
    """

    __slots__ = ("_is_awake", "_loop", "_seconds", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._until = 0.0
        self._is_awake = False

    @property
    def is_awake(self) -> bool:
        """Whether the loop is kept from falling asleep."""
        return self._is_awake

    def expect(self) -> None:
        """Something is likely to come: look for it, for so long from now on."""
        self._until = perf_counter() + self._seconds
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self._look)

    def rest(self) -> None:
        self._until = 0.0

    def _look(self) -> None:
        """The loop looks between two calls of this."""
        if perf_counter() < self._until and not self._loop.is_closed():
            self._loop.call_soon(self._look)
        else:
            self._is_awake = False
