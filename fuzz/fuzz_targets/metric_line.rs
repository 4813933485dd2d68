//! Any text is a line of a metric log, which reads back from what it prints as, or is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_flow::metric_log::MetricLine;

fuzz_target!(|text: &str| {
    if let Ok(line) = text.parse::<MetricLine>() {
        assert_eq!(line.to_string().parse(), Ok(line));
    }
});
