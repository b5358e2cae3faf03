"""A node of a cluster: as `server/node.py`, with its shards in Kafka or ZooKeeper, and the others' behind links.

It starts in this order: the engine makes what is not there, the link server listens, the node reads the records of the
cluster and says that it is there. When every shard is served by somebody, its front ends listen. They talk to the
router.

It stops in this order, so that clients notice nothing: it says that it drains, and goes on serving while the controller
moves its shards away one by one; when none is left, or after `stop_grace_s`, it stops as any node does, releases what
is left in writing, and says that it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import TracebackType

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.cluster.base import ClusterMap, ShardHost
from penstock.cluster.links.link import Link
from penstock.cluster.links.server import LinkServer
from penstock.cluster.links.settings import LinkIdentity, holder_of, limits_within, link_tls
from penstock.cluster.membership.base import Batch, ClusterEngine, LedgerMaps, Listeners, Membership, wait_told
from penstock.cluster.membership.ledger import (
    Ledger,
    LoadOfShard,
    LoadRecord,
    NodeRecord,
    NodeState,
    Record,
    ServingRecord,
)
from penstock.cluster.membership.view import ClusterView
from penstock.cluster.ownership.forwarder import forwarder_families
from penstock.cluster.ownership.ownership import OwnedShard, Ownership
from penstock.cluster.routing.router import Router
from penstock.cluster.routing.session_router import RouterPlace, SessionRouter
from penstock.core.commands import ListQueues
from penstock.core.errors import PenstockError, StoreError
from penstock.server.clock import Clock
from penstock.server.engines import ENGINES
from penstock.server.metrics import traffic_families
from penstock.server.node import Address, FrontEnd, Node
from penstock.server.partition_map import PartitionMap
from penstock.server.settings import InvalidSettings, Settings
from penstock.server.shard import Shard
from penstock.server.shards import Shards
from penstock.store.errors import LogUnavailable
from penstock.wire.links import VERSIONS

SMOOTH_S = 20.0
"""Over what time rates are smoothed: a burst is no reason to move a shard."""
BEAT_S = 1.0
"""How often a node says what its shards have to do."""
WATCH_S = 0.25
"""How often it looks at links to nodes that it watches."""
LINK_RETRY_TIMEOUT_S = 1.0
"""How long a command waits for a node that cannot be reached, before the router looks at the map again."""
WISH_S_MAX = 10.0
"""How long it may take to keep what an operator wishes."""
PAUSE_S = 0.1
"""Between two looks at what does not answer."""
IS_SERVED = ListQueues(limit=1)
"""What a shard is asked to see whether it answers: a command that the nodes of every build know."""
START_S_MAX = 60.0
"""How long a node waits, besides the session timeout, until every shard is served."""

log = logging.getLogger("penstock.cluster")


class NameTaken(PenstockError):
    """Another process has taken this node's name."""


def end_process(error: Exception) -> None:
    """What a node cannot go on without is gone: stop in order. Whoever supervises the process starts it again."""
    log.critical("the node stops: %s", error)
    os.kill(os.getpid(), signal.SIGTERM)


