package clock;

/** Stands for TimeUnit in the classes that Patch changes. */
public final class Unit {
    public static final Unit MILLISECONDS = new Unit();

    private Unit() {}

    public void sleep(long ms) {
        Sleep.sleep(ms);
    }

    public long toNanos(long ms) {
        return ms * 1_000_000;
    }
}
