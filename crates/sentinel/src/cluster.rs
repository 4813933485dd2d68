//! Cluster rules in Sentinel's JSON, one file for each namespace, as limits.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::Arc,
    time::Duration,
};

use tidegate_core::AlgorithmSpec;
use tidegate_flow::sources::sentinel::{ClusterRule, ClusterThreshold, parse_cluster};
use tidegate_service::{
    decide::service::{Attached, InForce},
    rules::{LimitSpec, PolicySpec, Problem, RulesError, SharingSpec, files, read_text},
};

/// The maximum number of rules in all files together. It bounds the number of metrics.
const MAX_RULES: usize = 10_000;
/// Endings of file names that Sentinel's users put behind the namespace.
const ENDINGS: [&str; 3] = ["-param-flow-rules", "-param-rules", "-flow-rules"];

/// A rule for tokens, and the limit that counts them.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenRule {
    /// The id in requests.
    pub flow_id: i64,
    /// The programs that it applies to.
    pub namespace: Arc<str>,
    /// The name of its limit.
    pub limit: String,
    /// Whether it counts each value of a parameter.
    pub is_of_values: bool,
    /// How long a slot of the window is.
    pub slot: Duration,
    /// If each connection adds units: how many.
    pub per_connection: Option<PerConnection>,
}

/// The rules for tokens among the limits in force.
#[derive(Debug, Default)]
pub struct TokenRules(pub Vec<TokenRule>);

impl Attached for TokenRules {}

impl TokenRules {
    /// Those of the rules in force.
    pub fn of(in_force: &InForce) -> &[TokenRule] {
        in_force
            .attached()
            .map_or(&[], |Self(tokens)| tokens.as_slice())
    }
}

/// Units that each connection of a namespace adds.
#[derive(Clone, Debug, PartialEq)]
pub struct PerConnection {
    rule: ClusterRule,
    counts: HashMap<Vec<u8>, u32>,
}

impl PerConnection {
    /// The quota of a key with this number of connections.
    pub fn policy(&self, key: &[u8], connections: usize) -> PolicySpec {
        let count = self
            .counts
            .get(key)
            .map_or(self.rule.count, |&count| count.into());
        policy(&self.rule, count * connections as f64)
    }
}

/// The contents of all files.
#[derive(Debug, Default)]
pub struct ClusterRules {
    /// The rules.
    pub tokens: Vec<TokenRule>,
    /// Their limits, in the same order.
    pub limits: Vec<LimitSpec>,
}

/// Reads and checks a file, or all files of a directory. A file's name without its ending is its
/// namespace.
///
/// # Errors
/// When a file cannot be read or has problems, or rules share an id. The error lists all problems
/// of all files, and none of the files is used.
pub fn load_cluster(path: &Path) -> Result<ClusterRules, RulesError> {
    let (mut rules, mut errors) = (ClusterRules::default(), Vec::new());
    let mut seen = BTreeMap::new();
    for path in files::files(path)? {
        let read = read_text(&path).and_then(|text| {
            let invalid = |problems| RulesError::Invalid {
                path: Some(path.clone()),
                problems,
            };
            let namespace = namespace(&path).map_err(|problem| invalid(vec![problem]))?;
            let read = parse_cluster(&text)
                .map_err(|error| invalid(vec![Problem::overall(error.to_string())]))?;
            let mut problems = Vec::new();
            for rule in read {
                match token(rule, &namespace) {
                    Ok((token, limit)) => {
                        let id = (token.flow_id, token.is_of_values);
                        if let Some(first) = seen.insert(id, Arc::clone(&namespace)) {
                            let what =
                                format!("the flowId {} is already in the namespace {first}", id.0);
                            problems
                                .push(Problem::overall(what).mend("give each rule its own flowId"));
                        }
                        rules.tokens.push(token);
                        rules.limits.push(limit);
                    }
                    Err(problem) => problems.push(problem),
                }
            }
            if problems.is_empty() {
                Ok(())
            } else {
                Err(invalid(problems))
            }
        });
        errors.extend(read.err());
    }
    if rules.tokens.len() > MAX_RULES {
        let what = format!(
            "there are {} cluster rules; at most {MAX_RULES} are allowed",
            rules.tokens.len()
        );
        let problem = Problem::overall(what).mend("remove those that are not in use");
        errors.push(RulesError::invalid(Some(path), problem));
    }
    RulesError::check(errors)?;
    Ok(rules)
}

fn namespace(path: &Path) -> Result<Arc<str>, Problem> {
    let stem = path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default();
    let name = ENDINGS
        .iter()
        .find_map(|ending| stem.strip_suffix(ending))
        .unwrap_or(stem);
    let letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > 32 || !name.chars().all(letter) {
        let problem = Problem::overall(format!(
            "the file's name without its ending, `{name}`, is not a namespace"
        ));
        return Err(problem.mend(
            "use 1 to 32 letters, digits, `.`, `_` or `-`: the project.name of the programs",
        ));
    }
    Ok(name.into())
}

/// A rule, and its limit.
fn token(rule: ClusterRule, namespace: &Arc<str>) -> Result<(TokenRule, LimitSpec), Problem> {
    let is_of_values = rule.exceptions.is_some();
    let kind = if is_of_values { "param" } else { "flow" };
    let name = format!("{namespace}.{kind}.{}", rule.flow_id);
    let exceptions = rule.exceptions.iter().flatten();
    let counts: HashMap<Vec<u8>, u32> = exceptions
        .map(|(value, count)| (value.to_string().into_bytes(), *count))
        .collect();
    let is_average = rule.threshold == ClusterThreshold::AverageLocal;
    let overrides = counts.iter().filter(|_| !is_average).map(|(key, &count)| {
        (
            String::from_utf8_lossy(key).into_owned(),
            policy(&rule, count.into()),
        )
    });
    let limit = LimitSpec {
        global: !is_of_values,
        overrides: overrides.collect(),
        // Each server counts its own connections, so the servers' quotas add up to that of all
        // connections.
        sharing: SharingSpec {
            unshared: is_average,
            ..SharingSpec::default()
        },
        ..LimitSpec::new(name.clone(), policy(&rule, rule.count))
    };
    if let Err(error) = limit.policy.policy() {
        return Err(Problem::overall(format!(
            "flowId {} (resource {}): {error}",
            rule.flow_id, rule.resource
        )));
    }
    let token = TokenRule {
        flow_id: rule.flow_id,
        namespace: Arc::clone(namespace),
        limit: name,
        is_of_values,
        slot: rule.window / rule.slots,
        per_connection: is_average.then_some(PerConnection { rule, counts }),
    };
    Ok((token, limit))
}

/// The quota of a rule with `count` units a second. Its slots are counted as Sentinel counts them.
fn policy(rule: &ClusterRule, count: f64) -> PolicySpec {
    let mut algorithm = AlgorithmSpec::named("sliding-window").expect("the registry has it");
    algorithm
        .set("slots", Some(&rule.slots.to_string()))
        .expect("the registry has the option");
    algorithm
        .set("mode", Some("balanced"))
        .expect("the registry has the option");
    let policy = PolicySpec::new(algorithm, rule.units(count).into(), Some(rule.window));
    match rule.threshold {
        ClusterThreshold::AverageLocal => policy.wide(),
        _ => policy,
    }
}
