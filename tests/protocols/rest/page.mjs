// Runs the script of the documentation's page in a document just large enough, against a real server.
// usage: node page.mjs URL
const base = process.argv[2];
class Element {
  constructor(name) { Object.assign(this, { name, children: [], textContent: "", value: "", listeners: {} }); }
  append(...children) { this.children.push(...children); }
  setAttribute() { }
  addEventListener(kind, listener) { this.listeners[kind] = listener; }
  all(name) { return this.children.filter((child) => child.all).flatMap((child) => [...(child.name === name ? [child] : []), ...child.all(name)]); }
}
const known = {};
const document = {
  createElement: (name) => new Element(name),
  getElementById: (id) => (known[id] ??= new Element(id)),
};
const page = await (await fetch(base + "/v1/docs")).text();
const script = page.slice(page.indexOf("<script>") + 8, page.indexOf("</script>"));
let last = Promise.resolve();
const fromPage = (path, options) => (last = fetch(new URL(path, base + "/v1/docs"), options));
new Function("document", "fetch", "location", script)(document, fromPage, { origin: base });
await last;
await new Promise((resolve) => setTimeout(resolve, 100));
const shown = known.operations.all("details");
const stats = shown.find((each) => each.id === "server_stats");
await stats.all("button")[0].listeners.click();
const create = shown.find((each) => each.id === "create_queue");
create.all("textarea")[0].value = '{"name": "from-the-page"}';
await create.all("button")[0].listeners.click();
console.log(JSON.stringify({
  operations: shown.map((each) => each.id),
  fields: create.all("code").map((each) => each.textContent),
  stats: stats.all("pre")[0].textContent,
  created: create.all("pre")[0].textContent,
}));
