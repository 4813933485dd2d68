//! Listeners on Unix sockets.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
};

use tidegate_server::Options;

use crate::{
    client::{Client, one},
    harness::{Running, scratch},
    rls::{CONFIG, START, options},
};

fn at(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}

fn socket(name: &str) -> PathBuf {
    scratch(&format!("{name}-place")).join("socket")
}

fn refused(options: Options) -> String {
    Running::try_start_at(options, START)
        .err()
        .expect("the server should not start")
}

#[test]
fn a_socket_of_a_killed_server_is_replaced_and_goes_with_the_server() {
    let socket = socket("grpc-unix");
    let options = || Options {
        grpc: Some(at(&socket)),
        ..options("grpc-unix", CONFIG)
    };
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists(), "the file of a listener that is gone stays");
    let server = Running::start_at(options(), START);
    let mut client = Client::at(at(&socket));
    assert_eq!(client.told(vec![one("user", "ada")]), "OK: OK/2");
    let second = refused(options());
    assert!(
        second.contains("(--grpc)") && second.contains("another program uses the address"),
        "{second}"
    );
    assert_eq!(
        client.told(vec![one("user", "ada")]),
        "OK: OK/1",
        "it is not disturbed"
    );
    assert_eq!(server.metric("tidegate_grpc_connections"), 1);
    drop(client);
    server.stop();
    assert!(!socket.exists());
}

#[test]
fn files_that_are_not_the_servers_stay() {
    let socket = socket("grpc-unix-files");
    let options = || Options {
        grpc: Some(at(&socket)),
        ..options("grpc-unix-files", CONFIG)
    };
    let server = Running::start_at(options(), START);
    fs::remove_file(&socket).unwrap();
    let _another = UnixListener::bind(&socket).unwrap();
    server.stop();
    assert!(socket.exists(), "another server listens there");
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "notes").unwrap();
    let why = refused(options());
    assert!(
        why.contains("a file that is not a socket; remove the file"),
        "{why}"
    );
    let link = socket.with_file_name("link");
    std::os::unix::fs::symlink(&socket, &link).unwrap();
    let why = refused(Options {
        grpc: Some(at(&link)),
        ..options()
    });
    assert!(why.contains("not a socket"), "{why}");
    assert_eq!(fs::read_to_string(&link).unwrap(), "notes");
    let why = refused(Options {
        grpc: Some(at(&socket.with_file_name("no/socket"))),
        ..options()
    });
    assert!(why.contains("make the directory of the socket"), "{why}");
}

#[test]
fn http_is_served_there_too_for_clients_of_this_machine() {
    let [http, admin] = ["http-unix", "admin-unix"].map(socket);
    let on = |option: &Path| Some(at(option));
    let options = || Options {
        http: on(&http),
        admin: on(&admin),
        ..options("http-unix", CONFIG)
    };
    let _server = Running::start_at(options(), START);
    let get = |socket: &Path, path: &str| {
        let mut stream = UnixStream::connect(socket).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(get(&http, "/healthcheck").starts_with("HTTP/1.1 200"));
    // Operators on this machine need no credentials.
    assert!(get(&admin, "/metrics").contains("tidegate_build_info"));
}

#[test]
fn the_redis_protocol_is_served_there_too_by_every_thread() {
    let socket = socket("resp-unix");
    let options = || Options {
        resp: Some(at(&socket)),
        resp_threads: 3,
        ..options("resp-unix", CONFIG)
    };
    drop(UnixListener::bind(&socket).unwrap());
    let server = Running::start_at(options(), START);
    let asked = |stream: &mut UnixStream, command: &[u8], length: usize| {
        stream.write_all(command).unwrap();
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    };
    // Each connection has its commands answered, whichever thread took it.
    let mut streams: Vec<_> = (0..12)
        .map(|_| UnixStream::connect(&socket).unwrap())
        .collect();
    for stream in &mut streams {
        assert_eq!(asked(stream, b"PING\r\nPING\r\n", 14), "+PONG\r\n+PONG\r\n");
        // No credentials are needed, as on a loopback address.
        let decided = asked(stream, b"CL.THROTTLE k 100 100 3600\r\n", 4);
        assert_eq!(decided, "*5\r\n");
    }
    let open = "tidegate_connections{protocol=\"resp\"}";
    assert_eq!(server.metric(open), 12);
    let why = refused(options());
    assert!(
        why.contains("(--resp)") && why.contains("another program uses the address"),
        "{why}"
    );
    server.stop();
    assert!(!socket.exists(), "the file goes with the server");
    for mut stream in streams {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_name_that_begins_with_an_at_sign_has_no_file() {
    use std::os::{linux::net::SocketAddrExt as _, unix::net::SocketAddr};

    let name = format!("@tidegate-test-{}", std::process::id());
    let server = Running::start_at(
        Options {
            grpc: Some(format!("unix:{name}")),
            ..options("grpc-name", CONFIG)
        },
        START,
    );
    let address = SocketAddr::from_abstract_name(&name[1..]).unwrap();
    UnixStream::connect_addr(&address).unwrap();
    assert!(!Path::new(&name).exists());
    server.stop();
    assert!(UnixStream::connect_addr(&address).is_err());
}
