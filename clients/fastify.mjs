// Limits the requests of Fastify by a Tidegate server:
//
// app.addHook("onRequest", tidegate({ limit: "per-user", key: (request) => request.ip }));
//
// Only responses that `counts` accepts count, such as failed logins: counts: (status) => status === 401
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

export function tidegate({ limit, key, server = "http://127.0.0.1:8080", timeout = 100, failOpen = true, token, counts }) {
  const headers = { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) };
  // An answer can be lost with its connection. With the same id the request is counted once.
  const post = (path, question) => {
    const signal = AbortSignal.timeout(timeout);
    const ask = () => fetch(`${server}${path}`, { method: "POST", headers, body: JSON.stringify(question), signal });
    return ask().catch((lost) => (signal.aborted ? Promise.reject(lost) : ask()));
  };
  const giveBack = async (id) => {
    const answer = await post("/v1/cancel", { id });
    if (!answer.ok) throw new Error(await answer.text());
  };
  return async (request, reply) => {
    let told, status, wait;
    try {
      const question = { limit, key: key(request), id: randomUUID() };
      // A reservation counts at once, so requests that run at the same time do not exceed the limit.
      const answer = await post(counts ? "/v1/reserve" : "/v1/acquire", question);
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
    if (counts && told.id) {
      reply.raw.once("close", () => {
        if (counts(reply.raw.statusCode)) return;
        giveBack(told.id).catch((error) => request.log.warn(`tidegate: the request stays counted: ${error.message}`));
      });
    }
    if (told.delay_ms) await sleep(told.delay_ms);
  };
}
