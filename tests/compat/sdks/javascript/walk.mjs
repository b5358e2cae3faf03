// The AWS SDK for JavaScript against a server: node walk.mjs ENDPOINT. Prints what it saw, as JSON.
import {
  ChangeMessageVisibilityBatchCommand,
  ChangeMessageVisibilityCommand,
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  DeleteMessageCommand,
  DeleteQueueCommand,
  GetQueueAttributesCommand,
  GetQueueUrlCommand,
  ListQueuesCommand,
  ListQueueTagsCommand,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SQSClient,
} from "@aws-sdk/client-sqs";

const sqs = new SQSClient({
  endpoint: process.argv[2],
  region: "eu-west-1",
  credentials: { accessKeyId: "test", secretAccessKey: "test" },
  maxAttempts: 1,
});
const seen = {};
const { QueueUrl } = await sqs.send(
  new CreateQueueCommand({ QueueName: "js", Attributes: { VisibilityTimeout: "20" }, tags: { team: "sales" } }),
);
seen.url = (await sqs.send(new GetQueueUrlCommand({ QueueName: "js" }))).QueueUrl === QueueUrl;
seen.tags = (await sqs.send(new ListQueueTagsCommand({ QueueUrl }))).Tags;

// the SDK compares the checksums of what it sends and gets
const attributes = {
  colour: { DataType: "String", StringValue: "grün" },
  count: { DataType: "Number", StringValue: "7" },
  raw: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) },
};
await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "grüße 🎉", MessageAttributes: attributes }));
const entries = [1, 2, 3].map((n) => ({ Id: `e${n}`, MessageBody: `b${n}` }));
seen.sent = (await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries: entries }))).Successful.length;
const { Messages } = await sqs.send(
  new ReceiveMessageCommand({
    QueueUrl,
    MaxNumberOfMessages: 10,
    WaitTimeSeconds: 1,
    MessageAttributeNames: ["All"],
    MessageSystemAttributeNames: ["All"],
  }),
);
seen.bodies = Messages.map((message) => message.Body);
seen.raw = Array.from(Messages[0].MessageAttributes.raw.BinaryValue);
seen.receives = Messages[0].Attributes.ApproximateReceiveCount;
seen.uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(Messages[0].MessageId);
const [first, second, ...others] = Messages.map((message) => message.ReceiptHandle);
await sqs.send(new ChangeMessageVisibilityCommand({ QueueUrl, ReceiptHandle: first, VisibilityTimeout: 0 }));
const again = await sqs.send(new ReceiveMessageCommand({ QueueUrl }));
await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: again.Messages[0].ReceiptHandle }));
const change = [{ Id: "a", ReceiptHandle: second, VisibilityTimeout: 30 }];
seen.changed = (await sqs.send(new ChangeMessageVisibilityBatchCommand({ QueueUrl, Entries: change }))).Successful.length;
const deletes = [second, ...others].map((ReceiptHandle, at) => ({ Id: String(at), ReceiptHandle }));
seen.deleted = (await sqs.send(new DeleteMessageBatchCommand({ QueueUrl, Entries: deletes }))).Successful.length;
const { Attributes } = await sqs.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["All"] }));
seen.left = Attributes.ApproximateNumberOfMessages + Attributes.ApproximateNumberOfMessagesNotVisible;
seen.timeout = Attributes.VisibilityTimeout;

const fifo = await sqs.send(new CreateQueueCommand({ QueueName: "js.fifo", Attributes: { FifoQueue: "true" } }));
const grouped = { QueueUrl: fifo.QueueUrl, MessageBody: "x", MessageGroupId: "g", MessageDeduplicationId: "d" };
const one = await sqs.send(new SendMessageCommand(grouped));
seen.duplicate = (await sqs.send(new SendMessageCommand(grouped))).SequenceNumber === one.SequenceNumber;
seen.queues = (await sqs.send(new ListQueuesCommand({ QueueNamePrefix: "js" }))).QueueUrls.length;
await sqs.send(new DeleteQueueCommand({ QueueUrl }));
try {
  await sqs.send(new GetQueueUrlCommand({ QueueName: "js" }));
} catch (error) {
  seen.error = error.name;
}
console.log(JSON.stringify(seen));
