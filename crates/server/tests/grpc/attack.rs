//! What hostile clients cannot do to the gRPC listener.

use bytes::Bytes;
use proptest::{
    prelude::Rng as _,
    test_runner::{RngAlgorithm, TestRng},
};
use prost::Message as _;

use crate::{
    client::{Client, one, request},
    harness::{self, Running, digest_of, http2, scratch},
    rls::{CONFIG, START, options, serving},
};

#[test]
fn a_client_that_resets_streams_quickly_loses_its_connection() {
    let server = serving("grpc-resets", CONFIG);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let ended = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.grpc).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        let ended = tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        for _ in 0..100_000 {
            let path = "http://a/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
            let request = axum::http::Request::post(path)
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            match client.send_request(request, false) {
                Ok((_, mut stream)) => stream.send_reset(h2::Reason::CANCEL),
                Err(_) => break,
            }
            match client.ready().await {
                Ok(ready) => client = ready,
                Err(_) => break,
            }
            if ended.is_finished() {
                break;
            }
            tokio::task::yield_now().await;
        }
        tokio::time::timeout(harness::PATIENCE, ended)
            .await
            .expect("the connection should end")
            .unwrap()
    });
    // The last frame may be lost while the client is still writing.
    let error = ended.expect_err("the server should close the connection");
    assert!(
        error
            .reason()
            .is_none_or(|reason| reason == h2::Reason::ENHANCE_YOUR_CALM),
        "{error}"
    );
    let failed = || server.metric("tidegate_grpc_connections_failed_total") == 1;
    tidegate_redis_servers::eventually("the connection is counted as failed", failed);
    assert_eq!(
        Client::of(server.grpc).told(vec![one("user", "x")]),
        "OK: OK/2",
        "others are served"
    );
}

#[test]
fn connections_that_start_slowly_keep_no_client_out() {
    use std::{io::Write, net::TcpStream};
    let mut options = options("grpc-loris", CONFIG);
    options.max_connections = 8;
    let server = Running::start_at(options, START);
    // Half of the HTTP/2 preface, and all of it with a headers frame that never ends.
    let beginnings: [&[u8]; 2] = [
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x01\0\0\0\x01\x82",
    ];
    let mut slow = Vec::new();
    for at in 0..40 {
        let mut stream = TcpStream::connect(server.grpc).unwrap();
        // It may already be closed.
        let _ = stream.write_all(beginnings[at % 2]);
        slow.push(stream);
    }
    assert_eq!(
        Client::of(server.grpc).told(vec![one("user", "x")]),
        "OK: OK/2"
    );
    assert!(server.metric("tidegate_grpc_connections_evicted_total") > 0);
}

#[test]
fn headers_and_messages_above_their_bounds_are_refused() {
    let server = serving("grpc-flood", CONFIG);
    let mut client = Client::of(server.grpc);
    let huge = "x".repeat(4 << 20);
    let error = client
        .try_ask(request("shop", vec![one("user", &huge)]))
        .unwrap_err();
    assert_eq!(error.code(), tonic::Code::OutOfRange, "{error}");
    assert!(
        error
            .message()
            .ends_with("bytes; at most 4194304 are allowed"),
        "{error}"
    );
    // Descriptors and entries are parts, of which a message has at most 4,096.
    let mut parts = |descriptors: usize, entries: usize| {
        let mut descriptor = one("k", "v");
        descriptor.entries = vec![descriptor.entries.remove(0); entries];
        client
            .try_ask(request("shop", vec![descriptor; descriptors]))
            .map(drop)
            .map_err(|error| error.code())
    };
    assert_eq!([parts(2_048, 1), parts(1, 4_095)], [Ok(()); 2]);
    assert_eq!(
        [parts(2_049, 1), parts(1, 4_096)],
        [Err(tonic::Code::InvalidArgument); 2]
    );
    let mut flood = tonic::Request::new(request("shop", vec![one("user", "ada")]));
    for at in 0..40 {
        let name = tonic::metadata::MetadataKey::from_bytes(format!("h{at}").as_bytes()).unwrap();
        flood
            .metadata_mut()
            .insert(name, "x".repeat(1024).parse().unwrap());
    }
    assert!(
        client
            .runtime
            .block_on(client.rls.should_rate_limit(flood))
            .is_err()
    );
    assert_eq!(
        Client::of(server.grpc).told(vec![one("user", "ada")]),
        "OK: OK/2",
        "nothing was taken"
    );
}

#[test]
fn messages_are_answered_however_they_are_cut_and_no_bytes_stop_the_server() {
    let server = serving("grpc-cut", CONFIG);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[9; 32]);
    let message = request("shop", vec![one("k", "v"); 40]).encode_to_vec();
    let framed = [
        &[0][..],
        &u32::try_from(message.len()).unwrap().to_be_bytes(),
        &message,
    ]
    .concat();
    let status = async |client: &mut h2::client::SendRequest<Bytes>, bytes: &[u8], cut: usize| {
        let path = "http://a/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let head = axum::http::Request::post(path)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let (answer, mut body) = client.send_request(head.body(()).unwrap(), false).unwrap();
        for piece in bytes.chunks(cut) {
            body.send_data(Bytes::copy_from_slice(piece), false)
                .unwrap();
            // Each piece has a frame of its own.
            tokio::task::yield_now().await;
        }
        // The server may have answered already.
        let _ = body.send_data(Bytes::new(), true);
        let mut answer = answer.await.unwrap();
        if let Some(status) = answer.headers().get("grpc-status") {
            return status.clone();
        }
        while answer.body_mut().data().await.is_some() {}
        answer.body_mut().trailers().await.unwrap().unwrap()["grpc-status"].clone()
    };
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.grpc).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        for cut in [1, 2, 3, 4, 5, 6, 7, 30, 100, framed.len()] {
            assert_eq!(status(&mut client, &framed, cut).await, "0", "{cut}");
        }
        for round in 0..200 {
            let mut bytes = framed.clone();
            let cut = random.next_u32() as usize % framed.len();
            for _ in 0..=round % 10 {
                let at = random.next_u32() as usize % framed.len();
                // The length in front is of these bytes, or they wait for more.
                bytes[at.max(5)] = random.next_u32() as u8;
            }
            let told = status(&mut client, &bytes, 1 + cut).await;
            assert!(
                told.to_str().is_ok_and(|code| code.parse::<u8>().is_ok()),
                "{told:?}"
            );
        }
    });
    assert_eq!(
        Client::of(server.grpc).told(vec![one("user", "x")]),
        "OK: OK/2",
        "others are served"
    );
}

