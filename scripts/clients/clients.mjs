// The clients for Node. A line of JSON for each; `restart` asks for a restart of the server.
import { createInterface } from "node:readline";
import { createClient, createCluster } from "redis";
import Redis from "ioredis";
import Valkey from "iovalkey";
import { Batch, GlideClient, GlideClusterClient } from "@valkey/valkey-glide";

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

// What a cluster's client does: `works`, `error`, or `waits` if neither comes within ten seconds.
const inClusterMode = (ask) =>
  Promise.race([
    ask().then((reply) => (cut(reply).join() === "0,100,99,-1" ? "works" : "answers wrongly"), () => "error"),
    pause(10000).then(() => "waits"),
  ]);

async function check(name, { ask, many, close, cluster }) {
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
  found["cluster mode by mistake"] = await inClusterMode(() => cluster(acquire("cluster")));
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
  cluster: async (command) => {
    const cluster = createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] });
    cluster.on("error", () => {});
    await cluster.connect();
    return cluster.sendCommand(command[1], false, command);
  },
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
    cluster: async ([command, ...args]) => {
      const cluster = new Client.Cluster([{ host: "127.0.0.1", port }]);
      cluster.on("error", () => {});
      return cluster.call(command, ...args);
    },
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
  cluster: async (command) => {
    const cluster = await GlideClusterClient.createClient({ addresses: [{ host: "127.0.0.1", port }] });
    return cluster.customCommand(command);
  },
});
process.exit(0);
