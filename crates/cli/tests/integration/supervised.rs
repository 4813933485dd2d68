//! The program under a supervisor with systemd's protocol: sockets, readiness, the watchdog.

use crate::program;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    process::{Child, Command, Stdio},
};

use program::{PATIENCE, scratch, tidegate};

/// Runs `serve` with a listening socket as file descriptor 3.
fn below(socket: &TcpListener, name: &str, more: &[(&str, &str)]) -> Child {
    let passed: OwnedFd = socket.try_clone().unwrap().into();
    // The descriptor arrives as standard input. LISTEN_PID must be the program's own id, which
    // `exec` keeps.
    let script = format!(
        "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={name} exec {} serve --resp off",
        env!("CARGO_BIN_EXE_tidegate")
    );
    let mut command = Command::new("sh");
    let clean = tidegate();
    for (variable, value) in clean.get_envs() {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    command
        .args(["-c", &script])
        .envs(more.iter().copied())
        .stdin(passed);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn stop(mut child: Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").arg(id).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_restart_with_the_supervisors_socket_refuses_no_connection() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let ask = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .unwrap();
        stream
    };
    let answered = |mut stream: TcpStream| {
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        told.starts_with("HTTP/1.1 200")
    };
    // Before the first server, between the two, and afterwards.
    let early = ask();
    let first = below(&socket, "http", &[]);
    assert!(answered(early) && answered(ask()));
    stop(first);
    let between = ask();
    let second = below(&socket, "http", &[]);
    assert!(answered(between) && answered(ask()));
    stop(second);
}

#[test]
fn a_supervisor_learns_that_the_server_is_ready_alive_and_stopping() {
    let directory = scratch("supervised-notify");
    let path = directory.join("notify");
    let supervisor = UnixDatagram::bind(&path).unwrap();
    supervisor.set_read_timeout(Some(PATIENCE)).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let told = || {
        let mut buffer = [0; 256];
        let length = supervisor
            .recv(&mut buffer)
            .expect("the supervisor should get a message");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let child = below(
        &socket,
        "http",
        &[
            ("NOTIFY_SOCKET", path.to_str().unwrap()),
            ("WATCHDOG_USEC", "50000"),
        ],
    );
    assert!(told().contains("READY=1"));
    assert!((0..3).all(|_| told().contains("WATCHDOG=1")));
    // When it reports readiness, it is ready.
    assert!(TcpStream::connect(socket.local_addr().unwrap()).is_ok());
    let id = child.id().to_string();
    assert!(Command::new("kill").arg(id).status().unwrap().success());
    while !told().contains("STOPPING=1") {}
    stop_ended(child);
}

fn stop_ended(mut child: Child) {
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_socket_with_an_unknown_name_is_refused_with_advice() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = below(&socket, "web", &[]);
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let told: String = lines.map_while(Result::ok).collect();
    assert!(
        told.contains("`web`")
            && told.contains("FileDescriptorName= to one of http, resp, grpc, spoe, sentinel-token, sentinel-dashboard, admin"),
        "{told}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
