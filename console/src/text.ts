// Numbers, times and bodies as people read them. Nothing here touches the page.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count: number): string {
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit && count < 10 ? count.toFixed(1) : Math.round(count)} ${UNITS[unit]}`;
}

export const number = (count: number): string => Math.round(count).toLocaleString("en-US");

/** A number with its noun: `1 message`, `2,000 messages`, `no messages`. */
export const counted = (count: number, noun: string, plural = `${noun}s`): string => (count === 0 ? `no ${plural}` : count === 1 ? `1 ${noun}` : `${number(count)} ${plural}`);

export const short = (count: number): string => count.toLocaleString("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const rate = (perSecond: number | null): string =>
  perSecond === null ? "–" : perSecond === 0 ? "0" : perSecond < 10 ? perSecond.toFixed(1) : number(perSecond);

/** How long ago, or how long still: `3 m`, `2 h 5 m`. */
export function duration(seconds: number): string {
  seconds = Math.max(0, Math.round(seconds));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} m` : `${hours} h`;
  return `${Math.floor(hours / 24)} d`;
}

/** A length of time that may be short: `12 ms`, `1.5 s`, `3 m`. */
export const seconds = (length: number): string =>
  length === 0 ? "0" : length < 1 ? `${Number((length * 1000).toPrecision(2))} ms` : length < 60 ? `${Number(length.toPrecision(2))} s` : duration(length);

export const moment = (seconds: number, isExact = false): string => {
  const at = new Date(seconds * 1000);
  return Number.isNaN(at.getTime()) ? String(seconds) : at.toISOString().replace("T", " ").slice(0, isExact ? 23 : 19) + " UTC";
};

const VARYING =
  /'[^'\n]{0,500}'|"[^"\n]{0,500}"|\b0x[0-9A-Fa-f]+\b|\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b|\b(?=[A-Fa-f]*\d)[0-9A-Fa-f]{12,}\b|\d+(?:\.\d+)*/g;
/** The group of an error, as the server groups them (`error_group`): its first line without numbers, ids and quoted text. */
export const errorGroup = (error: string): string =>
  error.trim().split("\n")[0]!.slice(0, 1000).replace(VARYING, "#").slice(0, 200).trimEnd() || "no error was given";

/** The bytes of a body as the API gives it. */
export function bodyBytes(body: string, encoding: string | undefined): Uint8Array<ArrayBuffer> {
  if (encoding !== "base64") return new TextEncoder().encode(body);
  const raw = atob(body);
  return Uint8Array.from(raw, (character) => character.charCodeAt(0));
}

