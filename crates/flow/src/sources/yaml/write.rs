//! Writes rules as YAML.

use std::{
    fmt::{Display, Write as _},
    time::Duration,
};

use tidegate_core::Nanos;

use super::flow::BEHAVIOURS;
use crate::{
    Arg,
    rules::{
        AdaptiveAlgorithm, AdaptiveRule, Aimd, AuthorityRule, Behaviour, BreakerRule, FlowRule,
        Gradient2, HotParamRule, IsolationRule, Measure, MemoryThreshold, Origins, ParamKey,
        ParamMeasure, Relation, Rules, SystemRule, Target, Threshold, Trip,
    },
};

/// Writes rules so that [`parse`](super::parse) reads the same. Also returns what the form cannot
/// express, each with the reason: such rules are left out, and a fraction of a threshold is dropped
/// where it has a small effect.
#[must_use]
pub fn write(rules: &Rules) -> (String, Vec<String>) {
    let (mut text, mut notes) = (String::new(), Vec::new());
    section(&mut text, "flow", &rules.flow, |rule| {
        flow(rule, &mut notes)
    });
    section(&mut text, "isolation", &rules.isolation, isolation);
    section(&mut text, "breakers", &rules.breakers, breaker);
    let mut params = rules.hot_params.clone();
    params.retain(|rule| {
        let has_float = rule
            .exceptions
            .iter()
            .any(|(value, _)| matches!(value, Arg::Float(_)));
        if has_float {
            notes.push(format!(
                "{rule}: an exception is a floating-point number; the rule is left out"
            ));
        }
        !has_float
    });
    section(&mut text, "hot_params", &params, hot_param);
    section(&mut text, "system", &rules.system, system);
    section(&mut text, "authority", &rules.authority, authority);
    let mut learned = rules.adaptive.clone();
    learned.retain(|rule| {
        let is_custom = matches!(rule.algorithm, AdaptiveAlgorithm::Custom(_));
        if is_custom {
            notes.push(format!(
                "{rule}: the algorithm is a part of the program; the rule is left out"
            ));
        }
        !is_custom
    });
    section(&mut text, "adaptive", &learned, |rule| {
        adaptive(rule, &mut notes)
    });
    (text, notes)
}

fn section<R>(text: &mut String, name: &str, rules: &[R], mut write: impl FnMut(&R) -> RuleFields) {
    // Writing to a `String` does not fail.
    for (at, rule) in rules.iter().enumerate() {
        if at == 0 {
            let _ = writeln!(text, "{name}:");
        }
        let _ = writeln!(text, "  - {{ {} }}", write(rule).0.join(", "));
    }
}

/// The fields of one rule.
struct RuleFields(Vec<String>);

impl RuleFields {
    fn of(id: Option<&String>, resource: Option<&Target>) -> Self {
        let fields = Self(Vec::new()).text("id", id.map(String::as_str));
        match resource {
            None => fields,
            Some(Target::Name(name)) => fields.text("resource", Some(name)),
            Some(Target::Pattern(pattern)) => fields.text("pattern", Some(pattern)),
        }
    }

    fn put(mut self, name: &str, value: Option<impl Display>) -> Self {
        self.0.extend(value.map(|value| format!("{name}: {value}")));
        self
    }

    fn text(self, name: &str, value: Option<&str>) -> Self {
        self.put(name, value.map(quoted))
    }

    fn span(self, name: &str, value: Option<Duration>) -> Self {
        self.put(name, value.map(Nanos::from))
    }
}

/// A text in double quotes.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        let _ = match letter {
            '"' | '\\' => write!(quoted, "\\{letter}"),
            letter if letter.is_control() => write!(quoted, "\\u{:04x}", u32::from(letter)),
            letter => write!(quoted, "{letter}"),
        };
    }
    quoted + "\""
}

/// The whole units of a threshold, and how it follows the memory in use.
fn units(threshold: Threshold) -> (f64, Option<MemoryThreshold>) {
    match threshold {
        Threshold::Fixed(count) => (count.floor(), None),
        Threshold::Memory(memory) => (memory.when_free.floor(), Some(memory)),
    }
}

fn flow(rule: &FlowRule, notes: &mut Vec<String>) -> RuleFields {
    let (mut count, memory) = units(rule.threshold);
    let mut interval = rule.interval;
    let (warm_up, max_wait) = rule.behaviour.parts();
    let how = (warm_up.is_some(), max_wait.is_some());
    let behaviour = BEHAVIOURS
        .into_iter()
        .skip(1)
        .find(|(_, of)| *of == how)
        .map(|(name, _)| name);
    if let Threshold::Fixed(exact) = rule.threshold
        && exact.fract() != 0.0
    {
        if matches!(rule.behaviour, Behaviour::Throttle { .. }) {
            // The same pace over a longer time.
            (count, interval) = ((exact * 1e3).round(), interval * 1_000);
        } else if warm_up.is_some() {
            notes.push(format!(
                "{rule}: the fraction of the threshold {exact} is dropped"
            ));
        }
    }
    let (origin, others) = match &rule.origins {
        Origins::Any => (None, None),
        Origins::Only(origin) => (Some(&**origin), None),
        Origins::Others => (None, Some(true)),
    };
    let (related, context) = match &rule.relation {
        Relation::Direct => (None, None),
        Relation::Related(other) => (Some(&**other), None),
        Relation::Context(context) => (None, Some(&**context)),
    };
    let is_rate = rule.measure == Measure::Rate;
    let memory = memory.map(|memory| {
        let MemoryThreshold {
            when_scarce,
            low_mark,
            high_mark,
            ..
        } = memory;
        format!("{{ when_scarce: {when_scarce}, low_mark: {low_mark}, high_mark: {high_mark} }}")
    });
    RuleFields::of(rule.id.as_ref(), Some(&rule.resource))
        .put(
            "limit",
            is_rate.then(|| format!("{count}/{}", Nanos::from(interval))),
        )
        .put("in_flight", (!is_rate).then_some(count))
        .put("memory", memory)
        .text("origin", origin)
        .put("each_other_origin", others)
        .text("related", related)
        .text("context", context)
        .put("behaviour", behaviour)
        .span("warm_up", warm_up.map(|(period, _)| period))
        .put("cold_factor", warm_up.map(|(_, factor)| factor))
        .span("max_wait", max_wait)
        .put("strict", rule.strict.then_some(true))
}

