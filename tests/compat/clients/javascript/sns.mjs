// AWS's SDK for JavaScript against SNS and SQS: a fan-out, a filter, a batch and an error.
import assert from "node:assert/strict";
import {
  CreateTopicCommand, DeleteTopicCommand, GetTopicAttributesCommand, PublishBatchCommand, PublishCommand, SNSClient,
  SubscribeCommand,
} from "@aws-sdk/client-sns";
import {
  CreateQueueCommand, DeleteMessageCommand, GetQueueAttributesCommand, ReceiveMessageCommand, SendMessageCommand, SQSClient,
} from "@aws-sdk/client-sqs";

const options = {
  endpoint: process.env.ENDPOINT,
  region: "us-east-1",
  credentials: { accessKeyId: "test", secretAccessKey: "test" },
};
const sns = new SNSClient(options);
const sqs = new SQSClient(options);

const { TopicArn } = await sns.send(new CreateTopicCommand({ Name: "js-news", Tags: [{ Key: "team", Value: "a" }] }));
const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "js-readers" }));
const { Attributes } = await sqs.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["QueueArn"] }));
const FilterPolicy = JSON.stringify({ kind: ["a"] });
await sns.send(
  new SubscribeCommand({
    TopicArn, Protocol: "sqs", Endpoint: Attributes.QueueArn, Attributes: { RawMessageDelivery: "true", FilterPolicy },
  }),
);
const kind = (StringValue) => ({ kind: { DataType: "String", StringValue } });
const { MessageId } = await sns.send(
  new PublishCommand({ TopicArn, Message: "tea ☕", MessageAttributes: kind("a"), Subject: "drinks" }),
);
assert.match(MessageId, /^[0-9a-f-]{36}$/);
const batch = await sns.send(
  new PublishBatchCommand({
    TopicArn,
    PublishBatchRequestEntries: [
      { Id: "1", Message: "no", MessageAttributes: kind("b") },
      { Id: "2", Message: "coffee", MessageAttributes: kind("a") },
    ],
  }),
);
assert.deepEqual(batch.Successful.map((each) => each.Id), ["1", "2"]);
await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "direct" }));
const bodies = [];
while (bodies.length < 3) {
  const { Messages = [] } = await sqs.send(
    new ReceiveMessageCommand({ QueueUrl, WaitTimeSeconds: 5, MaxNumberOfMessages: 10, MessageAttributeNames: ["All"] }),
  );
  assert.ok(Messages.length, "nothing came");
  for (const { Body, ReceiptHandle, MessageAttributes } of Messages) {
    bodies.push(Body);
    assert.equal(MessageAttributes?.kind.StringValue, Body === "direct" ? undefined : "a");
    await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle }));
  }
}
assert.deepEqual(bodies.sort(), ["coffee", "direct", "tea ☕"]);
await sns.send(new DeleteTopicCommand({ TopicArn }));
await assert.rejects(sns.send(new GetTopicAttributesCommand({ TopicArn })), { name: "NotFoundException" });
console.log("well");
