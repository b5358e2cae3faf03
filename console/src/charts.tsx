import { useMemo, useState } from "preact/hooks";
import { mayAll, type QueueHistory } from "./api";
import { Chart, Choice, Trouble, useLive, useSamples } from "./parts";
import { duration } from "./text";

const RATES = ["sent", "delivered", "acked", "failed", "dead"] as const;
const STATES = ["ready", "leased", "delayed"] as const;
const RANGES = [
  ["live", "Live"],
  ["hour", "Hour"],
  ["day", "Day"],
  ["week", "Week"],
] as const;
type Range = (typeof RANGES)[number][0];
/** The newest slots are still being filled. */
const UNFILLED_MAX = 2;

/** Rates and depths of the server, or of a queue: since the page was opened, or as the server has kept them. */
export function LiveCharts({ queue }: { queue?: string }) {
  const isKept = queue !== undefined || mayAll("read"); // the server keeps nothing of the queues of one person
  const [range, setRange] = useState<Range>(isKept ? "hour" : "live");
  return (
    <section class="plain" aria-label="Charts">
      <header class="bar">
        <h2>
          Activity <small>times in UTC</small>
        </h2>
        <span class="grow" />
        {isKept && <Choice label="Time" all={RANGES} now={range} set={setRange} />}
      </header>
      {!isKept && <p class="note">Since you opened the page, and only of the queues that you may read. To see the history of the whole server, you need the right to read all queues.</p>}
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
        scale="rate"
        nothing="No message has come or gone since you opened the page."
      />
      <Chart
        title="Messages by state"
        times={times}
        lines={STATES.map((label) => ({ label, values: samples.map((each) => each[label]) }))}
        nothing="No message waits."
      />
    </div>
  );
}

function Kept({ queue, range }: { queue?: string; range: Exclude<Range, "live"> }) {
  const kept = useLive("GET /v1/history", { queue, range });
  const points = kept.value;
  // The chart begins where something is known, and ends with the newest point.
  const { first, end } = useMemo(() => {
    const sent = points?.sent ?? [];
    const first = sent.findIndex((each) => each !== null);
    let end = sent.length;
    while (sent.length - end < UNFILLED_MAX && end > 0 && sent[end - 1] === null) end -= 1;
    return { first, end };
  }, [points]);
  const times = useMemo(() => points?.at.slice(Math.max(0, first), end) ?? [], [points]);
  if (!points) return <Trouble error={kept.error} />;
  if (first < 0)
    return (
      <>
        <p class="note">
          There is no history yet{queue !== undefined && ": the server keeps it only for the busiest queues"}. This is what happens now:
        </p>
        <Now queue={queue} />
      </>
    );
  const part = (names: readonly (keyof QueueHistory)[], label: (name: string) => string = String) =>
    names.map((name) => ({ label: label(name), values: (points[name] as (number | null)[]).slice(first, end) }));
  const percentile = (name: string) => name.replace(/^.*_/, "");
  const none = first > 0 ? "since the history began" : `in this ${range}`;
  return (
    <>
      <Trouble error={kept.error} />
      <div class="charts">
        <Chart title="Messages a second" times={times} lines={part(RATES)} scale="rate" nothing={`No message came or went ${none}.`} />
        <Chart title="Messages by state" times={times} lines={part(STATES)} nothing={`No message waited ${none}.`} />
        {queue !== undefined && (
          <>
            <Chart title="Age of the oldest message" times={times} lines={part(["oldest"])} scale="length" nothing={`No message waited ${none}.`} />
            <Chart
              title="From sent to received"
              times={times}
              lines={part(["receive_p50", "receive_p95", "receive_p99"], percentile)}
              scale="length"
              nothing={`No receive was measured ${none}.`}
            />
            <Chart
              title="From sent to acked"
              times={times}
              lines={part(["ack_p50", "ack_p95", "ack_p99"], percentile)}
              scale="length"
              nothing={`No acknowledgement was measured ${none}.`}
            />
          </>
        )}
      </div>
      {first > 0 && (
        <small class="record">
          The history begins {duration(Date.now() / 1000 - times[0]!)} ago, with a point every {duration(points.step)}.
        </small>
      )}
    </>
  );
}
