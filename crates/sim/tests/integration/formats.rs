//! One log of each format that is common: it is read with the right clients, paths and times, or it
//! is refused. None is accepted with a wrong key.

use std::{fs, path::PathBuf};

use tidegate_sim::{
    Progress, Workload,
    input::{By, Loaded, Options, Source, read},
};

/// Every log has these two requests of two clients, four seconds apart, on two paths.
const CLIENTS: [&str; 2] = ["192.0.2.7", "2001:db8:1:2::/64"];
const PATHS: [&str; 2] = ["/shop", "/login"];

/// Logs that are read.
const READ: [(&str, &str); 48] = [
    (
        "common",
        r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /shop?q=1 HTTP/1.1" 200 512
2001:db8:1:2::9 - bob [17/May/2015:10:05:07 +0000] "POST /login HTTP/1.1" 401 12"#,
    ),
    (
        "combined",
        r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /shop?q=1 HTTP/1.1" 200 512 "-" "curl/8.1"
2001:db8:1:2::9 - - [17/May/2015:10:05:07 +0000] "POST /login HTTP/1.1" 401 12 "https://e.org/" "Mozilla/5.0 (X11)""#,
    ),
    (
        "ingress-nginx",
        r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /shop HTTP/1.1" 200 512 "-" "curl/8.1" 79 0.001 [default-shop-80] [] 10.1.0.3:8080 512 0.001 200 c0ffee
2001:db8:1:2::9 - - [17/May/2015:10:05:07 +0000] "POST /login HTTP/1.1" 401 12 "-" "curl/8.1" 80 0.002 [default-shop-80] [] 10.1.0.3:8080 12 0.002 401 c0ffef"#,
    ),
    (
        "traefik common",
        r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /shop HTTP/1.1" 200 512 "-" "curl/8.1" 1 "shop@docker" "http://10.1.0.3:80" 3ms
2001:db8:1:2::9 - - [17/May/2015:10:05:07 +0000] "POST /login HTTP/1.1" 401 12 "-" "curl/8.1" 2 "shop@docker" "http://10.1.0.3:80" 4ms"#,
    ),
    (
        "tomcat",
        r#"192.0.2.7 - - [17/May/2015:12:05:03 +0200] "GET /shop HTTP/1.1" 200 - 4
2001:db8:1:2::9 - - [17/May/2015:12:05:07 +0200] "POST /login HTTP/1.1" 401 - 3"#,
    ),
    (
        "vhost_combined",
        r#"shop.example.com:443 192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /shop HTTP/1.1" 200 512 "-" "curl/8.1"
shop.example.com:443 2001:db8:1:2::9 - - [17/May/2015:10:05:07 +0000] "POST /login HTTP/1.1" 401 12 "-" "curl/8.1""#,
    ),
    (
        "envoy",
        r#"[2015-05-17T10:05:03.000Z] "GET /shop?q=1 HTTP/1.1" 200 - 0 512 3 2 "192.0.2.7" "curl/8.1" "6c0e" "shop.example.com" "10.1.0.3:80"
[2015-05-17T10:05:07.000Z] "POST /login HTTP/1.1" 401 - 0 12 3 2 "203.0.113.5, 2001:db8:1:2::9" "curl/8.1" "6c0f" "shop.example.com" "10.1.0.3:80""#,
    ),
    (
        "AWS application load balancer",
        r#"https 2015-05-17T10:05:03.000000Z app/shop/50dc6c495c0c9188 192.0.2.7:2817 10.0.0.1:80 0.000 0.001 0.000 200 200 34 366 "GET https://shop.example.com:443/shop?q=1 HTTP/1.1" "curl/8.1" ECDHE TLSv1.2 arn:aws:x "Root=1-58" "shop.example.com" "arn" 0 2015-05-17T10:05:02.9Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-"
h2 2015-05-17T10:05:07.000000Z app/shop/50dc6c495c0c9188 [2001:db8:1:2::9]:2818 10.0.0.1:80 0.000 0.001 0.000 401 401 34 366 "POST https://shop.example.com:443/login HTTP/2.0" "curl/8.1" ECDHE TLSv1.2 arn:aws:x "Root=1-58" "shop.example.com" "arn" 0 2015-05-17T10:05:06.9Z "forward" "-" "-" "10.0.0.1:80" "401" "-" "-""#,
    ),
    (
        "AWS classic load balancer",
        r#"2015-05-17T10:05:03.000000Z my-elb 192.0.2.7:2817 10.0.0.1:80 0.000073 0.001048 0.000057 200 200 0 29 "GET http://shop.example.com:80/shop HTTP/1.1" "curl/8.1" - -
2015-05-17T10:05:07.000000Z my-elb [2001:db8:1:2::9]:2818 10.0.0.1:80 0.000073 0.001048 0.000057 401 401 0 29 "POST http://shop.example.com:80/login HTTP/1.1" "curl/8.1" - -"#,
    ),
    (
        "haproxy",
        r#"192.0.2.7:33317 [17/May/2015:10:05:03.000] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {shop.example.com|curl} {} "GET /shop?q=1 HTTP/1.1"
[2001:db8:1:2::9]:33318 [17/May/2015:10:05:07.000] http-in static/srv1 10/0/30/69/109 401 2750 - - ---- 1/1/1/1/0 0/0 "POST /login HTTP/1.1""#,
    ),
    (
        "haproxy in syslog",
        r#"<134>May 17 10:05:03 lb haproxy[14389]: 192.0.2.7:33317 [17/May/2015:10:05:03.000] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET /shop HTTP/1.1"
<134>May 17 10:05:07 lb haproxy[14389]: [2001:db8:1:2::9]:33318 [17/May/2015:10:05:07.000] http-in~ static/<NOSRV> 10/-1/-1/-1/109 401 2750 - - SC-- 1/1/1/1/0 0/0 "POST /login HTTP/1.1""#,
    ),
    (
        "nginx JSON",
        r#"{"time_iso8601":"2015-05-17T10:05:03+00:00","remote_addr":"192.0.2.7","request":"GET /shop?q=1 HTTP/1.1","status":"200"}
{"time_iso8601":"2015-05-17T10:05:07+00:00","remote_addr":"2001:db8:1:2::9","request":"POST /login HTTP/1.1","status":"401"}"#,
    ),
    (
        "caddy",
        r#"{"level":"info","ts":1431857103.0,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"192.0.2.7","remote_port":"41342","client_ip":"192.0.2.7","proto":"HTTP/2.0","method":"GET","host":"shop.example.com","uri":"/shop?q=1","headers":{"User-Agent":["curl/8.1"]}},"duration":0.001,"status":200}
{"level":"info","ts":1431857107.0,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"2001:db8:1:2::9","remote_port":"41342","client_ip":"2001:db8:1:2::9","proto":"HTTP/2.0","method":"POST","host":"shop.example.com","uri":"/login","headers":{}},"duration":0.001,"status":401}"#,
    ),
    (
        "envoy JSON",
        r#"{"start_time":"2015-05-17T10:05:03.000Z","downstream_remote_address":"192.0.2.7:4711","method":"GET","path":"/shop?q=1","response_code":200,"bytes_sent":512,"duration":3,"upstream_host":"10.1.0.3:80"}
{"start_time":"2015-05-17T10:05:07.000Z","downstream_remote_address":"[2001:db8:1:2::9]:4711","method":"POST","path":"/login","response_code":401,"bytes_sent":12,"duration":3,"upstream_host":"10.1.0.3:80"}"#,
    ),
    (
        "traefik JSON",
        r#"{"ClientAddr":"192.0.2.7:51234","ClientHost":"192.0.2.7","ClientPort":"51234","DownstreamStatus":200,"RequestHost":"shop.example.com","RequestMethod":"GET","RequestPath":"/shop?q=1","RequestProtocol":"HTTP/2.0","StartUTC":"2015-05-17T10:05:03.000Z","level":"info","msg":"","time":"2015-05-17T10:05:04Z"}
{"ClientAddr":"[2001:db8:1:2::9]:51234","ClientHost":"2001:db8:1:2::9","ClientPort":"51234","DownstreamStatus":401,"RequestHost":"shop.example.com","RequestMethod":"POST","RequestPath":"/login","RequestProtocol":"HTTP/2.0","StartUTC":"2015-05-17T10:05:07.000Z","level":"info","msg":"","time":"2015-05-17T10:05:08Z"}"#,
    ),
    (
        "google cloud load balancer",
        r#"{"insertId":"1","httpRequest":{"remoteIp":"192.0.2.7","requestMethod":"GET","requestUrl":"https://shop.example.com/shop?q=1","status":200,"userAgent":"curl/8.1","serverIp":"10.1.0.3"},"resource":{"type":"http_load_balancer"},"timestamp":"2015-05-17T10:05:03.000000Z"}
{"insertId":"2","httpRequest":{"remoteIp":"2001:db8:1:2::9","requestMethod":"POST","requestUrl":"https://shop.example.com/login","status":401,"serverIp":"10.1.0.3"},"resource":{"type":"http_load_balancer"},"timestamp":"2015-05-17T10:05:07.000000Z"}"#,
    ),
    (
        "AWS WAF",
        r#"{"timestamp":1431857103000,"formatVersion":1,"action":"ALLOW","httpRequest":{"clientIp":"192.0.2.7","country":"DE","headers":[{"name":"Host","value":"shop"}],"uri":"/shop","args":"q=1","httpVersion":"HTTP/1.1","httpMethod":"GET"}}
{"timestamp":1431857107000,"formatVersion":1,"action":"ALLOW","httpRequest":{"clientIp":"2001:db8:1:2::9","country":"DE","headers":[],"uri":"/login","args":"","httpVersion":"HTTP/1.1","httpMethod":"POST"}}"#,
    ),
    (
        "AWS API gateway",
        r#"{"requestId":"c6af9ac6","ip":"192.0.2.7","requestTime":"17/May/2015:10:05:03 +0000","httpMethod":"GET","path":"/shop","status":"200"}
{"requestId":"c6af9ac7","ip":"2001:db8:1:2::9","requestTime":"17/May/2015:10:05:07 +0000","httpMethod":"POST","path":"/login","status":"401"}"#,
    ),
    (
        "cloudflare",
        r#"{"ClientIP":"192.0.2.7","ClientRequestHost":"shop.example.com","ClientRequestMethod":"GET","ClientRequestURI":"/shop?q=1","EdgeEndTimestamp":"2015-05-17T10:05:04Z","EdgeResponseStatus":200,"EdgeStartTimestamp":"2015-05-17T10:05:03Z"}
{"ClientIP":"2001:db8:1:2::9","ClientRequestHost":"shop.example.com","ClientRequestMethod":"POST","ClientRequestURI":"/login","EdgeEndTimestamp":"2015-05-17T10:05:08Z","EdgeResponseStatus":401,"EdgeStartTimestamp":"2015-05-17T10:05:07Z"}"#,
    ),
    (
        "azure front door",
        r#"{"time":"2015-05-17T10:05:03.0000000Z","category":"FrontDoorAccessLog","properties":{"httpMethod":"GET","requestUri":"https://shop.example.com:443/shop?q=1","clientIp":"192.0.2.7","httpStatusCode":"200"}}
{"time":"2015-05-17T10:05:07.0000000Z","category":"FrontDoorAccessLog","properties":{"httpMethod":"POST","requestUri":"https://shop.example.com:443/login","clientIp":"2001:db8:1:2::9","httpStatusCode":"401"}}"#,
    ),
    (
        "elastic common schema",
        r#"{"@timestamp":"2015-05-17T10:05:03.000Z","client":{"ip":"192.0.2.7"},"url":{"path":"/shop"},"http":{"request":{"method":"GET"},"response":{"status_code":200}}}
{"@timestamp":"2015-05-17T10:05:07.000Z","client":{"ip":"2001:db8:1:2::9"},"url":{"path":"/login"},"http":{"request":{"method":"POST"},"response":{"status_code":401}}}"#,
    ),
    (
        "IIS",
        "#Software: Microsoft Internet Information Services 10.0\r\n#Version: 1.0\r\n#Date: 2015-05-17 10:05:03\r\n#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken\r\n2015-05-17 10:05:03 10.0.0.4 GET /shop q=1 443 - 192.0.2.7 Mozilla/5.0+(Windows+NT) - 200 0 0 15\r\n2015-05-17 10:05:07 10.0.0.4 POST /login - 443 bob 2001:db8:1:2::9 - - 401 0 0 15\r\n",
    ),
    (
        "cloudfront",
        "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent)\n2015-05-17\t10:05:03\tLHR62-C2\t2390\t192.0.2.7\tGET\td111111abcdef8.cloudfront.net\t/shop\t200\t-\tMozilla/5.0%20(X11)\n2015-05-17\t10:05:07\tLHR62-C2\t2390\t2001:db8:1:2::9\tPOST\td111111abcdef8.cloudfront.net\t/login\t401\t-\t-\n",
    ),
    (
        "CSV with a header",
        "time,client_ip,method,path,status,agent\n2015-05-17T10:05:03Z,192.0.2.7,GET,/shop?q=1,200,\"curl, \"\"8\"\"\"\n2015-05-17T10:05:07Z,2001:db8:1:2::9,POST,/login,401,-\n",
    ),
    (
        "semicolons with a header",
        "timestamp;ip;path;status\n1431857103;192.0.2.7;/shop;200\n1431857107;2001:db8:1:2::9;/login;401\n",
    ),
    (
        "tabs with a header",
        "ts\tremote_addr\turi\n1431857103.0\t192.0.2.7\t/shop\n1431857107.0\t2001:db8:1:2::9\t/login\n",
    ),
    (
        "logfmt",
        r#"time=2015-05-17T10:05:03Z level=info msg="request done" remote_addr=192.0.2.7:4711 method=GET path="/shop?q=1" status=200
time=2015-05-17T10:05:07Z level=info msg="said \"no\"" remote_addr=[2001:db8:1:2::9]:4711 method=POST path=/login status=401"#,
    ),
    (
        "docker's files",
        r#"{"log":"192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET /shop HTTP/1.1\" 200 512 \"-\" \"curl\"\n","stream":"stdout","time":"2015-05-17T10:05:03.1Z"}
{"log":"2001:db8:1:2::9 - - [17/May/2015:10:05:07 +0000] \"POST /login HTTP/1.1\" 401 512 \"-\" \"curl\"\n","stream":"stdout","time":"2015-05-17T10:05:07.1Z"}"#,
    ),
    (
        "kubernetes (CRI) with JSON",
        r#"2015-05-17T10:05:03.1Z stdout F {"time":"2015-05-17T10:05:03Z","ip":"192.0.2.7","path":"/shop"}
2015-05-17T10:05:07.1Z stdout F {"time":"2015-05-17T10:05:07Z","ip":"2001:db8:1:2::9","path":"/login"}"#,
    ),
    (
        "kubectl logs --prefix",
        r#"[pod/web-1/nginx] 192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /shop HTTP/1.1" 200 512 "-" "curl"
[pod/web-2/nginx] 2001:db8:1:2::9 - - [17/May/2015:10:05:07 +0000] "POST /login HTTP/1.1" 401 512 "-" "curl""#,
    ),
    (
        "docker compose logs",
        r#"web-1  | 192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /shop HTTP/1.1" 200 512 "-" "curl"
web-1  | 2001:db8:1:2::9 - - [17/May/2015:10:05:07 +0000] "POST /login HTTP/1.1" 401 512 "-" "curl""#,
    ),
    (
        "syslog (RFC 5424)",
        r#"<190>1 2015-05-17T10:05:03Z web nginx 7 - - 192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /shop HTTP/1.1" 200 512 "-" "curl"
<190>1 2015-05-17T10:05:07Z web nginx 7 - - 2001:db8:1:2::9 - - [17/May/2015:10:05:07 +0000] "POST /login HTTP/1.1" 401 512 "-" "curl""#,
    ),
    (
        "squid",
        r"1431857103.000    110 192.0.2.7 TCP_MISS/200 4512 GET http://shop.example.com/shop? - HIER_DIRECT/203.0.113.5 text/html
1431857107.000    110 2001:db8:1:2::9 TCP_MISS/401 12 POST http://shop.example.com/login bob HIER_DIRECT/203.0.113.5 -",
    ),
    (
        "traffic server",
        r"1431857103.000 110 192.0.2.7 TCP_MISS/200 4512 GET http://shop.example.com/shop - DIRECT/shop.example.com text/html
1431857107.000 110 2001:db8:1:2::9 TCP_MISS/401 12 POST http://shop.example.com/login - DIRECT/shop.example.com -",
    ),
    (
        "hypercorn",
        r#"[2015-05-17 12:05:03 +0200] [7] [INFO] 192.0.2.7:4711 - - [17/May/2015:12:05:03 +0200] "GET /shop 1.1" 200 512 "-" "curl"
[2015-05-17 12:05:07 +0200] [7] [INFO] 2001:db8:1:2::9:4712 - - [17/May/2015:12:05:07 +0200] "POST /login 1.1" 401 12 "-" "curl""#,
    ),
    (
        "daphne",
        r#"192.0.2.7:4711 - - [17/May/2015:10:05:03] "GET /shop" 200 512
2001:db8:1:2::9:4712 - - [17/May/2015:10:05:07] "POST /login" 401 12"#,
    ),
    (
        "Spring Boot's logger",
        r#"2015-05-17T10:05:04.123Z  INFO 1 --- [nio-8080-exec-1] o.a.c.AccessLog : 192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /shop HTTP/1.1" 200 5
2015-05-17T10:05:07.123Z  INFO 1 --- [nio-8080-exec-2] o.a.c.AccessLog : 2001:db8:1:2::9 - - [17/May/2015:10:05:07 +0000] "POST /login HTTP/1.1" 401 5"#,
    ),
    (
        "Python's logger",
        r#"INFO:aiohttp.access:192.0.2.7 [17/May/2015:10:05:03 +0000] "GET /shop HTTP/1.1" 200 158 "-" "curl"
INFO:aiohttp.access:2001:db8:1:2::9 [17/May/2015:10:05:07 +0000] "POST /login HTTP/1.1" 401 158 "-" "curl""#,
    ),
    (
        "werkzeug",
        r#"192.0.2.7 - - [17/May/2015 10:05:03] "GET /shop HTTP/1.1" 200 -
2001:db8:1:2::9 - - [17/May/2015 10:05:07] "POST /login HTTP/1.1" 401 -"#,
    ),
    (
        "granian",
        r#"[2015-05-17 12:05:03 +0200] 192.0.2.7 - "GET /shop HTTP/1.1" 200 12.345
[2015-05-17 12:05:07 +0200] 2001:db8:1:2::9 - "POST /login HTTP/1.1" 401 0.345"#,
    ),
    (
        "tornado",
        r"[I 150517 10:05:03 web:2348] 200 GET /shop?q=1 (192.0.2.7) 2.00ms
[W 150517 10:05:07 web:2348] 401 POST /login (2001:db8:1:2::9) 2.00ms",
    ),
    (
        "gin",
        r#"[GIN] 2015/05/17 - 10:05:03 | 200 |         2ms |       192.0.2.7 | GET      "/shop?q=1"
[GIN] 2015/05/17 - 10:05:07 | 401 |    2000.0µs | 2001:db8:1:2::9 | POST     "/login""#,
    ),
    (
        "morgan, default",
        r#"::ffff:192.0.2.7 - - [Sun, 17 May 2015 10:05:03 GMT] "GET /shop HTTP/1.1" 200 512 "-" "curl"
2001:db8:1:2::9 - - [Sun, 17 May 2015 10:05:07 GMT] "POST /login HTTP/1.1" 401 12 "-" "curl""#,
    ),
    (
        "pino-http",
        r#"{"level":30,"time":1431857103005,"pid":1,"hostname":"h","req":{"id":1,"method":"GET","url":"/shop?q=1","headers":{"host":"h"},"remoteAddress":"::ffff:192.0.2.7","remotePort":1},"res":{"statusCode":200,"headers":{}},"responseTime":5,"msg":"request completed"}
{"level":30,"time":1431857107005,"pid":1,"hostname":"h","req":{"id":2,"method":"POST","url":"/login","headers":{"host":"h"},"remoteAddress":"2001:db8:1:2::9","remotePort":1},"res":{"statusCode":401,"headers":{}},"responseTime":5,"msg":"request completed"}"#,
    ),
    (
        "fastify",
        r#"{"level":30,"time":1431857103000,"pid":1,"hostname":"h","reqId":"req-1","req":{"method":"GET","url":"/shop?q=1","host":"h","remoteAddress":"192.0.2.7","remotePort":1},"msg":"incoming request"}
{"level":30,"time":1431857103005,"pid":1,"hostname":"h","reqId":"req-1","res":{"statusCode":200},"responseTime":5.1,"msg":"request completed"}
{"level":50,"time":1431857103005,"pid":1,"hostname":"h","reqId":"req-1","req":{"method":"GET","url":"/shop","host":"h","remoteAddress":"192.0.2.7"},"res":{"statusCode":500},"err":{"type":"Error"},"msg":"broken"}
{"level":30,"time":1431857107000,"pid":1,"hostname":"h","reqId":"req-2","req":{"method":"POST","url":"/login","host":"h","remoteAddress":"2001:db8:1:2::9","remotePort":1},"msg":"incoming request"}"#,
    ),
    (
        "varnishncsa",
        r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET http://shop.example.com:80/shop?q=1 HTTP/1.1" 200 512 "-" "curl"
2001:db8:1:2::9 - bob smith [17/May/2015:10:05:07 +0000] "POST http://shop.example.com:80/login HTTP/1.1" 401 12 "-" "curl""#,
    ),
    (
        "jetty",
        r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /shop HTTP/1.1" 200 512 "-" "a "quoted" agent"
[2001:db8:1:2:0:0:0:9] - - [17/May/2015:10:05:07 +0000] "POST /login HTTP/1.1" 401 12 "-" "curl""#,
    ),
    (
        "nginx JSON with a byte that is not UTF-8",
        r#"{"time_iso8601":"2015-05-17T10:05:03+00:00","remote_addr":"192.0.2.7","request":"GET /shop?q=1 HTTP/1.1","status":"200","http_user_agent":"caf\xe9"}
{"time_iso8601":"2015-05-17T10:05:07+00:00","remote_addr":"2001:db8:1:2::9","request":"POST http://shop.example.com/login HTTP/1.1","status":"401","http_user_agent":"-"}"#,
    ),
];

