// Node's limiters on a shifted clock: peers.mjs RULE reads schedules as JSON, and prints the decisions of each.
import { readFileSync } from "node:fs";
import { MemoryStore } from "express-rate-limit";
import { createRequire } from "node:module";
import flexible from "rate-limiter-flexible";

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

const RULES = {
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
