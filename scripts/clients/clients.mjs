// The clients for Node. A line of JSON for each; `restart` asks for a restart of the server.
import { createInterface } from "node:readline";
import { createClient, ErrorReply } from "redis";
import Redis from "ioredis";
import Valkey from "iovalkey";
import { Batch, GlideClient } from "@valkey/valkey-glide";

const port = Number(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const restart = async () => {
  console.log("restart");
  await lines.next();
};
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// The last number of ACQUIRE is a time.
const cut = (reply) => (Array.isArray(reply) && reply.length === 5 && reply[1] === 100 ? reply.slice(0, 4) : reply);
const report = (client, found) => {
  for (const [name, value] of Object.entries(found)) {
    found[name] = Array.isArray(value) && Array.isArray(value[0]) ? value.map(cut) : cut(value);
  }
  console.log(JSON.stringify({ client, ...found }));
};

async function check(name, { ask, many, close }) {
  const acquire = (key) => ["ACQUIRE", "per-user", `${name}-${key}`];
  const found = {
    acquire: await ask(acquire("one")),
    "cl.throttle": await ask(["CL.THROTTLE", name, "2", "30", "60"]),
    pipeline: await many(false, [acquire("pipeline"), acquire("pipeline")]),
    transaction: await many(true, [acquire("transaction"), acquire("transaction")]),
  };
  try {
    await many(true, [acquire("refused"), ["NOSUCH"]]);
    found["refused transaction"] = "ran";
  } catch {
    const left = await ask(["PEEK", "per-user", `${name}-refused`, "0"]);
    found["refused transaction"] = left[2] === 100 ? "nothing taken" : left;
  }
  await restart();
  for (let tries = 0; tries < 50 && !found["after a restart"]; tries += 1) {
    found["after a restart"] = await ask(acquire("after")).catch(() => pause(200));
  }
  report(`${name} (Node)`, found);
  await close();
}

const node = createClient({ url: `redis://127.0.0.1:${port}` });
node.on("error", () => {});
await node.connect();
await check("redis", {
  ask: (command) => node.sendCommand(command),
  many: async (atomic, commands) => {
    const batch = node.multi();
    commands.forEach((command) => batch.addCommand(command));
    return atomic ? batch.exec() : batch.execAsPipeline();
  },
  close: () => node.destroy(),
});

for (const [name, Client] of [["ioredis", Redis], ["iovalkey", Valkey]]) {
  const client = new Client(port);
  client.on("error", () => {});
  await check(name, {
    ask: ([command, ...args]) => client.call(command, ...args),
    many: async (atomic, commands) => {
      const batch = atomic ? client.multi() : client.pipeline();
      commands.forEach(([command, ...args]) => batch.call(command, ...args));
      const replies = await batch.exec();
      const failed = replies.find(([error]) => error);
      if (failed) throw failed[0];
      return replies.map(([, reply]) => reply);
    },
    close: () => client.disconnect(),
  });
}

const glide = await GlideClient.createClient({ addresses: [{ host: "127.0.0.1", port }] });
await check("@valkey/valkey-glide", {
  ask: (command) => glide.customCommand(command),
  many: async (atomic, commands) => {
    const batch = new Batch(atomic);
    commands.forEach((command) => batch.customCommand(command));
    return glide.exec(batch, true);
  },
  close: () => glide.close(),
});
process.exit(0);
