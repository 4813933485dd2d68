import io.github.bucket4j.Bandwidth;
import io.github.bucket4j.Bucket;
import io.github.bucket4j.TimeMeter;
import io.github.resilience4j.ratelimiter.RateLimiterConfig;
import io.github.resilience4j.ratelimiter.internal.AtomicRateLimiter;
import com.google.common.util.concurrent.ManualLimiter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.function.LongPredicate;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.config.Config;
import peer.TimeOfTests;

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
            case "bucket4j-initial" -> Bandwidth.builder().capacity(20).refillGreedy(10, second).initialTokens(5).build();
            case "bucket4j-aligned" -> Bandwidth.builder().capacity(10)
                .refillIntervallyAligned(10, second, Instant.ofEpochMilli(now - now % 1_000 + 1_000)).build();
            default -> throw new IllegalArgumentException(rule);
        };
    }

    static RedissonClient redis;
    static int keys;

    static LongPredicate limiter(String rule) {
        switch (rule) {
            case "guava", "guava-costs" -> {
                var limiter = ManualLimiter.create(10);
                return cost -> limiter.tryAcquire((int) cost);
            }
            case "resilience4j", "resilience4j-aligned" -> {
                // The limiter's periods begin when it is made.
                long first = now;
                TimeOfTests.milliseconds = rule.equals("resilience4j") ? first : first - first % 1_000;
                var limiter = new AtomicRateLimiter(rule, RateLimiterConfig.custom().limitForPeriod(10)
                    .limitRefreshPeriod(Duration.ofSeconds(1)).timeoutDuration(Duration.ZERO).build());
                return cost -> limiter.acquirePermission((int) cost);
            }
            case "redisson" -> {
                if (redis == null) {
                    Config config = new Config();
                    config.useSingleServer().setAddress("redis://127.0.0.1:" + System.getenv("PEERS_REDIS"));
                    redis = Redisson.create(config);
                }
                RRateLimiter limiter = redis.getRateLimiter("redisson-" + keys++);
                limiter.trySetRate(RateType.OVERALL, 10, Duration.ofSeconds(1));
                return cost -> {
                    try {
                        return limiter.tryAcquire(cost);
                    } catch (RedisException tooLarge) {
                        return false;
                    }
                };
            }
            default -> {
                var bucket = Bucket.builder().addLimit(limit(rule)).withCustomTimePrecision(CLOCK).build();
                return bucket::tryConsume;
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String text = new BufferedReader(new InputStreamReader(System.in)).readLine();
        StringBuilder decisions = new StringBuilder("[");
        for (String schedule : text.substring(3, text.length() - 3).split("\\]\\], \\[\\[")) {
            LongPredicate limiter = null;
            decisions.append(decisions.length() > 1 ? ",\"" : "\"");
            for (String ask : schedule.split("\\], \\[")) {
                String[] numbers = ask.split(", ");
                now = Long.parseLong(numbers[0]);
                TimeOfTests.milliseconds = now;
                if (limiter == null) {
                    limiter = limiter(arguments[0]);
                    TimeOfTests.milliseconds = now;
                }
                decisions.append(limiter.test(Long.parseLong(numbers[1])) ? '1' : '0');
            }
            decisions.append('"');
        }
        System.out.println(decisions.append(']'));
        if (redis != null) {
            redis.shutdown();
        }
    }
}
