import com.alibaba.csp.sentinel.cluster.TokenResult;
import com.alibaba.csp.sentinel.cluster.client.DefaultClusterTokenClient;
import com.alibaba.csp.sentinel.cluster.client.config.ClusterClientAssignConfig;
import com.alibaba.csp.sentinel.cluster.client.config.ClusterClientConfig;
import com.alibaba.csp.sentinel.cluster.client.config.ClusterClientConfigManager;
import com.alibaba.csp.sentinel.init.InitExecutor;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;

/**
 * Sentinel's own client: {@code Client PORT THREADS REQUESTS TIMEOUT_MS ID [VALUE...]} asks a token server on this machine for one token
 * at a time. Each thread makes REQUESTS. Prints how many answers had which status, and the milliseconds that it took.
 */
public final class Client {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        // Registers the codecs.
        InitExecutor.doInit();
        int port = Integer.parseInt(arguments[0]);
        int threads = Integer.parseInt(arguments[1]);
        int requests = Integer.parseInt(arguments[2]);
        long id = Long.parseLong(arguments[4]);
        Object[] values = Arrays.copyOfRange(arguments, 5, arguments.length);
        ClusterClientConfigManager.applyNewConfig(
                new ClusterClientConfig().setRequestTimeout(Integer.parseInt(arguments[3])));
        ClusterClientConfigManager.applyNewAssignConfig(
                new ClusterClientAssignConfig().setServerHost("127.0.0.1").setServerPort(port));
        DefaultClusterTokenClient client = new DefaultClusterTokenClient();
        client.start();
        // It connects in the background. Rule 999999 does not exist: an answer says that the connection is there.
        for (int tries = 0; client.requestToken(999_999L, 1, false).getStatus() != 3; tries++) {
            if (tries == 500) {
                System.err.println("no connection to the token server");
                System.exit(1);
            }
            Thread.sleep(20);
        }
        Map<Integer, LongAdder> statuses = new ConcurrentHashMap<>();
        CountDownLatch done = new CountDownLatch(threads);
        long begin = System.nanoTime();
        for (int thread = 0; thread < threads; thread++) {
            new Thread(() -> {
                for (int request = 0; request < requests; request++) {
                    TokenResult result = values.length == 0
                            ? client.requestToken(id, 1, false)
                            : client.requestParamToken(id, 1, Arrays.asList(values));
                    statuses.computeIfAbsent(result.getStatus(), status -> new LongAdder()).increment();
                }
                done.countDown();
            }).start();
        }
        done.await();
        long took = (System.nanoTime() - begin) / 1_000_000;
        new TreeMap<>(statuses).forEach((status, count) -> out.println(status + " " + count));
        out.println("ms " + took);
        out.flush();
        System.exit(0);
    }
}
