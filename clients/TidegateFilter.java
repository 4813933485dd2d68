// Limits the requests of Spring (6 and 7, servlet) by a Tidegate server. The token is null if the server needs none.
//
// @Bean TidegateFilter limited() {
//     return new TidegateFilter("http://127.0.0.1:8080", "per-user", request -> request.getRemoteAddr(), Duration.ofMillis(100), true, null);
// }
import com.fasterxml.jackson.databind.*;
import jakarta.servlet.*;
import jakarta.servlet.http.*;
import java.io.IOException;
import java.net.URI;
import java.net.http.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.Function;

public record TidegateFilter(String server, String limit, Function<HttpServletRequest, String> key, Duration timeout, boolean failOpen,
        String token) implements Filter {
    private static final HttpClient CLIENT = HttpClient.newHttpClient();
    private static final ObjectMapper JSON = new ObjectMapper();

    private static CompletableFuture<HttpResponse<String>> send(HttpRequest question) {
        return CLIENT.sendAsync(question, HttpResponse.BodyHandlers.ofString());
    }

    public void doFilter(ServletRequest request, ServletResponse anyResponse, FilterChain chain) throws IOException, ServletException {
        var response = (HttpServletResponse) anyResponse;
        JsonNode told = JSON.valueToTree(Map.of("allowed", failOpen, "reason", "no decision"));
        var status = 503;
        try {
            var id = UUID.randomUUID().toString();
            var body = JSON.writeValueAsString(Map.of("limit", limit, "key", key.apply((HttpServletRequest) request), "id", id));
            var question = HttpRequest.newBuilder(URI.create(server + "/v1/acquire")).POST(HttpRequest.BodyPublishers.ofString(body));
            if (token != null) question.header("Authorization", "Bearer " + token);
            // The timeout of a request ends with the head of the answer; this one covers the body, too.
            var asked = question.timeout(timeout).build();
            // An answer can be lost with its connection. With the same id the request is counted once.
            var answer = send(asked).exceptionallyCompose(lost -> lost.getCause() instanceof HttpTimeoutException
                    ? CompletableFuture.failedFuture(lost) : send(asked)).get(timeout.toMillis(), TimeUnit.MILLISECONDS);
            // A limit's name, the token or a right is wrong: the text says what to do.
            if (answer.statusCode() / 100 == 4 && answer.statusCode() != 429) throw new ServletException(answer.body());
            told = Optional.of(JSON.readTree(answer.body())).filter(one -> one.has("allowed")).orElseThrow(() -> new IOException(answer.body()));
            status = answer.statusCode();
            answer.headers().firstValue("Retry-After").ifPresent(after -> response.setHeader("Retry-After", after));
            Thread.sleep(told.path("delay_ms").asLong());
        } catch (ServletException refused) {
            throw refused;
        } catch (Exception error) {
            System.getLogger("tidegate").log(System.Logger.Level.WARNING, "no decision: " + error);
        }
        if (told.path("allowed").asBoolean()) {
            chain.doFilter(request, response);
        } else {
            response.setStatus(status);
            response.setContentType("application/json");
            response.getWriter().write(JSON.writeValueAsString(Map.of("reason", told.path("reason").asText())));
        }
    }
}
