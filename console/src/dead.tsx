import { useMemo, useState } from "preact/hooks";
import { get, post, query, queuePath, type Message, type NamedCounts, type Redrive } from "./api";
import { OneMessage } from "./messages";
import { sampleOf } from "./overview";
import { Ask, Button, Field, Trouble, usePolled } from "./parts";
import { QueueTabs } from "./queue";
import { duration, normalised, number } from "./text";

const LOADED_MAX = 10_000;
const AT_A_TIME = 1000;

interface Loaded {
  queue: string;
  messages: Message[];
  isWhole: boolean;
}
interface Group {
  error: string;
  messages: Message[];
  first: number;
  last: number;
}
const lastFailure = (message: Message) => message.failures?.at(-1);

async function load(name: string): Promise<Loaded> {
  const messages: Message[] = [];
  let after = -1;
  for (;;) {
    const page = await get<{ queue: string; messages: Message[]; next: number | null }>(
      queuePath(name, `/dead-letters${query({ after, limit: AT_A_TIME })}`),
    );
    messages.push(...page.messages);
    if (page.next === null || messages.length >= LOADED_MAX)
      return { queue: page.queue, messages: messages.slice(0, LOADED_MAX), isWhole: page.next === null };
    after = page.next;
  }
}

export function grouped(messages: Message[]): Group[] {
  const groups = new Map<string, Group>();
  for (const message of messages) {
    const failure = lastFailure(message);
    const error = normalised(failure?.error ?? "") || "no error was given";
    const at = failure?.failed_at ?? message.sent_at;
    const group = groups.get(error);
    if (!group) groups.set(error, { error, messages: [message], first: at, last: at });
    else {
      group.messages.push(message);
      group.first = Math.min(group.first, at);
      group.last = Math.max(group.last, at);
    }
  }
  return [...groups.values()].sort((a, b) => b.messages.length - a.messages.length);
}

