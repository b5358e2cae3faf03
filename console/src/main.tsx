import { render, type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ask, forgetToken, hasToken, may, Problem, setMe, setToken, stream, useStream, whenRefused, who, type QueueRow } from "./api";
import { Audit } from "./audit";
import { Cluster } from "./cluster";
import { AllDead, DeadLetters } from "./dead";
import { Lookup } from "./lookup";
import { Messages } from "./messages";
import { Overview } from "./overview";
import { Button, Field, isTyping, Said, setTheme, theme, Trouble } from "./parts";
import { Queue } from "./queue";
import { AllSessions } from "./sessions";
import { Settings } from "./settings";
import { Spark } from "./spark";
import "./style.css";
import { Topics } from "./topics";
import { duration, moment } from "./text";

const go = (path: string): void => void (location.hash = `#/${path}`);
const toggleTheme = () => setTheme(theme() === "dark" ? "light" : "dark");
const parts = (): string[] => location.hash.replace(/^#\/?/, "").split("?")[0]!.split("/").map(decode);
function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

interface Place {
  path: string;
  key: string;
  label: string;
  icon: string;
  isFor?: () => boolean;
}
const PLACES: Place[] = [
  { path: "", key: "q", label: "Overview", icon: "M3 13h4v7H3zM10 4h4v16h-4zM17 9h4v11h-4z" },
  { path: "dead", key: "d", label: "Dead letters", icon: "M12 3 2 20h20zM12 10v4M12 17v.5" },
  { path: "sessions", key: "s", label: "Sessions", icon: "M8 11a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM2 21c0-4 3-6 6-6s6 2 6 6M16 4a4 4 0 0 1 0 7M18 15c2 .5 4 2.500 4 6" },
  { path: "topics", key: "o", label: "Topics", icon: "M4 5h16v10H9l-5 4z" },
  { path: "spark", key: "p", label: "Spark", icon: "M13 2 4 14h7l-1 8 9-12h-7z" },
  { path: "cluster", key: "c", label: "Cluster", icon: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.5M8 17h.5" },
  { path: "lookup", key: "l", label: "Lookup", icon: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM16 16l5 5" },
  { path: "audit", key: "a", label: "Audit", icon: "M6 3h9l4 4v14H6zM9 12h7M9 16h7", isFor: () => !!who()?.audit },
];
const KEYS: [string, string][] = [
  ["Ctrl K", "go to a queue or a page by its name, or to a message by its id"],
  ["/", "search or filter"],
  ["j, k", "next row, previous row"],
  ["Enter", "open the row"],
  ["x", "select the row"],
  ["n", "create a queue, or send a message"],
  ["r", "refresh"],
  ...PLACES.map((each): [string, string] => [`g ${each.key}`, `go to: ${each.label}`]),
  ["1, 2, 3, 4", "tabs of a queue"],
  ["t", "dark or light"],
  ["?", "this list"],
  ["Esc", "close"],
];

const Icon = ({ path }: { path: string }) => (
  <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
    <path d={path} />
  </svg>
);

function App() {
  const [path, setPath] = useState(parts());
  const [refused, setRefused] = useState(false);
  const [known, setKnown] = useState(false);
  const [trouble, setTrouble] = useState<Error>();
  const [open, setOpen] = useState<"help" | "palette">();
  const [hasMenu, setMenu] = useState(false);
  const [place, name, part] = path;
  const queue = place === "queues" && name ? name : undefined;
  useEffect(() => {
    whenRefused(() => setRefused(true));
    const moved = () => {
      const next = parts();
      setPath((now) => (now.join("/") === next.join("/") ? now : (scrollTo(0, 0), next)));
    };
    let isGoing = false;
    const key = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key === "k") {
        event.preventDefault();
        setOpen("palette");
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (isTyping(event)) {
        if (event.key === "Escape") (event.target as HTMLElement).blur();
        return;
      }
      const press = (selector: string) => document.querySelector<HTMLElement>(selector);
      const to = PLACES.find((each) => each.key === event.key);
      if (isGoing && to) go(to.path);
      else if (event.key === "/") (event.preventDefault(), press(".search")?.focus());
      else if (event.key === "?") setOpen("help");
      else if (event.key === "t") toggleTheme();
      else if (/^[1-4]$/.test(event.key)) press(`.tabs a:nth-child(${event.key})`)?.click();
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
  useEffect(() => {
    if (refused) return stream.end();
    let isOver = false;
    const know = () =>
      void ask("GET /v1/me").then(
        (found) => (setMe(found), setTrouble(undefined), setKnown(true)),
        (problem) => {
          setTrouble(problem as Error);
          if ((problem as Problem).status !== 401) setTimeout(() => isOver || know(), 2000);
        },
      );
    know();
    return () => void (isOver = true);
  }, [refused]);
  useEffect(() => {
    if (known && !refused) stream.follow(queue);
  }, [known, refused, queue]);
  useEffect(() => {
    const label = queue ?? PLACES.find((each) => each.path === (place ?? ""))?.label;
    document.title = label && label !== "Overview" ? `${label} · Penstock` : "Penstock";
  }, [place, queue]);
  const signOut = () => {
    forgetToken();
    setMe(undefined);
    setKnown(false);
    setRefused(true);
    go(""); // who comes next begins at the beginning
  };
  return (
    <div class="frame">
      <a class="skip" href="#content" onClick={(event) => (event.preventDefault(), document.getElementById("content")?.focus())}>
        Skip to the content
      </a>
      <header class="side">
        <a class="brand" href="#/" aria-label="Penstock: overview">
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <path d="M8 7v18M8 10h9a6 6 0 0 1 0 12H8" />
          </svg>
          <span>Penstock</span>
        </a>
        {!refused && known && (
          <>
            <Button class="find" onClick={() => setOpen("palette")} aria-label="Go to a queue or a page">
              <Icon path="M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM16 16l5 5" />
              <span>Go to…</span>
              <kbd>Ctrl K</kbd>
            </Button>
            <nav aria-label="Pages" id="pages" class={hasMenu ? "open" : undefined} onClick={() => setMenu(false)}>
              {PLACES.filter((each) => each.isFor?.() ?? true).map((each) => (
                <a key={each.path} href={`#/${each.path}`} aria-current={(place === "queues" ? "" : (place ?? "")) === each.path ? "page" : undefined}>
                  <Icon path={each.icon} />
                  <span>{each.label}</span>
                </a>
              ))}
              <a href="/v1/docs">
                <Icon path="M8 6 2 12l6 6M16 6l6 6-6 6" />
                <span>API</span>
              </a>
            </nav>
          </>
        )}
        <span class="grow" />
        <div class="foot">
          {!refused && known && <State />}
          <div class="bar">
            {!refused && known && (
              <Button class="menu" aria-expanded={hasMenu} aria-controls="pages" onClick={() => setMenu(!hasMenu)}>
                Menu
              </Button>
            )}
            <Button class="quiet" onClick={toggleTheme} aria-label="Dark or light" title="Dark or light (t)">
              <Icon path="M12 3v18a9 9 0 0 0 0-18zM12 3a9 9 0 0 0 0 18" />
            </Button>
            <Button class="quiet" onClick={() => setOpen("help")} aria-label="Keys" title="Keys (?)">
              <Icon path="M3 6h18v12H3zM7 10h.5M11 10h.5M15 10h.5M8 14h8" />
            </Button>
            {hasToken() && !refused && (
              <Button class="quiet out" onClick={signOut}>
                Sign out
              </Button>
            )}
          </div>
        </div>
      </header>
      <div id="content" tabIndex={-1}>
        {!refused && known && <NotLive />}
        {refused ? (
          <Login done={() => setRefused(false)} />
        ) : !known ? (
          <main>
            <Trouble error={trouble} />
          </main>
        ) : (
          page(place, name, part)
        )}
      </div>
      {open === "help" && <Help close={() => setOpen(undefined)} />}
      {open === "palette" && <Palette close={() => setOpen(undefined)} />}
      <Said />
    </div>
  );
}

function page(place: string | undefined, name: string | undefined, part: string | undefined): JSX.Element {
  if (place === "queues" && name) {
    if (part === "messages") return <Messages key={name} name={name} />;
    if (part === "dead") return <DeadLetters key={name} name={name} />;
    if (part === "settings") return <Settings key={name} name={name} />;
    if (!part) return <Queue key={name} name={name} go={go} />;
    return <NoPage />;
  }
  if (place === "dead") return <AllDead />;
  if (place === "sessions") return <AllSessions />;
  if (place === "topics") return <Topics />;
  if (place === "spark") return <Spark />;
  if (place === "cluster") return <Cluster />;
  if (place === "lookup") return <Lookup />;
  if (place === "audit") return <Audit />;
  if (!place || (place === "queues" && !name)) return <Overview go={go} />;
  return <NoPage />;
}

const NoPage = () => (
  <main>
    <h1>There is no such page</h1>
    <p>
      Go to the <a href="#/">overview</a>.
    </p>
  </main>
);

/** A page that stands still says so: on a phone, too. */
function NotLive() {
  useStream();
  if (stream.isOn || !stream.trouble) return null;
  return (
    <p class="trouble not-live" role="alert">
      <b>{stream.trouble.message}</b> {stream.heardAt ? `What you see is from ${moment(stream.heardAt)}.` : "The counts are not live."} The page tries to
      connect again every 2 seconds.
    </p>
  );
}

/** Whether the stream is on, who looks, and which server this is. */
function State() {
  const now = useStream();
  const person = who();
  return (
    <div class="state">
      <p>
        <span class={stream.isOn ? "dot on" : "dot"} aria-hidden="true" />
        {stream.isOn ? "Live" : stream.trouble ? "Not live" : "Connecting"}
      </p>
      {person?.needs_credentials && (
        <p class="who">
          {person.name}
          {person.read_only ? " · read only" : may("admin") ? " · admin" : may("write") ? " · writer" : " · reader"}
        </p>
      )}
      {!person?.needs_credentials && person?.read_only && <p class="who">read only</p>}
      {now && (
        <p class="version">
          {now.version} · up {duration(now.uptime)}
        </p>
      )}
    </div>
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

const MESSAGE_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
/** Go anywhere by typing a part of its name, or a message's id. The server finds the queues, however many there are. */
function Palette({ close }: { close: () => void }) {
  const [typed, setTyped] = useState("");
  const [queues, setQueues] = useState<QueueRow[]>([]);
  const [message, setMessage] = useState<{ id: string; queue: string; sequence: number }>();
  const [at, setAt] = useState(0);
  useEffect(() => {
    let isOld = false;
    setMessage(undefined);
    if (MESSAGE_ID.test(typed))
      void ask("GET /v1/messages/{message}", { message: typed }).then(
        (found) => isOld || setMessage(found),
        () => {},
      );
    void ask("GET /v1/overview/queues", { contains: typed, limit: 8 }).then(
      (found) => isOld || (setQueues(found.queues), setAt(0)),
      () => {},
    );
    return () => void (isOld = true);
  }, [typed]);
  const found = [
    ...(message ? [{ label: message.id, path: `queues/${encodeURIComponent(message.queue)}/messages?message=${message.sequence}`, hint: `message ${message.sequence} of ${message.queue}` }] : []),
    ...PLACES.filter((each) => (each.isFor?.() ?? true) && each.label.toLowerCase().includes(typed.toLowerCase())).map((each) => ({
      label: each.label,
      path: each.path,
      hint: "page",
    })),
    ...queues.map((each) => ({ label: each.name, path: `queues/${encodeURIComponent(each.name)}`, hint: `${each.ready.toLocaleString("en-US")} ready` })),
  ];
  const shown = typed ? [...found].sort((a, b) => Number(b.label.startsWith(typed)) - Number(a.label.startsWith(typed))) : found;
  const open = (index: number) => {
    const to = shown[index];
    if (to) (close(), go(to.path));
  };
  const key = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step) (event.preventDefault(), setAt(Math.max(0, Math.min(shown.length - 1, at + step))));
    if (event.key === "Enter") (event.preventDefault(), open(at));
  };
  return (
    <dialog class="palette" ref={(each) => void (each && !each.open && each.showModal())} onClose={close} aria-label="Go to">
      <input
        placeholder="A queue, a page or the id of a message"
        aria-label="Name of a queue or a page, or the id of a message"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={shown.length ? `palette-${at}` : undefined}
        value={typed}
        onInput={(event) => setTyped(event.currentTarget.value)}
        onKeyDown={key}
      />
      <div role="listbox" id="palette-list" aria-label="Found">
        {shown.map((each, index) => (
          <div key={each.path} id={`palette-${index}`} role="option" aria-selected={index === at} onClick={() => open(index)}>
            <span class="mono">{each.label}</span>
            <small>{each.hint}</small>
          </div>
        ))}
      </div>
      {!shown.length && <p class="empty">No queue or page has this in its name, and no message has this id.</p>}
    </dialog>
  );
}

function Login({ done }: { done: () => void }) {
  const [how, setHow] = useState<"token" | "password">("password");
  const [user, setUser] = useState("");
  const [secret, setSecret] = useState("");
  const [error, setError] = useState<Error>();
  useEffect(() => document.querySelector<HTMLInputElement>(".login input")?.focus(), [how]);
  const submit = async (event: Event) => {
    event.preventDefault();
    const before = who()?.name;
    setToken(how === "token" ? secret : `${user}:${secret}`);
    try {
      const now = await ask("GET /v1/me");
      setMe(now);
      if (before !== undefined && before !== now.name) go("");
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
        <p>You can see and do what your credentials allow. They are forgotten when you close this tab.</p>
        <div class="choice" role="group" aria-label="Sign in with">
          <Button aria-pressed={how === "password"} onClick={() => setHow("password")}>
            User and password
          </Button>
          <Button aria-pressed={how === "token"} onClick={() => setHow("token")}>
            Token
          </Button>
        </div>
        {how === "password" && (
          <Field label="User" hint="or an access key">
            <input name="user" autocomplete="username" value={user} required onInput={(event) => setUser(event.currentTarget.value)} />
          </Field>
        )}
        <Field label={how === "token" ? "Token" : "Password"} hint={how === "token" ? undefined : "or the secret key of the access key"}>
          <input type="password" autocomplete="current-password" value={secret} required onInput={(event) => setSecret(event.currentTarget.value)} />
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

document.documentElement.dataset.theme = theme();
render(<App />, document.getElementById("app")!);