class ClusterNode(Node):
    """A node whose shards are some of many."""

    def __init__(
        self,
        settings: Settings,
        front_ends: Sequence[FrontEnd],
        version: str,
        *,
        clock: Clock | None = None,
        on_fatal: Callable[[Exception], None] = end_process,
    ) -> None:
        super().__init__(settings, front_ends, version, clock=clock)
        self._on_fatal = on_fatal
        self._name = settings.cluster.node_name
        self._engine: ClusterEngine = ENGINES[settings.server.engine].load_cluster()(settings)
        self._opened = contextlib.AsyncExitStack()
        self._record_of_node = NodeRecord(incarnation=uuid.uuid4().hex, link="", version=version, links=VERSIONS)
        self._seen_own_record = False
        self._heard: dict[str, float] = {}
        """The nodes that have spoken since this one has read what was said before, and when they did last."""
        self._loads = LoadMeter()
        self._rounds: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._failure: Exception | None = None
        self._own_url = ""
        self.maps: LedgerMaps
        self.ownership: Ownership
        self._membership: Membership
        self._router: Router

    # -- starting --

    async def _open_shards(self) -> Shards:
        """Join the cluster. Returns when every shard is served by somebody."""
        try:
            return await self._join()
        except BaseException:
            await self._opened.aclose()
            raise

    async def _join(self) -> Router:
        cluster = self._settings.cluster
        self._opened.push_async_callback(asyncio.to_thread, self._engine.close)
        with wait_told(self._engine, log.warning):
            await asyncio.to_thread(self._engine.prepare)
        host = ShardHost()
        await self._listen_for_links(host)
        self.maps = LedgerMaps(self._name)
        listeners = Listeners(self._take, self._failed, self._session_over, self._link_server.end_sessions_of)
        self._membership = self._engine.join(self._name, cluster.session_timeout_s, cluster.move_pause_s, listeners)
        self.ownership = Ownership(
            self._name,
            self.maps.ledger,
            host,
            self._say,
            self._engine.open_store,
            self._clock,
            handover_s=cluster.session_timeout_s,
            proof_s=cluster.proof_s,
            on_served=self._on_served,
        )
        self._opened.push_async_callback(self._leave)
        self._membership.start()
        loop = asyncio.get_running_loop()
        self._rounds = [loop.create_task(self._beat()), loop.create_task(self._watch())]
        await self._until(lambda: self._membership.has_caught_up, self._engine.records)
        self._check_cluster()
        self._withdraw_stale()
        await self._probe_links()
        self._publish()
        await self._until(lambda: self.maps.ledger.cluster is not None, "the cluster's controller")
        self._check_cluster()
        router = self._make_router(host)
        self.ownership.look()
        await self._until(lambda: all(self.maps.current().owners), "an owner of every shard")
        await self._until_answered(router)
        return router

    def _withdraw_stale(self) -> None:
        """What this node served before it was started again it does not serve yet, whatever the topic says."""
        for shard, serving in self.maps.ledger.serving.items():
            if serving.node == self._name and shard not in self.ownership.served:
                self._say(f"serving/{shard}", ServingRecord(node="", epoch=serving.epoch))

    async def _until_answered(self, router: Router) -> None:
        """Ready means served: a map may be of before everybody was started again."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + START_S_MAX
        left = set(range(router.shards))
        while True:
            asked = sorted(left)
            asking = (router.ask(shard, IS_SERVED) for shard in asked)
            answers = await asyncio.gather(*asking, return_exceptions=True)
            for shard, answer in zip(asked, answers, strict=True):
                if not isinstance(answer, BaseException):
                    left.discard(shard)
            if not left:
                return
            if self._failure is not None:
                raise self._failure
            if loop.time() > deadline_s:
                raise LogUnavailable(
                    f"shards {sorted(left)} do not answer: look at the other nodes' logs, and {self._engine.name}'s"
                )
            await asyncio.sleep(PAUSE_S)

    def _check_cluster(self) -> None:
        """Keep out who would not fit. Of another name are other transactional ids, and so nobody would be fenced."""
        found, engine = self.maps.ledger.cluster, self._engine
        if found is None:
            return
        if found.name not in ("", engine.cluster):
            raise InvalidSettings(
                f"the topics of {self._settings.cluster.topic_prefix} belong to the cluster {found.name!r}, but "
                f"[cluster] name is {engine.cluster!r}: use the same name, or another prefix"
            )
        if found.shards != engine.shards:
            raise InvalidSettings(
                f"the cluster {engine.cluster!r} has {found.shards} shards, but [cluster] shards is "
                f"{engine.shards}: the number is fixed when a cluster is created"
            )

    async def _listen_for_links(self, host: ShardHost) -> None:
        cluster, secret = self._settings.cluster, self._settings.cluster.open_secret()
        secret_bytes = b"" if secret is None else secret.reveal().encode()
        self._identity = LinkIdentity(cluster.name, self._name, secret_bytes, tls=link_tls(cluster))
        self._links: dict[str, Link] = {}
        self._links_place = RouterPlace(host)
        limits = limits_within(cluster.silence_s)
        server = self._link_server = LinkServer(self._links_place, self._identity, limits)
        try:
            address = await server.start(f"{_bracketed(cluster.link_host)}:{cluster.link_port}")
        except OSError as error:
            raise InvalidSettings(f"links cannot listen on port {cluster.link_port}: {error}") from error
        self._opened.push_async_callback(server.close)
        self._opened.push_async_callback(self._close_links)
        self._record_of_node = msgspec.structs.replace(self._record_of_node, link=cluster.link_address or address)

    async def _probe_links(self) -> None:
        """Make links to the nodes that are there. One that none of them lets in would get shards all the same, and
        nobody could reach these: it does not join."""
        nodes = self.maps.ledger.nodes
        others = [name for name, node in nodes.items() if name != self._name and node.state != "gone" and node.link]
        links = [self._links.setdefault(name, self._new_link(nodes[name].link)) for name in others]
        answers = await asyncio.gather(*(link.probe() for link in links), return_exceptions=True)
        refusals = {name: each for name, each in zip(others, answers, strict=True) if isinstance(each, BaseException)}
        for name, refusal in refusals.items():
            log.error("node %s: %s", name, refusal)
        if refusals and True not in answers:
            await self._end_if_alive(refusals)

    async def _end_if_alive(self, refusals: Mapping[str, BaseException]) -> None:
        """Who refuses counts if it is heard: where a node was that is dead, there may be somebody else now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.cluster.session_timeout_s):
                await self._until(lambda: not refusals.keys().isdisjoint(self._heard), "a node")
        for name in refusals.keys() & self._heard.keys():
            raise refusals[name]

    def _new_link(self, address: str) -> Link:
        limits = limits_within(self._settings.cluster.silence_s, LINK_RETRY_TIMEOUT_S)
        link = Link(address, self._identity, limits)
        link.remote_calls = self._links_place
        return link

    def _make_router(self, host: ShardHost) -> Router:
        found = self.maps.ledger.cluster
        assert found is not None
        holder = holder_of(self._identity.process)
        router = SessionRouter(
            self._name, host, self._place, self.maps, found.shards, found.entropy, self._clock, holder
        )
        self._links_place.router = self._router = router
        self.ownership.submit = router.submit_to
        return router

    async def _until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for news of the cluster."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + START_S_MAX + self._settings.cluster.session_timeout_s
        while not is_so():
            if self._failure is not None:
                raise self._failure
            if loop.time() > deadline_s:
                raise LogUnavailable(
                    f"the node gave up waiting for {what}: look at the other nodes' logs, and {self._engine.name}'s"
                )
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), 1.0)

    async def _listen(self) -> dict[str, Address]:
        self.services.partition_maps = _RestMaps(self.maps, lambda: self._own_url)
        self.services.cluster = _LiveView(
            self.maps.ledger, self._engine.cluster, self._heard, self._settings.cluster.session_timeout_s, self._wish
        )
        self.services.metric_sources += [self._shard_metrics, self._router.families]
        listening = await super()._listen()
        self._own_url = self._reachable(listening["http"]) if "http" in listening else ""
        urls = {name: self._reachable(address) for name, address in listening.items()}
        self._record_of_node = msgspec.structs.replace(self._record_of_node, urls=urls)
        self._publish()
        await self._until(lambda: self.maps.ledger.nodes.get(self._name) == self._record_of_node, "its own record")
        return listening

    def _reachable(self, address: Address) -> str:
        """A front end's URL for other machines: one that listens everywhere is where the links are."""
        if address.host not in ("0.0.0.0", "::", ""):
            return address.url
        link_host = self._record_of_node.link.rpartition(":")[0]
        return address.url.replace(_bracketed(address.host), link_host)

    # -- stopping --

    async def stop(self) -> None:
        """Give the shards away, then stop as any node does. Once more does nothing."""
        if self._services is None or self._services.is_stopping:
            return
        await self._drain()
        try:
            await super().stop()
        except StoreError as error:  # fenced meanwhile: leases that were not committed are lost, and nothing else
            log.warning("a shard could not be closed cleanly; its next owner has to wait: %s", error)
        finally:
            await self._opened.aclose()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop. A node that could not go on says so once more: its process has failed, and was not asked to end."""
        await self.stop()
        if error is None and self._failure is not None:
            if isinstance(self._failure, PenstockError):
                raise self._failure
            raise LogUnavailable(f"the node had to stop: {self._failure}") from self._failure

    async def _drain(self) -> None:
        others = (name for name in self.maps.ledger.nodes if name != self._name)
        if self._failure is not None or all(self.maps.ledger.is_draining(name) for name in others):
            return
        self._publish("draining")
        if not await self.ownership.drained(self._settings.server.stop_grace_s):
            log.warning("some shards were not taken over in time: they are released now")

    async def _leave(self) -> None:
        await self.ownership.close()
        for each in self._rounds:
            each.cancel()
        self._publish("gone")
        await self._membership.flush(BEAT_S * 5)
        await self._membership.stop()

    async def _close_links(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()))

    # -- what the cluster says --

    def _take(self, records: Batch) -> None:
        """The membership's thread has read some records."""
        if self._membership.has_caught_up:
            heard = (key.removeprefix("load/") for _, key, _ in records if key.startswith("load/"))
            self._heard.update(dict.fromkeys(heard, asyncio.get_running_loop().time()))
        self.maps.take(records)
        self._check_own_record()
        if self._membership.has_caught_up:  # before, who shall own what may be long over: we would fence who has it now
            self.ownership.look()
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _check_own_record(self) -> None:
        found = self.maps.ledger.nodes.get(self._name)
        if found is None or found == self._record_of_node:
            self._seen_own_record = found is not None or self._seen_own_record
        elif found.incarnation != self._record_of_node.incarnation:
            if self._seen_own_record and self._failure is None:
                self._failed(
                    NameTaken(f"another process has joined as node {self._name!r}: give each node its own name")
                )
        elif found.state == "gone" and self._record_of_node.state != "gone":
            self._publish()

    def _failed(self, error: Exception) -> None:
        self._failure = error
        self._news.set()
        if self._services is not None and not self._services.is_stopping:
            self._on_fatal(error)

    def _session_over(self) -> None:
        """Somebody else may have our shards, and nobody lets us commit: start again."""
        self.ownership.give_up("the node's session is over")

    def _place(self, name: str) -> Link:
        """The link to a node; another one when the node has moved."""
        address = self.maps.current().nodes[name].link
        link = self._links.get(name)
        if link is None or link.address != address:
            if link is not None:
                self._closing = asyncio.get_running_loop().create_task(link.close())
            link = self._links[name] = self._new_link(address)
        return link

    # -- what this node says --

    def _publish(self, state: NodeState | None = None) -> None:
        if state is not None:
            self._record_of_node = msgspec.structs.replace(self._record_of_node, state=state)
        self._say(f"node/{self._name}", self._record_of_node)

    def _say(self, key: str, record: Record | None) -> None:
        """Tell the cluster. Whoever has lost its name says nothing any more: it would speak for the one that has it."""
        if not isinstance(self._failure, NameTaken):
            self._membership.publish(key, record)

    async def _wish(self, key: str, record: Record | None) -> None:
        with contextlib.suppress(BufferError):
            self._say(key, record)
            if await self._membership.flush(WISH_S_MAX):
                return
        raise LogUnavailable(f"the request could not be written to the cluster: {self._engine.name} does not answer")

    async def _beat(self) -> None:
        """Show, again and again, that the loop is alive, and what there is to do."""
        loop = asyncio.get_running_loop()
        while True:
            loads = self._loads.measure(self.ownership.owned_shards, loop.time())
            with contextlib.suppress(BufferError):
                self._say(f"load/{self._name}", LoadRecord(at_ms=self._clock.now_ms(), shards=loads))
            await asyncio.sleep(BEAT_S)

    async def _watch(self) -> None:
        """See by its link whether a node lives: each node, if this one is the controller; else the controller."""
        silence_s = self._settings.cluster.silence_s
        while True:
            await asyncio.sleep(WATCH_S)
            named, nodes = self.maps.ledger.controller, self.maps.current().nodes
            watched = nodes.keys() & {self._name if named is None else named.node}
            if watched <= {self._name}:
                watched = nodes.keys() - {self._name}
            dead_links = frozenset(name for name in watched if not self._place(name).watch(silence_s))
            self._membership.controller.liveness.dead_links = dead_links

    def _shard_metrics(self) -> Iterable[Metric]:
        loads = self._loads.measure(self.ownership.owned_shards, asyncio.get_running_loop().time())
        return shard_families(self.ownership.owned_shards, loads, self._name)

    def _store_metrics(self) -> Iterable[Metric]:
        return ()

    # -- events --

    def _shard_count(self) -> int:
        return self._engine.shards

    def _own_shards(self) -> Iterable[Shard]:
        owned_shards = self.ownership.owned_shards.values()
        return [each.served.shard for each in owned_shards if each.served is not None]

    def _on_served(self, shard: Shard) -> None:
        self._link_server.take_over(shard.number, shard.broker.sessions)
        if self._recorder is not None:
            shard.record(self._recorder())