/// Formats whose times are those of the end of a request, and how many milliseconds each took.
const STAMPED_AT_THE_END: [(&str, u64); 5] = [
    ("AWS application load balancer", 1),
    ("caddy", 1),
    ("squid", 110),
    ("tornado", 2),
    ("gin", 2),
];

/// Logs that are refused, and what the error says.
const REFUSED: [(&str, &str, &str); 13] = [
    (
        "AWS network load balancer",
        "tls 2.0 2018-12-20T02:59:40 net/my-nlb/c6e77e28c25b2234 g3d4b5e8bb8464cd 192.0.2.7:51341 172.100.100.185:443 5 2 98 246 - arn:aws:acm - ECDHE tlsv12 - my.elb.amazonaws.com\n",
        "log them at the servers behind it",
    ),
    (
        "AWS S3",
        "79a59df900b949e55d96a1e698fbaced awsexamplebucket1 [06/Feb/2019:00:00:38 +0000] 192.0.2.3 79a59df900b949e5 3E57427F3EXAMPLE REST.GET.VERSIONING - \"GET /awsexamplebucket1?versioning HTTP/1.1\" 200 - 113 - 7 - \"-\" \"S3Console/0.4\" - s9lzHYrFp76= SigV4 ECDHE AuthHeader s3.amazonaws.com TLSV1.2 - -\n",
        "in no form that can be replayed",
    ),
    (
        "haproxy, TCP",
        "Feb  6 12:12:56 localhost haproxy[14387]: 192.0.2.7:33313 [06/Feb/2009:12:12:51.443] fnt bck/srv1 0/0/5007 212 -- 0/0/0/0/3 0/0\n",
        "option httplog",
    ),
    (
        "haproxy, default",
        "Feb  6 12:12:09 localhost haproxy[14385]: Connect from 192.0.2.7:33312 to 10.0.3.31:8012 (www/HTTP)\n",
        "option httplog",
    ),
    (
        "apache's error log",
        "[Sun May 17 10:05:03.123456 2015] [core:error] [pid 35708:tid 43288] [client 192.0.2.7:4711] File does not exist: /var/www/favicon.ico\n",
        "CustomLog",
    ),
    (
        "nginx's error log",
        "2015/05/17 10:05:03 [error] 7#7: *1 open() \"/var/www/x\" failed (2: No such file or directory), client: 192.0.2.7, server: localhost, request: \"GET /x HTTP/1.1\", host: \"localhost\"\n",
        "access_log",
    ),
    (
        "uvicorn",
        "INFO:     192.0.2.7:53336 - \"GET /shop HTTP/1.1\" 200 OK\n",
        "--log-config",
    ),
    (
        "morgan",
        "GET /shop 200 4.123 ms - 512\n",
        "morgan('combined')",
    ),
    (
        "CSV without a header",
        "2015-05-17T10:05:03Z,192.0.2.7,GET,/shop\n2015-05-17T10:05:07Z,192.0.2.8,GET,/shop\n",
        "CSV with a header",
    ),
    (
        "journalctl -o json",
        "{\"__REALTIME_TIMESTAMP\":\"1431857103000000\",\"_HOSTNAME\":\"web\",\"MESSAGE\":\"192.0.2.7 - - [17/May/2015:10:05:03 +0000] \\\"GET / HTTP/1.1\\\" 200 5\"}\n",
        "name it with --time-field",
    ),
    (
        "logfmt without a client",
        "time=2015-05-17T10:05:03Z level=info path=/shop\n",
        "no field `ip`; there are level, path, time",
    ),
    (
        "CSV with other names",
        "When,Who,Path\n2015-05-17T10:05:03Z,192.0.2.7,/shop\n",
        "there are Path, When, Who",
    ),
    (
        "IIS with a time of day",
        "#Version: 1.0\n#Fields: time c-ip cs-method\n10:05:03 192.0.2.7 GET\n",
        "holds neither an RFC 3339 time nor",
    ),
];

