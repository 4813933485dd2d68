// Limits the requests of Spring (6 and 7, servlet) by a Tidegate server:
//
// @Bean TidegateFilter limited() { return new TidegateFilter("per-user", request -> request.getRemoteAddr()); }
import com.fasterxml.jackson.databind.*;
import jakarta.servlet.*;
import jakarta.servlet.http.*;
import java.io.IOException;
import java.net.URI;
import java.net.http.*;
import java.time.Duration;
import java.util.Map;
import java.util.function.Function;
import org.springframework.web.filter.OncePerRequestFilter;

public class TidegateFilter extends OncePerRequestFilter {
    public String server = "http://127.0.0.1:8080", token;
    public Duration timeout = Duration.ofMillis(100);
    public boolean failOpen = true;
    private final String limit;
    private final Function<HttpServletRequest, String> key;
    private final ObjectMapper json = new ObjectMapper();
    private final HttpClient client = HttpClient.newHttpClient();

    public TidegateFilter(String limit, Function<HttpServletRequest, String> key) {
        this.limit = limit;
        this.key = key;
    }

    private JsonNode ask(String key) throws Exception {
        var body = HttpRequest.BodyPublishers.ofString(json.writeValueAsString(Map.of("limit", limit, "key", key)));
        var question = HttpRequest.newBuilder(URI.create(server + "/v1/acquire")).timeout(timeout).POST(body);
        if (token != null) question.header("Authorization", "Bearer " + token);
        // The timeout of a request ends with the head of the answer; this one covers the body, too.
        var answer = client.sendAsync(question.build(), HttpResponse.BodyHandlers.ofString())
                .get(timeout.toMillis(), java.util.concurrent.TimeUnit.MILLISECONDS);
        var told = json.readTree(answer.body());
        if (answer.statusCode() != 200 && answer.statusCode() != 429) throw new IOException(told.path("detail").asText());
        return told;
    }

    private void refuse(HttpServletResponse response, int status, String reason) throws IOException {
        response.setStatus(status);
        response.setContentType("application/json");
        response.getWriter().write(json.writeValueAsString(Map.of("reason", reason)));
    }

    @Override
    protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws ServletException, IOException {
        JsonNode told;
        try {
            told = ask(key.apply(request));
        } catch (Exception error) {
            logger.warn("tidegate: no decision: " + error);
            if (failOpen) chain.doFilter(request, response);
            else refuse(response, 503, "no decision");
            return;
        }
        if (!told.get("allowed").asBoolean()) {
            var after = told.get("retry_after_ms");
            if (!after.isNull()) response.setHeader("Retry-After", String.valueOf((after.asLong() + 999) / 1000));
            refuse(response, 429, told.path("reason").asText());
            return;
        }
        try {
            Thread.sleep(told.get("delay_ms").asLong());
        } catch (InterruptedException interrupted) {
            throw new ServletException(interrupted);
        }
        chain.doFilter(request, response);
    }
}
