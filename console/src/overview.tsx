import { useCallback, useState } from "preact/hooks";
import { ask, may, useStream, type Operations, type QueueRow } from "./api";
import { LiveCharts } from "./charts";
import { Ask, Button, Field, Spark, Tiles, Trouble, useAddress, useLive, useRows, useSamples, Wide } from "./parts";
import { bytes, counted, duration, number, rate, short } from "./text";

const ROWS = 100;
const RATES = ["sent", "delivered", "acked", "failed", "dead"] as const;

export function Overview({ go }: { go: (path: string) => void }) {
  const now = useStream();
  const samples = useSamples();
  const spark = samples.slice(-60);
  const totals = now?.totals;
  const used = now?.disk ? now.disk.size_bytes - now.disk.free_bytes : 0;
  return (
    <main>
      <header class="bar">
        <h1>Overview</h1>
      </header>
      {now && (
        <>
          <Alarms alarms={now.alarms} />
          <Tiles
            tiles={RATES.map((name) => ({
              label: `${name[0]!.toUpperCase()}${name.slice(1)} a second`,
              value: rate(now.rates?.[name] ?? null),
              spark: spark.map((each) => each.rates?.[name] ?? null),
              kind: `rate ${(name === "failed" || name === "dead") && now.rates?.[name] ? "bad" : ""}`,
            }))}
          />
          <Tiles
            tiles={[
              { label: "Queues", value: number(totals!.queues) },
              { label: "Ready", value: number(totals!.ready), title: "In all queues: dead letters in their dead-letter queues count, too" },
              { label: "Leased", value: number(totals!.leased) },
              { label: "Delayed", value: number(totals!.delayed) },
              {
                label: "Dead letters",
                value: (
                  <span title={`${counted(totals!.dead, "message was", "messages were")} ever dead-lettered`}>
                    {number(totals!.dead_letters)} <small>of {short(totals!.dead)} ever</small>
                  </span>
                ),
                kind: totals!.dead_letters ? "warn" : "",
              },
              { label: "Stored", value: bytes(totals!.bytes) },
              ...(now.disk
                ? [
                    {
                      label: "Disk",
                      value: (
                        <>
                          {bytes(now.disk.free_bytes)} <small>free</small>
                          <meter min={0} max={now.disk.size_bytes} high={0.9 * now.disk.size_bytes} optimum={0} value={used} aria-label="Disk in use" />
                        </>
                      ),
                    },
                  ]
                : []),
              ...(now.memory_bytes === null ? [] : [{ label: "Memory", value: bytes(now.memory_bytes) }]),
            ]}
          />
        </>
      )}
      <LiveCharts />
      <Queues go={go} />
    </main>
  );
}

function Alarms({ alarms }: { alarms: { kind: string; queue: string | null; text: string }[] }) {
  if (!alarms.length)
    return (
      <p class="calm">
        <span class="dot on" aria-hidden="true" /> No alarms
      </p>
    );
  return (
    <ul class="alarms" aria-label="Alarms">
      {alarms.map((each, index) => (
        <li key={`${each.kind} ${each.queue} ${index}`}>
          <b>{each.kind}</b>
          <span>{each.text}</span>
          {each.queue && <a href={`#/queues/${encodeURIComponent(each.queue)}${each.kind === "dead letters" ? "/dead" : ""}`}>{each.queue}</a>}
        </li>
      ))}
    </ul>
  );
}

type Sort = NonNullable<Operations["GET /v1/overview/queues"]["asked"]["sort"]>;
const COLUMNS: { sort?: Sort; label: string; on?: string }[] = [
  { sort: "name", label: "name" },
  { sort: "ready", label: "ready" },
  { sort: "leased", label: "leased", on: "roomy" },
  { sort: "delayed", label: "delayed", on: "roomy" },
  { sort: "dead_letters", label: "dead" },
  { label: "oldest", on: "roomy" },
  { sort: "sent", label: "sent/s" },
  { sort: "acked", label: "acked/s", on: "roomy" },
  { sort: "failed", label: "failed/s", on: "roomy" },
];