fn load(name: &str, text: &str, by: Option<&str>) -> Result<Loaded, String> {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("format-{}", name.replace(['/', ' '], "-")));
    fs::write(&path, text).unwrap();
    let options = Options {
        by: by.map(|by| by.parse().unwrap()),
        ..Options::default()
    };
    read(&[Source::File(path)], &options, &Progress::default()).map_err(|error| error.to_string())
}

fn labels(loaded: &Loaded) -> Vec<String> {
    (0..loaded.trace.keys())
        .map(|key| loaded.trace.label(key))
        .collect()
}

#[test]
fn every_known_format_is_recognised_with_its_clients_paths_and_times() {
    for (name, text) in READ {
        let clients = load(name, text, None).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(labels(&clients), CLIENTS, "{name}");
        assert_eq!((clients.lines, clients.unparsed.count), (2, 0), "{name}");
        let (first, last) = clients.trace.span();
        let took = STAMPED_AT_THE_END
            .iter()
            .find(|(ends, _)| *ends == name)
            .map_or(0, |(_, took)| *took * 1_000_000);
        assert_eq!(
            (first, last - first),
            (1_431_857_103_000_000_000 - took, 4_000_000_000),
            "{name}"
        );
        let paths =
            load(name, text, Some("path")).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(labels(&paths), PATHS, "{name}");
    }
}

