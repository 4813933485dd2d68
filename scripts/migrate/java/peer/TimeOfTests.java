package peer;

/** Stands for System in the classes of which migrate.py changes the constants. Its name is as long. */
public final class TimeOfTests {
    public static long milliseconds;

    private TimeOfTests() {}

    public static long currentTimeMillis() {
        return milliseconds;
    }

    public static long nanoTime() {
        return milliseconds * 1_000_000;
    }
}
