import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { ask, may, useStream, who, type ChannelCounts, type ConsumerPosition, type QueueDescription } from "./api";
import { LiveCharts } from "./charts";
import { Ask, Button, Field, Tiles, Trouble, useLive, Wide } from "./parts";
import { QueueSessions } from "./sessions";
import { bytes, counted, duration, number, rate } from "./text";

type Asked =
  | { kind: "purge" }
  | { kind: "delete" }
  | { kind: "channel" }
  | { kind: "pause" | "unpause" | "purge-channel" | "delete-channel"; channel: string }
  | { kind: "move-consumer" | "delete-consumer"; consumer: ConsumerPosition };

export function Queue({ name, go }: { name: string; go: (path: string) => void }) {
  const queue = useLive("GET /v1/queues/{queue}", { queue: name });
  const consumers = useLive("GET /v1/queues/{queue}/consumers", { queue: name });
  const [asked, setAsked] = useState<Asked>();
  const now = useStream()?.queue;
  const rates = now?.name === name ? now.rates : null;
  const found = queue.value;
  const stats = found?.stats;
  const isGone = useRef(false);
  const close = () => {
    setAsked(undefined);
    if (!isGone.current) (void queue.again(), void consumers.again());
  };
  return (
    <main>
      <QueueHeader name={name} at="queue">
        {found && may("admin", name) && (
          <>
            <Button onClick={() => setAsked({ kind: "purge" })}>Purge…</Button>
            <Button onClick={() => setAsked({ kind: "delete" })}>Delete…</Button>
          </>
        )}
      </QueueHeader>
      <Trouble error={queue.error} />
      {found && stats && (
        <>
          <Tiles
            tiles={[
              { label: "Messages", value: number(stats.messages) },
              { label: "Stored", value: bytes(stats.bytes) },
              { label: "Oldest", value: stats.oldest_sent_at === null ? "–" : duration(Date.now() / 1000 - stats.oldest_sent_at) },
              { label: "Sent/s", value: rate(rates?.sent ?? null) },
              { label: "Delivered/s", value: rate(rates?.delivered ?? null) },
              { label: "Acked/s", value: rate(rates?.acked ?? null) },
              { label: "Failed/s", value: rate(rates?.failed ?? null), kind: rates?.failed ? "bad" : "" },
              { label: "Sent ever", value: number(stats.sent) },
              ...(stats.quarantined ? [{ label: "Damaged", value: number(stats.quarantined), kind: "bad" }] : []),
              { label: "Created", value: <>{duration(Date.now() / 1000 - found.created_at)} <small>ago</small></> },
            ]}
          />
          <LiveCharts queue={name} />
          <section>
            <header class="bar">
              <h2>Channels</h2>
              <span class="grow" />
              {may("admin", name) && <Button onClick={() => setAsked({ kind: "channel" })}>Create channel</Button>}
            </header>
            <Channels queue={name} channels={stats.channels} ask={setAsked} />
          </section>
          {!!consumers.value?.consumers.length && (
            <Consumers queue={name} consumers={consumers.value.consumers} ask={setAsked} />
          )}
          <QueueSessions queue={name} waiting={stats.channels.reduce((sum, each) => sum + each.waiting_receivers, 0)} />
        </>
      )}
      {asked && <Question name={name} asked={asked} queue={found} close={close} gone={() => ((isGone.current = true), go(""))} />}
    </main>
  );
}

const TABS = [
  ["queue", "", "Overview"],
  ["messages", "/messages", "Messages"],
  ["dead", "/dead", "Dead letters"],
  ["settings", "/settings", "Settings"],
] as const;

/** The name of a queue, what can be done with it, and its parts. */
export function QueueHeader({ name, at, children }: { name: string; at: (typeof TABS)[number][0]; children?: ComponentChildren }) {
  const path = `#/queues/${encodeURIComponent(name)}`;
  const row = useStream()?.queue;
  const dead = row?.name === name ? row.dead_letters : 0;
  return (
    <header class="queue-header">
      <div class="bar">
        <nav class="crumbs" aria-label="Way back">
          <a href="#/">Queues</a> <span aria-hidden="true">/</span>
        </nav>
        <h1>{name}</h1>
        <span class="grow" />
        {children}
      </div>
      <nav class="tabs" aria-label="Parts of the queue">
        {TABS.map(([key, rest, label]) => (
          <a key={key} href={path + rest} aria-current={key === at ? "page" : undefined}>
            {label}{" "}
            {key === "dead" && dead > 0 && <span class="tag bad">{number(dead)}</span>}
          </a>
        ))}
      </nav>
    </header>
  );
}

