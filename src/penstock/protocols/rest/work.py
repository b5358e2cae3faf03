"""Units of work, and sessions."""

from __future__ import annotations

from penstock.core.commands import Ack, CommitWork, EndSession, Heartbeat, OpenSession, Send, Sent
from penstock.core.errors import OverLimit
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import milliseconds
from penstock.protocols.rest.messages import Messages, sends_of
from penstock.protocols.rest.operations import operation
from penstock.protocols.rest.resource import Resource
from penstock.protocols.rest.settling import sort_receipts
from penstock.protocols.rest.shapes import EndedSession, NewSession, SentMessages, Session, Work
from penstock.server.node import Services


class UnitsOfWork(Resource):
    """Units of work."""

    tag = "work"

    def __init__(self, services: Services, messages: Messages) -> None:
        super().__init__(services)
        self._messages = messages

    @operation("POST", "/v1/work")
    async def commit_work(self, caller: Caller, body: Work) -> SentMessages:
        """Commit a unit of work: acknowledge messages and send others, all of it or nothing.

        409 `work_refused` if a message can no longer be acknowledged: nothing is done then.
        """
        await self.shard.know(receipts=body.receipts)
        holdings, refused = sort_receipts(self.broker, body.receipts, None, None)
        if refused:
            raise refused[0][1]
        for holding in holdings:
            caller.need(holding.queue, Ack)
        for message in body.sends:
            caller.need(message.queue, Send)
        sends, places = sends_of([(message.queue, message) for message in body.sends], create=True)
        acks = [Ack(queue=each.queue, channel=each.channel, spans=each.spans) for each in holdings]
        replies: list[Sent] = []
        if acks or sends:
            replies = await self.shard.call(caller.named(CommitWork(acks=acks, sends=sends)))
        return SentMessages(messages=self._messages.sent_messages(replies, places))


class Sessions(Resource):
    """Sessions: who holds leases."""

    tag = "sessions"

    @operation("POST", "/v1/sessions", status=201)
    async def open_session(self, caller: Caller, body: NewSession) -> Session:
        """Open a session. It ends by itself if no heartbeat comes for `ttl` seconds."""
        if len(self.broker.sessions) >= self.settings.sessions_max:
            raise OverLimit(f"there are {self.settings.sessions_max} sessions: end some first")
        number: int = await self.shard.call(OpenSession(name=body.name, ttl_ms=milliseconds(body.ttl, "ttl")))
        return Session(session=self.handle(caller, number), ttl=body.ttl)

    @operation("POST", "/v1/sessions/{session}/heartbeat")
    async def session_heartbeat(self, caller: Caller, session: str) -> None:
        """Keep a session alive."""
        await self.shard.call(Heartbeat(session=self.session(caller, session)))

    @operation("DELETE", "/v1/sessions/{session}")
    async def end_session(self, caller: Caller, session: str) -> EndedSession:
        """End a session: all that it holds is ready for others at once."""
        return EndedSession(released=await self.shard.call(EndSession(session=self.session(caller, session))))
