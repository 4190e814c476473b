import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedWriter;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/** Runs a connector until a record has a text, and appends all records to a file.
 *
 *  java -cp 'LIB/*' Recorder.java PROPERTIES FILE TEXT COMMITS
 *
 *  A line is {"topic": ..., "key": ..., "value": ...}, with key and value as the converter wrote them. With COMMITS false, the
 *  connector's offsets aren't stored: the next run delivers the records again.
 */
public class Recorder {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            properties.load(reader);
        }
        String text = arguments[2];
        boolean commits = Boolean.parseBoolean(arguments[3]);
        CountDownLatch ended = new CountDownLatch(1);
        BufferedWriter file = Files.newBufferedWriter(
            Path.of(arguments[1]), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(properties)
            .notifying((records, committer) -> {
                for (ChangeEvent<String, String> record : records) {
                    try {
                        file.write("{\"topic\":\"" + record.destination() + "\",\"key\":" + record.key()
                            + ",\"value\":" + record.value() + "}\n");
                    } catch (java.io.IOException error) {
                        throw new java.io.UncheckedIOException(error);
                    }
                    if (commits) committer.markProcessed(record);
                    if (record.value() != null && record.value().contains(text)) ended.countDown();
                }
                if (commits) committer.markBatchFinished();
            })
            .using((isSuccess, message, error) -> {
                if (!isSuccess) {
                    System.err.println(message);
                    if (error != null) error.printStackTrace();
                }
                ended.countDown();
            })
            .build();
        var executor = Executors.newSingleThreadExecutor();
        executor.execute(engine);
        boolean isInTime = ended.await(90, TimeUnit.SECONDS);
        Thread.sleep(1500); // the transaction's end, and heartbeats
        engine.close();
        executor.shutdown();
        executor.awaitTermination(20, TimeUnit.SECONDS);
        file.close();
        System.exit(isInTime ? 0 : 1);
    }
}
