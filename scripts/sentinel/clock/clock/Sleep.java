package clock;

import com.alibaba.csp.sentinel.util.TimeUtil;

/** Stands for Thread, System and LockSupport in the classes that Patch changes: a sleep is counted, and takes no time. */
public final class Sleep {
    /** Nanoseconds that the current call would have slept. */
    public static long slept;
    /** Whether a sleep moves the clock. */
    public static boolean moves;

    private Sleep() {}

    public static long nanoTime() {
        return TimeUtil.now * 1_000_000;
    }

    public static void sleep(long ms) {
        parkNanos(ms * 1_000_000);
    }

    public static void parkNanos(long ns) {
        slept += ns;
        if (moves) {
            TimeUtil.now += ns / 1_000_000;
        }
    }

    public static void yield() {}
}
