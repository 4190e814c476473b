import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationKey;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;
import org.apache.kafka.server.util.timer.VirtualTimer;

/** Kafka's purgatory, driven by lines: each has a call, and is answered by its result, what happened
 * to operations, and the numbers of those that are delayed and watched. */
public class KafkaPurgatory {
    record Key(String keyLabel) implements DelayedOperationKey {}

    private final StringBuilder events = new StringBuilder();
    private final Set<Integer> ready = new HashSet<>();
    private final Map<Integer, Operation> operations = new HashMap<>();
    private VirtualTimer timer;
    private DelayedOperationPurgatory<Operation> purgatory;

    private class Operation extends DelayedOperation {
        private final int id;

        Operation(int id, long delayMs) {
            super(delayMs);
            this.id = id;
        }

        @Override
        public void onExpiration() {
            events.append(" expired").append(id);
        }

        @Override
        public void onComplete() {
            events.append(" completed").append(id);
        }

        @Override
        public boolean tryComplete() {
            return ready.contains(id) && forceComplete();
        }
    }

    private Object call(String[] words) {
        switch (words[0]) {
            case "new":
                timer = new VirtualTimer();
                int interval = Integer.parseInt(words[1]);
                purgatory = new DelayedOperationPurgatory<>("judged", timer, 0, interval, false, true);
                operations.clear();
                ready.clear();
                return "";
            case "add":
                Operation added = new Operation(Integer.parseInt(words[1]), Long.parseLong(words[2]));
                operations.put(added.id, added);
                List<Key> keys = new ArrayList<>();
                for (String key : words[3].split(",")) keys.add(new Key(key));
                return purgatory.tryCompleteElseWatch(added, keys);
            case "ready":
                ready.add(Integer.parseInt(words[1]));
                return "";
            case "check":
                return purgatory.checkAndComplete(new Key(words[1]));
            case "force":
                return operations.get(Integer.parseInt(words[1])).forceComplete();
            case "advance":
                timer.advanceClock(Long.parseLong(words[1]));
                return "";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        KafkaPurgatory judged = new KafkaPurgatory();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        PrintStream answers = new PrintStream(System.out, false);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            judged.events.setLength(0);
            Object result = judged.call(line.split(" "));
            answers.println(result + "|" + judged.events + "|" + judged.purgatory.numDelayed());
        }
        answers.flush();
    }
}
