//! Parses the access file.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use tidegate_config::{Complaints, Fields, Kind, Node, Problem, parse as parse_yaml};

use super::{AccessEntry, Digest, Known, Rights, Role};

/// The maximum length of a client's name.
const MAX_NAME: usize = 64;

/// Parses the text of an access file.
///
/// # Errors
/// All problems, in the order of the lines. No problem repeats a token.
pub fn parse(text: &str) -> Result<Known, Vec<Problem>> {
    let entries = tidegate_config::read(parse_yaml(text), |root, complaints| {
        let entries = root.and_then(|root| read(root, complaints));
        if entries.is_none() && complaints.is_empty() {
            complaints.add(Problem::overall("there is no `access:`").mend(
                "write a list of clients, as in `access: [{name: shop, roles: [decide], tokens: [...]}]`",
            ));
        }
        entries.unwrap_or_default()
    });
    entries.map(Known::new)
}

/// Whether the text has `access:` at its top. Also a text that is not valid YAML may begin a line
/// with it.
pub(super) fn is_access(text: &str) -> bool {
    match parse_yaml(text) {
        Ok(Some(Node {
            kind: Kind::Mapping(entries),
            ..
        })) => entries.iter().any(|(key, _)| key.text() == Some("access")),
        Ok(_) => false,
        Err(_) => text.lines().any(|line| line.starts_with("access:")),
    }
}

fn read(root: &Node, complaints: &Complaints) -> Option<Vec<AccessEntry>> {
    let fields = Fields::open(root, "the file", &["access"], complaints)?;
    let node = fields.get("access")?;
    let Kind::Sequence(items) = &node.kind else {
        fields.refuse("access", node, "write a list of clients");
        return None;
    };
    let mut taken = TakenValues::default();
    Some(
        items
            .iter()
            .filter_map(|item| read_entry(item, &mut taken, complaints))
            .collect(),
    )
}

/// Values that entries must not share.
#[derive(Default)]
struct TakenValues {
    names: BTreeSet<String>,
    tokens: BTreeSet<Digest>,
    certificates: BTreeSet<String>,
}

fn read_entry(
    node: &Node,
    taken: &mut TakenValues,
    complaints: &Complaints,
) -> Option<AccessEntry> {
    let known = [
        "name",
        "roles",
        "limits",
        "tokens",
        "certificates",
        "addresses",
    ];
    let fields = Fields::open(node, "a client", &known, complaints)?;
    let name = read_name(&fields, taken);
    let roles = read_roles(&fields);
    let mut prefixes = Vec::new();
    for (line, prefix) in texts(&fields, "limits") {
        if prefix.is_empty() {
            let what = "`limits` has an empty prefix, which matches every name";
            complaints.at(line, what, "remove `limits` to allow all limits");
        }
        prefixes.push(prefix.into());
    }
    if fields
        .get("limits")
        .is_some_and(|node| matches!(&node.kind, Kind::Sequence(items) if items.is_empty()))
    {
        let mend = "list prefixes of limit names, or remove it to allow all limits";
        complaints.at(fields.line(), "`limits` is an empty list", mend);
    }
    let mut tokens = Vec::new();
    for (line, token) in texts(&fields, "tokens") {
        // The text is not repeated, because it may be the token itself.
        let Some(digest) = read_digest(token) else {
            let what = "`tokens` has an entry that is not `sha256:` and 64 hexadecimal digits";
            complaints.at(
                line,
                what,
                "`tidegate token` generates a token and the line for this file",
            );
            continue;
        };
        if !taken.tokens.insert(digest) {
            complaints.at(
                line,
                "this token occurs twice",
                "give each client its own token",
            );
        }
        tokens.push(digest);
    }
    let mut certificates = Vec::new();
    for (line, name) in texts(&fields, "certificates") {
        if !taken.certificates.insert(name.to_owned()) {
            complaints.at(
                line,
                format!("the certificate name `{name}` occurs twice"),
                "keep one",
            );
        }
        certificates.push(name.into());
    }
    let mut addresses = Vec::new();
    for (line, text) in texts(&fields, "addresses") {
        if let Ok(network) = text
            .parse()
            .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        {
            addresses.push(network);
        } else {
            let mend = "write an address or a network, as in 192.0.2.7 or 10.0.0.0/8";
            complaints.at(line, format!("`addresses` has `{text}`"), mend);
        }
    }
    if ["tokens", "certificates", "addresses"]
        .iter()
        .all(|shown| fields.get(shown).is_none())
    {
        let what = "the client has neither `tokens` nor `certificates` nor `addresses`";
        complaints.at(
            fields.line(),
            what,
            "add one of them; no one can authenticate as this client",
        );
    }
    let rights = Rights::new(&name?, &roles?, prefixes.into());
    Some(AccessEntry {
        rights: Arc::new(rights),
        tokens,
        certificates,
        addresses,
    })
}

fn read_name(fields: &Fields<'_>, taken: &mut TakenValues) -> Option<String> {
    let Some(node) = fields.get("name") else {
        fields.complaints().at(
            fields.line(),
            "a client has no `name`",
            "add one, for the log",
        );
        return None;
    };
    let letter = |c: char| c.is_ascii_alphanumeric() || "._:/@-".contains(c);
    let name = node
        .text()
        .filter(|name| !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(letter));
    let Some(name) = name else {
        let mend = format!("use 1 to {MAX_NAME} letters, digits, `.`, `_`, `:`, `/`, `@` or `-`");
        fields.refuse("name", node, mend);
        return None;
    };
    if !taken.names.insert(name.to_owned()) {
        let what = format!("the name `{name}` occurs twice");
        fields
            .complaints()
            .at(node.line, what, "put all tokens of a client into one entry");
    }
    Some(name.to_owned())
}

fn read_roles(fields: &Fields<'_>) -> Option<Vec<Role>> {
    let mend = "write some of decide, observe, operate and report, as in `roles: [decide]`";
    let complaints = fields.complaints();
    let mut roles = Vec::new();
    for (line, text) in texts(fields, "roles") {
        match Role::ALL.iter().find(|role| role.name() == text) {
            Some(role) => roles.push(*role),
            None => complaints.at(line, format!("`{text}` is not a role"), mend),
        }
    }
    if roles.is_empty() && complaints.is_empty() {
        complaints.at(fields.line(), "a client has no role", mend);
    }
    (!roles.is_empty()).then_some(roles)
}

fn read_digest(text: &str) -> Option<Digest> {
    let text = text
        .strip_prefix("sha256:")
        .filter(|text| text.len() == 64 && text.is_ascii())?;
    let mut digest = Digest::default();
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

/// The texts in a list, with their lines.
fn texts<'a>(fields: &Fields<'a>, name: &str) -> Vec<(usize, &'a str)> {
    let Some(node) = fields.get(name) else {
        return Vec::new();
    };
    let complaints = fields.complaints();
    let Kind::Sequence(items) = &node.kind else {
        complaints.at(
            node.line,
            format!("`{name}` is not a list"),
            format!("write `{name}: [...]`"),
        );
        return Vec::new();
    };
    let text = |item: &'a Node| {
        let text = item.text().map(|text| (item.line, text));
        if text.is_none() {
            complaints.add(Problem::at(
                item.line,
                format!("`{name}` has an entry that is not text"),
            ));
        }
        text
    };
    items.iter().filter_map(text).collect()
}
