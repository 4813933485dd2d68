"""Python's limiters on a shifted clock: peers.py RULE reads schedules as JSON, and prints the decisions of each."""
import json
import sys
import time

now = [0.0]
time.time = time.monotonic = time.perf_counter = lambda: now[0]
time.time_ns = time.monotonic_ns = lambda: round(now[0] * 1e9)


def limits(strategy):
    from limits import parse
    from limits.storage import MemoryStorage
    from limits import strategies
    limit = parse("10/second")

    def fresh():
        limiter = getattr(strategies, strategy)(MemoryStorage())
        return lambda cost: limiter.hit(limit, "key", cost=cost)
    return fresh


def pyrate():
    from pyrate_limiter import InMemoryBucket, Rate, RateItem
    bucket = InMemoryBucket([Rate(10, 1000)])
    return lambda cost: bool(bucket.put(RateItem("key", round(now[0] * 1000), weight=cost)))


def throttled(using):
    from throttled import Throttled, per_sec, store

    def fresh():
        throttle = Throttled(using=using, quota=per_sec(10), store=store.MemoryStore())
        return lambda cost: not throttle.limit("key", cost=cost).limited
    return fresh


def ratelimit():
    from ratelimit import RateLimitException, limits

    @limits(calls=10, period=1, clock=lambda: now[0])
    def call():
        return True

    def ask(_):
        try:
            return call()
        except RateLimitException:
            return False
    return ask


def drf():
    from django.conf import settings
    if not settings.configured:
        settings.configure()
    from django.core.cache import cache
    from rest_framework.throttling import SimpleRateThrottle

    class Throttle(SimpleRateThrottle):
        rate = "10/s"
        timer = staticmethod(lambda: now[0])

        def get_cache_key(self, request, view):
            return "key"

    cache.clear()
    return lambda _: Throttle().allow_request(None, None)


def django_ratelimit():
    from django.conf import settings
    if not settings.configured:
        settings.configure()
    from django.core.cache import cache
    from django.test import RequestFactory
    from django_ratelimit.core import is_ratelimited
    request = RequestFactory().get("/")
    cache.clear()
    return lambda _: not is_ratelimited(request, group="group", key=lambda *_: "key", rate="10/s", increment=True)


def aiolimiter():
    import asyncio
    from aiolimiter import AsyncLimiter
    loop = asyncio.new_event_loop()
    limiter = AsyncLimiter(10, 1)

    async def ask(cost):
        # `has_capacity` leaks, and `acquire` then takes without waiting.
        if cost > 10 or not limiter.has_capacity(cost):
            return False
        await limiter.acquire(cost)
        return True
    return lambda cost: loop.run_until_complete(ask(cost))


def token_bucket():
    from token_bucket import Limiter, MemoryStorage
    limiter = Limiter(10, 20, MemoryStorage())
    return lambda cost: limiter.consume("key", cost)


RULES = {
    "drf": drf, "django-ratelimit": django_ratelimit, "aiolimiter": aiolimiter, "ratelimit": ratelimit, "token-bucket": token_bucket,
    "limits-fixed": limits("FixedWindowRateLimiter"), "limits-moving": limits("MovingWindowRateLimiter"),
    "limits-sliding": limits("SlidingWindowCounterRateLimiter"), "pyrate": pyrate, "throttled-fixed": throttled("fixed_window"),
    "throttled-gcra": throttled("gcra"), "throttled-token": throttled("token_bucket"),
}

decisions = []
for schedule in json.load(sys.stdin):
    now[0] = schedule[0][0] / 1000
    ask = RULES[sys.argv[1]]()
    made = ""
    for moment, cost in schedule:
        now[0] = moment / 1000
        made += "1" if ask(cost) else "0"
    decisions.append(made)
json.dump(decisions, sys.stdout)
