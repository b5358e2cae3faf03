import type { ComponentChildren, JSX } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { address, askAt, hasToken, Problem, stream, useStream, type Answered, type Key, type Operations, type Sample } from "./api";
import { command as shell, number, quoted, rate, seconds } from "./text";

export interface Loaded<T> {
  value: T | undefined;
  error: Error | undefined;
  again: () => Promise<void>;
}

/** What is asked for once, and `again` on request. `keeps`: the old is shown until the new is there. `follow`: tells of newer ones. */
export function useLoaded<T>(
  load: () => Promise<T>,
  on: unknown[],
  keeps = false,
  follow?: (tell: (value: T | undefined, error: Error | undefined) => void) => () => void,
): Loaded<T> {
  const [value, setValue] = useState<T>();
  const [error, setError] = useState<Error>();
  const round = useRef(0);
  const told = (found: T | undefined, problem: Error | undefined) => {
    round.current += 1; // an answer that is still on its way is older
    if (!problem) setValue(() => found);
    setError(problem);
  };
  const again = useCallback(async () => {
    const mine = ++round.current;
    try {
      const loaded = await load();
      if (mine === round.current) told(loaded, undefined);
    } catch (problem) {
      if (mine === round.current) told(undefined, problem as Error);
    }
  }, on);
  useEffect(() => {
    if (!keeps) setValue(undefined);
    setError(undefined);
    void again();
    const end = follow?.(told);
    return () => {
      round.current += 1;
      end?.();
    };
  }, [again]);
  return { value, error, again };
}

/** What an operation answers, and the page's stream tells whenever it is another. */
export function useLive<K extends Key>(key: K, given: Operations[K]["asked"], keeps = false): Loaded<Operations[K]["answer"]> {
  const path = address(key, given)[1];
  return useLoaded(() => askAt<K>("GET", path), [path], keeps, (tell) => stream.watch(path, tell as Answered));
}

export const Trouble = ({ error }: { error: Error | undefined }) =>
  error ? (
    <p class="trouble" role="alert">
      {error.message}
    </p>
  ) : null;

function withUrl(words: string[]): string[] {
  const end = words.includes("--") ? words.indexOf("--") : words.length;
  return [...words.slice(0, end), "--url", location.origin, ...words.slice(end)];
}

/** The command of the command line that does the same. */
export function Cli({ words }: { words: string[] }) {
  // A cluster's commands talk to Kafka, a pipeline's to its files; what has no command is done with curl.
  const [first, ...rest] = words;
  const header = hasToken() ? ' -H "Authorization: Bearer $PENSTOCK_TOKEN"' : "";
  const text =
    first === "curl"
      ? `curl -sS${header} ${rest.map(quoted).join(" ")}`
      : first === "cluster" || first === "pipeline"
        ? shell(...words)
        : shell(...withUrl(words));
  const [copied, setCopied] = useState(false);
  const code = useRef<HTMLElement>(null);
  const copy = async () => {
    // Pages of other hosts over plain HTTP have no clipboard: the browser's old command copies what is selected.
    let isCopied = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection()?.selectAllChildren(code.current!);
      isCopied = document.execCommand("copy");
    }
    if (!isCopied) return say("The command is selected. Press Ctrl C.");
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <div class="cli" title={hasToken() ? "Set PENSTOCK_TOKEN to your token, or to USER:PASSWORD." : undefined}>
      <code ref={code}>{text}</code>
      <button type="button" class="quiet" onClick={() => void copy()} aria-label="Copy the command">
        {copied ? "Copied" : "Copy"}
      </button>
    </div>
  );
}

