import { useCallback, useMemo, useRef, useState } from "preact/hooks";
import { get, post, query, type NamedCounts, type ServerStats } from "./api";
import { Ask, Chart, Field, Spark, Trouble, usePolled, useRows, Button } from "./parts";
import { bytes, duration, number, rate } from "./text";

const RATES = ["sent", "acked", "failed", "dead"] as const;
type Rates = Record<(typeof RATES)[number], number>;
type Sample = Rates & { at: number; ready: number; leased: number; delayed: number };
const SAMPLES_MAX = 1800;
const QUEUES_MAX = 1000;
const ROWS = 100;

/** Counts since the server started, as rates between two looks. Kept while the page is open. */
export class Rating {
  readonly samples: Sample[] = [];
  readonly rates: (Rates | null)[] = [];
  add(sample: Sample): void {
    const last = this.samples.at(-1);
    const seconds = last ? sample.at - last.at : 0;
    const made = last && seconds > 0 ? ({} as Rates) : null;
    if (last && made) for (const name of RATES) made[name] = Math.max(0, (sample[name] - last[name]) / seconds);
    this.samples.push(sample);
    this.rates.push(made);
    if (this.samples.length > SAMPLES_MAX) (this.samples.shift(), this.rates.shift());
  }
  get now(): Rates | null {
    return this.rates.at(-1) ?? null;
  }
}
const server = new Rating();
const byQueue = new Map<string, Rating>();

export const sampleOf = ({ stats }: NamedCounts): Sample => {
  const sum = (name: "ready" | "leased" | "delayed" | "acked" | "failed" | "dead") =>
    stats.channels.reduce((all, channel) => all + channel[name], 0);
  return {
    at: Date.now() / 1000,
    sent: stats.sent,
    acked: sum("acked"),
    failed: sum("failed"),
    dead: sum("dead"),
    ready: sum("ready"),
    leased: sum("leased"),
    delayed: sum("delayed"),
  };
};
export function rated(counts: NamedCounts): Rating {
  let rating = byQueue.get(counts.name);
  if (!rating) byQueue.set(counts.name, (rating = new Rating()));
  rating.add(sampleOf(counts));
  return rating;
}

export function LiveCharts({ rating }: { rating: Rating }) {
  const times = rating.samples.map((sample) => sample.at);
  return (
    <div class="charts">
      <Chart
        title="Messages a second, since this page was opened"
        times={times}
        lines={RATES.map((label) => ({ label, values: rating.rates.map((each) => each?.[label] ?? null) }))}
      />
      <Chart
        title="Messages by state"
        times={times}
        lines={(["ready", "leased", "delayed"] as const).map((label) => ({
          label,
          values: rating.samples.map((each) => each[label]),
        }))}
      />
    </div>
  );
}

type Row = { name: string; rating: Rating; now: Sample; oldest: number | null; paused: boolean; bytes: number };
const COLUMNS = ["name", "ready", "leased", "delayed", "dead", "oldest", "sent/s", "acked/s"] as const;
type Column = (typeof COLUMNS)[number];
const valueOf = (row: Row, column: Column): number | string =>
  column === "name"
    ? row.name
    : column === "oldest"
      ? row.oldest === null
        ? 0
        : Date.now() / 1000 - row.oldest
      : column === "sent/s"
        ? (row.rating.now?.sent ?? 0)
        : column === "acked/s"
          ? (row.rating.now?.acked ?? 0)
          : row.now[column];

