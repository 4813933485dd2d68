// Servers on Node: servers.mjs NAME PORT.
import express from "express";
import fastify from "fastify";
import Koa from "koa";
import koaLogger from "koa-logger";
import morgan from "morgan";
import pino from "pino-http";

const [name, port] = process.argv.slice(2);
const later = (path, answer) => (path === "/slow" ? setTimeout(answer, 5000) : answer());

if (name === "fastify") {
  const app = fastify({ logger: true });
  app.all("/*", (request, reply) => {
    later(request.url, () => reply.send("hello"));
  });
  app.get("/broken", async () => {
    throw new Error("broken");
  });
  app.listen({ port: Number(port), host: "::" });
} else if (name === "koa-logger") {
  const app = new Koa();
  app.use(koaLogger());
  app.use(async (context) => {
    await new Promise((done) => later(context.path, done));
    context.body = "hello";
  });
  app.listen(Number(port), "::");
} else {
  const app = express();
  const format = name.replace("morgan-", "");
  app.use(name === "pino-http" ? pino() : morgan(format));
  app.use((request, response) => later(request.path, () => response.send("hello")));
  app.listen(Number(port), "::");
}
