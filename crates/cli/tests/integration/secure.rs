//! TLS and access control on every listener, with curl, redis-cli and this program as clients.
#![cfg(feature = "servers")]

use crate::certificates;
use crate::program;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use certificates::Authority;
use program::{PATIENCE, Serving, scratch, tidegate};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tidegate_redis_servers::eventually;

const RULES: &str = "limits:
  - {name: shop.cart, limit: 1000000/1h}
  - {name: mail, limit: 5/1h}
  - {name: seats, limit: 2, algorithm: concurrency}
";

/// A token, and its entry in the access file.
fn token() -> [String; 2] {
    let output = tidegate().args(["token", "anybody"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let token = text
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("tg_"))
        .unwrap()
        .to_owned();
    let entry = text.lines().find(|line| line.contains("tokens:")).unwrap();
    let digest = entry.split('\'').nth(1).unwrap().to_owned();
    [token, digest]
}

struct Secured {
    server: Serving,
    ours: Authority,
    directory: PathBuf,
    ops: String,
    shop: String,
    /// Operates the limits of the shop, and no others.
    keeper: String,
    shop_digest: String,
}

impl Secured {
    fn new(name: &str, more: &[&str]) -> Self {
        let directory = scratch(name);
        let ours = Authority::new(&directory, "ours");
        let [cert, key] = ours.issue("server", &["localhost", "127.0.0.1"]);
        let [
            [ops, ops_digest],
            [shop, shop_digest],
            [keeper, keeper_digest],
        ] = [token(), token(), token()];
        fs::write(
            directory.join("access.yaml"),
            format!(
                "access:
  - {{name: ops, roles: [operate], tokens: ['{ops_digest}']}}
  - {{name: shop, roles: [decide], limits: [shop., seats], tokens: ['{shop_digest}']}}
  - {{name: keeper, roles: [operate], limits: [shop.], tokens: ['{keeper_digest}']}}
  - {{name: robot, roles: [decide, operate], certificates: [robot.example]}}
"
            ),
        )
        .unwrap();
        fs::write(directory.join("rules.yaml"), RULES).unwrap();
        let path = |file: &str| directory.join(file).to_str().unwrap().to_owned();
        let (rules, access) = (path("rules.yaml"), path("access.yaml"));
        let arguments = [
            "--rules",
            &rules,
            "--access",
            &access,
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
        ];
        let server = Serving::with(&[&arguments, more].concat());
        Self {
            server,
            ours,
            directory,
            ops,
            shop,
            keeper,
            shop_digest,
        }
    }

    /// curl's standard output, and its report on the response: status and version.
    fn curl(&self, address: &str, path: &str, arguments: &[&str]) -> (String, String) {
        let url = format!("https://{address}{path}");
        let output = Command::new("curl")
            .args([
                "-sS",
                "--cacert",
                &self.ours.file(),
                "-w",
                "\n%{http_code} %{http_version}",
                &url,
            ])
            .args(arguments)
            .output()
            .expect("curl is installed by scripts/test.sh");
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, told) = text.rsplit_once('\n').unwrap();
        (
            body.to_owned(),
            told.to_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    }

    fn status(&self, address: &str, path: &str, arguments: &[&str]) -> String {
        let told = self.curl(address, path, arguments).1;
        told.get(..3).unwrap_or(&told).to_owned()
    }

    fn redis(&self, arguments: &[&str], commands: &str) -> String {
        redis(&self.server.resp, &self.ours.file(), arguments, commands)
    }

    fn tidegate(&self, token: &str, arguments: &[&str]) -> Output {
        tidegate()
            .args(arguments)
            .args(["--ca", &self.ours.file(), "--timeout", "20s"])
            .env("TIDEGATE_TOKEN", token)
            .output()
            .unwrap()
    }
}

/// The output of redis-cli for these commands, one per line.
fn redis(address: &str, ca: &str, arguments: &[&str], commands: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap();
    let mut child = Command::new("redis-cli")
        .args(["-h", host, "-p", port, "--tls", "--cacert", ca])
        .args(arguments)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("redis-cli is installed by scripts/test.sh");
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // It replies while it still receives commands.
        scope.spawn(move || stdin.write_all(commands.as_bytes()).unwrap());
        child.wait_with_output().unwrap()
    });
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

