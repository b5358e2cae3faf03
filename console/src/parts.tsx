import type { ComponentChildren, JSX } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { Problem } from "./api";
import { command as shell } from "./text";

/** Ask again every so often while the page is seen; `again` asks at once. */
export function usePolled<T>(load: () => Promise<T>, everyMs: number, on: unknown[]): Polled<T> {
  const [value, setValue] = useState<T>();
  const [error, setError] = useState<Error>();
  const round = useRef(0);
  const again = useCallback(async () => {
    const mine = ++round.current;
    try {
      const loaded = await load();
      if (mine === round.current) (setValue(() => loaded), setError(undefined));
    } catch (problem) {
      if (mine === round.current) setError(problem as Error);
    }
  }, on);
  useEffect(() => {
    setValue(undefined);
    void again();
    const timer = everyMs ? setInterval(() => document.hidden || void again(), everyMs) : undefined;
    return () => {
      round.current += 1;
      clearInterval(timer);
    };
  }, [again, everyMs]);
  return { value, error, again };
}
export interface Polled<T> {
  value: T | undefined;
  error: Error | undefined;
  again: () => Promise<void>;
}

export const Trouble = ({ error }: { error: Error | undefined }) =>
  error ? (
    <p class="trouble" role="alert">
      {error.message}
    </p>
  ) : null;

/** The command of the command line that does the same. */
export function Cli({ words }: { words: string[] }) {
  const text = shell(...words, "--url", location.origin);
  const [copied, setCopied] = useState(false);
  const copy = () =>
    void navigator.clipboard?.writeText(text).then(() => {
      setCopied(true);
      setTimeout(() => setCopied(false), 1500);
    });
  return (
    <div class="cli">
      <code>{text}</code>
      <button type="button" class="quiet" onClick={copy} aria-label="Copy the command">
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
  act: () => Promise<unknown>;
  close: () => void;
}
/** A dialogue that says what will happen, shows the command, and asks for the name where it destroys. */
export function Ask({ title, says, name, button, cli, children, act, close }: Asking) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = useState("");
  const [error, setError] = useState<Error>();
  const [busy, setBusy] = useState(false);
  useEffect(() => dialog.current?.showModal(), []);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (busy || (name !== undefined && typed !== name)) return;
    setBusy(true);
    try {
      await act();
      close();
    } catch (problem) {
      setError(problem as Error);
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="ask-title">
      <form onSubmit={submit}>
        <h2 id="ask-title">{title}</h2>
        <div class="says">{says}</div>
        {children}
        {name !== undefined && (
          <label>
            Type <b class="mono">{name}</b> to confirm
            <input value={typed} onInput={(event) => setTyped(event.currentTarget.value)} autocomplete="off" />
          </label>
        )}
        <Trouble error={error} />
        {cli && <Cli words={cli} />}
        <div class="buttons">
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button
            type="submit"
            class={name === undefined ? "main" : "danger"}
            disabled={busy || (name !== undefined && typed !== name)}
          >
            {button}
          </button>
        </div>
      </form>
    </dialog>
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

export function Chart({ title, times, lines }: { title: string; times: number[]; lines: Line[] }) {
  const at = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>();
  const theme = useTheme();
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
        height: 160,
        cursor: { show: false },
        legend: { live: false },
        scales: {
          x: { range: (plot) => [Math.min(plot.data[0][0] ?? 0, (plot.data[0].at(-1) ?? 0) - 60), plot.data[0].at(-1) ?? 0] },
          y: { range: (_, __, top) => [0, Math.max(1, (top ?? 0) * 1.1)] },
        },
        axes: [axis, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en-US")) }],
        series: [
          {},
          ...lines.map((line, index) => ({
            label: line.label,
            stroke: colour(COLOURS[index % COLOURS.length] ?? ""),
            width: 1.5,
            points: { show: false },
          })),
        ],
      },
      data,
      place,
    );
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: place.clientWidth, height: 160 }));
    watch.observe(place);
    return () => {
      watch.disconnect();
      plot.current?.destroy();
    };
  }, [theme, lines.map((line) => line.label).join()]);
  useEffect(() => plot.current?.setData(data));
  return (
    <figure>
      <figcaption>{title}</figcaption>
      <div class="chart" ref={at} />
    </figure>
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
export function useRows(count: number, open: (index: number) => void): [number, (index: number) => void] {
  const [at, show] = useState(-1);
  // Keys come faster than the page is drawn: they find the latest row here.
  const now = useRef({ at, count, open });
  now.current = { ...now.current, count, open };
  const setAt = (index: number) => {
    now.current.at = index;
    show(index);
  };
  useEffect(() => {
    const key = (event: KeyboardEvent) => {
      if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
      const { at, count, open } = now.current;
      if (event.key === "j") setAt(Math.min(count - 1, at + 1));
      else if (event.key === "k") setAt(Math.max(0, at - 1));
      else if (event.key === "Enter" && at >= 0 && at < count && event.target === document.body) open(at);
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  useEffect(() => document.querySelector("tr.at")?.scrollIntoView({ block: "nearest" }), [at]);
  return [at, setAt];
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
