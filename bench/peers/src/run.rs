//! From a work to its figures.

use std::time::Instant;

use crate::{
    args::Args,
    child::Job,
    clock_read, direct, entry,
    figure::{Figure, Flood, Measure},
    flood::{self, Plan},
    keyed,
    keys::Trace,
    memory,
    quota::Quota,
    race::{self, Expect, Racer, Rules},
    resources, shares, stores, system, window,
    work::{Algorithm, Work},
};

/// Keys of the two memory figures.
const MEMORY_KEYS: [f64; 2] = [1e6, 1e7];

const RESOURCES: f64 = 1e5;

/// Without keys, a course has no end to speak of.
const ENDLESS: usize = usize::MAX / 4;

/// Measures a work with all wanted limiters.
pub fn run(work: Work, args: &Args) -> Result<Vec<Figure>, String> {
    eprintln!("{}: load {}", work.name(), system::load());
    let (one, all) = (vec![1], args.threads());
    match work {
        Work::ClockRead => race(
            work,
            args,
            &one,
            ENDLESS,
            Expect::Admitted,
            clock_read::racers(),
        ),
        Work::DirectTokenBucket => race(
            work,
            args,
            &all,
            ENDLESS,
            Expect::Admitted,
            direct::token_bucket(Quota::ENDLESS),
        ),
        Work::DirectTokenBucketDenied => race(
            work,
            args,
            &all,
            ENDLESS,
            Expect::Denied,
            direct::token_bucket(Quota::SPENT),
        ),
        Work::DirectSlidingWindow => race(
            work,
            args,
            &all,
            ENDLESS,
            Expect::Admitted,
            direct::sliding_window(Quota::ENDLESS),
        ),
        Work::Keyed {
            algorithm,
            ordinary,
        } => {
            let (quota, expect) = if ordinary {
                (Quota::ORDINARY, Expect::Either)
            } else {
                (Quota::ENDLESS_FOR_A_KEY, Expect::Admitted)
            };
            eprintln!("  loading {} keys into each store", keyed::KEYS);
            let trace = Trace::zipf(keyed::KEYS, keyed::REQUESTS);
            let racers = keyed::racers(algorithm, quota, &trace, |who| args.wants(who));
            let mut figures = race(work, args, &all, keyed::REQUESTS, expect, racers)?;
            for figures in figures.chunk_by_mut(|a, b| a.threads == b.threads) {
                keyed::name_governor(figures);
            }
            Ok(figures)
        }
        Work::Batch => {
            eprintln!("  loading {} keys twice", keyed::KEYS);
            let trace = Trace::zipf(keyed::KEYS, keyed::REQUESTS);
            race(
                work,
                args,
                &all,
                keyed::REQUESTS,
                Expect::Admitted,
                keyed::batches(&trace),
            )
        }
        Work::Hot => {
            eprintln!("  loading {} keys into each store", keyed::KEYS);
            let trace = Trace::hot(keyed::KEYS, keyed::REQUESTS);
            let quota = Quota::ENDLESS_FOR_A_KEY;
            let racers =
                keyed::racers(Algorithm::TokenBucket, quota, &trace, |who| args.wants(who));
            // The mutex of throttlecrab's store only says how long a mutex's queue is.
            let racers = racers
                .into_iter()
                .filter(|racer| racer.who != "throttlecrab")
                .collect();
            let threads = args.threads_or(&[1, 2, 4, 8]);
            let mut figures = race(
                work,
                args,
                &threads,
                keyed::REQUESTS,
                Expect::Either,
                racers,
            )?;
            for figures in figures.chunk_by_mut(|a, b| a.threads == b.threads) {
                keyed::name_governor(figures);
            }
            Ok(figures)
        }
        Work::Memory(algorithm) => memory_of(work, args, algorithm),
        Work::Flood { interleaved } => floods(work, args, interleaved),
        Work::Entry(guarded) => race(
            work,
            args,
            &all,
            ENDLESS,
            Expect::Admitted,
            entry::racers(guarded),
        ),
        Work::WindowAdd => race(
            work,
            args,
            &all,
            ENDLESS,
            Expect::Admitted,
            window::adding(),
        ),
        Work::WindowSum => race(
            work,
            args,
            &one,
            ENDLESS,
            Expect::Admitted,
            window::summing(),
        ),
        Work::ResourceMemory => memory_of_resources(work, args),
        Work::Shares(tenants) => {
            let trace = Trace::zipf(tenants.count(), keyed::REQUESTS);
            let racers = shares::racers(tenants, &trace);
            race(work, args, &all, keyed::REQUESTS, Expect::Admitted, racers)
        }
    }
}