/** A hex dump: offset, some bytes, and what of them is ASCII. */
export function hex(data: Uint8Array, most = 4096, width = 16): string {
  const lines: string[] = [];
  for (let at = 0; at < Math.min(data.length, most); at += width) {
    const row = data.subarray(at, Math.min(at + width, data.length, most));
    const codes = Array.from(row, (each) => each.toString(16).padStart(2, "0")).join(" ");
    const ascii = Array.from(row, (each) => (each > 31 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${codes.padEnd(3 * width - 1)}  ${ascii}`);
  }
  return lines.join("\n");
}

/** A number that JavaScript would write in another way: `1.0`, or one of more than 53 bits. */
class Digits {
  constructor(readonly digits: string) {}
  toJSON(): unknown {
    return (JSON as unknown as { rawJSON(text: string): unknown }).rawJSON(this.digits);
  }
}
const asNumber = (value: unknown): unknown => (value instanceof Digits ? Number(value.digits) : value);

/** JSON as a value. The numbers in what is called `attributes` are those of a message: they keep their digits, to be shown and sent again. */
export function parsedJson(text: string): unknown {
  if (!text.includes('"attributes"') || !("rawJSON" in JSON)) return JSON.parse(text);
  const revived = (key: string, value: unknown, { source }: { source?: string }): unknown => {
    if (typeof value === "number") return JSON.stringify(value) === source ? value : new Digits(source!);
    if (key === "attributes" || value === null || typeof value !== "object" || value instanceof Digits) return value;
    return Array.isArray(value) ? value.map(asNumber) : Object.fromEntries(Object.entries(value).map(([name, each]) => [name, asNumber(each)]));
  };
  return asNumber(JSON.parse(text, revived as never));
}

/** The attributes of a message, from JSON. */
export function parsedAttributes(text: string): Record<string, unknown> {
  const given = text.trim() || "{}";
  JSON.parse(given); // alone it is JSON, too
  return (parsedJson(`{"attributes":${given}}`) as { attributes: Record<string, unknown> }).attributes;
}

const ESCAPES = /(?<!\\)((?:\\\\)*)((?:\\u[0-9A-Fa-f]{4})+)/g;
/** The characters that JSON's escapes stand for, where they can be read: to be shown, not to be sent again. */
export const readable = (token: string): string =>
  token.replace(ESCAPES, (_, before: string, escapes: string) => before + escapes.replace(/\\u[Dd][89ABab]..\\u[Dd][C-Fc-f]..|\\u..../g, (each) => {
    const character = JSON.parse(`"${each}"`) as string;
    return /^[\p{L}\p{M}\p{N}\p{P}\p{S}]$/u.test(character) && !/["\\]/.test(character) ? character : each;
  }));

export const isJson = (text: string): boolean => {
  try {
    return (JSON.parse(text), true);
  } catch {
    return false;
  }
};

const JSON_TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|\[\s*\]|\{\s*\}|[[\]{},:]|[^\s"[\]{},:]+/g;
const DEPTH_MAX = 100;
/** JSON, indented, each of its tokens as it was sent, but for escapes of readable characters; null when the text is none, or too deep to be read. */
export function prettyJson(text: string): string | null {
  const start = text.trimStart()[0];
  if (start !== "{" && start !== "[") return null;
  if (!isJson(text)) return null; // what it gives has lost digits and repeated names
  const shown: string[] = [];
  let line = "\n";
  for (const [token] of text.matchAll(JSON_TOKEN)) {
    if (token === "[" || token === "{") shown.push(token, (line += "  "));
    else if (token === "]" || token === "}") shown.push((line = line.slice(0, -2)), token);
    else if (token === ",") shown.push(token, line);
    else if (token === ":") shown.push(": ");
    else shown.push(/^[[{]/.test(token) ? token[0]! + token.at(-1)! : token[0] === '"' ? readable(token) : token);
    if (line.length > 2 * DEPTH_MAX) return null;
  }
  return shown.join("");
}

/** A word of a command line, as a POSIX shell needs it. */
// What a terminal would take for keys, or show in another order, is written out: somebody else may have chosen the text.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
const escaped = (found: string): string => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`;
/** A word of a command line, as a shell reads it back. */
export const quoted = (word: string): string =>
  /^[A-Za-z0-9_./:=@%+,-]+$/.test(word)
    ? word
    : word.search(UNSEEN) >= 0
      ? `$'${word.replaceAll("\\", "\\\\").replaceAll("'", "\\'").replace(UNSEEN, escaped)}'`
      : `'${word.replaceAll("'", "'\\''")}'`;

/** A command line: words that begin with a dash are options, but for those after `--`. A queue may be called `-rf`. */
export function command(...words: string[]): string {
  const end = words.indexOf("--");
  const before = end < 0 ? words : words.slice(0, end);
  const isDashed = (word: string, at: number): boolean => word.startsWith("-") && !word.startsWith("--") && !before[at - 1]?.startsWith("--");
  const last = [...before.filter(isDashed), ...(end < 0 ? [] : words.slice(end + 1))];
  const first = before.filter((word, at) => !isDashed(word, at));
  return ["penstock", ...first, ...(last.length ? ["--", ...last] : [])].map(quoted).join(" ");
}
