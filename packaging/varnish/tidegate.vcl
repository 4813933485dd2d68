# Limits for what Varnish serves: each request is asked for before it goes on, without a VMOD. Varnish sends the question in place of the
# request, and starts the request again with the answer. For /etc/varnish/default.vcl, in front of your own rules.
vcl 4.1;

import std;

backend tidegate {
    .host = "127.0.0.1";
    .port = "8080";
    .connect_timeout = 100ms;
    .first_byte_timeout = 100ms;
    .between_bytes_timeout = 100ms;
    # A Tidegate that does not answer is known within a second; from then on requests do not wait for it.
    .probe = { .url = "/healthz"; .interval = 500ms; .timeout = 200ms; .window = 1; .threshold = 1; .initial = 1; }
}

backend default {
    .host = "127.0.0.1";
    .port = "9000";
}

sub vcl_recv {
    if (req.restarts == 0) {
        # What the client sends must not say for whom it asks, nor what Tidegate answered.
        unset req.http.X-Tidegate-Cost;
        unset req.http.X-Tidegate-Answer;
        unset req.http.X-Tidegate-RateLimit;
        unset req.http.X-Tidegate-Policy;
        if (std.healthy(tidegate)) {
            # A body must wait for the answer.
            std.cache_req_body(1MB);
            set req.http.X-Tidegate-Ask = "1";
            set req.backend_hint = tidegate;
            return (pass);
        }
        set req.http.X-Tidegate-Answer = "unasked";
    }
    unset req.http.X-Tidegate-Ask;
    unset req.http.X-Tidegate-Key;
    set req.backend_hint = default;
}

sub vcl_backend_fetch {
    if (bereq.http.X-Tidegate-Ask) {
        unset bereq.body;
        set bereq.method = "GET";
        # The limit `per-address` of Tidegate's rules, for the client's address. `errors=admit`: requests go on if Tidegate has no such
        # limit; it logs and counts them.
        set bereq.url = "/v1/check/per-address?errors=admit";
        set bereq.http.X-Tidegate-Key = client.ip;
        unset bereq.http.Origin;
        # With `tidegate serve --access`: set bereq.http.Authorization = "Bearer TOKEN";
        unset bereq.http.Authorization;
    }
}

sub vcl_backend_error {
    if (bereq.http.X-Tidegate-Ask) {
        # No answer within 100 ms.
        set beresp.http.X-Tidegate-Answer = "unasked";
        return (deliver);
    }
}

sub vcl_deliver {
    if (req.http.X-Tidegate-Ask) {
        if (resp.status == 429) {
            return (deliver);
        }
        # While Tidegate does not answer, requests go on. For denying them instead, deliver every answer but 204 here.
        set req.http.X-Tidegate-RateLimit = resp.http.RateLimit;
        set req.http.X-Tidegate-Policy = resp.http.RateLimit-Policy;
        if (resp.http.X-Tidegate-Answer || resp.status >= 300) {
            set req.http.X-Tidegate-Answer = "unasked";
        }
        return (restart);
    }
    if (req.http.X-Tidegate-RateLimit) {
        set resp.http.RateLimit = req.http.X-Tidegate-RateLimit;
        set resp.http.RateLimit-Policy = req.http.X-Tidegate-Policy;
    }
    # For the log: varnishncsa -F '… %{VCL_Log:tidegate}x'.
    if (req.http.X-Tidegate-Answer) {
        std.log("tidegate:" + req.http.X-Tidegate-Answer);
    }
}
