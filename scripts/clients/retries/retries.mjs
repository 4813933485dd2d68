// The clients for Node that retry. A line of JSON for each.
import Anthropic from "@anthropic-ai/sdk";
import * as grpc from "@grpc/grpc-js";
import axios from "axios";
import axiosRetry from "axios-retry";
import got from "got";
import ky from "ky";
import OpenAI from "openai";
import { Agent, interceptors, request } from "undici";

const port = Number(process.argv[2]);
const here = `http://127.0.0.1:${port}`;
const count = async (key) => Number(await (await fetch(`${here}/counts/${key}`)).text());

// `ask(key)` says whether the service admitted it, after the client's own retries.
async function check(client, ask) {
  const name = `node-${client.replace(/\W/g, "-")}`;
  const admitted = async (key) => ask(key).then((answer) => answer !== false, () => false);
  const found = [await admitted(name), await admitted(name), await admitted(`${name}-hopeless`)];
  const right = found.join() === "true,true,false";
  // The first request was admitted at once.
  const retried = right ? (await count(name)) - 1 : `admitted: ${found}`;
  console.log(JSON.stringify({ client: `${client} (Node)`, retried, hopeless: await count(`${name}-hopeless`) }));
}

await check("got", (key) => got(`${here}/plain/${key}`));
await check("ky", (key) => ky(`${here}/plain/${key}`, { timeout: 60000 }));

const retrying = axios.create();
axiosRetry(retrying);
await check("axios-retry", (key) => retrying.get(`${here}/plain/${key}`));

const agent = new Agent().compose(interceptors.retry());
await check("undici", async (key) => {
  const { statusCode, body } = await request(`${here}/plain/${key}`, { dispatcher: agent });
  await body.dump();
  return statusCode === 200;
});

const messages = [{ role: "user", content: "hello" }];
await check("openai", (key) =>
  new OpenAI({ apiKey: "any", baseURL: `${here}/openai/${key}` }).chat.completions.create({ model: "any", messages }),
);
await check("@anthropic-ai/sdk", (key) =>
  new Anthropic({ apiKey: "any", baseURL: `${here}/anthropic/${key}` }).messages.create({ model: "any", max_tokens: 9, messages }),
);

const policy = {
  maxAttempts: 4,
  initialBackoff: "0.05s",
  maxBackoff: "0.05s",
  backoffMultiplier: 1,
  retryableStatusCodes: ["RESOURCE_EXHAUSTED"],
};
const health = new grpc.Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure(), {
  "grpc.service_config": JSON.stringify({ methodConfig: [{ name: [{}], retryPolicy: policy }] }),
});
const bytes = (value) => value;
await check("@grpc/grpc-js", (key) => {
  const metadata = new grpc.Metadata();
  metadata.set("x-key", key);
  return new Promise((done, failed) => {
    const answered = (error, answer) => (error ? failed(error) : done(answer));
    health.makeUnaryRequest("/grpc.health.v1.Health/Check", bytes, bytes, Buffer.alloc(0), metadata, answered);
  });
});
process.exit(0);
