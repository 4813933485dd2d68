//! Times in the forms of logs and of the options `--from` and `--to`.

use proptest::prelude::*;
use tidegate_core::Nanos;
use tidegate_sim::input::{
    Moment, MomentError, parse_access_log_time, parse_rfc3339, parse_unix, write_utc,
};

#[test]
fn access_log_times_are_read_with_their_offset() {
    let may = 1_431_857_103_000_000_000;
    assert_eq!(
        parse_access_log_time(b"17/May/2015:10:05:03 +0000"),
        Some(may)
    );
    assert_eq!(
        parse_access_log_time(b"17/may/2015:12:05:03 +0200"),
        Some(may)
    );
    assert_eq!(parse_access_log_time(b"17/May/2015:10:05:03"), Some(may));
    assert_eq!(
        parse_access_log_time(b"17/May/2015:10:05:03.250 +0000"),
        Some(may + 250_000_000)
    );
    assert_eq!(
        parse_access_log_time(b"01/Jan/1970:00:00:00 +0000"),
        Some(0)
    );
}

#[test]
fn rfc3339_times_are_read_with_their_offset() {
    let may = 1_431_857_103_000_000_000;
    for text in [
        "2015-05-17T10:05:03Z",
        "2015-05-17 10:05:03",
        "2015-05-17t08:05:03-02:00",
        "2015-05-17T10:05:03.000+00:00",
    ] {
        assert_eq!(parse_rfc3339(text.as_bytes()), Some(may), "{text}");
    }
    assert_eq!(
        parse_rfc3339(b"2016-02-29T00:00:00.123456789Z"),
        Some(1_456_704_000_123_456_789)
    );
}

#[test]
fn numbers_are_seconds_or_finer_by_their_size_and_exact_to_the_nanosecond() {
    let may = 1_431_857_103_000_000_000;
    assert_eq!(parse_unix("1431857103"), Some(may));
    assert_eq!(parse_unix("1431857103.000000001"), Some(may + 1));
    assert_eq!(parse_unix("1431857103123"), Some(may + 123_000_000));
    assert_eq!(parse_unix("1431857103123.5"), Some(may + 123_500_000));
    assert_eq!(parse_unix("1431857103123456"), Some(may + 123_456_000));
    assert_eq!(parse_unix("1431857103123456789"), Some(may + 123_456_789));
    for text in [
        "",
        "-1",
        "+1",
        "1e9",
        "1.",
        ".5",
        "1.-5",
        "nan",
        "99999999999999999999",
    ] {
        assert_eq!(parse_unix(text), None, "{text}");
    }
}

#[test]
fn impossible_dates_are_refused() {
    for text in [
        "31/Jun/2015:10:05:03 +0000",
        "29/Feb/2015:10:05:03 +0000",
        "17/Mai/2015:10:05:03 +0000",
        "17/May/2015:24:05:03 +0000",
        "17/May/2015:10:60:03 +0000",
        "17/May/1969:10:05:03 +0000",
        "17/May/2117:10:05:03 +0000",
        "17/May/2015:10:05:03 +0000 ",
        "17/May/2015:10:05",
        "",
    ] {
        assert_eq!(parse_access_log_time(text.as_bytes()), None, "{text}");
    }
    for text in [
        "2015-13-01T00:00:00Z",
        "2015-00-01T00:00:00Z",
        "2015-05-00T00:00:00Z",
        "2015-05-17",
    ] {
        assert_eq!(parse_rfc3339(text.as_bytes()), None, "{text}");
    }
}

proptest! {
    #[test]
    fn a_written_time_reads_back_as_its_second(nanos in 0..=Nanos::MAX.get()) {
        let second = nanos - nanos % 1_000_000_000;
        prop_assert_eq!(parse_rfc3339(write_utc(nanos).as_bytes()), Some(second));
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in proptest::collection::vec(any::<u8>(), 0..40)) {
        let _ = (parse_access_log_time(&text), parse_rfc3339(&text), parse_unix(&String::from_utf8_lossy(&text)));
    }
}

#[test]
fn a_moment_is_a_day_a_time_or_what_the_log_writes() {
    let may = Moment(1_431_857_103_000_000_000);
    for text in [
        "2015-05-17T10:05:03Z",
        "2015-05-17 12:05:03+02:00",
        "17/May/2015:10:05:03 +0000",
        "1431857103",
    ] {
        assert_eq!(text.parse(), Ok(may), "{text}");
    }
    assert_eq!(
        "2015-05-17T10:05".parse(),
        Ok(Moment(may.0 - 3_000_000_000))
    );
    assert_eq!("yesterday".parse::<Moment>(), Err(MomentError));
}
