import { useEffect, useState } from "preact/hooks";
import { ask, may, type ErrorGroup, type NewRedrive, type Redrive, type SeenMessage } from "./api";
import { Change, draftOf, OneMessage, Send, type Doing, type Draft } from "./messages";
import { Ask, Button, Choice, Field, Trouble, useLive, useLoaded } from "./parts";
import { QueueHeader } from "./queue";
import { duration, errorGroup, number } from "./text";

const CALLS_MAX = 50;
const SHOWN_MAX = 100;

interface Grouped {
  queue: string;
  groups: ErrorGroup[];
  lookedAt: number;
  isWhole: boolean;
}
/** All groups: the server looks at so many dead letters a call, and says where to go on. */
async function load(name: string): Promise<Grouped> {
  const groups = new Map<string, ErrorGroup>();
  let after: number | undefined;
  let lookedAt = 0;
  let queue = "";
  for (let calls = 0; calls < CALLS_MAX; calls++) {
    const page = await ask("GET /v1/queues/{queue}/dead-letters/groups", { queue: name, after });
    queue = page.queue;
    lookedAt += page.looked_at;
    for (const each of page.groups) {
      const group = groups.get(each.group);
      if (!group) groups.set(each.group, each);
      else {
        group.count += each.count;
        group.first_at = Math.min(group.first_at, each.first_at);
        group.last_at = Math.max(group.last_at, each.last_at);
      }
    }
    if (page.next === null) return { queue, groups: sorted(groups), lookedAt, isWhole: true };
    after = page.next;
  }
  return { queue, groups: sorted(groups), lookedAt, isWhole: false };
}
const sorted = (groups: Map<string, ErrorGroup>) => [...groups.values()].sort((a, b) => b.count - a.count);
const lastError = (message: SeenMessage): string => message.failures?.at(-1)?.error ?? "";

/** What a redrive, or a deletion, is about. */
interface Scope {
  what: string;
  some: Partial<Pick<NewRedrive, "group" | "sequences">>;
  cli: string[];
  isDeleting: boolean;
  /** What the page has counted: of very many messages the server counts only the first ones before it starts. */
  known: number;
}

