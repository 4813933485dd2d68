//! Decisions of other limiters on short schedules, as `scripts/migrate.py --write` has put them
//! into `migrate`: Tidegate's rule differs in as many as it says, and in none if it is equal.

use std::{fs, path::Path};

use tidegate::{Limiter, Nanos, Policy};

#[test]
fn other_limiters_and_the_rules_that_replace_them_decide_alike() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/migrate");
    let mut seen = 0;
    for entry in fs::read_dir(traces).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let (head, schedules) = text.split_once("\n\n").unwrap();
        let field = |name: &str| {
            head.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        };
        let rule = field("rule").unwrap();
        let charged = field("charged").map_or(0, |units| units.parse().unwrap());
        let differ: u32 = field("differ").unwrap().parse().unwrap();
        let mut found = 0;
        for schedule in schedules.split("\n\n") {
            let limiter = Limiter::new(rule.parse::<Policy>().unwrap());
            let mut is_fresh = true;
            for line in schedule.lines() {
                let numbers: Vec<u64> = line.split(' ').map(|it| it.parse().unwrap()).collect();
                let [at, cost, is_admitted] = numbers[..] else {
                    panic!("{}: {line}", path.display());
                };
                let now = Nanos::from_millis(at);
                if std::mem::take(&mut is_fresh) {
                    let _ = limiter.at(now).charge(charged);
                }
                let decision = limiter.at(now).acquire(cost);
                found += u32::from(decision.is_allowed() != (is_admitted == 1));
            }
        }
        assert_eq!(
            found,
            differ,
            "{}: {}",
            path.display(),
            field("package").unwrap()
        );
        seen += 1;
    }
    assert!(seen >= 35, "{seen} traces");
}
