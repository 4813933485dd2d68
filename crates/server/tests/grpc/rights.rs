//! Who may call what: each method of each service × role × prefix. The services come from the
//! server and the methods from the descriptors that it sends, so a new one without a sample fails
//! here.

use std::net::SocketAddr;

use axum::http::Request;
use prost::Message;
use prost_types::FileDescriptorProto;
use tidegate_server::access::Role;
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, ServerReflectionResponse, server_reflection_request::MessageRequest,
    server_reflection_response::MessageResponse,
};

use crate::{
    harness::{PATIENCE, Running, digest_of, scratch},
    rls::{START, options},
};

const SHOP: &str =
    "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9}}]";
const OK: i32 = 0;
const INVALID_ARGUMENT: i32 = 3;
const PERMISSION_DENIED: i32 = 7;
const UNAUTHENTICATED: i32 = 16;
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const KUADRANT: &str = "kuadrant.service.ratelimit.v1.RateLimitService";

/// A client by its role, `None` without credentials, and whether it concerns the domain `shop`
/// only.
type Client = (Option<Role>, bool);

fn clients() -> Vec<Client> {
    let roles = [Role::Decide, Role::Observe, Role::Operate, Role::Report].map(Some);
    roles
        .into_iter()
        .flat_map(|role| [(role, false), (role, true)])
        .chain([(None, false)])
        .collect()
}

fn token((role, is_bounded): Client) -> Option<String> {
    Some(format!("token-of-{}-{is_bounded}", role?.name()))
}

/// A server with the domains `shop` and `other`.
fn serving(name: &str) -> Running {
    let access = scratch(&format!("{name}-access")).join("access.yaml");
    let entries = clients().into_iter().filter_map(|client| {
        let (role, digest) = (client.0?.name(), digest_of(&token(client)?));
        let limits = if client.1 { "limits: [shop.], " } else { "" };
        Some(format!(
            "  - {{name: {role}-{}, roles: [{role}], {limits}tokens: ['{digest}']}}\n",
            client.1
        ))
    });
    std::fs::write(&access, format!("access:\n{}", entries.collect::<String>())).unwrap();
    let mut options = options(name, SHOP);
    let directory = options
        .envoy_config
        .as_ref()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned();
    std::fs::write(directory.join("other.yaml"), SHOP.replace("shop", "other")).unwrap();
    (options.envoy_config, options.access) = (Some(directory), Some(access));
    Running::start_at(options, START)
}

/// Calls a method with one message. Returns the gRPC status and the first message of the answer.
async fn call(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    message: &[u8],
) -> (i32, Vec<u8>) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = Request::post(format!("http://{address}/{path}"))
        .header("content-type", "application/grpc");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let (answer, mut sends) = client
        .ready()
        .await
        .unwrap()
        .send_request(request.body(()).unwrap(), false)
        .unwrap();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    // A refusal may come before it is sent.
    let _ = sends.send_data([&[0], &length[..], message].concat().into(), true);
    let read = async {
        let (head, mut body) = answer.await.unwrap().into_parts();
        let mut told = Vec::new();
        while let Some(piece) = body.data().await {
            told.extend_from_slice(&piece.unwrap());
            let length = told
                .first_chunk::<5>()
                .map(|[_, length @ ..]| u32::from_be_bytes(*length) as usize);
            if length.is_some_and(|length| told.len() >= 5 + length) {
                return (OK, told.split_off(5));
            }
        }
        let trailers = body.trailers().await.unwrap();
        let status = &trailers.as_ref().unwrap_or(&head.headers)["grpc-status"];
        (status.to_str().unwrap().parse().unwrap(), Vec::new())
    };
    let told = tokio::time::timeout(PATIENCE, read)
        .await
        .expect("an answer");
    connection.abort();
    told
}

/// A field of a message with this number.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [
        &[number << 3 | 2, u8::try_from(content.len()).unwrap()],
        content,
    ]
    .concat()
}

/// A message for a method about a domain; whether the method is about a domain at all.
fn sample(method: &str, domain: &str, reservation: &str) -> (Vec<u8>, bool) {
    let entry = field(1, &[field(1, b"user"), field(2, b"ada")].concat());
    let asked = [field(1, domain.as_bytes()), field(2, &entry)].concat();
    match method.rsplit('/').next().unwrap() {
        "ShouldRateLimit" | "CheckRateLimit" | "Report" | "Reserve" => (asked, true),
        "Commit" => ([asked, field(3, reservation.as_bytes())].concat(), true),
        // A bucket in place of a descriptor.
        "StreamRateLimitQuotas" => (
            [field(1, domain.as_bytes()), field(2, &field(1, &entry))].concat(),
            true,
        ),
        "Check" | "Watch" | "List" => (Vec::new(), false),
        "ServerReflectionInfo" => (
            reflected(MessageRequest::ListServices(String::new())),
            false,
        ),
        _ => panic!("give a sample of the method {method}"),
    }
}

