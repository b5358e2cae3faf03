"""HTTP/1.1 of every port: an asyncio protocol on httptools.

`exchange` is what handlers see, `connection` is one client, `server` is all of them.

How it works. A connection feeds what it reads to the parser. Complete requests wait in a short line; one at a time is
*in flight*: the handler has an `Exchange` for it, and answers at once or later, from any callback of the loop. No task
and no future is made for a request, and no timer: every connection has one deadline, and one sweep a second looks at
all of them.

    bytes ──► parser ──► waiting requests ──► in flight ──► response
                │                              (one)
                └──► rejection: answered when nothing is in flight any more, then the connection closes

Responses that are made in one turn of the loop are written in the next, one right after the other: a client that waits
for several of them wakes up once, and makes its next requests together.

Whoever is refused hears why. A rejection is a response with a short reason in plain text; after it the connection is
shut for writing, and what the client still sends is read and thrown away for a moment. (Closing at once would reset the
connection while the client is sending, and the reason would be lost on its way.)

Hanging up. A handler that waits for something (a long poll) sets `on_abandoned`. It is called once when the client goes
away; the handler must then undo what it had begun, and `respond` does nothing. A client that closes its sending half is
taken to have gone away if its request waits; any other request is answered first. The one who pipelines more
than `pipelined_max` requests behind a waiting one is no longer read from, so that its hanging up shows only later.

Limits: the header's size and the body's (431, 413), the time for each (408), connections (503), idle time (silence,
as keep-alive has it). A client that does not read its response is cut off after `body_timeout_s`.

A body that does not come with its header is read on when the header check has seen the header, if the server has one,
and when there is room for it in the budget that all connections share (`penstock.server.budget`). Then `100 Continue`
is said to a client that waits for it, and the body has to come at its pace. The header check says how large it may be;
and whether the handler gets it whole, or begins at once and takes it as it comes (`BodyStream`). Responses that clients
do not read count in the budget as well; those in parts are made as fast as they are read (`Exchange.respond_in_parts`).

Other protocols. A request for a websocket, at a path that has one, is the last that is parsed. In its turn the handler
may hand the connection over (`Exchange.upgrade`). All other offers are passed over.
"""

from penstock.protocols.http.exchange import (
    PLAIN_TEXT,
    BodyLeft,
    BodyRefused,
    BodyStream,
    Exchange,
    Handler,
    HeaderCheck,
    Headers,
    Observer,
    Refusal,
    Render,
    Rendered,
    Request,
    Terms,
    render_plainly,
    split_raw_target,
    split_target,
)
from penstock.protocols.http.server import HttpCounters, HttpServer
from penstock.server.settings import HttpLimits

__all__ = [
    "PLAIN_TEXT",
    "BodyLeft",
    "BodyRefused",
    "BodyStream",
    "Exchange",
    "Handler",
    "HeaderCheck",
    "Headers",
    "HttpCounters",
    "HttpLimits",
    "HttpServer",
    "Observer",
    "Refusal",
    "Render",
    "Rendered",
    "Request",
    "Terms",
    "render_plainly",
    "split_raw_target",
    "split_target",
]
