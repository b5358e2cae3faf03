"""The page at `/v1/docs`: the OpenAPI document for people, and a form to try each operation. It loads nothing else."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem }
body { color: #1c2733; background: #fff }
h1 { margin-bottom: 0 } h2 { margin-top: 2rem; text-transform: capitalize; border-bottom: 2px solid #d5dee6 }
details { border: 1px solid #d5dee6; border-radius: 6px; margin: .4rem 0; padding: .3rem .8rem }
summary { cursor: pointer } summary code { font-size: 1rem }
.method { display: inline-block; width: 5rem; font-weight: 700; color: #0b5c8a }
code, td { overflow-wrap: anywhere }
table { border-collapse: collapse } td, th { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top }
pre { background: #f3f6f9; padding: .6rem; overflow: auto; border-radius: 6px; max-height: 24rem }
textarea, input { font: 14px/1.4 ui-monospace, monospace; width: 100%; box-sizing: border-box }
button { margin: .5rem 0; padding: .3rem 1rem } .dim { color: #5b6b79 }
@media (prefers-color-scheme: dark) {
  body { background: #12181e; color: #dde5ec } pre { background: #1c252e } .method { color: #6cbbe6 }
}
"""

_SCRIPT = """
"use strict";
const at = document.getElementById("operations");
const make = (name, text, parent) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};
const resolve = (schema, api) => schema && schema.$ref
  ? api.components.schemas[schema.$ref.split("/").pop()] : schema;
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
    make("td", describe(field) + ((full.required || []).includes(name) ? ", needed" : ""), row);
    const about = make("td", undefined, row);
    about.className = "dim";
    prose(field.description || "", about);
  }
};
const tryIt = (method, path, operation, api, parent) => {
  const address = make("input", undefined, parent);
  address.value = path;
  address.setAttribute("aria-label", "path");
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  const body = content ? make("textarea", JSON.stringify(example(content.schema, api), null, 2), parent) : null;
  if (body) { body.rows = 6; body.setAttribute("aria-label", "body"); }
  const button = make("button", "Send", parent), answer = make("pre", "", parent);
  answer.hidden = true;
  button.addEventListener("click", async () => {
    const headers = {}, token = document.getElementById("token").value;
    if (token) headers.Authorization = "Bearer " + token;
    if (body) headers["Content-Type"] = "application/json";
    answer.hidden = false;
    try {
      const response = await fetch(address.value, { method, headers, body: body ? body.value : undefined });
      const text = await response.text();
      let shown = text;
      try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { }
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
        make("span", method.toUpperCase(), line).className = "method";
        make("code", path, line);
        make("span", " " + operation.summary, line).className = "dim";
        if (operation.description) prose(operation.description, make("p", undefined, details));
        for (const parameter of operation.parameters.filter((each) => each.in === "query"))
          make("div", "?" + parameter.name + "= " + describe(parameter.schema), details).className = "dim";
        const content = operation.requestBody && operation.requestBody.content["application/json"];
        if (content) { make("h4", "Body", details); fields(content.schema, api, details); }
        const success = Object.values(operation.responses)[0].content;
        if (success) { make("h4", "Answer", details); fields(success["application/json"].schema, api, details); }
        tryIt(method.toUpperCase(), path, operation, api, details);
      }
  }
};
fetch("openapi.json").then((response) => response.json()).then(show)
  .catch((error) => make("p", "The document cannot be loaded: " + error, at));
"""

PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Penstock REST API</title><style>{STYLE}</style></head>
<body><h1>Penstock REST API <small id="version" class="dim"></small></h1><p id="about"></p>
<p><a href="openapi.json">openapi.json</a></p>
<label>Token, if the server needs one: <input id="token" type="password" autocomplete="off"></label>
<main id="operations"></main><script>{_SCRIPT}</script></body></html>
""".encode()


def style_source() -> str:
    """How a content security policy names the style."""
    return _source(STYLE)


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; script-src {_source(_SCRIPT)}; style-src {_source(STYLE)}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page runs its own script and calls its own server; nothing else."""
