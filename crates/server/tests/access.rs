//! Access files, as `tidegate check` and `tidegate serve` parse them.

use tidegate_server::access::parse;

#[test]
fn problems_have_their_line_and_never_a_token() {
    let digest = "ab".repeat(32);
    for (text, told) in [
        ("", "there is no `access:`"),
        ("access: 5", "line 1: `access` is `5`"),
        ("clients: []", "no option `clients`"),
        ("access:\n  - {name: a, roles: [decide]}", "line 2: the client has neither"),
        (
            "access:\n  - {name: a, roles: [decide], addresses: [10.0.0.0/33]}",
            "line 2: `addresses` has `10.0.0.0/33`",
        ),
        ("access:\n  - {name: a, roles: [root], tokens: []}", "`root` is not a role"),
        ("access:\n  - {name: a, roles: [], tokens: []}", "a client has no role"),
        ("access:\n  - {name: a b, roles: [decide], tokens: []}", "`name` is `a b`"),
        ("access:\n  - {name: a, roles: decide, tokens: []}", "`roles` is not a list"),
        ("access:\n  - {name: a, roles: [decide], limits: [], tokens: []}", "empty list"),
        ("access:\n  - {name: a, roles: [decide], limits: [''], tokens: []}", "empty prefix"),
        ("access:\n  - {name: a, roles: [decide], tokens: [my-secret-token]}", "`tidegate token`"),
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
        let problems: Vec<String> = parse(text).unwrap_err().iter().map(ToString::to_string).collect();
        let all = problems.join("\n");
        assert!(all.contains(told), "{text}: {all}");
        assert!(!all.contains("my-secret-token") && !all.contains(&digest), "{all}");
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text: String) {
        let _ = parse(&text);
        let _ = parse(&format!("access:\n  - {text}"));
    }
}
