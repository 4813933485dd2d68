//! The bounds of calendars. In a process of its own, because the number of calendars is bounded for
//! each process.
#![cfg(feature = "calendar")]

use tidegate_core::algorithm::FixedWindow;
use tidegate_core::{Algorithm, Calendar, Nanos, Period, Policy};

#[test]
fn times_and_the_number_of_calendars_are_bounded() {
    no_time_is_outside_of_a_calendar();
    the_number_of_calendars_is_bounded();
}

fn no_time_is_outside_of_a_calendar() {
    for zone in [
        "UTC",
        "Europe/Berlin",
        "Pacific/Kiritimati",
        "Pacific/Pago_Pago",
        "Africa/Monrovia",
    ] {
        let calendar = Calendar::new(Period::Year, zone, 1).unwrap();
        for at in [
            0,
            1,
            86_400_000_000_000,
            Nanos::MAX.get() - 1,
            Nanos::MAX.get(),
        ] {
            let mut state = vec![0; 2];
            let policy = Policy::from(
                FixedWindow::new(tidegate_core::Quota::per_second(1)).on_calendar(calendar),
            );
            assert!(policy.decide(&mut state, Nanos::new(at), 1).is_allowed());
            assert!(
                policy
                    .decide(&mut state, Nanos::new(at), 1)
                    .retry_after()
                    .unwrap()
                    .as_nanos()
                    > 0
            );
        }
    }
}

/// At most so many calendars are kept; those that are kept can still be used.
fn the_number_of_calendars_is_bounded() {
    let all: Vec<_> = (1..=31)
        .flat_map(|starts| {
            [
                "UTC",
                "Asia/Tokyo",
                "Asia/Seoul",
                "Africa/Cairo",
                "Europe/Rome",
            ]
            .map(|zone| Calendar::new(Period::Month, zone, starts))
        })
        .collect();
    let known = all.iter().filter(|calendar| calendar.is_ok()).count();
    assert!((60..=128).contains(&known), "{known}");
    assert_eq!(
        all.last().unwrap().as_ref().unwrap_err().to_string(),
        "the process has 128 other calendars; restart it"
    );
}
