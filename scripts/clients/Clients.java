// The clients for Java. A line of JSON for each; `restart` asks for a restart of the server.

import io.lettuce.core.RedisClient;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ArrayOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.Collectors;
import redis.clients.jedis.commands.ProtocolCommand;

public class Clients {
    static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));
    static int port;

    static void restart() throws Exception {
        System.out.println("restart");
        INPUT.readLine();
    }

    /** The last number of ACQUIRE is a time. */
    static Object cut(Object reply) {
        if (!(reply instanceof List<?> parts)) return reply;
        if (parts.size() == 5 && Long.valueOf(100).equals(parts.get(1))) return parts.subList(0, 4);
        return parts.stream().map(Clients::cut).toList();
    }

    static void report(String client, Map<String, Object> found) {
        var text = found.entrySet().stream().map(each -> {
            var value = cut(each.getValue());
            return "\"" + each.getKey() + "\": " + (value instanceof List<?> ? value : "\"" + value + "\"");
        });
        System.out.println("{\"client\": \"" + client + "\", " + text.collect(Collectors.joining(", ")) + "}");
    }

    /** Asks until the connection is back. */
    static Object patient(Callable<Object> ask) throws Exception {
        Exception last = null;
        for (int at = 0; at < 50; at++) {
            try {
                return ask.call();
            } catch (Exception error) {
                last = error;
                Thread.sleep(200);
            }
        }
        throw last;
    }

    /** What a cluster's client does: `works`, `error`, or `waits` if neither comes within ten seconds. */
    static String inClusterMode(Callable<Object> ask) throws Exception {
        var asked = new FutureTask<>(ask);
        var thread = new Thread(asked);
        thread.setDaemon(true);
        thread.start();
        try {
            var reply = cut(asked.get(10, TimeUnit.SECONDS));
            return reply.equals(List.of(0L, 100L, 99L, -1L)) ? "works" : "answers wrongly";
        } catch (TimeoutException late) {
            return "waits";
        } catch (ExecutionException refused) {
            return "error";
        }
    }

    static void ofJedis() throws Exception {
        ProtocolCommand acquire = () -> "ACQUIRE".getBytes(StandardCharsets.US_ASCII);
        ProtocolCommand throttle = () -> "CL.THROTTLE".getBytes(StandardCharsets.US_ASCII);
        ProtocolCommand unknown = () -> "NOSUCH".getBytes(StandardCharsets.US_ASCII);
        ProtocolCommand peek = () -> "PEEK".getBytes(StandardCharsets.US_ASCII);
        var found = new LinkedHashMap<String, Object>();
        try (var client = redis.clients.jedis.RedisClient.create("127.0.0.1", port)) {
            found.put("acquire", client.sendCommand(acquire, "per-user", "jedis-one"));
            found.put("cl.throttle", client.sendCommand(throttle, "jedis", "2", "30", "60"));
            try (var pipeline = client.pipelined()) {
                for (int at = 0; at < 2; at++) pipeline.sendCommand(acquire, "per-user", "jedis-pipeline");
                found.put("pipeline", pipeline.syncAndReturnAll());
            }
            try (var transaction = client.multi()) {
                for (int at = 0; at < 2; at++) transaction.sendCommand(acquire, "per-user", "jedis-transaction");
                found.put("transaction", transaction.exec());
            }
            try (var transaction = client.multi()) {
                transaction.sendCommand(acquire, "per-user", "jedis-refused");
                transaction.sendCommand(unknown, "key");
                transaction.exec();
                found.put("refused transaction", "ran");
            } catch (Exception refused) {
                var left = (List<?>) client.sendCommand(peek, "per-user", "jedis-refused", "0");
                found.put("refused transaction", left.get(2).equals(100L) ? "nothing taken" : left);
            }
            restart();
            found.put("after a restart", patient(() -> client.sendCommand(acquire, "per-user", "jedis-after")));
        }
        var node = Set.of(new redis.clients.jedis.HostAndPort("127.0.0.1", port));
        found.put("cluster mode by mistake", inClusterMode(() ->
                redis.clients.jedis.RedisClusterClient.create(node).sendCommand(acquire, "per-user", "jedis-cluster")));
        report("jedis (Java)", found);
    }

    static CommandArgs<String, String> words(String... words) {
        return new CommandArgs<>(StringCodec.UTF8).addValues(words);
    }

    static ProtocolKeyword named(String name) {
        return new ProtocolKeyword() {
            public byte[] getBytes() {
                return name.getBytes(StandardCharsets.US_ASCII);
            }

            public String toString() {
                return name;
            }
        };
    }

    static ArrayOutput<String, String> array() {
        return new ArrayOutput<>(StringCodec.UTF8);
    }

    static void ofLettuce() throws Exception {
        var acquire = named("ACQUIRE");
        var found = new LinkedHashMap<String, Object>();
        var client = RedisClient.create("redis://127.0.0.1:" + port);
        StatefulRedisConnection<String, String> connection = client.connect();
        var sync = connection.sync();
        found.put("acquire", sync.dispatch(acquire, array(), words("per-user", "lettuce-one")));
        found.put("cl.throttle", sync.dispatch(named("CL.THROTTLE"), array(), words("lettuce", "2", "30", "60")));
        var async = connection.async();
        connection.setAutoFlushCommands(false);
        var asked = new ArrayList<io.lettuce.core.RedisFuture<List<Object>>>();
        for (int at = 0; at < 2; at++) asked.add(async.dispatch(acquire, array(), words("per-user", "lettuce-pipeline")));
        connection.flushCommands();
        connection.setAutoFlushCommands(true);
        var replies = new ArrayList<Object>();
        for (var one : asked) replies.add(one.get(30, TimeUnit.SECONDS));
        found.put("pipeline", replies);
        async.multi();
        for (int at = 0; at < 2; at++) async.dispatch(acquire, array(), words("per-user", "lettuce-transaction"));
        var ran = async.exec().get(30, TimeUnit.SECONDS);
        found.put("transaction", ran.stream().toList());
        try {
            async.multi();
            async.dispatch(acquire, array(), words("per-user", "lettuce-refused"));
            async.dispatch(named("NOSUCH"), array(), words());
            var result = async.exec().get(30, TimeUnit.SECONDS);
            found.put("refused transaction", "ran " + result);
        } catch (Exception refused) {
            var left = sync.dispatch(named("PEEK"), array(), words("per-user", "lettuce-refused", "0"));
            found.put("refused transaction", left.get(2).equals(100L) ? "nothing taken" : left);
        }
        restart();
        found.put("after a restart", patient(() -> sync.dispatch(acquire, array(), words("per-user", "lettuce-after"))));
        found.put("cluster mode by mistake", inClusterMode(() ->
                io.lettuce.core.cluster.RedisClusterClient.create("redis://127.0.0.1:" + port).connect().sync()
                        .dispatch(acquire, array(), words("per-user", "lettuce-cluster"))));
        report("lettuce-core (Java)", found);
        client.shutdown();
    }

    static org.redisson.client.protocol.RedisCommand<List<Object>> listing(String name) {
        return new org.redisson.client.protocol.RedisCommand<>(name, new org.redisson.client.protocol.decoder.ObjectListReplayDecoder<>());
    }

    static Object sent(org.redisson.command.CommandAsyncExecutor executor, String name, Object... words) throws Exception {
        var codec = org.redisson.client.codec.StringCodec.INSTANCE;
        return executor.writeAsync("", codec, listing(name), words).get(30, TimeUnit.SECONDS);
    }

    /** Redisson has no method for the commands of others, so its own classes send them. */
    static List<?> batch(org.redisson.command.CommandAsyncExecutor executor, boolean atomic, String[]... commands) {
        var mode = atomic ? org.redisson.api.BatchOptions.ExecutionMode.IN_MEMORY_ATOMIC : org.redisson.api.BatchOptions.ExecutionMode.IN_MEMORY;
        var options = org.redisson.api.BatchOptions.defaults().executionMode(mode);
        var batch = new org.redisson.command.CommandBatchService(executor, options);
        var codec = org.redisson.client.codec.StringCodec.INSTANCE;
        for (var command : commands) {
            Object[] words = Arrays.copyOfRange(command, 1, command.length, Object[].class);
            batch.writeAsync("", codec, listing(command[0]), words);
        }
        return batch.execute().getResponses();
    }

    static void ofRedisson() throws Exception {
        var config = new org.redisson.config.Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port);
        var client = org.redisson.Redisson.create(config);
        var executor = ((org.redisson.Redisson) client).getCommandExecutor();
        var found = new LinkedHashMap<String, Object>();
        found.put("acquire", sent(executor, "ACQUIRE", "per-user", "redisson-one"));
        found.put("cl.throttle", sent(executor, "CL.THROTTLE", "redisson", "2", "30", "60"));
        for (var kind : List.of("pipeline", "transaction")) {
            String[] one = {"ACQUIRE", "per-user", "redisson-" + kind};
            found.put(kind, batch(executor, kind.equals("transaction"), one, one));
        }
        try {
            batch(executor, true, new String[] {"ACQUIRE", "per-user", "redisson-refused"}, new String[] {"NOSUCH", "key"});
            found.put("refused transaction", "ran");
        } catch (Exception refused) {
            var left = (List<?>) sent(executor, "PEEK", "per-user", "redisson-refused", "0");
            found.put("refused transaction", left.get(2).equals(100L) ? "nothing taken" : left);
        }
        restart();
        found.put("after a restart", patient(() -> sent(executor, "ACQUIRE", "per-user", "redisson-after")));
        found.put("cluster mode by mistake", inClusterMode(() -> {
            var cluster = new org.redisson.config.Config();
            cluster.useClusterServers().addNodeAddress("redis://127.0.0.1:" + port);
            var asked = ((org.redisson.Redisson) org.redisson.Redisson.create(cluster)).getCommandExecutor();
            return sent(asked, "ACQUIRE", "per-user", "redisson-cluster");
        }));
        report("redisson (Java)", found);
        client.shutdown();
    }

    public static void main(String[] arguments) throws Exception {
        port = Integer.parseInt(arguments[0]);
        ofJedis();
        ofLettuce();
        ofRedisson();
        // A cluster's client may still wait.
        System.exit(0);
    }
}