class _LiveView(ClusterView):
    """The cluster as a node of it sees it: whoever spoke within the session timeout is alive."""

    def __init__(
        self,
        ledger: Ledger,
        cluster: str,
        heard: Mapping[str, float],
        timeout_s: float,
        wish: Callable[[str, Record | None], Awaitable[None]],
    ) -> None:
        super().__init__(ledger, cluster)
        self._heard = heard
        self._timeout_s = timeout_s
        self._wish = wish
        self._wished: Awaitable[None] | None = None

    @property
    def alive(self) -> Set[str]:  # type: ignore[override]
        """The nodes that were heard."""
        since_s = asyncio.get_running_loop().time() - self._timeout_s
        return {name for name, at_s in self._heard.items() if at_s >= since_s}

    @property
    def shards(self) -> int:  # type: ignore[override]
        """How many there are."""
        return 0 if self.ledger.cluster is None else self.ledger.cluster.shards

    def _write(self, key: str, record: Record | None) -> None:
        self._wished = self._wish(key, record)

    async def written(self) -> None:
        """Wait until the last wish is kept."""
        wished, self._wished = self._wished, None
        if wished is not None:
            await wished


class _RestMaps:
    """The map for clients that route themselves."""

    def __init__(self, maps: LedgerMaps, own_url: Callable[[], str]) -> None:
        self._maps = maps
        self._own_url = own_url
        self._of: ClusterMap | None = None
        self._made: PartitionMap | None = None

    def current(self) -> PartitionMap:
        """The newest version, the same at every node. A shard that nobody serves is said to be where it is to be next,
        and one without such a node at the first that clients can reach: whoever is asked has the router find it."""
        found, own_url = self._maps.current(), self._own_url()
        if not own_url:
            raise LogUnavailable("this node is starting: ask again")
        if self._made is None or self._of is not found:
            urls = {name: url for name, node in found.nodes.items() if (url := node.urls.get("http", ""))}
            urls[found.own] = own_url
            owners = tuple(owner if owner in urls else min(urls) for owner in found.next_owners)
            self._of, self._made = found, PartitionMap(found.version, found.own, owners, urls)
        return self._made


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# -- what the shards of this node have to do ---------------------------------------------------------------------------

