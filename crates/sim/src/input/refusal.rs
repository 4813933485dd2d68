//! Logs that are known and lack what a replay needs: what they are, and the server's own setting
//! that makes a log which can be replayed.

use memchr::memmem::find;

use super::{
    client::{has_port, is_address, without_port},
    envelope::prefix,
};

/// A description of an unknown line, and the setting that helps; `None` if it is not a known one.
pub(super) fn advice(line: &[u8]) -> Option<String> {
    let line = line.trim_ascii();
    let text = String::from_utf8_lossy(line);
    let known = KNOWN.iter().find(|(is_line, _)| is_line(&text));
    if let Some((_, advice)) = known {
        return Some((*advice).to_owned());
    }
    let front = String::from_utf8_lossy(prefix(line)?);
    Some(format!(
        "`{}` stands in front of what would be an access line: log without it, or cut it off before the replay",
        front.trim_ascii().escape_debug()
    ))
}

type Known = (fn(&str) -> bool, &'static str);

const KNOWN: [Known; 12] = [
    (
        |line| uvicorn(line).is_some(),
        "uvicorn writes no time: give --log-config a file whose formatter `access` has the fmt `%(client_addr)s - - [%(asctime)s] \
         \"%(request_line)s\" %(status_code)s -` and the datefmt `%d/%b/%Y:%H:%M:%S %z`",
    ),
    (
        |line| {
            words(line).nth(1).is_some_and(|word| word.ends_with(']'))
                && line.starts_with('[')
                && django(line).is_some()
        },
        "Django's runserver writes no client: serve with a server that logs it, as `gunicorn --access-logfile -` does",
    ),
    (
        |line| {
            line.contains("haproxy[") && line.contains("Connect from ")
                || line.starts_with("Connect from ")
        },
        "these are HAProxy's connections and not requests: set `mode http` and `option httplog`",
    ),
    (
        |line| tcplog(line).is_some(),
        "these are HAProxy's connections (option tcplog) and not requests: set `mode http` and `option httplog`",
    ),
    (
        |line| line.contains("actix_web::middleware::logger]"),
        "the time is only in front of actix-web's line: use \
         Logger::new(r#\"%a - - [%t] \"%r\" %s %b \"%{Referer}i\" \"%{User-Agent}i\"\"#), and a logger that writes the message alone",
    ),
    (
        |line| columns(line, '|').is_some_and(clock),
        "fiber writes only the time of day: set Format to `${ip} - - [${time}] \"${method} ${path} ${protocol}\" ${status} \
         ${bytesSent}\\n` and TimeFormat to `02/Jan/2006:15:04:05 -0700`",
    ),
    (
        |line| {
            line.contains("\" from ") && line.contains(" in ") && line.contains("\"GET http")
                || line.contains("\" from ") && line.contains(" - ") && line.contains("B in ")
        },
        "chi's middleware.Logger writes a local time in front: use handlers.CombinedLoggingHandler of github.com/gorilla/handlers",
    ),
    (
        |line| line.starts_with("<-- ") || line.starts_with("--> ") || line.starts_with("xxx "),
        "koa-logger writes neither client nor time: use koa-morgan with 'combined', or koa-pino-logger",
    ),
    (
        |line| morgan(line),
        "morgan's `tiny`, `short` and `dev` have no time: use morgan('combined')",
    ),
    (
        |line| line.starts_with('[') && (line.contains("] [client ") || line.contains("] [pid ")),
        "this is Apache's error log: its requests are in the access log (CustomLog … combined)",
    ),
    (
        |line| line.contains(", client: ") && line.contains(", server: ") && line.contains("] "),
        "this is nginx's error log: its requests are in the access log (access_log … combined)",
    ),
    (
        |line| line.starts_with("tls ") || line.starts_with("tcp ") && line.contains(" net/"),
        "these are the connections of a network load balancer and not requests: log them at the servers behind it",
    ),
];

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').filter(|word| !word.is_empty())
}

/// `INFO:     192.0.2.7:53336 - "GET /shop HTTP/1.1" 200 OK`.
fn uvicorn(line: &str) -> Option<()> {
    let at = line.find(" - \"")?;
    let client = line[..at].rsplit(' ').next()?;
    let status = line.rsplit_once("\" ")?.1;
    let is_client = has_port(client.as_bytes()) || without_port(client.as_bytes()).is_some();
    (is_client && status.get(..3)?.bytes().all(|digit| digit.is_ascii_digit())).then_some(())
}

/// `[17/May/2015 10:05:03] "GET / HTTP/1.1" 200 5`.
fn django(line: &str) -> Option<()> {
    let (time, rest) = line[1..].split_once(']')?;
    super::timestamp::parse_access_log_time(time.as_bytes())?;
    rest.starts_with(" \"").then_some(())
}

/// `192.0.2.7:33313 [06/Feb/2009:12:12:51.443] fnt bck/srv1 0/0/5007 212 -- 0/0/0/0/3 0/0`.
fn tcplog(line: &str) -> Option<()> {
    let open = find(line.as_bytes(), b" [")?;
    let client = line[..open].rsplit(' ').next()?;
    let (_, rest) = line[open..].split_once("] ")?;
    let timers = words(rest).nth(2)?.split('/');
    (without_port(client.as_bytes()).is_some() && timers.count() == 3).then_some(())
}

/// The first of at least five columns.
fn columns(line: &str, between: char) -> Option<&str> {
    let mut columns = line.split(between);
    let first = columns.next()?.trim();
    (columns.count() >= 4).then_some(first)
}

fn clock(text: &str) -> bool {
    let mut parts = text.split(':');
    let two = |part: Option<&str>| {
        part.is_some_and(|part| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_digit()))
    };
    two(parts.next()) && two(parts.next()) && two(parts.next()) && parts.next().is_none()
}

/// `GET /shop 200 4.123 ms - 512`, or with the client in front (`short`).
fn morgan(line: &str) -> bool {
    let line = match line.split_once(' ') {
        Some((client, rest)) if is_address(client.as_bytes()) => rest,
        _ => line,
    };
    let method = words(line).find(|word| *word != "-").unwrap_or_default();
    let is_method = method.len() > 2 && method.bytes().all(|letter| letter.is_ascii_uppercase());
    is_method && (line.contains(" ms - ") || line.ends_with(" ms"))
}
