import { Trouble, useLive, Wide } from "./parts";

/** Lookup services that this node registers with, and the nodes and topics that they know. */
export function Lookup() {
  const found = useLive("GET /v1/lookup", {});
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
          <Wide>
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
          </Wide>
        </section>
      )}
    </main>
  );
}
