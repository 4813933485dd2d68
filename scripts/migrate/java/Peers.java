import io.github.bucket4j.Bandwidth;
import io.github.bucket4j.Bucket;
import io.github.bucket4j.TimeMeter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;

/** Limiters on the JVM on a given clock: Peers RULE reads schedules as JSON, and prints the decisions of each. */
public class Peers {
    static long now;

    static final TimeMeter CLOCK = new TimeMeter() {
        @Override
        public long currentTimeNanos() {
            return now * 1_000_000;
        }

        @Override
        public boolean isWallClockBased() {
            return true;
        }
    };

    static Bandwidth limit(String rule) {
        Duration second = Duration.ofSeconds(1);
        return switch (rule) {
            case "bucket4j-greedy" -> Bandwidth.builder().capacity(20).refillGreedy(10, second).build();
            case "bucket4j-intervally" -> Bandwidth.builder().capacity(10).refillIntervally(10, second).build();
            case "bucket4j-saving-aligned" -> Bandwidth.builder().capacity(20)
                .refillIntervallyAligned(10, second, Instant.ofEpochMilli(now - now % 1_000 + 1_000)).build();
            case "bucket4j-saving" -> Bandwidth.builder().capacity(20).refillIntervally(10, second).build();
            case "bucket4j-aligned" -> Bandwidth.builder().capacity(10)
                .refillIntervallyAligned(10, second, Instant.ofEpochMilli(now - now % 1_000 + 1_000)).build();
            default -> throw new IllegalArgumentException(rule);
        };
    }

    public static void main(String[] arguments) throws Exception {
        String text = new BufferedReader(new InputStreamReader(System.in)).readLine();
        StringBuilder decisions = new StringBuilder("[");
        for (String schedule : text.substring(3, text.length() - 3).split("\\]\\], \\[\\[")) {
            Bucket bucket = null;
            decisions.append(decisions.length() > 1 ? ",\"" : "\"");
            for (String ask : schedule.split("\\], \\[")) {
                String[] numbers = ask.split(", ");
                now = Long.parseLong(numbers[0]);
                if (bucket == null) {
                    bucket = Bucket.builder().addLimit(limit(arguments[0])).withCustomTimePrecision(CLOCK).build();
                }
                decisions.append(bucket.tryConsume(Long.parseLong(numbers[1])) ? '1' : '0');
            }
            decisions.append('"');
        }
        System.out.println(decisions.append(']'));
    }
}
