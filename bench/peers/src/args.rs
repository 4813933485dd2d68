//! The command line.

use std::time::Duration;

use clap::Parser;

use crate::{
    child::Job,
    work::{Choice, Work},
};

/// Measures Tidegate and other rate limiters, on the same work in one run.
///
/// Figures go to standard output, progress to standard error.
#[derive(Debug, Parser)]
#[command(name = "peers")]
pub struct Args {
    /// One JSON object a line instead of a table
    #[arg(long)]
    pub json: bool,

    /// The works of the table in bench/README.md, with the rivals of their targets, in five rounds: about three minutes
    #[arg(long)]
    quick: bool,

    /// Only this work; `keyed-*` is all that begin so. May be given several times
    #[arg(long = "work", value_name = "NAME")]
    works: Vec<Choice>,

    /// Only this limiter (and tidegate). May be given several times
    #[arg(long = "who", value_name = "NAME")]
    who: Vec<String>,

    /// Only with N threads. May be given several times [default: 1 and 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Vec<u8>,

    /// Turns of each limiter, one after the other; the median counts [default: 9, and 5 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,

    /// Length of a turn in milliseconds; half as much warming up comes before it
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    turn: u32,

    /// Floods of each kind over each store; the one with the median p99.9 counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    floods: u16,

    /// Share of the keys in keyed-memory and keyed-flood, above 0, at most 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = scale)]
    pub scale: f64,

    /// List the works and who takes part
    #[arg(long)]
    pub list: bool,

    /// For this program itself: one measurement in a separate process
    #[arg(long, hide = true, value_parser = job)]
    pub child: Option<Job>,
}

/// Those whose figures the targets name.
const RIVALS: [&str; 6] = [
    "governor",
    "rate-net",
    "one-by-one",
    "keyed",
    "sentinel-core",
    "quanta",
];

impl Args {
    /// The works wanted, each once, in the order of the table of figures.
    pub fn works(&self) -> Vec<Work> {
        let wanted = |work: &Work| {
            let mut chosen = self.works.iter();
            if self.works.is_empty() {
                !self.quick || work.is_quick()
            } else {
                chosen.any(|choice| choice.works().contains(work))
            }
        };
        Work::ALL.into_iter().filter(wanted).collect()
    }

    /// Whether this limiter is wanted. `governor` is wanted in all its ways.
    pub fn wants(&self, who: &str) -> bool {
        let named = |name: &str| {
            who == name
                || who
                    .strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with('-'))
        };
        if self.who.is_empty() {
            return !self.quick || who == "tidegate" || RIVALS.into_iter().any(named);
        }
        who == "tidegate" || self.who.iter().any(|name| named(name))
    }

    pub fn threads(&self) -> Vec<usize> {
        self.threads_or(&[1, 2])
    }

    /// For a work that is usually done with these.
    pub fn threads_or(&self, usual: &[usize]) -> Vec<usize> {
        if self.threads.is_empty() {
            usual.to_vec()
        } else {
            self.threads.iter().map(|&n| n.into()).collect()
        }
    }

    pub fn rounds(&self) -> usize {
        let usual = if self.quick { 5 } else { 9 };
        self.rounds.unwrap_or(usual).into()
    }

    pub fn floods(&self) -> usize {
        self.floods.into()
    }

    pub fn turn(&self) -> Duration {
        Duration::from_millis(self.turn.into())
    }
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("a share is a number above 0 and at most 1".to_owned()),
    }
}

fn job(text: &str) -> Result<Job, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(["peers"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn nothing_said_means_everything() {
        let args = parse("").unwrap();
        assert_eq!(args.works(), Work::ALL);
        assert_eq!((args.threads(), args.rounds()), (vec![1, 2], 9));
        assert!(!args.json && args.wants("trypema"));
    }

    #[test]
    fn a_quick_run_has_fewer_works_rivals_and_rounds_unless_they_are_named() {
        let args = parse("--quick").unwrap();
        assert!(
            args.works().len() < Work::ALL.len() && args.works().iter().all(|work| work.is_quick())
        );
        assert!(args.wants("governor-string") && args.wants("tidegate") && !args.wants("trypema"));
        assert_eq!(args.rounds(), 5);
        let args = parse("--quick --work keyed-flood --who trypema --rounds 2").unwrap();
        let names: Vec<_> = args.works().into_iter().map(Work::name).collect();
        assert_eq!((names, args.rounds()), (vec!["keyed-flood"], 2));
        assert!(args.wants("trypema") && !args.wants("governor"));
    }

    #[test]
    fn works_are_chosen_by_name_and_kept_in_order() {
        let args = parse("--work keyed-flood --work direct-* --work direct-token-bucket").unwrap();
        let names: Vec<_> = args.works().into_iter().map(Work::name).collect();
        assert_eq!(
            names,
            [
                "direct-token-bucket",
                "direct-token-bucket-denied",
                "direct-sliding-window",
                "keyed-flood"
            ]
        );
    }

    #[test]
    fn a_rival_is_wanted_in_all_its_ways_and_tidegate_always() {
        let args = parse("--who governor").unwrap();
        assert!(args.wants("governor") && args.wants("governor-string") && args.wants("tidegate"));
        assert!(!args.wants("rate-net"));
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
        for (line, reason) in [
            ("--work nothing", "no such work"),
            ("--scale 0", "above 0"),
            ("--scale 2", "at most 1"),
            ("--rounds 0", "0 is not in 1.."),
            ("--threads 65", "65 is not in 1..=64"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn the_options_are_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
