import com.alibaba.csp.sentinel.Entry;
import com.alibaba.csp.sentinel.EntryType;
import com.alibaba.csp.sentinel.SphU;
import com.alibaba.csp.sentinel.init.InitExecutor;
import com.alibaba.csp.sentinel.slots.block.BlockException;
import java.io.PrintStream;

/**
 * A program with Sentinel and its HTTP transport: {@code Program DASHBOARD PORT} sends heartbeats to a dashboard ({@code host:port}) once
 * a second, answers commands on the port, and enters the resource {@code pay} about a hundred times a second, until its standard input
 * ends. Prints {@code ready} once it has begun.
 */
public final class Program {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        System.setProperty("csp.sentinel.dashboard.server", arguments[0]);
        System.setProperty("csp.sentinel.api.port", arguments[1]);
        System.setProperty("csp.sentinel.heartbeat.client.ip", "127.0.0.1");
        System.setProperty("csp.sentinel.heartbeat.interval.ms", "1000");
        // Programs of one name then have metric logs of their own.
        System.setProperty("csp.sentinel.log.use.pid", "true");
        InitExecutor.doInit();
        Thread calls = new Thread(() -> {
            while (true) {
                try (Entry entry = SphU.entry("pay", EntryType.IN, 1, "alice")) {
                    Thread.sleep(5);
                } catch (BlockException blocked) {
                    // Counted as blocked.
                } catch (InterruptedException ended) {
                    return;
                }
                try {
                    Thread.sleep(5);
                } catch (InterruptedException ended) {
                    return;
                }
            }
        });
        calls.setDaemon(true);
        calls.start();
        out.println("ready");
        out.flush();
        while (System.in.read() >= 0) {
            // Until the end.
        }
        System.exit(0);
    }
}
