//! Configurations of other limiters as rules: equal rules, or a refusal that names the line.

mod gateways;
mod javascript;
mod nginx;
mod python;
mod spring;

use std::{fmt::Write as _, time::Duration};

use tidegate_config::{Complaints, Fields, Kind, Node, Problem, abridged, parse as parse_yaml};

use crate::{LimitSpec, PolicySpec, parse};

/// The configurations that [`import`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The options of a rate-limiter-flexible, as JSON.
    RateLimiterFlexible,
    /// The options of express-rate-limit, as JSON.
    ExpressRateLimit,
    /// Strings of Python's `limits`, counted by its fixed windows.
    LimitsFixed,
    /// Strings of Python's `limits`, counted by its moving windows.
    LimitsMoving,
    /// The settings of Flask-Limiter, a line each.
    FlaskLimiter,
    /// The directives `limit_req` and `limit_conn` of nginx.
    Nginx,
    /// The YAML of bucket4j-spring-boot-starter.
    Bucket4j,
    /// The YAML of resilience4j's rate limiters.
    Resilience4j,
    /// The middlewares `rateLimit` and `inFlightReq` of Traefik, as YAML or JSON.
    Traefik,
    /// The plugin `rate-limiting` of Kong, as YAML or JSON.
    Kong,
    /// The plugins `limit-count`, `limit-req` and `limit-conn` of APISIX, as YAML or JSON.
    Apisix,
    /// The rate limiting rules of Cloudflare's rulesets, as JSON.
    Cloudflare,
}

/// Rules, and what to know about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// A rules file.
    pub yaml: String,
    /// Options that concern no decision, or the call instead of the rule.
    pub notes: Vec<String>,
}

const FIRST_HIT: &str = "fixed-window:first_hit:count_denied";

/// Reads another limiter's configuration.
///
/// # Errors
/// Everything that has no counterpart, each with its line. Nothing is approximated.
pub fn import(format: Format, text: &str) -> Result<Imported, Vec<Problem>> {
    let complaints = Complaints::default();
    let mut made = Made::default();
    match format {
        Format::RateLimiterFlexible => options(text, &complaints, |node, number| {
            javascript::flexible(node, number, &complaints, &mut made)
        })?,
        Format::ExpressRateLimit => options(text, &complaints, |node, number| {
            javascript::express(node, number, &complaints, &mut made)
        })?,
        Format::LimitsFixed => python::strings(text, FIRST_HIT, &complaints, &mut made),
        Format::LimitsMoving => python::strings(text, python::MOVING, &complaints, &mut made),
        Format::FlaskLimiter => python::flask(text, &complaints, &mut made),
        Format::Nginx => nginx::nginx(text, &complaints, &mut made),
        Format::Bucket4j => tree(text, |root| spring::bucket4j(root, &complaints, &mut made))?,
        Format::Resilience4j => {
            tree(text, |root| {
                spring::resilience4j(root, &complaints, &mut made);
            })?;
        }
        Format::Traefik => tree(text, |root| gateways::traefik(root, &complaints, &mut made))?,
        Format::Kong => tree(text, |root| gateways::kong(root, &complaints, &mut made))?,
        Format::Apisix => tree(text, |root| gateways::apisix(root, &complaints, &mut made))?,
        Format::Cloudflare => {
            tree(text, |root| {
                gateways::cloudflare(root, &complaints, &mut made);
            })?;
        }
    }
    // A limit that is wrong is one.
    if made.rules.is_empty() && complaints.is_empty() {
        complaints.add(Problem::overall("there is no limit to import"));
    }
    let problems = complaints.into_sorted();
    if !problems.is_empty() {
        return Err(problems);
    }
    made.notes.dedup();
    let mut yaml = String::from("limits:\n");
    for (comment, limit) in &made.rules {
        // Writing to a `String` does not fail.
        let _ = writeln!(yaml, "  # {comment}");
        limit.yaml().lines().for_each(|line| {
            let _ = writeln!(yaml, "  {line}");
        });
    }
    // The text is a rules file.
    parse(&yaml)?;
    Ok(Imported {
        yaml,
        notes: made.notes,
    })
}

#[derive(Default)]
struct Made {
    /// Each with a comment.
    rules: Vec<(String, LimitSpec)>,
    notes: Vec<String>,
}

impl Made {
    fn add(
        &mut self,
        comment: &str,
        name: String,
        algorithm: &str,
        (limit, window): (u64, Option<Duration>),
        (line, complaints): (usize, &Complaints),
    ) {
        let letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_name = !name.is_empty() && name.len() <= 64 && name.chars().all(letter);
        if !is_name || self.rules.iter().any(|(_, limit)| limit.name == name) {
            let what = format!("`{}` cannot be the name of a rule", abridged(&name));
            let mend = "use 1 to 64 letters, digits, `.`, `_` or `-`, each name once";
            return complaints.at(line, what, mend);
        }
        let policy = algorithm
            .parse()
            .map(|algorithm| PolicySpec::new(algorithm, limit, window));
        let checked = policy.map_err(|error| error.to_string()).and_then(|spec| {
            let policy = spec.policy().map_err(|error| error.to_string());
            policy.map(|_| spec)
        });
        match checked {
            Ok(policy) => {
                let comment = abridged(comment);
                self.rules.push((comment, LimitSpec::new(name, policy)));
            }
            Err(why) => complaints.add(Problem::at(line, why)),
        }
    }
}

/// Reads YAML, of which JSON is a part.
fn tree(text: &str, read: impl FnOnce(&Node)) -> Result<(), Vec<Problem>> {
    let root = parse_yaml(text).map_err(|problem| vec![problem])?;
    if let Some(root) = &root {
        read(root);
    }
    Ok(())
}

/// Reads options as JSON: one mapping, or a list of them.
fn options(
    text: &str,
    complaints: &Complaints,
    mut read: impl FnMut(&Node, usize) -> Option<()>,
) -> Result<(), Vec<Problem>> {
    let root = parse_yaml(text).map_err(|problem| vec![problem])?;
    let nodes = match &root {
        Some(Node {
            kind: Kind::Sequence(items),
            ..
        }) => items.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    for (number, node) in nodes.iter().enumerate() {
        if read(node, number + 1).is_none() && matches!(node.kind, Kind::Scalar { .. }) {
            complaints.at(node.line, "no options", "write them as a JSON object");
        }
    }
    Ok(())
}

/// Complains about an option that changes decisions, unless it has its default.
fn refuse(fields: &Fields<'_>, name: &str, default: &str, why: &str) {
    if let Some(node) = fields.get(name).filter(|node| node.text() != Some(default)) {
        let what = format!("`{name}` has no equal rule: {why}");
        fields
            .complaints()
            .at(node.line, what, "remove it, and import again");
    }
}

fn note(fields: &Fields<'_>, names: &[&str], why: &str, notes: &mut Vec<String>) {
    for name in names {
        if let Some(node) = fields.get(name) {
            notes.push(format!("line {}: `{name}` {why}", node.line));
        }
    }
}
