import { useState } from "preact/hooks";
import { ask, may, mayAll, type Operations } from "./api";
import { Ask, Button, Trouble, useLive, Wide } from "./parts";
import { counted, duration, number } from "./text";

type Found = Operations["GET /v1/sessions"]["answer"];
type One = Found["sessions"][number];

/** Who holds messages of a queue, and since when; and how many receivers wait for some. */
export function QueueSessions({ queue, waiting }: { queue: string; waiting: number }) {
  const found = useLive("GET /v1/queues/{queue}/sessions", { queue }, true);
  return (
    <section>
      <header class="bar">
        <h2>Sessions</h2>
        <small>
          who holds messages of this queue, and since when; {waiting === 1 ? "1 receiver waits" : `${number(waiting)} receivers wait`} for messages
        </small>
      </header>
      <Trouble error={found.error} />
      {found.value && <Sessions found={found.value} again={found.again} nobody="Nobody holds a message of this queue at the moment." />}
    </section>
  );
}

export function AllSessions() {
  const found = useLive("GET /v1/sessions", {});
  return (
    <main>
      <h1>Sessions</h1>
      <p class="note">
        A session holds leases. It is a connection, or a client that sends heartbeats. Ending it gives its messages back. A lease without a session belongs
        to whoever has the receipt, and ends by itself.
      </p>
      <Trouble error={found.error} />
      <section>
        {found.value && (
          <Sessions
            found={found.value}
            again={found.again}
            nobody={
              mayAll("read")
                ? "Nobody is connected, and nobody holds a message."
                : "Nobody holds a message of a queue that you may read. Who holds none is shown to readers of all queues."
            }
          />
        )}
      </section>
    </main>
  );
}

function Sessions({ found, again, nobody }: { found: Found; again: () => Promise<void>; nobody: string }) {
  const [ending, setEnding] = useState<One>();
  const now = Date.now() / 1000;
  const { sessions, without_session: unnamed } = found;
  if (!sessions.length && !unnamed.length) return <p class="empty">{nobody}</p>;
  const ago = (since: number | null) => (since === null ? "–" : duration(now - since));
  const mayEnd = (session: One) => (session.leases.length ? session.leases.every((each) => may("admin", each.queue)) : mayAll("admin"));
  return (
    <>
      <Wide>
        <table class="sessions">
          <thead>
            <tr>
              <th>session</th>
              <th class="roomy">kind</th>
              <th class="number roomy">client</th>
              <th class="number">holds</th>
              <th>of</th>
              <th class="number">since</th>
              <th class="number">until</th>
              <th>
                <span class="hidden">actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {sessions.map((each) => (
              <tr key={each.session}>
                <td class="name">{each.name || each.session}</td>
                <td class="roomy">
                  {each.is_connection ? "connection" : each.ttl === null ? "session" : `heartbeat within ${duration(each.ttl)}`}
                  {each.node && <small> on {each.node}</small>}
                </td>
                <td class="number roomy">
                  {each.is_connection ? "connected" : "seen"} {duration(now - each.seen_at)} ago
                </td>
                <td class="number">{number(each.held)}</td>
                <td>
                  {each.leases.map((lease) => (
                    <div key={`${lease.queue} ${lease.channel}`} class="mono">
                      {lease.queue}/{lease.channel}: {number(lease.count)}
                    </div>
                  ))}
                </td>
                <td class="number">{each.leases.map((lease, index) => <div key={index}>{ago(lease.since)}</div>)}</td>
                <td class="number">{each.leases.map((lease, index) => <div key={index}>{lease.until === null ? "–" : `in ${duration(lease.until - now)}`}</div>)}</td>
                <td class="actions">
                  {mayEnd(each) && (
                    <Button class="quiet" onClick={() => setEnding(each)}>
                      End…
                    </Button>
                  )}
                </td>
              </tr>
            ))}
            {unnamed.map((lease) => (
              <tr key={`${lease.queue} ${lease.channel}`}>
                <td class="dim">without a session</td>
                <td class="dim roomy">by receipt, over SQS or REST</td>
                <td class="number roomy">–</td>
                <td class="number">{number(lease.count)}</td>
                <td class="mono">
                  {lease.queue}/{lease.channel}
                </td>
                <td class="number">{ago(lease.since)}</td>
                <td class="number">{lease.until === null ? "–" : `in ${duration(lease.until - now)}`}</td>
                <td class="actions">
                  <a href={`#/queues/${encodeURIComponent(lease.queue)}/messages?state=leased`}>Messages</a>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
      {ending && (
        <Ask
          title={`End the session ${ending.name || ending.session}`}
          says={`It holds ${counted(ending.held, "message")}. What it holds is given back, and can be received by others at once. Work that it has not acknowledged is done again.`}
          button="End the session"
          destroys
          cli={["session", "end", ending.session]}
          act={() => ask("DELETE /v1/sessions/{session}", { session: ending.session })}
          done="The session has ended."
          close={() => (setEnding(undefined), void again())}
        />
      )}
    </>
  );
}
