package org.apache.kafka.server.util.timer;

import java.util.concurrent.DelayQueue;
import java.util.concurrent.atomic.AtomicInteger;

/** A timer of Kafka's wheel whose clock stands until it is advanced; tasks run on the caller's thread. */
public class VirtualTimer implements Timer {
    private static final int TICK_MS = 1;
    private static final int WHEEL_SIZE = 20;

    private final DelayQueue<TimerTaskList> buckets = new DelayQueue<>();
    private final AtomicInteger tasks = new AtomicInteger();
    private final TimingWheel wheel = new TimingWheel(TICK_MS, WHEEL_SIZE, 0, tasks, buckets);
    private long nowMs = 0;

    @Override
    public void add(TimerTask task) {
        put(new TimerTaskEntry(task, nowMs + task.delayMs));
    }

    private void put(TimerTaskEntry entry) {
        if (!wheel.add(entry) && !entry.cancelled()) entry.timerTask.run();
    }

    @Override
    public boolean advanceClock(long byMs) {
        nowMs += byMs;
        boolean any = false;
        for (TimerTaskList due = due(); due != null; due = due()) {
            buckets.remove(due);
            wheel.advanceClock(due.getExpiration());
            due.flush(this::put);
            any = true;
        }
        return any;
    }

    /** The next bucket of the clock's past; the queue itself asks the machine's clock. */
    private TimerTaskList due() {
        TimerTaskList first = buckets.peek();
        return first != null && first.getExpiration() <= nowMs ? first : null;
    }

    @Override
    public int size() {
        return tasks.get();
    }

    @Override
    public void close() {}
}
