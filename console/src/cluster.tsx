import { useState } from "preact/hooks";
import { ask } from "./api";
import { Button, Cli, Field, Trouble, usePolled } from "./parts";
import { number } from "./text";

type Asked = { kind: "drain"; node: string } | { kind: "move"; shard: number };

/** Nodes and shards, from the partition map that clients use as well. */
export function Cluster() {
  const found = usePolled(() => ask("POST /get_partitions", { body: {} }), 3000, [], true);
  const [asked, setAsked] = useState<Asked>();
  const map = found.value;
  const nodes = Object.entries(map?.nodes ?? {});
  const isAlone = nodes.length < 2;
  const owned = (node: string) => map?.owners.filter((owner) => owner === node).length ?? 0;
  return (
    <main>
      <h1>Cluster</h1>
      <Trouble error={found.error} />
      {map && (
        <>
          <p class="note">
            {isAlone ? "This server is alone: it has every shard." : `${number(nodes.length)} nodes, ${number(map.partitions)} shards`}
            {!isAlone && `, version ${map.version} of the partition map`}
          </p>
          <section>
            <h2>Nodes</h2>
            <div class="wide">
              <table class="nodes">
                <thead>
                  <tr>
                    <th>node</th>
                    <th>address</th>
                    <th class="number">shards</th>
                    {!isAlone && <th>actions</th>}
                  </tr>
                </thead>
                <tbody>
                  {nodes.map(([node, url]) => (
                    <tr key={node}>
                      <td class="name">{node}</td>
                      <td class="mono">{url}</td>
                      <td class="number">{number(owned(node))}</td>
                      {!isAlone && (
                        <td class="actions">
                          <Button class="quiet" onClick={() => setAsked({ kind: "drain", node })}>
                            Drain…
                          </Button>
                        </td>
                      )}
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          </section>
          <section>
            <h2>Shards</h2>
            <div class="wide">
              <table class="shards">
                <thead>
                  <tr>
                    <th class="number">shard</th>
                    <th>owner</th>
                    <th>state</th>
                    {!isAlone && <th>actions</th>}
                  </tr>
                </thead>
                <tbody>
                  {map.owners.map((owner, shard) => (
                    <tr key={shard}>
                      <td class="number">{shard}</td>
                      <td class="name">{owner || "nobody"}</td>
                      <td>
                        <span class={`tag ${owner ? "ready" : "bad"}`}>{owner ? "served" : "not served"}</span>
                      </td>
                      {!isAlone && (
                        <td class="actions">
                          <Button class="quiet" onClick={() => setAsked({ kind: "move", shard })}>
                            Move…
                          </Button>
                        </td>
                      )}
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
            {!isAlone && <Cli words={["cluster", "show"]} />}
          </section>
        </>
      )}
      {asked && <Steer asked={asked} nodes={nodes.map(([node]) => node)} close={() => setAsked(undefined)} />}
    </main>
  );
}

/** A cluster is steered through Kafka, by whoever may write there: the page gives the command. */
function Steer({ asked, nodes, close }: { asked: Asked; nodes: string[]; close: () => void }) {
  const [target, setTarget] = useState(nodes[0] ?? "");
  return (
    <dialog ref={(at) => void (at && !at.open && at.showModal())} onClose={close} aria-labelledby="steer-title">
      <h2 id="steer-title">{asked.kind === "drain" ? `Drain ${asked.node}` : `Move shard ${asked.shard}`}</h2>
      <p class="says">
        {asked.kind === "drain"
          ? "Its shards move to other nodes, one by one, and it gets no new ones until it is undrained."
          : `The shard goes to ${target}, and stays there while that node lives. Its queues wait for moments.`}{" "}
        Run the command where the cluster's Kafka can be reached.
      </p>
      {asked.kind === "move" && (
        <Field label="To">
          <select value={target} onChange={(event) => setTarget(event.currentTarget.value)}>
            {nodes.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </Field>
      )}
      <Cli words={asked.kind === "drain" ? ["cluster", "drain", asked.node] : ["cluster", "move", String(asked.shard), target]} />
      <div class="buttons">
        <Button onClick={close}>Close</Button>
      </div>
    </dialog>
  );
}

/** Lookup services that this node registers with, and the nodes and topics that they know. */
export function Lookup() {
  const found = usePolled(() => ask("GET /v1/lookup"), 5000, []);
  const lookup = found.value;
  return (
    <main>
      <h1>Lookup</h1>
      <p class="note">NSQ clients ask a lookup service which nodes have a topic.</p>
      <Trouble error={found.error} />
      {lookup && !lookup.services.length && (
        <p class="empty">
          This node registers with no lookup service. Start one with <code>penstock lookup</code>, and this server with <code>--lookup HOST:4160</code>.
        </p>
      )}
      {!!lookup?.services.length && (
        <section>
          <h2>Services</h2>
          <table>
            <thead>
              <tr>
                <th>address</th>
                <th>state</th>
              </tr>
            </thead>
            <tbody>
              {lookup.services.map((each) => (
                <tr key={each.address}>
                  <td class="mono">{each.address}</td>
                  <td>
                    <span class={`tag ${each.connected ? "ready" : "bad"}`}>{each.connected ? "connected" : "not connected"}</span>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
      {!!lookup?.nodes.length && (
        <section>
          <h2>Nodes and topics</h2>
          <div class="wide">
            <table>
              <thead>
                <tr>
                  <th>node</th>
                  <th>address</th>
                  <th>topics</th>
                </tr>
              </thead>
              <tbody>
                {lookup.nodes.map((each) => (
                  <tr key={`${each.name} ${each.address}`}>
                    <td class="name">{each.name}</td>
                    <td class="mono">
                      {each.address}:{each.tcp_port}
                    </td>
                    <td class="mono">{each.topics.join(", ") || "–"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
    </main>
  );
}
