//! The rules of one program: those that it has, compared with the kept ones of its application.

use std::{fmt::Debug, net::SocketAddr};

use tidegate_flow::{
    rules::{FlowRule, Rules as GateRules, SystemRule},
    sources::{
        SourceError,
        sentinel::{self, Kind},
        yaml,
    },
};
use tidegate_service::flow::{OwnRules, Rules};
use url::form_urlencoded::Serializer;

use super::call::{CallError, call};

const KINDS: [Kind; 5] = Kind::OF_COMMANDS;

/// Which of the kept rules a program has. A heartbeat does not say whether a program was started
/// again, so its rules are compared.
#[derive(Debug, Default)]
pub(super) struct RuleSync {
    /// The version of the kept rules, if the program has them.
    pub version: Option<String>,
    /// Why it has others.
    pub rejected: Option<String>,
    /// Those that it has.
    pub own: Option<OwnRules>,
    wanted: Option<Wanted>,
    /// What the program made of each kind of rules that were pushed, if that is something else.
    refused: [Option<String>; KINDS.len()],
}

/// The kept rules in Sentinel's terms.
#[derive(Debug)]
struct Wanted {
    version: String,
    /// The JSON of each kind, and its content.
    kinds: [(String, String); KINDS.len()],
    /// Rules that Sentinel does not have.
    left_out: Vec<String>,
}

impl Wanted {
    fn of(kept: &Rules) -> Self {
        // They were checked when they were pushed.
        let mut rules = yaml::parse(&kept.text).unwrap_or_default();
        // In Sentinel an isolation rule is a flow rule.
        let isolation = std::mem::take(&mut rules.isolation)
            .into_iter()
            .map(|rule| {
                let mut flow = FlowRule::in_flight(rule.resource, rule.threshold);
                flow.id = rule.id;
                flow
            });
        rules.flow.extend(isolation);
        let mut left_out: Vec<String> = rules
            .adaptive
            .iter()
            .map(|rule| format!("{rule}: Sentinel has no adaptive rules"))
            .collect();
        let kinds = KINDS.map(|kind| {
            let (text, without) = sentinel::write(kind, &rules);
            left_out.extend(without);
            let content = content(kind, &text);
            // The program may decode the text once more: neither of these means itself then.
            (
                text.replace('%', "\\u0025").replace('+', "\\u002b"),
                content,
            )
        });
        Self {
            version: kept.version.clone(),
            kinds,
            left_out,
        }
    }
}

/// Puts the rules of a text in force, and returns why some of them are left out.
fn apply(kind: Kind, text: &str, rules: &mut GateRules) -> Option<String> {
    match sentinel::parse(kind, text) {
        Ok(update) => {
            update.apply(rules);
            None
        }
        Err(SourceError::Partial { good, why }) => {
            good.apply(rules);
            Some(why)
        }
        Err(error) => Some(error.to_string()),
    }
}

/// The rules of a text without their order, so that the same rules have the same content.
fn content(kind: Kind, text: &str) -> String {
    let mut rules = GateRules::default();
    if let Some(why) = apply(kind, text, &mut rules) {
        return format!("{rules:?} and {why}");
    }
    // Sentinel lists the lowest limits of all system rules, each as a rule.
    let system = rules
        .system
        .iter()
        .fold(SystemRule::default(), |mut all, rule| {
            all.load = lowest(all.load, rule.load);
            all.cpu = lowest(all.cpu, rule.cpu);
            all.mean_rt = lowest(all.mean_rt, rule.mean_rt);
            all.in_flight = lowest(all.in_flight, rule.in_flight);
            all.qps = lowest(all.qps, rule.qps);
            all
        });
    let limits = shown(&rules.flow)
        .chain(shown(&rules.breakers))
        .chain(shown(&rules.hot_params));
    let mut all: Vec<String> = limits
        .chain(shown(&rules.authority))
        .chain(shown(&[system]))
        .collect();
    all.sort_unstable();
    all.join("\n")
}

fn shown<T: Debug>(rules: &[T]) -> impl Iterator<Item = String> {
    rules.iter().map(|rule| format!("{rule:?}"))
}

fn lowest<T: PartialOrd>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if other < one { other } else { one }),
        (one, other) => one.or(other),
    }
}

impl RuleSync {
    /// Compares the program's rules with the kept ones, and pushes those that differ. Rules that
    /// the program has made something else of are pushed again only when it has others, as after a
    /// start.
    pub async fn compare(&mut self, address: SocketAddr, kept: Option<Rules>) {
        let Some(kept) = kept else {
            *self = Self {
                own: own(address).await.ok(),
                ..Self::default()
            };
            return;
        };
        if self
            .wanted
            .as_ref()
            .is_none_or(|wanted| wanted.version != kept.version)
        {
            *self = Self {
                wanted: Some(Wanted::of(&kept)),
                ..Self::default()
            };
        }
        let Some(wanted) = &self.wanted else { return };
        let mut reasons = wanted.left_out.clone();
        for ((kind, (text, content)), refused) in
            KINDS.into_iter().zip(&wanted.kinds).zip(&mut self.refused)
        {
            if let Err(error) = bring(address, kind, (text, content), refused).await {
                reasons.push(format!("{}: {error}", kind.name()));
            } else if refused.is_some() {
                reasons.push(format!(
                    "the program has other {} rules than those pushed",
                    kind.name()
                ));
            }
        }
        let has_all = reasons.is_empty();
        self.version = has_all.then(|| wanted.version.clone());
        self.rejected = (!has_all).then(|| reasons.join("; "));
    }
}

/// The rules that a program has, in the form of those that are pushed.
async fn own(address: SocketAddr) -> Result<OwnRules, CallError> {
    let (mut rules, mut left_out) = (GateRules::default(), Vec::new());
    for kind in KINDS {
        left_out.extend(apply(kind, &get(address, kind).await?, &mut rules));
    }
    let (text, without) = yaml::write(&rules);
    left_out.extend(without);
    Ok(OwnRules {
        text: text.into(),
        left_out,
    })
}

/// Asks a program for its rules of one kind.
async fn get(address: SocketAddr, kind: Kind) -> Result<String, CallError> {
    let path = if kind == Kind::ParamFlow {
        "getParamFlowRules"
    } else {
        "getRules"
    };
    call(address, path, form(kind, None), false).await
}

/// The fields of a command about the rules of one kind.
fn form(kind: Kind, data: Option<&str>) -> String {
    let mut form = Serializer::new(String::new());
    form.extend_pairs((kind != Kind::ParamFlow).then_some(("type", kind.name())));
    form.extend_pairs(data.map(|data| ("data", data)));
    form.finish()
}

/// Gives a program the wanted rules of one kind, if it has others.
async fn bring(
    address: SocketAddr,
    kind: Kind,
    (text, wanted): (&str, &str),
    refused: &mut Option<String>,
) -> Result<(), CallError> {
    let has = content(kind, &get(address, kind).await?);
    if has == wanted || refused.as_ref() == Some(&has) {
        if has == wanted {
            *refused = None;
        }
        return Ok(());
    }
    let set = if kind == Kind::ParamFlow {
        "setParamFlowRules"
    } else {
        "setRules"
    };
    call(address, set, form(kind, Some(text)), true).await?;
    tracing::info!(%address, kind = kind.name(), "rules pushed to a program with Sentinel");
    let has = content(kind, &get(address, kind).await?);
    *refused = (has != wanted).then_some(has);
    Ok(())
}