#[test]
fn every_listener_uses_tls_and_a_token_grants_its_roles() {
    let secured = Secured::new("secure-roles", &[]);
    let (http, admin) = (secured.server.http.clone(), secured.server.admin.clone());
    let (ops, shop) = (bearer(&secured.ops), bearer(&secured.shop));
    let cart = r#"{"limit":"shop.cart","key":"ada"}"#;
    let (body, told) = secured.curl(&http, "/v1/acquire", &["-H", &shop, "-d", cart]);
    assert!(
        body.contains("\"allowed\":true") && told == "200 2",
        "{body} {told}"
    );
    let (_, told) = secured.curl(
        &http,
        "/v1/acquire",
        &["--http1.1", "--tls-max", "1.2", "-H", &shop, "-d", cart],
    );
    assert_eq!(told, "200 1.1");
    // Without TLS, nothing is served.
    assert!(!program::request(&http, "GET", "/healthz", "").starts_with("HTTP/1.1 200"));
    // Health checks need no credentials; everything else does.
    assert_eq!(secured.status(&http, "/healthz", &[]), "200");
    assert_eq!(secured.status(&admin, "/readyz", &[]), "200");
    assert_eq!(secured.status(&http, "/v1/acquire", &["-d", cart]), "401");
    assert_eq!(secured.status(&admin, "/metrics", &[]), "401");
    assert_eq!(
        secured.status(
            &admin,
            "/metrics",
            &["-H", "Authorization: Bearer tg_wrong"]
        ),
        "401"
    );
    assert_eq!(
        secured.status(&admin, "/metrics", &["-H", "Authorization: nonsense"]),
        "401"
    );
    // Each client has its role and its limits.
    let mail = r#"{"limit":"mail","key":"ada"}"#;
    assert_eq!(
        secured.status(&http, "/v1/acquire", &["-H", &shop, "-d", mail]),
        "403"
    );
    let all = r#"{"all":[{"limit":"shop.cart","key":"ada"},{"limit":"mail","key":"ada"}]}"#;
    assert_eq!(
        secured.status(&http, "/v1/acquire", &["-H", &shop, "-d", all]),
        "403"
    );
    assert_eq!(
        secured.status(&http, "/v1/check/mail?key=ada", &["-H", &shop]),
        "403"
    );
    assert_eq!(secured.status(&admin, "/metrics", &["-H", &shop]), "403");
    assert_eq!(
        secured.status(&admin, "/v1/block", &["-H", &shop, "-d", cart]),
        "403"
    );
    assert_eq!(
        secured.status(&http, "/v1/acquire", &["-H", &ops, "-d", mail]),
        "403"
    );
    assert_eq!(secured.status(&admin, "/metrics", &["-H", &ops]), "200");
    // A client's name can be given as the user name of Basic authentication.
    assert_eq!(
        secured.status(
            &admin,
            "/v1/rules",
            &["-u", &format!("ops:{}", secured.ops)]
        ),
        "200"
    );
    assert_eq!(
        secured.status(
            &admin,
            "/v1/rules",
            &["-u", &format!("shop:{}", secured.ops)]
        ),
        "401"
    );
    // A client may give back its permits; only an operator may refund what a rate has counted.
    let seat = r#"{"limit":"seats","key":"room"}"#;
    assert_eq!(
        secured.status(&http, "/v1/acquire", &["-H", &shop, "-d", seat]),
        "200"
    );
    assert_eq!(
        secured.status(&http, "/v1/refund", &["-H", &shop, "-d", seat]),
        "200"
    );
    assert_eq!(
        secured.status(&http, "/v1/refund", &["-H", &shop, "-d", cart]),
        "403"
    );
}

