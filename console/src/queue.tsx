import { useState } from "preact/hooks";
import { call, get, post, queuePath, settingSchemas, type ChannelCounts, type Consumer, type QueueDescription, type Schema } from "./api";
import { LiveCharts, rated } from "./overview";
import { Ask, Button, Cli, Field, Trouble, usePolled } from "./parts";
import { bytes, duration, number } from "./text";

type Asked =
  | { kind: "purge" }
  | { kind: "delete" }
  | { kind: "channel" }
  | { kind: "pause" | "unpause" | "purge-channel" | "delete-channel"; channel: string };

export function Queue({ name, go }: { name: string; go: (path: string) => void }) {
  const queue = usePolled(
    async () => {
      const found = await get<QueueDescription>(queuePath(name));
      return { ...found, rating: rated(found) };
    },
    2000,
    [name],
  );
  const consumers = usePolled(() => get<{ consumers: Consumer[] }>(queuePath(name, "/consumers")), 5000, [name]);
  const [asked, setAsked] = useState<Asked>();
  const found = queue.value;
  const close = () => (setAsked(undefined), void queue.again());
  const stats = found?.stats;
  return (
    <main>
      <header class="bar">
        <h1>{name}</h1>
        <span class="grow" />
        <Button onClick={() => setAsked({ kind: "purge" })}>Purge…</Button>
        <Button onClick={() => setAsked({ kind: "delete" })}>Delete…</Button>
      </header>
      <QueueTabs name={name} at="queue" />
      <Trouble error={queue.error} />
      {found && stats && (
        <>
          <dl class="tiles">
            {(
              [
                ["Messages", number(stats.messages)],
                ["Stored", bytes(stats.bytes)],
                ["Oldest", stats.oldest_sent_at === null ? "–" : duration(Date.now() / 1000 - stats.oldest_sent_at)],
                ["Sent ever", number(stats.sent)],
                ["Damaged", number(stats.quarantined)],
                ["Age of the queue", duration(Date.now() / 1000 - found.created_at)],
              ] as const
            ).map(([label, value]) => (
              <div key={label}>
                <dt>{label}</dt>
                <dd>{value}</dd>
              </div>
            ))}
          </dl>
          <LiveCharts rating={found.rating} />
          <section>
            <header class="bar">
              <h2>Channels</h2>
              <span class="grow" />
              <Button onClick={() => setAsked({ kind: "channel" })}>Create channel</Button>
            </header>
            <Channels channels={stats.channels} ask={setAsked} />
          </section>
          {!!consumers.value?.consumers.length && (
            <section>
              <h2>Consumers</h2>
              <div class="wide">
                <table>
                  <thead>
                    <tr>
                      <th>name</th>
                      <th class="number">offset</th>
                      <th class="number">end</th>
                      <th class="number">lag</th>
                    </tr>
                  </thead>
                  <tbody>
                    {consumers.value.consumers.map((each) => (
                      <tr key={each.consumer}>
                        <td class="name">{each.consumer}</td>
                        <td class="number">{number(each.offset)}</td>
                        <td class="number">{number(each.end_offset)}</td>
                        <td class="number">{number(each.lag)}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            </section>
          )}
          <Settings name={name} settings={found.settings} changed={queue.again} />
        </>
      )}
      {asked && <Question name={name} asked={asked} queue={found} close={close} gone={() => go("")} />}
    </main>
  );
}

export function QueueTabs({ name, at }: { name: string; at: "queue" | "messages" | "dead" }) {
  const path = `#/queues/${encodeURIComponent(name)}`;
  return (
    <nav class="tabs" aria-label="Parts of the queue">
      {(
        [
          ["queue", "", "Queue"],
          ["messages", "/messages", "Messages"],
          ["dead", "/dead", "Dead letters"],
        ] as const
      ).map(([key, rest, label]) => (
        <a key={key} href={path + rest} aria-current={key === at ? "page" : undefined}>
          {label}
        </a>
      ))}
    </nav>
  );
}

function Channels({ channels, ask }: { channels: ChannelCounts[]; ask: (asked: Asked) => void }) {
  const COUNTS = ["ready", "leased", "delayed", "acked", "failed", "dead"] as const;
  return (
    <div class="wide">
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
            <th>actions</th>
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
              <td class="actions">
                <Button class="quiet" onClick={() => ask({ kind: channel.paused ? "unpause" : "pause", channel: channel.name })}>
                  {channel.paused ? "Unpause" : "Pause"}
                </Button>
                <Button class="quiet" onClick={() => ask({ kind: "purge-channel", channel: channel.name })}>
                  Purge…
                </Button>
                <Button class="quiet" onClick={() => ask({ kind: "delete-channel", channel: channel.name })}>
                  Delete…
                </Button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Question({ name, asked, queue, close, gone }: { name: string; asked: Asked; queue: QueueDescription | undefined; close: () => void; gone: () => void }) {
  const [channelName, setChannelName] = useState("");
  const [start, setStart] = useState("head");
  const count = number(queue?.stats.messages ?? 0);
  if (asked.kind === "purge")
    return (
      <Ask
        title={`Purge ${name}`}
        says={`All ${count} messages of this queue are deleted for every channel, also those that somebody is working on. This cannot be undone.`}
        name={name}
        button="Delete the messages"
        cli={["queue", "purge", name]}
        act={() => post(queuePath(name, "/purge"))}
        close={close}
      />
    );
  if (asked.kind === "delete")
    return (
      <Ask
        title={`Delete ${name}`}
        says={`The queue is deleted with its ${count} messages, ${queue?.stats.channels.length ?? 0} channels and its consumers. This cannot be undone.`}
        name={name}
        button="Delete the queue"
        cli={["queue", "delete", name]}
        act={() => call("DELETE", queuePath(name)).then(gone)}
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
        act={() => post(queuePath(name, "/channels"), { name: channelName, start })}
        close={close}
      >
        <Field label="Name">
          <input value={channelName} onInput={(event) => setChannelName(event.currentTarget.value)} required />
        </Field>
        <Field label="Starts with">
          <select value={start} onChange={(event) => setStart(event.currentTarget.value)}>
            <option value="head">what is there already</option>
            <option value="tail">what comes from now on</option>
          </select>
        </Field>
      </Ask>
    );
  const channel = asked.channel;
  const path = queuePath(name, `/channels/${encodeURIComponent(channel)}`);
  const waiting = queue?.stats.channels.find((each) => each.name === channel);
  const number_ = number((waiting?.ready ?? 0) + (waiting?.leased ?? 0) + (waiting?.delayed ?? 0));
  if (asked.kind === "pause" || asked.kind === "unpause")
    return (
      <Ask
        title={`${asked.kind === "pause" ? "Pause" : "Unpause"} ${channel}`}
        says={
          asked.kind === "pause"
            ? "Its messages are kept, and are no longer delivered, until somebody unpauses it."
            : `Its messages are delivered again: ${number(waiting?.ready ?? 0)} are ready.`
        }
        button={asked.kind === "pause" ? "Pause" : "Unpause"}
        cli={["channel", asked.kind, name, channel]}
        act={() => post(`${path}/${asked.kind}`)}
        close={close}
      />
    );
  return (
    <Ask
      title={`${asked.kind === "purge-channel" ? "Purge" : "Delete"} channel ${channel}`}
      says={
        asked.kind === "purge-channel"
          ? `The ${number_} messages that wait in this channel, or are in flight there, are dropped. Other channels keep theirs.`
          : `The channel is deleted with the ${number_} messages that wait in it. Other channels keep theirs.`
      }
      name={channel}
      button={asked.kind === "purge-channel" ? "Drop the messages" : "Delete the channel"}
      cli={["channel", asked.kind === "purge-channel" ? "purge" : "delete", name, channel]}
      act={() => (asked.kind === "purge-channel" ? post(`${path}/purge`) : call("DELETE", path))}
      close={close}
    />
  );
}

const range = (schema: Schema): string => {
  const of = schema.anyOf?.find((each) => each.type !== "null") ?? schema;
  const limits = of.minimum !== undefined && of.maximum !== undefined ? `${number(of.minimum)} to ${number(of.maximum)}` : "";
  const nothing = schema.anyOf?.some((each) => each.type === "null") ? "empty: none" : "";
  const initial = schema["x-default"] === undefined ? "" : `default ${schema["x-default"]}`;
  return [limits, nothing, initial].filter(Boolean).join("; ");
};
const shownAs = (value: unknown): string =>
  value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);

function Settings({ name, settings, changed }: { name: string; settings: Record<string, unknown>; changed: () => Promise<void> }) {
  const schemas = usePolled(settingSchemas, 0, []);
  const [edited, setEdited] = useState<Record<string, string>>({});
  const [error, setError] = useState<Error>();
  const [saved, setSaved] = useState(false);
  const known = schemas.value ?? {};
  const names = Object.keys(settings).filter((each) => each in known);
  const read = (each: string, text: string): unknown => {
    const schema = known[each]!;
    const of = schema.anyOf?.find((one) => one.type !== "null") ?? schema;
    if (text === "" && schema.anyOf) return null;
    if (of.type === "string") return text;
    if (of.type === "number" || of.type === "integer") return Number(text);
    return JSON.parse(text);
  };
  const save = async (event: Event) => {
    event.preventDefault();
    try {
      const changes = Object.fromEntries(Object.entries(edited).map(([each, text]) => [each, read(each, text)]));
      await call("PATCH", queuePath(name), changes);
      setEdited({});
      setError(undefined);
      setSaved(true);
      setTimeout(() => setSaved(false), 2500);
      await changed();
    } catch (problem) {
      setError(problem as Error);
    }
  };
  const words = Object.entries(edited).flatMap(([each, text]) => [`--${each.replaceAll("_", "-")}`, text || "none"]);
  return (
    <section>
      <h2>Settings</h2>
      <form class="settings" onSubmit={save}>
        {names.map((each) => {
          const schema = known[each]!;
          const now = edited[each] ?? shownAs(settings[each]);
          const put = (text: string) => {
            const { [each]: _, ...rest } = edited;
            setEdited(text === shownAs(settings[each]) ? rest : { ...rest, [each]: text });
          };
          const choices = schema.enum ?? (schema.type === "boolean" ? ["true", "false"] : undefined);
          const fixed = each === "kind" || each === "partitions";
          return (
            <div key={each} class={each in edited ? "setting edited" : "setting"}>
              <label for={`setting-${each}`}>{each}</label>
              {choices ? (
                <select id={`setting-${each}`} value={now} disabled={fixed} onChange={(event) => put(event.currentTarget.value)}>
                  {choices.map((choice) => (
                    <option key={choice}>{choice}</option>
                  ))}
                </select>
              ) : (
                <input id={`setting-${each}`} value={now} disabled={fixed} onInput={(event) => put(event.currentTarget.value)} />
              )}
              <small>
                {schema.description?.replaceAll("`", "")} {range(schema)}
              </small>
            </div>
          );
        })}
        <Trouble error={error} />
        {saved && <p role="status">Saved.</p>}
        {Object.keys(edited).length > 0 && (
          <div class="savebar">
            <Cli words={["queue", "configure", name, ...words]} />
            <div class="buttons">
              <Button onClick={() => setEdited({})}>Undo</Button>
              <button type="submit" class="main">
                Save {Object.keys(edited).length} {Object.keys(edited).length === 1 ? "change" : "changes"}
              </button>
            </div>
          </div>
        )}
      </form>
    </section>
  );
}
