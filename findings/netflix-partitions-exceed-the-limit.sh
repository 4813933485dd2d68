#!/usr/bin/env bash
# Netflix concurrency-limits 0.5.4, partitions of a fixed limit: what one partition borrows while the others are idle is not theirs to take back, and each
# of the others may still start as many calls as its own part. In one thread, without a race, a limit of 10 with partitions of 50, 30 and 20 % has 17 calls
# in flight: 10 of the second, and then 5 of the first and 2 of the third. `getLimit()` says 10 all the time. A name without a partition gets none.
#
# Seen on 2026-11-29, concurrency-limits-core 0.5.4, Java 17:
#   batch alone: 10
#   then live: 5
#   then bulk: 2
#   then a name without a partition: 0
#   in flight: 17, limit 10
#
# Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >pom.xml <<'XML'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>probe</artifactId><version>1</version><dependencies>
<dependency><groupId>com.netflix.concurrency-limits</groupId><artifactId>concurrency-limits-core</artifactId><version>0.5.4</version></dependency>
</dependencies></project>
XML
mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib
cat >Probe.java <<'JAVA'
import com.netflix.concurrency.limits.limit.FixedLimit;
import com.netflix.concurrency.limits.limiter.AbstractPartitionedLimiter;

public class Probe {
    static class Partitioned extends AbstractPartitionedLimiter<String> {
        Partitioned(Builder builder) {
            super(builder);
        }
    }

    static class Builder extends AbstractPartitionedLimiter.Builder<Builder, String> {
        @Override
        protected Builder self() {
            return this;
        }

        @Override
        public Partitioned build() {
            return new Partitioned(this);
        }
    }

    /** How many calls of a partition start before one is refused. None of them ends. */
    static int fill(Partitioned limiter, String partition) {
        int started = 0;
        while (started < 100 && limiter.acquire(partition).isPresent()) started++;
        return started;
    }

    public static void main(String[] args) {
        Builder builder = new Builder().limit(FixedLimit.of(10)).partitionResolver(name -> name);
        builder.partition("live", 0.5).partition("batch", 0.3).partition("bulk", 0.2);
        Partitioned limiter = builder.build();
        System.out.println("batch alone: " + fill(limiter, "batch"));
        System.out.println("then live: " + fill(limiter, "live"));
        System.out.println("then bulk: " + fill(limiter, "bulk"));
        System.out.println("then a name without a partition: " + fill(limiter, "other"));
        System.out.println("in flight: " + limiter.getInflight() + ", limit " + limiter.getLimit());
    }
}
JAVA
javac -nowarn -cp 'lib/*' Probe.java 2>/dev/null
cat >expected <<'TEXT'
batch alone: 10
then live: 5
then bulk: 2
then a name without a partition: 0
in flight: 17, limit 10
TEXT
java -cp 'lib/*:.' Probe 2>/dev/null | tee seen
diff expected seen