function Consumers({ queue, consumers, ask: put }: { queue: string; consumers: ConsumerPosition[]; ask: (asked: Asked) => void }) {
  const mayRead = may("read", queue) && !who()?.read_only;
  return (
    <section>
      <header class="bar">
        <h2>Consumers</h2>
        <small>named offsets: reading by offset leases nothing</small>
      </header>
      <Wide>
        <table>
          <thead>
            <tr>
              <th>name</th>
              <th class="number">offset</th>
              <th class="number">end</th>
              <th class="number">lag</th>
              {mayRead && <th>actions</th>}
            </tr>
          </thead>
          <tbody>
            {consumers.map((each) => (
              <tr key={each.consumer}>
                <td class="name">{each.consumer}</td>
                <td class="number">{number(each.offset)}</td>
                <td class="number">{number(each.end_offset)}</td>
                <td class="number">{number(each.lag)}</td>
                {mayRead && (
                  <td class="actions">
                    <Button class="quiet" onClick={() => put({ kind: "move-consumer", consumer: each })}>
                      Move…
                    </Button>
                    <Button class="quiet" onClick={() => put({ kind: "delete-consumer", consumer: each })}>
                      Delete…
                    </Button>
                  </td>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
    </section>
  );
}

function Channels({ queue, channels, ask: put }: { queue: string; channels: ChannelCounts[]; ask: (asked: Asked) => void }) {
  const mayChange = may("admin", queue);
  const COUNTS = ["ready", "leased", "delayed", "acked", "failed", "dead"] as const;
  return (
    <Wide>
      <table>
        <thead>
          <tr>
            <th>name</th>
            {COUNTS.map((name) => (
              <th key={name} class="number">
                {name}
              </th>
            ))}
            <th class="number">oldest</th>
            <th class="number">waiting</th>
            {mayChange && <th>actions</th>}
          </tr>
        </thead>
        <tbody>
          {channels.map((channel) => (
            <tr key={channel.name}>
              <td class="name">
                {channel.name}
                {channel.paused && <span class="tag warn">paused</span>}
              </td>
              {COUNTS.map((name) => (
                <td key={name} class="number">
                  {number(channel[name])}
                </td>
              ))}
              <td class="number">
                {channel.oldest_sent_at === null ? "–" : duration(Date.now() / 1000 - channel.oldest_sent_at)}
              </td>
              <td class="number">{number(channel.waiting_receivers)}</td>
              {mayChange && (
              <td class="actions">
                <Button class="quiet" onClick={() => put({ kind: channel.paused ? "unpause" : "pause", channel: channel.name })}>
                  {channel.paused ? "Unpause" : "Pause"}
                </Button>
                <Button class="quiet" onClick={() => put({ kind: "purge-channel", channel: channel.name })}>
                  Purge…
                </Button>
                <Button class="quiet" onClick={() => put({ kind: "delete-channel", channel: channel.name })}>
                  Delete…
                </Button>
              </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </Wide>
  );
}

function Question({ name, asked, queue, close, gone }: { name: string; asked: Asked; queue: QueueDescription | undefined; close: () => void; gone: () => void }) {
  const [channelName, setChannelName] = useState("");
  const [start, setStart] = useState<"head" | "tail">("head");
  const [offset, setOffset] = useState("");
  const count = counted(queue?.stats.messages ?? 0, "message");
  if (asked.kind === "purge")
    return (
      <Ask
        title={`Purge ${name}`}
        says={`This queue has ${count}. All are deleted for every channel, even if somebody is working on them. This cannot be undone.`}
        name={name}
        button="Delete the messages"
        done={`${name} is empty.`}
        cli={["queue", "purge", name]}
        act={() => ask("POST /v1/queues/{queue}/purge", { queue: name })}
        close={close}
      />
    );
  if (asked.kind === "delete")
    return (
      <Ask
        title={`Delete ${name}`}
        says={`The queue is deleted with ${count}, ${counted(queue?.stats.channels.length ?? 0, "channel")} and its consumers. This cannot be undone.`}
        name={name}
        button="Delete the queue"
        done={`${name} is deleted.`}
        cli={["queue", "delete", name]}
        act={() => ask("DELETE /v1/queues/{queue}", { queue: name }).then(gone)}
        close={close}
      />
    );
  if (asked.kind === "channel")
    return (
      <Ask
        title="Create a channel"
        says="A channel is one more reader: it gets every message of the queue."
        button="Create"
        cli={["channel", "create", name, channelName || "NAME", "--start", start]}
        act={() => ask("POST /v1/queues/{queue}/channels", { queue: name, body: { name: channelName, start } })}
        close={close}
      >
        <Field label="Name">
          <input value={channelName} onInput={(event) => setChannelName(event.currentTarget.value)} required />
        </Field>
        <Field label="Starts with">
          <select value={start} onChange={(event) => setStart(event.currentTarget.value as "head" | "tail")}>
            <option value="head">all stored messages</option>
            <option value="tail">only later messages</option>
          </select>
        </Field>
      </Ask>
    );
  if (asked.kind === "move-consumer" || asked.kind === "delete-consumer") {
    const { consumer, offset: before } = asked.consumer;
    const wanted = Number(offset);
    return asked.kind === "delete-consumer" ? (
      <Ask
        title={`Delete consumer ${consumer}`}
        says={`Its offset, ${number(before)}, is forgotten. Messages are kept. A new reader with this name starts at the beginning.`}
        name={consumer}
        button="Delete the consumer"
        cli={["consumer", "delete", name, consumer]}
        act={() => ask("DELETE /v1/queues/{queue}/consumers/{consumer}", { queue: name, consumer })}
        done={`${consumer} is deleted.`}
        close={close}
      />
    ) : (
      <Ask
        title={`Move consumer ${consumer}`}
        says={
          offset === ""
            ? `It is at offset ${number(before)} of ${number(asked.consumer.end_offset)}.`
            : wanted < before
              ? `It moves back by ${number(before - wanted)} ${before - wanted === 1 ? "message" : "messages"}, and reads again from there.`
              : `It skips ${number(wanted - before)} ${wanted - before === 1 ? "message" : "messages"}.`
        }
        button="Move"
        isWaiting={offset === ""}
        cli={["consumer", "move", name, consumer, offset || "OFFSET", ...(offset !== "" && wanted < before ? ["--allow-rewind"] : [])]}
        act={() =>
          ask("PUT /v1/queues/{queue}/consumers/{consumer}", { queue: name, consumer, body: { offset: wanted, allow_rewind: wanted < before } })
        }
        done={`${consumer} is at ${offset}.`}
        close={close}
      >
        <Field label="Offset" hint={`0 to ${number(asked.consumer.end_offset)}`}>
          <input type="number" min="0" max={asked.consumer.end_offset} value={offset} required onInput={(event) => setOffset(event.currentTarget.value)} />
        </Field>
      </Ask>
    );
  }
  const { channel } = asked as { channel: string };
  const at = { queue: name, channel };
  const waiting = queue?.stats.channels.find((each) => each.name === channel);
  const waits = counted((waiting?.ready ?? 0) + (waiting?.leased ?? 0) + (waiting?.delayed ?? 0), "message");
  if (asked.kind === "pause" || asked.kind === "unpause")
    return (
      <Ask
        title={`${asked.kind === "pause" ? "Pause" : "Unpause"} ${channel}`}
        says={
          asked.kind === "pause"
            ? "Its messages are kept, but are not delivered until somebody unpauses it."
            : `Its messages are delivered again. It has ${counted(waiting?.ready ?? 0, "ready message")}.`
        }
        button={asked.kind === "pause" ? "Pause" : "Unpause"}
        cli={["channel", asked.kind, name, channel]}
        act={() => ask(asked.kind === "pause" ? "POST /v1/queues/{queue}/channels/{channel}/pause" : "POST /v1/queues/{queue}/channels/{channel}/unpause", at)}
        close={close}
      />
    );
  return (
    <Ask
      title={`${asked.kind === "purge-channel" ? "Purge" : "Delete"} channel ${channel}`}
      says={
        asked.kind === "purge-channel"
          ? `This channel has ${waits} that wait or are in flight. All are deleted. Other channels keep theirs.`
          : `The channel is deleted. It has ${waits} that wait or are in flight. Other channels keep theirs.`
      }
      name={channel}
      button={asked.kind === "purge-channel" ? "Delete the messages" : "Delete the channel"}
      cli={["channel", asked.kind === "purge-channel" ? "purge" : "delete", name, channel]}
      act={() => (asked.kind === "purge-channel" ? ask("POST /v1/queues/{queue}/channels/{channel}/purge", at) : ask("DELETE /v1/queues/{queue}/channels/{channel}", at))}
      close={close}
    />
  );
}