function Queues({ go }: { go: (path: string) => void }) {
  // The list is in the address: Back from a queue finds it as it was.
  const [shownAs, showAs] = useAddress();
  const filter = shownAs.get("filter") ?? "";
  const sort = COLUMNS.find((each) => each.sort && each.sort === shownAs.get("sort"))?.sort ?? "name";
  const descending = shownAs.has("descending");
  const page = Math.max(0, Math.floor(Number(shownAs.get("page")) || 1) - 1);
  const setPage = (next: number) => showAs({ page: next ? String(next + 1) : undefined });
  const [creating, setCreating] = useState(false);
  const listed = useLive("GET /v1/overview/queues", { contains: filter, sort, descending, after: page * ROWS, limit: ROWS }, true);
  const shown = listed.value?.queues ?? [];
  const total = listed.value?.total ?? 0;
  const open = useCallback((index: number) => go(`queues/${encodeURIComponent(shown[index]!.name)}`), [shown]);
  const [at] = useRows(shown.length, open);
  const choose = (column: Sort) => {
    const isDescending = column === sort ? !descending : column !== "name";
    showAs({ sort: column === "name" ? undefined : column, descending: isDescending ? "1" : undefined, page: undefined }, true);
  };
  return (
    <section>
      <header class="bar">
        <h2>
          Queues <small>{listed.value ? number(total) : ""}</small>
        </h2>
        <span class="grow" />
        <input
          type="search"
          class="search"
          placeholder="Filter by name  ( / )"
          aria-label="Filter queues by name"
          value={filter}
          onInput={(event) => showAs({ filter: event.currentTarget.value, page: undefined }, true)}
        />
        {may("admin") && (
          <Button class="main" onClick={() => setCreating(true)} data-key="n">
            Create queue
          </Button>
        )}
      </header>
      <Trouble error={listed.error} />
      <Wide>
        <table class="rows queues">
          <thead>
            <tr>
              {COLUMNS.map((column) => (
                <th
                  key={column.label}
                  class={`${column.sort === "name" ? "" : "number"} ${column.on ?? ""}`}
                  aria-sort={column.sort === sort ? (descending ? "descending" : "ascending") : undefined}
                >
                  {column.sort ? (
                    <Button class="sort" onClick={() => choose(column.sort!)}>
                      {column.label}
                      {column.sort === sort ? (descending ? " ↓" : " ↑") : ""}
                    </Button>
                  ) : (
                    column.label
                  )}
                </th>
              ))}
              <th class="roomy">activity</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((row, index) => (
              <Row key={row.name} row={row} isAt={index === at} />
            ))}
          </tbody>
        </table>
      </Wide>
      {listed.value && total === 0 && (
        <p class="empty">{filter ? "No queue has this in its name." : "There are no queues yet. Create one, or send a message."}</p>
      )}
      {(total > ROWS || page > 0) && (
        <nav class="pager" aria-label="Pages of queues">
          <Button disabled={page === 0} onClick={() => setPage(page - 1)}>
            Back
          </Button>
          <span>
            {number(page * ROWS + 1)} to {number(Math.min(total, (page + 1) * ROWS))} of {number(total)}
          </span>
          <Button disabled={(page + 1) * ROWS >= total} onClick={() => setPage(page + 1)}>
            Next
          </Button>
        </nav>
      )}
      {creating && <CreateQueue go={go} close={() => (setCreating(false), void listed.again())} />}
    </section>
  );
}

function Row({ row, isAt }: { row: QueueRow; isAt: boolean }) {
  const path = `#/queues/${encodeURIComponent(row.name)}`;
  return (
    <tr class={isAt ? "at" : ""}>
      <td class="name">
        <a href={path}>{row.name}</a>
        {row.fifo && <span class="tag">fifo</span>}
        {row.paused.length > 0 && <span class="tag warn">paused</span>}
        {row.quarantined > 0 && <span class="tag bad">damaged</span>}
      </td>
      <td class="number">{number(row.ready)}</td>
      <td class="number roomy">{number(row.leased)}</td>
      <td class="number roomy">{number(row.delayed)}</td>
      <td class="number">
        {row.dead_letters ? (
          <a class="bad" href={`${path}/dead`} title={`${number(row.dead)} ever`}>
            {number(row.dead_letters)}
          </a>
        ) : (
          0
        )}
      </td>
      <td class="number roomy">{row.oldest_sent_at === null ? "–" : duration(Date.now() / 1000 - row.oldest_sent_at)}</td>
      <td class="number">{rate(row.rates?.sent ?? null)}</td>
      <td class="number roomy">{rate(row.rates?.acked ?? null)}</td>
      <td class={`number roomy ${row.rates?.failed ? "bad" : ""}`}>{rate(row.rates?.failed ?? null)}</td>
      <td class="roomy">
        <Spark values={row.spark} />
      </td>
    </tr>
  );
}

function CreateQueue({ go, close }: { go: (path: string) => void; close: () => void }) {
  const [name, setName] = useState("");
  return (
    <Ask
      title="Create a queue"
      says="The queue gets the default settings, which you can change on its page. A name that ends with .fifo makes a FIFO queue."
      button="Create"
      cli={["queue", "create", name || "NAME"]}
      act={() => ask("POST /v1/queues", { body: { name } }).then(() => go(`queues/${encodeURIComponent(name)}`))}
      done={`${name} is created.`}
      close={close}
    >
      <Field label="Name" hint="1 to 128 letters, digits, dots, dashes, underscores or #">
        <input value={name} onInput={(event) => setName(event.currentTarget.value)} required autocomplete="off" spellcheck={false} />
      </Field>
    </Ask>
  );
}
