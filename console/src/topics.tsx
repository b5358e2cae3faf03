import { useState } from "preact/hooks";
import type { TopicRow } from "./api";
import { Button, Cli, Trouble, useLive, Wide } from "./parts";
import { duration, number } from "./text";

/** Topics of SNS, and who gets their messages. */
export function Topics() {
  const [pages, setPages] = useState<(string | undefined)[]>([undefined]);
  const found = useLive("GET /v1/topics", { after: pages.at(-1) }, true);
  const topics = found.value?.topics ?? [];
  return (
    <main>
      <h1>Topics</h1>
      <p class="note">SNS topics. Each subscription gets every message that its filter allows. Its lag is the messages that it has not got yet. They are kept.</p>
      <Trouble error={found.error} />
      {found.value && !topics.length && (
        <p class="empty">
          There are no topics. <code>aws sns create-topic --name NAME</code>, sent to this server's SQS port, makes one.
        </p>
      )}
      {topics.map((each) => (
        <Topic key={each.queue} topic={each} />
      ))}
      {(pages.length > 1 || found.value?.next) && (
        <nav class="pager" aria-label="Pages of topics">
          <Button disabled={pages.length === 1} onClick={() => setPages(pages.slice(0, -1))}>
            Back
          </Button>
          <Button disabled={!found.value?.next} onClick={() => setPages([...pages, found.value!.next!])}>
            Next
          </Button>
        </nav>
      )}
      {topics.length > 0 && <Cli words={["curl", `${location.origin}/v1/topics`]} />}
    </main>
  );
}

function Topic({ topic }: { topic: TopicRow }) {
  const now = Date.now() / 1000;
  return (
    <section class="topic">
      <header class="bar">
        <h2>
          <a href={`#/queues/${encodeURIComponent(topic.queue)}`}>{topic.name}</a>
        </h2>
        {topic.fifo && <span class="tag">fifo</span>}
        {topic.archived && <span class="tag">archived</span>}
        <span class="grow" />
        <small>{number(topic.published)} published</small>
      </header>
      {topic.subscriptions.length === 0 ? (
        <p class="empty">There are no subscriptions: published messages are not delivered.</p>
      ) : (
        <Wide>
          <table class="subscriptions">
            <thead>
              <tr>
                <th>to</th>
                <th>protocol</th>
                <th>state</th>
                <th class="roomy">filter</th>
                <th class="number">lag</th>
                <th class="number">behind by</th>
                <th class="number roomy">delivered</th>
                <th class="number">failed</th>
              </tr>
            </thead>
            <tbody>
              {topic.subscriptions.map((each) => (
                <tr key={each.id}>
                  <td class="name">{each.target ? <a href={`#/queues/${encodeURIComponent(each.target)}`}>{each.target}</a> : <span class="mono">{each.endpoint}</span>}</td>
                  <td>{each.protocol}</td>
                  <td>
                    <span class={`tag ${each.pending ? "warn" : "ready"}`}>{each.pending ? "not confirmed" : each.replaying ? "replaying" : "confirmed"}</span>
                  </td>
                  <td class="mono roomy">{each.filter || "–"}</td>
                  <td class="number">{each.lag === null ? "–" : number(each.lag)}</td>
                  <td class="number">{each.oldest_sent_at === null ? "–" : duration(now - each.oldest_sent_at)}</td>
                  <td class="number roomy">
                    {each.delivered === null ? "–" : number(each.delivered)}
                    {each.filter && <small> or filtered</small>}
                  </td>
                  <td class={`number ${each.failed ? "bad" : ""}`}>{each.failed === null ? "–" : number(each.failed)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      )}
    </section>
  );
}
