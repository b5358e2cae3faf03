import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { address, ask, askAt, stream, type ChannelCounts, type NamedCounts, type QueueCountsList } from "./api";
import { Cli, Trouble, useLive, useLoaded, type Loaded, Wide } from "./parts";
import { duration, number, rate } from "./text";

const AT_A_TIME = 1000;
const LOOKS_MAX = 20;
const WATCHED_MAX = 8;

interface Stream {
  queue: string;
  channel: ChannelCounts;
  kind: "pipeline" | "stream";
  label: string;
  pipeline?: string;
}
interface Moved {
  acked: number;
  at: number;
  moved: number | null;
  perSecond: number | null;
}

/** A channel that a streaming query of Spark reads, or null. */
function streamOf(queue: string, channel: ChannelCounts): Stream | null {
  const { name } = channel;
  if (name.startsWith("pipeline.")) {
    const [, pipeline, sink] = name.split(".");
    return { queue, channel, kind: "pipeline", pipeline, label: sink ? `${pipeline}, sink ${sink}` : (pipeline ?? name) };
  }
  return /^spark[-.]|^penstock-spark/.test(name) ? { queue, channel, kind: "stream", label: name } : null;
}

/** The counts of all queues: a look at every page of them, and the first pages from then on whenever they change. */
function useCounts(): Loaded<NamedCounts[]> {
  const [news, setNews] = useState(new Map<string, QueueCountsList>());
  const whole = useLoaded(async () => {
    const pages = new Map<string, QueueCountsList>();
    let after: string | undefined;
    do {
      const path = address("GET /v1/stats/queues", { limit: AT_A_TIME, after })[1];
      const page: QueueCountsList = await askAt<"GET /v1/stats/queues">("GET", path);
      pages.set(path, page);
      after = page.next ?? undefined;
    } while (after !== undefined && pages.size < LOOKS_MAX);
    return pages;
  }, []);
  const watched = [...(whole.value?.keys() ?? [])].slice(0, WATCHED_MAX);
  useEffect(() => {
    const ends = watched.map((path) =>
      stream.watch(path, (answer, error) => {
        if (!error) setNews((now) => new Map(now).set(path, answer as QueueCountsList));
      }),
    );
    return () => ends.forEach((end) => end());
  }, [watched.join(" ")]);
  const value = whole.value && [...whole.value].flatMap(([path, page]) => (news.get(path) ?? page).queues);
  return { value, error: whole.error, again: whole.again };
}

