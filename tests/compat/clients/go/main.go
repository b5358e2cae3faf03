// AWS's SDK for Go against SNS and SQS: a fan-out, a batch and an error.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sort"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	ctx := context.Background()
	config := aws.Config{
		Region:       "us-east-1",
		BaseEndpoint: aws.String(os.Getenv("ENDPOINT")),
		Credentials:  credentials.NewStaticCredentialsProvider("test", "test", ""),
	}
	topics, queues := sns.NewFromConfig(config), sqs.NewFromConfig(config)
	topic := must(topics.CreateTopic(ctx, &sns.CreateTopicInput{Name: aws.String("go-news")})).TopicArn
	url := must(queues.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String("go-readers")})).QueueUrl
	shown := must(queues.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: url, AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameQueueArn},
	}))
	must(topics.Subscribe(ctx, &sns.SubscribeInput{
		TopicArn: topic, Protocol: aws.String("sqs"), Endpoint: aws.String(shown.Attributes["QueueArn"]),
		Attributes: map[string]string{"RawMessageDelivery": "true"}, ReturnSubscriptionArn: true,
	}))
	must(topics.Publish(ctx, &sns.PublishInput{TopicArn: topic, Message: aws.String("tea")}))
	must(topics.PublishBatch(ctx, &sns.PublishBatchInput{
		TopicArn: topic,
		PublishBatchRequestEntries: []snstypes.PublishBatchRequestEntry{
			{Id: aws.String("1"), Message: aws.String("coffee")},
			{Id: aws.String("2"), Message: aws.String("water")},
		},
	}))
	must(queues.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: url, MessageBody: aws.String("direct")}))
	var bodies []string
	for len(bodies) < 4 {
		got := must(queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: url, WaitTimeSeconds: 5, MaxNumberOfMessages: 10,
		}))
		if len(got.Messages) == 0 {
			log.Fatal("nothing came")
		}
		for _, message := range got.Messages {
			bodies = append(bodies, *message.Body)
			must(queues.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: message.ReceiptHandle}))
		}
	}
	sort.Strings(bodies)
	if strings.Join(bodies, " ") != "coffee direct tea water" {
		log.Fatal(bodies)
	}
	must(topics.DeleteTopic(ctx, &sns.DeleteTopicInput{TopicArn: topic}))
	_, err := topics.GetTopicAttributes(ctx, &sns.GetTopicAttributesInput{TopicArn: topic})
	var missing *snstypes.NotFoundException
	if !errors.As(err, &missing) {
		log.Fatal(err)
	}
	fmt.Println("well")
}
