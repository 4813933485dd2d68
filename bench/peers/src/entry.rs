//! An entry of a guarded resource, and its exit.

use std::{ops::Range, sync::Once, time::Duration};

use sentinel_core::{EntryBuilder, base::TrafficType, circuitbreaker, flow, isolation, system};
use tidegate::flow::{
    Gate,
    rules::{BreakerRule, FlowRule, IsolationRule, Rules, SystemRule, Trip},
};

use crate::{race::Racer, work::Guarded};

pub const SENTINEL: &str = "sentinel-core";

/// Who takes part, in the order of the racers.
pub const CONTESTANTS: [(&str, &str); 3] = [
    ("tidegate", "a resource's handle, kept"),
    (
        "tidegate-by-name",
        "the resource looked up by its name each time",
    ),
    (
        SENTINEL,
        "EntryBuilder; looks the resource up by its name each time",
    ),
];

/// So much that no rule blocks.
const PLENTY: u32 = u32::MAX;

pub fn racers(guarded: Guarded) -> Vec<Racer<'static>> {
    let (gate, sentinel) = (gate(guarded), sentinel(guarded));
    let (resource, inbound) = (gate.resource(name(guarded)), guarded == Guarded::FourKinds);
    let kept = move || {
        let entry = resource.entry();
        if inbound { entry.inbound() } else { entry }
            .enter()
            .is_ok()
    };
    let by_name = move || {
        let resource = gate.resource(name(guarded));
        let entry = resource.entry();
        if inbound { entry.inbound() } else { entry }
            .enter()
            .is_ok()
    };
    let [first, second, third] = CONTESTANTS;
    vec![
        racer(first, kept),
        racer(second, by_name),
        racer(third, sentinel),
    ]
}

fn racer(
    (who, how): (&'static str, &'static str),
    enter: impl Fn() -> bool + Sync + 'static,
) -> Racer<'static> {
    Racer {
        who,
        how,
        pass: Box::new(move |stretch: Range<usize>| stretch.filter(|_| enter()).count()),
    }
}

/// sentinel-core has one set of rules in a process: works must not share resources.
const fn name(guarded: Guarded) -> &'static str {
    match guarded {
        Guarded::NoRule => "no-rule",
        Guarded::FlowRule => "flow-rule",
        Guarded::FourKinds => "four-kinds",
    }
}

fn gate(guarded: Guarded) -> Gate {
    let name = name(guarded);
    let flow = vec![FlowRule::new(name, PLENTY)];
    let rules = match guarded {
        Guarded::NoRule => Rules::default(),
        Guarded::FlowRule => Rules::from(flow),
        Guarded::FourKinds => Rules::from(flow)
            .and(vec![IsolationRule::new(name, PLENTY)])
            .and(vec![BreakerRule::new(
                name,
                Trip::ErrorRatio { ratio: 0.5 },
                Duration::from_secs(5),
            )])
            .and(vec![SystemRule::default().qps(PLENTY.into())]),
    };
    let gate = Gate::new();
    gate.load(rules).expect("possible rules");
    gate
}

/// The setup that sentinel-core needs once in a process, as its documentation has it.
pub fn start_sentinel() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| sentinel_core::init_default().expect("sentinel-core's defaults"));
}

fn sentinel(guarded: Guarded) -> impl Fn() -> bool + Sync + 'static {
    start_sentinel();
    let resource = name(guarded).to_owned();
    if guarded != Guarded::NoRule {
        flow::append_rule(
            flow::Rule {
                resource: resource.clone(),
                threshold: PLENTY.into(),
                ..flow::Rule::default()
            }
            .into(),
        );
    }
    if guarded == Guarded::FourKinds {
        isolation::append_rule(
            isolation::Rule {
                resource: resource.clone(),
                threshold: PLENTY,
                ..isolation::Rule::default()
            }
            .into(),
        );
        circuitbreaker::append_rule(
            circuitbreaker::Rule {
                resource: resource.clone(),
                strategy: circuitbreaker::BreakerStrategy::ErrorRatio,
                threshold: 0.5,
                min_request_amount: 5,
                retry_timeout_ms: 5_000,
                stat_interval_ms: 1_000,
                stat_sliding_window_bucket_count: 10,
                ..circuitbreaker::Rule::default()
            }
            .into(),
        );
        system::append_rule(
            system::Rule {
                metric_type: system::MetricType::InboundQPS,
                threshold: PLENTY.into(),
                ..system::Rule::default()
            }
            .into(),
        );
    }
    let traffic = if guarded == Guarded::FourKinds {
        TrafficType::Inbound
    } else {
        TrafficType::Outbound
    };
    move || match EntryBuilder::new(resource.clone())
        .with_traffic_type(traffic)
        .build()
    {
        Ok(entry) => {
            entry.exit();
            true
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Work;

    #[test]
    fn everybody_lets_everybody_in() {
        for work in Work::ALL {
            let Work::Entry(guarded) = work else { continue };
            for racer in racers(guarded) {
                assert_eq!((racer.pass)(0..100), 100, "{} {}", work.name(), racer.who);
            }
        }
    }

    #[test]
    fn everybody_asks_the_rules() {
        let name = "three-a-second";
        start_sentinel();
        flow::append_rule(
            flow::Rule {
                resource: name.to_owned(),
                threshold: 3.0,
                ..flow::Rule::default()
            }
            .into(),
        );
        let gate = Gate::new();
        gate.load(Rules::from(vec![FlowRule::new(name, 3)]))
            .unwrap();
        let sentinel = || match EntryBuilder::new(name.to_owned()).build() {
            Ok(entry) => {
                entry.exit();
                true
            }
            Err(_) => false,
        };
        let tidegate = || gate.resource(name).enter().is_ok();
        // A second may end in between, and one more begin.
        for admitted in [
            (0..100).filter(|_| tidegate()).count(),
            (0..100).filter(|_| sentinel()).count(),
        ] {
            assert!((3..=12).contains(&admitted), "{admitted}");
        }
    }
}
