// The AWS SDK for Go against a server: go run . ENDPOINT. Prints what it saw, as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func main() {
	ctx, seen := context.Background(), map[string]any{}
	client := sqs.New(sqs.Options{
		Region:           "eu-west-1",
		BaseEndpoint:     aws.String(os.Args[1]),
		Credentials:      credentials.NewStaticCredentialsProvider("test", "test", ""),
		RetryMaxAttempts: 1,
	})
	made := must(client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String("go")}))
	url := made.QueueUrl
	must(client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: url, MessageBody: aws.String("grüße"),
		MessageAttributes: map[string]types.MessageAttributeValue{
			"colour": {DataType: aws.String("String"), StringValue: aws.String("blau")},
			"raw":    {DataType: aws.String("Binary"), BinaryValue: []byte{0, 255}},
		},
	}))
	batch := must(client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
		QueueUrl: url,
		Entries: []types.SendMessageBatchRequestEntry{
			{Id: aws.String("1"), MessageBody: aws.String("one")},
			{Id: aws.String("2"), MessageBody: aws.String("two")},
		},
	}))
	seen["sent"] = len(batch.Successful)
	got := must(client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: url, MaxNumberOfMessages: 10, WaitTimeSeconds: 1, MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	}))
	bodies, entries := []string{}, []types.DeleteMessageBatchRequestEntry{}
	for at, message := range got.Messages {
		bodies = append(bodies, *message.Body)
		entries = append(entries, types.DeleteMessageBatchRequestEntry{
			Id: aws.String(fmt.Sprint(at)), ReceiptHandle: message.ReceiptHandle,
		})
	}
	seen["bodies"] = bodies
	seen["raw"] = fmt.Sprint(got.Messages[0].MessageAttributes["raw"].BinaryValue)
	must(client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: url, ReceiptHandle: got.Messages[0].ReceiptHandle, VisibilityTimeout: 60,
	}))
	deleted := must(client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: url, Entries: entries}))
	seen["deleted"] = len(deleted.Successful)
	must(client.PurgeQueue(ctx, &sqs.PurgeQueueInput{QueueUrl: url}))
	must(client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: url}))
	_, err := client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String("go")})
	var gone *types.QueueDoesNotExist
	seen["gone"] = errors.As(err, &gone)
	must(0, json.NewEncoder(os.Stdout).Encode(seen))
}