/// Who takes part in a work.
pub fn contestants(work: Work) -> Vec<&'static str> {
    let names = |list: &[(&'static str, &'static str)]| list.iter().map(|(who, _)| *who).collect();
    let racers = |list: &[Racer<'static>]| list.iter().map(|racer| racer.who).collect();
    match work {
        Work::ClockRead => racers(&clock_read::racers()),
        Work::DirectTokenBucket | Work::DirectTokenBucketDenied => {
            racers(&direct::token_bucket(Quota::SPENT))
        }
        Work::DirectSlidingWindow => racers(&direct::sliding_window(Quota::SPENT)),
        Work::Batch => vec![stores::TIDEGATE, keyed::ONE_BY_ONE, keyed::FLOOR],
        Work::Keyed { .. } | Work::Hot => {
            let algorithm = if let Work::Keyed { algorithm, .. } = work {
                algorithm
            } else {
                Algorithm::TokenBucket
            };
            let mut all: Vec<_> = names(stores::contestants(algorithm));
            if algorithm == Algorithm::TokenBucket {
                all.push(stores::BORROWED);
            }
            all.push(keyed::FLOOR);
            all
        }
        Work::Memory(algorithm) => names(memory::contestants(algorithm)),
        Work::Flood { .. } => names(flood::CONTESTANTS),
        Work::Entry(_) => names(&entry::CONTESTANTS),
        Work::WindowAdd => names(&window::ADDING),
        Work::WindowSum => names(&window::SUMMING),
        Work::ResourceMemory => names(&resources::CONTESTANTS),
        Work::Shares(_) => shares::CONTESTANTS.to_vec(),
    }
}

fn race(
    work: Work,
    args: &Args,
    threads: &[usize],
    course: usize,
    expect: Expect,
    mut racers: Vec<Racer<'_>>,
) -> Result<Vec<Figure>, String> {
    racers.retain(|racer| args.wants(racer.who));
    let mut figures = Vec::new();
    for &threads in threads {
        let (rounds, turn) = (args.rounds(), args.turn());
        let rules = Rules {
            threads,
            rounds,
            warm_up: turn / 2,
            turn,
            course,
            expect,
        };
        let report = |round: usize, racer: &Racer<'_>, ns: f64| {
            eprintln!(
                "  {} threads {threads} round {} of {rounds}: {} {ns:.1} ns",
                work.name(),
                round + 1,
                racer.who
            );
        };
        let speeds =
            race::race(&racers, &rules, report).map_err(|e| format!("{}: {e}", work.name()))?;
        figures.extend(racers.iter().zip(speeds).map(|(racer, speed)| {
            figure(work, (racer.who, racer.how), threads, Measure::Speed(speed))
        }));
    }
    Ok(figures)
}

fn memory_of(work: Work, args: &Args, algorithm: Algorithm) -> Result<Vec<Figure>, String> {
    let mut figures = Vec::new();
    for keys in MEMORY_KEYS {
        let keys = (keys * args.scale).ceil() as u64;
        for &contestant in wanted(memory::contestants(algorithm), args) {
            let (who, _) = contestant;
            eprintln!("  {} {keys} keys: {who}", work.name());
            let measure = Job::Memory {
                who: who.to_owned(),
                algorithm,
                keys,
            }
            .delegate()?;
            let mut figure = figure(work, contestant, 1, measure);
            if who == stores::OWNED {
                // Its other way owns no keys, so this is governor's figure.
                "governor".clone_into(&mut figure.who);
            }
            figures.push(figure);
        }
    }
    Ok(figures)
}

fn memory_of_resources(work: Work, args: &Args) -> Result<Vec<Figure>, String> {
    let resources = (RESOURCES * args.scale).ceil() as u64;
    let mut figures = Vec::new();
    for &contestant in wanted(&resources::CONTESTANTS, args) {
        eprintln!("  {} {resources} resources: {}", work.name(), contestant.0);
        let measure = Job::Resources {
            who: contestant.0.to_owned(),
            resources,
        }
        .delegate()?;
        figures.push(figure(work, contestant, 1, measure));
    }
    Ok(figures)
}

fn floods(work: Work, args: &Args, interleaved: bool) -> Result<Vec<Figure>, String> {
    let plan = Plan::scaled(args.scale, interleaved);
    let contestants: Vec<_> = wanted(flood::CONTESTANTS, args).copied().collect();
    let mut floods: Vec<Vec<Flood>> = contestants.iter().map(|_| Vec::new()).collect();
    for round in 0..args.floods() {
        for ((who, _), floods) in contestants.iter().zip(&mut floods) {
            let (name, rounds, begun) = (work.name(), args.floods(), Instant::now());
            eprintln!(
                "  {name} flood {} of {rounds}: {who}, {} made-up keys",
                round + 1,
                plan.made_up
            );
            let Measure::Flood(flood) = (Job::Flood {
                who: (*who).to_owned(),
                plan,
            })
            .delegate()?
            else {
                return Err(format!("{name}: the answer is not a flood's"));
            };
            eprintln!(
                "    p99.9 {} ns, {:.0} s",
                flood.p999,
                begun.elapsed().as_secs_f64()
            );
            floods.push(flood);
        }
    }
    let mut figures = Vec::new();
    for (contestant, mut floods) in contestants.into_iter().zip(floods) {
        floods.sort_unstable_by_key(|flood| flood.p999);
        let mut middle = floods[floods.len() / 2];
        // A reset in any of them is a reset.
        middle.resets = floods
            .iter()
            .map(|flood| flood.resets)
            .max()
            .unwrap_or_default();
        figures.push(figure(
            work,
            contestant,
            plan.threads(),
            Measure::Flood(middle),
        ));
    }
    Ok(figures)
}

fn wanted<'a>(
    contestants: &'a [(&'static str, &'static str)],
    args: &Args,
) -> impl Iterator<Item = &'a (&'static str, &'static str)> {
    contestants.iter().filter(|(who, _)| args.wants(who))
}

fn figure(work: Work, (who, how): (&str, &str), threads: usize, measure: Measure) -> Figure {
    Figure {
        work: work.name().to_owned(),
        who: who.to_owned(),
        how: how.to_owned(),
        threads,
        measure,
    }
}