interface Asking {
  title: string;
  says: ComponentChildren;
  /** What has to be typed before something is destroyed. */
  name?: string;
  button: string;
  cli?: string[];
  children?: ComponentChildren;
  /** Something is still missing: the count of what it is about, say. */
  isWaiting?: boolean;
  /** It takes something away, without asking for a name. */
  destroys?: boolean;
  act: () => Promise<unknown>;
  /** What is said when it is done. */
  done?: string | ((answer: unknown) => string);
  /** `isDone`: something was changed. Who cancels keeps what was selected. */
  close: (isDone?: boolean) => void;
}
/** A dialogue that says what will happen, shows the command, and asks for the name where it destroys. */
export function Ask({ title, says, name, button, cli, children, isWaiting, destroys, act, done, close }: Asking) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = useState("");
  const [error, setError] = useState<Error>();
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    dialog.current?.showModal();
    return () => void setTimeout(() => before?.focus()); // once the dialogue is off the page: it gives nothing back itself
  }, []);
  const isOff = busy || isWaiting || (name !== undefined && typed !== name);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (isOff) return;
    setBusy(true);
    try {
      const answer = await act();
      if (done) say(typeof done === "string" ? done : done(answer));
      close(true);
    } catch (problem) {
      setError(problem as Error);
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} onClose={() => close()} aria-labelledby="ask-title">
      <form onSubmit={submit}>
        <h2 id="ask-title">{title}</h2>
        <div class="says">{says}</div>
        {children}
        {name !== undefined && (
          <label>
            <span>
              Type <b class="mono">{name}</b> to confirm
            </span>
            <input value={typed} onInput={(event) => setTyped(event.currentTarget.value)} autocomplete="off" spellcheck={false} />
          </label>
        )}
        <Trouble error={error} />
        {cli && <Cli words={cli} />}
        <div class="buttons">
          <button type="button" onClick={() => close()}>
            Cancel
          </button>
          <button
            type="submit"
            class={name === undefined && !destroys ? "main" : "danger"}
            disabled={isOff}
          >
            {button}
          </button>
        </div>
      </form>
    </dialog>
  );
}

/** A table that may be wider than its place: then the arrow keys scroll it. */
export function Wide({ children }: { children: ComponentChildren }) {
  const at = useRef<HTMLDivElement>(null);
  const [scrolls, setScrolls] = useState(false);
  useEffect(() => {
    const place = at.current!;
    const watch = new ResizeObserver(() => setScrolls(place.scrollWidth > place.clientWidth));
    watch.observe(place);
    if (place.firstElementChild) watch.observe(place.firstElementChild);
    return () => watch.disconnect();
  }, []);
  return (
    <div class="wide" ref={at} tabIndex={scrolls ? 0 : undefined}>
      {children}
    </div>
  );
}

/** A field of a form, with its label and a hint. */
export function Field({ label, hint, children }: { label: string; hint?: string; children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {hint && <small>{hint}</small>}
    </label>
  );
}

export function Spark({ values }: { values: (number | null)[] }) {
  const known = values.map((each) => each ?? 0);
  if (known.length < 2) return <svg class="spark" aria-hidden="true" />;
  const top = Math.max(...known, 1);
  const points = known.map((each, at) => `${(at * 80) / (known.length - 1)},${19 - (each * 17) / top}`).join(" ");
  return (
    <svg class="spark" viewBox="0 0 80 20" preserveAspectRatio="none" aria-hidden="true">
      <polyline points={points} />
    </svg>
  );
}

export interface Line {
  label: string;
  values: (number | null)[];
}
const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5"];
const HEIGHT = 170;
/** So few points are dots as well, if they have room: a line through three of them is hard to see. */
const DOTTED_MAX = 60;
const DOT_PX = 10;
const DAY = 86_400;
/** A moment on an axis, as exact as the axis is long. In UTC, as every time on the page. */
function clock(tick: number, times: ArrayLike<number>): string {
  const at = new Date(tick * 1000);
  const length = (times[times.length - 1] ?? 0) - (times[0] ?? 0);
  if (length > 2 * DAY) return at.toLocaleDateString("en-GB", { timeZone: "UTC", weekday: "short", day: "numeric" });
  return at.toLocaleTimeString("en-GB", { timeZone: "UTC", ...(length < 600 ? {} : { hour: "2-digit", minute: "2-digit" }) });
}

/** Steps of an axis that are round in what it counts. */
const WHOLE = [1, 2, 5].flatMap((each) => Array.from({ length: 15 }, (_, power) => each * 10 ** power)).sort((a, b) => a - b);
const LENGTHS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, ...WHOLE.map((each) => each * DAY)];
const TENTHS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...WHOLE];
export const SCALES = {
  count: { steps: WHOLE, tick: number, shown: number },
  rate: { steps: TENTHS, tick: (value: number) => (value < 10 ? String(Number(value.toPrecision(2))) : number(value)), shown: rate },
  length: { steps: LENGTHS, tick: seconds, shown: seconds },
};

