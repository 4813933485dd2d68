//! `tidegate demo`: a server with rules and traffic, to look around.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::ExitCode,
    thread,
    time::Duration,
};

use clap::{CommandFactory as _, FromArgMatches as _, builder::Resettable};

use crate::{Cli, Command, serve};

/// Start a server with example rules and traffic, to look around; Ctrl-C ends it
///
/// Most clients stay within their limits. A scraper and a guesser of passwords do not, one client
/// is on a deny list, and exports compete for three places. Nothing is kept, and the variables of
/// `serve` have no effect.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address of the HTTP API
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    http: String,
    /// Address of the Redis protocol, over which the traffic comes
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6380")]
    resp: String,
    /// Address of the dashboard
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8082")]
    admin: String,
    /// Requests a second
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    rate: u32,
}

const RULES: &str = "\
# The rules of the demo. Change them here or on the page Rules.
limits:
  - {name: per-user, limit: 60/1m, algorithm: token-bucket, burst: 20, overrides: {partner: 60000/1m}}
  - {name: logins, limit: 5/1m, algorithm: sliding-log, deny: [mallory@example.com]}
  - {name: search, limit: 30/10s, shadow: true}
  - {name: exports, limit: 3, algorithm: concurrency, hold: 1m}
  - {name: everyone, limit: 100000/1s, global: true}
";

/// Sends of commands in each second.
const TICKS: u32 = 20;

pub fn run(args: &Args) -> ExitCode {
    let directory = std::env::temp_dir().join(format!("tidegate-demo-{}", std::process::id()));
    let rules = directory.join("rules.yaml");
    if let Err(error) = fs::create_dir_all(&directory).and_then(|()| fs::write(&rules, RULES)) {
        eprintln!("tidegate: {}: {error}", rules.display());
        return ExitCode::FAILURE;
    }
    let code = serve(args, &rules);
    // A directory that stays in the system's temporary directory does no harm.
    let _ = fs::remove_dir_all(&directory);
    code
}

fn serve(args: &Args, rules: &Path) -> ExitCode {
    let rules = rules.display().to_string();
    let options = [
        "tidegate",
        "serve",
        "--rules",
        &rules,
        "--rules-writable",
        "--trace-keys",
        "100%",
    ];
    let listeners = [
        "--http",
        &args.http,
        "--resp",
        &args.resp,
        "--admin",
        &args.admin,
    ];
    // The variables are those of a server, whose store or state the demo must not touch.
    let command = Cli::command().mut_subcommand("serve", |serve| {
        serve.mut_args(|arg| arg.env(Resettable::Reset))
    });
    let matches = command.get_matches_from(options.into_iter().chain(listeners));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let Command::Serve(options) = cli.command else {
        unreachable!("the command line is that of serve")
    };
    let rate = args.rate;
    serve::run_with(*options, move |server| {
        if let Some(admin) = server.address("admin") {
            // The reader of the output may be gone.
            let _ = writeln!(
                io::stdout(),
                "\nThe demo sends {rate} requests a second. Who is denied, and why: http://{admin}/\n\
                 In a terminal: tidegate top --server http://{admin}    Ctrl-C ends the demo."
            );
        }
        if let Some(resp) = server.address("resp") {
            // It ends with the server, or with the process.
            thread::spawn(move || traffic(resp, rate));
        }
    })
}

/// Sends the commands of made-up clients until the server ends the connection.
#[allow(
    clippy::disallowed_methods,
    reason = "a thread that sends at intervals has nothing else to do"
)]
fn traffic(server: SocketAddr, rate: u32) {
    let sent = || -> io::Result<()> {
        let mut stream = TcpStream::connect(server)?;
        let mut replies = stream.try_clone()?;
        thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            while replies.read(&mut buffer).is_ok_and(|read| read > 0) {}
        });
        let mut commands = String::new();
        for tick in 0_u32.. {
            commands.clear();
            let per_tick = rate / TICKS;
            (0..per_tick).for_each(|at| {
                request(
                    &mut commands,
                    tick.wrapping_mul(per_tick).wrapping_add(at),
                    rate,
                );
            });
            others(&mut commands, tick);
            stream.write_all(commands.as_bytes())?;
            thread::sleep(Duration::from_secs(1) / TICKS);
        }
        Ok(())
    };
    if let Err(error) = sent() {
        tracing::debug!(%error, "the traffic of the demo ended");
    }
}

/// One request of the usual kind. There are as many users as requests a second, so each stays
/// within its limit.
fn request(commands: &mut String, number: u32, users: u32) {
    let fraction = (f64::from(number) * 0.618_034).fract();
    let user = (f64::from(users) * fraction).floor();
    let client = match number % 10 {
        0 => "scraper".to_owned(),
        1 | 2 => "partner".to_owned(),
        _ => format!("user-{user}"),
    };
    // Writing to a `String` does not fail.
    let _ = write!(
        commands,
        "ACQUIRE everyone\r\nACQUIRE per-user {client}\r\n"
    );
    if number.is_multiple_of(3) && client != "partner" {
        let _ = write!(commands, "ACQUIRE search {client}\r\n");
    }
}

/// Logins, guesses of a password, and exports that take a few seconds.
fn others(commands: &mut String, tick: u32) {
    let second = tick / TICKS;
    let _ = match tick % TICKS {
        0 => write!(
            commands,
            "ACQUIRE logins user-{}@example.com\r\n",
            second % 50
        ),
        5 | 15 => write!(commands, "ACQUIRE logins eve@example.com\r\n"),
        10 => write!(commands, "ACQUIRE logins mallory@example.com\r\n"),
        // Five want to export every eight seconds, for three places.
        12 if second % 8 < 5 => write!(commands, "ACQUIRE exports reports\r\n"),
        12 if second % 8 == 7 => write!(commands, "REFUND exports reports 3\r\n"),
        _ => Ok(()),
    };
}
