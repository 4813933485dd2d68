package com.google.common.util.concurrent;

import peer.TimeOfTests;

/** Guava's limiter on a given clock: the stopwatch can be chosen only within its package. */
public final class ManualLimiter {
    private ManualLimiter() {}

    public static RateLimiter create(double perSecond) {
        return RateLimiter.create(perSecond, new RateLimiter.SleepingStopwatch() {
            @Override
            protected long readMicros() {
                return TimeOfTests.milliseconds * 1_000;
            }

            @Override
            protected void sleepMicrosUninterruptibly(long micros) {}
        });
    }
}
