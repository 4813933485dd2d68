import com.alibaba.csp.sentinel.cluster.flow.rule.ClusterFlowRuleManager;
import com.alibaba.csp.sentinel.cluster.server.ClusterTokenServer;
import com.alibaba.csp.sentinel.cluster.server.SentinelDefaultTokenServer;
import com.alibaba.csp.sentinel.cluster.server.config.ClusterServerConfigManager;
import com.alibaba.csp.sentinel.cluster.server.config.ServerFlowConfig;
import com.alibaba.csp.sentinel.cluster.server.config.ServerTransportConfig;
import com.alibaba.csp.sentinel.slots.block.flow.ClusterFlowConfig;
import com.alibaba.csp.sentinel.slots.block.flow.FlowRule;
import com.alibaba.csp.sentinel.init.InitExecutor;
import java.util.Collections;

/** Sentinel's own token server: {@code TokenServer PORT ID COUNT} has one rule for all programs together, until it is killed. */
public final class TokenServer {
    public static void main(String[] arguments) throws Exception {
        // Registers the codecs.
        InitExecutor.doInit();
        FlowRule rule = new FlowRule("flow");
        rule.setCount(Double.parseDouble(arguments[2])).setClusterMode(true);
        rule.setClusterConfig(
                new ClusterFlowConfig().setFlowId(Long.parseLong(arguments[1])).setThresholdType(1));
        ClusterFlowRuleManager.registerPropertyIfAbsent("shop");
        ClusterFlowRuleManager.loadRules("shop", Collections.singletonList(rule));
        ClusterServerConfigManager.loadServerNamespaceSet(Collections.singleton("shop"));
        ClusterServerConfigManager.loadGlobalFlowConfig(new ServerFlowConfig().setMaxAllowedQps(10_000_000));
        ClusterServerConfigManager.loadGlobalTransportConfig(
                new ServerTransportConfig().setPort(Integer.parseInt(arguments[0])).setIdleSeconds(600));
        ClusterTokenServer server = new SentinelDefaultTokenServer();
        server.start();
        Thread.currentThread().join();
    }
}