#[test]
fn the_bytes_of_an_answer_are_found_and_charged_when_it_ended() {
    let charged = |name: &str, cost: &str, took: Option<&str>| {
        let (_, text) = READ.iter().find(|(known, _)| *known == name).unwrap();
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("charged-{}", name.replace(' ', "-")));
        fs::write(&path, text).unwrap();
        let took = took.map(|took| took.parse().unwrap());
        let options = Options {
            charge: Some(cost.parse::<By>().unwrap().fields()[0].clone()),
            took,
            ..Options::default()
        };
        let trace = read(&[Source::File(path)], &options, &Progress::default())
            .map_err(|error| error.to_string())?
            .trace;
        let costs: Vec<_> = trace.costs(0).chain(trace.costs(1)).collect();
        let ends = trace.ends(0).chain(trace.ends(1));
        let took: Vec<_> = ends
            .zip(&costs)
            .map(|(end, (time, _))| (end - time) / 1_000_000)
            .collect();
        Ok::<_, String>((
            costs.iter().map(|(_, cost)| *cost).collect::<Vec<_>>(),
            took,
        ))
    };
    for (name, bytes, took) in [
        ("common", [512, 12], 0),
        ("combined", [512, 12], 0),
        ("vhost_combined", [512, 12], 0),
        ("tomcat", [0, 0], 0),
        ("envoy", [512, 12], 3),
        ("AWS application load balancer", [366, 366], 1),
        ("AWS classic load balancer", [29, 29], 1),
        ("haproxy in syslog", [2_750, 2_750], 109),
        ("squid", [4_512, 12], 110),
    ] {
        if name == "tomcat" {
            assert!(
                charged(name, "bytes", None)
                    .unwrap_err()
                    .contains("no line has the field `bytes`")
            );
        } else {
            assert_eq!(
                charged(name, "bytes", None),
                Ok((bytes.to_vec(), vec![took, took])),
                "{name}"
            );
        }
    }
    assert_eq!(
        charged("envoy JSON", "bytes_sent", Some("duration:ms")),
        Ok((vec![512, 12], vec![3, 3]))
    );
    assert_eq!(charged("envoy JSON", "bytes", None).unwrap().0, [512, 12]);
    let wrong = charged("envoy JSON", "path", None).unwrap_err();
    assert!(
        wrong.contains("the field `path` (--charge) holds no whole number"),
        "{wrong}"
    );
}

