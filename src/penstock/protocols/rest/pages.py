"""Pages for people. They load nothing from elsewhere.

`/v1/docs` is the OpenAPI document, with a form to try each operation. `/v1/problems` is every error of the API, with
what it means and what to do: where `type` links lead. The table of errors is also the one in docs/rest.md, which is
drawn from it.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from http import HTTPStatus
from typing import NamedTuple

_DARK = """
  --ground: #0e1318; --sheet: #151c23; --ink: #e3eaf0; --dim: #9dadbc; --rule: #27323c; --soft: #1c252e;
  --link: #7cc4ee; --good: #7fd6a1; --warn: #ffcf7d; --bad: #ff8a80; --on: #04121b; color-scheme: dark
"""
STYLE = (
    """
:root { --ground: #f5f7f9; --sheet: #fff; --ink: #17212b; --dim: #51606f; --rule: #dde4ea; --soft: #eef2f6 }
:root { --link: #0b5c8a; --good: #1b6b3a; --warn: #7a4b00; --bad: #b3261e; --on: #fff; color-scheme: light }
* { box-sizing: border-box }
body { font: 15px/1.5 -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", "DejaVu Sans", sans-serif }
body { color: var(--ink); background: var(--ground); margin: 0 auto; max-width: 72rem; padding: 1rem 1.2rem 4rem }
a { color: var(--link); text-underline-offset: 2px }
h1 { margin: 0; font-size: 1.4rem } h2 { margin: 2rem 0 .5rem; font-size: 1.05rem }
h2::first-letter { text-transform: capitalize }
h3 { margin: .9rem 0 .2rem; font-size: .9rem; color: var(--dim) }
.top { display: flex; align-items: center; gap: .8rem; flex-wrap: wrap; margin-bottom: .6rem }
.top svg { width: 26px; height: 26px; background: #0b5c8a; border-radius: 7px; fill: none; stroke: #fff }
.top svg { stroke-width: 4; stroke-linecap: round; display: block }
details { background: var(--sheet); border: 1px solid var(--rule); border-radius: 9px }
details { margin: .4rem 0; padding: .45rem .9rem }
summary { cursor: pointer; overflow-wrap: anywhere } summary code { font-size: .95rem }
.method { display: inline-block; width: 4.6rem; font-weight: 700; color: var(--link); font-size: .85rem }
.POST { color: var(--good) } .PATCH, .PUT { color: var(--warn) } .DELETE { color: var(--bad) }
code, pre, textarea, .mono { font-family: ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace }
code, td { overflow-wrap: anywhere } code { font-size: .9em }
table { border-collapse: collapse } td, th { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top }
pre { background: var(--soft); padding: .7rem; overflow: auto; border-radius: 7px; max-height: 24rem }
pre { font-size: 13px; margin: .4rem 0; white-space: pre-wrap; overflow-wrap: anywhere }
textarea, input, button { font: inherit; color: inherit; border: 1px solid var(--dim); border-radius: 7px }
textarea, input { background: var(--sheet) }
textarea, input { padding: .35rem .6rem; width: 100% } textarea { margin-top: .4rem; resize: vertical }
textarea, .mono { font: 13px/1.5 ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace }
.top input { width: 15rem } .try { margin-top: .6rem }
button { margin: .5rem 0; padding: .3rem 1.1rem; cursor: pointer; background: var(--link); color: var(--on) }
button { border-color: transparent; font-weight: 600 } .dim { color: var(--dim) }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px }
dialog { border: 1px solid var(--rule); border-radius: 12px; background: var(--sheet); color: var(--ink) }
dialog { max-width: min(36rem, calc(100vw - 2rem)); padding: 1.2rem 1.4rem } dialog p { margin: 0 0 .6rem }
dialog code { font-weight: 700 } dialog button { margin: 0 .5rem 0 0 } #confirmed { background: var(--bad) }
"""
    f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {_DARK} }} }}\n'
    f':root[data-theme="dark"] {{ {_DARK} }}\n'
)
"""The console's colours and shapes: see `console/src/style.css`."""

_SCRIPT = """
"use strict";
try { document.documentElement.dataset.theme = localStorage.getItem("penstock-theme") || ""; } catch { }
const at = document.getElementById("operations");
const make = (name, text, parent) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};
const resolve = (schema, api) => schema && schema.$ref
  ? api.components.schemas[schema.$ref.split("/").pop()] : schema;
// What examples are about: nothing that anybody uses. What a change gives (a session, a receipt, a message's id) goes
// into the next examples. What a list gives does not: that may be somebody else's.
const known = { queue: "try-me", channel: "main", consumer: "try-me", session: "try-me", task: "0" };
Object.assign(known, { message: "0", receipt: "", node: "try-me", shard: 0 });
const learn = (found) => {
  if (Array.isArray(found)) { found.slice(-1).forEach(learn); return; }
  if (found === null || typeof found !== "object") return;
  for (const [name, value] of Object.entries(found)) {
    if (typeof value === "object") learn(value);
    else if (name === "id") known.message = value;
    else if (["session", "task", "receipt"].includes(name) && value) known[name] = String(value);
  }
};
const bodies = {
  create_queue: () => ({ name: known.queue, settings: { lease: 30 } }),
  change_queue: () => ({ lease: 45 }),
  send_messages: () => [{ body: "tea", attributes: { table: 7 } }, { body: "cake" }],
  create_channel: () => ({ name: "try-me", start: "head" }),
  receive_messages: () => ({ max: 1 }),
  receive_from_channel: () => ({ max: 1 }),
  ack_messages: () => ({ receipt: known.receipt }),
  ack_in_channel: () => ({ receipt: known.receipt }),
  release_messages: () => ({ receipt: known.receipt, error: "timeout after 3 s", delay: 0 }),
  release_in_channel: () => ({ receipt: known.receipt, error: "timeout after 3 s", delay: 0 }),
  extend_leases: () => ({ receipt: known.receipt, lease: 60 }),
  extend_in_channel: () => ({ receipt: known.receipt, lease: 60 }),
  delete_messages: () => ({ ids: [known.message] }),
  release_named_messages: () => ({ ids: [known.message] }),
  reschedule_messages: () => ({ ids: [known.message], delay: 60 }),
  start_redrive: () => ({ queue: known.queue, target: "try-me-too", create: true, contains: "tea", rate: 100 }),
  commit_work: () => ({ sends: [{ queue: known.queue, body: "done" }] }),
  open_session: () => ({ name: "docs", ttl: 30 }),
  move_consumer: () => ({ offset: 1, allow_rewind: true }),
  publish: () => ({ queue: known.queue, messages: [{ body: "tea" }] }),
  get_records: () => ({ queue: known.queue, offset: 0 }),
  consumer_ack: () => ({ queue: known.queue, consumer: known.consumer, offset: 1, allow_rewind: true }),
  delete_virtual_consumer: () => ({ queue: known.queue, consumer: known.consumer }),
  delete_virtual_queue: () => ({ queue: known.queue }),
  move_shard: () => ({ shard: known.shard, node: known.node }),
  drain_node: () => ({ node: known.node, draining: true }),
};
const filled = (path) => path.replace(/\\{(\\w+)\\}/g, (_, name) => encodeURIComponent(known[name] ?? name));
const example = (schema, api, depth = 0) => {
  const full = resolve(schema, api) || {};
  if (full.default !== undefined) return full.default;
  if (full.enum) return full.enum[0];
  if (full.const !== undefined) return full.const;
  if (full.anyOf) return example(full.anyOf[0], api, depth);
  if (full.type === "object" && depth < 3) {
    const made = {};
    for (const name of full.required || []) made[name] = example(full.properties[name], api, depth + 1);
    return made;
  }
  return { string: "text", integer: 0, number: 0, boolean: false, array: [], object: {} }[full.type] ?? null;
};
const describe = (schema) => schema.$ref ? schema.$ref.split("/").pop()
  : schema.anyOf ? schema.anyOf.map(describe).join(" or ")
  : schema.enum ? schema.enum.map((each) => JSON.stringify(each)).join(" or ")
  : schema.type === "array" ? "list of " + describe(schema.items || {}) : schema.type || "anything";
const prose = (text, parent) =>
  text.split("`").forEach((part, index) => parent.append(index % 2 ? make("code", part) : part));
const fields = (schema, api, parent, shown = new Set()) => {
  const full = resolve(schema, api);
  if (!full || shown.has(full)) return;
  shown.add(full);
  for (const each of full.anyOf || []) fields(each, api, parent, shown);
  if (full.items) fields(full.items, api, parent, shown);
  if (!full.properties) return;
  const table = make("table", undefined, parent);
  for (const [name, field] of Object.entries(full.properties)) {
    const row = make("tr", undefined, table);
    make("code", name, make("td", undefined, row));
    make("td", describe(field) + ((full.required || []).includes(name) ? ", required" : ""), row);
    const about = make("td", undefined, row);
    about.className = "dim";
    prose(field.description || "", about);
  }
};
const confirmed = (what) => new Promise((tell) => {
  const dialog = document.getElementById("confirm");
  document.getElementById("what").textContent = what;
  dialog.returnValue = "";
  dialog.onclose = () => tell(dialog.returnValue === "yes");
  document.getElementById("confirmed").onclick = () => dialog.close("yes");
  document.getElementById("cancelled").onclick = () => dialog.close("");
  dialog.showModal();
});
const destroys = (method, operation, address, body) =>
  method === "DELETE" || /^(delete|purge|move_shard|drain)/.test(operation.operationId)
  || /[/](delete|purge)/.test(address) || /"discard"\\s*:\\s*true/.test(body);
const tryIt = (method, path, operation, api, details) => {
  const parent = make("div", undefined, details);
  parent.className = "try";
  const address = make("input", undefined, parent);
  address.setAttribute("aria-label", "path");
  address.className = "mono";
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  const body = content ? make("textarea", "", parent) : null;
  if (body) body.setAttribute("aria-label", "body");
  const fill = () => {
    address.value = filled(path);
    if (!body) return;
    const made = bodies[operation.operationId] || (() => example(content.schema, api));
    body.value = JSON.stringify(made(), null, 2);
    body.rows = Math.min(14, body.value.split("\\n").length + 1);
  };
  let wasSent = false;
  fill();
  details.addEventListener("toggle", () => { if (details.open && !wasSent) fill(); });
  const button = make("button", "Send", parent), answer = make("pre", "", parent), same = make("pre", "", parent);
  button.type = "button";
  answer.hidden = same.hidden = true;
  answer.tabIndex = same.tabIndex = 0;
  answer.setAttribute("aria-label", "answer");
  same.setAttribute("aria-label", "the same with curl");
  button.addEventListener("click", async () => {
    if (destroys(method, operation, address.value, body ? body.value : "")
      && !await confirmed(method + " " + address.value)) return;
    const headers = {}, token = document.getElementById("token").value;
    if (token) headers.Authorization = "Bearer " + token;
    if (body) headers["Content-Type"] = "application/json";
    answer.hidden = same.hidden = false;
    wasSent = true;
    const quote = (text) => "'" + text.replaceAll("'", "'\\\\''") + "'";
    same.textContent = "curl -X " + method + " " + quote(location.origin + address.value)
      + (token ? " -H 'Authorization: Bearer '$PENSTOCK_TOKEN" : "") + (body ? " --json " + quote(body.value) : "");
    try {
      const response = await fetch(address.value, { method, headers, body: body ? body.value : undefined });
      const text = await response.text();
      let shown = text;
      try {
        const found = JSON.parse(text);
        if (response.ok && method === "POST") learn(found);
        shown = JSON.stringify(found, null, 2);
      } catch { }
      answer.textContent = response.status + " " + response.statusText + "\\n" + shown;
    } catch (error) { answer.textContent = String(error); }
  });
};
const show = (api) => {
  document.getElementById("version").textContent = api.info.version;
  prose(api.info.description, document.getElementById("about"));
  for (const tag of api.tags) {
    make("h2", tag.name, at);
    for (const [path, methods] of Object.entries(api.paths))
      for (const [method, operation] of Object.entries(methods)) {
        if (operation.tags[0] !== tag.name) continue;
        const details = make("details", undefined, at), line = make("summary", undefined, details);
        details.id = operation.operationId;
        make("span", method.toUpperCase(), line).className = "method " + method.toUpperCase();
        make("code", path, line);
        make("span", " " + operation.summary, line).className = "dim";
        if (operation.description) prose(operation.description, make("p", undefined, details));
        for (const parameter of operation.parameters.filter((each) => each.in === "query"))
          make("div", "?" + parameter.name + "= " + describe(parameter.schema), details).className = "dim";
        const content = operation.requestBody && operation.requestBody.content["application/json"];
        if (content) { make("h3", "Body", details); fields(content.schema, api, details); }
        const success = Object.values(operation.responses)[0].content;
        if (success) { make("h3", "Answer", details); fields(success["application/json"].schema, api, details); }
        tryIt(method.toUpperCase(), path, operation, api, details);
      }
  }
};
document.getElementById("filter").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const each of at.querySelectorAll("details"))
    each.hidden = !each.querySelector("summary").textContent.toLowerCase().includes(wanted);
});
fetch("openapi.json").then((response) => response.json()).then(show)
  .catch((error) => make("p", "The document cannot be loaded: " + error, at));
"""

_MARK = '<svg viewBox="0 0 32 32" aria-hidden="true"><path d="M8 7v18M8 10h9a6 6 0 0 1 0 12H8"/></svg>'


def docs_page(*, has_console: bool) -> bytes:
    """The page of the API, with a way back to the console where there is one.

    >>> b'href="/"' in docs_page(has_console=True), b'href="/"' in docs_page(has_console=False)
    (True, False)
    """
    back = f'<a href="/" aria-label="The console">{_MARK}</a>' if has_console else _MARK
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Penstock REST API</title><style>{STYLE}</style></head>
<body><header class="top">{back}<h1>Penstock REST API <small id="version" class="dim"></small></h1>
<input id="filter" type="search" placeholder="Filter" aria-label="Filter operations">
<input id="token" type="password" autocomplete="off" placeholder="Token, if one is needed" aria-label="Token">
<a href="openapi.json">openapi.json</a></header>
<main><p id="about"></p><p class="dim">The examples are filled in, for a queue of their own: <code>try-me</code>. A send
creates it. Values from an answer, such as a receipt or a session, are used in the examples that you open next.
Whatever deletes something is confirmed first.</p><div id="operations"></div></main>
<dialog id="confirm" aria-labelledby="what"><p>Really send <code id="what"></code> to this server? This cannot be
undone.</p><button type="button" id="cancelled" autofocus>Cancel</button>
<button type="button" id="confirmed">Send</button></dialog>
<script>{_SCRIPT}</script></body></html>
""".encode()


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


DOCS_POLICY = (
    f"default-src 'none'; script-src {_source(_SCRIPT)}; style-src {_source(STYLE)}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page runs its own script and calls its own server; nothing else."""


PATH = "/v1/problems"


class Explained(NamedTuple):
    """One kind of problem."""

    code: str
    status: int
    meaning: str
    remedy: str


_AGAIN = "Send the request again, a little later."
_UNKNOWN = "It is not known whether the request was done. Check, or send it again with the same `Idempotency-Key`."
_NAME = "Check the name."

EXPLAINED = (
    Explained(
        "no_common_version",
        400,
        "Client and server have no common version of the websocket protocol.",
        "Upgrade the older one.",
    ),
    Explained(
        "invalid_request",
        400,
        "A field or a parameter is wrong, or two of them contradict each other.",
        "`detail` names it.",
    ),
    Explained(
        "invalid_name",
        400,
        "No queue, channel, consumer or group can have this name.",
        "Use 1 to 128 letters, digits, dots, dashes, underscores or `#`.",
    ),
    Explained(
        "invalid_config",
        400,
        "A setting is unknown, out of its range, or contradicts another.",
        "`detail` names it, and what it may be.",
    ),
    Explained(
        "malformed_body", 400, "The body is neither JSON nor a batch.", "Check the body against its content type."
    ),
    Explained("malformed_request", 400, "The request is not HTTP.", "Check what the client sends."),
    Explained(
        "forged_receipt",
        400,
        "This server has not made the receipt, or it was changed on its way.",
        "Use the receipt exactly as the receive returned it.",
    ),
    Explained(
        "lease_too_long",
        400,
        "The lease would end more than twelve hours after the receive.",
        "Extend it by less, or release the message and receive it again.",
    ),
    Explained(
        "unauthorized",
        401,
        "The request has no credentials, or wrong ones.",
        "Send `Authorization: Bearer TOKEN`, with a token of the server.",
    ),
    Explained(
        "access_denied",
        403,
        "The credentials do not allow this.",
        "Ask for the right that `detail` names, or use other credentials.",
    ),
    Explained(
        "foreign_page",
        403,
        "A web page of another site sent the request, without credentials or with a password that its browser keeps.",
        "Configure credentials and let the page send a token, or list its origin in `[rest] cors_origins`.",
    ),
    Explained(
        "read_only",
        403,
        "The console of this server cannot change anything.",
        "Use the command line, or set `[console] read_only` to false.",
    ),
    Explained(
        "masked",
        403,
        "This server masks messages, so its web pages cannot receive them.",
        "Browse them, or receive them with another program.",
    ),
    Explained("path_not_found", 404, "There is nothing at this path.", "`/v1/docs` lists every path."),
    Explained("queue_not_found", 404, "There is no queue of this name.", "Create it, or send a message to it."),
    Explained(
        "queue_replaced",
        404,
        "The queue was deleted, and another one may have its name.",
        "Look at the queue again. Nothing was done.",
    ),
    Explained("channel_not_found", 404, "The queue has no channel of this name.", "Create the channel."),
    Explained(
        "consumer_not_found", 404, "The queue has no consumer of this name.", "Acknowledge an offset: that creates it."
    ),
    Explained("session_not_found", 404, "The session has ended, or never existed.", "Open a new session."),
    Explained(
        "message_not_found",
        404,
        "There is no message with this id: it is done in every channel, was deleted by retention, or never existed.",
        "Look for it in the queue's dead letters.",
    ),
    Explained("task_not_found", 404, "There is no redrive with this number.", "List the redrives of the queue."),
    Explained("history_off", 404, "This server keeps no history.", "Set `enabled` under `[history]`, and restart it."),
    Explained(
        "no_cluster",
        409,
        "This server does not belong to a cluster, so nothing can be moved.",
        "Ask a node of the cluster.",
    ),
    Explained("not_found", 404, "What the request names does not exist.", _NAME),
    Explained(
        "method_not_allowed", 405, "The path does not have this method.", "The `Allow` header lists those that it has."
    ),
    Explained(
        "not_acceptable", 406, "The server cannot answer with what `Accept` asks for.", "Accept `application/json`."
    ),
    Explained("header_timeout", 408, "The head of the request took too long to arrive.", _AGAIN),
    Explained("body_timeout", 408, "The body of the request took too long to arrive.", _AGAIN),
    Explained(
        "queue_exists",
        409,
        "The queue exists with other settings.",
        "Change its settings with `PATCH /v1/queues/{queue}`, or choose another name.",
    ),
    Explained(
        "queue_changed",
        409,
        "Somebody else changed the settings of the queue at the same time.",
        "Look at the settings again, and repeat the change.",
    ),
    Explained(
        "stale_receipt",
        409,
        "The lease is over: the message was settled before, or delivered again.",
        "Drop the result: somebody else may work on the message. Next time, extend the lease earlier.",
    ),
    Explained(
        "foreign_receipt", 409, "The receipt belongs to another queue or channel.", "Settle it where it was received."
    ),
    Explained(
        "rewind_refused",
        409,
        "The consumer would move backwards.",
        "Send `allow_rewind` if that is what you want.",
    ),
    Explained(
        "stage_not_found",
        409,
        "The first parts of a large batch are gone: the store was opened again, or a queue was purged. "
        "Nothing of it was sent.",
        "Publish the batch again.",
    ),
    Explained(
        "work_refused",
        409,
        "The unit of work has messages that are no longer its own. Nothing of it was done.",
        "Receive the messages again, and repeat the work.",
    ),
    Explained(
        "partition_moved",
        409,
        "Another node owns the queue.",
        "Send the request to `owner`, and fetch the partition map again.",
    ),
    Explained(
        "mark_moved",
        409,
        "The numbered work does not follow the work that was done last. Nothing of it was done.",
        "`detail` has the last number: continue after it.",
    ),
    Explained("body_too_large", 413, "The body is larger than the server accepts.", "Send smaller batches."),
    Explained(
        "message_too_large",
        413,
        "A message is larger than its queue accepts.",
        "Send a smaller message, or raise `message_bytes_max` of the queue.",
    ),
    Explained(
        "batch_too_large", 413, "A batch or a unit of work is larger than one commit may be.", "Send smaller ones."
    ),
    Explained(
        "unsupported_media_type",
        415,
        "The content type is neither that of JSON nor that of a batch.",
        "Send `Content-Type: application/json` (curl: `--json`).",
    ),
    Explained(
        "expectation_failed",
        417,
        "The server cannot do what `Expect` says.",
        "Send `Expect: 100-continue`, or no `Expect`.",
    ),
    Explained(
        "misdirected_request",
        421,
        "The `Host` of the request is not a name of this server.",
        "Use `localhost` or an IP address, or add the name to `[server] hosts` or `--hosts`.",
    ),
    Explained(
        "rate_limited",
        429,
        "The caller sends more requests than `[rest] requests_per_second`.",
        "Wait as long as `Retry-After` says. Requests over the websocket count, too.",
    ),
    Explained(
        "too_many_failed_logins",
        429,
        "Too many wrong credentials came from this address. For a while even right ones are refused.",
        "Wait as long as `Retry-After` says. Programs that are logged in are not affected.",
    ),
    Explained(
        "over_limit",
        429,
        "The channel has `in_flight_max` messages in flight.",
        "Acknowledge messages, or raise `in_flight_max` of the queue.",
    ),
    Explained("throttled", 429, "The queue or the group is above its configured rate.", _AGAIN),
    Explained(
        "header_too_large",
        431,
        "The head of the request, with its URL, is too large.",
        "Send shorter headers, or a shorter URL.",
    ),
    Explained(
        "internal_error",
        500,
        "This is a bug.",
        "The server's log has the `x-request-id` of the answer. Please report it.",
    ),
    Explained(
        "chunk_damaged",
        500,
        "Stored messages do not match their checksum. They are in quarantine, not deleted.",
        "Check the disk and the server's log.",
    ),
    Explained(
        "queue_damaged",
        500,
        "The stored data of the queue is damaged. The queue is in quarantine; other queues are served.",
        "Run `penstock store check`, then `penstock store salvage`.",
    ),
    Explained("stopping", 503, "The server is being stopped.", _AGAIN),
    Explained("too_many_connections", 503, "The server has reached its limit of connections.", _AGAIN),
    Explained(
        "no_room",
        503,
        "Other requests and answers use all of `[server] buffer_bytes_max`. Nothing was done.",
        "Send the request again, a little later, or raise the setting.",
    ),
    Explained("shard_closed", 503, "The store is being closed or opened again.", _AGAIN),
    Explained("commit_failed", 503, "The disk failed while the request was being written.", _UNKNOWN),
    Explained(
        "disk_full", 503, "The server's disk is full. Nothing was done.", "Free some space, and send the request again."
    ),
    Explained(
        "directory_moved",
        503,
        "The server's data directory was moved, replaced or deleted while the server runs. Nothing was done.",
        "The server's log says what happened. Put the directory back; or stop the server and restore a backup.",
    ),
    Explained("disk_failed", 503, "The server's disk could not be read.", "The server's log says which file, and why."),
    Explained("shard_unserved", 503, "In a cluster: no node serves the queue at the moment. Nothing was done.", _AGAIN),
    Explained("commit_aborted", 503, "In a cluster: the commit was aborted. Nothing was done.", _AGAIN),
    Explained("log_unavailable", 503, "In a cluster: Kafka does not answer. Nothing was done.", _AGAIN),
    Explained(
        "log_unsafe", 503, "In a cluster: Kafka has too few replicas. Nothing was done.", "Start the missing brokers."
    ),
    Explained("link_broken", 503, "In a cluster: the connection to the queue's node broke.", _UNKNOWN),
    Explained("shard_fenced", 503, "In a cluster: another node took the queue over.", _UNKNOWN),
)

_BY_CODE = {each.code: each for each in EXPLAINED}
PROBLEM_POLICY = (
    f"default-src 'none'; style-src {_source(STYLE)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page(code: str) -> str | None:
    """The page of one kind of problem, if it is known.

    >>> "another node" in (page("shard_fenced") or "").lower(), page("no_such_problem")
    (True, None)
    """
    found = _BY_CODE.get(code)
    if found is None:
        return None
    status = f"{found.status} {HTTPStatus(found.status).phrase}"
    said = f"<p>{_prose(found.meaning)}</p><p><b>What to do:</b> {_prose(found.remedy)}</p>"
    return _page(found.code, f"<p class='dim'>Status {status}</p>{said}<p><a href='{PATH}'>All problems</a></p>")


def index() -> str:
    """The page that lists them all."""
    rows = (
        f"<tr><td><a href='{PATH}/{each.code}'><code>{each.code}</code></a></td><td>{each.status}</td>"
        f"<td>{_prose(each.meaning)}</td></tr>"
        for each in EXPLAINED
    )
    return _page("Problems", f"<table>{''.join(rows)}</table>")


def _page(title: str, content: str) -> str:
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{title}: Penstock REST API</title><style>{STYLE}</style></head><body><h1>{title}</h1>{content}"
        "<p><a href='/v1/docs'>The API</a></p></body></html>\n"
    )


def _prose(text: str) -> str:
    """Text with what stands between backticks as code.

    >>> _prose("Send `a < b`.")
    'Send <code>a &lt; b</code>.'
    """
    parts = escape(text, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
