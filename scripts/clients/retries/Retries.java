// The clients for Java that retry. A line of JSON for each.

import io.grpc.CallOptions;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Map;
import org.apache.hc.client5.http.classic.methods.HttpGet;
import org.apache.hc.client5.http.impl.classic.HttpClients;

public class Retries {
    static String here;

    interface Ask {
        boolean admits(String key) throws Exception;
    }

    static int count(String key) throws Exception {
        var asked = HttpRequest.newBuilder(URI.create(here + "/counts/" + key)).build();
        return Integer.parseInt(HttpClient.newHttpClient().send(asked, HttpResponse.BodyHandlers.ofString()).body());
    }

    static void check(String client, Ask ask) throws Exception {
        var found = List.of(ask.admits(client), ask.admits(client), ask.admits(client + "-hopeless"));
        var right = found.equals(List.of(true, true, false));
        // The first request was admitted at once.
        var retried = right ? "" + (count(client) - 1) : "\"admitted: " + found + "\"";
        System.out.printf("{\"client\": \"%s (Java)\", \"retried\": %s, \"hopeless\": %d}%n", client, retried, count(client + "-hopeless"));
    }

    /** Messages as they are. */
    static class Bytes implements MethodDescriptor.Marshaller<byte[]> {
        public InputStream stream(byte[] value) {
            return new ByteArrayInputStream(value);
        }

        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        var port = Integer.parseInt(arguments[0]);
        here = "http://127.0.0.1:" + port;
        try (var client = HttpClients.createDefault()) {
            check("httpclient5", key -> client.execute(new HttpGet(here + "/plain/" + key), answer -> answer.getCode() == 200));
        }
        var policy = Map.of(
                "maxAttempts", 4.0,
                "initialBackoff", "0.05s",
                "maxBackoff", "0.05s",
                "backoffMultiplier", 1.0,
                "retryableStatusCodes", List.of("RESOURCE_EXHAUSTED"));
        var config = Map.of("methodConfig", List.of(Map.of("name", List.of(Map.of()), "retryPolicy", policy)));
        var channel = ManagedChannelBuilder.forAddress("127.0.0.1", port).usePlaintext().defaultServiceConfig(config).enableRetry().build();
        var method = MethodDescriptor.newBuilder(new Bytes(), new Bytes())
                .setType(MethodDescriptor.MethodType.UNARY)
                .setFullMethodName("grpc.health.v1.Health/Check")
                .build();
        check("grpc-netty-shaded", key -> {
            var metadata = new Metadata();
            metadata.put(Metadata.Key.of("x-key", Metadata.ASCII_STRING_MARSHALLER), key);
            var named = io.grpc.ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(metadata));
            try {
                ClientCalls.blockingUnaryCall(named, method, CallOptions.DEFAULT, new byte[0]);
                return true;
            } catch (StatusRuntimeException refused) {
                return false;
            }
        });
        System.exit(0);
    }
}