fn isolation(rule: &IsolationRule) -> RuleFields {
    RuleFields::of(rule.id.as_ref(), Some(&rule.resource))
        .put("in_flight", Some(units(rule.threshold).0))
}

fn adaptive(rule: &AdaptiveRule, notes: &mut Vec<String>) -> RuleFields {
    let (initial, slower_than, usual) = match rule.algorithm.clone() {
        AdaptiveAlgorithm::Aimd(aimd) => {
            let usual = Aimd {
                backoff: Aimd::default().backoff,
                ..aimd.clone()
            };
            (aimd.initial, aimd.slow, aimd == usual)
        }
        AdaptiveAlgorithm::Gradient2(gradient) => {
            let usual = Gradient2::default().initial(gradient.initial);
            (gradient.initial, None, gradient == usual)
        }
        AdaptiveAlgorithm::Vegas(vegas) => (vegas.initial, None, true),
        AdaptiveAlgorithm::Custom(_) => unreachable!("left out before"),
    };
    if !usual {
        notes.push(format!(
            "{rule}: the factors of {:?} are dropped",
            rule.algorithm
        ));
    }
    RuleFields::of(rule.id.as_ref(), Some(&rule.resource))
        .put("algorithm", Some(format!("{:?}", rule.algorithm)))
        .put("initial", Some(initial))
        .put("min", Some(rule.min))
        .put("max", Some(rule.max))
        .span("slower_than", slower_than)
        .put("ignore_errors", rule.ignore_errors.then_some(true))
}

fn breaker(rule: &BreakerRule) -> RuleFields {
    let (slower_than, ratio, errors) = match rule.trip {
        Trip::SlowRatio { rt, ratio } => (Some(rt), Some(ratio), None),
        Trip::ErrorRatio { ratio } => (None, Some(ratio), None),
        Trip::ErrorCount { count } => (None, None, Some(count)),
    };
    RuleFields::of(rule.id.as_ref(), Some(&rule.resource))
        .span("slower_than", slower_than)
        .put("ratio", ratio)
        .put("errors", errors)
        .span("interval", Some(rule.interval))
        .put("slots", Some(rule.slots))
        .put("min_calls", Some(rule.min_calls))
        .span("open", Some(rule.open_time))
        .put("probes", (rule.probes != 1).then_some(rule.probes))
        .span("probe_timeout", rule.probe_timeout)
}

fn hot_param(rule: &HotParamRule) -> RuleFields {
    let (index, name) = match &rule.key {
        ParamKey::Index(index) => (Some(index), None),
        ParamKey::Name(name) => (None, Some(&**name)),
    };
    let (is_rate, max_wait) = match rule.measure {
        ParamMeasure::InFlight => (false, None),
        ParamMeasure::Rate => (true, None),
        ParamMeasure::Throttle { max_wait } => (true, Some(max_wait)),
    };
    let exceptions = rule.exceptions.iter().map(|(value, count)| match value {
        Arg::Text(text) => format!("{}: {count}", quoted(text)),
        value => format!("{value}: {count}"),
    });
    let exceptions: Vec<String> = exceptions.collect();
    RuleFields::of(rule.id.as_ref(), Some(&rule.resource))
        .put("arg", index)
        .text("name", name)
        .put(
            "limit",
            is_rate.then(|| format!("{}/{}", rule.threshold, Nanos::from(rule.duration))),
        )
        .put("in_flight", (!is_rate).then_some(rule.threshold))
        .span("max_wait", max_wait)
        .put("burst", (rule.burst > 0).then_some(rule.burst))
        .put(
            "exceptions",
            (!exceptions.is_empty()).then(|| format!("{{ {} }}", exceptions.join(", "))),
        )
        .put("max_values", rule.max_values)
        .put("when_full", rule.deny_when_full.then_some("deny"))
}

fn system(rule: &SystemRule) -> RuleFields {
    RuleFields::of(rule.id.as_ref(), None)
        .put("load", rule.load)
        .put("cpu", rule.cpu)
        .span("mean_rt", rule.mean_rt)
        .put("in_flight", rule.in_flight)
        .put("qps", rule.qps)
}

fn authority(rule: &AuthorityRule) -> RuleFields {
    let origins: Vec<String> = rule.origins.iter().map(|origin| quoted(origin)).collect();
    let list = format!("[{}]", origins.join(", "));
    let fields = RuleFields::of(rule.id.as_ref(), Some(&rule.resource));
    fields.put(if rule.allow { "allow" } else { "deny" }, Some(list))
}
