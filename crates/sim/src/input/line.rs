//! Reads lines of bounded length from a stream, and the reasons why a line may not be a request.

use std::io::{self, BufRead, Read};

use memchr::memchr_iter;

/// The maximum length of a line, 1 MiB. A longer line is skipped and counted as invalid.
const MAX_LINE: usize = 1 << 20;

/// Passes every line, without its end (`\n` or `\r\n`), to `each`; `None` stands for a line that is
/// too long. Stops early if `each` fails.
///
/// A line that is completely in the stream's buffer is not copied.
pub(super) fn each_line<E: From<io::Error>>(
    input: &mut (impl BufRead + ?Sized),
    mut each: impl FnMut(Option<&[u8]>) -> Result<(), E>,
) -> Result<(), E> {
    let mut line = Vec::new();
    loop {
        let buffer = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            buffer => buffer?,
        };
        if buffer.is_empty() {
            return Ok(());
        }
        let (mut used, mut taken) = (0, Ok(()));
        for end in memchr_iter(b'\n', buffer) {
            taken = each((end - used <= MAX_LINE).then(|| without_return(&buffer[used..end])));
            used = end + 1;
            if taken.is_err() {
                break;
            }
        }
        input.consume(used);
        taken?;
        if used > 0 {
            continue;
        }
        line.clear();
        // The longest line and its end.
        (&mut *input)
            .take(MAX_LINE as u64 + 1)
            .read_until(b'\n', &mut line)?;
        let has_end = line.pop_if(|byte| *byte == b'\n').is_some();
        if has_end || line.len() <= MAX_LINE {
            each(Some(without_return(&line)))?;
        } else {
            input.skip_until(b'\n')?;
            each(None)?;
        }
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Why a line (in a file of requests per second: a number) is not a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The line is longer than a mebibyte.
    #[error("longer than 1 MiB")]
    TooLong,
    /// The other lines have the time and the name of a log collector in front, and this one has
    /// not, or is only a part of a line.
    #[error(
        "not what the log collector puts in front of the other lines, or only a part of a line"
    )]
    Envelope,
    /// The line does not start like `host ident user [time] …`.
    #[error("no `host ident user [time] …`")]
    NotAccessLog,
    /// The first column of an access log is not the address or the name of a client.
    #[error("the first column is not a client's address")]
    NotClient,
    /// The first two columns are not a server and a client.
    #[error("no `server:port client ident user [time] …`")]
    NotVhost,
    /// The key needs the client, and the line has no address of one.
    #[error(
        "no client address (Envoy's default log has one only if it adds it to X-Forwarded-For: set use_remote_address)"
    )]
    NoClient,
    /// The format does not have the addresses that proxies write.
    #[error(
        "no column with X-Forwarded-For (nginx's format `main` has it last; in lines with named fields it is x_forwarded_for)"
    )]
    NoForwarded,
    /// A trusted proxy wrote something that is not an address, or the client's own address is
    /// missing.
    #[error("a trusted proxy wrote something that is not an address")]
    NotForwarded,
    /// No bracket contains a time in the form of access logs.
    #[error("no time such as [17/May/2015:10:05:03 +0000]")]
    AccessTime,
    /// The line has no request in quotes after the time.
    #[error("no request in quotes behind the time")]
    NoRequest,
    /// The line has no status after the request.
    #[error("no status behind the request")]
    NoStatus,
    /// The key needs a user agent, which the common log format does not have.
    #[error("no user agent (the common log format has none)")]
    NoUserAgent,
    /// The line is not a JSON object.
    #[error("no JSON object")]
    NotJson,
    /// The key needs a host, which common and combined logs do not have.
    #[error(
        "no host (vhost_combined, load balancers of AWS, Envoy and logs with named fields may have one)"
    )]
    NoHost,
    /// The line is not in the logfmt form.
    #[error("no `name=value name=\"value\" …`")]
    NotLogfmt,
    /// The line has more or fewer columns than the header above it.
    #[error("not as many columns as the header names, {wanted}")]
    Columns {
        /// The number of columns in the header.
        wanted: usize,
    },
    /// The line is not in HAProxy's format for HTTP.
    #[error(
        "no `client:port [time] frontend backend/server timers status … \"request\"` as HAProxy writes it with `option httplog`"
    )]
    NotHaproxy,
    /// The line is not in Squid's native format.
    #[error(
        "no `time duration client code/status bytes method url user hierarchy/server type` as Squid writes it"
    )]
    NotSquid,
    /// The line is not in granian's format.
    #[error("no `[time] client - \"request\" status duration` as granian writes it")]
    NotGranian,
    /// The line is not in Tornado's format.
    #[error(
        "no `[I 150517 10:05:03 web:2348] status method target (client) duration` as Tornado writes it"
    )]
    NotTornado,
    /// The line is not in gin's format.
    #[error("no `[GIN] time | status | duration | client | method \"target\"` as gin writes it")]
    NotGin,
    /// Fastify writes the status in another line than the client.
    #[error(
        "fastify writes the status in a second line: set disableRequestLogging and log with pino-http, which writes one line"
    )]
    FastifyStatus,
    /// The line is not in Envoy's format.
    #[error("no `[time] \"request\" status flags …` as Envoy writes it")]
    NotEnvoy,
    /// The line is not in the format of an AWS load balancer.
    #[error("no `type time elb client:port target:port …` as a load balancer of AWS writes it")]
    NotAlb,
    /// The second column of a load balancer's line is not a time.
    #[error("no time in the second column, such as 2015-05-17T10:05:03.186641Z")]
    AlbTime,
    /// The key needs a field that the line does not have.
    #[error("no field `{name}`; there are {has}")]
    NoField {
        /// The field.
        name: String,
        /// The fields of the line.
        has: String,
    },
    /// The line has none of the fields for the time.
    #[error("no field `{name}` that holds the time (name it with --time-field); there are {has}")]
    NoTime {
        /// The fields that were tried.
        name: String,
        /// The fields of the line.
        has: String,
    },
    /// The time field does not contain a time.
    #[error("the field `{0}` holds neither an RFC 3339 time nor a number of seconds since 1970")]
    Time(String),
    /// The field with the cost has another text.
    #[error("the field `{0}` (--charge) holds no whole number from 0 to 9007199254740991")]
    NotCost(String),
    /// The field with the time that the request took has another text.
    #[error("the field `{0}` (--took) holds no number from 0 on")]
    NotTook(String),
    /// The text is not a whole number from 0 to 4294967295.
    #[error("no whole number of requests")]
    NotCount,
}
