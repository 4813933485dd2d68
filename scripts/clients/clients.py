"""The clients for Python. A line of JSON for each; `restart` asks for a restart of the server."""
import asyncio
import json
import os
import sys
import threading

PORT = int(sys.argv[1])
ACQUIRE = ("ACQUIRE", "per-user")


def restart():
    print("restart", flush=True)
    sys.stdin.readline()


def report(client, **found):
    # The last number of ACQUIRE is a time.
    cut = lambda reply: reply[:4] if isinstance(reply, list) and len(reply) == 5 and reply[1] == 100 else reply
    whole = lambda value: [cut(part) for part in value] if isinstance(value, list) and value and isinstance(value[0], list) else cut(value)
    found["cluster mode by mistake"] = in_cluster_mode(CLUSTERS[client.split()[0]])
    print(json.dumps({"client": client, **{name: whole(value) for name, value in found.items()}}), flush=True)


def patient(ask):
    """Asks until the connection is back; each client says what it does with the first command itself."""
    for _ in range(5):
        try:
            return ask()
        except Exception as error:
            last = error
    raise last


def like_redis(module, name):
    client = module.Redis(port=PORT)
    found = {
        "acquire": client.execute_command(*ACQUIRE, f"{name}-one"),
        "cl.throttle": client.execute_command("CL.THROTTLE", name, 2, 30, 60),
    }
    for kind, transaction in (("pipeline", False), ("transaction", True)):
        pipe = client.pipeline(transaction=transaction)
        pipe.execute_command(*ACQUIRE, f"{name}-{kind}")
        pipe.execute_command(*ACQUIRE, f"{name}-{kind}")
        found[kind] = pipe.execute()
    pipe = client.pipeline()
    pipe.execute_command(*ACQUIRE, f"{name}-refused")
    pipe.execute_command("NOSUCH")
    try:
        pipe.execute()
        found["refused transaction"] = "ran"
    except module.ResponseError:
        left = client.execute_command("PEEK", "per-user", f"{name}-refused", 0)
        found["refused transaction"] = "nothing taken" if left[2] == 100 else left
    restart()
    found["after a restart"] = patient(lambda: client.execute_command(*ACQUIRE, f"{name}-after"))
    report(f"{name} (Python)", **found)


async def of_coredis():
    import coredis

    raw = lambda reply, **_: reply
    client = coredis.Redis(port=PORT, decode_responses=True)
    async with client:
        ask = lambda *command: client.create_request(command[0].encode(), *command[1:], callback=raw)

        async def many(transaction, *commands):
            pipe = client.pipeline(transaction=transaction)
            async with pipe as pipe:
                asked = [pipe.create_request(name.encode(), *args, callback=raw) for name, *args in commands]
            return [await one for one in asked]

        found = {"acquire": await ask(*ACQUIRE, "coredis-one"), "cl.throttle": await ask("CL.THROTTLE", "coredis", 2, 30, 60)}
        for kind, transaction in (("pipeline", False), ("transaction", True)):
            found[kind] = await many(transaction, *[(*ACQUIRE, f"coredis-{kind}")] * 2)
        try:
            await many(True, (*ACQUIRE, "coredis-refused"), ("NOSUCH",))
            found["refused transaction"] = "ran"
        except coredis.exceptions.RedisError:
            left = await ask("PEEK", "per-user", "coredis-refused", 0)
            found["refused transaction"] = "nothing taken" if left[2] == 100 else left
        restart()
        for _ in range(50):
            try:
                found["after a restart"] = await ask(*ACQUIRE, "coredis-after")
                break
            except Exception:
                await asyncio.sleep(0.2)
        report("coredis (Python)", **found)


async def of_glide():
    from glide import Batch, GlideClient, GlideClientConfiguration, NodeAddress, RequestError

    client = await GlideClient.create(GlideClientConfiguration([NodeAddress("127.0.0.1", PORT)]))
    ask = lambda *command: client.custom_command([str(part) for part in command])
    found = {"acquire": await ask(*ACQUIRE, "glide-one"), "cl.throttle": await ask("CL.THROTTLE", "glide", 2, 30, 60)}
    for kind, atomic in (("pipeline", False), ("transaction", True)):
        batch = Batch(is_atomic=atomic)
        for _ in range(2):
            batch.custom_command([*ACQUIRE, f"glide-{kind}"])
        found[kind] = await client.exec(batch, raise_on_error=True)
    batch = Batch(is_atomic=True)
    batch.custom_command([*ACQUIRE, "glide-refused"])
    batch.custom_command(["NOSUCH"])
    try:
        await client.exec(batch, raise_on_error=True)
        found["refused transaction"] = "ran"
    except RequestError:
        left = await ask("PEEK", "per-user", "glide-refused", 0)
        found["refused transaction"] = "nothing taken" if left[2] == 100 else left
    restart()
    for _ in range(50):
        try:
            found["after a restart"] = await ask(*ACQUIRE, "glide-after")
            break
        except Exception:
            await asyncio.sleep(0.2)
    report("valkey-glide (Python)", **found)
    await client.close()


def in_cluster_mode(ask):
    """What a cluster's client does: `works`, `error`, or `waits` if neither comes within ten seconds."""
    found = []

    def run():
        try:
            found.append("works" if ask()[:4] == [0, 100, 99, -1] else "answers wrongly")
        except Exception:
            found.append("error")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    return found[0] if found else "waits"


async def coredis_cluster():
    import coredis

    async with coredis.RedisCluster("127.0.0.1", PORT) as client:
        return await client.create_request(b"ACQUIRE", "per-user", "coredis-cluster", callback=lambda reply, **_: reply)


async def glide_cluster():
    from glide import GlideClusterClient, GlideClusterClientConfiguration, NodeAddress

    client = await GlideClusterClient.create(GlideClusterClientConfiguration([NodeAddress("127.0.0.1", PORT)]))
    return await client.custom_command([*ACQUIRE, "glide-cluster"])


import redis
import valkey

CLUSTERS = {
    "redis": lambda: redis.RedisCluster("127.0.0.1", PORT).execute_command(*ACQUIRE, "redis-cluster"),
    "valkey": lambda: valkey.ValkeyCluster("127.0.0.1", PORT).execute_command(*ACQUIRE, "valkey-cluster"),
    "coredis": lambda: asyncio.run(coredis_cluster()),
    "valkey-glide": lambda: asyncio.run(glide_cluster()),
}

like_redis(redis, "redis")
like_redis(valkey, "valkey")
asyncio.run(of_coredis())
asyncio.run(of_glide())
sys.stdout.flush()
# A cluster's client may still wait.
os._exit(0)
