//! Draws how adaptive limits perform in a simulated service:
//! `cargo run --release -p tidegate-flow --example adaptive_limits`.
//!
//! It writes `docs/src/pictures/adaptive.svg` (or the named file) and prints the figures of all
//! scenarios as a table.

#[path = "../tests/simulation/mod.rs"]
mod simulation;

use std::{env, fmt::Write as _, fs, io};

use simulation::{Bound, Run, Scenario, Service, algorithms, beside, best_fixed, run};

const WIDTH: f64 = 860.0;
const PANEL: f64 = 200.0;
const LEFT: f64 = 60.0;
const COLOURS: [&str; 4] = ["#1b6ca8", "#d1495b", "#66a182", "#8d8d8d"];

fn main() -> io::Result<()> {
    let path = env::args()
        .nth(1)
        .unwrap_or_else(|| "docs/src/pictures/adaptive.svg".to_owned());
    fs::write(&path, picture())?;
    println!("{path}");
    table();
    Ok(())
}

/// Draws a run with twenty workers at 1.5 times their capacity, with thirty seconds in which calls
/// take three times as long.
fn picture() -> String {
    let scenario = Scenario {
        slow: Some((60, 90)),
        seconds: 120,
        ..Scenario::new(20, Service::Exponential, 1.5)
    };
    let (fixed, _) = best_fixed(&Scenario::new(20, Service::Exponential, 1.5));
    let mut runs: Vec<(String, Run)> = algorithms()
        .into_iter()
        .map(|(name, algorithm)| (name.to_owned(), run(&scenario, &Bound::Adaptive(algorithm))))
        .collect();
    let mut best = run(&scenario, &Bound::Fixed(fixed));
    best.limits = vec![fixed.into(); scenario.seconds as usize];
    runs.push((format!("fixed at {fixed}"), best));
    let seconds = scenario.seconds;
    let by_second = |of: &dyn Fn(&Run, u32) -> f64| -> Vec<Vec<f64>> {
        runs.iter()
            .map(|(_, run)| (0..seconds).map(|at| of(run, at)).collect())
            .collect()
    };
    let panels = [
        (
            "limit",
            by_second(&|run, at| {
                run.limits
                    .get(at as usize)
                    .map_or(0.0, |limit| *limit as f64)
            }),
        ),
        (
            "calls ended a second",
            by_second(&|run, at| run.goodput(at, at + 1)),
        ),
        (
            "99th percentile in ms",
            by_second(&|run, at| run.p99(at, at + 1)),
        ),
    ];
    let height = 70.0 + panels.len() as f64 * (PANEL + 40.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"22\" \
         font-size=\"14\">20 workers, 3,000 calls a second where 2,000 can be served; all calls take 3 x as long from \
         60 s to 90 s</text>\n"
    );
    for (at, (name, _)) in runs.iter().enumerate() {
        let x = LEFT + at as f64 * 130.0;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"44\" fill=\"{}\">{name}</text>",
            COLOURS[at]
        );
    }
    for (at, (title, lines)) in panels.iter().enumerate() {
        draw(&mut svg, 60.0 + at as f64 * (PANEL + 40.0), title, lines);
    }
    svg + "</svg>\n"
}

fn draw(svg: &mut String, top: f64, title: &str, lines: &[Vec<f64>]) {
    // Cut off the highest hundredth: a few moments of a measurement would flatten the rest of the
    // picture.
    let mut values: Vec<f64> = lines.iter().flatten().copied().collect();
    values.sort_by(f64::total_cmp);
    let most = values[(values.len() - 1) * 99 / 100].max(1.0) * 1.1;
    let right = WIDTH - 20.0;
    let y = |value: f64| top + PANEL - value.min(most) / most * PANEL;
    let seconds = lines.first().map_or(1, Vec::len) as f64;
    let x = |at: f64| LEFT + at / seconds * (right - LEFT);
    let (from, to) = (x(60.0), x(90.0));
    let _ = writeln!(
        svg,
        "<rect x=\"{from:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{PANEL}\" fill=\"#f3ead7\"/>\n\
         <text x=\"{LEFT}\" y=\"{:.1}\">{title}</text>",
        to - from,
        top - 4.0
    );
    for part in [0.0, 0.5, 1.0] {
        let value = most / 1.1 * part;
        let at = y(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (line, colour) in lines.iter().zip(COLOURS) {
        let points: Vec<String> = line
            .iter()
            .enumerate()
            .map(|(at, value)| format!("{:.1},{:.1}", x(at as f64), y(*value)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.4\" points=\"{}\"/>",
            points.join(" ")
        );
    }
    for at in (0..=120).step_by(30) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at} s</text>",
            x(f64::from(at)),
            top + PANEL + 14.0
        );
    }
}

/// Prints each algorithm's goodput and slowest calls, divided by those of the best fixed limit: the
/// lowest goodput and the slowest calls of three seeds.
fn table() {
    let names: Vec<&str> = algorithms().map(|(name, _)| name).to_vec();
    println!(
        "| workers | service | load | best fixed | {} |",
        names.join(" | ")
    );
    println!("|---|---|---|---|{}", "---|".repeat(names.len()));
    for workers in [5, 20, 100] {
        for service in Service::ALL {
            for load in [0.5, 0.9, 1.2, 1.5, 3.0] {
                let mut worst = [(f64::MAX, 0.0_f64); 3];
                let mut limits = Vec::new();
                for seed in 0..3 {
                    let scenario = Scenario {
                        seed,
                        ..Scenario::new(workers, service, load)
                    };
                    let (limit, best) = best_fixed(&scenario);
                    limits.push(limit.to_string());
                    for ((_, algorithm), worst) in algorithms().into_iter().zip(&mut worst) {
                        let run = run(&scenario, &Bound::Adaptive(algorithm));
                        let (goodput, slowest) = beside(&scenario, &best, &run);
                        *worst = (worst.0.min(goodput), worst.1.max(slowest));
                    }
                }
                print!(
                    "| {workers} | {service:?} | {load} | {} |",
                    limits.join(", ")
                );
                for (goodput, slowest) in worst {
                    print!(" {goodput:.3}, {slowest:.2} |");
                }
                println!();
            }
        }
    }
}