export function DeadLetters({ name }: { name: string }) {
  const dead = usePolled(() => load(name), 0, [name]);
  const groups = useMemo(() => grouped(dead.value?.messages ?? []), [dead.value]);
  const [open, setOpen] = useState<string>();
  const [chosen, setChosen] = useState<Message>();
  const [picked, setPicked] = useState<Set<number>>(new Set());
  const [asked, setAsked] = useState<{ messages: Message[] | null; what: string } | "delete">();
  const from = dead.value?.queue ?? "";
  const now = Date.now() / 1000;
  const total = dead.value?.messages.length ?? 0;
  const all = `${dead.value?.isWhole ? number(total) : `more than ${number(total)}`} dead letters`;
  const toggle = (message: Message) => {
    const next = new Set(picked);
    if (!next.delete(message.sequence)) next.add(message.sequence);
    setPicked(next);
  };
  return (
    <main>
      <header class="bar">
        <h1>{name}</h1>
        <span class="grow" />
        <Button onClick={() => void dead.again()} data-key="r">
          Refresh
        </Button>
        {total > 0 && (
          <>
            <Button class="main" onClick={() => setAsked({ messages: null, what: `all messages of ${from}` })}>
              Redrive all…
            </Button>
            <Button onClick={() => setAsked("delete")}>Delete all…</Button>
          </>
        )}
      </header>
      <QueueTabs name={name} at="dead" />
      <Trouble error={dead.error} />
      {from && <Redrives queue={from} moved={dead.again} />}
      {dead.value && total === 0 && <p class="empty">No message of this queue has failed for good.</p>}
      {total > 0 && (
        <p class="note">
          {all} in <span class="mono">{from}</span>, grouped by their last error.
          {!dead.value?.isWhole && ` The groups count the oldest ${number(total)}.`}
        </p>
      )}
      {picked.size > 0 && (
        <p class="bar picked">
          {number(picked.size)} selected
          <Button
            onClick={() =>
              setAsked({
                messages: dead.value!.messages.filter((each) => picked.has(each.sequence)),
                what: "the selected messages",
              })
            }
          >
            Redrive the selection…
          </Button>
          <Button class="quiet" onClick={() => setPicked(new Set())}>
            Clear
          </Button>
        </p>
      )}
      <div class="split">
        <div>
          {groups.map((group) => (
            <section class="group" key={group.error}>
              <header class="bar">
                <b class="count">{number(group.messages.length)}</b>
                <Button
                  class="link error"
                  aria-expanded={open === group.error}
                  onClick={() => setOpen(open === group.error ? undefined : group.error)}
                >
                  {group.error}
                </Button>
                <span class="grow" />
                <small>
                  first {duration(now - group.first)} ago, last {duration(now - group.last)} ago
                </small>
                <Button onClick={() => setAsked({ messages: group.messages, what: `the group “${group.error}”` })}>
                  Redrive…
                </Button>
              </header>
              <p class="sample mono">{lastFailure(group.messages[0]!)?.error.slice(0, 300)}</p>
              {open === group.error && (
                <table class="rows">
                  <thead>
                    <tr>
                      <th>
                        <span class="hidden">select</span>
                      </th>
                      <th class="number">sequence</th>
                      <th>error</th>
                      <th class="number">attempts</th>
                    </tr>
                  </thead>
                  <tbody>
                    {group.messages.slice(0, 100).map((message) => (
                      <tr key={message.sequence} class={message === chosen ? "chosen" : ""}>
                        <td>
                          <input
                            type="checkbox"
                            aria-label={`Select message ${message.sequence}`}
                            checked={picked.has(message.sequence)}
                            onChange={() => toggle(message)}
                          />
                        </td>
                        <td class="number">
                          <Button class="link" onClick={() => setChosen(message)}>
                            {message.sequence}
                          </Button>
                        </td>
                        <td class="start">{lastFailure(message)?.error}</td>
                        <td class="number">{message.origin?.attempts}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              )}
              {open === group.error && group.messages.length > 100 && <p class="note">These are the first 100.</p>}
            </section>
          ))}
        </div>
        {chosen && <OneMessage message={chosen} close={() => setChosen(undefined)} />}
      </div>
      {asked === "delete" && (
        <Ask
          title={`Delete all dead letters of ${from}`}
          says={`Every message of the dead-letter queue ${from} is deleted, also those that came from other queues. There are ${all} of ${name}. This cannot be undone.`}
          name={from}
          button="Delete the dead letters"
          cli={["queue", "purge", from]}
          act={() => post(queuePath(from, "/purge"))}
          close={() => (setAsked(undefined), void dead.again())}
        />
      )}
      {asked && asked !== "delete" && (
        <StartRedrive
          from={from}
          messages={asked.messages}
          what={asked.what}
          close={() => (setAsked(undefined), setPicked(new Set()), setChosen(undefined), void dead.again())}
        />
      )}
    </main>
  );
}

function StartRedrive({ from, messages, what, close }: { from: string; messages: Message[] | null; what: string; close: () => void }) {
  const [rate, setRate] = useState("");
  const [target, setTarget] = useState("");
  const sequences = messages?.map((each) => each.sequence);
  const cli = [
    ...["redrive", from],
    ...(messages ?? []).flatMap((each) => ["--id", each.id]),
    ...(target ? ["--to", target] : []),
    ...(rate ? ["--rate", rate] : []),
  ];
  return (
    <Ask
      title="Redrive"
      says={
        <>
          {messages ? (
            <>
              <b>{number(messages.length)}</b> messages go back: {what}.
            </>
          ) : (
            <>Everything goes back: {what}, also those that came from other queues.</>
          )}{" "}
          Each goes to {target ? <b>{target}</b> : "the queue it came from"}, and is delivered again as if it were new.
        </>
      }
      button={messages ? `Redrive ${number(messages.length)}` : "Redrive all"}
      cli={cli}
      act={() =>
        post("/v1/redrives", {
          queue: from,
          ...(sequences ? { sequences } : {}),
          ...(target ? { target } : {}),
          ...(rate ? { rate: Number(rate) } : {}),
        })
      }
      close={close}
    >
      <div class="row">
        <Field label="Messages a second" hint="empty: as fast as it goes">
          <input type="number" min="1" max="1000000" value={rate} onInput={(event) => setRate(event.currentTarget.value)} />
        </Field>
        <Field label="To another queue" hint="empty: where each came from">
          <input value={target} onInput={(event) => setTarget(event.currentTarget.value)} />
        </Field>
      </div>
    </Ask>
  );
}

function Redrives({ queue, moved }: { queue?: string; moved?: () => Promise<void> }) {
  const [running, setRunning] = useState(false);
  const [error, setError] = useState<Error>();
  const list = usePolled(
    async () => {
      const { redrives } = await get<{ redrives: Redrive[] }>(`/v1/redrives${query({ queue })}`);
      const isRunning = redrives.some((each) => each.status === "running");
      if (running && !isRunning) void moved?.();
      setRunning(isRunning);
      return redrives;
    },
    running ? 1000 : 3000,
    [queue, running],
  );
  const redrives = list.value?.slice(0, 5) ?? [];
  if (!redrives.length) return null;
  return (
    <section>
      <h2>Redrives</h2>
      <Trouble error={error} />
      {redrives.map((each) => (
        <div key={each.task} class="bar redrive">
          <span class="mono">{each.queue}</span>
          <span class={`tag ${each.status}`}>{each.status}</span>
          <progress max={Math.max(1, each.to_move)} value={each.status === "done" ? Math.max(1, each.to_move) : each.moved} aria-label={`Redrive ${each.task}`} />
          <span>
            {number(each.moved)} moved{each.status === "running" && ` of ${number(each.to_move)} at most`}{each.skipped > 0 && `, ${number(each.skipped)} skipped`}
            {each.error && `: ${each.error}`}
          </span>
          {each.status === "running" && (
            <Button onClick={() => void post(`/v1/redrives/${each.task}/cancel`).then(list.again, setError)}>Stop</Button>
          )}
        </div>
      ))}
    </section>
  );
}

/** Every queue with dead letters. */
export function AllDead() {
  const queues = usePolled(() => get<{ queues: NamedCounts[]; next: string | null }>("/v1/stats/queues?limit=1000"), 5000, []);
  const found = (queues.value?.queues ?? [])
    .map((each) => ({ name: each.name, dead: sampleOf(each).dead }))
    .filter((each) => each.dead > 0)
    .sort((a, b) => b.dead - a.dead);
  return (
    <main>
      <h1>Dead letters</h1>
      <Trouble error={queues.error} />
      <Redrives />
      {queues.value?.next && <p class="note">These are of the first 1,000 queues by name. The page of a queue has its own.</p>}
      {queues.value && found.length === 0 && <p class="empty">No message has failed for good since the queues were made.</p>}
      {found.length > 0 && (
        <table class="rows">
          <thead>
            <tr>
              <th>queue</th>
              <th class="number">failed for good, ever</th>
            </tr>
          </thead>
          <tbody>
            {found.map((each) => (
              <tr key={each.name}>
                <td class="name">
                  <a href={`#/queues/${encodeURIComponent(each.name)}/dead`}>{each.name}</a>
                </td>
                <td class="number">{number(each.dead)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </main>
  );
}
