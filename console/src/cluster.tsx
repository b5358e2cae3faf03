import { useState } from "preact/hooks";
import { ask, mayAll, type ClusterNodeRow, type ClusterState, type ShardRow } from "./api";
import { Ask, Button, Cli, Field, Trouble, useLive, Wide } from "./parts";
import { bytes, counted, number, rate } from "./text";

type Asked = { kind: "drain" | "undrain"; node: ClusterNodeRow } | { kind: "move"; shard: ShardRow };
const ANY = "any";
const KINDS: Record<string, string> = { serving: "ready", served: "ready", draining: "warn", moving: "leased" };
const State = ({ state }: { state: string }) => <span class={`tag ${KINDS[state] ?? "bad"}`}>{state}</span>;
const count = (value: number | null): string => (value === null ? "–" : number(value));
const size = (value: number | null): string => (value === null ? "–" : bytes(value));

/** Nodes and shards: who serves what, what moves, and how far shards lag behind. */
export function Cluster() {
  const found = useLive("GET /v1/cluster", {}, true);
  const [asked, setAsked] = useState<Asked>();
  const state = found.value;
  const moving = state?.shards.filter((each) => each.state === "moving").length ?? 0;
  const lost = state?.shards.filter((each) => each.state === "not served").length ?? 0;
  return (
    <main>
      <h1>Cluster</h1>
      <Trouble error={found.error} />
      {state && (
        <>
          <p class="note">
            {state.alone
              ? "This server is not part of a cluster. It has every shard. Its rates and counts are on the overview."
              : `${counted(state.nodes.length, "node")}, ${counted(state.shards.length, "shard")}, version ${state.version} of the partition map. This page is served by ${state.own}.`}
          </p>
          {moving + lost > 0 && (
            <ul class="alarms" aria-label="What is under way">
              {moving > 0 && (
                <li>
                  <b>moving</b>
                  <span>{counted(moving, "shard is", "shards are")} moving to another node. Calls for their queues wait for a moment.</span>
                </li>
              )}
              {lost > 0 && (
                <li>
                  <b>not served</b>
                  <span>{counted(lost, "shard is", "shards are")} not served by any node. Calls for their queues wait.</span>
                </li>
              )}
            </ul>
          )}
          <Nodes state={state} ask={setAsked} />
          {!state.alone && <Shards state={state} ask={setAsked} />}
          {!state.alone && <Cli words={["cluster", "show", ...state.options]} />}
          {asked && <Steer asked={asked} state={state} close={() => (setAsked(undefined), void found.again())} />}
        </>
      )}
    </main>
  );
}