/** Points that no line reaches, because neither neighbour is known. */
export const alone = (values: ArrayLike<number | null | undefined>): number[] =>
  Array.from({ length: values.length }, (_, at) => at).filter((at) => values[at] != null && values[at - 1] == null && values[at + 1] == null);

/** From the first time to the last. One point alone stands in the middle of a minute. */
const reach = (times: ArrayLike<number>): [number, number] => {
  const first = times[0] ?? Date.now() / 1000;
  const last = times[times.length - 1] ?? first;
  return first === last ? [first - 30, last + 30] : [first, last];
};

interface Drawn {
  title: string;
  times: number[];
  lines: Line[];
  scale?: keyof typeof SCALES;
  /** What is said where there is nothing to see: no message, or no length of time. */
  nothing: string;
}
export function Chart({ title, times, lines, scale = "count", nothing }: Drawn) {
  const at = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>();
  const theme = useTheme();
  const [under, setUnder] = useState<number | null>(null);
  const { steps, tick, shown } = SCALES[scale];
  const data = [times, ...lines.map((line) => line.values)] as uPlot.AlignedData;
  useEffect(() => {
    if (!at.current) return;
    const place = at.current;
    const colour = (name: string) => getComputedStyle(place).getPropertyValue(name).trim();
    const font = `12px ${getComputedStyle(place).fontFamily}`;
    const axis = { font, stroke: colour("--dim"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false } };
    plot.current = new uPlot(
      {
        width: place.clientWidth,
        height: HEIGHT,
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
        padding: [8, 32, 0, 0],
        cursor: { y: false, points: { size: 6 }, drag: { setScale: false, x: false } },
        legend: { show: false },
        scales: {
          x: { range: (plot) => reach(plot.data[0]) },
          y: { range: (_, __, top) => [0, top ? top * 1.1 : 1] },
        },
        axes: [
          { ...axis, size: 28, space: 70, values: (plot, ticks) => ticks.map((each) => clock(each, plot.data[0])) },
          { ...axis, size: 58, incrs: steps, values: (_, ticks) => ticks.map(tick) },
        ],
        series: [
          {},
          ...lines.map((line, index) => ({
            label: line.label,
            stroke: colour(COLOURS[index % COLOURS.length] ?? ""),
            fill: index ? undefined : colour("--fill-1"),
            width: 1.75,
            spanGaps: false,
            points: {
              size: 5,
              width: 0,
              fill: colour(COLOURS[index % COLOURS.length] ?? ""),
              show: (plot: uPlot, _: number, first: number, last: number) => last - first < Math.min(DOTTED_MAX, plot.width / DOT_PX),
              filter: (plot: uPlot, series: number, isDotted: boolean) => (isDotted ? null : alone(plot.data[series] ?? [])),
            },
          })),
        ],
        hooks: { setCursor: [(plot) => setUnder(plot.cursor.idx ?? null)] },
      },
      data,
      place,
    );
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: place.clientWidth, height: HEIGHT }));
    watch.observe(place);
    return () => {
      watch.disconnect();
      plot.current?.destroy();
    };
  }, [theme, lines.map((line) => line.label).join()]);
  useEffect(() => plot.current?.setData(data), [times, lines.map((line) => line.label).join()]);
  const read = (line: Line) => line.values[under ?? -1] ?? line.values.findLast((each) => each !== null) ?? null;
  return (
    <figure>
      <figcaption>
        {title}
        <span class="legend">
          {lines.map((line, index) => (
            <span key={line.label} class={`key key-${(index % COLOURS.length) + 1}`}>
              {line.label} <b>{read(line) === null ? "–" : shown(read(line)!)}</b>
            </span>
          ))}
        </span>
      </figcaption>
      <div class="drawn">
        <div class="chart" ref={at} aria-hidden="true" />
        {lines.every((line) => line.values.every((each) => each === null || (each === 0 && scale !== "length"))) && (
          <p class="nothing">
            <span>{nothing}</span>
          </p>
        )}
      </div>
    </figure>
  );
}

