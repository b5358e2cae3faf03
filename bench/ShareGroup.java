// A share group's consumer for bench/share_group.py. Each line that it reads is a turn: TOPIC COUNT HELD COMMITTED. It
// consumes so many messages, acknowledges each, and prints how many seconds that took. HELD: how many it holds at most;
// 0: as is the default. COMMITTED: `each` message, each `poll`, or `later`, with the next poll.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class ShareGroup {
    private static final Duration POLL = Duration.ofMillis(500);
    private static final long SILENCE_NS_MAX = TimeUnit.SECONDS.toNanos(60);

    private final String bootstrap;

    private ShareGroup(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        ShareGroup bench = new ShareGroup(arguments[0]);
        BufferedReader turns = new BufferedReader(new InputStreamReader(System.in));
        for (String line = turns.readLine(); line != null; line = turns.readLine()) {
            String[] turn = line.split(" ");
            System.out.println(bench.consume(turn[0], Integer.parseInt(turn[1]), Integer.parseInt(turn[2]), turn[3]));
            System.out.flush();
        }
    }

    /** Seconds from the first messages until the last acknowledgement is confirmed; joining the group does not count. */
    private double consume(String topic, int count, int held, String committed) throws Exception {
        String group = topic + "-group";
        startAtTheBeginning(group);
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings(group, held))) {
            consumer.subscribe(List.of(topic));
            long startNs = 0;
            long heardNs = System.nanoTime();
            int left = count;
            while (left > 0) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                long nowNs = System.nanoTime();
                if (records.isEmpty() && nowNs - heardNs > SILENCE_NS_MAX) {
                    throw new IllegalStateException(left + " of " + count + " messages do not come");
                }
                if (!records.isEmpty()) {
                    heardNs = nowNs;
                    startNs = startNs == 0 ? nowNs : startNs;
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    left--;
                    if (committed.equals("each")) {
                        consumer.commitSync();
                    }
                }
                if (committed.equals("poll")) {
                    consumer.commitSync();
                }
            }
            consumer.commitSync();
            return (System.nanoTime() - startNs) / 1e9;
        }
    }

    private Properties settings(String group, int held) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("share.acknowledgement.mode", "explicit");
        if (held > 0) {
            settings.put("share.acquire.mode", "record_limit");
            settings.put("max.poll.records", held);
        }
        return settings;
    }

    private void startAtTheBeginning(String group) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(settings)) {
            ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
            AlterConfigOp change = new AlterConfigOp(earliest, AlterConfigOp.OpType.SET);
            ConfigResource of = new ConfigResource(ConfigResource.Type.GROUP, group);
            admin.incrementalAlterConfigs(Map.of(of, List.of(change))).all().get(60, TimeUnit.SECONDS);
        }
    }
}
