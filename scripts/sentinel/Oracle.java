import com.alibaba.csp.sentinel.cluster.TokenResult;
import com.alibaba.csp.sentinel.cluster.TokenService;
import com.alibaba.csp.sentinel.cluster.flow.DefaultTokenService;
import com.alibaba.csp.sentinel.cluster.flow.rule.ClusterFlowRuleManager;
import com.alibaba.csp.sentinel.cluster.flow.rule.ClusterParamFlowRuleManager;
import com.alibaba.csp.sentinel.cluster.server.connection.ConnectionManager;
import com.alibaba.csp.sentinel.slots.block.flow.ClusterFlowConfig;
import com.alibaba.csp.sentinel.slots.block.flow.FlowRule;
import com.alibaba.csp.sentinel.slots.block.flow.param.ParamFlowClusterConfig;
import com.alibaba.csp.sentinel.slots.block.flow.param.ParamFlowItem;
import com.alibaba.csp.sentinel.slots.block.flow.param.ParamFlowRule;
import com.alibaba.csp.sentinel.util.TimeUtil;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Sentinel's own decisions about tokens, at the times that the standard input names. Each line is a step:
 *
 * <pre>
 * flow ID COUNT TYPE SAMPLES MS    adds a rule; TYPE is thresholdType
 * param ID COUNT TYPE [VALUE=COUNT]...
 * connect                          another connection
 * at MS                            the time
 * ask ID COUNT PRIORITIZED         prints: status remaining wait
 * values ID COUNT VALUE...         the same; #7 is a number, and 7 a text
 * </pre>
 */
public final class Oracle {
    private static final String NAMESPACE = "shop";

    public static void main(String[] arguments) throws Exception {
        // Sentinel logs to the standard output as well.
        PrintStream out = System.out;
        System.setOut(System.err);
        TokenService service = new DefaultTokenService();
        List<FlowRule> flow = new ArrayList<>();
        List<ParamFlowRule> param = new ArrayList<>();
        ClusterFlowRuleManager.registerPropertyIfAbsent(NAMESPACE);
        ClusterParamFlowRuleManager.registerPropertyIfAbsent(NAMESPACE);
        int connections = 0;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        StringBuilder answers = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "flow": {
                    FlowRule rule = new FlowRule("flow-" + words[1]);
                    rule.setCount(Double.parseDouble(words[2])).setClusterMode(true);
                    rule.setClusterConfig(
                            new ClusterFlowConfig()
                                    .setFlowId(Long.parseLong(words[1]))
                                    .setThresholdType(Integer.parseInt(words[3]))
                                    .setSampleCount(Integer.parseInt(words[4]))
                                    .setWindowIntervalMs(Integer.parseInt(words[5])));
                    flow.add(rule);
                    ClusterFlowRuleManager.loadRules(NAMESPACE, new ArrayList<>(flow));
                    break;
                }
                case "param": {
                    ParamFlowRule rule = new ParamFlowRule("param-" + words[1]).setParamIdx(0);
                    rule.setCount(Double.parseDouble(words[2])).setClusterMode(true);
                    List<ParamFlowItem> items = new ArrayList<>();
                    for (String item : Arrays.copyOfRange(words, 4, words.length)) {
                        String[] parts = item.split("=");
                        items.add(ParamFlowItem.newItem(parts[0], Integer.parseInt(parts[1])));
                    }
                    rule.setParamFlowItemList(items);
                    rule.setClusterConfig(
                            new ParamFlowClusterConfig()
                                    .setFlowId(Long.parseLong(words[1]))
                                    .setThresholdType(Integer.parseInt(words[3])));
                    param.add(rule);
                    ClusterParamFlowRuleManager.loadRules(NAMESPACE, new ArrayList<>(param));
                    break;
                }
                case "connect":
                    ConnectionManager.addConnection(NAMESPACE, "client-" + connections++);
                    break;
                case "at":
                    TimeUtil.now = Long.parseLong(words[1]);
                    break;
                case "ask":
                    boolean first = Boolean.parseBoolean(words[3]);
                    print(answers, service.requestToken(Long.valueOf(words[1]), Integer.parseInt(words[2]), first));
                    break;
                case "values": {
                    List<Object> values = new ArrayList<>();
                    for (String value : Arrays.copyOfRange(words, 3, words.length)) {
                        values.add(value.startsWith("#") ? (Object) Integer.valueOf(value.substring(1)) : value);
                    }
                    int count = Integer.parseInt(words[2]);
                    print(answers, service.requestParamToken(Long.valueOf(words[1]), count, values));
                    break;
                }
                default:
                    throw new IllegalArgumentException(line);
            }
        }
        out.print(answers);
        out.flush();
        System.exit(0);
    }

    private static void print(StringBuilder answers, TokenResult result) {
        answers.append(result.getStatus()).append(' ').append(result.getRemaining());
        answers.append(' ').append(result.getWaitInMs()).append('\n');
    }
}