#[test]
fn every_other_format_is_refused_with_what_to_do() {
    for (name, text, message) in REFUSED {
        let error = load(name, text, None)
            .map(|loaded| labels(&loaded))
            .unwrap_err();
        assert!(error.contains(message), "{name}: {error}");
    }
}

#[test]
fn addresses_are_grouped_whatever_their_field_is_called() {
    let (_, traefik) = READ
        .iter()
        .find(|(name, _)| *name == "traefik JSON")
        .unwrap();
    assert_eq!(
        labels(&load("by-host", traefik, Some("ClientHost")).unwrap()),
        CLIENTS
    );
    let log = r#"{"time":1,"peer":"2001:db8::1","upstream":"10.0.0.1:80"}
{"time":2,"peer":"2001:db8::2","upstream":"10.0.0.1:81"}"#;
    assert_eq!(
        labels(&load("by-peer", log, Some("peer")).unwrap()),
        ["2001:db8::/64"]
    );
    // The port of an address that is not the client's may matter.
    assert_eq!(
        labels(&load("by-upstream", log, Some("upstream")).unwrap()),
        ["10.0.0.1:80", "10.0.0.1:81"]
    );
}

#[test]
fn a_table_may_have_other_names_if_they_are_given() {
    let (_, text, _) = REFUSED
        .iter()
        .find(|(name, ..)| *name == "CSV with other names")
        .unwrap();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("format-named");
    fs::write(&path, text).unwrap();
    let options = Options {
        by: Some("Who".parse().unwrap()),
        time_field: tidegate_sim::input::TimeField::new(Some("When".to_owned())),
        ..Options::default()
    };
    let loaded = read(&[Source::File(path)], &options, &Progress::default()).unwrap();
    assert_eq!(labels(&loaded), ["192.0.2.7"]);
}