#[test]
fn a_client_of_some_limits_sees_and_changes_nothing_of_the_others() {
    let secured = Secured::new("secure-tenants", &[]);
    let (http, admin) = (&secured.server.http, &secured.server.admin);
    let keeper = bearer(&secured.keeper);
    for limit in ["shop.cart", "mail", "seats"] {
        let ask = format!(r#"{{"limit":"{limit}","key":"ada"}}"#);
        let of_all = secured.status(
            http,
            "/v1/acquire",
            &["-u", &format!("shop:{}", secured.shop), "-d", &ask],
        );
        assert_eq!(of_all == "403", limit == "mail");
    }
    for path in [
        "/metrics",
        "/v1/rules",
        "/v1/limits",
        "/v1/history",
        "/v1/servers",
        "/v1/flow",
        "/",
        "/live",
    ] {
        let (body, told) = secured.curl(admin, path, &["-H", &keeper, "--max-time", "2"]);
        assert!(
            !body.contains("mail") && !body.contains("seats"),
            "{path}: {told}\n{body}"
        );
    }
    let (metrics, _) = secured.curl(admin, "/metrics", &["-H", &keeper]);
    assert!(metrics.contains("{limit=\"shop.cart\""), "{metrics}");
    assert!(
        metrics
            .lines()
            .all(|line| line.starts_with('#') || line.contains("limit=\"shop.cart\"")),
        "{metrics}"
    );
    let post = |path: &str, body: &str| secured.status(admin, path, &["-H", &keeper, "-d", body]);
    for path in [
        "/v1/block",
        "/v1/unblock",
        "/v1/reset",
        "/v1/charge",
        "/v1/refund",
    ] {
        assert_eq!(
            post(path, r#"{"limit":"mail","key":"ada"}"#),
            "403",
            "{path}"
        );
    }
    assert_eq!(
        post(
            "/v1/override",
            r#"{"limit":"mail","key":"ada","quota":"9/1h"}"#
        ),
        "403"
    );
    assert_eq!(post("/v1/reload", ""), "403");
    assert_eq!(
        post("/v1/block", r#"{"limit":"shop.cart","key":"ada"}"#),
        "200"
    );
    assert_eq!(
        secured.status(
            admin,
            "/v1/reload",
            &["-H", &bearer(&secured.ops), "-d", ""]
        ),
        "200"
    );
}

#[test]
fn a_client_that_guesses_tokens_must_wait_and_right_tokens_need_not() {
    let secured = Secured::new("secure-guesses", &[]);
    let (http, admin) = (&secured.server.http, &secured.server.admin);
    let wrong = [
        "-H",
        "Authorization: Bearer tg_wrong",
        "-d",
        r#"{"limit":"shop.cart","key":"ada"}"#,
    ];
    let told: Vec<String> = (0..40)
        .map(|_| secured.status(http, "/v1/acquire", &wrong))
        .collect();
    assert_eq!(told[..20], vec!["401"; 20]);
    assert_eq!(told[30..], vec!["429"; 10], "{told:?}");
    let (body, _) = secured.curl(http, "/v1/acquire", &[&["-i"], &wrong[..]].concat());
    assert!(
        body.to_ascii_lowercase().contains("retry-after: ")
            && body.contains("a right one is accepted"),
        "{body}"
    );
    // The same address with the right token, and without any, which is no guess.
    assert_eq!(
        secured.status(
            http,
            "/v1/acquire",
            &["-H", &bearer(&secured.shop), wrong[2], wrong[3]]
        ),
        "200"
    );
    assert_eq!(secured.status(http, "/v1/acquire", &wrong[2..]), "401");
    // Each listener counts by itself. Over RESP a connection ends with its first guess too many.
    assert_eq!(secured.status(admin, "/metrics", &wrong[..2]), "401");
    let guess = ["--user", "shop", "--pass", "tg_wrong", "--no-auth-warning"];
    for _ in 0..25 {
        assert!(secured.redis(&guess, "PING\n").contains("WRONGPASS"));
    }
    let right = [
        "--user",
        "shop",
        "--pass",
        &secured.shop,
        "--no-auth-warning",
    ];
    assert!(secured.redis(&right, "PING\n").contains("PONG"));
    let log = secured.server.logs("a client gave wrong credentials");
    assert!(
        log.lines()
            .filter(|line| line.contains("wrong credentials"))
            .count()
            <= 3,
        "{log}"
    );
}

#[test]
fn an_operator_saves_rules_and_the_log_says_who_and_when() {
    let secured = Secured::new("secure-save", &["--rules-writable"]);
    let admin = secured.server.admin.clone();
    let (ops, shop) = (bearer(&secured.ops), bearer(&secured.shop));
    let (file, _) = secured.curl(&admin, "/v1/rules/file", &["-H", &ops]);
    let version = file
        .split("\"version\":\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let save = format!("/v1/rules/save?version={version}");
    let changed = RULES.replace("mail, limit: 5/1h", "mail, limit: 7/1h");
    assert_eq!(
        secured.status(&admin, &save, &["-H", &shop, "--data-binary", &changed]),
        "403"
    );
    assert_eq!(
        fs::read_to_string(secured.directory.join("rules.yaml")).unwrap(),
        RULES
    );
    assert_eq!(
        secured.status(&admin, &save, &["-H", &ops, "--data-binary", &changed]),
        "200"
    );
    assert_eq!(
        fs::read_to_string(secured.directory.join("rules.yaml")).unwrap(),
        changed
    );
    assert_eq!(
        fs::read_to_string(secured.directory.join("rules.yaml.previous")).unwrap(),
        RULES
    );
    let log = secured.server.logs("operator");
    let line = log.lines().find(|line| line.contains("operator")).unwrap();
    assert!(
        ["ops", "save", "rules.yaml.previous"]
            .iter()
            .all(|word| line.contains(word)),
        "{line}"
    );
    // The time is the line's own.
    assert!(line.contains('T') && line.contains('Z'), "{line}");
}

#[test]
fn redis_clients_authenticate_with_a_name_and_a_token_and_lose_their_rights_with_it() {
    let secured = Secured::new("secure-resp", &["--reload-interval", "50ms"]);
    assert!(
        secured
            .redis(&[], "ACQUIRE shop.cart ada\n")
            .contains("NOAUTH")
    );
    let shop = [
        "--user",
        "shop",
        "--pass",
        &secured.shop,
        "--no-auth-warning",
    ];
    let told = secured.redis(&shop, "ACQUIRE shop.cart ada\nACQUIRE mail ada\nBLOCK shop.cart ada\nREFUND shop.cart ada\nINFO limits\nCL.THROTTLE a 1 1 1\n");
    assert!(told.starts_with("0\n1000000\n"), "{told}");
    assert_eq!(
        told.matches("NOPERM").count(),
        4,
        "mail, BLOCK, REFUND and CL.THROTTLE are not the shop's: {told}"
    );
    assert!(!told.contains("shop.cart:keys"), "{told}");
    let told = secured.redis(
        &["-a", &secured.ops, "--no-auth-warning"],
        "BLOCK mail ada\nINFO limits\n",
    );
    assert!(
        told.starts_with("OK") && told.contains("mail:keys="),
        "a token opens without its name, too: {told}"
    );
    assert!(
        secured
            .redis(
                &[
                    "--user",
                    "ops",
                    "--pass",
                    &secured.shop,
                    "--no-auth-warning"
                ],
                "PING\n"
            )
            .contains("WRONGPASS")
    );
    // Many commands at once, and long replies, pass through TLS completely.
    let pings = "PING\n".repeat(5_000) + &format!("ECHO {}\n", "x".repeat(4_000)).repeat(100);
    let told = secured.redis(&shop, &pings);
    assert_eq!(
        (told.matches("PONG").count(), told.matches('x').count()),
        (5_000, 400_000)
    );

    // The new token is added beside the old one, which is then removed. A connection that used the
    // old one loses its rights.
    let path = secured.directory.join("access.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let [new, new_digest] = token();
    let both = text.replace(
        &secured.shop_digest,
        &format!("{}', '{new_digest}", secured.shop_digest),
    );
    let mut old = Tls::to(&secured.server.resp, &secured.ours.file());
    old.ask(&format!("AUTH shop {}", secured.shop), "+OK");
    fs::write(&path, &both).unwrap();
    let opens = |token: &str| {
        let shop = ["--user", "shop", "--pass", token, "--no-auth-warning"];
        secured
            .redis(&shop, "PEEK shop.cart ada\n")
            .starts_with("0\n")
    };
    eventually("the new token is taken", || opens(&new));
    assert!(opens(&secured.shop));
    old.ask("PEEK shop.cart ada", "*5");
    // A file with a problem changes nothing.
    fs::write(&path, "access: [{name: shop}]").unwrap();
    secured.server.logs("access file rejected");
    assert!(opens(&new));
    fs::write(&path, text.replace(&secured.shop_digest, &new_digest)).unwrap();
    eventually("the old token is refused", || !opens(&secured.shop));
    assert!(opens(&new));
    old.ask("PEEK shop.cart ada", "-NOAUTH");
}

#[test]
fn certificates_have_roles_and_other_authorities_are_rejected() {
    let directory = scratch("secure-mtls-ca");
    let clients = Authority::new(&directory, "clients");
    let secured = Secured::new("secure-mtls", &["--tls-client-ca", &clients.file()]);
    let [cert, key] = clients.issue("robot", &["robot.example"]);
    let robot = ["--cert", &cert, "--key", &key];
    let mail = r#"{"limit":"mail","key":"ada"}"#;
    let ask = [&robot[..], &["-d", mail]].concat();
    assert_eq!(
        secured.status(&secured.server.http, "/v1/acquire", &ask),
        "200"
    );
    assert_eq!(
        secured.status(&secured.server.admin, "/v1/block", &ask),
        "200"
    );
    assert_eq!(
        secured.redis(&robot, "ACQUIRE mail bob\n").lines().next(),
        Some("0")
    );
    // A token takes precedence over a certificate.
    let shop = bearer(&secured.shop);
    let with_token = [&ask[..], &["-H", &shop]].concat();
    assert_eq!(
        secured.status(&secured.server.http, "/v1/acquire", &with_token),
        "403"
    );
    // A certificate without an entry, none at all, and one from another authority.
    let [cert, key] = clients.issue("unnamed", &["unnamed.example"]);
    assert_eq!(
        secured.status(
            &secured.server.http,
            "/v1/acquire",
            &["--cert", &cert, "--key", &key, "-d", mail]
        ),
        "401"
    );
    assert!(
        secured
            .redis(&["--cert", &cert, "--key", &key], "PEEK mail bob\n")
            .contains("NOAUTH")
    );
    assert_eq!(
        secured.status(&secured.server.http, "/v1/acquire", &["-d", mail]),
        "401"
    );
    assert_eq!(secured.status(&secured.server.http, "/readyz", &[]), "200");
    let [cert, key] = Authority::new(&directory, "strangers").issue("stranger", &["robot.example"]);
    let (_, told) = secured.curl(
        &secured.server.http,
        "/readyz",
        &["--cert", &cert, "--key", &key],
    );
    assert!(told.starts_with("000"), "{told}");
    let told = secured.redis(&["--cert", &cert, "--key", &key], "PEEK mail bob\n");
    assert!(!told.starts_with('0') && !told.contains("NOAUTH"), "{told}");
    // The program itself, with a certificate.
    let url = format!("https://{}", secured.server.admin);
    let [cert, key] = clients.issue("robot", &["robot.example"]);
    let arguments = [
        "reset",
        "mail",
        "--server",
        &url,
        "--client-cert",
        &cert,
        "--client-key",
        &key,
    ];
    assert_eq!(secured.tidegate("", &arguments).status.code(), Some(0));
}

#[test]
fn the_program_works_over_tls_with_a_token() {
    let secured = Secured::new("secure-client", &[]);
    let [http, admin] =
        [&secured.server.http, &secured.server.admin].map(|address| format!("https://{address}"));
    let code = |token: &str, arguments: &[&str]| secured.tidegate(token, arguments).status.code();
    assert_eq!(code("", &["health", "--server", &http]), Some(0));
    assert_eq!(
        code(
            &secured.shop,
            &["acquire", "shop.cart", "ada", "--server", &http]
        ),
        Some(0)
    );
    assert_eq!(
        code(
            &secured.ops,
            &["block", "shop.cart", "ada", "--server", &admin]
        ),
        Some(0)
    );
    assert_eq!(
        code(
            &secured.shop,
            &["peek", "shop.cart", "ada", "--server", &http]
        ),
        Some(1)
    );
    let refused = secured.tidegate(
        &secured.shop,
        &["unblock", "shop.cart", "ada", "--server", &admin],
    );
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        refused.status.code() == Some(3) && told.contains("needs the role `operate`"),
        "{told}"
    );
    let untrusted = tidegate()
        .args(["health", "--server", &http])
        .output()
        .unwrap();
    let told = String::from_utf8(untrusted.stderr).unwrap();
    assert!(
        untrusted.status.code() == Some(3)
            && told.contains("certificate")
            && told.contains("by --ca"),
        "{told}"
    );
}

#[cfg(feature = "grpc")]
#[test]
fn grpc_uses_tls_and_needs_a_token_for_its_domain() {
    let envoy = scratch("secure-grpc-config").join("shop.yaml");
    fs::write(
        &envoy,
        "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: day, requests_per_unit: 10}}\n",
    )
    .unwrap();
    let secured = Secured::new(
        "secure-grpc",
        &[
            "--envoy-config",
            envoy.to_str().unwrap(),
            "--grpc",
            "127.0.0.1:0",
        ],
    );
    let address = secured
        .server
        .told
        .lines()
        .find_map(|line| line.trim().strip_prefix("gRPC"))
        .unwrap();
    let address = address.trim().split(',').next().unwrap().to_owned();
    // A message with only a domain. Clients with the right get the error about missing descriptors.
    let message = secured.directory.join("message");
    let status = |domain: &str, arguments: &[&str]| {
        let mut bytes = vec![
            0,
            0,
            0,
            0,
            u8::try_from(domain.len() + 2).unwrap(),
            0x0a,
            u8::try_from(domain.len()).unwrap(),
        ];
        bytes.extend(domain.as_bytes());
        fs::write(&message, bytes).unwrap();
        let data = format!("@{}", message.display());
        let fixed = [
            "-H",
            "content-type: application/grpc",
            "-H",
            "te: trailers",
            "--data-binary",
            &data,
            "-D",
            "-",
        ];
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let (told, _) = secured.curl(&address, path, &[&fixed[..], arguments].concat());
        let line = told
            .lines()
            .find_map(|line| line.strip_prefix("grpc-status: "));
        line.unwrap_or_else(|| panic!("no status in {told}"))
            .trim()
            .to_owned()
    };
    let (shop, ops) = (bearer(&secured.shop), bearer(&secured.ops));
    assert_eq!(status("shop", &[]), "16");
    assert_eq!(
        status("shop", &["-H", &ops]),
        "7",
        "an operator does not decide"
    );
    assert_eq!(
        status("other", &["-H", &shop]),
        "7",
        "the shop has no right to that domain"
    );
    assert_eq!(
        status("shop", &["-H", &shop]),
        "3",
        "the descriptors are missing"
    );
}

#[test]
fn a_publicly_reachable_listener_is_refused_without_protection() {
    let refused = |arguments: &[&str]| {
        let mut command = tidegate();
        command
            .env("TIDEGATE_HTTP", "127.0.0.1:0")
            .env("TIDEGATE_RESP", "127.0.0.1:0");
        let output = command.arg("serve").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    for option in ["--http", "--admin", "--resp"] {
        let told = refused(&[option, "0.0.0.0:0"]);
        for part in [
            option,
            "neither TLS nor credentials",
            "--tls-cert",
            "--access",
            "127.0.0.1",
            "--insecure",
        ] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
    }
    let directory = scratch("secure-exposed");
    let [cert, key] = Authority::new(&directory, "ours").issue("server", &["localhost"]);
    let told = refused(&[
        "--http",
        "0.0.0.0:0",
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
    ]);
    assert!(
        told.contains("no credentials") && told.contains("--tls-client-ca"),
        "{told}"
    );
    let access = directory.join("access.yaml");
    fs::write(
        &access,
        format!(
            "access: [{{name: a, roles: [decide], tokens: ['{}']}}]",
            token()[1]
        ),
    )
    .unwrap();
    let told = refused(&["--http", "[::]:0", "--access", access.to_str().unwrap()]);
    assert!(
        told.contains("no TLS") && told.contains("--tls-key"),
        "{told}"
    );
    let told = refused(&["--tls-cert", &key, "--tls-key", &cert]);
    assert!(told.contains("BEGIN CERTIFICATE"), "{told}");
    let told = refused(&["--tls-cert", &cert, "--tls-key", &cert]);
    assert!(told.contains("BEGIN PRIVATE KEY"), "{told}");
    let encrypted = directory.join("encrypted.pem");
    for text in [
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIF\n-----END ENCRYPTED PRIVATE KEY-----\n",
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIF\n-----END EC PRIVATE KEY-----\n",
    ] {
        fs::write(&encrypted, text).unwrap();
        let told = refused(&[
            "--tls-cert",
            &cert,
            "--tls-key",
            encrypted.to_str().unwrap(),
        ]);
        assert!(told.contains("openssl pkey -in"), "{told}");
    }

    // Remote clients without credentials, if allowed, only ask.
    let run = |more: &[&str]| {
        let arguments = [
            "serve",
            "--http",
            "0.0.0.0:0",
            "--resp",
            "0.0.0.0:0",
            "--admin",
            "0.0.0.0:0",
        ];
        Serving::run(tidegate().args(arguments).args(more))
    };
    let open = run(&["--insecure"]);
    let here = |address: &str| address.replace("0.0.0.0", "127.0.0.1");
    let ask = |address: &str, method: &str, path: &str| {
        program::request(
            &here(address),
            method,
            path,
            r#"{"limit":"per-user","key":"ada"}"#,
        )[9..12]
            .to_owned()
    };
    assert_eq!(ask(&open.http, "POST", "/v1/acquire"), "200");
    assert_eq!(ask(&open.http, "POST", "/v1/refund"), "403");
    for path in ["/metrics", "/v1/rules"] {
        assert_eq!(ask(&open.admin, "GET", path), "403", "{path}");
    }
    for path in ["/v1/block", "/v1/unblock", "/v1/reset", "/v1/reload"] {
        assert_eq!(ask(&open.admin, "POST", path), "403", "{path}");
    }
    assert!(open.ask("ACQUIRE per-user ada").starts_with("*5 :0"));
    assert!(open.ask("BLOCK per-user ada").starts_with("-NOPERM"));
}

/// A RESP client with TLS in this process.
struct Tls(StreamOwned<ClientConnection, TcpStream>);

impl Tls {
    fn to(address: &str, ca: &str) -> Self {
        Self::shows(address, ca, None)
    }

    /// The same with a client certificate and its key.
    fn shows(address: &str, ca: &str, certificate: Option<&[String; 2]>) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(ca).unwrap())
            .unwrap();
        let config =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots);
        let config = match certificate {
            Some([certificate, key]) => {
                let certificate = CertificateDer::from_pem_file(certificate).unwrap();
                let key = PrivateKeyDer::from_pem_file(key).unwrap();
                config
                    .with_client_auth_cert(vec![certificate], key)
                    .unwrap()
            }
            None => config.with_no_client_auth(),
        };
        let name = ServerName::try_from("localhost").unwrap();
        Self(StreamOwned::new(
            ClientConnection::new(Arc::new(config), name).unwrap(),
            stream,
        ))
    }

    /// Sends a line, and reads until the reply begins with `told` and ends a line.
    fn ask(&mut self, line: &str, told: &str) {
        let reply = self.try_ask(line).unwrap();
        assert!(reply.starts_with(told), "{line}: {reply}");
    }

    fn try_ask(&mut self, line: &str) -> std::io::Result<String> {
        self.0.write_all(format!("{line}\r\n").as_bytes())?;
        let mut reply = String::new();
        // A reply that is an array of five has six lines.
        while reply.lines().count() < if reply.starts_with('*') { 6 } else { 1 }
            || !reply.ends_with('\n')
        {
            let mut piece = [0; 512];
            let read = self.0.read(&mut piece)?;
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            reply.push_str(str::from_utf8(&piece[..read]).unwrap());
        }
        Ok(reply)
    }
}

#[test]
fn certificates_are_renewed_under_load_and_no_connection_is_lost() {
    let secured = Secured::new("secure-renew", &["--reload-interval", "50ms"]);
    let (ca, resp) = (secured.ours.file(), secured.server.resp.clone());
    let log_in = format!("AUTH shop {}", secured.shop);
    let begin = || {
        let mut client = Tls::to(&resp, &ca);
        client.ask(&log_in, "+OK");
        client
    };
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    // A new authority signs the new certificate. Later clients must trust it.
    let theirs = Authority::new(&secured.directory, "theirs");
    let renewed = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|at| {
                let (mut client, stop, answered) = (begin(), &stop, &answered);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        client.ask(&format!("ACQUIRE shop.cart key-{at}"), "*5");
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let before = |count: usize| {
            eventually("the clients are answered", || {
                answered.load(Ordering::Relaxed) > count
            });
        };
        before(100);
        // A certificate without its key is rejected, and the old one stays in force.
        let key = fs::read(secured.ours.path("server.key")).unwrap();
        theirs.issue("server", &["localhost", "127.0.0.1"]);
        let new_key = fs::read(secured.ours.path("server.key")).unwrap();
        fs::write(secured.ours.path("server.key"), key).unwrap();
        secured.server.logs("certificates rejected");
        begin();
        fs::write(secured.ours.path("server.key"), new_key).unwrap();
        secured.server.logs("certificates loaded");
        let renewed = Tls::to(&resp, &theirs.file())
            .try_ask(&log_in)
            .is_ok_and(|reply| reply == "+OK\r\n");
        before(answered.load(Ordering::Relaxed) + 100);
        stop.store(true, Ordering::Relaxed);
        // Each client would have panicked if its connection had been lost.
        for client in clients {
            client.join().unwrap();
        }
        renewed
    });
    assert!(renewed, "new connections see the new certificate");
    assert!(
        Tls::to(&resp, &ca).try_ask(&log_in).is_err(),
        "and not the old one"
    );
    let told = Command::new("curl")
        .args([
            "-sS",
            "--cacert",
            &theirs.file(),
            &format!("https://{}/readyz", secured.server.http),
        ])
        .output()
        .unwrap();
    assert!(
        told.status.success(),
        "{}",
        String::from_utf8_lossy(&told.stderr)
    );
}

#[test]
fn the_authority_of_clients_changes_under_load_and_connected_clients_stay() {
    let directory = scratch("secure-clients");
    let [old, new] = ["old", "new"].map(|name| Authority::new(&directory, name));
    let robots = [&old, &new]
        .map(|authority| authority.issue(&format!("{}-robot", authority.name), &["robot.example"]));
    let trusted = directory.join("trusted.pem");
    let trust = |authorities: &[&Authority]| {
        let text: String = authorities
            .iter()
            .map(|authority| fs::read_to_string(authority.file()).unwrap())
            .collect();
        let file = directory.join("trusted.new");
        fs::write(&file, text).unwrap();
        fs::rename(file, &trusted).unwrap();
    };
    trust(&[&old]);
    let more = [
        "--reload-interval",
        "50ms",
        "--tls-client-ca",
        trusted.to_str().unwrap(),
    ];
    let secured = Secured::new("secure-client-authority", &more);
    let (ca, resp) = (secured.ours.file(), secured.server.resp.clone());
    let asks = |robot: usize, key: &str| {
        let reply = Tls::shows(&resp, &ca, Some(&robots[robot]))
            .try_ask(&format!("ACQUIRE shop.cart {key}"));
        reply.is_ok_and(|reply| reply.starts_with("*5"))
    };
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|at| {
                let mut client = Tls::shows(&resp, &ca, Some(&robots[0]));
                let (stop, answered) = (&stop, &answered);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        client.ask(&format!("ACQUIRE shop.cart key-{at}"), "*5");
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        assert!(asks(0, "a") && !asks(1, "b"));
        // Both, while one replaces the other.
        trust(&[&old, &new]);
        eventually("the new authority is trusted", || asks(1, "b"));
        assert!(asks(0, "a"));
        trust(&[&new]);
        eventually("the old authority is not trusted any more", || {
            !asks(0, "a")
        });
        assert!(asks(1, "b"));
        let before = answered.load(Ordering::Relaxed);
        eventually("the clients are answered", || {
            answered.load(Ordering::Relaxed) > before + 100
        });
        stop.store(true, Ordering::Relaxed);
        // Each would have panicked had its connection been lost.
        for client in clients {
            client.join().unwrap();
        }
    });
}

#[test]
fn a_token_is_generated_with_its_entry_and_a_wrong_role_is_reported() {
    let output = tidegate()
        .args(["token", "shop", "--roles", "decide,observe"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("{name: shop, roles: [decide, observe], tokens: ['sha256:"),
        "{text}"
    );
    let wrong = tidegate()
        .args(["token", "shop", "--roles", "root"])
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        String::from_utf8(wrong.stderr)
            .unwrap()
            .contains("`root` is not a role")
    );
}
