import { useMemo, useState } from "preact/hooks";
import type { QueueHistory } from "./api";
import { Chart, Choice, Trouble, useLive, useSamples } from "./parts";
import { number, rate, seconds } from "./text";

const RATES = ["sent", "delivered", "acked", "failed", "dead"] as const;
const STATES = ["ready", "leased", "delayed"] as const;
const RANGES = [
  ["live", "Live"],
  ["hour", "Hour"],
  ["day", "Day"],
  ["week", "Week"],
] as const;
type Range = (typeof RANGES)[number][0];

/** Rates and depths of the server, or of a queue: since the page was opened, or as the server has kept them. */
export function LiveCharts({ queue }: { queue?: string }) {
  const [range, setRange] = useState<Range>("hour");
  return (
    <section class="plain" aria-label="Charts">
      <header class="bar">
        <h2>Activity</h2>
        <span class="grow" />
        <Choice label="Time" all={RANGES} now={range} set={setRange} />
      </header>
      {range === "live" ? <Now queue={queue} /> : <Kept key={range} queue={queue} range={range} />}
    </section>
  );
}

function Now({ queue }: { queue?: string }) {
  const samples = useSamples(queue);
  const times = samples.map((each) => each.at);
  return (
    <div class="charts">
      <Chart
        title="Messages a second"
        times={times}
        lines={RATES.map((label) => ({ label, values: samples.map((each) => each.rates?.[label] ?? null) }))}
        shown={rate}
      />
      <Chart title="Messages by state" times={times} lines={STATES.map((label) => ({ label, values: samples.map((each) => each[label]) }))} />
    </div>
  );
}

function Kept({ queue, range }: { queue?: string; range: Exclude<Range, "live"> }) {
  const kept = useLive("GET /v1/history", { queue, range });
  const points = kept.value;
  // The chart begins where something is known.
  const known = points?.sent.findIndex((each) => each !== null) ?? 0;
  const first = known < 0 ? 0 : known;
  const part = (names: readonly (keyof QueueHistory)[], label: (name: string) => string = String) =>
    names.map((name) => ({ label: label(name), values: (points![name] as (number | null)[]).slice(first) }));
  const times = useMemo(() => points?.at.slice(first) ?? [], [points]);
  const percentile = (name: string) => name.replace(/^.*_/, "");
  return (
    <>
      <Trouble error={kept.error} />
      {points && known < 0 && <p class="empty">Nothing is on record yet. The first point comes within half a minute. Live shows what happens now.</p>}
      {points && known >= 0 && (
        <div class="charts">
          <Chart title="Messages a second" times={times} lines={part(RATES)} shown={rate} />
          <Chart title="Messages by state" times={times} lines={part(STATES)} shown={number} />
          {queue !== undefined && (
            <>
              <Chart title="Age of the oldest message" times={times} lines={part(["oldest"])} shown={seconds} />
              <Chart
                title="From sent to received"
                times={times}
                lines={part(["receive_p50", "receive_p95", "receive_p99"], percentile)}
                shown={seconds}
              />
              <Chart title="From received to acked" times={times} lines={part(["ack_p50", "ack_p95", "ack_p99"], percentile)} shown={seconds} />
            </>
          )}
        </div>
      )}
    </>
  );
}
