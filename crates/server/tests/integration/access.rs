//! Access files, as `tidegate check` and `tidegate serve` parse them.

use crate::harness;

use base64::{Engine, prelude::BASE64_STANDARD};
use harness::{Http, Running, digest_of, scratch};
use tidegate_server::access::parse;

#[test]
fn any_of_a_clients_tokens_works_for_its_limits_and_a_name_must_match_the_token() {
    let file = scratch("access-tokens").join("access.yaml");
    // The first digest is what `printf %s tidegate | sha256sum` prints.
    let [old, new, ops] = [
        "sha256:a99cd8901f3c80fd90b9c755f73d32bf3b14f3dbd572c605f72aa8fd32af42d8",
        &digest_of("new"),
        &digest_of("ops"),
    ];
    let entries = format!(
        "access:\n  - {{name: shop, roles: [decide], tokens: ['{old}', '{new}'], limits: [shop.]}}\n  - {{name: ops, roles: [operate], tokens: ['{ops}']}}\n"
    );
    std::fs::write(&file, entries).unwrap();
    let rules = "limits: [{name: shop, limit: 9/1h}, {name: shop.cart, limit: 9/1h}]";
    let server = Running::with_rules_and("access-tokens-rules", rules, |options| {
        options.access = Some(file);
    });
    let ask = |credentials: &str, limit: &str| {
        let body = format!(r#"{{"limit":"{limit}","key":"a"}}"#);
        let mut http = Http::connect(server.http);
        let head = format!(
            "POST /v1/acquire HTTP/1.1\r\nhost: a\r\nauthorization: {credentials}\r\ncontent-length: {}",
            body.len()
        );
        http.write(format!("{head}\r\n\r\n{body}").as_bytes());
        http.read().status
    };
    let basic = |pair: &str| {
        ask(
            &format!("Basic {}", BASE64_STANDARD.encode(pair)),
            "shop.cart",
        )
    };
    let bearer = |token: &str| ask(&format!("Bearer {token}"), "shop.cart");
    assert_eq!(
        [
            bearer("tidegate"),
            basic("shop:new"),
            basic("ops:new"),
            bearer("newer")
        ],
        [200, 200, 401, 401]
    );
    assert_eq!(bearer(new), 401, "the digest in the file is not a token");
    assert_eq!(
        ask("Bearer new", "shop"),
        403,
        "its limits begin with `shop.`"
    );
    assert_eq!(bearer("ops"), 403, "an operator does not decide");
}

#[test]
fn problems_have_their_line_and_never_a_token() {
    let digest = "ab".repeat(32);
    for (text, told) in [
        ("", "there is no `access:`"),
        ("access: 5", "line 1: `access` is `5`"),
        ("clients: []", "no option `clients`"),
        (
            "access:\n  - {name: a, roles: [decide]}",
            "line 2: the client has neither",
        ),
        (
            "access:\n  - {name: a, roles: [decide], addresses: [10.0.0.0/33]}",
            "line 2: `addresses` has `10.0.0.0/33`",
        ),
        (
            "access:\n  - {name: a, roles: [root], tokens: []}",
            "`root` is not a role",
        ),
        (
            "access:\n  - {name: a, roles: [], tokens: []}",
            "a client has no role",
        ),
        (
            "access:\n  - {name: a b, roles: [decide], tokens: []}",
            "`name` is `a b`",
        ),
        (
            "access:\n  - {name: a, roles: decide, tokens: []}",
            "`roles` is not a list",
        ),
        (
            "access:\n  - {name: a, roles: [decide], limits: [], tokens: []}",
            "empty list",
        ),
        (
            "access:\n  - {name: a, roles: [decide], limits: [''], tokens: []}",
            "empty prefix",
        ),
        (
            "access:\n  - {name: a, roles: [decide], tokens: [my-secret-token]}",
            "`tidegate token`",
        ),
        (
            "access:\n  - {name: a, roles: [decide], tokens: []}\n  - {name: a, roles: [decide], tokens: []}",
            "line 3: the name `a`",
        ),
        (
            &format!(
                "access:\n  - {{name: a, roles: [decide], tokens: ['sha256:{digest}']}}\n  - {{name: b, roles: [decide], tokens: ['sha256:{digest}']}}"
            ),
            "line 3: this token occurs twice",
        ),
    ] {
        let problems: Vec<String> = parse(text)
            .unwrap_err()
            .iter()
            .map(ToString::to_string)
            .collect();
        let all = problems.join("\n");
        assert!(all.contains(told), "{text}: {all}");
        assert!(
            !all.contains("my-secret-token") && !all.contains(&digest),
            "{all}"
        );
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text: String) {
        let _ = parse(&text);
        let _ = parse(&format!("access:\n  - {text}"));
    }
}
