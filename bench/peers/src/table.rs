//! The figures for people.

use std::fmt::{self, Write};

use crate::{
    figure::{Figure, Flood, Measure, Memory, Speed},
    target,
};

const MIB: f64 = 1_048_576.0;

/// From this share of preempted stretches on a figure is marked: the machine was busy with
/// something else.
const DISTURBED: f64 = 0.5;

/// The figures by work, then the targets.
pub fn write(out: &mut impl Write, figures: &[Figure]) -> fmt::Result {
    let mut last = None;
    for figure in figures {
        let title = (&figure.work, figure.threads);
        if last.replace(title) != Some(title) {
            let threads = if figure.threads == 1 {
                "1 thread".to_owned()
            } else {
                format!("{} threads", figure.threads)
            };
            writeln!(out, "\n{}, {threads}", figure.work)?;
        }
        write!(out, "  {:<16}", figure.who)?;
        match &figure.measure {
            Measure::Speed(speed) => write_speed(out, speed)?,
            Measure::Memory(memory) => write_memory(out, memory)?,
            Measure::Flood(flood) => write_flood(out, flood)?,
        }
        writeln!(out, "   {}", figure.how)?;
    }
    let verdicts = target::verdicts(figures);
    if !verdicts.is_empty() {
        writeln!(out, "\ntargets")?;
    }
    for verdict in verdicts {
        let met = if verdict.is_met() { "met   " } else { "missed" };
        writeln!(
            out,
            "  {met} {:>8.2} of at most {:<6.2} {}",
            verdict.value, verdict.most, verdict.what
        )?;
    }
    Ok(())
}

fn write_speed(out: &mut impl Write, speed: &Speed) -> fmt::Result {
    write!(
        out,
        "{:>9.1} ns   ({:.1} to {:.1}",
        speed.ns_per_op, speed.min, speed.max
    )?;
    if speed.admitted < 1.0 {
        write!(out, ", {:.0} % admitted", speed.admitted * 100.0)?;
    }
    if speed.preempted > DISTURBED {
        write!(
            out,
            ", disturbed: {:.0} % preempted",
            speed.preempted * 100.0
        )?;
    }
    write!(out, ")")
}

fn write_memory(out: &mut impl Write, memory: &Memory) -> fmt::Result {
    write!(
        out,
        "{:>9.1} bytes each   ({}",
        memory.bytes_per_key, memory.keys
    )?;
    match memory.held {
        Some(held) if held != memory.keys => write!(out, ", of which it holds {held})"),
        _ => write!(out, ")"),
    }
}

fn write_flood(out: &mut impl Write, flood: &Flood) -> fmt::Result {
    let mib = |bytes: u64| bytes as f64 / MIB;
    writeln!(
        out,
        " real keys: p50 {} ns, p99 {}, p99.9 {}, max {} of {} decisions",
        flood.p50, flood.p99, flood.p999, flood.max, flood.decisions
    )?;
    writeln!(
        out,
        "    made-up keys: {} through a bound of {}, {:.0} ns each, {:.1} % admitted",
        flood.made_up,
        flood.max_keys,
        flood.ns_per_made_up,
        flood.made_up_admitted * 100.0
    )?;
    writeln!(
        out,
        "    reset: {} of {} limited real keys; wrongly denied: {} of {} asks of modest ones",
        flood.resets, flood.limited, flood.modest_denied, flood.modest_asked
    )?;
    write!(
        out,
        "    resident MiB: {:.1} empty, {:.1} full, {:.1} half way, {:.1} at the end",
        mib(flood.rss_empty),
        mib(flood.rss_full),
        mib(flood.rss_mid),
        mib(flood.rss_end)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_under_their_work_and_targets_below() {
        let figure = |who: &str, ns_per_op| {
            let speed = Speed {
                ns_per_op,
                min: 9.0,
                max: 12.0,
                rounds: 3,
                admitted: 1.0,
                preempted: 0.0,
            };
            let (work, who, how) = ("direct-token-bucket".into(), who.into(), "way".into());
            Figure {
                work,
                who,
                how,
                threads: 1,
                measure: Measure::Speed(speed),
            }
        };
        let mut text = String::new();
        write(
            &mut text,
            &[figure("tidegate", 12.0), figure("governor", 10.0)],
        )
        .unwrap();
        let expected = "
direct-token-bucket, 1 thread
  tidegate             12.0 ns   (9.0 to 12.0)   way
  governor             10.0 ns   (9.0 to 12.0)   way

targets
  missed     1.20 of at most 1.10   direct-token-bucket, 1 thread(s): tidegate / governor
";
        assert_eq!(text, expected);
    }
}
