// The REST API as this page uses it: typed from the OpenAPI document, and nothing else is called.

import { useEffect, useState } from "preact/hooks";
import type { Me, Operations, QueueRow, RatesPerSecond, ServerOverview } from "./schema";
import { parsedJson } from "./text";

export type * from "./schema";

/** An answer that is no success, in the server's words. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
  ) {
    super(detail);
  }
}

const TOKEN = "penstock-token";
let onRefused: () => void = () => {};
export const whenRefused = (then: () => void): void => void (onRefused = then);
export const hasToken = (): boolean => sessionStorage.getItem(TOKEN) !== null;
export const setToken = (token: string): void => sessionStorage.setItem(TOKEN, token);
export const forgetToken = (): void => sessionStorage.removeItem(TOKEN);

export type Key = keyof Operations;
type Given<K extends Key> = Operations[K]["asked"];

async function request(method: string, path: string, accept: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = { Accept: accept };
  const token = sessionStorage.getItem(TOKEN);
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const isChange = method !== "GET" && !(body as { dry_run?: boolean } | undefined)?.dry_run;
  const unknown = isChange ? " It is not known whether this was done. The page does not repeat it: look before you do." : "";
  let response: Response;
  try {
    response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Problem(0, "unreachable", `The server does not answer.${unknown}`);
  }
  if (response.ok) return response;
  if (response.status === 401) onRefused();
  let problem: { code?: string; detail?: string } = {};
  try {
    problem = JSON.parse(await response.text());
  } catch {
    // A proxy may answer with something else than a problem of ours.
  }
  throw new Problem(response.status, problem.code ?? "", problem.detail ?? `The server answered ${response.status}.${response.status < 500 ? "" : unknown}`);
}

/** Where an operation is, with the parts of its path and its query filled in. */
export function address(key: string, given: object = {}): [method: string, path: string] {
  const [method, template] = key.split(" ") as [string, string];
  const rest = { ...given } as Record<string, unknown>;
  delete rest.body;
  const path = template.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = String(rest[name]);
    delete rest[name];
    return encodeURIComponent(value);
  });
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(rest))
    for (const each of Array.isArray(value) ? value : [value])
      if (each !== undefined && each !== null && each !== "") query.append(name, String(each));
  return [method, query.size ? `${path}?${query}` : path];
}

/** Call an operation: `ask("GET /v1/queues/{queue}", { queue })`. */
export async function ask<K extends Key>(
  key: K,
  ...[given]: object extends Given<K> ? [Given<K>?] : [Given<K>]
): Promise<Operations[K]["answer"]> {
  const [method, path] = address(key, given);
  return askAt<K>(method, path, (given as { body?: unknown } | undefined)?.body);
}

export async function askAt<K extends Key>(method: string, path: string, body?: unknown): Promise<Operations[K]["answer"]> {
  const text = await (await request(method, path, "application/json", body)).text();
  return (text ? parsedJson(text) : undefined) as Operations[K]["answer"];
}

/** The same as a file in another format. */
export async function fetched<K extends Key>(key: K, given: Given<K>, accept: string): Promise<Response> {
  return request(...address(key, given), accept);
}

export interface Schema {
  type?: string;
  enum?: string[];
  minimum?: number;
  maximum?: number;
  description?: string;
  "x-default"?: string;
  "x-unit"?: string;
  anyOf?: Schema[];
}
let document_: Promise<Record<string, Schema>> | undefined;
/** What each setting of a queue may be, as the server declares it. */
export function settingSchemas(): Promise<Record<string, Schema>> {
  document_ ??= request("GET", "/v1/openapi.json", "application/json")
    .then((response) => response.json())
    .then((found) => found.components.schemas.QueueSettings?.properties ?? {});
  return document_;
}

// -- who looks ---------------------------------------------------------------------------------------------------------

export type Right = "read" | "write" | "admin";
let me: Me | undefined;
export const setMe = (found: Me | undefined): void => void (me = found);
const patterns = new Map<string, RegExp>();
/** A name pattern as the server reads it: `*`, `?`, `[a-z]`, `[!a-z]`. */
export function pattern(text: string): RegExp {
  let made = patterns.get(text);
  if (!made) {
    const source = text.replace(/\[(!?)([^\]]+)\]|\*|\?|[.+^${}()|\\\]\[]/g, (found, not?: string, set?: string) =>
      set !== undefined ? `[${not ? "^" : ""}${set.replaceAll("\\", "\\\\")}]` : found === "*" ? "[^]*" : found === "?" ? "[^]" : `\\${found}`,
    );
    patterns.set(text, (made = new RegExp(`^${source}$`)));
  }
  return made;
}
/** Whether the person at the page may do this: with a queue, or with any queue. What one may not is not offered. */
export function may(right: Right, queue?: string): boolean {
  if (!me) return false;
  if (right !== "read" && me.read_only) return false;
  return me.grants.some(
    (grant) => grant.rights.includes(right) && (queue === undefined || grant.queues.some((each) => pattern(each).test(queue))),
  );
}
/** Whether the person may do this with every queue. */
export const mayAll = (right: Right): boolean =>
  !!me && (right === "read" || !me.read_only) && me.grants.some((grant) => grant.rights.includes(right) && grant.queues.includes("*"));
/** Whether the person administers every queue, also where the page changes nothing. */
export const administersAll = (): boolean => !!me && me.grants.some((grant) => grant.rights.includes("admin") && grant.queues.includes("*"));
export const who = (): Me | undefined => me;

// -- the stream --------------------------------------------------------------------------------------------------------

