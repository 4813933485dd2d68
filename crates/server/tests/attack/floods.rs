//! HTTP/2 frames that ask for nothing.

use crate::{
    RULES,
    harness::{Running, http2},
};

const ASK: &str = r#"{"limit":"per-user","key":"alice"}"#;

#[test]
fn each_kind_of_control_frame_ends_its_connection_when_there_are_too_many() {
    let server = Running::with_rules("attack-floods", RULES);
    for (name, frame) in http2::control_frames() {
        for address in [server.http, server.admin] {
            assert!(http2::ends_after_a_flood_of(address, &frame), "{name}");
            assert_eq!(
                server.post("/v1/peek", ASK).status,
                200,
                "{name}: others are served"
            );
        }
    }
}

#[test]
fn a_connection_with_thousands_of_requests_and_a_few_control_frames_for_each_goes_on() {
    let server = Running::with_rules("attack-floods-requests", RULES);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.http).await.unwrap();
        let (mut client, mut connection) = h2::client::handshake(stream).await.unwrap();
        let mut pings = connection.ping_pong().unwrap();
        tokio::spawn(connection);
        for _ in 0..3_000 {
            let request = axum::http::Request::get(format!("http://{}/healthz", server.http))
                .body(())
                .unwrap();
            client = client.ready().await.unwrap();
            let (answer, _) = client.send_request(request, true).unwrap();
            assert_eq!(answer.await.unwrap().status(), 200);
            pings.ping(h2::Ping::opaque()).await.unwrap();
        }
    });
}
