#!/usr/bin/env bash
# Sentinel 1.8.9 (Alibaba) with fastjson's reader, as its data sources use it: a flow rule whose `count` is null or missing is loaded with count 0 and
# blocks every call; loading raises no error. A system rule with `highestCpuUsage: 80` is loaded and never limits by the processor: the value is a part from
# 0 to 1, and one above 1 is ignored.
#
# Seen on 2026-11-28, sentinel-core 1.8.9, fastjson 1.2.83_noneautotype, Java 17:
#   null: 0 of 5 calls pass
#   missing: 0 of 5 calls pass
#   count 3: 3 of 5 calls pass
#   highestCpuUsage 0.8: threshold 0.8
#   highestCpuUsage 80: no threshold
#
# Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >pom.xml <<'XML'
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>probe</artifactId><version>1</version><dependencies>
<dependency><groupId>com.alibaba.csp</groupId><artifactId>sentinel-core</artifactId><version>1.8.9</version></dependency>
<dependency><groupId>com.alibaba</groupId><artifactId>fastjson</artifactId><version>1.2.83_noneautotype</version></dependency>
</dependencies></project>
XML
mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib
cat >Probe.java <<'JAVA'
import com.alibaba.csp.sentinel.SphO;
import com.alibaba.csp.sentinel.slots.block.flow.*;
import com.alibaba.csp.sentinel.slots.system.*;
import com.alibaba.fastjson.JSON;

public class Probe {
    public static void main(String[] args) {
        String[][] rules = {{"null", "\"count\":null,"}, {"missing", ""}, {"count 3", "\"count\":3,"}};
        for (String[] rule : rules) {
            String json = "[{\"resource\":\"r\"," + rule[1] + "\"grade\":1,\"limitApp\":\"default\"}]";
            FlowRuleManager.loadRules(JSON.parseArray(json, FlowRule.class));
            // Whole seconds are needed only for the rule that admits three.
            while (System.currentTimeMillis() % 1000 > 300) Thread.onSpinWait();
            int passed = 0;
            for (int call = 0; call < 5; call++) {
                if (SphO.entry("r")) {
                    passed++;
                    SphO.exit();
                }
            }
            System.out.println(rule[0] + ": " + passed + " of 5 calls pass");
        }
        for (String usage : new String[] {"0.8", "80"}) {
            SystemRuleManager.loadRules(JSON.parseArray("[{\"highestCpuUsage\":" + usage + "}]", SystemRule.class));
            double threshold = SystemRuleManager.getCpuUsageThreshold();
            System.out.println("highestCpuUsage " + usage + ": " + (threshold > 1 ? "no threshold" : "threshold " + threshold));
        }
        System.exit(0);
    }
}
JAVA
javac -cp 'lib/*' Probe.java
cat >expected <<'TEXT'
null: 0 of 5 calls pass
missing: 0 of 5 calls pass
count 3: 3 of 5 calls pass
highestCpuUsage 0.8: threshold 0.8
highestCpuUsage 80: no threshold
TEXT
HOME="$folder" java -Dcsp.sentinel.log.dir="$folder/logs" -cp 'lib/*:.' Probe 2>/dev/null | grep -E 'calls pass|highestCpuUsage' | tee seen
diff expected seen
