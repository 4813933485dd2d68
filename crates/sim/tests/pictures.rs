//! The pictures in `docs/src/pictures` are those that the simulator draws today, and they show what
//! their captions say.

#[path = "../examples/algorithm_pictures/draw.rs"]
mod draw;
#[path = "../examples/algorithm_pictures/shares.rs"]
mod shares;

use std::{fs, path::Path};

use draw::{LIMIT, Panel};

#[test]
fn the_pictures_of_the_algorithms_are_current() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/pictures");
    for panel in draw::panels() {
        let path = directory.join(panel.file_name());
        let drawn = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            drawn,
            panel.svg(),
            "{} is not current; run `cargo run -p tidegate-sim --example algorithm_pictures`",
            path.display()
        );
    }
}

#[test]
fn the_picture_of_shares_is_current_and_shows_why_there_are_shares() {
    let shares = shares::Shares::replayed();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/pictures");
    let drawn = fs::read_to_string(directory.join(shares::FILE)).unwrap_or_default();
    assert_eq!(
        drawn,
        shares.svg(),
        "it is not current; run `cargo run -p tidegate-sim --example algorithm_pictures`"
    );
    let [one, each, shared] = &shares.columns;
    // One limit serves who asks most, and a limit for each leaves units idle.
    assert!(one[0] > 100.0 && one[9] < 4.0, "{one:?}");
    assert!(shares.total(1) < 155.0 && each[0] < 22.0, "{each:?}");
    // Weighted max-min fairness: all that small tenants ask for, and 32.5 for each of the others.
    for (got, fair) in shared
        .iter()
        .zip([32.5, 32.5, 32.5, 32.5, 20.0, 20.0, 10.0, 10.0, 5.0, 5.0])
    {
        assert!((got - fair).abs() <= 2.5, "{shared:?}");
    }
    assert!(
        shares.total(2) > 196.0 && shares.found.jain > 0.99,
        "{shares:?}"
    );
}

#[test]
fn the_traffic_shows_what_tells_the_algorithms_apart() {
    let panels = draw::panels();
    let of = |name: &str| panels.iter().find(|panel| panel.name == name).unwrap();
    let (log, window) = (of("sliding-log"), of("sliding-window"));
    assert!(
        panels
            .iter()
            .all(|panel| panel.asked.len() == log.asked.len()),
        "the same traffic"
    );
    assert_eq!((log.most, log.denied_early), (LIMIT, 0), "exact");
    assert!(
        window.most <= LIMIT && window.denied_early > 0,
        "{window:?}"
    );
    let over = |panel: &Panel| panel.most > LIMIT;
    for name in ["fixed-window", "sliding-counter", "token-bucket"] {
        assert!(over(of(name)), "{name}");
    }
    assert!(of("fixed-window").most >= 2 * LIMIT - 2);
    let leaky = of("leaky-bucket");
    assert!(leaky.longest_wait > 500 && !over(leaky), "{leaky:?}");
}