_GAUGES = {
    "rate": "Messages a second, in and out, smoothed.",
    "backlog": "Messages in the shard, whatever their state.",
    "bytes": "Bytes of the messages in the shard.",
    "queues": "Queues in the shard.",
    "outbox": "Entries that wait to be forwarded to other shards.",
}


class LoadMeter:
    """Counts, now and then, what the shards do."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[float, tuple[int, int, int]]] = {}
        self._loads: dict[int, LoadOfShard] = {}

    def measure(self, owned_shards: Mapping[int, OwnedShard], now_s: float) -> dict[int, LoadOfShard]:
        """The loads of the shards that are served here."""
        served = {shard: owned_shard for shard, owned_shard in owned_shards.items() if owned_shard.served is not None}
        self._loads = {shard: self._measure(shard, owned_shard, now_s) for shard, owned_shard in served.items()}
        self._counted = {shard: counted for shard, counted in self._counted.items() if shard in served}
        return self._loads

    def _measure(self, shard: int, owned_shard: OwnedShard, now_s: float) -> LoadOfShard:
        assert owned_shard.served is not None
        assert owned_shard.claimed is not None
        broker, claimed = owned_shard.served.identity, owned_shard.claimed
        totals = broker.totals
        counts = (totals.sent + totals.acked, claimed.commits, claimed.commit_bytes)
        before_s, before = self._counted.get(shard, (now_s, counts))
        self._counted[shard] = now_s, counts
        old = self._loads.get(shard, LoadOfShard())
        rates = [old.rate, old.commits, old.byte_rate]
        passed_s = now_s - before_s
        if passed_s > 0:
            weight = min(1.0, passed_s / SMOOTH_S)
            for at, (count, earlier) in enumerate(zip(counts, before, strict=True)):
                rates[at] += weight * (max(0, count - earlier) / passed_s - rates[at])
        rate, commits, byte_rate = (round(each, 1) for each in rates)
        waiting = 0 if owned_shard.forwarder is None else sum(owned_shard.forwarder.stats().waiting.values())
        return LoadOfShard(rate, totals.messages, totals.bytes, len(broker.queues), waiting, commits, byte_rate)


def shard_families(
    owned_shards: Mapping[int, OwnedShard], loads: Mapping[int, LoadOfShard], node: str
) -> Iterator[Metric]:
    """Metrics of each shard that is served here."""
    labels = ("shard", "node")
    epoch = GaugeMetricFamily("penstock_shard_epoch", "The epoch in which the node serves the shard.", labels=labels)
    commits = CounterMetricFamily("penstock_shard_commits", "Commits made durable.", labels=labels)
    seconds = CounterMetricFamily("penstock_shard_commit_seconds", "How long the commits took.", labels=labels)
    withheld = CounterMetricFamily(
        "penstock_shard_withheld_steps",
        "Steps whose messages were held back, because ownership was not proven.",
        labels=labels,
    )
    for shard, owned_shard in sorted(owned_shards.items()):
        if owned_shard.served is not None and owned_shard.claimed is not None and owned_shard.proof is not None:
            of = (str(shard), node)
            epoch.add_metric(of, owned_shard.epoch)
            commits.add_metric(of, owned_shard.claimed.commits)
            seconds.add_metric(of, owned_shard.claimed.commit_s)
            withheld.add_metric(of, owned_shard.proof.withheld)
    yield from (epoch, commits, seconds, withheld)
    for name, text in _GAUGES.items():
        gauge = GaugeMetricFamily(f"penstock_shard_{name}", text, labels=labels)
        for shard, load in sorted(loads.items()):
            gauge.add_metric((str(shard), node), getattr(load, name))
        yield gauge
    served = {shard: owned_shard.served for shard, owned_shard in sorted(owned_shards.items())}
    totals = [((str(shard), node), each.identity.totals) for shard, each in served.items() if each is not None]
    yield from traffic_families(totals, labels)
    forwarders = {shard: owned_shard.forwarder for shard, owned_shard in sorted(owned_shards.items())}
    yield from forwarder_families({shard: each.stats() for shard, each in forwarders.items() if each is not None})
