import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { forgetToken, get, hasToken, post, setToken, whenRefused, type Partitions } from "./api";
import { AllDead, DeadLetters } from "./dead";
import { Messages } from "./messages";
import { Overview } from "./overview";
import { Button, Field, isTyping, setTheme, theme, Trouble, usePolled } from "./parts";
import { Queue } from "./queue";
import "./style.css";

const go = (path: string): void => void (location.hash = `#/${path}`);
const parts = (): string[] => location.hash.replace(/^#\/?/, "").split("/").map(decode);
function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
const PLACES: Record<string, string> = { q: "", o: "", d: "dead", c: "cluster" };
const KEYS: [string, string][] = [
  ["/", "search or filter"],
  ["j, k", "next row, row before"],
  ["Enter", "open the row"],
  ["n", "create a queue, or send a message"],
  ["r", "refresh"],
  ["g q", "go to the queues"],
  ["g d", "go to the dead letters"],
  ["g c", "go to the cluster"],
  ["t", "dark or light"],
  ["?", "this list"],
  ["Esc", "close"],
];

function App() {
  const [path, setPath] = useState(parts());
  const [refused, setRefused] = useState(false);
  const [help, setHelp] = useState(false);
  useEffect(() => {
    whenRefused(() => setRefused(true));
    const moved = () => (setPath(parts()), scrollTo(0, 0));
    let isGoing = false;
    const key = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (isTyping(event)) {
        if (event.key === "Escape") (event.target as HTMLElement).blur();
        return;
      }
      const press = (selector: string) => document.querySelector<HTMLElement>(selector);
      if (isGoing && event.key in PLACES) go(PLACES[event.key]!);
      else if (event.key === "/") (event.preventDefault(), press(".search")?.focus());
      else if (event.key === "?") setHelp(true);
      else if (event.key === "t") setTheme(theme() === "dark" ? "light" : "dark");
      else if (event.key === "n" || event.key === "r") {
        const found = press(`[data-key=${event.key}]`);
        if (found) (event.preventDefault(), found.click());
      }
      isGoing = event.key === "g";
    };
    addEventListener("hashchange", moved);
    addEventListener("keydown", key);
    return () => (removeEventListener("hashchange", moved), removeEventListener("keydown", key));
  }, []);
  const [place, name, part] = path;
  const signOut = () => {
    forgetToken();
    setRefused(true);
  };
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => (event.preventDefault(), document.getElementById("content")?.focus())}>
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href="#/">
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <path d="M8 7v18M8 10h9a6 6 0 0 1 0 12H8" />
          </svg>
          Penstock
        </a>
        {!refused && (
          <nav aria-label="Pages">
            <a href="#/" aria-current={!place || place === "queues" ? "page" : undefined}>
              Queues
            </a>
            <a href="#/dead" aria-current={place === "dead" ? "page" : undefined}>
              Dead letters
            </a>
            <a href="#/cluster" aria-current={place === "cluster" ? "page" : undefined}>
              Cluster
            </a>
            <a href="/v1/docs">API</a>
          </nav>
        )}
        <span class="grow" />
        <Button class="quiet" onClick={() => setTheme(theme() === "dark" ? "light" : "dark")} aria-label="Dark or light">
          ◐
        </Button>
        <Button class="quiet" onClick={() => setHelp(true)} aria-label="Keys">
          ?
        </Button>
        {hasToken() && !refused && (
          <Button class="quiet" onClick={signOut}>
            Sign out
          </Button>
        )}
      </header>
      <div id="content" tabIndex={-1}>
      {refused ? (
        <Login done={() => setRefused(false)} />
      ) : place === "queues" && name && part === "messages" ? (
        <Messages key={name} name={name} />
      ) : place === "queues" && name && part === "dead" ? (
        <DeadLetters key={name} name={name} />
      ) : place === "queues" && name ? (
        <Queue key={name} name={name} go={go} />
      ) : place === "dead" ? (
        <AllDead />
      ) : place === "cluster" ? (
        <Cluster />
      ) : (
        <Overview go={go} />
      )}
      </div>
      {help && <Help close={() => setHelp(false)} />}
    </>
  );
}

function Help({ close }: { close: () => void }) {
  return (
    <dialog ref={(at) => void (at && !at.open && at.showModal())} onClose={close} aria-labelledby="help-title">
      <h2 id="help-title">Keys</h2>
      <dl class="facts keys">
        {KEYS.map(([key, what]) => (
          <>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </>
        ))}
      </dl>
      <div class="buttons">
        <Button onClick={close}>Close</Button>
      </div>
    </dialog>
  );
}

function Login({ done }: { done: () => void }) {
  const [token, setTyped] = useState("");
  const [error, setError] = useState<Error>();
  const submit = async (event: Event) => {
    event.preventDefault();
    setToken(token);
    try {
      await get("/v1/queues?limit=1");
      done();
    } catch (problem) {
      forgetToken();
      setError(problem as Error);
    }
  };
  return (
    <main class="login">
      <form onSubmit={submit}>
        <h1>Sign in</h1>
        <p>This server asks for a token, or for ACCESS_KEY:SECRET_KEY. You see and may do what it may.</p>
        <Field label="Token" hint="This tab forgets it when it is closed.">
          <input type="password" autocomplete="current-password" value={token} required onInput={(event) => setTyped(event.currentTarget.value)} />
        </Field>
        <Trouble error={error} />
        <div class="buttons">
          <button type="submit" class="main">
            Sign in
          </button>
        </div>
      </form>
    </main>
  );
}

function Cluster() {
  const map = usePolled(() => post<Partitions>("/get_partitions"), 5000, []);
  const found = map.value;
  const owned = (node: string) => found?.owners.filter((owner) => owner === node).length ?? 0;
  return (
    <main>
      <h1>Cluster</h1>
      <Trouble error={map.error} />
      {found && (
        <>
          <p class="note">
            {found.partitions === 1 ? "One shard" : `${found.partitions} shards`}, version {found.version} of the partition map.
          </p>
          <table>
            <thead>
              <tr>
                <th>node</th>
                <th>address</th>
                <th class="number">shards</th>
              </tr>
            </thead>
            <tbody>
              {Object.entries(found.nodes).map(([node, url]) => (
                <tr key={node}>
                  <td class="name">{node}</td>
                  <td class="mono">{url}</td>
                  <td class="number">{owned(node)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </>
      )}
    </main>
  );
}

document.documentElement.dataset.theme = theme();
render(<App />, document.getElementById("app")!);
