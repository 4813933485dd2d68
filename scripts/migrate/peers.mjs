// Node's limiters on a shifted clock: peers.mjs RULE reads schedules as JSON, and prints the decisions of each.
import { readFileSync } from "node:fs";
import { MemoryStore } from "express-rate-limit";
import { createRequire } from "node:module";
import flexible from "rate-limiter-flexible";
import { Ratelimit } from "@upstash/ratelimit";
import Redis from "ioredis";

const LocalStore = createRequire(import.meta.url)("@fastify/rate-limit/store/LocalStore.js");

let now = 0;
Date.now = () => now;
const RealDate = Date;
globalThis.Date = class extends RealDate {
  constructor(...given) {
    super(...(given.length ? given : [now]));
  }
  static now() {
    return now;
  }
};

// A Redis server, which `migrate.py` has started, and a different key for each schedule.
const server = () => new Redis(Number(process.env.PEERS_REDIS));
let keys = 0;

// Upstash's scripts run in Redis without their first line, a flag of Upstash's own servers; the time comes from here.
const upstash = (limiter) => () => {
  const redis = server();
  const client = {
    evalsha: async () => {
      throw new Error("NOSCRIPT");
    },
    eval: (script, keys, args) => redis.eval(script.replace(/^#!lua .*\n/, ""), keys.length, ...keys, ...args),
  };
  const limit = new Ratelimit({ redis: client, limiter, prefix: `${process.argv[2]}-${keys++}`, ephemeralCache: false, timeout: 0 });
  return async (cost) => (await limit.limit("key", { rate: cost })).success;
};

const RULES = {
  "upstash-fixed": upstash(Ratelimit.fixedWindow(10, "1 s")),
  "upstash-sliding": upstash(Ratelimit.slidingWindow(10, "1 s")),
  "upstash-token": upstash(Ratelimit.tokenBucket(10, "1 s", 20)),
  "traefik": () => {
    const redis = server();
    const script = readFileSync(process.env.PEERS_TRAEFIK, "utf8");
    const key = `traefik-${keys++}`;
    // The rate, the burst, the time to live, the time and the longest delay, in microseconds.
    const ask = () => redis.eval(script, 1, key, 10 / 1e6, 10, 2, now * 1000, 50_000);
    return async () => Math.trunc(Number((await ask())[1]) * 1000) <= 50_000_000;
  },
  "spring-gateway": () => {
    const redis = server();
    const script = readFileSync(process.env.PEERS_GATEWAY, "utf8");
    const [tokens, times] = ["tokens", "timestamp"].map((name) => `{gateway-${keys}}.${name}`);
    keys += 1;
    // `replenishRate`, `burstCapacity`; the time that Redis would have, in seconds.
    return async (cost) => (await redis.eval(script, 2, tokens, times, 10, 20, Math.floor(now / 1000), cost))[0] === 1;
  },
  "flexible": () => {
    const limiter = new flexible.RateLimiterMemory({ points: 10, duration: 1 });
    return (cost) => limiter.consume("key", cost).then(() => true, (denied) => {
      if (denied instanceof Error) throw denied;
      return false;
    });
  },
  "flexible-block": () => {
    const limiter = new flexible.RateLimiterMemory({ points: 10, duration: 1, blockDuration: 3 });
    return (cost) => limiter.consume("key", cost).then(() => true, (denied) => {
      if (denied instanceof Error) throw denied;
      return false;
    });
  },
  "fastify": () => {
    const store = new LocalStore(false, false, 100);
    return () => new Promise((done, fail) =>
      store.incr("key", (error, hit) => (error ? fail(error) : done(hit.current <= 10)), 1000, 10));
  },
  "express": () => {
    const store = new MemoryStore();
    store.init({ windowMs: 1000 });
    return async () => (await store.increment("key")).totalHits <= 10;
  },
};

const decisions = [];
for (const schedule of JSON.parse(readFileSync(0, "utf8"))) {
  now = schedule[0][0];
  const ask = RULES[process.argv[2]]();
  let made = "";
  for (const [moment, cost] of schedule) {
    now = moment;
    made += (await ask(cost)) ? "1" : "0";
  }
  decisions.push(made);
}
process.stdout.write(JSON.stringify(decisions), () => process.exit());