#[test]
fn the_client_behind_trusted_proxies_is_the_key() {
    let nginx = |peer: &str, list: &str| {
        format!(
            "{peer} - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\" \"{list}\"\n"
        )
    };
    let json = |peer: &str, list: &str| {
        format!("{{\"time\":1,\"remote_addr\":\"{peer}\",\"http_x_forwarded_for\":\"{list}\"}}\n")
    };
    let envoy = |list: &str| {
        format!(
            "[2015-05-17T10:05:03.000Z] \"GET / HTTP/1.1\" 200 - 0 5 3 2 \"{list}\" \"curl\" \"id\" \"h\" \"10.1.0.3:80\"\n"
        )
    };
    let caddy = "{\"ts\":1.0,\"request\":{\"remote_ip\":\"10.0.0.1\",\"headers\":{\"X-Forwarded-For\":[\"192.0.2.7\",\"10.0.0.2\"]}}}\n";
    let forwarded = "{\"time\":1,\"ip\":\"10.0.0.1\",\"forwarded\":\"for=\\\"[2001:db8:1:2::9]:80\\\";proto=http\"}\n";
    for (name, log, expected) in [
        (
            "trusted peer",
            nginx("10.0.0.1", "198.51.100.1, 192.0.2.7:80, ::ffff:10.0.0.2"),
            "192.0.2.7",
        ),
        (
            "another peer",
            nginx("192.0.2.8", "198.51.100.1"),
            "192.0.2.8",
        ),
        ("no list", nginx("10.0.0.1", "-"), "10.0.0.1"),
        (
            "only proxies",
            nginx("10.0.0.1", "10.0.0.3, 10.0.0.2"),
            "10.0.0.3",
        ),
        (
            "IPv6",
            json("10.0.0.1", "2001:db8:1:2::9"),
            "2001:db8:1:2::/64",
        ),
        (
            "Envoy",
            envoy("198.51.100.1, 192.0.2.7, 10.0.0.1"),
            "192.0.2.7",
        ),
        ("Caddy", caddy.to_owned(), "192.0.2.7"),
        ("Forwarded", forwarded.to_owned(), "2001:db8:1:2::/64"),
    ] {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("forwarded-{}", name.replace(' ', "-")));
        fs::write(&path, &log).unwrap();
        let options = Options {
            by: Some("forwarded".parse().unwrap()),
            trusted: "10.0.0.0/8".parse().unwrap(),
            ..Options::default()
        };
        let loaded = read(&[Source::File(path)], &options, &Progress::default());
        let loaded = loaded.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(labels(&loaded), [expected], "{name}");
    }
    let unknown = nginx("10.0.0.1", "192.0.2.7, unknown");
    let error = load("forwarded-unknown", &unknown, None).map(|loaded| labels(&loaded));
    assert_eq!(error, Ok(vec!["10.0.0.1".to_owned()]), "by ip");
}
