import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { address, ask, fetched, may, who, type FoundMessages, type NewMessage, type Operations, type SeenMessage, type SentMessage } from "./api";
import { Ask, Button, Choice, Cli, download, Field, isTyping, say, Trouble, useAddress, useLive, useLoaded, useRows, Wide } from "./parts";
import { QueueHeader } from "./queue";
import { bodyBytes, bytes, counted, duration, hex, isJson, moment, number, parsedAttributes, prettyJson, readable, short } from "./text";

const STATES = ["ready", "leased", "delayed"] as const;
const PAGE = 50;
const SEARCH_MS = 3000;
const SHOWN_MAX = 64 * 1024;
const HEX_MAX = 4096;
const START_MAX = 160;
const ARGUMENT_MAX = 64 * 1024;
/** So many messages are not deleted without typing their number. */
const COUNTED_MIN = 10;
const SAVED_MAX = 10_000;
const SAVING_MS = 60_000;
const CSV = "text/csv";
const ARROW = "application/vnd.apache.arrow.stream";

const bodyStart = (body: string): string => (/^[[{]/.test(body) ? readable(body.slice(0, 6 * START_MAX)) : body).slice(0, START_MAX);

type Searching = Operations["GET /v1/queues/{queue}/search"]["asked"];
type State = (typeof STATES)[number];
type View = State | "all" | "retrying" | "done";
const VIEWS: readonly (readonly [View, string])[] = [
  ["all", "All"],
  ["ready", "Ready"],
  ["leased", "Leased"],
  ["delayed", "Delayed"],
  ["retrying", "Retrying"],
  ["done", "Done"],
];
const KINDS = [
  ["text", "Body contains"],
  ["path", "JSON path is"],
  ["attribute", "Attribute is"],
  ["id", "Id is"],
] as const;
type Kind = (typeof KINDS)[number][0];
interface Search {
  kind: Kind;
  what: string;
  value: string;
  since: string;
  until: string;
}
/** The fields for a time take UTC, which is what the page shows everywhere. */
const time = (text: string): number | undefined => (text ? new Date(`${text}Z`).getTime() / 1000 : undefined);

/** What is looked for, as the server's search takes it. */
function asked(queue: string, search: Search, view: View): Omit<Searching, "after" | "limit"> {
  const { kind, what, value } = search;
  return {
    queue,
    ...(what && kind === "text" ? { text: what } : {}),
    ...(what && kind === "id" ? { id: what } : {}),
    ...(what && kind === "path" ? { path: what, value: value || undefined } : {}),
    ...(what && kind === "attribute" ? { attribute: what, attribute_value: value || undefined } : {}),
    since: time(search.since),
    until: time(search.until),
    states: view === "all" ? [...STATES] : view === "retrying" ? ["ready", "delayed"] : [view],
  };
}

/** What the search finds in two forms, as it is and as JSON escapes it, and `penstock peek` in one. */
const ESCAPED = /[^\x00-\x7f]|[<>&'+]/;
const foundAmong = (found: number, lookedAt: number): string => `${number(found)} found among ${lookedAt === 1 ? "1 message" : `${number(lookedAt)} messages`}`;

/** `#/queues/orders/messages?state=leased&by=path&what=$.order&after=99&message=104`: all that a link needs. */
export function Messages({ name }: { name: string }) {
  const [at, go] = useAddress();
  const view = VIEWS.find(([view]) => view === at.get("state"))?.[0] ?? "all";
  const search = useMemo<Search>(
    () => ({
      kind: KINDS.find(([kind]) => kind === at.get("by"))?.[0] ?? "text",
      what: at.get("what") ?? "",
      value: at.get("value") ?? "",
      since: at.get("since") ?? "",
      until: at.get("until") ?? "",
    }),
    [at],
  );
  const isSearch = !!(search.what || search.since || search.until);
  const searchText = JSON.stringify(search);
  const [typed, setTyped] = useState<Search>(search);
  useEffect(() => setTyped(search), [searchText]);
  const wantedChannel = at.get("channel") ?? "main";
  const pages = [-1, ...(at.get("after")?.split(",").map(Number).filter(Number.isSafeInteger) ?? [])];
  const chosen = /^\d+$/.test(at.get("message") ?? "") ? Number(at.get("message")) : undefined;
  const setChosen = (sequence: number | undefined) => sequence !== chosen && go({ message: sequence === undefined ? undefined : String(sequence) });
  const [picked, setPicked] = useState<Map<number, SeenMessage>>(new Map());
  const [draft, setDraft] = useState<Draft>();
  const [doing, setDoing] = useState<Doing>();
  const [error, setError] = useState<Error>();
  const after = pages.at(-1)!;
  const queue = useLive("GET /v1/queues/{queue}", { queue: name });
  const channels = queue.value?.stats.channels.map((each) => each.name) ?? [];
  const channel = !channels.length || channels.includes(wantedChannel) ? wantedChannel : channels[0]!;
  const sought = { ...asked(name, search, view), channel };
  const soughtText = JSON.stringify([sought, view, after]);
  const [progress, setProgress] = useState({ found: 0, lookedAt: 0 });
  const fits = (each: SeenMessage) => view !== "retrying" || each.attempts > 0;
  const [saving, setSaving] = useState(false);
  const isLatest = useRef("");
  isLatest.current = soughtText;
  const seen = useLoaded(
    async () => {
      setProgress({ found: 0, lookedAt: 0 });
      // One call looks at so many messages: what it has not found yet comes later, or when somebody presses Next.
      const until = performance.now() + SEARCH_MS;
      let lookedAt = 0;
      const found: SeenMessage[] = [];
      let next: number | null = after;
      while (next !== null && found.length < PAGE && performance.now() < until && isLatest.current === soughtText) {
        const page: FoundMessages = await ask("GET /v1/queues/{queue}/search", { ...sought, after: next, limit: PAGE });
        found.push(...page.messages.filter(fits));
        next = page.next;
        lookedAt += page.looked_at;
        if (isLatest.current === soughtText) setProgress({ found: found.length, lookedAt });
      }
      return { messages: found, next, lookedAt, soughtText };
    },
    [soughtText],
    true,
  );
  const messages = seen.value?.messages ?? [];
  // Until the answer is there, the list shows what was looked for before: it is dim, and nothing can be done with it.
  const isWorking = seen.value?.soughtText !== soughtText && !seen.error;
  const open = (index: number) => isWorking || setChosen(messages[index]?.sequence);
  const pick = (message: SeenMessage) => {
    const next = new Map(picked);
    if (!next.delete(message.sequence)) next.set(message.sequence, message);
    setPicked(next);
  };
  const mayChange = may("admin", name);
  const maySend = may("write", name);
  const [row] = useRows(messages.length, open, (index) => mayChange && !isWorking && pick(messages[index]!));
  const listed = messages.find((each) => each.sequence === chosen);
  // A link may lead to a message that is not on the page, or no longer in the states that are shown.
  const linked = useLoaded(
    async () =>
      chosen === undefined || listed || isWorking
        ? undefined
        : { chosen, ...(await ask("GET /v1/queues/{queue}/search", { queue: name, channel, id: String(chosen), states: [...STATES, "done"] })) },
    [name, channel, chosen, !listed && !isWorking],
  );
  const message = listed ?? linked.value?.messages.find((each) => each.sequence === chosen);
  const restart = (next: Record<string, string | undefined>) => go({ ...next, after: undefined, message: undefined });
  useEffect(() => setPicked(new Map()), [searchText, view, wantedChannel]);
  const submit = (event: Event) => {
    event.preventDefault();
    const { kind, ...rest } = typed;
    const isSame = JSON.stringify(typed) === searchText && pages.length === 1;
    restart({ ...rest, by: kind === "text" ? undefined : kind });
    if (isSame) refresh();
  };
  const save = async (ending: "csv" | "jsonl" | "arrow") => {
    setSaving(true);
    try {
      say(ending === "arrow" ? await saveRecords(name) : await saveFound(name, ending, sought, fits));
      setError(undefined);
    } catch (problem) {
      setError(problem as Error);
    }
    setSaving(false);
  };
  const isPlain = view === "all" && !search.since && !search.until && (search.kind === "text" || !search.what) && !ESCAPED.test(search.what);
  const isPaired = typed.kind === "path" || typed.kind === "attribute";
  const turn = (next: number[]) => go({ after: next.join(), message: undefined });
  const all = messages.length > 0 && messages.every((each) => picked.has(each.sequence));
  const refresh = () => (setPicked(new Map()), void seen.again(), void queue.again());
  // The list stands still while somebody reads it. The stream says when it is old.
  const counts = JSON.stringify(queue.value?.stats.channels.find((each) => each.name === channel) ?? {});
  const [shownOf, setShownOf] = useState("");
  useEffect(() => setShownOf(counts), [seen.value]);
  const isOld = !!shownOf && shownOf !== "{}" && shownOf !== counts;
  return (
    <main>
      <QueueHeader name={name} at="messages">
        <Button onClick={refresh} data-key="r">
          {isOld ? "Refresh: new messages" : "Refresh"}
        </Button>
        {queue.value && maySend && (
          <Button class="main" onClick={() => setDraft({ body: "", attributes: "" })} data-key="n">
            Send a message
          </Button>
        )}
      </QueueHeader>
      <form class="bar filters" onSubmit={submit} role="search">
        <select aria-label="Search by" value={typed.kind} onChange={(event) => setTyped({ ...typed, kind: event.currentTarget.value as Kind })}>
          {KINDS.map(([kind, label]) => (
            <option key={kind} value={kind}>
              {label}
            </option>
          ))}
        </select>
        <input
          type="search"
          class="search"
          placeholder={{ text: "text  ( / )", path: "$.order.items[0].name", attribute: "name", id: "id or sequence" }[typed.kind]}
          aria-label="What to search for"
          value={typed.what}
          onInput={(event) => setTyped({ ...typed, what: event.currentTarget.value })}
        />
        {isPaired && (
          <input
            class="value"
            placeholder="value (empty: any)"
            aria-label="Its value"
            value={typed.value}
            onInput={(event) => setTyped({ ...typed, value: event.currentTarget.value })}
          />
        )}
        <button type="submit">Search</button>
        {isSearch && (
          <Button class="quiet" onClick={() => restart({ by: undefined, what: undefined, value: undefined, since: undefined, until: undefined })}>
            Clear
          </Button>
        )}
        <details open={!!(search.since || search.until)}>
          <summary>Time</summary>
          <div class="bar">
            <label class="check">
              since (UTC)
              <input type="datetime-local" step="1" value={typed.since} onInput={(event) => setTyped({ ...typed, since: event.currentTarget.value })} />
            </label>
            <label class="check">
              until (UTC)
              <input type="datetime-local" step="1" value={typed.until} onInput={(event) => setTyped({ ...typed, until: event.currentTarget.value })} />
            </label>
          </div>
        </details>
      </form>
      <div class="bar">
        <Choice label="States" all={VIEWS} now={view} set={(next) => restart({ state: next === "all" ? undefined : next })} />
        <a class="button" href={`#/queues/${encodeURIComponent(name)}/dead`}>
          Dead
        </a>
        {channels.length > 1 && (
          <label class="check">
            channel
            <select value={channel} onChange={(event) => restart({ channel: event.currentTarget.value })}>
              {channels.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </label>
        )}
        <span class="grow" />
        <small>Looking at messages does not receive them.</small>
      </div>
      <Trouble error={error ?? seen.error ?? queue.error} />
      {picked.size > 0 && (
        <div class="bar picked" role="region" aria-label="Selection">
          <b>{number(picked.size)} selected</b>
          <Button onClick={() => setDoing({ what: "release", messages: [...picked.values()] })}>Release…</Button>
          <Button onClick={() => setDoing({ what: "reschedule", messages: [...picked.values()] })}>Reschedule…</Button>
          <Button class="bad" onClick={() => setDoing({ what: "delete", messages: [...picked.values()] })}>
            Delete…
          </Button>
          <Button class="quiet" onClick={() => setPicked(new Map())}>
            Clear the selection
          </Button>
        </div>
      )}
      <div class="split">
        <div aria-busy={isWorking}>
          <p class="note progress" role="status">
            {isWorking && isSearch
              ? `Searching…${progress.lookedAt ? ` ${foundAmong(progress.found, progress.lookedAt)}` : ""}`
              : isSearch && seen.value && messages.length > 0
                ? `${foundAmong(messages.length, seen.value.lookedAt)}${seen.value.next === null ? "" : ". Press Next to look at more."}`
                : ""}
          </p>
          <Wide>
            <table class={isWorking ? "rows messages old" : "rows messages"} inert={isWorking}>
              <thead>
                <tr>
                  {mayChange && (
                    <th class="pick">
                      <input
                        type="checkbox"
                        aria-label="Select all of this page"
                        checked={all}
                        onChange={() => setPicked(all ? new Map() : new Map(messages.map((each) => [each.sequence, each])))}
                      />
                    </th>
                  )}
                  <th class="number">sequence</th>
                  <th>state</th>
                  <th class="number">age</th>
                  <th class="number roomy">attempts</th>
                  <th class="number roomy" title="The lease ends, or the message comes due">until</th>
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
                    {mayChange && (
                      <td class="pick" onClick={(event) => event.stopPropagation()}>
                        <input type="checkbox" aria-label={`Select message ${each.sequence}`} checked={picked.has(each.sequence)} onChange={() => pick(each)} />
                      </td>
                    )}
                    <td class="number">
                      <Button class="link" aria-label={`Show message ${each.sequence}`}>
                        {each.sequence}
                      </Button>
                    </td>
                    <td>
                      <span class={`tag ${each.state}`}>{each.state}</span>
                    </td>
                    <td class="number" title={`sent ${moment(each.sent_at, true)}`}>
                      {duration(Date.now() / 1000 - each.sent_at)}
                    </td>
                    <td class="number roomy">{each.attempts}</td>
                    <td class="number roomy" title={each.until == null ? undefined : moment(each.until, true)}>
                      {each.until == null ? "–" : `in ${duration(each.until - Date.now() / 1000)}`}
                    </td>
                    <td class="start">{each.encoding === "base64" ? "(bytes)" : bodyStart(each.body)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Wide>
          {seen.value && !isWorking && !seen.error && messages.length === 0 && (
            <p class="empty">
              {seen.value.next !== null
                ? `No match among ${counted(seen.value.lookedAt, "message")}. Press Next to look at more.`
                : isSearch
                  ? "No message in these states matches."
                  : "There are no messages in these states."}
            </p>
          )}
          <nav class="pager" aria-label="Pages of messages">
            <Button disabled={pages.length === 1} onClick={() => turn(pages.slice(1, -1))}>
              Back
            </Button>
            <Button disabled={isWorking || seen.value?.next == null} onClick={() => turn([...pages.slice(1), seen.value!.next!])}>
              Next
            </Button>
            <span class="grow" />
            <small>{saving ? "Downloading…" : `Download all that ${isSearch ? "match" : "are in these states"}, ${short(SAVED_MAX)} at most`}</small>
            <Button
              disabled={saving || !messages.length || view === "retrying"}
              title={view === "retrying" ? "Of the messages that are tried again, download JSON" : undefined}
              onClick={() => void save("csv")}
            >
              CSV
            </Button>
            <Button disabled={saving || !messages.length} onClick={() => void save("jsonl")}>
              JSON
            </Button>
            {!who()?.masked && (
              <Button disabled={saving} onClick={() => void save("arrow")} title={`The first ${short(SAVED_MAX)} messages of the queue, in any state, whatever is searched`}>
                Arrow
              </Button>
            )}
          </nav>
          <Cli
            words={
              isPlain
                ? ["peek", name, "--channel", channel, "--max", String(PAGE), ...(after < 0 ? [] : ["--after", String(after)]), ...(search.what ? [`--contains=${search.what}`] : [])]
                : ["curl", location.origin + address("GET /v1/queues/{queue}/search", { ...sought, after, limit: PAGE })[1]]
            }
          />
        </div>
        {chosen !== undefined && !message && linked.value?.chosen === chosen && (
          <aside class="one" aria-label={`Message ${chosen}`}>
            <header class="bar">
              <h2>Message {chosen}</h2>
              <span class="grow" />
              <Button class="quiet" onClick={() => setChosen(undefined)}>
                Close
              </Button>
            </header>
            <p>The queue has no message {chosen} any more, or never had it.</p>
          </aside>
        )}
        {message && (
          <OneMessage
            queue={name}
            channel={channel}
            message={message}
            close={() => setChosen(undefined)}
            act={mayChange ? (what) => setDoing({ what, messages: [message] }) : undefined}
            again={maySend ? () => setDraft(draftOf(message, name)) : undefined}
          />
        )}
      </div>
      {draft && (
        <Send
          queue={name}
          isFifo={queue.value?.settings.kind === "fifo"}
          draft={draft}
          close={(isDone) => (setDraft(undefined), isDone && refresh())}
          sentAs={(sent) => setChosen(sent?.sequence ?? undefined)}
        />
      )}
      {doing && <Change queue={name} channel={channel} doing={doing} close={(isDone) => (setDoing(undefined), isDone && refresh())} />}
    </main>
  );
}

// -- downloads ---------------------------------------------------------------------------------------------------------

const saved = (count: number, isCut: boolean): string =>
  isCut ? `The first ${number(count)} messages are saved. The rest is not.` : count === 1 ? "1 message is saved." : `All ${number(count)} messages are saved.`;

/** All pages of what is searched, as one file. Returns what is said about it. */
async function saveFound(name: string, ending: "csv" | "jsonl", sought: Omit<Searching, "after" | "limit">, fits: (each: SeenMessage) => boolean): Promise<string> {
  const until = performance.now() + SAVING_MS;
  const parts: string[] = [];
  let count = 0;
  let next: number | null = -1;
  while (next !== null && count < SAVED_MAX && performance.now() < until) {
    const given: Searching = { ...sought, after: next, limit: Math.min(1000, SAVED_MAX - count) };
    if (ending === "csv") {
      const page = await fetched("GET /v1/queues/{queue}/search", given, CSV);
      const text = await page.text();
      count += text.replace(/"[^"]*"/g, "").split("\r\n").length - 2;
      parts.push(parts.length ? text.slice(text.indexOf("\r\n") + 2) : text);
      next = page.headers.has("penstock-next") ? Number(page.headers.get("penstock-next")) : null;
    } else {
      const page: FoundMessages = await ask("GET /v1/queues/{queue}/search", given);
      const found = page.messages.filter(fits);
      count += found.length;
      parts.push(...found.map((each) => JSON.stringify(each) + "\n"));
      next = page.next;
    }
  }
  download(`${name}.${ending}`, ending === "csv" ? CSV : "application/x-ndjson", parts.join(""));
  return saved(count, next !== null);
}

async function saveRecords(name: string): Promise<string> {
  const file = await fetched("GET /v1/queues/{queue}/records", { queue: name, max: SAVED_MAX }, ARROW);
  download(`${name}.arrow`, ARROW, await file.blob());
  const isCut = Number(file.headers.get("penstock-next-offset")) < Number(file.headers.get("penstock-end-offset"));
  return isCut ? "The first messages of the queue are saved. The rest is not." : "All messages of the queue are saved.";
}

// -- one message, or a selection ---------------------------------------------------------------------------------------

export interface Doing {
  what: "delete" | "release" | "reschedule";
  messages: { sequence: number; id: string }[];
}

const DUES = [
  ["delay", "In some time"],
  ["due", "At a time"],
] as const;

export function Change({ queue, channel, doing, close }: { queue: string; channel: string; doing: Doing; close: (isDone?: boolean) => void }) {
  const [how, setHow] = useState<"delay" | "due">("delay");
  const [delay, setDelay] = useState("60");
  const [due, setDue] = useState(() => new Date(Date.now() + 3_600_000).toISOString().slice(0, 16));
  const { what, messages } = doing;
  const sequences = messages.map((each) => each.sequence);
  const count = sequences.length === 1 ? "1 message" : `${number(sequences.length)} messages`;
  const ids = messages.map((each) => each.id);
  if (what === "delete")
    return (
      <Ask
        title={`Delete ${count}`}
        says={`${count} of ${queue} ${sequences.length === 1 ? "is" : "are"} deleted for every channel, even if somebody is working on ${sequences.length === 1 ? "it" : "them"}. This cannot be undone.`}
        button={`Delete ${count}`}
        name={sequences.length < COUNTED_MIN ? undefined : String(sequences.length)}
        destroys
        cli={["message", "delete", queue, ...ids]}
        act={() => ask("POST /v1/queues/{queue}/messages/delete", { queue, body: { sequences } })}
        done={`${count} deleted.`}
        close={close}
      />
    );
  if (what === "release")
    return (
      <Ask
        title={`Release ${count}`}
        says={`${count} of ${queue} can be received at once in channel ${channel}. Leases and delays end. A receiver that is working on ${sequences.length === 1 ? "it" : "one"} can no longer acknowledge it.`}
        button={`Release ${count}`}
        cli={["message", "release", queue, ...ids, "--channel", channel]}
        act={() => ask("POST /v1/queues/{queue}/messages/release", { queue, body: { sequences, channel } })}
        done={`${count} released.`}
        close={close}
      />
    );
  const body = { sequences, channel, ...(how === "due" ? { due: time(due) } : { delay: Number(delay) }) };
  const path = address("POST /v1/queues/{queue}/messages/reschedule", { queue })[1];
  return (
    <Ask
      title={`Reschedule ${count}`}
      says={`${count} of ${queue} can be received in channel ${channel} from ${moment((how === "due" ? time(due) : Date.now() / 1000 + Number(delay)) ?? NaN)} on.`}
      button={`Reschedule ${count}`}
      isWaiting={how === "due" && !due}
      cli={
        how === "due"
          ? ["curl", "-X", "POST", location.origin + path, "-H", "content-type: application/json", "-d", JSON.stringify(body)]
          : ["message", "reschedule", queue, ...ids, "--channel", channel, "--delay", delay]
      }
      act={() => ask("POST /v1/queues/{queue}/messages/reschedule", { queue, body })}
      done={`${count} rescheduled.`}
      close={close}
    >
      <Choice label="When" all={DUES} now={how} set={setHow} />
      {how === "due" ? (
        <Field label="Due at" hint="UTC">
          <input type="datetime-local" value={due} required onInput={(event) => setDue(event.currentTarget.value)} />
        </Field>
      ) : (
        <Field label="Due in" hint="seconds">
          <input type="number" min="0" step="any" value={delay} required onInput={(event) => setDelay(event.currentTarget.value)} />
        </Field>
      )}
    </Ask>
  );
}

interface Showing {
  queue: string;
  channel?: string;
  message: SeenMessage;
  close: () => void;
  act?: (what: Doing["what"]) => void;
  again?: () => void;
}
/** One message: where it is, its whole life as far as the server keeps it, its attributes and its body. */
export function OneMessage({ queue, channel = "main", message, close, act, again }: Showing) {
  const whole = useLive("GET /v1/queues/{queue}/messages/{message}", { queue, message: String(message.sequence) }, true);
  const found = whole.value?.sequence === message.sequence ? whole.value : undefined;
  const here = found?.channels.find((each) => each.channel === channel);
  const data = useMemo(() => bodyBytes(message.body, message.encoding), [message]);
  const isDone = message.state === "done";
  useEffect(() => {
    const key = (event: KeyboardEvent) => event.key === "Escape" && !isTyping(event) && !document.querySelector("dialog") && close();
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [close]);
  const { value: now } = useLoaded(async () => (isDone ? ask("GET /v1/messages/{message}", { message: message.id }) : undefined), [message.id, isDone]);
  return (
    <aside class="one" aria-label={`Message ${message.sequence}`}>
      <header class="bar">
        <h2>Message {message.sequence}</h2>
        <span class={`tag ${message.state}`}>{message.state}</span>
        {found?.masked && <span class="tag warn">masked</span>}
        <span class="grow" />
        <Button class="quiet" onClick={close} aria-label="Close the message">
          Close
        </Button>
      </header>
      <Trouble error={whole.error} />
      {now && (now.queue !== queue || now.sequence !== message.sequence) && (
        <p class="note">
          It is done here. It is now in <a href={`#/queues/${encodeURIComponent(now.queue)}/messages`}>{now.queue}</a> as message {now.sequence}.
        </p>
      )}
      <dl class="facts">
        <dt>Id</dt>
        <dd class="mono">{message.id}</dd>
        <dt>Size</dt>
        <dd>{bytes(data.length)}</dd>
        <dt>Attempts</dt>
        <dd>{message.attempts}</dd>
        {!!found?.priority && (
          <>
            <dt>Priority</dt>
            <dd>{found.priority}</dd>
          </>
        )}
        {message.group != null && (
          <>
            <dt>Group</dt>
            <dd class="mono">{message.group}</dd>
          </>
        )}
        {here?.holder && (
          <>
            <dt>Held by</dt>
            <dd>
              {here.holder.session ? (
                <span class="mono">{here.holder.name || `session ${here.holder.session}`}</span>
              ) : (
                "a client without a session (SQS or REST): whoever has the receipt"
              )}
            </dd>
          </>
        )}
        {here?.holder && here.received_at !== null && (
          <>
            <dt>Since</dt>
            <dd>
              {moment(here.received_at)}, {duration(Date.now() / 1000 - here.received_at)} ago
            </dd>
          </>
        )}
        {here?.lease_ends_at != null && (
          <>
            <dt>Lease ends</dt>
            <dd>
              {moment(here.lease_ends_at)}, in {duration(here.lease_ends_at - Date.now() / 1000)}
            </dd>
          </>
        )}
        {here?.due_at != null && (
          <>
            <dt>Due</dt>
            <dd>
              {moment(here.due_at)}, in {duration(here.due_at - Date.now() / 1000)}
            </dd>
          </>
        )}
        {message.origin && (
          <>
            <dt>Came from</dt>
            <dd class="mono">
              {message.origin.queue}, channel {message.origin.channel}, after {counted(message.origin.attempts, "delivery", "deliveries")}
            </dd>
          </>
        )}
      </dl>
      {found && found.channels.length > 1 && (
        <>
          <h3>Channels</h3>
          <dl class="facts">
            {found.channels.map((each) => (
              <>
                <dt class="mono">{each.channel}</dt>
                <dd>
                  <span class={`tag ${each.state}`}>{each.state}</span> {counted(each.attempts, "attempt")}
                </dd>
              </>
            ))}
          </dl>
        </>
      )}
      {found && (
        <>
          <h3>Life</h3>
          <ol class="life">
            {found.events.map((each, index) => (
              <li key={index} class={each.what}>
                <time>{moment(each.at, true)}</time> {each.text}
                {each.channel !== null && found.channels.length > 1 && <small> in {each.channel}</small>}
              </li>
            ))}
          </ol>
        </>
      )}
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
      <Body message={message} data={data} isMasked={found?.masked} />
      <Cli words={["explain", message.id]} />
      {(act || again) && (
        <div class="buttons">
          {act && (
            <>
              <Button class="bad" onClick={() => act("delete")}>
                Delete…
              </Button>
              <Button onClick={() => act("reschedule")}>Reschedule…</Button>
              <Button onClick={() => act("release")}>Release…</Button>
            </>
          )}
          {again && <Button onClick={again}>Edit and send again…</Button>}
        </div>
      )}
    </aside>
  );
}

function Body({ message, data, isMasked }: { message: SeenMessage; data: Uint8Array<ArrayBuffer>; isMasked?: boolean }) {
  const isText = message.encoding !== "base64";
  const pretty = useMemo(() => (isText && message.body.length <= 4 * SHOWN_MAX ? prettyJson(message.body) : null), [message]);
  const views = [...(pretty === null ? [] : ["JSON"]), ...(isText ? ["Text"] : []), "Hex"];
  const [wanted, setView] = useState("");
  const view = views.includes(wanted) ? wanted : views[0]!;
  const text = view === "JSON" ? pretty! : view === "Text" ? message.body : hex(data, HEX_MAX, 8);
  return (
    <>
      <header class="bar">
        <h3>Body</h3>
        <div class="choice small" role="group" aria-label="Show the body as">
          {views.map((each) => (
            <Button key={each} aria-pressed={each === view} onClick={() => setView(each)}>
              {each}
            </Button>
          ))}
        </div>
        <span class="grow" />
        <Button class="quiet" onClick={() => download(`${message.id}.bin`, "application/octet-stream", data)}>
          Download
        </Button>
      </header>
      {isMasked && <p class="note">Parts of this body are masked by the server: •••</p>}
      <pre class={view === "Hex" ? "body hex" : "body"} tabIndex={0} aria-label="Body">
        {text.slice(0, SHOWN_MAX)}
      </pre>
      {(text.length > SHOWN_MAX || (view === "Hex" && data.length > HEX_MAX)) && (
        <p class="note">Only the beginning is shown. Download the body to see all {bytes(data.length)}.</p>
      )}
    </>
  );
}

// -- sending -----------------------------------------------------------------------------------------------------------

export interface Draft {
  body: string;
  encoding?: "text" | "base64";
  attributes: string;
  group?: string;
  priority?: string;
  delay?: string;
  copied?: string;
  /** What it is a copy of, which can be deleted then. */
  original?: { queue: string; sequence: number };
  /** Parts of it are hidden, and would be sent as •••. */
  masked?: boolean;
}
const MASKED = "•••";
export const draftOf = (message: SeenMessage, queue: string): Draft => ({
  body: message.body,
  encoding: message.encoding,
  attributes: message.attributes && Object.keys(message.attributes).length ? JSON.stringify(message.attributes, null, 2) : "",
  group: message.group ?? undefined,
  copied: message.id,
  original: may("admin", queue) ? { queue, sequence: message.sequence } : undefined,
  masked: message.masked,
});

const TEMPLATES = "penstock-templates";
type Template = Pick<Draft, "body" | "attributes" | "group" | "priority" | "delay">;
const templates = (): Record<string, Template> => {
  try {
    return JSON.parse(localStorage.getItem(TEMPLATES) ?? "{}") as Record<string, Template>;
  } catch {
    return {};
  }
};

interface Sending {
  queue: string;
  isFifo: boolean;
  draft: Draft;
  close: (isDone?: boolean) => void;
  sentAs?: (sent: SentMessage | undefined) => void;
}
export function Send({ queue, isFifo, draft, close, sentAs }: Sending) {
  const [body, setBody] = useState(draft.body);
  const [attributes, setAttributes] = useState(draft.attributes);
  const [group, setGroup] = useState(draft.group ?? "");
  const [dedup, setDedup] = useState("");
  const [priority, setPriority] = useState(draft.priority ?? "0");
  const [delay, setDelay] = useState(draft.delay ?? "");
  const [known, setKnown] = useState(templates());
  const [template, setTemplate] = useState("");
  const [deletes, setDeletes] = useState(false);
  const { original } = draft;
  const simple = (): [string, unknown][] => {
    try {
      return Object.entries(parsedAttributes(attributes));
    } catch {
      return [];
    }
  };
  const fill = (name: string) => {
    const found = known[name];
    setTemplate(name);
    if (!found) return;
    setBody(found.body);
    setAttributes(found.attributes);
    setGroup(found.group ?? "");
    setPriority(found.priority ?? "0");
    setDelay(found.delay ?? "");
  };
  const keep = (all: Record<string, Template>) => {
    localStorage.setItem(TEMPLATES, JSON.stringify(all));
    setKnown(all);
  };
  const made = (): NewMessage => ({
    body,
    ...(draft.encoding === "base64" ? { encoding: "base64" as const } : {}),
    ...(simple().length ? { attributes: Object.fromEntries(simple()) as NewMessage["attributes"] } : {}),
    ...(group ? { group } : {}),
    ...(dedup ? { dedup_id: dedup } : {}),
    ...(priority && priority !== "0" ? { priority: Number(priority) } : {}),
    ...(delay ? { delay: Number(delay) } : {}),
  });
  const isPlain = draft.encoding !== "base64" && simple().every(([, value]) => typeof value === "string");
  const cli = isPlain
    ? [
        ...["send", queue],
        ...simple().map(([name, value]) => `--attribute=${name}=${String(value)}`),
        ...(group ? [`--group=${group}`] : []),
        ...(dedup ? [`--dedup-id=${dedup}`] : []),
        ...(priority !== "0" && priority ? ["--priority", priority] : []),
        ...(delay ? ["--delay", delay] : []),
        ...["--", body],
      ]
    : ["curl", "-X", "POST", `${location.origin}/v1/queues/${encodeURIComponent(queue)}/messages`, "-H", "content-type: application/json", "-d", JSON.stringify(made())];
  const isMasked = draft.masked && [body, attributes, group].some((each) => each.includes(MASKED));
  const send = async () => {
    try {
      parsedAttributes(attributes);
    } catch {
      throw new Error('The attributes are not JSON. Write {"name": "value"}.');
    }
    const sent = (await ask("POST /v1/queues/{queue}/messages", { queue, create: false, body: made() })).messages[0];
    let said = `Sent as message ${sent?.sequence ?? sent?.id}.`;
    if (original && deletes)
      said += await ask("POST /v1/queues/{queue}/messages/delete", { queue: original.queue, body: { sequences: [original.sequence] } }).then(
        () => " The original is deleted.",
        (problem: Error) => ` The original is still there: ${problem.message}`,
      );
    sentAs?.(sent);
    return said;
  };
  const isBroken = /^\s*[[{]/.test(body) && draft.encoding !== "base64" && !isJson(body);
  return (
    <Ask
      title={draft.copied ? `Send a changed copy to ${queue}` : `Send a message to ${queue}`}
      says={draft.copied ? `A new message is sent. ${deletes ? "Then the original is deleted." : `The message ${draft.copied} stays as it is.`}` : "Every channel of the queue gets it."}
      button="Send"
      cli={body.length < ARGUMENT_MAX && !isMasked && !deletes ? cli : undefined}
      isWaiting={isMasked}
      act={send}
      done={String}
      close={close}
    >
      {isMasked && (
        <p class="trouble" role="alert">
          The server hides parts of this message: {MASKED}. Replace every {MASKED} before you send it.
        </p>
      )}
      <div class="bar templates">
        <label class="check">
          Template
          <input list="templates" value={template} placeholder="a name" onInput={(event) => fill(event.currentTarget.value)} />
        </label>
        <datalist id="templates">
          {Object.keys(known).map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
        <Button disabled={!template} onClick={() => keep({ ...known, [template]: { body, attributes, group, priority, delay } })}>
          Save
        </Button>
        {template in known && (
          <Button
            class="quiet"
            onClick={() => {
              const { [template]: _, ...rest } = known;
              keep(rest);
            }}
          >
            Forget
          </Button>
        )}
        <small>Templates are kept in this browser.</small>
      </div>
      <Field label={draft.encoding === "base64" ? "Body, as base64" : "Body"}>
        <textarea autofocus rows={8} value={body} onInput={(event) => setBody(event.currentTarget.value)} spellcheck={false} />
        {isBroken && <small class="bad">The body begins like JSON, but is not. It is sent as it is.</small>}
      </Field>
      <Field label="Attributes" hint='JSON: {"table": 7}'>
        <textarea rows={3} value={attributes} onInput={(event) => setAttributes(event.currentTarget.value)} spellcheck={false} />
      </Field>
      <div class="row">
        <Field label="Group" hint={isFifo ? "required in a FIFO queue" : undefined}>
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
      {original && (
        <label class="check">
          <input type="checkbox" checked={deletes} onChange={() => setDeletes(!deletes)} />
          then delete the original, message {original.sequence} of {original.queue}, for every channel
        </label>
      )}
    </Ask>
  );
}
