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
    let why = refused(Options {
        resp: on(&socket("resp-unix")),
        http: None,
        admin: None,
        ..options()
    });
    assert!(
        why.contains("the Redis protocol is not served on a Unix socket"),
        "{why}"
    );
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