export function Overview({ go }: { go: (path: string) => void }) {
  const stats = usePolled(
    async () => {
      const found = await get<ServerStats>("/v1/stats");
      server.add({ at: Date.now() / 1000, ...found });
      return found;
    },
    2000,
    [],
  );
  const now = server.now;
  const totals = stats.value;
  return (
    <main>
      <h1>Overview</h1>
      <Trouble error={stats.error} />
      {totals && (
        <dl class="tiles">
          {(
            [
              ["Queues", number(totals.queues)],
              ["Ready", number(totals.ready)],
              ["Leased", number(totals.leased)],
              ["Delayed", number(totals.delayed)],
              ["Dead-lettered", number(totals.dead)],
              ["Stored", bytes(totals.bytes)],
              ["Sessions", number(totals.sessions)],
              ["Sent /s", rate(now?.sent ?? null)],
              ["Acked /s", rate(now?.acked ?? null)],
              ["Failed /s", rate(now?.failed ?? null)],
            ] as const
          ).map(([label, value]) => (
            <div key={label}>
              <dt>{label}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      )}
      <LiveCharts rating={server} />
      <Queues go={go} />
    </main>
  );
}

function Queues({ go }: { go: (path: string) => void }) {
  const [filter, setFilter] = useState("");
  const [sort, setSort] = useState<Column>("name");
  const [descending, setDescending] = useState(false);
  const [page, setPage] = useState(0);
  const [creating, setCreating] = useState(false);
  const more = useRef(false);
  const prefix = more.current ? filter : "";
  const listed = usePolled(
    async () => {
      const found = await get<{ queues: NamedCounts[]; next: string | null }>(
        `/v1/stats/queues${query({ prefix, limit: QUEUES_MAX })}`,
      );
      more.current ||= found.next !== null;
      const rows = found.queues.map((counts): Row => {
        const rating = rated(counts);
        const { stats } = counts;
        return {
          name: counts.name,
          rating,
          now: rating.samples.at(-1)!,
          oldest: stats.oldest_sent_at,
          paused: stats.channels.some((channel) => channel.paused),
          bytes: stats.bytes,
        };
      });
      return { rows, isWhole: found.next === null };
    },
    more.current ? 5000 : 2000,
    [prefix],
  );
  const rows = useMemo(() => {
    const found = (listed.value?.rows ?? []).filter((row) => row.name.includes(filter));
    const compare = (a: Row, b: Row) => {
      const [x, y] = [valueOf(a, sort), valueOf(b, sort)];
      return x < y ? -1 : x > y ? 1 : a.name < b.name ? -1 : 1;
    };
    return found.sort((a, b) => (descending ? -compare(a, b) : compare(a, b)));
  }, [listed.value, filter, sort, descending]);
  const shown = rows.slice(page * ROWS, (page + 1) * ROWS);
  const open = useCallback((index: number) => go(`queues/${encodeURIComponent(shown[index]!.name)}`), [shown]);
  const [at] = useRows(shown.length, open);
  const choose = (column: Column) => {
    setDescending(column === sort ? !descending : column !== "name");
    setSort(column);
    setPage(0);
  };
  return (
    <section>
      <header class="bar">
        <h2>Queues</h2>
        <input
          type="search"
          class="search"
          placeholder="Filter by name  ( / )"
          aria-label="Filter queues by name"
          value={filter}
          onInput={(event) => (setFilter(event.currentTarget.value), setPage(0))}
        />
        <Button class="main" onClick={() => setCreating(true)} data-key="n">
          Create queue
        </Button>
      </header>
      <Trouble error={listed.error} />
      {listed.value && !listed.value.isWhole && (
        <p class="note">
          These are the first {number(QUEUES_MAX)} queues by name{filter && ` that begin with “${filter}”`}. Type the
          beginning of a name to see others.
        </p>
      )}
      <div class="wide">
        <table class="rows queues">
          <thead>
            <tr>
              {COLUMNS.map((column) => (
                <th
                  key={column}
                  class={column === "name" ? "" : "number"}
                  aria-sort={column === sort ? (descending ? "descending" : "ascending") : "none"}
                >
                  <Button class="sort" onClick={() => choose(column)}>
                    {column}
                    {column === sort ? (descending ? " ↓" : " ↑") : ""}
                  </Button>
                </th>
              ))}
              <th>activity</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((row, index) => (
              <tr key={row.name} class={index === at ? "at" : ""}>
                <td class="name">
                  <a href={`#/queues/${encodeURIComponent(row.name)}`}>{row.name}</a>
                  {row.paused && <span class="tag warn">paused</span>}
                </td>
                <td class="number">{number(row.now.ready)}</td>
                <td class="number">{number(row.now.leased)}</td>
                <td class="number">{number(row.now.delayed)}</td>
                <td class="number">
                  {row.now.dead ? (
                    <a class="bad" href={`#/queues/${encodeURIComponent(row.name)}/dead`}>
                      {number(row.now.dead)}
                    </a>
                  ) : (
                    0
                  )}
                </td>
                <td class="number">{row.oldest === null ? "–" : duration(Date.now() / 1000 - row.oldest)}</td>
                <td class="number">{rate(row.rating.now?.sent ?? null)}</td>
                <td class="number">{rate(row.rating.now?.acked ?? null)}</td>
                <td>
                  <Spark values={row.rating.rates.slice(-40).map((each) => (each ? each.sent + each.acked : null))} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {listed.value && rows.length === 0 && (
        <p class="empty">{filter ? "No queue has this in its name." : "There are no queues yet. Create one, or send a message to one."}</p>
      )}
      {rows.length > ROWS && (
        <nav class="pager" aria-label="Pages of queues">
          <Button disabled={page === 0} onClick={() => setPage(page - 1)}>
            Back
          </Button>
          <span>
            {page * ROWS + 1} to {Math.min(rows.length, (page + 1) * ROWS)} of {number(rows.length)}
          </span>
          <Button disabled={(page + 1) * ROWS >= rows.length} onClick={() => setPage(page + 1)}>
            On
          </Button>
        </nav>
      )}
      {creating && <CreateQueue close={() => (setCreating(false), void listed.again())} />}
    </section>
  );
}

function CreateQueue({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  return (
    <Ask
      title="Create a queue"
      says="The queue gets the default settings, which you can change on its page. A name that ends with .fifo makes a FIFO queue."
      button="Create"
      cli={["queue", "create", name || "NAME"]}
      act={() => post("/v1/queues", { name })}
      close={close}
    >
      <Field label="Name" hint="1 to 128 letters, digits, dots, dashes, underscores or #">
        <input value={name} onInput={(event) => setName(event.currentTarget.value)} required />
      </Field>
    </Ask>
  );
}
