import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationKey;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;
import org.apache.kafka.server.util.timer.SystemTimer;
import org.apache.kafka.server.util.timer.TimerTask;

/** The processor's time of Kafka's purgatory and timer, for lines that say what to do how often: each is
 * answered by nanoseconds of this thread for each one. */
public class KafkaCosts {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final int KEYS = 100;
    private static final int WAIT_MS = 30_000;

    record Key(String keyLabel) implements DelayedOperationKey {}

    private static class Waiting extends DelayedOperation {
        private volatile boolean ready = false;

        Waiting() {
            super(WAIT_MS);
        }

        @Override
        public void onExpiration() {}

        @Override
        public void onComplete() {}

        @Override
        public boolean tryComplete() {
            return ready && forceComplete();
        }
    }

    private static class Nothing extends TimerTask {
        Nothing(long delayMs) {
            super(delayMs);
        }

        @Override
        public void run() {}
    }

    private interface Work {
        void run() throws Exception;
    }

    private static double nsEach(int count, Work work) throws Exception {
        long start = THREADS.getCurrentThreadCpuTime();
        work.run();
        return (THREADS.getCurrentThreadCpuTime() - start) / (double) count;
    }

    /** Operations that are made, watched on 3 keys, and completed by an event on one of these. */
    private static String events(int count) throws Exception {
        List<List<Key>> triples = new ArrayList<>();
        for (int i = 0; i < KEYS; i++) {
            List<Key> triple = new ArrayList<>();
            for (int j = 0; j < 3; j++) triple.add(new Key("topic-" + (i + j) % KEYS));
            triples.add(List.copyOf(triple));
        }
        SystemTimer timer = new SystemTimer("costs");
        DelayedOperationPurgatory<Waiting> purgatory =
            new DelayedOperationPurgatory<>("costs", timer, 0, 1_000, true, true);
        double ns = nsEach(count, () -> {
            for (int i = 0; i < count; i++) {
                List<Key> keys = triples.get(i % KEYS);
                Waiting operation = new Waiting();
                purgatory.tryCompleteElseWatch(operation, keys);
                operation.ready = true;
                purgatory.checkAndComplete(keys.get(1));
            }
        });
        purgatory.shutdown();
        return Double.toString(ns);
    }

    /** Timeouts of 1 to 60 s: tasks that are added, cancelled in that order, and then made and added. */
    private static String timeouts(int count) throws Exception {
        Random random = new Random(count);
        int[] delaysMs = new int[count];
        Nothing[] tasks = new Nothing[count];
        for (int i = 0; i < count; i++) {
            delaysMs[i] = 1_000 + random.nextInt(59_001);
            tasks[i] = new Nothing(delaysMs[i]);
        }
        SystemTimer timer = new SystemTimer("costs");
        double add = nsEach(count, () -> {
            for (Nothing task : tasks) timer.add(task);
        });
        double cancel = nsEach(count, () -> {
            for (Nothing task : tasks) task.cancel();
        });
        double make = nsEach(count, () -> {
            for (int i = 0; i < count; i++) {
                tasks[i] = new Nothing(delaysMs[i]);
                timer.add(tasks[i]);
            }
        });
        timer.close();
        return add + " " + cancel + " " + make;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            int count = Integer.parseInt(words[1]);
            System.out.println(words[0].equals("events") ? events(count) : timeouts(count));
        }
    }
}
