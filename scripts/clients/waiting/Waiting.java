// The clients for Java. A line of JSON for each step, which the test answers with a line.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisException;

public class Waiting {
    static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));
    static final ProtocolCommand ACQUIRE = () -> "ACQUIRE".getBytes(StandardCharsets.US_ASCII);
    static final ProtocolCommand PEEK = () -> "PEEK".getBytes(StandardCharsets.US_ASCII);
    static final String[] ASK = {"jobs", "x", "1", "WAIT", "60000", "PRIORITY", "7"};

    static String step(String name, String told) throws Exception {
        System.out.println("{\"step\": \"" + name + "\"" + told + "}");
        return INPUT.readLine();
    }

    static RedisClient connect(int port, int millis) {
        var config = DefaultJedisClientConfig.builder().socketTimeoutMillis(millis).build();
        return RedisClient.builder().hostAndPort("127.0.0.1", port).clientConfig(config).build();
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        step("hold", "");
        String error, place, next;
        try (var client = connect(port, 500)) {
            try {
                error = "got " + client.sendCommand(ACQUIRE, ASK);
            } catch (JedisException raised) {
                error = "`" + raised.getClass().getSimpleName() + "`";
            }
            place = step("failed", "").equals("free") ? "at once" : "no";
            var peeked = (List<?>) client.sendCommand(PEEK, "jobs", "x");
            next = peeked.subList(0, 3).equals(List.of(1L, 1L, 0L)) ? "yes" : "no";
        }
        step("return", "");
        step("hold", "");
        try (var client = connect(port, 30_000)) {
            step("wait", "");
            var waited = client.sendCommand(ACQUIRE, ASK);
            var row = ", \"client\": \"jedis (Java)\", \"options\": \"socketTimeoutMillis(500)\", \"error\": \"%s\", \"place\": \"%s\", \"next\": \"%s\", \"waited\": %s";
            step("row", row.formatted(error, place, next, waited));
        }
    }
}
