import { useCallback, useMemo, useState } from "preact/hooks";
import { get, post, query, queuePath, type Message, type QueueDescription } from "./api";
import { Ask, Button, Cli, download, Field, Trouble, usePolled, useRows } from "./parts";
import { QueueTabs } from "./queue";
import { bodyBytes, bytes, duration, hex, moment, prettyJson } from "./text";

const STATES = ["ready", "leased", "delayed"] as const;
const PAGE = 50;
const SHOWN_MAX = 64 * 1024;
const START_MAX = 160;

export function Messages({ name }: { name: string }) {
  const [states, setStates] = useState<string[]>([...STATES]);
  const [typed, setTyped] = useState("");
  const [contains, setContains] = useState("");
  const [channel, setChannel] = useState("main");
  const [pages, setPages] = useState<number[]>([-1]);
  const [chosen, setChosen] = useState<number>();
  const [draft, setDraft] = useState<Draft>();
  const after = pages.at(-1)!;
  const queue = usePolled(() => get<QueueDescription>(queuePath(name)), 0, [name]);
  const channels = queue.value?.stats.channels.map((each) => each.name) ?? ["main"];
  const at = channels.includes(channel) ? channel : (channels[0] ?? "main");
  const seen = usePolled(
    () =>
      get<{ messages: Message[]; next: number | null }>(
        queuePath(name, `/messages${query({ states, contains, channel: at, after, limit: PAGE })}`),
      ),
    0,
    [name, states.join(), contains, at, after],
  );
  const messages = seen.value?.messages ?? [];
  const open = useCallback((index: number) => setChosen(messages[index]?.sequence), [messages]);
  const [row] = useRows(messages.length, open);
  const message = messages.find((each) => each.sequence === chosen);
  const search = (event: Event) => {
    event.preventDefault();
    setPages([-1]);
    setContains(typed);
  };
  const cli = ["peek", name, "--channel", at, "--max", String(PAGE), ...(contains ? ["--contains", contains] : [])];
  return (
    <main>
      <header class="bar">
        <h1>{name}</h1>
        <span class="grow" />
        <Button onClick={() => void seen.again()} data-key="r">
          Refresh
        </Button>
        <Button class="main" onClick={() => setDraft({ body: "", attributes: "" })} data-key="n">
          Send a message
        </Button>
      </header>
      <QueueTabs name={name} at="messages" />
      <form class="bar filters" onSubmit={search}>
        <input
          type="search"
          class="search"
          placeholder="Body contains  ( / )"
          aria-label="Only messages whose body contains this"
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
        <button type="submit">Search</button>
        <fieldset>
          <legend class="hidden">States</legend>
          {STATES.map((state) => (
            <label key={state} class="check">
              <input
                type="checkbox"
                checked={states.includes(state)}
                onChange={() => {
                  const others = states.filter((each) => each !== state);
                  const next = others.length === states.length ? [...states, state] : others;
                  setPages([-1]);
                  setStates(next.length ? next : [state]);
                }}
              />
              {state}
            </label>
          ))}
        </fieldset>
        {channels.length > 1 && (
          <label class="check">
            channel
            <select value={at} onChange={(event) => (setPages([-1]), setChannel(event.currentTarget.value))}>
              {channels.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </label>
        )}
      </form>
      <p class="note">Looking takes nothing: messages stay where they are, for whoever receives them.</p>
      <Trouble error={seen.error ?? queue.error} />
      <div class="split">
        <div>
          <div class="wide">
            <table class="rows messages">
              <thead>
                <tr>
                  <th class="number">sequence</th>
                  <th>state</th>
                  <th class="number">age</th>
                  <th class="number">attempts</th>
                  <th>body</th>
                </tr>
              </thead>
              <tbody>
                {messages.map((each, index) => (
                  <tr
                    key={each.sequence}
                    class={`${index === row ? "at" : ""} ${each.sequence === chosen ? "chosen" : ""}`}
                    onClick={() => setChosen(each.sequence)}
                  >
                    <td class="number">
                      <Button class="link" aria-label={`Show message ${each.sequence}`}>
                        {each.sequence}
                      </Button>
                    </td>
                    <td>
                      <span class={`tag ${each.state}`}>{each.state}</span>
                    </td>
                    <td class="number">{duration(Date.now() / 1000 - each.sent_at)}</td>
                    <td class="number">{each.attempts}</td>
                    <td class="start">{each.encoding === "base64" ? "(bytes)" : each.body.slice(0, START_MAX)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {seen.value && messages.length === 0 && (
            <p class="empty">{contains ? "No message in these states contains this." : "There are no messages in these states."}</p>
          )}
          <nav class="pager" aria-label="Pages of messages">
            <Button disabled={pages.length === 1} onClick={() => setPages(pages.slice(0, -1))}>
              Back
            </Button>
            <Button disabled={seen.value?.next == null} onClick={() => setPages([...pages, seen.value!.next!])}>
              On
            </Button>
            <Button
              disabled={!messages.length}
              onClick={() =>
                download(`${name}.jsonl`, "application/x-ndjson", messages.map((each) => JSON.stringify(each) + "\n").join(""))
              }
            >
              Download this page
            </Button>
          </nav>
          <Cli words={cli} />
        </div>
        {message && (
          <OneMessage
            message={message}
            close={() => setChosen(undefined)}
            again={() =>
              setDraft({
                body: message.body,
                encoding: message.encoding,
                attributes: message.attributes ? JSON.stringify(message.attributes, null, 2) : "",
                group: message.group,
                copied: message.id,
              })
            }
          />
        )}
      </div>
      {draft && (
        <Send
          queue={name}
          isFifo={queue.value?.settings.kind === "fifo"}
          draft={draft}
          close={() => (setDraft(undefined), void seen.again())}
        />
      )}
    </main>
  );
}

/** One message: where it is, its whole life as far as the server keeps it, its attributes and its body. */
export function OneMessage({ message, close, again }: { message: Message; close: () => void; again?: () => void }) {
  const data = useMemo(() => bodyBytes(message.body, message.encoding), [message]);
  const isText = message.encoding !== "base64";
  const pretty = useMemo(() => (isText && message.body.length <= 4 * SHOWN_MAX ? prettyJson(message.body) : null), [message]);
  const views = [...(pretty === null ? [] : ["JSON"]), ...(isText ? ["Text"] : []), "Hex"];
  const [wanted, setView] = useState("");
  const view = views.includes(wanted) ? wanted : views[0]!;
  const text = view === "JSON" ? pretty! : view === "Text" ? message.body : hex(data);
  const life: [number, string][] = [
    [message.sent_at, "Sent"],
    ...(message.failures ?? []).flatMap((each): [number, string][] => [
      [each.received_at, `Delivery ${each.attempt}${each.session ? ` to ${each.session}` : ""}`],
      [each.failed_at, `Failed: ${each.error || "no error was given"}`],
    ]),
  ];
  if (message.until !== undefined)
    life.push([message.until, message.state === "leased" ? "The lease ends, unless it is extended" : "Due"]);
  return (
    <aside class="one" aria-label={`Message ${message.sequence}`}>
      <header class="bar">
        <h2>Message {message.sequence}</h2>
        <span class={`tag ${message.state}`}>{message.state}</span>
        <span class="grow" />
        <Button class="quiet" onClick={close} aria-label="Close the message">
          Close
        </Button>
      </header>
      <dl class="facts">
        <dt>Id</dt>
        <dd class="mono">{message.id}</dd>
        <dt>Size</dt>
        <dd>{bytes(data.length)}</dd>
        <dt>Attempts</dt>
        <dd>{message.attempts}</dd>
        {message.group !== undefined && (
          <>
            <dt>Group</dt>
            <dd class="mono">{message.group}</dd>
          </>
        )}
        {message.origin && (
          <>
            <dt>Came from</dt>
            <dd class="mono">
              {message.origin.queue}, channel {message.origin.channel}, after {message.origin.attempts} deliveries
            </dd>
          </>
        )}
      </dl>
      <h3>Life</h3>
      <ol class="life">
        {life.map(([at, what], index) => (
          <li key={index}>
            <time>{moment(at)}</time> {what}
          </li>
        ))}
      </ol>
      {message.attributes && Object.keys(message.attributes).length > 0 && (
        <>
          <h3>Attributes</h3>
          <dl class="facts">
            {Object.entries(message.attributes).map(([key, value]) => (
              <>
                <dt class="mono">{key}</dt>
                <dd class="mono">{typeof value === "object" ? JSON.stringify(value) : String(value)}</dd>
              </>
            ))}
          </dl>
        </>
      )}
      <header class="bar">
        <h3>Body</h3>
        <div class="tabs small" role="group" aria-label="Show the body as">
          {views.map((each) => (
            <Button key={each} class="quiet" aria-pressed={each === view} onClick={() => setView(each)}>
              {each}
            </Button>
          ))}
        </div>
        <span class="grow" />
        <Button class="quiet" onClick={() => download(`${message.id}.bin`, "application/octet-stream", data)}>
          Download
        </Button>
      </header>
      <pre class="body" tabIndex={0} aria-label="Body">
        {text.slice(0, SHOWN_MAX)}
      </pre>
      {(text.length > SHOWN_MAX || (view === "Hex" && data.length > 4096)) && (
        <p class="note">This is its beginning. Download it to see all {bytes(data.length)}.</p>
      )}
      {again && (
        <div class="buttons">
          <Button onClick={again}>Edit and send a copy…</Button>
        </div>
      )}
    </aside>
  );
}

interface Draft {
  body: string;
  encoding?: "text" | "base64";
  attributes: string;
  group?: string;
  copied?: string;
}

function Send({ queue, isFifo, draft, close }: { queue: string; isFifo: boolean; draft: Draft; close: () => void }) {
  const [body, setBody] = useState(draft.body);
  const [attributes, setAttributes] = useState(draft.attributes);
  const [group, setGroup] = useState(draft.group ?? "");
  const [dedup, setDedup] = useState("");
  const [priority, setPriority] = useState("0");
  const [delay, setDelay] = useState("");
  const simple = (): [string, unknown][] => {
    try {
      return Object.entries(JSON.parse(attributes || "{}"));
    } catch {
      return [];
    }
  };
  const act = () => {
    let read: unknown = {};
    try {
      read = JSON.parse(attributes || "{}");
    } catch {
      throw new Error('The attributes are not JSON. Write {"name": "value"}.');
    }
    return post(queuePath(queue, "/messages?create=false"), {
      body,
      ...(draft.encoding === "base64" ? { encoding: "base64" } : {}),
      attributes: read,
      ...(group ? { group } : {}),
      ...(dedup ? { dedup_id: dedup } : {}),
      ...(Number(priority) ? { priority: Number(priority) } : {}),
      ...(delay === "" ? {} : { delay: Number(delay) }),
    });
  };
  const cli = [
    ...["send", queue],
    ...simple().flatMap(([key, value]) => ["--attribute", `${key}=${typeof value === "object" ? JSON.stringify(value) : value}`]),
    ...(group ? ["--group", group] : []),
    ...(dedup ? ["--dedup-id", dedup] : []),
    ...(Number(priority) ? ["--priority", priority] : []),
    ...(delay ? ["--delay", delay] : []),
    ...(draft.encoding === "base64" ? ["--file", "FILE"] : [body.length > 2000 ? "BODY" : body]),
  ];
  return (
    <Ask
      title={draft.copied ? "Edit and send a copy" : `Send a message to ${queue}`}
      says={
        draft.copied
          ? `A new message is sent to ${queue}. The one that you look at stays as it is.`
          : "It goes to every channel of the queue."
      }
      button="Send"
      cli={cli}
      act={async () => act()}
      close={close}
    >
      <Field label={draft.encoding === "base64" ? "Body, in base64" : "Body"}>
        <textarea rows={8} value={body} onInput={(event) => setBody(event.currentTarget.value)} />
      </Field>
      <Field label="Attributes" hint='JSON, for example {"table": 7}'>
        <textarea rows={2} value={attributes} onInput={(event) => setAttributes(event.currentTarget.value)} />
      </Field>
      <div class="row">
        <Field label="Group" hint={isFifo ? "needed in a FIFO queue" : undefined}>
          <input value={group} required={isFifo} onInput={(event) => setGroup(event.currentTarget.value)} />
        </Field>
        <Field label="Deduplication id">
          <input value={dedup} onInput={(event) => setDedup(event.currentTarget.value)} />
        </Field>
        <Field label="Priority" hint="0 to 9">
          <input type="number" min="0" max="9" value={priority} onInput={(event) => setPriority(event.currentTarget.value)} />
        </Field>
        <Field label="Delay" hint="seconds">
          <input type="number" min="0" step="any" value={delay} onInput={(event) => setDelay(event.currentTarget.value)} />
        </Field>
      </div>
    </Ask>
  );
}
