// The AWS SDK for Java (version 2), SQS and SNS, against a server: java -cp 'jars/*' Walk.java ENDPOINT. Prints what it saw, as JSON.

import java.net.URI;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sns.SnsClient;
import software.amazon.awssdk.services.sns.model.NotFoundException;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.DeleteMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageAttributeValue;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;
import software.amazon.awssdk.services.sqs.model.SendMessageBatchRequestEntry;

public class Walk {
    static String texts(List<String> texts) {
        return texts.stream().map(text -> '"' + text + '"').collect(Collectors.joining(", ", "[", "]"));
    }

    static List<Message> receive(SqsClient sqs, String url) {
        return sqs.receiveMessage(request -> request.queueUrl(url).maxNumberOfMessages(10).waitTimeSeconds(5)
                .messageAttributeNames("All").messageSystemAttributeNames(MessageSystemAttributeName.ALL)).messages();
    }

    public static void main(String[] given) {
        var endpoint = URI.create(given[0]);
        var who = StaticCredentialsProvider.create(AwsBasicCredentials.create("test", "test"));
        var http = UrlConnectionHttpClient.create();
        var region = Region.of("us-east-1");
        var sqs = SqsClient.builder().endpointOverride(endpoint).credentialsProvider(who).httpClient(http).region(region).build();
        var sns = SnsClient.builder().endpointOverride(endpoint).credentialsProvider(who).httpClient(http).region(region).build();

        var url = sqs.createQueue(request -> request.queueName("java")).queueUrl();
        var raw = MessageAttributeValue.builder().dataType("Binary").binaryValue(SdkBytes.fromByteArray(new byte[] {0, -1})).build();
        sqs.sendMessage(request -> request.queueUrl(url).messageBody("grüße").messageAttributes(Map.of("raw", raw)));
        var sent = sqs.sendMessageBatch(request -> request.queueUrl(url).entries(
                SendMessageBatchRequestEntry.builder().id("1").messageBody("one").build(),
                SendMessageBatchRequestEntry.builder().id("2").messageBody("two").build()));
        var found = receive(sqs, url);
        var deleted = sqs.deleteMessageBatch(request -> request.queueUrl(url).entries(found.stream().map(message ->
                DeleteMessageBatchRequestEntry.builder().id(message.messageId()).receiptHandle(message.receiptHandle()).build()).toList()));
        var gone = false;
        try {
            sqs.getQueueUrl(request -> request.queueName("nowhere"));
        } catch (QueueDoesNotExistException error) {
            gone = true;
        }

        var topic = sns.createTopic(request -> request.name("java")).topicArn();
        var arn = sqs.getQueueAttributes(request -> request.queueUrl(url).attributeNames(QueueAttributeName.QUEUE_ARN))
                .attributes().get(QueueAttributeName.QUEUE_ARN);
        sns.subscribe(request -> request.topicArn(topic).protocol("sqs").endpoint(arn).attributes(Map.of(
                "RawMessageDelivery", "true", "FilterPolicy", "{\"kind\": [\"order\"]}")));
        for (var kind : List.of("order", "other")) {
            sns.publish(request -> request.topicArn(topic).message(kind).messageAttributes(Map.of("kind",
                    software.amazon.awssdk.services.sns.model.MessageAttributeValue.builder().dataType("String").stringValue(kind).build())));
        }
        var published = receive(sqs, url);
        var missing = false;
        try {
            sns.publish(request -> request.topicArn(topic + "x").message("x"));
        } catch (NotFoundException error) {
            missing = true;
        }
        System.out.println("{\"sent\": " + sent.successful().size()
                + ", \"bodies\": " + texts(found.stream().map(Message::body).toList())
                + ", \"raw\": " + found.get(0).messageAttributes().get("raw").binaryValue().asByteArray().length
                + ", \"deleted\": " + deleted.successful().size() + ", \"gone\": " + gone
                + ", \"published\": " + texts(published.stream().map(Message::body).toList())
                + ", \"missing\": " + missing + "}");
    }
}