export function DeadLetters({ name }: { name: string }) {
  const dead = useLoaded(() => load(name), [name], true);
  const [open, setOpen] = useState<string>();
  const [chosen, setChosen] = useState<SeenMessage>();
  const [picked, setPicked] = useState<Map<number, SeenMessage>>(new Map());
  const [scope, setScope] = useState<Scope>();
  const [draft, setDraft] = useState<Draft>();
  const [doing, setDoing] = useState<Doing>();
  const from = dead.value?.queue ?? "";
  const now = Date.now() / 1000;
  const total = dead.value?.groups.reduce((all, each) => all + each.count, 0) ?? 0;
  const mayChange = from !== "" && may("admin", from);
  const toggle = (message: SeenMessage) => {
    const next = new Map(picked);
    if (!next.delete(message.sequence)) next.set(message.sequence, message);
    setPicked(next);
  };
  const everything = (isDeleting: boolean): Scope => ({ what: `all messages of ${from}, also those that came from other queues`, some: {}, cli: [], isDeleting, known: total });
  const ofGroup = (group: ErrorGroup, isDeleting: boolean): Scope => ({
    what: `the group “${group.group}”`,
    some: { group: group.group },
    cli: [`--group=${group.group}`],
    isDeleting,
    known: group.count,
  });
  const selection = (isDeleting: boolean): Scope => ({
    what: "the selected messages",
    some: { sequences: [...picked.keys()] },
    cli: [...picked.values()].flatMap((each) => ["--id", each.id]),
    isDeleting,
    known: picked.size,
  });
  const refresh = () => (setPicked(new Map()), setChosen(undefined), void dead.again());
  return (
    <main>
      <QueueHeader name={name} at="dead">
        <Button onClick={refresh} data-key="r">
          Refresh
        </Button>
        {total > 0 && mayChange && (
          <>
            <Button onClick={() => setScope(everything(true))}>Delete all…</Button>
            <Button class="main" onClick={() => setScope(everything(false))}>
              Redrive all…
            </Button>
          </>
        )}
      </QueueHeader>
      <Trouble error={dead.error} />
      {from && <Redrives queue={from} moved={async () => refresh()} />}
      {dead.value && total === 0 && <p class="empty">This queue has no dead letters.</p>}
      {total > 0 && (
        <p class="note">
          {number(total)} dead letters in <span class="mono">{from}</span>, grouped by their last error, without numbers, ids and quoted text.
          {!dead.value?.isWhole && ` Only the oldest ${number(dead.value?.lookedAt ?? 0)} are counted.`}
        </p>
      )}
      {picked.size > 0 && (
        <div class="bar picked" role="region" aria-label="Selection">
          <b>{number(picked.size)} selected</b>
          <Button onClick={() => setScope(selection(false))}>Redrive the selection…</Button>
          <Button class="bad" onClick={() => setScope(selection(true))}>
            Delete the selection…
          </Button>
          <Button class="quiet" onClick={() => setPicked(new Map())}>
            Clear the selection
          </Button>
        </div>
      )}
      {total > 0 && (
        <div class="split">
          <div>
            {dead.value?.groups.map((group) => (
              <section class="group" key={group.group}>
                <header class="bar">
                  <b class="count">{number(group.count)}</b>
                  <Button class="link error" aria-expanded={open === group.group} onClick={() => setOpen(open === group.group ? undefined : group.group)}>
                    {group.group || "no error was given"}
                  </Button>
                  <span class="grow" />
                  <small>
                    first {duration(now - group.first_at)} ago, last {duration(now - group.last_at)} ago
                  </small>
                  {mayChange && (
                    <>
                      <Button class="quiet" onClick={() => setScope(ofGroup(group, true))}>
                        Delete…
                      </Button>
                      <Button onClick={() => setScope(ofGroup(group, false))}>Redrive…</Button>
                    </>
                  )}
                </header>
                <p class="sample mono">
                  {lastError(group.sample).slice(0, 300)} · {group.sample.encoding === "base64" ? "(bytes)" : group.sample.body.slice(0, 120)}
                </p>
                {open === group.group && (
                  <Letters name={name} group={group.group} chosen={chosen} choose={setChosen} picked={picked} toggle={mayChange ? toggle : undefined} />
                )}
              </section>
            ))}
          </div>
          {chosen && (
            <OneMessage
              queue={from}
              message={chosen}
              close={() => setChosen(undefined)}
              act={mayChange ? (what) => setDoing({ what, messages: [chosen] }) : undefined}
              again={may("write", name) ? () => setDraft(draftOf(chosen, from)) : undefined}
            />
          )}
        </div>
      )}
      {scope && <Start from={from} scope={scope} close={() => (setScope(undefined), refresh())} />}
      {draft && <Send queue={name} isFifo={false} draft={draft} close={() => setDraft(undefined)} />}
      {doing && <Change queue={from} channel="main" doing={doing} close={(isDone) => (setDoing(undefined), isDone && refresh())} />}
    </main>
  );
}

