//! nginx asks by `auth_request`.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tidegate_redis_servers::{eventually, free_port};

use crate::{
    Client, get,
    program::{Serving, request, scratch},
};

/// A running nginx, which is killed when the test ends.
struct Nginx {
    child: Child,
    port: u16,
    error_log: PathBuf,
}

impl Nginx {
    /// The packaged configuration with other addresses, in front of a backend that answers every
    /// request with its connection.
    fn before(tidegate: &str, name: &str) -> Self {
        let directory = scratch(name);
        let [port, backend, instead] = [free_port(), free_port(), free_port()];
        let packaged =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/nginx/tidegate.conf");
        let mut site = fs::read_to_string(packaged).unwrap();
        for (from, to) in [
            ("server 127.0.0.1:8080 ", format!("server {tidegate} ")),
            (
                "server 127.0.0.1:8079 ",
                format!("server 127.0.0.1:{instead} "),
            ),
            (
                "listen 127.0.0.1:8079;",
                format!("listen 127.0.0.1:{instead};"),
            ),
            (
                "server 127.0.0.1:9000;",
                format!("server 127.0.0.1:{backend};"),
            ),
            ("listen 80;", format!("listen 127.0.0.1:{port};")),
            ("/var/log/nginx/", format!("{}/", directory.display())),
        ] {
            assert!(
                site.contains(from),
                "{from} is no longer in the packaged configuration"
            );
            site = site.replace(from, &to);
        }
        let site = format!(
            "{site}
             server {{ listen 127.0.0.1:{backend};
                 location /broken {{ return 500 \"backend is broken\"; }}
                 location /secret {{ return 403 \"not for you\"; }}
                 location / {{ return 200 \"backend\"; }} }}"
        );
        Self::with(&directory, port, &site)
    }

    /// A server with this part of a configuration, which listens on the port.
    fn with(directory: &Path, port: u16, site: &str) -> Self {
        let here = directory.display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .fold(String::new(), |text, what| {
                text + &format!("{what}_temp_path {here}/{what};\n")
            });
        let main = format!(
            "daemon off; master_process off; worker_processes 1; pid {here}/pid; error_log {here}/error.log;
             events {{ worker_connections 256; }}
             http {{ access_log off; {temporary} {site} }}"
        );
        let file = directory.join("nginx.conf");
        fs::write(&file, main).unwrap();
        let mut command = Command::new("nginx");
        command
            .arg("-c")
            .arg(&file)
            .arg("-p")
            .arg(directory)
            .stderr(Stdio::null());
        let child = command
            .spawn()
            .expect("nginx is installed by scripts/test.sh");
        let nginx = Self {
            child,
            port,
            error_log: directory.join("error.log"),
        };
        eventually("nginx listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        nginx
    }

    /// The whole response to a request of a client that tries to choose its key, and of a web page.
    fn get(&self, path: &str) -> String {
        get(
            self.port,
            path,
            "x-tidegate-key: another\r\norigin: https://page.example\r\n",
        )
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server with the rules that the packages install.
fn packaged() -> Serving {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/rules.yaml");
    Serving::with(&["--rules", rules.to_str().unwrap()])
}

#[test]
fn nginx_as_packaged_denies_with_429_over_connections_that_stay_open_and_logs_no_error() {
    let server = packaged();
    let nginx = Nginx::before(&server.http, "nginx-denies");
    let mut client = Client::new(nginx.port);
    for left in (0..100).rev() {
        let answer = client.get("/");
        assert!(answer.starts_with("http/1.1 200 "), "{answer}");
        assert!(
            answer.contains(&format!("\r\nratelimit: \"per-address\";r={left};t=")),
            "{answer}"
        );
        assert!(
            answer.contains("\r\nratelimit-policy: \"per-address\";q=100;w=60"),
            "{answer}"
        );
        assert!(!answer.contains("\r\nretry-after"), "{answer}");
    }
    for _ in 0..50 {
        let answer = client.get("/");
        assert!(answer.starts_with("http/1.1 429 "), "{answer}");
        assert!(
            answer.contains("\r\nretry-after: ") && answer.contains("\r\nratelimit: "),
            "{answer}"
        );
        assert!(answer.contains("\r\nconnection: keep-alive"), "{answer}");
    }
    assert_eq!(fs::read_to_string(&nginx.error_log).unwrap(), "");
    let accepted = server.get("/metrics");
    let accepted = accepted
        .lines()
        .find(|line| line.starts_with("tidegate_connections_accepted_total{protocol=\"http\"}"));
    // nginx's connection only; the metrics are on the control plane.
    assert_eq!(
        accepted.and_then(|line| line.rsplit(' ').next()),
        Some("1"),
        "{accepted:?}"
    );
}

#[test]
fn nginx_passes_on_the_backend_s_errors() {
    let server = packaged();
    let nginx = Nginx::before(&server.http, "nginx-passes");
    for (path, status, body) in [
        ("/broken", 500, "backend is broken"),
        ("/secret", 403, "not for you"),
    ] {
        let answer = nginx.get(path);
        assert!(
            answer.starts_with(&format!("http/1.1 {status} ")) && answer.ends_with(body),
            "{answer}"
        );
    }
}

#[test]
fn requests_go_on_if_tidegate_has_no_such_limit_and_the_server_says_so() {
    let rules = scratch("nginx-other-rules").join("rules.yaml");
    fs::write(&rules, "limits: [{name: per-user, limit: 2/1h}]\n").unwrap();
    let server = Serving::with(&["--rules", rules.to_str().unwrap()]);
    let nginx = Nginx::before(&server.http, "nginx-unknown");
    for _ in 0..5 {
        let answer = nginx.get("/");
        assert!(
            answer.starts_with("http/1.1 200 ") && answer.ends_with("backend"),
            "{answer}"
        );
    }
    let line = server.logs("without a decision");
    assert!(line.contains("per-address"), "{line}");
    let counted = "tidegate_http_requests_total{route=\"/v1/check/{limit}\",status=\"204\"} 5";
    assert!(
        server.get("/metrics").contains(counted),
        "{}",
        server.get("/metrics")
    );
}

#[test]
fn nginx_hardly_asks_a_tidegate_that_does_not_answer() {
    // The system gives port 1 to no other test.
    let nginx = Nginx::before("127.0.0.1:1", "nginx-nobody");
    assert!((0..5).all(|_| nginx.get("/").starts_with("http/1.1 200 ")));

    // Its kernel accepts connections, and the process reads nothing: as if it were stopped.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nginx = Nginx::before(&silent.local_addr().unwrap().to_string(), "nginx-silent");
    let mut client = Client::new(nginx.port);
    for _ in 0..300 {
        let answer = client.get("/");
        assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    }
    silent.set_nonblocking(true).unwrap();
    let asked = silent.incoming().map_while(Result::ok).count();
    // Three at first, and three for every second that the test takes.
    assert!(
        (3..=60).contains(&asked),
        "{asked} of 300 requests waited for it"
    );
    // Each is marked in the log, and has a line in the log of those that went on unasked.
    let lines = |name: &str| {
        let log = fs::read_to_string(nginx.error_log.with_file_name(name)).unwrap_or_default();
        log.lines()
            .filter(|line| name != "access.log" || line.ends_with(" unasked"))
            .count()
    };
    eventually("nginx has logged what it did not ask", || {
        lines("access.log") == 300 && lines("tidegate-unasked.log") == 300
    });
}

/// docs/src/migrate.md has the rules.
#[test]
fn nginx_limit_req_and_the_rules_that_replace_it_admit_as_many_at_once() {
    let directory = scratch("nginx-limit-req");
    let (port, rules) = (free_port(), directory.join("rules.yaml"));
    fs::create_dir(directory.join("html")).unwrap();
    fs::write(directory.join("html/index.html"), "page").unwrap();
    let site = format!(
        "limit_req_zone $arg_key zone=a:1m rate=1r/m; limit_req_status 429;
         server {{ listen 127.0.0.1:{port}; root {};
             location /plain {{ limit_req zone=a; try_files /index.html =404; }}
             location /burst {{ limit_req zone=a burst=20 nodelay; try_files /index.html =404; }} }}",
        directory.join("html").display()
    );
    let nginx = Nginx::with(&directory, port, &site);
    let limits = "limits:
  - {name: plain, limit: 1/1m, algorithm: token-bucket, burst: 1}
  - {name: burst, limit: 1/1m, algorithm: token-bucket, burst: 21}
";
    fs::write(&rules, limits).unwrap();
    let server = Serving::with(&["--rules", rules.to_str().unwrap()]);
    for (name, admitted) in [("plain", 1), ("burst", 21)] {
        let there = (0..30).filter(|_| {
            nginx
                .get(&format!("/{name}?key={name}"))
                .starts_with("http/1.1 200 ")
        });
        let body = format!(r#"{{"limit":"{name}","key":"a"}}"#);
        let here = (0..30).filter(|_| server.post(&body).starts_with("HTTP/1.1 200 "));
        assert_eq!([there.count(), here.count()], [admitted; 2], "{name}");
    }
}

/// The configuration in a page of the book, with this first line.
fn documented(page: &str, first: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/src")
        .join(page);
    let page = fs::read_to_string(page).unwrap();
    let begin = page.find(&format!("```nginx\n{first}")).unwrap();
    let (text, _) = page[begin + 9..].split_once("```").unwrap();
    text.to_owned()
}

#[test]
fn only_failed_logins_count_by_the_documented_recipe_of_nginx() {
    let directory = scratch("nginx-logins");
    let rules = directory.join("rules.yaml");
    let limit = "limits: [{name: failed-logins, limit: 1/1h, algorithm: sliding-log}]\n";
    fs::write(&rules, limit).unwrap();
    let server = Serving::with(&["--rules", rules.to_str().unwrap()]);
    let [port, backend] = [free_port(), free_port()];
    let recipe = documented("fronts.md", "location /login {");
    let site = format!(
        "upstream tidegate {{ server {}; }} upstream backend {{ server 127.0.0.1:{backend}; }}
         server {{ listen 127.0.0.1:{backend};
             location / {{ if ($arg_wrong) {{ return 401 wrong; }} return 200 welcome; }} }}
         server {{ listen 127.0.0.1:{port}; {recipe} }}",
        server.http
    );
    let nginx = Nginx::with(&directory, port, &site);
    let login = |path: &str| nginx.get(path)[9..12].to_owned();
    let has_left = |left: &str| {
        let question = r#"{"limit":"failed-logins","key":"127.0.0.1","cost":0}"#;
        let told = request(&server.http, "POST", "/v1/peek", question);
        told.contains(left)
    };
    for _ in 0..5 {
        assert_eq!(login("/login"), "200");
    }
    assert_eq!(login("/login?wrong=1"), "401");
    // The charge follows the response.
    eventually("it is charged", || has_left("\"remaining\":0"));
    assert!(has_left("\"allowed\":true"), "one of one has failed");
    assert_eq!(login("/login"), "200");
    assert_eq!(login("/login?wrong=1"), "401");
    eventually("it is charged", || has_left("\"allowed\":false"));
    for path in ["/login", "/login?wrong=1"] {
        assert_eq!(login(path), "403");
    }
    let log = fs::read_to_string(&nginx.error_log).unwrap();
    assert!(!log.contains("[error]"), "{log}");
}
