import com.alibaba.csp.sentinel.Entry;
import com.alibaba.csp.sentinel.SphU;
import com.alibaba.csp.sentinel.cluster.ClusterStateManager;
import com.alibaba.csp.sentinel.cluster.TokenResult;
import com.alibaba.csp.sentinel.cluster.client.ClusterTokenClient;
import com.alibaba.csp.sentinel.cluster.client.TokenClientProvider;
import com.alibaba.csp.sentinel.cluster.client.config.ClusterClientAssignConfig;
import com.alibaba.csp.sentinel.cluster.client.config.ClusterClientConfigManager;
import com.alibaba.csp.sentinel.init.InitExecutor;
import com.alibaba.csp.sentinel.slots.block.BlockException;
import com.alibaba.csp.sentinel.slots.block.flow.ClusterFlowConfig;
import com.alibaba.csp.sentinel.slots.block.flow.FlowRule;
import com.alibaba.csp.sentinel.slots.block.flow.FlowRuleManager;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.util.Collections;
import java.util.concurrent.atomic.LongAdder;

/**
 * A program with a cluster rule: {@code Failover PORT THREADS ID LOCAL} enters a resource in each thread, with a pause of a millisecond,
 * until its standard input ends. Without the token server, LOCAL units a second pass. Prints a line each 100 ms, with sums since the start:
 * calls that passed, calls that were blocked, and the token server's answers: OK, BLOCKED, and others.
 */
public final class Failover {
    private static final LongAdder[] SUMS = new LongAdder[5];

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        for (int sum = 0; sum < SUMS.length; sum++) {
            SUMS[sum] = new LongAdder();
        }
        InitExecutor.doInit();
        ClusterStateManager.applyState(ClusterStateManager.CLUSTER_CLIENT);
        ClusterClientConfigManager.applyNewAssignConfig(
                new ClusterClientAssignConfig().setServerHost("127.0.0.1").setServerPort(Integer.parseInt(arguments[0])));
        // Sentinel's own client, whose answers are counted.
        Field place = TokenClientProvider.class.getDeclaredField("client");
        place.setAccessible(true);
        ClusterTokenClient client = (ClusterTokenClient) place.get(null);
        place.set(null, Proxy.newProxyInstance(
                Failover.class.getClassLoader(), new Class<?>[] {ClusterTokenClient.class}, (self, method, values) -> {
                    Object answer = method.invoke(client, values);
                    if (answer instanceof TokenResult) {
                        int status = ((TokenResult) answer).getStatus();
                        SUMS[status == 0 ? 2 : status == 1 ? 3 : 4].increment();
                    }
                    return answer;
                }));
        FlowRule rule = new FlowRule("pay");
        rule.setCount(Double.parseDouble(arguments[3])).setClusterMode(true);
        rule.setClusterConfig(
                new ClusterFlowConfig().setFlowId(Long.parseLong(arguments[2])).setThresholdType(1)
                        .setFallbackToLocalWhenFail(true));
        FlowRuleManager.loadRules(Collections.singletonList(rule));
        for (int thread = 0; thread < Integer.parseInt(arguments[1]); thread++) {
            Thread calls = new Thread(() -> {
                while (true) {
                    try (Entry entry = SphU.entry("pay")) {
                        SUMS[0].increment();
                    } catch (BlockException blocked) {
                        SUMS[1].increment();
                    }
                    try {
                        Thread.sleep(1);
                    } catch (InterruptedException ended) {
                        return;
                    }
                }
            });
            calls.setDaemon(true);
            calls.start();
        }
        while (System.in.available() == 0) {
            Thread.sleep(100);
            StringBuilder line = new StringBuilder();
            for (LongAdder sum : SUMS) {
                line.append(sum.sum()).append(' ');
            }
            out.println(line.toString().trim());
            out.flush();
        }
        System.exit(0);
    }
}
