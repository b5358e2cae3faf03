import { useState } from "preact/hooks";
import { administersAll } from "./api";
import { Button, Trouble, useLive, Wide } from "./parts";
import { moment } from "./text";

const PAGE = 100;

/** Every change: who, what, when, and how much it was about. */
export function Audit() {
  const [typed, setTyped] = useState("");
  const [queue, setQueue] = useState("");
  const search = (event: Event) => {
    event.preventDefault();
    setQueue(typed);
  };
  return (
    <main>
      <header class="bar">
        <h1>Audit</h1>
        <span class="grow" />
        <form class="bar" onSubmit={search}>
          <input
            type="search"
            class="search"
            placeholder="Only this queue  ( / )"
            aria-label="Only changes of this queue"
            value={typed}
            onInput={(event) => setTyped(event.currentTarget.value)}
          />
          <button type="submit">Search</button>
        </form>
      </header>
      {queue || administersAll() ? (
        <Changes key={queue} queue={queue} />
      ) : (
        <p class="note">You may see the changes of the queues that you administer. Search for one of them by its whole name.</p>
      )}
    </main>
  );
}

function Changes({ queue }: { queue: string }) {
  const [pages, setPages] = useState<(number | undefined)[]>([undefined]);
  const found = useLive("GET /v1/audit", { limit: PAGE, before: pages.at(-1), queue: queue || undefined }, true);
  const entries = found.value?.entries ?? [];
  return (
    <>
      <header class="bar">
        <p class="note">All changes{queue && ` of ${queue}`}, the newest first.</p>
        <span class="grow" />
        <Button onClick={() => void found.again()} data-key="r">
          Refresh
        </Button>
      </header>
      <Trouble error={found.error} />
      <section>
        <Wide>
          <table class="audit">
            <thead>
              <tr>
                <th>when</th>
                <th>who</th>
                <th>from</th>
                <th>what</th>
                <th>queue</th>
                <th>scope</th>
                <th>outcome</th>
              </tr>
            </thead>
            <tbody>
              {entries.map((each, index) => (
                <tr key={index}>
                  <td class="number">{moment(each.at)}</td>
                  <td class="name">{each.who}</td>
                  <td class="mono">{each.peer}</td>
                  <td class="mono">{each.what}</td>
                  <td>{each.queue && <a href={`#/queues/${encodeURIComponent(each.queue)}`}>{each.queue}</a>}</td>
                  <td class="mono">{Object.entries(each.scope).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ")}</td>
                  <td>
                    <span class={`tag ${each.outcome === "ok" ? "ready" : "bad"}`}>{each.outcome}</span>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
        {found.value && !entries.length && <p class="empty">No changes are recorded{queue && " for this queue"}.</p>}
        <nav class="pager" aria-label="Pages of changes">
          <Button disabled={pages.length === 1} onClick={() => setPages(pages.slice(0, -1))}>
            Newer
          </Button>
          <Button disabled={found.value?.next == null} onClick={() => setPages([...pages, found.value!.next!])}>
            Older
          </Button>
        </nav>
      </section>
    </>
  );
}
