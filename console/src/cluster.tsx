import { useState } from "preact/hooks";
import { ask, may } from "./api";
import { Ask, Button, Cli, Field, Trouble, usePolled } from "./parts";
import { number } from "./text";

type Asked = { kind: "drain" | "undrain"; node: string } | { kind: "move"; shard: number };

export function Cluster() {
  const found = usePolled(() => ask("GET /v1/cluster"), 3000, []);
  const [asked, setAsked] = useState<Asked>();
  const [target, setTarget] = useState("");
  const cluster = found.value;
  const isOne = cluster?.kind === "single";
  const mayChange = may("admin", "any-queue-of-the-cluster") && !isOne;
  const close = () => (setAsked(undefined), setTarget(""), void found.again());
  const nodes = cluster?.nodes ?? [];
  const moving = cluster?.shards.filter((each) => each.moving).length ?? 0;
  return (
    <main>
      <h1>Cluster</h1>
      <Trouble error={found.error} />
      {cluster && (
        <>
          <p class="note">
            {isOne ? "This server is alone: it has every shard." : `${number(nodes.length)} nodes, ${number(cluster.shards.length)} shards`}
            {moving > 0 && `, ${number(moving)} on the move`}
          </p>
          <section>
            <h2>Nodes</h2>
            <div class="wide">
              <table class="nodes">
                <thead>
                  <tr>
                    <th>node</th>
                    <th>address</th>
                    <th>state</th>
                    <th class="number">shards</th>
                    <th>version</th>
                    {mayChange && <th>actions</th>}
                  </tr>
                </thead>
                <tbody>
                  {nodes.map((node) => (
                    <tr key={node.name}>
                      <td class="name">{node.name}</td>
                      <td class="mono">{node.url}</td>
                      <td>
                        <span class={`tag ${node.alive ? "ready" : "bad"}`}>{node.alive ? "alive" : "gone"}</span>
                        {node.draining && <span class="tag warn">draining</span>}
                      </td>
                      <td class="number">{number(node.shards)}</td>
                      <td>{node.version}</td>
                      {mayChange && (
                        <td class="actions">
                          <Button class="quiet" onClick={() => setAsked({ kind: node.draining ? "undrain" : "drain", node: node.name })}>
                            {node.draining ? "Undrain…" : "Drain…"}
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
                    <th class="number">lag</th>
                    {mayChange && <th>actions</th>}
                  </tr>
                </thead>
                <tbody>
                  {cluster.shards.map((shard) => (
                    <tr key={shard.shard}>
                      <td class="number">{shard.shard}</td>
                      <td class="name">{shard.owner ?? "nobody"}</td>
                      <td>
                        {shard.moving ? (
                          <span class="tag warn">{shard.wished ? `moving to ${shard.wished}` : "moving"}</span>
                        ) : (
                          <span class={`tag ${shard.owner ? "ready" : "bad"}`}>{shard.owner ? "served" : "not served"}</span>
                        )}
                        {!shard.moving && shard.wished && <span class="tag">kept there by hand</span>}
                      </td>
                      <td class="number">{shard.lag === null ? "–" : number(shard.lag)}</td>
                      {mayChange && (
                        <td class="actions">
                          <Button class="quiet" onClick={() => setAsked({ kind: "move", shard: shard.shard })}>
                            Move…
                          </Button>
                        </td>
                      )}
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
            <Cli words={["cluster", "show"]} />
          </section>
        </>
      )}
      {asked?.kind === "move" && (
        <Ask
          title={`Move shard ${asked.shard}`}
          says={
            target
              ? `Shard ${asked.shard} goes from ${cluster?.shards.find((each) => each.shard === asked.shard)?.owner ?? "nobody"} to ${target}, and stays there. Its queues wait for moments.`
              : "Choose the node that shall own it."
          }
          button="Move"
          isWaiting={!target}
          cli={["cluster", "move", String(asked.shard), target || "NODE"]}
          act={() => ask("POST /v1/cluster/move", { body: { shard: asked.shard, node: target } })}
          done={`Shard ${asked.shard} is on its way to ${target}.`}
          close={close}
        >
          <Field label="To">
            <select value={target} onChange={(event) => setTarget(event.currentTarget.value)}>
              <option value="">…</option>
              {nodes
                .filter((each) => each.alive)
                .map((each) => (
                  <option key={each.name}>{each.name}</option>
                ))}
            </select>
          </Field>
        </Ask>
      )}
      {asked && asked.kind !== "move" && (
        <Ask
          title={asked.kind === "drain" ? `Drain ${asked.node}` : `Undrain ${asked.node}`}
          says={
            asked.kind === "drain"
              ? `Its ${number(nodes.find((each) => each.name === asked.node)?.shards ?? 0)} shards move to other nodes, one by one, and it gets no new ones.`
              : "It may have shards again."
          }
          button={asked.kind === "drain" ? "Drain" : "Undrain"}
          cli={["cluster", asked.kind, asked.node]}
          act={() => ask("POST /v1/cluster/drain", { body: { node: asked.node, draining: asked.kind === "drain" } })}
          done={asked.kind === "drain" ? `${asked.node} is being drained.` : `${asked.node} may have shards again.`}
          close={close}
        />
      )}
    </main>
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