interface Listing {
  name: string;
  group: string;
  chosen?: SeenMessage;
  choose: (message: SeenMessage) => void;
  picked: Map<number, SeenMessage>;
  toggle?: (message: SeenMessage) => void;
}
/** The messages of a group. */
function Letters({ name, group, chosen, choose, picked, toggle }: Listing) {
  const found = useLoaded(
    async () => {
      const messages: SeenMessage[] = [];
      let after: number | undefined;
      for (let calls = 0; calls < CALLS_MAX; calls++) {
        const page = await ask("GET /v1/queues/{queue}/dead-letters", { queue: name, after, limit: 1000 });
        messages.push(...page.messages.filter((each) => errorGroup(lastError(each)) === group));
        if (page.next === null || messages.length >= SHOWN_MAX) return { messages: messages.slice(0, SHOWN_MAX), isWhole: page.next === null };
        after = page.next;
      }
      return { messages, isWhole: false };
    },
    [name, group],
  );
  return (
    <>
      <Trouble error={found.error} />
      <table class="rows letters">
        <thead>
          <tr>
            {toggle && (
              <th class="pick">
                <span class="hidden">select</span>
              </th>
            )}
            <th class="number">sequence</th>
            <th>error</th>
            <th class="number">attempts</th>
          </tr>
        </thead>
        <tbody>
          {found.value?.messages.map((message) => (
            <tr key={message.sequence} class={message.sequence === chosen?.sequence ? "chosen" : ""}>
              {toggle && (
                <td class="pick">
                  <input type="checkbox" aria-label={`Select message ${message.sequence}`} checked={picked.has(message.sequence)} onChange={() => toggle(message)} />
                </td>
              )}
              <td class="number">
                <Button class="link" onClick={() => choose(message)} aria-label={`Show message ${message.sequence}`}>
                  {message.sequence}
                </Button>
              </td>
              <td class="start">{lastError(message)}</td>
              <td class="number">{message.origin?.attempts}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {found.value && !found.value.isWhole && <p class="note">Only the first {SHOWN_MAX} are shown.</p>}
    </>
  );
}

/** Says how many messages it is about, as the server counts them, before anything happens. */
function Start({ from, scope, close }: { from: string; scope: Scope; close: () => void }) {
  const [rate, setRate] = useState("");
  const [target, setTarget] = useState("");
  const { isDeleting } = scope;
  const counted = useLoaded(
    () => ask("POST /v1/redrives", { body: { queue: from, ...scope.some, discard: isDeleting, target: target || null, dry_run: true } }),
    [target],
    true,
  );
  const isWhole = counted.value?.counted_all !== false;
  const most = counted.value && (isWhole ? counted.value.to_move : Math.max(counted.value.to_move, scope.known));
  const count = most === undefined ? "…" : number(most);
  const isOne = most === 1;
  const verbOf = isOne ? (isDeleting ? "is deleted" : "goes back") : isDeleting ? "are deleted" : "go back";
  const verb = isDeleting ? "Delete" : "Redrive";
  return (
    <Ask
      title={`${verb} dead letters`}
      says={
        <>
          <Trouble error={counted.error} />
          {!isWhole && "About "}
          <b>{count}</b> {isOne ? "message" : "messages"} {verbOf}: {scope.what}.{" "}
          {isDeleting ? (
            "This cannot be undone. Stop keeps the messages that are not yet deleted."
          ) : (
            <>Each goes to {target ? <b>{target}</b> : "the queue that it came from"}, and is delivered again as if it were new.</>
          )}
        </>
      }
      button={`${verb} ${isWhole ? "" : "about "}${count}`}
      isWaiting={!!counted.error || !most}
      name={isDeleting && !scope.some.sequences ? from : undefined}
      destroys={isDeleting}
      cli={["redrive", from, ...scope.cli, ...(isDeleting ? ["--discard"] : []), ...(target ? [`--to=${target}`] : []), ...(rate ? ["--rate", rate] : [])]}
      act={() =>
        ask("POST /v1/redrives", {
          body: { queue: from, ...scope.some, discard: isDeleting, target: target || null, rate: rate ? Number(rate) : null },
        })
      }
      done={isDeleting ? "The deletion is under way." : "The redrive is under way."}
      close={close}
    >
      <div class="row">
        <Field label="Messages a second" hint="empty: as fast as possible">
          <input type="number" min="1" max="1000000" value={rate} onInput={(event) => setRate(event.currentTarget.value)} />
        </Field>
        {!isDeleting && (
          <Field label="To another queue" hint="empty: the queue that each came from">
            <input value={target} onInput={(event) => setTarget(event.currentTarget.value)} />
          </Field>
        )}
      </div>
    </Ask>
  );
}

/** Redrives and deletions, how far they are, and a button that stops them. */
function Redrives({ queue, moved }: { queue?: string; moved?: () => Promise<void> }) {
  const [isRunning, setRunning] = useState(false);
  const [error, setError] = useState<Error>();
  const list = useLive("GET /v1/redrives", { queue }, true);
  const redrives = list.value?.redrives.slice(0, 5) ?? [];
  const runs = redrives.some((each) => each.status === "running");
  useEffect(() => {
    if (isRunning && !runs) void moved?.();
    setRunning(runs);
  }, [runs]);
  if (!redrives.length) return null;
  return (
    <section aria-label="Redrives">
      <h2>Redrives</h2>
      <Trouble error={error} />
      {redrives.map((each) => (
        <Progress key={each.task} redrive={each} stop={() => void ask("POST /v1/redrives/{task}/cancel", { task: String(each.task) }).then(list.again, setError)} />
      ))}
    </section>
  );
}

function Progress({ redrive, stop }: { redrive: Redrive; stop: () => void }) {
  const { status, moved, to_move, skipped, error, discard, group } = redrive;
  return (
    <div class="bar redrive">
      <span class="mono">{redrive.queue}</span>
      {group && <span class="note">{group}</span>}
      <span class={`tag ${status}`}>{status}</span>
      <progress max={Math.max(1, to_move)} value={status === "done" ? Math.max(1, to_move) : moved} aria-label={`Redrive ${redrive.task}`} />
      <span>
        {number(moved)} {discard ? "deleted" : "moved"}
        {status === "running" && ` of ${number(to_move)} at most`}
        {skipped > 0 && `, ${number(skipped)} skipped`}
        {error && `: ${error}`}
      </span>
      {status === "running" && may("admin", redrive.queue) && <Button onClick={stop}>Stop</Button>}
    </div>
  );
}

/** Every queue with dead letters: the server sorts, so that those with most come first, however many queues there are. */
export function AllDead() {
  const [view, setView] = useState<"dead_letters" | "failed">("dead_letters");
  const queues = useLive("GET /v1/overview/queues", { sort: view, descending: true, limit: 200 }, true);
  const found = (queues.value?.queues ?? []).filter((each) => (view === "failed" ? !!each.rates?.failed : each.dead_letters > 0));
  return (
    <main>
      <header class="bar">
        <h1>Dead letters</h1>
        <span class="grow" />
        <Choice
          label="Order"
          all={
            [
              ["dead_letters", "Most dead letters"],
              ["failed", "Failing now"],
            ] as const
          }
          now={view}
          set={setView}
        />
      </header>
      <Trouble error={queues.error} />
      <Redrives />
      {queues.value && found.length === 0 && <p class="empty">{view === "failed" ? "No messages are failing at the moment." : "There are no dead letters."}</p>}
      {found.length > 0 && (
        <section>
          <table class="rows">
            <thead>
              <tr>
                <th>queue</th>
                <th class="number">dead letters</th>
                <th class="number roomy">dead-lettered, ever</th>
                <th class="number">failed/s</th>
                <th class="number">dead/s</th>
              </tr>
            </thead>
            <tbody>
              {found.map((each) => (
                <tr key={each.name}>
                  <td class="name">
                    <a href={`#/queues/${encodeURIComponent(each.name)}/dead`}>{each.name}</a>
                  </td>
                  <td class="number">{number(each.dead_letters)}</td>
                  <td class="number roomy">{number(each.dead)}</td>
                  <td class="number">{(each.rates?.failed ?? 0).toFixed(1)}</td>
                  <td class="number">{(each.rates?.dead ?? 0).toFixed(1)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </main>
  );
}
