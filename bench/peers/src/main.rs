//! Tidegate and other rate limiters. `bench/README.md` lists the works, and what is equal for all.

mod args;
mod child;
mod clock_read;
mod direct;
mod entry;
mod figure;
mod flood;
mod keyed;
mod keys;
mod memory;
mod quantile;
mod quota;
mod race;
mod resources;
mod run;
mod shares;
mod stores;
mod system;
mod table;
mod target;
mod window;
mod work;

use std::process::ExitCode;

use clap::Parser;

use args::Args;
use work::Work;

fn main() -> ExitCode {
    let args = Args::parse();
    let done = if let Some(job) = &args.child {
        child(job)
    } else if args.list {
        for work in Work::ALL {
            println!("{:<40} {}", work.name(), run::contestants(work).join(" "));
        }
        Ok(())
    } else {
        all(&args)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("peers: {e}");
            ExitCode::FAILURE
        }
    }
}

fn child(job: &child::Job) -> Result<(), String> {
    let measure = job.measure()?;
    println!(
        "{}",
        serde_json::to_string(&measure).map_err(|e| e.to_string())?
    );
    Ok(())
}

fn all(args: &Args) -> Result<(), String> {
    let mut figures = Vec::new();
    for work in args.works() {
        let new = run::run(work, args)?;
        if args.json {
            for figure in &new {
                println!(
                    "{}",
                    serde_json::to_string(figure).map_err(|e| e.to_string())?
                );
            }
        }
        figures.extend(new);
    }
    if !args.json {
        let mut text = String::new();
        table::write(&mut text, &figures).map_err(|e| e.to_string())?;
        print!("{text}");
    }
    Ok(())
}
