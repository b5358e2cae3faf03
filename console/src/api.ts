// The REST API as this page uses it. Whether an operation exists is read from the server's OpenAPI document, so that
// the page shows nothing that its server cannot do.

export interface ChannelCounts {
  name: string;
  ready: number;
  leased: number;
  delayed: number;
  acked: number;
  failed: number;
  dead: number;
  paused: boolean;
  oldest_sent_at: number | null;
  waiting_receivers: number;
}
export interface QueueCounts {
  messages: number;
  bytes: number;
  delayed: number;
  sent: number;
  quarantined: number;
  oldest_sent_at: number | null;
  end_offset: number;
  channels: ChannelCounts[];
}
export interface NamedCounts {
  name: string;
  stats: QueueCounts;
}
export interface QueueDescription {
  name: string;
  settings: Record<string, unknown>;
  created_at: number;
  changed_at: number;
  stats: QueueCounts;
}
export interface ServerStats {
  version: string;
  queues: number;
  messages: number;
  bytes: number;
  ready: number;
  leased: number;
  delayed: number;
  sent: number;
  acked: number;
  failed: number;
  dead: number;
  sessions: number;
}
export interface Failure {
  attempt: number;
  received_at: number;
  failed_at: number;
  session: string;
  error: string;
}
export interface Message {
  id: string;
  sequence: number;
  body: string;
  encoding?: "text" | "base64";
  attributes?: Record<string, unknown>;
  group?: string;
  sent_at: number;
  state: "ready" | "leased" | "delayed" | "done";
  attempts: number;
  until?: number;
  failures?: Failure[];
  origin?: { queue: string; channel: string; sequence: number; attempts: number };
}
export interface Redrive {
  task: number;
  queue: string;
  target: string | null;
  status: "running" | "done" | "cancelled" | "failed";
  moved: number;
  skipped: number;
  to_move: number;
  started_at: number;
  error: string;
}
export interface Consumer {
  consumer: string;
  offset: number;
  end_offset: number;
  lag: number;
}
export interface Partitions {
  version: number;
  partitions: number;
  owners: string[];
  nodes: Record<string, string>;
}
export interface Schema {
  type?: string;
  enum?: string[];
  minimum?: number;
  maximum?: number;
  description?: string;
  "x-default"?: string;
  anyOf?: Schema[];
}

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

export async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  const token = sessionStorage.getItem(TOKEN);
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Problem(0, "unreachable", "The server does not answer. The page tries again.");
  }
  const text = await response.text();
  if (response.ok) return (text ? JSON.parse(text) : undefined) as T;
  if (response.status === 401) onRefused();
  let problem: { code?: string; detail?: string } = {};
  try {
    problem = JSON.parse(text);
  } catch {
    // A proxy may answer with something else than a problem of ours.
  }
  throw new Problem(response.status, problem.code ?? "", problem.detail ?? `The server answered ${response.status}.`);
}

export const get = <T>(path: string): Promise<T> => call<T>("GET", path);
export const post = <T>(path: string, body?: unknown): Promise<T> => call<T>("POST", path, body);
export const queuePath = (queue: string, rest = ""): string => `/v1/queues/${encodeURIComponent(queue)}${rest}`;
export const query = (values: Record<string, string | number | string[] | undefined>): string => {
  const made = new URLSearchParams();
  for (const [name, value] of Object.entries(values))
    for (const each of Array.isArray(value) ? value : [value])
      if (each !== undefined && each !== "") made.append(name, String(each));
  return made.size ? `?${made}` : "";
};

let document_: Promise<{ components: { schemas: Record<string, { properties: Record<string, Schema> }> } }> | undefined;
/** What each setting of a queue may be, as the server declares it. */
export async function settingSchemas(): Promise<Record<string, Schema>> {
  document_ ??= get("/v1/openapi.json");
  return (await document_).components.schemas.QueueSettings?.properties ?? {};
}
