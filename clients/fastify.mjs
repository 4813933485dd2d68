// Limits the requests of Fastify by a Tidegate server:
//
// app.addHook("onRequest", tidegate({ limit: "per-user", key: (request) => request.ip }));
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

export function tidegate({ limit, key, server = "http://127.0.0.1:8080", timeout = 100, failOpen = true, token }) {
  const headers = { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) };
  return async (request, reply) => {
    let told, status, wait;
    try {
      const body = JSON.stringify({ limit, key: key(request), id: randomUUID() });
      const signal = AbortSignal.timeout(timeout);
      const ask = () => fetch(`${server}/v1/acquire`, { method: "POST", headers, body, signal });
      // An answer can be lost with its connection. With the same id the request is counted once.
      const answer = await ask().catch((lost) => (signal.aborted ? Promise.reject(lost) : ask()));
      status = answer.status;
      // The server's field has no time that clients misread.
      wait = answer.headers.get("retry-after");
      told = await answer.json();
      if (![200, 429].includes(status)) throw new Error(told.detail);
    } catch (error) {
      // A limit's name, the token or a right is wrong: the text says what to do.
      if (status >= 400 && status < 500 && status !== 429) throw error;
      request.log.warn(`tidegate: no decision: ${error.message}`);
      return failOpen ? undefined : reply.code(503).send({ reason: "no decision" });
    }
    if (!told.allowed) {
      if (wait != null) reply.header("Retry-After", wait);
      return reply.code(429).send({ reason: told.reason });
    }
    if (told.delay_ms) await sleep(told.delay_ms);
  };
}