function Nodes({ state, ask: put }: { state: ClusterState; ask: (asked: Asked) => void }) {
  const maySteer = !state.alone && mayAll("admin");
  return (
    <section>
      <h2>Nodes</h2>
      <Wide>
        <table class="nodes">
          <thead>
            <tr>
              <th>node</th>
              <th>state</th>
              <th class="roomy">address</th>
              <th class="number">shards</th>
              {!state.alone && (
                <>
                  <th class="number">messages/s</th>
                  <th class="number">waiting</th>
                  <th class="number roomy">stored</th>
                </>
              )}
              <th class="roomy">version</th>
              {maySteer && <th>actions</th>}
            </tr>
          </thead>
          <tbody>
            {state.nodes.map((each) => (
              <tr key={each.node}>
                <td class="name">
                  {each.node}
                  {each.controller && <span class="tag">controller</span>}
                </td>
                <td>
                  <State state={each.state} />
                </td>
                <td class="mono roomy">{each.http}</td>
                <td class="number">{number(each.shards)}</td>
                {!state.alone && (
                  <>
                    <td class="number">{rate(each.rate)}</td>
                    <td class="number">{count(each.backlog)}</td>
                    <td class="number roomy">{size(each.bytes)}</td>
                  </>
                )}
                <td class="mono roomy">{each.version}</td>
                {maySteer && (
                  <td class="actions">
                    {each.state === "draining" ? (
                      <Button class="quiet" onClick={() => put({ kind: "undrain", node: each })}>
                        Undrain…
                      </Button>
                    ) : (
                      <Button class="quiet" disabled={each.state === "gone"} onClick={() => put({ kind: "drain", node: each })}>
                        Drain…
                      </Button>
                    )}
                  </td>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
    </section>
  );
}

function Shards({ state, ask: put }: { state: ClusterState; ask: (asked: Asked) => void }) {
  const maySteer = !state.alone && mayAll("admin");
  return (
    <section>
      <h2>Shards</h2>
      <Wide>
        <table class="shards">
          <thead>
            <tr>
              <th class="number">shard</th>
              <th>served by</th>
              <th>state</th>
              <th class="number">queues</th>
              <th class="number">messages/s</th>
              <th class="number">waiting</th>
              <th class="number roomy">stored</th>
              <th class="number">lag</th>
              {maySteer && <th>actions</th>}
            </tr>
          </thead>
          <tbody>
            {state.shards.map((each) => (
              <tr key={each.shard}>
                <td class="number">{each.shard}</td>
                <td class="name">
                  {each.served_by || "no node"}
                  {each.owner !== each.served_by && <small> → {each.owner || "no node"}</small>}
                  {each.wish && <span class="tag">moved by hand</span>}
                </td>
                <td>
                  <State state={each.state} />
                </td>
                <td class="number">{count(each.queues)}</td>
                <td class="number">{rate(each.rate)}</td>
                <td class="number">{count(each.backlog)}</td>
                <td class="number roomy">{size(each.bytes)}</td>
                <td class="number" title="entries that wait to be forwarded to other shards">
                  {count(each.outbox)}
                </td>
                {maySteer && (
                  <td class="actions">
                    <Button class="quiet" onClick={() => put({ kind: "move", shard: each })}>
                      Move…
                    </Button>
                  </td>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
    </section>
  );
}

function Steer({ asked, state, close }: { asked: Asked; state: ClusterState; close: () => void }) {
  const [target, setTarget] = useState(ANY);
  if (asked.kind === "move") {
    const { shard, served_by, queues } = asked.shard;
    const goal = target === ANY ? null : target;
    return (
      <Ask
        title={`Move shard ${shard}`}
        says={
          goal === null
            ? `The controller decides which node has shard ${shard}, as it does for all shards that were not moved by hand.`
            : `Shard ${shard} moves from ${served_by || "no node"} to ${goal}${queues === null ? "" : ` with ${counted(queues, "queue")}`}. It stays there until that node dies or is drained. Calls for its queues wait for a moment.`
        }
        button="Move"
        cli={["cluster", "move", String(shard), target, ...state.options]}
        act={() => ask("POST /v1/cluster/move", { body: { shard, node: goal } })}
        done={goal === null ? `The controller decides about shard ${shard}.` : `Shard ${shard} is moving to ${goal}.`}
        close={close}
      >
        <Field label="To">
          <select value={target} onChange={(event) => setTarget(event.currentTarget.value)}>
            <option value={ANY}>let the controller decide</option>
            {state.nodes
              .filter((each) => each.state === "serving")
              .map((each) => (
                <option key={each.node}>{each.node}</option>
              ))}
          </select>
        </Field>
      </Ask>
    );
  }
  const { node, shards } = asked.node;
  const draining = asked.kind === "drain";
  return (
    <Ask
      title={draining ? `Drain ${node}` : `Undrain ${node}`}
      says={
        draining
          ? `It has ${counted(shards, "shard")}. All move to other nodes, one by one. It gets no new shards until you undrain it. It continues to serve clients.`
          : "It may own shards again. The controller moves some to it."
      }
      button={draining ? "Drain" : "Undrain"}
      cli={["cluster", asked.kind, node, ...state.options]}
      act={() => ask("POST /v1/cluster/drain", { body: { node, draining } })}
      done={draining ? `${node} is being drained.` : `${node} may own shards again.`}
      close={close}
    />
  );
}