export const Tiles = ({ tiles }: { tiles: { label: string; value: ComponentChildren; spark?: (number | null)[]; kind?: string; title?: string }[] }) => (
  <dl class="tiles">
    {tiles.map(({ label, value, spark, kind, title }) => (
      <div key={label} class={kind} title={title}>
        <dt>{label}</dt>
        <dd>
          <span>{value}</span>
          {spark && <Spark values={spark} />}
        </dd>
      </div>
    ))}
  </dl>
);

/** One of a few, all of them seen. */
export function Choice<T extends string>({ label, all, now, set }: { label: string; all: readonly (readonly [T, string])[]; now: T; set: (next: T) => void }) {
  return (
    <div class="choice" role="group" aria-label={label}>
      {all.map(([key, text]) => (
        <Button key={key} aria-pressed={key === now} onClick={() => set(key)}>
          {text}
        </Button>
      ))}
    </div>
  );
}

/** What the stream has told since the page was opened: of the server, or of a queue. */
export function useSamples(queue = ""): Sample[] {
  useStream();
  return stream.samples.get(queue) ?? [];
}

// -- a word when something is done --
let tellSaid: (text: string) => void = () => {};
export const say = (text: string): void => tellSaid(text);
export function Said() {
  const [text, setText] = useState("");
  const timer = useRef(0);
  tellSaid = (next) => {
    setText(next);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => setText(""), 4000);
  };
  return (
    <div class={text ? "said on" : "said"} role="status">
      {text}
    </div>
  );
}

const themes = new Set<(theme: string) => void>();
const THEME = "penstock-theme";
export const theme = (): string =>
  localStorage.getItem(THEME) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
export function setTheme(wanted: string): void {
  localStorage.setItem(THEME, wanted);
  document.documentElement.dataset.theme = wanted;
  themes.forEach((tell) => tell(wanted));
}
function useTheme(): string {
  const [now, setNow] = useState(theme());
  useEffect(() => {
    themes.add(setNow);
    return () => void themes.delete(setNow);
  }, []);
  return now;
}

/** Rows that j and k walk through and Enter opens. */
export function useRows(count: number, open: (index: number) => void, select?: (index: number) => void): [number, (index: number) => void] {
  const [at, show] = useState(-1);
  // Keys come faster than the page is drawn: they find the latest row here.
  const now = useRef({ at, count, open, select });
  now.current = { ...now.current, count, open, select };
  const setAt = (index: number) => {
    now.current.at = index;
    show(index);
  };
  useEffect(() => {
    const key = (event: KeyboardEvent) => {
      if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
      const { at, count, open, select } = now.current;
      if (event.key === "j") setAt(Math.min(count - 1, at + 1));
      else if (event.key === "k") setAt(Math.max(0, at - 1));
      else if (event.key === "x" && at >= 0 && at < count) select?.(at);
      else if (event.key === "Enter" && at >= 0 && at < count && event.target === document.body) open(at);
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  useEffect(() => document.querySelector("tr.at, .group.at")?.scrollIntoView({ block: "nearest" }), [at]);
  return [at, setAt];
}

/** What the address says after `?`: a link to it can be shared, and Back goes to the one before. What is empty is left out. */
export function useAddress(): [URLSearchParams, (next: Record<string, string | undefined>, replaces?: boolean) => void] {
  const read = () => location.hash.split("?")[1] ?? "";
  const [text, setText] = useState(read);
  useEffect(() => {
    const moved = () => setText(read());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const set = useCallback((next: Record<string, string | undefined>, replaces = false) => {
    const query = new URLSearchParams(read());
    for (const [name, value] of Object.entries(next)) value ? query.set(name, value) : query.delete(name);
    const hash = (location.hash.split("?")[0] || "#/") + (query.size ? `?${query}` : "");
    if (replaces) history.replaceState(null, "", hash);
    else location.hash = hash;
    setText(read());
  }, []);
  return [useMemo(() => new URLSearchParams(text), [text]), set];
}

export const isTyping = (event: KeyboardEvent): boolean => {
  const at = event.target as HTMLElement;
  return ["INPUT", "TEXTAREA", "SELECT"].includes(at.tagName) || at.closest?.("dialog") !== null;
};

export const isAbsent = (error: Error | undefined): boolean => error instanceof Problem && error.status === 404;

export const Button = (props: JSX.ButtonHTMLAttributes<HTMLButtonElement>) => <button type="button" {...props} />;

export function download(name: string, type: string, content: BlobPart): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
