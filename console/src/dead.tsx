import { useEffect, useRef, useState } from "preact/hooks";
import { ask, may, type ErrorGroup, type NewRedrive, type Redrive, type SeenMessage } from "./api";
import { Change, draftOf, OneMessage, Send, type Doing, type Draft } from "./messages";
import { Ask, Button, Choice, Field, Trouble, useLive, useLoaded, useRows } from "./parts";
import { QueueHeader } from "./queue";
import { counted, duration, errorGroup, moment, number } from "./text";

const CALLS_MAX = 50;
const SHOWN_MAX = 100;
const SOURCES_OF = 100;
const BODY_MAX = 300;

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
/** The queues that the first messages of a queue came from as dead letters. */
async function sourcesOf(queue: string): Promise<string[]> {
  const { messages } = await ask("GET /v1/queues/{queue}/messages", { queue, limit: SOURCES_OF });
  return [...new Set(messages.flatMap((each) => (each.origin ? [each.origin.queue] : [])))];
}
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
  const isEmpty = dead.value?.groups.length === 0;
  const sources = useLoaded(async () => (isEmpty ? sourcesOf(name) : []), [name, isEmpty]);
  // What is shown stands still while somebody reads it. The stream says when it is old.
  const watched = isEmpty ? name : from || name; // the dead-letter queue need not exist
  const { value: held } = useLive("GET /v1/queues/{queue}", { queue: watched }, true);
  const counts = held?.name === watched ? JSON.stringify([watched, held.stats.sent, held.stats.messages, held.stats.channels.map((each) => each.dead)]) : "";
  const [shownOf, setShownOf] = useState("");
  useEffect(() => setShownOf(""), [dead.value]);
  useEffect(() => void (shownOf || setShownOf(counts)), [counts, shownOf]);
  const isOld = !!shownOf && shownOf !== counts;
  const now = Date.now() / 1000;
  const total = dead.value?.groups.reduce((all, each) => all + each.count, 0) ?? 0;
  const mayChange = from !== "" && may("admin", from);
  const pick = (messages: SeenMessage[], isPicked: boolean) => {
    const next = new Map(picked);
    for (const each of messages)
      if (isPicked) next.set(each.sequence, each);
      else next.delete(each.sequence);
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
  const groups = dead.value?.groups ?? [];
  const show = (group: string) => setOpen(open === group ? undefined : group);
  const [at] = useRows(groups.length, (index) => show(groups[index]!.group));
  const refresh = () => (setPicked(new Map()), setChosen(undefined), void dead.again());
  return (
    <main>
      <QueueHeader name={name} at="dead">
        <Button onClick={refresh} data-key="r">
          {isOld ? "Refresh: there are changes" : "Refresh"}
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
      {from && <Redrives queue={from} moved={dead.again} />}
      {isEmpty && (
        <p class="empty">
          This queue has no dead letters.
          {!!sources.value?.length && (
            <>
              {" "}
              It is the dead-letter queue of{" "}
              {sources.value.map((each, index) => (
                <>
                  {index > 0 && ", "}
                  <a href={`#/queues/${encodeURIComponent(each)}/dead`}>{each}</a>
                </>
              ))}
              : its own messages are shown there, in groups.
            </>
          )}
        </p>
      )}
      {total > 0 && (
        <p class="note">
          {counted(total, "dead letter")} in <span class="mono">{from}</span>, grouped by their last error, without numbers, ids and quoted text.
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
            {groups.map((group, index) => (
              <section class={index === at ? "group at" : "group"} key={group.group}>
                <header>
                  <b class="count">{number(group.count)}</b>
                  <div>
                    <Button class="link error" aria-expanded={open === group.group} onClick={() => show(group.group)}>
                      {group.group || "no error was given"}
                    </Button>{" "}
                    <small title={`${moment(group.first_at)} to ${moment(group.last_at)}`}>
                      first {duration(now - group.first_at)} ago, last {duration(now - group.last_at)} ago
                    </small>
                  </div>
                  {mayChange && (
                    <div class="does">
                      <Button class="quiet" onClick={() => setScope(ofGroup(group, true))}>
                        Delete…
                      </Button>
                      <Button onClick={() => setScope(ofGroup(group, false))}>Redrive…</Button>
                    </div>
                  )}
                </header>
                <p class="sample mono">
                  {lastError(group.sample).slice(0, 300)} · {group.sample.encoding === "base64" ? "(bytes)" : group.sample.body.slice(0, 120)}
                </p>
                {open === group.group && (
                  <Letters name={name} group={group.group} of={dead.value} chosen={chosen} choose={setChosen} picked={picked} pick={mayChange ? pick : undefined} />
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
      {scope && <Start from={from} scope={scope} started={refresh} close={() => setScope(undefined)} />}
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
  pick?: (messages: SeenMessage[], isPicked: boolean) => void;
  /** The groups as they were loaded: with newer ones, the messages are loaded again. */
  of: unknown;
}
/** The messages of a group. */
function Letters({ name, group, of, chosen, choose, picked, pick }: Listing) {
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
    [name, group, of],
    true,
  );
  const shown = found.value?.messages ?? [];
  const all = shown.length > 0 && shown.every((each) => picked.has(each.sequence));
  return (
    <>
      <Trouble error={found.error} />
      <table class="rows letters">
        <thead>
          <tr>
            {pick && (
              <th class="pick">
                <input type="checkbox" aria-label="Select all that are shown of this group" checked={all} onChange={() => pick(shown, !all)} />
              </th>
            )}
            <th class="number">sequence</th>
            <th>failed (UTC)</th>
            <th>error</th>
            <th>body</th>
            <th class="number">attempts</th>
          </tr>
        </thead>
        <tbody>
          {shown.map((message) => (
            <tr key={message.sequence} class={message.sequence === chosen?.sequence ? "chosen" : ""}>
              {pick && (
                <td class="pick">
                  <input type="checkbox" aria-label={`Select message ${message.sequence}`} checked={picked.has(message.sequence)} onChange={() => pick([message], !picked.has(message.sequence))} />
                </td>
              )}
              <td class="number">
                <Button class="link" onClick={() => choose(message)} aria-label={`Show message ${message.sequence}`}>
                  {message.sequence}
                </Button>
              </td>
              <td class="when">{moment(message.failures?.at(-1)?.failed_at ?? message.sent_at).replace(" UTC", "")}</td>
              <td class="start" title={lastError(message)}>
                {lastError(message)}
              </td>
              <td class="start">{message.encoding === "base64" ? "(bytes)" : message.body.slice(0, BODY_MAX)}</td>
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
function Start({ from, scope, started, close }: { from: string; scope: Scope; started: () => void; close: () => void }) {
  const [rate, setRate] = useState("");
  const [target, setTarget] = useState("");
  const [creates, setCreates] = useState(false);
  const { isDeleting } = scope;
  const counted = useLoaded(
    () => ask("POST /v1/redrives", { body: { queue: from, ...scope.some, discard: isDeleting, target: target || null, create: creates, dry_run: true } }),
    [target, creates],
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
      name={isDeleting && scope.known !== 1 ? from : undefined}
      destroys={isDeleting}
      cli={["redrive", from, ...scope.cli, ...(isDeleting ? ["--discard"] : []), ...(target ? [`--to=${target}`, ...(creates ? ["--create"] : [])] : []), ...(rate ? ["--rate", rate] : [])]}
      act={() =>
        ask("POST /v1/redrives", {
          body: { queue: from, ...scope.some, discard: isDeleting, target: target || null, create: creates, until: counted.value?.started_at, rate: rate ? Number(rate) : null },
        }).then(started)
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
        {target && (
          <label class="check">
            <input type="checkbox" checked={creates} onChange={() => setCreates(!creates)} /> create it if it does not exist
          </label>
        )}
      </div>
    </Ask>
  );
}

/** Redrives and deletions, how far they are, and a button that stops them. */
function Redrives({ queue, moved }: { queue?: string; moved?: () => Promise<void> }) {
  const ended = useRef<string>();
  const [error, setError] = useState<Error>();
  const list = useLive("GET /v1/redrives", { queue }, true);
  const redrives = list.value?.redrives.slice(0, 5) ?? [];
  const over = redrives.flatMap((each) => (each.status === "running" ? [] : [each.task])).join();
  useEffect(() => {
    if (!list.value) return;
    if (ended.current !== undefined && ended.current !== over) void moved?.();
    ended.current = over;
  }, [list.value, over]);
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
  const { status, moved, to_move, skipped, error, discard, group, target, selected, started_at } = redrive;
  const left = to_move - moved - skipped;
  return (
    <div class="bar redrive">
      <span class="mono">{redrive.queue}</span>
      {target && <span>to {target}</span>}
      {group && <span class="note">{group}</span>}
      {selected != null && <span class="note">{number(selected)} selected</span>}
      <span class={`tag ${status}`}>{status}</span>
      <progress max={Math.max(1, to_move)} value={status === "done" ? Math.max(1, to_move) : moved} aria-label={`Redrive ${redrive.task}`} />
      <span>
        {number(moved)} {discard ? "deleted" : "moved"}
        {skipped > 0 && selected == null && `, ${number(skipped)} left where they are`}
        {status === "running" && left > 0 && `, ${number(left)} still to look at`}
        {error && `: ${error}`}
      </span>
      <small title={moment(started_at)}>{duration(Date.now() / 1000 - started_at)} ago</small>
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
