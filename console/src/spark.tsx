import { useRef } from "preact/hooks";
import { ask, type ChannelCounts } from "./api";
import { Cli, Trouble, usePolled } from "./parts";
import { duration, number, rate } from "./text";

const AT_A_TIME = 1000;
const LOOKS_MAX = 20;

interface Stream {
  queue: string;
  channel: ChannelCounts;
  kind: "pipeline" | "stream";
  label: string;
}

/** A channel that a streaming query of Spark reads, or null. */
function streamOf(queue: string, channel: ChannelCounts): Stream | null {
  const { name } = channel;
  if (name.startsWith("pipeline.")) {
    const [, pipeline, sink] = name.split(".");
    return { queue, channel, kind: "pipeline", label: sink ? `${pipeline}, sink ${sink}` : (pipeline ?? name) };
  }
  return /^spark[-.]|^penstock-spark/.test(name) ? { queue, channel, kind: "stream", label: name } : null;
}

/** Streams and pipelines, as far as this server knows them: each reads a channel of its own. */
export function Spark() {
  const before = useRef(new Map<string, { acked: number; at: number; moved: number | null }>());
  const found = usePolled(
    async () => {
      const streams: Stream[] = [];
      let after: string | undefined;
      for (let look = 0; look < LOOKS_MAX; look++) {
        const page = await ask("GET /v1/stats/queues", { limit: AT_A_TIME, after });
        for (const { name, stats } of page.queues)
          for (const channel of stats.channels) {
            const made = streamOf(name, channel);
            if (made) streams.push(made);
          }
        if (page.next === null) break;
        after = page.next;
      }
      const at = Date.now() / 1000;
      return streams.map((each) => {
        const key = `${each.queue}/${each.channel.name}`;
        const last = before.current.get(key);
        const moved = last && each.channel.acked === last.acked ? last.moved : last ? at : null;
        const perSecond = last && at > last.at ? (each.channel.acked - last.acked) / (at - last.at) : null;
        before.current.set(key, { acked: each.channel.acked, at, moved });
        return { ...each, perSecond, moved };
      });
    },
    3000,
    [],
  );
  const rows = found.value ?? [];
  const now = Date.now() / 1000;
  return (
    <main>
      <h1>Spark</h1>
      <p class="note">Each streaming query reads a channel of its own. What it has not processed is its lag, and is kept.</p>
      <Trouble error={found.error} />
      {found.value && !rows.length && (
        <p class="empty">
          No stream and no pipeline reads from this server. <code>spark.readStream.format("penstock")</code> starts one.
        </p>
      )}
      {rows.length > 0 && (
        <section>
          <h2>Streams and pipelines</h2>
          <div class="wide">
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
                    <td class="number">{each.moved === null ? "before this page" : `${duration(now - each.moved)} ago`}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
      <section>
        <h2>Rollup report</h2>
        <p>Rates, latencies and failures over days, from the events that the server writes: a pipeline makes a page of them.</p>
        <Cli words={["pipeline", "run", "rollup", "--table", "metrics", "--window", "10 seconds", "--report", "report.html"]} />
      </section>
    </main>
  );
}
