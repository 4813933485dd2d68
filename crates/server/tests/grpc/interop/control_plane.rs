//! go-control-plane, which Envoy Gateway runs, as `scripts/servers.sh control-plane` builds it.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
};

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tidegate_core::{Clock, Nanos, clock::SystemClock};
use tidegate_server::{Options, descriptors::Consume};

use crate::{
    client::{Client, one, request, shown},
    harness::{PATIENCE, Running, scratch},
    rls::START,
};

pub struct ControlPlane {
    process: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<String>,
}

impl ControlPlane {
    pub fn start(arguments: &[&str]) -> Self {
        let program =
            env::var("TIDEGATE_CONTROL_PLANE").expect("scripts/servers.sh control-plane names it");
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        Self {
            process,
            input,
            lines,
        }
    }

    pub fn send(&mut self, snapshot: &str) {
        writeln!(self.input, "{snapshot}").unwrap();
    }

    pub fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An authority, and a certificate for both sides, as Envoy Gateway makes them.
fn certificates(directory: &Path) -> [String; 3] {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (authority, key) = {
        let key = KeyPair::generate().unwrap();
        (
            params.self_signed(&key).unwrap().pem(),
            Issuer::new(params, key),
        )
    };
    let mut params = CertificateParams::new(vec!["envoy-gateway".to_owned()]).unwrap();
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let own = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&own, &key).unwrap().pem();
    let texts = [
        ("tls.crt", certificate),
        ("tls.key", own.serialize_pem()),
        ("ca.crt", authority),
    ];
    texts.map(|(name, text)| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

#[test]
#[ignore = "needs Go: scripts/test.sh --interop"]
fn snapshots_of_go_control_plane_are_in_force_or_refused_once_a_second() {
    let [cert, key, ca] = certificates(&scratch("xds-go"));
    let mut control_plane =
        ControlPlane::start(&["127.0.0.1:0", "envoy-ratelimit", &cert, &key, &ca]);
    let address = control_plane.line().split_once(' ').unwrap().1.to_owned();
    control_plane.send("1 shop=2 bank=1");
    let url = format!(
        "https://{address}?node=envoy-ratelimit&server_name=envoy-gateway&cert={cert}&key={key}&ca={ca}&first_pause=10ms"
    );
    let options = Options {
        grpc: Some("127.0.0.1:0".to_owned()),
        envoy_xds: vec![url.parse().unwrap()],
        envoy_consume: Consume::Each,
        ..Options::default()
    };
    let server = Running::start_at(options, START);
    assert_eq!(control_plane.line(), "ACK 1");
    let mut client = Client::of(server.grpc);
    let mut told = |domain: &str| {
        shown(
            &client
                .try_ask(request(domain, vec![one("user", "ada")]))
                .unwrap(),
        )
    };
    assert_eq!(
        [told("shop"), told("bank"), told("bank")],
        ["OK: OK/1", "OK: OK/0", "OVER: OVER/0"]
    );

    // go-control-plane sends a refused snapshot again at once.
    control_plane.send("2 shop=9 bank=0");
    let clock = SystemClock::new();
    let first = control_plane.line();
    assert!(
        first.starts_with("NACK 1 ") && first.contains("domain bank"),
        "{first}"
    );
    let begin = clock.now();
    for _ in 0..2 {
        assert_eq!(control_plane.line(), first);
    }
    assert!(clock.now().saturating_since(begin) >= Nanos::from_millis(1_900));
    assert_eq!(told("shop"), "OK: OK/0", "the rules of before");
    control_plane.send("3 shop=4");
    // A refusal may be on its way.
    let next = control_plane.line();
    let next = if next == first {
        control_plane.line()
    } else {
        next
    };
    assert_eq!(next, "ACK 3");
    assert_eq!([told("shop"), told("bank")], ["OK: OK/1", "OK: OK/0"]);

    // Snapshots under load: each is in force, and no request fails.
    for version in 4..104 {
        control_plane.send(&format!(
            "{version} shop={} extra-{version}=5",
            1_000 + version
        ));
        assert_eq!(control_plane.line(), format!("ACK {version}"));
        let limit = told(&format!("extra-{version}"));
        assert_eq!(limit, "OK: OK/4");
    }
    assert_eq!(
        told("shop"),
        format!("OK: OK/{}", 1_103 - 4),
        "three were admitted before"
    );
}
