import clock.Sleep;
import com.alibaba.csp.sentinel.CtSph;
import com.alibaba.csp.sentinel.Entry;
import com.alibaba.csp.sentinel.EntryType;
import com.alibaba.csp.sentinel.Env;
import com.alibaba.csp.sentinel.Tracer;
import com.alibaba.csp.sentinel.context.ContextUtil;
import com.alibaba.csp.sentinel.init.InitExecutor;
import com.alibaba.csp.sentinel.slots.block.BlockException;
import com.alibaba.csp.sentinel.slots.block.authority.AuthorityRule;
import com.alibaba.csp.sentinel.slots.block.authority.AuthorityRuleManager;
import com.alibaba.csp.sentinel.slots.block.degrade.DegradeRule;
import com.alibaba.csp.sentinel.slots.block.degrade.DegradeRuleManager;
import com.alibaba.csp.sentinel.slots.block.flow.FlowRule;
import com.alibaba.csp.sentinel.slots.block.flow.FlowRuleManager;
import com.alibaba.csp.sentinel.slots.block.flow.param.ParamFlowRule;
import com.alibaba.csp.sentinel.slots.block.flow.param.ParamFlowRuleManager;
import com.alibaba.csp.sentinel.slots.clusterbuilder.ClusterBuilderSlot;
import com.alibaba.csp.sentinel.slots.system.SystemRule;
import com.alibaba.csp.sentinel.slots.system.SystemRuleManager;
import com.alibaba.csp.sentinel.util.TimeUtil;
import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.util.HashMap;
import java.util.Map;

/**
 * The decisions of Sentinel's library at the times that the standard input names. Each line is a step; `-` stands for none:
 *
 * <pre>
 * begin                            forgets all resources and rules, and ends the calls in flight
 * moves                            until the next begin a sleep moves the clock
 * rules KIND JSON                  replaces the rules of a kind, as its dashboard names it
 * at MS                            the time
 * enter CALL RESOURCE COUNT in|out PRIORITIZED ORIGIN CONTEXT VALUE[,VALUE]...
 *                                  prints: P and the nanoseconds that the call slept, or B and the kind of the rule
 * exit CALL ok|failed
 * </pre>
 */
public final class Scenarios {
    private static final Exception FAILED = new Exception("failed");

    private static final class Call {
        Entry entry;
        int count;
        Object[] values;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        System.setProperty("csp.sentinel.metric.flush.interval", "0");
        InitExecutor.doInit();
        Method resetChains = CtSph.class.getDeclaredMethod("resetChainMap");
        resetChains.setAccessible(true);
        Method resetContexts = ContextUtil.class.getDeclaredMethod("resetContextMap");
        resetContexts.setAccessible(true);
        Map<String, Call> calls = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        StringBuilder answers = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", line.startsWith("rules") ? 3 : 0);
            switch (words[0]) {
                case "begin":
                    for (Call call : calls.values()) {
                        call.entry.exit(call.count, call.values);
                    }
                    calls.clear();
                    for (String kind : new String[] {"flow", "degrade", "paramFlow", "system", "authority"}) {
                        load(kind, "[]");
                    }
                    resetChains.invoke(null);
                    resetContexts.invoke(null);
                    ClusterBuilderSlot.getClusterNodeMap().clear();
                    Sleep.moves = false;
                    break;
                case "moves":
                    Sleep.moves = true;
                    break;
                case "rules":
                    load(words[1], words[2]);
                    break;
                case "at":
                    TimeUtil.now = Long.parseLong(words[1]);
                    break;
                case "enter": {
                    Call call = new Call();
                    call.count = Integer.parseInt(words[3]);
                    call.values = words[8].equals("-") ? new Object[0] : words[8].split(",");
                    ContextUtil.enter(words[7].equals("-") ? "main" : words[7], words[6].equals("-") ? "" : words[6]);
                    Sleep.slept = 0;
                    try {
                        EntryType type = words[4].equals("in") ? EntryType.IN : EntryType.OUT;
                        boolean prioritized = Boolean.parseBoolean(words[5]);
                        call.entry = Env.sph.asyncEntryWithType(words[2], 0, type, call.count, prioritized, call.values);
                        calls.put(words[1], call);
                        answers.append('P').append(Sleep.slept).append('\n');
                    } catch (BlockException blocked) {
                        String kind = blocked.getClass().getSimpleName();
                        answers.append('B').append(kind.replaceAll("(Block)?Exception", "")).append('\n');
                    }
                    ContextUtil.exit();
                    break;
                }
                case "exit": {
                    Call call = calls.remove(words[1]);
                    if (call != null) {
                        if (words[2].equals("failed")) {
                            Tracer.traceEntry(FAILED, call.entry);
                        }
                        call.entry.exit(call.count, call.values);
                    }
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

    private static void load(String kind, String json) {
        switch (kind) {
            case "flow":
                FlowRuleManager.loadRules(JSON.parseArray(json, FlowRule.class));
                break;
            case "degrade":
                DegradeRuleManager.loadRules(JSON.parseArray(json, DegradeRule.class));
                break;
            case "paramFlow":
                ParamFlowRuleManager.loadRules(JSON.parseArray(json, ParamFlowRule.class));
                break;
            case "system":
                SystemRuleManager.loadRules(JSON.parseArray(json, SystemRule.class));
                break;
            case "authority":
                AuthorityRuleManager.loadRules(JSON.parseArray(json, AuthorityRule.class));
                break;
            default:
                throw new IllegalArgumentException(kind);
        }
    }
}