fn reflected(question: MessageRequest) -> Vec<u8> {
    ServerReflectionRequest {
        host: String::new(),
        message_request: Some(question),
    }
    .encode_to_vec()
}

/// The methods of all services, as `package.Service/Method`.
pub async fn methods(address: SocketAddr, token: Option<&str>) -> Vec<String> {
    let ask = async |question: MessageRequest| {
        let (status, answer) = call(address, REFLECTION, token, &reflected(question)).await;
        assert_eq!(status, OK);
        ServerReflectionResponse::decode(&*answer)
            .unwrap()
            .message_response
            .unwrap()
    };
    let MessageResponse::ListServicesResponse(list) =
        ask(MessageRequest::ListServices(String::new())).await
    else {
        panic!("a list");
    };
    // It is not in its own list.
    let mut methods = vec![REFLECTION.replace("v1", "v1alpha")];
    for service in list.service {
        let MessageResponse::FileDescriptorResponse(files) =
            ask(MessageRequest::FileContainingSymbol(service.name.clone())).await
        else {
            panic!("a file of {}", service.name);
        };
        for file in files.file_descriptor_proto {
            let file = FileDescriptorProto::decode(&*file).unwrap();
            for known in &file.service {
                let name = format!("{}.{}", file.package(), known.name());
                if name == service.name {
                    methods.extend(
                        known
                            .method
                            .iter()
                            .map(|method| format!("{name}/{}", method.name())),
                    );
                }
            }
        }
    }
    methods
}

#[test]
fn each_method_serves_only_the_roles_and_the_domains_of_its_clients() {
    let server = serving("grpc-rights");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let everyone = token((Some(Role::Decide), false));
        let methods = methods(server.grpc, everyone.as_deref()).await;
        for service in [
            "ratelimit.v3",
            "rate_limit_quota.v3",
            "kuadrant",
            "health",
            "reflection.v1.",
        ] {
            assert!(
                methods.iter().any(|method| method.contains(service)),
                "{service} is not in {methods:?}"
            );
        }
        for client in clients() {
            for method in &methods {
                for (domain, is_foreign) in [("shop", false), ("other", true)] {
                    let (reserve, _) = sample("Reserve", domain, "");
                    let (_, reserved) = call(
                        server.grpc,
                        &format!("{KUADRANT}/Reserve"),
                        everyone.as_deref(),
                        &reserve,
                    )
                    .await;
                    // The verdict, and then the id.
                    let id = String::from_utf8(reserved[4..].to_vec()).unwrap();
                    let (message, has_domain) = sample(method, domain, &id);
                    let (status, _) =
                        call(server.grpc, method, token(client).as_deref(), &message).await;
                    let expected = match client {
                        // Whoever balances the load has no credentials.
                        _ if method.starts_with("grpc.health.") => OK,
                        (None, _) => UNAUTHENTICATED,
                        (Some(Role::Decide), true) if has_domain && is_foreign => PERMISSION_DENIED,
                        (Some(Role::Decide), _) => OK,
                        _ => PERMISSION_DENIED,
                    };
                    assert_eq!(status, expected, "{method} on {domain} for {client:?}");
                }
            }
        }
    });
}

#[test]
fn the_reservation_of_a_foreign_domain_is_not_released_under_the_own_one() {
    let server = serving("grpc-rights-commit");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let [everyone, shop] =
            [false, true].map(|is_bounded| token((Some(Role::Decide), is_bounded)));
        let (reserve, _) = sample("Reserve", "other", "");
        let (_, reserved) = call(
            server.grpc,
            &format!("{KUADRANT}/Reserve"),
            everyone.as_deref(),
            &reserve,
        )
        .await;
        let id = String::from_utf8(reserved[4..].to_vec()).unwrap();
        let (commit, _) = sample("Commit", "shop", &id);
        let told = call(
            server.grpc,
            &format!("{KUADRANT}/Commit"),
            shop.as_deref(),
            &commit,
        )
        .await;
        assert_eq!(told, (INVALID_ARGUMENT, Vec::new()));
        let (commit, _) = sample("Commit", "other", &id);
        let told = call(
            server.grpc,
            &format!("{KUADRANT}/Commit"),
            everyone.as_deref(),
            &commit,
        )
        .await;
        assert_eq!(
            told,
            (OK, vec![8, 1]),
            "field 1: released, as it was still there"
        );
    });
}
