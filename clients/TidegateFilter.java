// Limits the requests of Spring (6 and 7, servlet) by a Tidegate server. The token is null if the server needs none.
//
// @Bean TidegateFilter limited() {
//     return new TidegateFilter("http://127.0.0.1:8080", "per-user", request -> request.getRemoteAddr(), Duration.ofMillis(100), true, null);
// }
//
// Only responses whose status the last argument accepts count, such as failed logins: status -> status == 401
import com.fasterxml.jackson.databind.*;
import jakarta.servlet.*;
import jakarta.servlet.http.*;
import java.io.IOException;
import java.net.URI;
import java.net.http.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.*;

public record TidegateFilter(String server, String limit, Function<HttpServletRequest, String> key, Duration timeout, boolean failOpen,
        String token, IntPredicate counts) implements Filter {
    public TidegateFilter(String server, String limit, Function<HttpServletRequest, String> key, Duration timeout, boolean failOpen, String token) {
        this(server, limit, key, timeout, failOpen, token, null);
    }

    private static final HttpClient CLIENT = HttpClient.newHttpClient();
    private static final ObjectMapper JSON = new ObjectMapper();

    private static CompletableFuture<HttpResponse<String>> send(HttpRequest question) {
        return CLIENT.sendAsync(question, HttpResponse.BodyHandlers.ofString());
    }

    private HttpResponse<String> ask(String path, Map<String, String> body) throws Exception {
        var question = HttpRequest.newBuilder(URI.create(server + path)).POST(HttpRequest.BodyPublishers.ofString(JSON.writeValueAsString(body)));
        if (token != null) question.header("Authorization", "Bearer " + token);
        // The timeout of a request ends with the head of the answer; this one covers the body, too.
        var asked = question.timeout(timeout).build();
        // An answer can be lost with its connection. With the same id the request is counted once.
        return send(asked).exceptionallyCompose(lost -> lost.getCause() instanceof HttpTimeoutException
                ? CompletableFuture.failedFuture(lost) : send(asked)).get(timeout.toMillis(), TimeUnit.MILLISECONDS);
    }

    private void giveBack(String reserved) {
        try {
            var answer = ask("/v1/cancel", Map.of("id", reserved));
            if (answer.statusCode() != 200) throw new IOException(answer.body());
        } catch (Exception error) {
            System.getLogger("tidegate").log(System.Logger.Level.WARNING, "the request stays counted: " + error);
        }
    }

    public void doFilter(ServletRequest request, ServletResponse anyResponse, FilterChain chain) throws IOException, ServletException {
        var response = (HttpServletResponse) anyResponse;
        JsonNode told = JSON.valueToTree(Map.of("allowed", failOpen, "reason", "no decision"));
        var status = 503;
        try {
            var id = UUID.randomUUID().toString();
            // A reservation counts at once, so requests that run at the same time do not exceed the limit.
            var path = counts == null ? "/v1/acquire" : "/v1/reserve";
            var answer = ask(path, Map.of("limit", limit, "key", key.apply((HttpServletRequest) request), "id", id));
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
            var seen = 500; // of an exception
            try {
                chain.doFilter(request, response);
                seen = response.getStatus();
            } finally {
                if (counts != null && told.has("id") && !counts.test(seen)) giveBack(told.path("id").asText());
            }
        } else {
            response.setStatus(status);
            response.setContentType("application/json");
            response.getWriter().write(JSON.writeValueAsString(Map.of("reason", told.path("reason").asText())));
        }
    }
}