/** Streams and pipelines, as far as this server knows them: each reads a channel of its own. */
export function Spark() {
  const before = useRef(new Map<string, Moved>());
  const [opened] = useState(Date.now() / 1000);
  const counts = useCounts();
  const found = useMemo(() => {
    if (!counts.value) return undefined;
    const at = Date.now() / 1000;
    const streams = counts.value.flatMap(({ name, stats }) => stats.channels.map((channel) => streamOf(name, channel))).filter((each) => each !== null);
    return streams.map((each) => {
      const key = `${each.queue}/${each.channel.name}`;
      const last = before.current.get(key);
      const moved = last && each.channel.acked === last.acked ? last.moved : last ? at : null;
      const perSecond = last && at - last.at > 0.5 ? (each.channel.acked - last.acked) / (at - last.at) : (last?.perSecond ?? null);
      if (!last || at - last.at > 0.5) before.current.set(key, { acked: each.channel.acked, at, moved, perSecond });
      return { ...each, perSecond, moved };
    });
  }, [counts.value]);
  const rows = found ?? [];
  const pipelines = [...new Set(rows.flatMap((each) => each.pipeline ?? []))];
  const now = Date.now() / 1000;
  return (
    <main>
      <h1>Spark</h1>
      <p class="note">Each streaming query reads its own channel. Its lag is the messages that it has not processed yet. They are kept.</p>
      <Trouble error={counts.error} />
      {found && !rows.length && (
        <p class="empty">
          No stream and no pipeline reads from this server. <code>spark.readStream.format("penstock")</code> starts one.
        </p>
      )}
      {rows.length > 0 && (
        <section>
          <h2>Streams and pipelines</h2>
          <Wide>
            <table class="streams">
              <thead>
                <tr>
                  <th>name</th>
                  <th>kind</th>
                  <th>queue</th>
                  <th class="number">lag</th>
                  <th class="number">behind by</th>
                  <th class="number">processed</th>
                  <th class="number">processed/s</th>
                  <th class="number">last batch</th>
                </tr>
              </thead>
              <tbody>
                {rows.map((each) => (
                  <tr key={`${each.queue}/${each.channel.name}`}>
                    <td class="name" title={each.channel.name}>
                      {each.label}
                      {each.channel.paused && <span class="tag warn">paused</span>}
                    </td>
                    <td>{each.kind}</td>
                    <td>
                      <a href={`#/queues/${encodeURIComponent(each.queue)}`}>{each.queue}</a>
                    </td>
                    <td class="number">{number(each.channel.ready + each.channel.leased + each.channel.delayed)}</td>
                    <td class="number">{each.channel.oldest_sent_at === null ? "–" : duration(now - each.channel.oldest_sent_at)}</td>
                    <td class="number">{number(each.channel.acked)}</td>
                    <td class="number">{rate(each.perSecond)}</td>
                    <td class="number">{each.moved !== null ? `${duration(now - each.moved)} ago` : each.channel.acked ? `over ${duration(now - opened)} ago` : "–"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Wide>
        </section>
      )}
      <Reports />
      {pipelines.map((each) => (
        <Rejects key={each} pipeline={each} sources={[...new Set(rows.filter((row) => row.pipeline === each).map((row) => row.queue))]} />
      ))}
      <section>
        <h2>Rollup report</h2>
        <p>The pipeline rollup makes a page with rates, latencies and failures over days, from the event records of the server.</p>
        <Cli words={["pipeline", "run", "rollup", "--table", "metrics", "--window", "10 seconds", "--report", "report.html"]} />
      </section>
    </main>
  );
}

const REPORTS = "penstock.pipelines";
const REPORTS_MAX = 500;
/** Of one run, and of one of its queries: whoever may write to the queue could have the page draw for minutes. */
const QUERIES_MAX = 100;
const REASONS_MAX = 50;
const SILENT_S = 60;
const LOOK_AT_CLOCK_MS = 5_000;

interface Report {
  at: number;
  pipeline: string;
  state: string;
  queries: { name: string; state: string; batches: number | null; rows: number | null; perSecond: number | null; lag: number | null; error: string; rejects: [string, number][] }[];
}

/** What a pipeline has reported, or null: whoever may write to the queue may have written anything. */
function reportOf(body: string, pipeline: string, at: number): Report | null {
  const text = (value: unknown) => (typeof value === "string" ? value : "");
  const count = (value: unknown) => (typeof value === "number" ? value : null);
  try {
    const told = JSON.parse(body);
    const queries = told.queries.slice(0, QUERIES_MAX).map((each: Record<string, unknown>) => ({
      name: text(each.query),
      state: text(each.state),
      batches: count(each.batches),
      rows: count(each.rows),
      perSecond: count(each.rows_per_s),
      lag: count(each.lag),
      error: text(each.error),
      rejects: Object.entries(each.rejects ?? {}).slice(0, REASONS_MAX).map(([reason, rows]) => [reason, count(rows) ?? 0]),
    }));
    return { at, pipeline, state: text(told.state), queries };
  } catch {
    return null;
  }
}

/** The newest report of each pipeline. Once all are known, only what is new is read. */
function useReports(): Loaded<Report[]> {
  const counts = useLive("GET /v1/stats/queues", { prefix: REPORTS, limit: 1 }, true);
  const known = useRef({ next: 0, newest: new Map<string, Report>() });
  const end = counts.value?.queues.find((each) => each.name === REPORTS)?.stats.end_offset ?? 0;
  const reports = useLoaded(
    async () => {
      const { newest } = known.current;
      if (end < known.current.next) known.current.next = 0; // the queue was made anew
      let offset = Math.max(known.current.next, end - REPORTS_MAX);
      while (offset < end) {
        const page = await ask("GET /v1/queues/{queue}/records", { queue: REPORTS, offset, max: REPORTS_MAX });
        for (const each of page.records) {
          const report = reportOf(each.body, each.key ?? "", each.timestamp);
          if (report) newest.set(report.pipeline, report);
        }
        if (page.next_offset <= offset) break;
        offset = page.next_offset;
      }
      known.current.next = offset;
      return [...newest.values()].sort((one, other) => one.pipeline.localeCompare(other.pipeline));
    },
    [end],
    true,
  );
  return { ...reports, error: counts.error ?? reports.error };
}

/** What runs of pipelines say of themselves, in a queue of this server. */
function Reports() {
  const found = useReports();
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    const clock = setInterval(() => setNow(Date.now() / 1000), LOOK_AT_CLOCK_MS);
    return () => clearInterval(clock);
  }, []);
  if (!found.value?.length) return <Trouble error={found.error} />;
  const shown = (count: number | null) => (count === null ? "–" : number(count));
  return (
    <section>
      <header class="bar">
        <h2>Runs of pipelines</h2>
        <small>
          as they report in <a href={`#/queues/${REPORTS}`}>{REPORTS}</a>
        </small>
      </header>
      <Trouble error={found.error} />
      <Wide>
        <table class="runs">
          <thead>
            <tr>
              <th>pipeline</th>
              <th>query</th>
              <th class="number">batches</th>
              <th class="number">rows</th>
              <th class="number">rows/s</th>
              <th class="number">lag</th>
              <th>rejected rows, by reason</th>
              <th class="number">reported</th>
            </tr>
          </thead>
          <tbody>
            {found.value.flatMap((run) =>
              run.queries.map((each, index) => (
                <tr key={`${run.pipeline} ${index}`}>
                  <td class="name">
                    {index === 0 && run.pipeline}
                    {index === 0 && ["running", "starting"].includes(run.state) && now - run.at > SILENT_S && <span class="tag warn">no report for {duration(now - run.at)}</span>}
                  </td>
                  <td>
                    {each.name}
                    <span class={`tag ${each.state === "failed" ? "bad" : each.state === "running" || each.state === "done" ? each.state : ""}`}>{each.state}</span>
                    {each.error && <div class="mono">{each.error}</div>}
                  </td>
                  <td class="number">{shown(each.batches)}</td>
                  <td class="number">{shown(each.rows)}</td>
                  <td class="number">{rate(each.perSecond)}</td>
                  <td class="number">{shown(each.lag)}</td>
                  <td>
                    {each.rejects.map(([reason, rows]) => (
                      <div key={reason}>
                        {reason}: {number(rows)}
                      </div>
                    ))}
                  </td>
                  <td class="number">{duration(Math.max(0, now - run.at))} ago</td>
                </tr>
              )),
            )}
          </tbody>
        </table>
      </Wide>
    </section>
  );
}

/** Rows that a pipeline could not work on, by reason: as far as they are dead letters of the queues that it reads. */
function Rejects({ pipeline, sources }: { pipeline: string; sources: string[] }) {
  const found = useLoaded(async () => {
    const groups = await Promise.all(
      sources.map(async (queue) => {
        const { groups } = await ask("GET /v1/queues/{queue}/dead-letters/groups", { queue });
        return groups.filter((each) => each.sample.attributes?.["penstock.pipeline"] === pipeline).map((each) => ({ ...each, source: queue }));
      }),
    );
    return groups.flat();
  }, [pipeline, sources.join(" ")]);
  const now = Date.now() / 1000;
  return (
    <section>
      <header class="bar">
        <h2>
          Rows that <span class="mono">{pipeline}</span> rejected
        </h2>
        <small>dead letters of its queues, by reason</small>
      </header>
      <Trouble error={found.error} />
      {found.value?.length === 0 && (
        <p class="empty">
          None among the dead letters of {sources.join(", ")}. Rows go there when the pipeline's <code>dead_letters</code> is the queue's own dead-letter queue.
        </p>
      )}
      {!!found.value?.length && (
        <Wide>
          <table class="rejects">
            <thead>
              <tr>
                <th class="number">rows</th>
                <th>reason</th>
                <th>queue</th>
                <th class="number">last</th>
              </tr>
            </thead>
            <tbody>
              {found.value.map((each) => (
                <tr key={`${each.source} ${each.group}`}>
                  <td class="number">{number(each.count)}</td>
                  <td>{each.group}</td>
                  <td>
                    <a href={`#/queues/${encodeURIComponent(each.source)}/dead`}>{each.source}</a>
                  </td>
                  <td class="number">{duration(now - each.last_at)} ago</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      )}
      <Cli words={["pipeline", "status", `${pipeline}.yaml`]} />
    </section>
  );
}
