//! Following sources: files and custom sources.
#![cfg(not(loom))]

use std::{fs, io, path::PathBuf, sync::mpsc, time::Duration};

use tidegate_flow::{
    Gate,
    rules::{FlowRule, IsolationRule, Rules},
    sources::{FileSource, GoodRules, RuleSource, RuleUpdate, SourceError, sentinel::Kind},
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A directory for one test, which is removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_is_loaded_again_when_it_changes_however_it_is_replaced() {
    let dir = Dir::new("watch");
    let path = dir.0.join("rules.yaml");
    let limit = |n: u32| format!("flow: [{{ resource: r, limit: {n}/1s }}]");
    fs::write(&path, limit(1)).unwrap();
    let gate = Gate::new();
    let (report, reports) = mpsc::channel();
    let source = FileSource::yaml(&path).every(ms(2));
    let follower = gate
        .follow(source, move |result| {
            report.send(result.map_err(ToString::to_string)).unwrap();
        })
        .unwrap();
    let loaded = || gate.rules().flow[0].to_string();
    assert_eq!(loaded(), "1/1s");
    let next = || reports.recv_timeout(Duration::from_mins(5)).unwrap();

    fs::write(dir.0.join("new"), limit(2)).unwrap();
    fs::rename(dir.0.join("new"), &path).unwrap();
    assert_eq!((next(), loaded()), (Ok(()), "2/1s".into()));

    fs::write(dir.0.join("bad"), "flow: [{ resource: r, limit: 0/0s }]").unwrap();
    fs::rename(dir.0.join("bad"), &path).unwrap();
    let said = next().unwrap_err();
    assert!(
        said.contains("rules.yaml") && said.contains("the window is zero"),
        "{said}"
    );
    assert_eq!(loaded(), "2/1s", "the previous rules stay active");
    assert_eq!(follower.failure(), Some(said));

    fs::remove_file(&path).unwrap();
    assert!(next().unwrap_err().contains("cannot be read"));

    #[cfg(unix)]
    {
        for (name, n) in [("v3", 3), ("v4", 4)] {
            fs::create_dir(dir.0.join(name)).unwrap();
            fs::write(dir.0.join(name).join("rules.yaml"), limit(n)).unwrap();
            std::os::unix::fs::symlink(dir.0.join(name).join("rules.yaml"), dir.0.join("link"))
                .unwrap();
            fs::rename(dir.0.join("link"), &path).unwrap();
            assert_eq!((next(), loaded()), (Ok(()), format!("{n}/1s")));
        }
        assert_eq!(follower.failure(), None);
    }
}

#[test]
fn a_file_of_sentinels_rules_is_followed() {
    let dir = Dir::new("sentinel");
    let path = dir.0.join("flow.json");
    let rules = |count: u32| format!(r#"[{{"resource":"r","count":{count}}}]"#);
    fs::write(&path, rules(1)).unwrap();
    let gate = Gate::new();
    gate.load(Rules::from(vec![IsolationRule::new("r", 5)]))
        .unwrap();
    let (report, reports) = mpsc::channel();
    let source = FileSource::sentinel(&path, Kind::Flow).every(ms(2));
    let _follower = gate
        .follow(source, move |result| {
            report.send(result.map_err(ToString::to_string)).unwrap();
        })
        .unwrap();
    assert_eq!(gate.rules().flow, [FlowRule::new("r", 1)]);
    fs::write(dir.0.join("new"), rules(2)).unwrap();
    fs::rename(dir.0.join("new"), &path).unwrap();
    assert_eq!(
        reports.recv_timeout(Duration::from_mins(5)).unwrap(),
        Ok(())
    );
    assert_eq!(
        (gate.rules().flow, gate.rules().isolation.len()),
        (vec![FlowRule::new("r", 2)], 1)
    );
}

#[test]
fn a_custom_source_changes_only_its_kinds_of_rules() {
    struct Counter(u32);
    impl RuleSource for Counter {
        fn name(&self) -> String {
            "counter".into()
        }
        fn changed(&mut self) -> Result<Option<RuleUpdate>, SourceError> {
            self.0 += 1;
            match self.0 {
                1 => Ok(Some(RuleUpdate {
                    flow: Some(vec![FlowRule::new("r", 1)]),
                    ..RuleUpdate::default()
                })),
                2 => Err(SourceError::Other(Box::new(io::Error::other("down")))),
                _ => Ok(None),
            }
        }
        fn pause(&self) -> Duration {
            Duration::ZERO
        }
    }
    let gate = Gate::new();
    gate.load(Rules::from(vec![IsolationRule::new("r", 5)]))
        .unwrap();
    let (report, reports) = mpsc::channel();
    let follower = gate
        .follow(Counter(0), move |result| {
            report.send(result.map_err(ToString::to_string)).unwrap();
        })
        .unwrap();
    assert_eq!(
        reports.recv_timeout(Duration::from_mins(5)).unwrap(),
        Err("counter: down".into())
    );
    drop(follower);
    let rules = gate.rules();
    assert_eq!((rules.flow.len(), rules.isolation.len()), (1, 1));
    assert!(
        gate.follow(Counter(1), |_| ()).is_err(),
        "a source that fails at first is not followed"
    );
}

/// A source that runs its steps one after another and then reports no changes.
struct Script(std::vec::IntoIter<Step>);

enum Step {
    Flow(f64),
    Fail,
    Panic,
    Nothing,
    /// No change; waits until the test has checked.
    Wait(mpsc::Sender<()>, mpsc::Receiver<()>),
}

impl RuleSource for Script {
    fn name(&self) -> String {
        "script".into()
    }
    fn changed(&mut self) -> Result<Option<RuleUpdate>, SourceError> {
        match self.0.next() {
            Some(Step::Flow(threshold)) => {
                let flow = vec![FlowRule::new("r", threshold)];
                Ok(Some(RuleUpdate {
                    flow: Some(flow),
                    ..RuleUpdate::default()
                }))
            }
            Some(Step::Fail) => Err(SourceError::Other(Box::new(io::Error::other("down")))),
            Some(Step::Panic) => panic!("no such thing"),
            Some(Step::Wait(here, go_on)) => {
                here.send(()).unwrap();
                go_on.recv().unwrap();
                Ok(None)
            }
            Some(Step::Nothing) | None => Ok(None),
        }
    }
    fn pause(&self) -> Duration {
        Duration::ZERO
    }
}

/// Follows a script and returns the failure at each [`Step::Wait`].
fn failures(
    steps: Vec<Option<Step>>,
    reports: mpsc::Sender<Result<(), String>>,
) -> Vec<Option<String>> {
    let mut waits = Vec::new();
    let steps: Vec<_> = steps
        .into_iter()
        .map(|step| {
            step.unwrap_or_else(|| {
                let (here, arrived) = mpsc::channel();
                let (go, go_on) = mpsc::channel();
                waits.push((arrived, go));
                Step::Wait(here, go_on)
            })
        })
        .collect();
    let gate = Gate::new();
    let report = move |result: Result<(), &SourceError>| {
        reports.send(result.map_err(ToString::to_string)).unwrap();
        assert!(
            result.is_ok(),
            "a panic in the report does not end the follower"
        );
    };
    let follower = gate.follow(Script(steps.into_iter()), report).unwrap();
    let look = |(arrived, go): (mpsc::Receiver<()>, mpsc::Sender<()>)| {
        arrived.recv_timeout(Duration::from_mins(5)).unwrap();
        let failure = follower.failure();
        go.send(()).unwrap();
        failure
    };
    waits.into_iter().map(look).collect()
}

#[test]
fn a_failure_is_reported_until_the_rules_match_the_source() {
    let (report, reports) = mpsc::channel();
    let (flow, fail, nothing) = (
        |n| Some(Step::Flow(n)),
        || Some(Step::Fail),
        || Some(Step::Nothing),
    );
    let steps = vec![
        flow(1.0),
        None,
        flow(-5.0),
        nothing(),
        None,
        fail(),
        None,
        nothing(),
        None,
        flow(2.0),
        None,
        fail(),
        nothing(),
        None,
    ];
    let found = failures(steps, report);
    let refused = "script: rules rejected; the previous rules stay active: flow rule 0 (-5/1s): \
                   the threshold is -5; it must be a number, 0 or greater";
    let (refused, down) = (Some(refused.to_owned()), Some("script: down".to_owned()));
    assert_eq!(
        found,
        [
            None,
            refused.clone(),
            down.clone(),
            refused.clone(),
            None,
            None
        ]
    );
    let reports: Vec<_> = reports.try_iter().map(Result::err).collect();
    assert_eq!(reports, [refused, down.clone(), None, down]);
}

#[test]
fn a_panicking_source_counts_as_failed_and_is_retried() {
    let (report, reports) = mpsc::channel();
    let steps = vec![
        Some(Step::Flow(1.0)),
        Some(Step::Panic),
        None,
        Some(Step::Flow(2.0)),
        None,
    ];
    let said = Some("script: reading the rules panicked: no such thing".to_owned());
    assert_eq!(failures(steps, report), [said.clone(), None]);
    assert_eq!(
        reports.try_iter().map(Result::err).collect::<Vec<_>>(),
        [said, None]
    );
    let error = Gate::new()
        .follow(Script(vec![Step::Panic].into_iter()), |_| ())
        .unwrap_err();
    assert!(error.to_string().ends_with("no such thing"), "{error}");
}

#[test]
fn the_first_start_loads_good_rules_beside_bad_ones_and_later_loads_take_all_or_none() {
    let dir = Dir::new("partial");
    let path = dir.0.join("flow.json");
    let write = |text: &str| {
        fs::write(dir.0.join("new"), text).unwrap();
        fs::rename(dir.0.join("new"), &path).unwrap();
    };
    let bad = r#"{"resource":"b","count":-5}"#;
    let with = |count: u32| format!("[{{\"resource\":\"a\",\"count\":{count}}},\n{bad}]");
    for takes_good in [false, true] {
        write(&with(1));
        let gate = Gate::new();
        let (report, reports) = mpsc::channel();
        let report = move |result: Result<(), &SourceError>| {
            report.send(result.map_err(ToString::to_string)).unwrap();
        };
        let next = || reports.recv_timeout(Duration::from_mins(5)).unwrap();
        let source = FileSource::sentinel(&path, Kind::Flow).every(ms(2));
        let follower = if takes_good {
            gate.follow(GoodRules(source), report).unwrap()
        } else {
            gate.follow(source, report).unwrap()
        };
        let said = next().unwrap_err();
        assert!(
            said.contains("flow.json") && said.contains("rule 1 (resource b, line 2)"),
            "{said}"
        );
        assert_eq!(follower.failure(), Some(said));
        assert_eq!(gate.rules().flow, [FlowRule::new("a", 1)]);

        // A mistake of another rule is new, so it is reported.
        write(r#"[{"resource":"a","count":2}, {"resource":"c"}]"#);
        let said = next().unwrap_err();
        assert!(said.contains("rule 1 (resource c, line 1)"), "{said}");
        let want = if takes_good { 2 } else { 1 };
        assert_eq!(gate.rules().flow, [FlowRule::new("a", want)]);

        write(r#"[{"resource":"a","count":3}]"#);
        assert_eq!(next(), Ok(()));
        assert_eq!(
            (gate.rules().flow, follower.failure()),
            (vec![FlowRule::new("a", 3)], None)
        );
        write(&format!("[{bad}]"));
        assert!(next().is_err());
        assert_eq!(
            gate.rules().flow,
            [FlowRule::new("a", 3)],
            "no good rule: the previous ones stay"
        );
    }
    write(&format!("[{bad}]"));
    let source = FileSource::sentinel(&path, Kind::Flow);
    assert!(
        Gate::new().follow(source, |_| ()).is_err(),
        "no good rule at the start"
    );
}

#[test]
fn the_valid_rules_of_an_update_are_loaded_and_the_others_returned() {
    let gate = Gate::new();
    gate.load(Rules::from(vec![IsolationRule::new("r", 5)]))
        .unwrap();
    let flow = vec![
        FlowRule::new("a", -1.0),
        FlowRule::new("b", 2),
        FlowRule::new("", 3),
    ];
    let bad = gate.apply_good(RuleUpdate {
        flow: Some(flow),
        ..RuleUpdate::default()
    });
    assert_eq!(bad.iter().map(|bad| bad.index).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(
        (gate.rules().flow, gate.rules().isolation.len()),
        (vec![FlowRule::new("b", 2)], 1)
    );
}
