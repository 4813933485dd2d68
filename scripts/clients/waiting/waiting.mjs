// The clients for Node. A line of JSON for each step, which the test answers with a line.
import { createInterface } from "node:readline";
import Redis from "ioredis";

const port = Number(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const ask = ["ACQUIRE", "jobs", "x", "1", "WAIT", "60000", "PRIORITY", "7"];
const step = async (name, told = {}) => {
  console.log(JSON.stringify({ step: name, ...told }));
  return (await lines.next()).value;
};
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const connect = (options) => new Redis({ port, ...options }).on("error", () => {});

async function check(options, text) {
  await step("hold");
  const client = connect(options);
  const asked = client.call(...ask).then(
    (reply) => `got ${reply}`,
    (raised) => `\`${raised.name}: ${raised.message.split(". Refer")[0]}\``,
  );
  const endless = "nothing: it asks again without end";
  const error = await Promise.race([asked, pause(10000).then(() => endless)]);
  const asksAgain = error === endless;
  let [place, next] = ["no", "no"];
  if (!asksAgain) {
    if ((await step("failed")) === "free") place = "at once";
    next = await client.call("PEEK", "jobs", "x").then(
      (reply) => (String(reply).startsWith("1,1,0,") ? "yes" : `${reply}`),
      () => "no",
    );
  }
  client.disconnect();
  if (place === "no" && (await step("failed")) === "free") place = "after `disconnect()`";
  await step("return");
  await step("hold");
  const patient = connect(Object.fromEntries(Object.entries(options).map(([name, value]) => [name, value && 30000])));
  await patient.ping();
  await step("wait");
  const waited = await patient.call(...ask);
  patient.disconnect();
  await step("row", { client: "ioredis (Node)", options: text, error, place, next, waited, ...(asksAgain && { sent: "again and again" }) });
}

await check({ commandTimeout: 500 }, "commandTimeout: 500");
await check({ socketTimeout: 500 }, "socketTimeout: 500");
await check({ socketTimeout: 500, maxRetriesPerRequest: 0 }, "socketTimeout: 500, maxRetriesPerRequest: 0");
process.exit(0);