export type Live = ServerOverview & { queue?: QueueRow | null };
export interface Sample {
  at: number;
  rates: RatesPerSecond | null;
  ready: number;
  leased: number;
  delayed: number;
}
const SAMPLES_MAX = 900;
const RETRY_MS = 2000;
const RESTART_MS = 30;
/** The server tells something every second. One that is silent for so long does not answer. */
const SILENT_MS = 10_000;
const ANSWER = "event: answer\ndata:";
interface Told {
  path: string;
  answer?: unknown;
  problem?: { status: number; code: string; detail: string };
}

export type Answered = (answer: unknown, problem: Problem | undefined) => void;

/** One stream for the whole page: counts and rates every second, and answers of what is watched when they change. */
class Stream {
  now: Live | undefined;
  isOn = false;
  /** Why the page is not live, once it is known. */
  trouble: Problem | undefined;
  /** When the server was last heard. */
  heardAt: number | undefined;
  readonly samples = new Map<string, Sample[]>();
  private readonly listeners = new Set<() => void>();
  private queue: string | undefined;
  private wanted = false;
  private stop = new AbortController();
  private readonly watched = new Map<string, Set<Answered>>();
  private restarting: number | undefined;
  private isRefused = false;

  follow(queue: string | undefined): void {
    if (this.wanted && queue === this.queue) return;
    this.queue = queue;
    this.wanted = true;
    this.later();
  }
  /** Be told the answer of an operation whenever it changes. */
  watch(path: string, tell: Answered): () => void {
    const told = this.watched.get(path) ?? new Set();
    this.watched.set(path, told.add(tell));
    if (told.size === 1) this.later();
    return () => {
      told.delete(tell);
      if (told.size || this.watched.get(path) !== told) return;
      this.watched.delete(path);
      this.later();
    };
  }
  /** A page changes what it watches in one go: the stream begins anew once. */
  private later(): void {
    this.isRefused = false;
    clearTimeout(this.restarting);
    this.restarting = setTimeout(() => this.restart(), RESTART_MS);
  }
  /** Nobody is signed in: who comes next may see less. */
  end(): void {
    this.wanted = false;
    this.stop.abort();
    this.now = this.trouble = this.heardAt = undefined;
    this.samples.clear();
  }
  restart(): void {
    this.stop.abort();
    this.stop = new AbortController();
    if (this.wanted && !document.hidden) void this.run(this.stop.signal);
  }
  listen(tell: () => void): () => void {
    this.listeners.add(tell);
    return () => void this.listeners.delete(tell);
  }
  private async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const attempt = new AbortController();
      const end = () => attempt.abort();
      let silence = setTimeout(end, SILENT_MS);
      const heard = () => (clearTimeout(silence), (silence = setTimeout(end, SILENT_MS)));
      signal.addEventListener("abort", end);
      let trouble: Problem | undefined;
      try {
        const path = address("GET /v1/live", { queue: this.queue, watch: this.isRefused ? [] : [...this.watched.keys()] })[1];
        const response = await request("GET", path, "text/event-stream", undefined, attempt.signal);
        await this.read(response.body!, signal, heard);
      } catch (problem) {
        if (problem instanceof Problem) trouble = problem;
      } finally {
        clearTimeout(silence);
        signal.removeEventListener("abort", end);
      }
      if (signal.aborted || trouble?.status === 401) return;
      // The rest of the page stays live.
      if (trouble?.status === 404 || trouble?.status === 403) this.queue = undefined;
      if (trouble?.status === 400) this.isRefused = true;
      this.isOn = false;
      this.trouble = trouble ?? new Problem(0, "unreachable", "The server does not answer.");
      this.tell();
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
  private async read(body: ReadableStream<Uint8Array>, signal: AbortSignal, heard: () => void): Promise<void> {
    const reader = body.pipeThrough(new TextDecoderStream() as never).getReader() as ReadableStreamDefaultReader<string>;
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || signal.aborted) return;
      heard();
      const events = (rest + value).split("\n\n");
      rest = events.pop() ?? "";
      for (const event of events)
        if (event.startsWith(ANSWER)) this.answered(JSON.parse(event.slice(ANSWER.length)) as Told);
        else if (event.startsWith("data:")) this.take(JSON.parse(event.slice(5)) as Live);
    }
  }
  private take(found: Live): void {
    const at = Date.now() / 1000;
    this.isOn = true;
    this.heardAt = at;
    this.now = found;
    this.keep("", { at, rates: found.rates, ready: found.totals.ready, leased: found.totals.leased, delayed: found.totals.delayed });
    if (found.queue) {
      const { name, rates, ready, leased, delayed } = found.queue;
      this.keep(name, { at, rates, ready, leased, delayed });
    }
    this.tell();
  }
  private answered({ path, answer, problem }: Told): void {
    const error = problem && new Problem(problem.status, problem.code, problem.detail);
    this.watched.get(path)?.forEach((tell) => tell(answer, error));
  }
  private keep(name: string, sample: Sample): void {
    const kept = this.samples.get(name) ?? [];
    this.samples.set(name, [...kept.slice(-SAMPLES_MAX + 1), sample]);
  }
  private tell(): void {
    this.listeners.forEach((each) => each());
  }
}
export const stream = new Stream();
document.addEventListener("visibilitychange", () => stream.restart());

/** Draw again whenever the stream tells something new. */
export function useStream(): Live | undefined {
  const [, draw] = useState(0);
  useEffect(() => stream.listen(() => draw((count) => count + 1)), []);
  return stream.now;
}