#[test]
fn header_fields_that_never_end_close_the_connection() {
    use std::io::Write;
    let server = serving("grpc-continuation", CONFIG);
    // `x: xxx…` as HPACK's literal without indexing, and nothing at all.
    let field = [&[0, 1, b'x', 0x7f, 0x81, 0x7e][..], &[b'x'; 16_256]].concat();
    for block in [field.as_slice(), &[]] {
        let mut stream = std::net::TcpStream::connect(server.grpc).unwrap();
        stream.set_read_timeout(Some(harness::PATIENCE)).unwrap();
        stream.set_write_timeout(Some(harness::PATIENCE)).unwrap();
        let frame = |kind: u8, flags: u8, stream: u8, block: &[u8]| {
            let length = u32::try_from(block.len()).unwrap().to_be_bytes();
            [&length[1..], &[kind, flags, 0, 0, 0, stream], block].concat()
        };
        let greeting = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            frame(4, 0, 0, &[]).as_slice(),
        ]
        .concat();
        stream.write_all(&greeting).unwrap();
        // HEADERS without END_HEADERS, and then CONTINUATION without it.
        stream.write_all(&frame(1, 0, 1, block)).unwrap();
        let sent = (0..200_000)
            .take_while(|_| stream.write_all(&frame(9, 0, 1, block)).is_ok())
            .count();
        assert!(sent < 200_000, "the server should close the connection");
    }
    assert_eq!(
        Client::of(server.grpc).told(vec![one("user", "x")]),
        "OK: OK/2",
        "others are served"
    );
}

#[test]
fn each_kind_of_control_frame_ends_its_connection_when_there_are_too_many() {
    let server = serving("grpc-control", CONFIG);
    for (at, (name, frame)) in http2::control_frames().into_iter().enumerate() {
        assert!(http2::ends_after_a_flood_of(server.grpc, &frame), "{name}");
        assert_eq!(
            Client::of(server.grpc).told(vec![one("user", name)]),
            "OK: OK/2",
            "{name}: others are served"
        );
        let failed = || server.metric("tidegate_grpc_connections_failed_total") == at as u64 + 1;
        tidegate_redis_servers::eventually("the connection is counted as failed", failed);
    }
}

#[test]
fn half_open_connections_end_by_a_deadline() {
    use std::{io::Write, net::TcpStream};
    const MANY: usize = 600;
    let _ = tidegate_server::raise_open_files(2 * MANY + 200, 1);
    let server = serving("grpc-half-open", CONFIG);
    // Nothing, half of the preface, no request, and a head that never ends.
    let head = [
        http2::greeting().as_slice(),
        b"\0\0\x01\x01\x01\0\0\0\x01\x82",
    ]
    .concat();
    let beginnings: [&[u8]; 4] = [b"", &http2::PREFACE[..12], &http2::greeting(), &head];
    let open = (0..MANY).map(|at| {
        let mut stream = TcpStream::connect(server.grpc).unwrap();
        stream.write_all(beginnings[at % beginnings.len()]).unwrap();
        stream
    });
    let open: Vec<_> = open.collect();
    assert_eq!(
        Client::of(server.grpc).told(vec![one("user", "x")]),
        "OK: OK/2",
        "others are served"
    );
    assert!(open.iter().all(http2::is_ended));
}

#[test]
fn an_address_that_guesses_tokens_waits_and_a_right_one_is_served() {
    let mut options = options("grpc-guesses", CONFIG);
    let access = scratch("grpc-guesses-access").join("access.yaml");
    let token = digest_of("the-right-token");
    std::fs::write(
        &access,
        format!("access: [{{name: shop, roles: [decide], tokens: ['{token}']}}]\n"),
    )
    .unwrap();
    options.access = Some(access);
    let server = Running::start_at(options, START);
    let mut client = Client::of(server.grpc);
    let mut ask = |token: Option<&str>| {
        let mut request = tonic::Request::new(request("shop", vec![one("user", "x")]));
        if let Some(token) = token {
            request
                .metadata_mut()
                .insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        client
            .runtime
            .block_on(client.rls.should_rate_limit(request))
            .map_err(|error| error.code())
            .err()
    };
    let codes: Vec<_> = (0..40)
        .map(|at| ask(Some(&format!("wrong-{at}"))).unwrap())
        .collect();
    let waits = codes
        .iter()
        .position(|code| *code != tonic::Code::Unauthenticated)
        .unwrap();
    // One more may come back while they are asked.
    assert!((20..=22).contains(&waits), "{codes:?}");
    assert!(codes.contains(&tonic::Code::ResourceExhausted));
    assert_eq!(
        ask(None),
        Some(tonic::Code::Unauthenticated),
        "who gives none guesses nothing"
    );
    assert_eq!(ask(Some("the-right-token")), None);
}
