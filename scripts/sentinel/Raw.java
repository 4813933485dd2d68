import java.io.DataInputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * A client without Sentinel: {@code Raw PORT CONNECTIONS IN_FLIGHT REQUESTS ID} asks a token server on this machine. Each connection makes
 * REQUESTS, so many at a time as are in flight. Prints how many answers had which status, and the milliseconds that it took.
 */
public final class Raw {
    private static final int FRAME = 20;

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        int connections = Integer.parseInt(arguments[1]);
        int inFlight = Integer.parseInt(arguments[2]);
        int requests = Integer.parseInt(arguments[3]);
        ByteBuffer frames = ByteBuffer.allocate(FRAME * inFlight);
        for (int xid = 1; xid <= inFlight; xid++) {
            frames.putShort((short) (FRAME - 2)).putInt(xid).put((byte) 1);
            frames.putLong(Long.parseLong(arguments[4])).putInt(1).put((byte) 0);
        }
        AtomicLongArray statuses = new AtomicLongArray(256);
        CountDownLatch done = new CountDownLatch(connections);
        long begin = System.nanoTime();
        for (int connection = 0; connection < connections; connection++) {
            new Thread(() -> {
                try (Socket socket = new Socket("127.0.0.1", port)) {
                    socket.setTcpNoDelay(true);
                    DataInputStream in = new DataInputStream(socket.getInputStream());
                    OutputStream out = socket.getOutputStream();
                    byte[] answers = new byte[16 * inFlight];
                    for (int asked = 0; asked < requests; asked += inFlight) {
                        out.write(frames.array());
                        in.readFully(answers);
                        for (int answer = 0; answer < inFlight; answer++) {
                            statuses.incrementAndGet(answers[answer * 16 + 7] & 0xff);
                        }
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                }
                done.countDown();
            }).start();
        }
        done.await();
        long took = (System.nanoTime() - begin) / 1_000_000;
        for (int status = 0; status < 256; status++) {
            if (statuses.get(status) > 0) {
                System.out.println((byte) status + " " + statuses.get(status));
            }
        }
        System.out.println("ms " + took);
        System.exit(0);
    }
}
