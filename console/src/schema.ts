// Made from the OpenAPI document by `python -m tools.generate_console_types`: do not edit.

export interface AckedConsumer {
  offset: number;
}
export interface Alarm {
  kind: "damaged" | "dead letters" | "disk" | "lag" | "paused";
  queue: string | null;
  text: string;
}
export interface AuditLine {
  at: number;
  who: string;
  peer: string;
  what: string;
  queue: string | null;
  scope: { [name: string]: unknown };
  outcome: string;
}
export interface AuditLog {
  entries: AuditLine[];
  next: number | null;
}
export interface ChangedMessages {
  changed: number;
  missing: (string | number)[];
}
export interface ChannelCounts {
  name: string;
  ready: number;
  leased: number;
  delayed: number;
  acked: number;
  failed: number;
  dead: number;
  paused: boolean;
  oldest_sent_at: number | null;
  waiting_receivers: number;
}
export interface ChannelList {
  channels: ChannelCounts[];
}
export interface ClusterNodeRow {
  node: string;
  state: string;
  controller: boolean;
  shards: number;
  http: string;
  version: string;
  rate: number | null;
  backlog: number | null;
  bytes: number | null;
}
export interface ClusterState {
  alone: boolean;
  own: string;
  version: number;
  nodes: ClusterNodeRow[];
  shards: ShardRow[];
  options: string[];
}
export interface ConsumerAck {
  queue?: string;
  Queue?: string;
  consumer?: string;
  Consumer?: string;
  offset?: number;
  Offset?: number;
  allow_rewind?: boolean;
  AllowRewind?: boolean;
}
export interface ConsumerList {
  consumers: ConsumerPosition[];
}
export interface ConsumerPosition {
  consumer: string;
  offset: number;
  end_offset: number;
  lag: number;
}
export interface DeadLetters {
  messages: SeenMessage[];
  next: number | null;
  queue: string;
}
export interface Disk {
  free_bytes: number;
  size_bytes: number;
}
export interface DrainNode {
  node: string;
  draining?: boolean;
}
export interface EndedSession {
  released: number;
}
export interface ErrorGroup {
  group: string;
  count: number;
  first_at: number;
  last_at: number;
  sample: SeenMessage;
}
export interface ErrorGroups {
  queue: string;
  groups: ErrorGroup[];
  looked_at: number;
  next: number | null;
}
export interface ExtendRequest {
  receipt?: string;
  receipts?: string[];
  lease: number;
}
export interface FailedDelivery {
  attempt: number;
  received_at: number;
  failed_at: number;
  session: string;
  error: string;
}
export interface FoundMessages {
  messages: SeenMessage[];
  looked_at: number;
  next: number | null;
}
export interface GetRecords {
  queue?: string;
  Queue?: string;
  consumer?: string | null;
  Consumer?: string | null;
  offset?: number | null;
  Offset?: number | null;
  max_records?: number;
  MaxRecords?: number;
}
export interface Held {
  receipt?: string;
  receipts?: string[];
}
export interface HeldMessages {
  queue: string;
  channel: string;
  count: number;
  since: number;
  until: number;
}
export interface Holder {
  session: number;
  name: string;
}
export interface LifeEvent {
  at: number;
  what: "dead" | "due" | "failed" | "lease ends" | "received" | "sent";
  queue: string;
  channel: string | null;
  attempt: number | null;
  text: string;
}
export interface LookupNode {
  name: string;
  address: string;
  tcp_port: number;
  http_port: number;
  version: string;
  topics: string[];
}
export interface LookupServiceState {
  address: string;
  connected: boolean;
  version: string | null;
}
export interface LookupState {
  services: LookupServiceState[];
  nodes: LookupNode[];
}
export interface Me {
  name: string;
  grants: RightsOn[];
  needs_credentials: boolean;
  roles: Role[];
  read_only: boolean;
  masked: boolean;
  history: boolean;
  audit: boolean;
}
export interface MessageInChannel {
  channel: string;
  state: "delayed" | "done" | "leased" | "ready";
  attempts: number;
  due_at: number | null;
  lease_ends_at: number | null;
  received_at: number | null;
  first_received_at: number | null;
  holder: Holder | null;
  failures: FailedDelivery[];
}
export interface MessageLife {
  id: string;
  sequence: number;
  body: string;
  sent_at: number;
  encoding?: "base64" | "text";
  attributes?: { [name: string]: string | number | TypedValue };
  group?: string | null;
  origin?: MessageOrigin | null;
  masked?: boolean;
  queue: string;
  dedup_id: string | null;
  priority: number;
  channels: MessageInChannel[];
  events: LifeEvent[];
}
export interface MessageOrigin {
  queue: string;
  channel: string;
  sequence: number;
  attempts: number;
}
export interface MoveConsumer {
  offset: number;
  allow_rewind?: boolean;
}
export interface MoveShard {
  shard: number;
  node: string | null;
}
export interface NamedCounts {
  name: string;
  stats: QueueCounts;
}
export interface NamedMessages {
  ids?: string[] | null;
  sequences?: number[] | null;
  channel?: string | null;
}
export interface NamedMessagesIn {
  ids?: string[] | null;
  sequences?: number[] | null;
  channel?: string;
}
export interface NewChannel {
  name: string;
  start?: "head" | "tail" | number;
}
export interface NewMessage {
  body: string;
  encoding?: "base64" | "text";
  attributes?: { [name: string]: string | number | TypedValue };
  group?: string | null;
  dedup_id?: string | null;
  priority?: number;
  delay?: number | null;
  due?: number | null;
}
export interface NewQueue {
  name: string;
  settings?: QueueSettings;
  channels?: string[];
}
export interface NewRedrive {
  queue: string;
  target?: string | null;
  create?: boolean;
  ids?: string[] | null;
  sequences?: number[] | null;
  contains?: string | null;
  error?: string | null;
  rate?: number | null;
  group?: string | null;
  discard?: boolean;
  dry_run?: boolean;
  until?: number | null;
}
export interface NewSchedule {
  ids?: string[] | null;
  sequences?: number[] | null;
  channel?: string;
  due?: number | null;
  delay?: number | null;
}
export interface NewSession {
  name?: string;
  ttl?: number;
}
export interface NoOptions {
}
export interface OpenSessions {
  sessions: SessionRow[];
  without_session: HeldMessages[];
}
export interface Partitions {
  version: number;
  partitions: number;
  owners: string[];
  nodes: { [name: string]: string };
}
export interface Problem {
  type: string;
  title: string;
  status: number;
  code: string;
  detail: string;
  map_version?: number | null;
  owner?: string | null;
}
export interface Publish {
  queue?: string;
  Queue?: string;
  messages: NewMessage[];
}
export interface Published {
  offsets: number[];
}
export interface Purged {
  purged: number;
}
export interface PutMessage {
  body: string;
  encoding?: "base64" | "text";
  attributes?: { [name: string]: string | number | TypedValue };
  group?: string | null;
  dedup_id?: string | null;
  priority?: number;
  delay?: number | null;
  due?: number | null;
  queue: string;
}
export interface QueueAndConsumer {
  queue?: string;
  Queue?: string;
  consumer?: string;
  Consumer?: string;
}
export interface QueueCounts {
  messages: number;
  bytes: number;
  delayed: number;
  sent: number;
  quarantined: number;
  oldest_sent_at: number | null;
  end_offset: number;
  channels: ChannelCounts[];
  consumers: { [name: string]: number };
}
export interface QueueCountsList {
  queues: NamedCounts[];
  next: string | null;
}
export interface QueueDescription {
  name: string;
  settings: QueueSettings;
  created_at: number;
  changed_at: number;
  stats: QueueCounts;
}
export interface QueueHistory {
  queue: string | null;
  range: string;
  step: number;
  at: number[];
  sent: (number | null)[];
  delivered: (number | null)[];
  acked: (number | null)[];
  failed: (number | null)[];
  dead: (number | null)[];
  ready: (number | null)[];
  leased: (number | null)[];
  delayed: (number | null)[];
  messages: (number | null)[];
  oldest: (number | null)[];
  receive_p50: (number | null)[];
  receive_p95: (number | null)[];
  receive_p99: (number | null)[];
  ack_p50: (number | null)[];
  ack_p95: (number | null)[];
  ack_p99: (number | null)[];
}
export interface QueueList {
  queues: string[];
  next: string | null;
}
export interface QueueOnly {
  queue?: string;
  Queue?: string;
}
export interface QueueRow {
  name: string;
  fifo: boolean;
  messages: number;
  bytes: number;
  ready: number;
  leased: number;
  delayed: number;
  dead: number;
  quarantined: number;
  oldest_sent_at: number | null;
  dead_letters: number;
  paused: string[];
  rates: RatesPerSecond | null;
  spark: number[];
}
export interface QueueRows {
  queues: QueueRow[];
  total: number;
  next: number | null;
}
export interface QueueSettings {
  kind?: "standard" | "fifo";
  lease?: number;
  retention?: number | null;
  retention_bytes?: number | null;
  delay?: number;
  message_bytes_max?: number;
  receive_wait?: number;
  max_receives?: number;
  dead_letter?: string | null;
  backoff?: { [name: string]: unknown };
  policy?: "at_least_once" | "consume_times" | "consume_once";
  consume_times?: number;
  deliver_unsynced?: boolean;
  partitions?: number;
  content_dedup?: boolean;
  dedup_scope?: "queue" | "group";
  throughput_scope?: "queue" | "group";
  throughput_per_second?: number | null;
  in_flight_max?: number;
  consumer_retention?: number | null;
  tags?: { [name: string]: string };
  labels?: { [name: string]: string };
}
export interface RatesPerSecond {
  sent: number;
  delivered: number;
  acked: number;
  failed: number;
  dead: number;
}
export interface Receipt {
  messages: ReceivedMessage[];
  deadline: number;
}
export interface ReceiveOptions {
  max?: number;
  wait?: number | null;
  lease?: number | null;
  session?: string | null;
  attempt_id?: string | null;
}
export interface ReceiveRequest {
  max?: number;
  wait?: number | null;
  lease?: number | null;
  session?: string | null;
  attempt_id?: string | null;
  channel?: string;
}
export interface ReceivedMessage {
  id: string;
  sequence: number;
  body: string;
  sent_at: number;
  encoding?: "base64" | "text";
  attributes?: { [name: string]: string | number | TypedValue };
  group?: string | null;
  origin?: MessageOrigin | null;
  masked?: boolean;
  receipt: string;
  attempt: number;
  first_received_at: number;
  failures?: FailedDelivery[];
}
export interface Record {
  offset: number;
  id: string;
  timestamp: number;
  body: string;
  encoding?: "base64" | "text";
  key?: string | null;
  attributes?: { [name: string]: string | number | TypedValue };
}
export interface Records {
  records: Record[];
  next_offset: number;
  end_offset: number;
}
export interface Redrive {
  task: number;
  queue: string;
  target: string | null;
  status: "cancelled" | "done" | "dry_run" | "failed" | "running";
  moved: number;
  skipped: number;
  to_move: number;
  started_at: number;
  error: string;
  rate?: number | null;
  group?: string | null;
  discard?: boolean;
  counted_all?: boolean;
  selected?: number | null;
}
export interface RedriveList {
  redrives: Redrive[];
}
export interface RefusedReceipt {
  receipt: string;
  code: string;
  detail: string;
}
export interface ReleaseRequest {
  receipt?: string;
  receipts?: string[];
  error?: string;
  delay?: number | null;
  failed?: boolean;
}
export interface RightsOn {
  queues: string[];
  rights: ("admin" | "read" | "write")[];
}
export interface Role {
  role: "admin" | "reader" | "writer";
  queues: string[];
}
export interface SeenMessage {
  id: string;
  sequence: number;
  body: string;
  sent_at: number;
  encoding?: "base64" | "text";
  attributes?: { [name: string]: string | number | TypedValue };
  group?: string | null;
  origin?: MessageOrigin | null;
  masked?: boolean;
  state: "delayed" | "done" | "leased" | "ready";
  attempts: number;
  until?: number | null;
  failures?: FailedDelivery[];
}
export interface SeenMessages {
  messages: SeenMessage[];
  next: number | null;
}
export interface SentMessage {
  id: string | null;
  sequence: number | null;
  duplicate?: boolean;
}
export interface SentMessages {
  messages: SentMessage[];
}
export interface ServerOverview {
  version: string;
  uptime: number;
  totals: Totals;
  rates: RatesPerSecond | null;
  alarms: Alarm[];
  disk: Disk | null;
  memory_bytes: number | null;
}
export interface ServerStats {
  version: string;
  queues: number;
  messages: number;
  bytes: number;
  ready: number;
  leased: number;
  delayed: number;
  sent: number;
  acked: number;
  failed: number;
  dead: number;
  sessions: number;
}
export interface Session {
  session: string;
  ttl: number;
}
export interface SessionRow {
  session: string;
  name: string;
  is_connection: boolean;
  node: string;
  ttl: number | null;
  seen_at: number;
  held: number;
  leases: HeldMessages[];
}
export interface SettledReceipts {
  settled: number;
  refused: RefusedReceipt[];
}
export interface ShardRow {
  shard: number;
  owner: string;
  served_by: string;
  state: string;
  wish: string | null;
  queues: number | null;
  rate: number | null;
  backlog: number | null;
  bytes: number | null;
  outbox: number | null;
}
export interface SubscriptionRow {
  id: string;
  protocol: string;
  endpoint: string;
  target: string;
  pending: boolean;
  replaying: boolean;
  filter: string;
  lag: number | null;
  oldest_sent_at: number | null;
  delivered: number | null;
  failed: number | null;
}
export interface TopicRow {
  name: string;
  queue: string;
  fifo: boolean;
  published: number;
  archived: boolean;
  subscriptions: SubscriptionRow[];
}
export interface TopicRows {
  topics: TopicRow[];
  next: string | null;
}
export interface Totals {
  queues: number;
  messages: number;
  bytes: number;
  ready: number;
  leased: number;
  delayed: number;
  sent: number;
  acked: number;
  failed: number;
  dead: number;
  quarantined: number;
  dead_letters: number;
}
export interface TypedValue {
  value: string;
  encoding?: "base64" | "text";
  type?: string | null;
}
export interface Work {
  receipts?: string[];
  sends?: PutMessage[];
}
export interface Operations {
  "POST /v1/queues": { asked: { body: NewQueue }; answer: QueueDescription };
  "GET /v1/queues": { asked: { prefix?: string; after?: string; limit?: number }; answer: QueueList };
  "GET /v1/queues/{queue}": { asked: { queue: string }; answer: QueueDescription };
  "PATCH /v1/queues/{queue}": { asked: { queue: string; body?: QueueSettings }; answer: QueueDescription };
  "DELETE /v1/queues/{queue}": { asked: { queue: string }; answer: void };
  "POST /v1/queues/{queue}/purge": { asked: { queue: string }; answer: Purged };
  "POST /v1/queues/{queue}/messages": { asked: { queue: string; create?: boolean; body: NewMessage[] | NewMessage }; answer: SentMessages };
  "GET /v1/queues/{queue}/messages": { asked: { queue: string; channel?: string; after?: number; limit?: number; states?: ("delayed" | "done" | "leased" | "ready")[]; contains?: string; encoding?: "base64" | "text" }; answer: SeenMessages };
  "POST /v1/queues/{queue}/receive": { asked: { queue: string; body?: ReceiveRequest }; answer: Receipt };
  "POST /v1/queues/{queue}/channels/{channel}/receive": { asked: { queue: string; channel: string; body?: ReceiveOptions }; answer: Receipt };
  "POST /v1/queues/{queue}/ack": { asked: { queue: string; body?: Held }; answer: SettledReceipts };
  "POST /v1/queues/{queue}/channels/{channel}/ack": { asked: { queue: string; channel: string; body?: Held }; answer: SettledReceipts };
  "POST /v1/queues/{queue}/release": { asked: { queue: string; body?: ReleaseRequest }; answer: SettledReceipts };
  "POST /v1/queues/{queue}/channels/{channel}/release": { asked: { queue: string; channel: string; body?: ReleaseRequest }; answer: SettledReceipts };
  "POST /v1/queues/{queue}/extend": { asked: { queue: string; body: ExtendRequest }; answer: SettledReceipts };
  "POST /v1/queues/{queue}/channels/{channel}/extend": { asked: { queue: string; channel: string; body: ExtendRequest }; answer: SettledReceipts };
  "GET /v1/messages/{message}": { asked: { message: string }; answer: MessageLife };
  "GET /v1/queues/{queue}/messages/{message}": { asked: { queue: string; message: string }; answer: MessageLife };
  "DELETE /v1/queues/{queue}/messages/{message}": { asked: { queue: string; message: string }; answer: ChangedMessages };
  "POST /v1/queues/{queue}/messages/delete": { asked: { queue: string; body?: NamedMessages }; answer: ChangedMessages };
  "POST /v1/queues/{queue}/messages/release": { asked: { queue: string; body?: NamedMessagesIn }; answer: ChangedMessages };
  "POST /v1/queues/{queue}/messages/reschedule": { asked: { queue: string; body?: NewSchedule }; answer: ChangedMessages };
  "GET /v1/queues/{queue}/search": { asked: { queue: string; text?: string; encoding?: "base64" | "text"; path?: string; value?: string; attribute?: string; attribute_value?: string; id?: string; since?: number; until?: number; channel?: string; states?: ("delayed" | "done" | "leased" | "ready")[]; after?: number; limit?: number }; answer: FoundMessages };
  "POST /v1/queues/{queue}/channels": { asked: { queue: string; body: NewChannel }; answer: ChannelCounts };
  "GET /v1/queues/{queue}/channels": { asked: { queue: string }; answer: ChannelList };
  "GET /v1/queues/{queue}/channels/{channel}": { asked: { queue: string; channel: string }; answer: ChannelCounts };
  "DELETE /v1/queues/{queue}/channels/{channel}": { asked: { queue: string; channel: string }; answer: void };
  "POST /v1/queues/{queue}/channels/{channel}/pause": { asked: { queue: string; channel: string }; answer: ChannelCounts };
  "POST /v1/queues/{queue}/channels/{channel}/unpause": { asked: { queue: string; channel: string }; answer: ChannelCounts };
  "POST /v1/queues/{queue}/channels/{channel}/purge": { asked: { queue: string; channel: string }; answer: Purged };
  "GET /v1/queues/{queue}/dead-letters": { asked: { queue: string; after?: number; limit?: number; contains?: string; error?: string }; answer: DeadLetters };
  "GET /v1/queues/{queue}/dead-letters/groups": { asked: { queue: string; after?: number }; answer: ErrorGroups };
  "POST /v1/redrives": { asked: { body: NewRedrive }; answer: Redrive };
  "GET /v1/redrives": { asked: { queue?: string }; answer: RedriveList };
  "GET /v1/redrives/{task}": { asked: { task: string }; answer: Redrive };
  "POST /v1/redrives/{task}/cancel": { asked: { task: string }; answer: Redrive };
  "POST /v1/work": { asked: { body?: Work }; answer: SentMessages };
  "POST /v1/sessions": { asked: { body?: NewSession }; answer: Session };
  "GET /v1/sessions": { asked: { limit?: number }; answer: OpenSessions };
  "GET /v1/queues/{queue}/sessions": { asked: { queue: string; limit?: number }; answer: OpenSessions };
  "POST /v1/sessions/{session}/heartbeat": { asked: { session: string }; answer: void };
  "DELETE /v1/sessions/{session}": { asked: { session: string }; answer: EndedSession };
  "GET /v1/queues/{queue}/records": { asked: { queue: string; offset?: number; max?: number; end?: number; max_bytes?: number; headers?: boolean }; answer: Records };
  "GET /v1/queues/{queue}/consumers": { asked: { queue: string }; answer: ConsumerList };
  "GET /v1/queues/{queue}/consumers/{consumer}": { asked: { queue: string; consumer: string }; answer: ConsumerPosition };
  "PUT /v1/queues/{queue}/consumers/{consumer}": { asked: { queue: string; consumer: string; body: MoveConsumer }; answer: ConsumerPosition };
  "DELETE /v1/queues/{queue}/consumers/{consumer}": { asked: { queue: string; consumer: string }; answer: void };
  "GET /v1/queues/{queue}/consumers/{consumer}/records": { asked: { queue: string; consumer: string; max?: number; max_bytes?: number }; answer: Records };
  "POST /get_partitions": { asked: { body?: NoOptions }; answer: Partitions };
  "POST /publish": { asked: { queue?: string; Queue?: string; body: Publish }; answer: Published };
  "POST /get_records": { asked: { queue?: string; Queue?: string; consumer?: string | null; Consumer?: string | null; offset?: number | null; Offset?: number | null; max_records?: number; MaxRecords?: number; body?: GetRecords }; answer: Records };
  "POST /consumer_ack": { asked: { queue?: string; Queue?: string; consumer?: string; Consumer?: string; offset?: number; Offset?: number; allow_rewind?: boolean; AllowRewind?: boolean; body?: ConsumerAck }; answer: AckedConsumer };
  "POST /delete_consumer": { asked: { queue?: string; Queue?: string; consumer?: string; Consumer?: string; body?: QueueAndConsumer }; answer: void };
  "POST /delete_queue": { asked: { queue?: string; Queue?: string; body?: QueueOnly }; answer: void };
  "GET /v1/stats": { asked: {  }; answer: ServerStats };
  "GET /v1/stats/queues": { asked: { prefix?: string; after?: string; limit?: number }; answer: QueueCountsList };
  "GET /v1/me": { asked: {  }; answer: Me };
  "GET /v1/audit": { asked: { queue?: string; before?: number; limit?: number }; answer: AuditLog };
  "GET /v1/overview": { asked: {  }; answer: ServerOverview };
  "GET /v1/overview/queues": { asked: { prefix?: string; contains?: string; sort?: "acked" | "bytes" | "dead" | "dead_letters" | "delayed" | "failed" | "leased" | "messages" | "name" | "ready" | "sent"; descending?: boolean; after?: number; limit?: number }; answer: QueueRows };
  "GET /v1/history": { asked: { queue?: string; range?: "day" | "fortnight" | "hour" | "week" }; answer: QueueHistory };
  "GET /v1/lookup": { asked: {  }; answer: LookupState };
  "GET /v1/cluster": { asked: {  }; answer: ClusterState };
  "POST /v1/cluster/move": { asked: { body: MoveShard }; answer: ClusterState };
  "POST /v1/cluster/drain": { asked: { body: DrainNode }; answer: ClusterState };
  "GET /v1/topics": { asked: { after?: string; limit?: number }; answer: TopicRows };
}
