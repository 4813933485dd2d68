//! Parses request bodies. An error names the wrong field and what it should be.

use std::{borrow::Cow, fmt, ops::Deref, time::Duration};

use axum::http::{self, StatusCode};
use percent_encoding::percent_decode_str;

use serde::{
    Deserialize, Deserializer,
    de::{Error, Unexpected, Visitor},
};
use serde_path_to_error::{Path, Segment};
use tidegate_core::{MAX_LIMIT, Priority, parse_duration, parse_units};
use tidegate_headers::Forwarded;
use tidegate_service::decide::service::{self, Refusal, WaitFor, check_id, check_wait, wait_of};

use super::{problem::Problem, query};

/// The maximum number of limits in one `all`.
pub const MAX_ALL: usize = 32;

/// A question to one limit, by name.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"limit\": \"per-user\", \"key\": \"alice\"}"
)]
pub(super) struct Ask<'a> {
    #[serde(borrow)]
    pub limit: Text<'a>,
    #[serde(borrow)]
    pub key: Option<Text<'a>>,
    #[serde(default = "one_unit", deserialize_with = "cost")]
    pub cost: u64,
}

impl Ask<'_> {
    /// The question to the service.
    pub fn question(&self) -> service::Ask<'_> {
        service::Ask {
            limit: self.limit.as_bytes(),
            key: self.key.as_deref().map(str::as_bytes),
            cost: self.cost,
        }
    }
}

/// A text that is borrowed from the body, unless it has escapes there.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// One limit, or several of which all must admit, or one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asks<'a> {
    One(Ask<'a>),
    All(Vec<Ask<'a>>),
    Any(Vec<Ask<'a>>),
}

/// A question to limits, and the id that makes it safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question<'a> {
    pub asks: Asks<'a>,
    pub id: Option<Text<'a>>,
    /// How it may wait in line.
    pub wait: Option<WaitFor>,
    /// Whether as much of the cost is taken as is available.
    pub up_to: bool,
}

/// Either form of [`Asks`], as written.
#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"limit\": \"per-user\", \"key\": \"alice\"}"
)]
struct AsksBody<'a> {
    #[serde(borrow)]
    limit: Option<Text<'a>>,
    #[serde(borrow)]
    key: Option<Text<'a>>,
    #[serde(default, deserialize_with = "some_cost")]
    cost: Option<u64>,
    #[serde(default, deserialize_with = "some_cost")]
    at_most: Option<u64>,
    #[serde(borrow)]
    all: Option<Vec<Ask<'a>>>,
    #[serde(borrow)]
    any: Option<Vec<Ask<'a>>>,
    #[serde(borrow)]
    id: Option<Text<'a>>,
    #[serde(default, deserialize_with = "wait")]
    wait: Option<Duration>,
    #[serde(default, deserialize_with = "priority")]
    priority: Option<Priority>,
}

/// An estimate of one limit or of several, and for how long it is kept.
#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"limit\": \"tokens\", \"key\": \"alice\", \"cost\": 800, \"ttl\": \"60s\"}"
)]
pub(super) struct Reserve<'a> {
    #[serde(borrow)]
    limit: Option<Text<'a>>,
    #[serde(borrow)]
    key: Option<Text<'a>>,
    #[serde(default, deserialize_with = "some_cost")]
    cost: Option<u64>,
    #[serde(borrow)]
    all: Option<Vec<Ask<'a>>>,
    #[serde(default, deserialize_with = "ttl")]
    pub ttl: Option<Duration>,
    /// The request's own id, which makes it safe to repeat.
    #[serde(borrow)]
    pub id: Option<Text<'a>>,
    /// How long it may wait in line.
    #[serde(default, deserialize_with = "wait")]
    wait: Option<Duration>,
    #[serde(default, deserialize_with = "priority")]
    priority: Option<Priority>,
}

impl<'a> Reserve<'a> {
    /// How it may wait in line.
    pub fn in_line(&self) -> Result<Option<WaitFor>, Problem> {
        in_line(self.wait, self.priority)
    }

    /// The limits, at least one.
    pub fn asks(self) -> Result<Vec<Ask<'a>>, Problem> {
        let Self {
            limit,
            key,
            cost,
            all,
            ..
        } = self;
        Ok(
            match (AsksBody {
                limit,
                key,
                cost,
                at_most: None,
                all,
                any: None,
                id: None,
                wait: None,
                priority: None,
            })
            .asks()?
            {
                Asks::One(ask) => vec![ask],
                Asks::All(all) | Asks::Any(all) => all,
            },
        )
    }
}

/// A bucket and its key, as throttlecrab's server reads them.
#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"key\": \"alice\", \"max_burst\": 10, \"count_per_period\": 100, \"period\": 60}"
)]
pub(super) struct Throttle<'a> {
    #[serde(borrow)]
    pub key: Text<'a>,
    /// How many at once, with the request itself.
    pub max_burst: i64,
    pub count_per_period: i64,
    /// In seconds.
    pub period: i64,
    pub quantity: Option<i64>,
}

/// The costs of a reservation: one for each of its limits.
#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"id\": \"0123456789abcdef0123456789abcdef\", \"costs\": [350]}"
)]
pub(super) struct Costs {
    pub id: String,
    #[serde(deserialize_with = "costs")]
    pub costs: Vec<u64>,
}

/// A reservation.
#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"id\": \"0123456789abcdef0123456789abcdef\"}"
)]
pub(super) struct Reserved {
    pub id: String,
}

/// A key to block.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"limit\": \"per-user\", \"key\": \"alice\"}"
)]
pub(crate) struct Block {
    pub limit: String,
    pub key: Option<String>,
    /// For how long; `None` blocks until it is unblocked.
    #[serde(default, rename = "for", deserialize_with = "span")]
    pub span: Option<Duration>,
    /// Why, for the audit.
    pub note: Option<String>,
}

/// A quota for a key, or the end of one.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"limit\": \"per-user\", \"key\": \"alice\", \"quota\": \"1000/1m\"}"
)]
pub(crate) struct Override {
    pub limit: String,
    pub key: Option<String>,
    #[serde(default, deserialize_with = "quota")]
    pub quota: Option<String>,
    /// For how long; `None` until it is ended.
    #[serde(default, rename = "for", deserialize_with = "span")]
    pub span: Option<Duration>,
    /// The key is held to the rules again.
    #[serde(default)]
    pub end: bool,
    /// Why, for the audit.
    pub note: Option<String>,
}

impl Override {
    /// The quota; `None` where one is to end.
    pub fn quota(&self) -> Result<Option<&str>, Problem> {
        match (&self.quota, self.end) {
            (Some(quota), false) => Ok(Some(quota)),
            (None, true) if self.span.is_none() => Ok(None),
            (None, true) => Err(Problem::at(
                "#/for",
                "an override that is ended ends now; leave `for` out",
            )),
            (Some(_), true) => Err(Problem::at(
                "#/quota",
                "give a `quota`, or `end` the one that the key has; not both",
            )),
            (None, false) => Err(Problem::at(
                "#",
                "missing field `quota`, as in \"1000/1m\" (or `\"end\": true`)",
            )),
        }
    }
}

/// A limit, with an optional key.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"limit\": \"per-user\", \"key\": \"alice\"}"
)]
pub(crate) struct Named {
    pub limit: String,
    pub key: Option<String>,
    /// Why, for the audit.
    pub note: Option<String>,
}

/// An event that charts mark.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"note\": \"shop 1.4 deployed\"}"
)]
pub(crate) struct Mark {
    /// The words next to the mark.
    pub note: String,
    /// The limit whose charts have the mark; all if it is left out.
    pub limit: Option<String>,
}

/// The longest words of a mark, in bytes.
const MARK: usize = 200;

impl Mark {
    /// Checks the words.
    pub fn checked(self) -> Result<Self, Problem> {
        if self.note.trim().is_empty() || self.note.len() > MARK {
            let detail =
                format!("write what happened, in 1 to {MARK} bytes, as in \"shop 1.4 deployed\"");
            return Err(Problem::at("#/note", detail));
        }
        Ok(self)
    }
}

/// Parses `{"limit", "key", "cost"}`, or `{"all": [...]}` with a list of them, and an `id` or a
/// `wait` of either.
pub(super) fn asks(body: &[u8]) -> Result<Question<'_>, Problem> {
    let mut body = read::<AsksBody<'_>>(body)?;
    let id = body.id.take();
    if let Some(id) = &id {
        check_id(id.as_bytes()).map_err(|refusal| Problem::at("#/id", refusal.to_string()))?;
    }
    let wait = in_line(body.wait, body.priority)?;
    let up_to = body.at_most.is_some();
    if let Some(most) = body.at_most.take() {
        if body.cost.is_some() {
            let detail = "give a `cost`, all of which is taken or nothing, or `at_most`; not both";
            return Err(Problem::at("#/at_most", detail));
        }
        if body.all.is_some() || body.any.is_some() || id.is_some() {
            let detail = "`at_most` is for one limit, without an `id`";
            return Err(Problem::at("#/at_most", detail));
        }
        body.cost = Some(most);
    }
    if body.any.is_some() && id.is_some() {
        let detail = "`any` has no `id`: ask one limit, or `all`";
        return Err(Problem::at("#/id", detail));
    }
    let asks = body.asks()?;
    Ok(Question {
        asks,
        id,
        wait,
        up_to,
    })
}

/// How a request may wait in line.
fn in_line(span: Option<Duration>, priority: Option<Priority>) -> Result<Option<WaitFor>, Problem> {
    let refuse = |refusal: Refusal| Problem::at("#/priority", refusal.to_string());
    wait_of(span, priority).map_err(refuse)
}

impl<'a> AsksBody<'a> {
    fn asks(self) -> Result<Asks<'a>, Problem> {
        let Self {
            limit,
            key,
            cost,
            all,
            any,
            ..
        } = self;
        let (name, list) = match (all, any) {
            (Some(_), Some(_)) => {
                return Err(Problem::at("#/any", "give `all` or `any`, not both"));
            }
            (Some(all), None) => ("all", all),
            (None, Some(any)) => ("any", any),
            (None, None) => {
                let limit = limit.ok_or_else(|| {
                    Problem::at("#", "missing field `limit`: the name of the limit to ask")
                })?;
                return Ok(Asks::One(Ask {
                    limit,
                    key,
                    cost: cost.unwrap_or_else(one_unit),
                }));
            }
        };
        if limit.is_some() || key.is_some() || cost.is_some() {
            let detail = format!(
                "`limit`, `key` and `cost` belong inside the objects of `{name}`, not next to it"
            );
            return Err(Problem::at("#", detail));
        }
        let place = format!("#/{name}");
        if list.is_empty() {
            let detail =
                format!("`{name}` must be a list of at least one {{\"limit\", \"key\", \"cost\"}}");
            return Err(Problem::at(place, detail));
        }
        if list.len() > MAX_ALL {
            let detail = format!(
                "`{name}` has {} limits; at most {MAX_ALL} are allowed",
                list.len()
            );
            return Err(Problem::at(place, detail));
        }
        Ok(if name == "any" {
            Asks::Any(list)
        } else {
            Asks::All(list)
        })
    }
}

/// Parses the body that a path requires.
pub(crate) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    if body.trim_ascii().is_empty() {
        let detail =
            "the body is empty; send JSON such as {\"limit\":\"per-user\",\"key\":\"alice\"}";
        return Err(Problem::bad_json(detail));
    }
    serde_json::from_slice(body).map_err(|error| mistake::<T>(body, &error))
}

/// Says where a body is wrong. It is parsed again, because to keep track of the place costs time,
/// and most bodies are right.
fn mistake<'a, T: Deserialize<'a>>(body: &'a [u8], error: &serde_json::Error) -> Problem {
    let mut json = serde_json::Deserializer::from_slice(body);
    match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Err(again) if again.inner().is_data() => {
            Problem::at(pointer(again.path()), again.inner().to_string())
        }
        _ => Problem::bad_json(format!("the body is not JSON: {error}")),
    }
}

/// A path as a JSON pointer.
fn pointer(path: &Path) -> String {
    let mut text = String::from("#");
    for segment in path {
        text.push('/');
        match segment {
            Segment::Seq { index } => text.push_str(&index.to_string()),
            Segment::Map { key } => {
                let shown: String = key.chars().take(64).collect();
                text.push_str(&shown.replace('~', "~0").replace('/', "~1"));
            }
            _ => text.push('?'),
        }
    }
    text
}

const fn one_unit() -> u64 {
    1
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

fn cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Cost;

    impl Visitor<'_> for Cost {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number from 0 to {MAX_LIMIT}")
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
            if number <= MAX_LIMIT {
                Ok(number)
            } else {
                Err(E::invalid_value(Unexpected::Unsigned(number), &self))
            }
        }
    }

    deserializer.deserialize_u64(Cost)
}

fn costs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Cost(#[serde(deserialize_with = "cost")] u64);

    let costs = Vec::<Cost>::deserialize(deserializer)?;
    Ok(costs.into_iter().map(|Cost(cost)| cost).collect())
}

fn some_cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    cost(deserializer).map(Some)
}

/// A text, with what it should say.
struct Expected(&'static str);

const DURATION: Expected = Expected("a duration such as \"10s\"");

impl<'de> Visitor<'de> for Expected {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<String>, E> {
        Ok(Some(text.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_none<E: Error>(self) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, text: D) -> Result<Option<String>, D::Error> {
        text.deserialize_str(self)
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = deserializer.deserialize_str(DURATION)?.unwrap_or_default();
    parse_duration(&text).map_err(D::Error::custom)
}

fn quota<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_option(Expected("a text such as \"1000/1m\""))
}

fn wait<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let span = duration(deserializer)?;
    check_wait(span).map_err(D::Error::custom)?;
    Ok(Some(span))
}

fn priority<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Priority>, D::Error> {
    struct Level;

    impl Visitor<'_> for Level {
        type Value = Priority;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number from 0 to 9; 9 is served first")
        }

        fn visit_u64<E: Error>(self, level: u64) -> Result<Priority, E> {
            let refuse = |_| E::invalid_value(Unexpected::Unsigned(level), &self);
            Priority::try_from(level).map_err(refuse)
        }
    }

    deserializer.deserialize_u64(Level).map(Some)
}

fn ttl<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    const LONGEST: Duration = Duration::from_hours(24);
    match duration(deserializer)? {
        span if span >= Duration::from_millis(1) && span <= LONGEST => Ok(Some(span)),
        _ => Err(D::Error::custom("`ttl` must be between 1ms and 1d")),
    }
}

fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let Some(text) = deserializer.deserialize_option(DURATION)? else {
        return Ok(None);
    };
    match parse_duration(&text) {
        Ok(span) if !span.is_zero() => Ok(Some(span)),
        Ok(_) => Err(D::Error::custom(
            "`for` must be above zero; omit it for no end",
        )),
        Err(error) => Err(D::Error::custom(error)),
    }
}

/// The question in the head of a proxy's request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InHead<'a> {
    pub limit: Cow<'a, [u8]>,
    pub key: Option<Cow<'a, [u8]>>,
    pub cost: u64,
    /// The status of a denial.
    pub denied: StatusCode,
}

/// The header fields that can replace the query.
const KEY: &str = "x-tidegate-key";
const COST: &str = "x-tidegate-cost";
/// The header field that stands for `errors` if the query is the client's.
const ERRORS: &str = "x-tidegate-errors";

/// The limit, and whether the query is the proxy's own. Envoy's `ext_authz` puts the path and the
/// query of the client's request behind the limit.
fn limit(path: &str) -> (Cow<'_, [u8]>, bool) {
    let behind = path.strip_prefix("/v1/check/").unwrap_or_default();
    let (limit, has_query) = match behind.split_once('/') {
        Some((limit, _)) => (limit, false),
        None => (behind, true),
    };
    (percent_decode_str(limit).into(), has_query)
}

/// Whether a proxy asks with `errors=admit`: its request goes on if there is no decision.
pub(super) fn admits_errors<B>(request: &http::Request<B>) -> bool {
    let (_, has_query) = limit(request.uri().path());
    if !has_query {
        return request
            .headers()
            .get(ERRORS)
            .is_some_and(|errors| errors == "admit");
    }
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| pair == "errors=admit")
}

/// The client's address as a key: the entry of this number in `X-Forwarded-For`, counted from the
/// right.
fn forwarded(headers: &http::HeaderMap, behind: &[u8]) -> Result<String, Problem> {
    let number = str::from_utf8(behind)
        .ok()
        .and_then(|number| number.parse().ok());
    let number: usize = number
        .filter(|number| (1..=100).contains(number))
        .ok_or_else(|| Problem::at("#", "`behind` must be a number of proxies, from 1 to 100"))?;
    let field = Forwarded::XForwardedFor;
    let lines = headers.get_all(field.name()).iter().rev();
    let mut addresses = lines.flat_map(|line| field.addresses(line.as_bytes()));
    let client = addresses.nth(number - 1).flatten().ok_or_else(|| {
        let what = format!(
            "X-Forwarded-For has no address at place {number} from the right: does each proxy append its peer's?"
        );
        Problem::at("#", what)
    })?;
    Ok(tidegate_core::address_key(client, 64))
}

/// Parses `/v1/check/LIMIT?key=KEY&cost=N&denied=403&errors=admit`, where header fields can replace
/// key and cost, and `behind=N` takes the key from `X-Forwarded-For`. A key is any bytes. In
/// `/v1/check/LIMIT/PATH?QUERY` path and query are the client's, and only header fields count.
pub(super) fn in_head<B>(request: &http::Request<B>) -> Result<InHead<'_>, Problem> {
    let (limit, has_query) = limit(request.uri().path());
    let query = request.uri().query().filter(|_| has_query);
    let fields = query::values(query, ["key", "cost", "denied", "errors", "behind"])
        .map_err(|error| Problem::at("#", error.to_string()))?;
    let [key, cost, denied, errors, behind] = fields.map(|value| value.map(Cow::from));
    let denied = match denied.as_deref() {
        None | Some(b"429") => StatusCode::TOO_MANY_REQUESTS,
        Some(b"403") => StatusCode::FORBIDDEN,
        Some(_) => return Err(Problem::at("#", "`denied` must be 403 or 429")),
    };
    if errors.is_some_and(|errors| *errors != *b"admit") {
        return Err(Problem::at("#", "`errors` must be `admit`"));
    }
    let mut parts = [key, cost];
    for (part, name) in parts.iter_mut().zip([KEY, COST]) {
        for value in request.headers().get_all(name) {
            if part.replace(value.as_bytes().into()).is_some() {
                let what = format!(
                    "{name} occurs twice, or in addition to the same query field; keep one of them"
                );
                return Err(Problem::at("#", what));
            }
        }
    }
    let [mut key, cost] = parts;
    if let Some(behind) = behind {
        let client = forwarded(request.headers(), &behind)?;
        if key.replace(client.into_bytes().into()).is_some() {
            return Err(Problem::at("#", "`behind` is the key; give no other"));
        }
    }
    let cost = match cost {
        None => one_unit(),
        Some(text) => str::from_utf8(&text)
            .ok()
            .and_then(parse_units)
            .ok_or_else(|| {
                Problem::at(
                    "#",
                    format!("the cost must be a whole number from 0 to {MAX_LIMIT}"),
                )
            })?,
    };
    Ok(InHead {
        limit,
        key,
        cost,
        denied,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_text_with_escapes_is_copied() {
        let question = asks(br#"{"limit":"a","key":"x\u00e9\n"}"#);
        let Ok(Question {
            asks: Asks::One(ask),
            ..
        }) = question
        else {
            panic!("it is well formed")
        };
        assert!(matches!(ask.limit, Text(Cow::Borrowed("a"))));
        assert_eq!(ask.key.as_deref(), Some("xé\n"));
    }

    #[test]
    fn each_cost_of_a_reservation_is_bounded() {
        let costs = |cost: u64| {
            let body = format!(r#"{{"id":"0123456789abcdef0123456789abcdef","costs":[1,{cost}]}}"#);
            read::<Costs>(body.as_bytes()).map(|read| read.costs)
        };
        assert_eq!(costs(MAX_LIMIT).unwrap(), [1, MAX_LIMIT]);
        assert!(costs(MAX_LIMIT + 1).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(body: Vec<u8>) {
            let _ = asks(&body);
            let _ = read::<Block>(&body);
            let _ = read::<Named>(&body);
        }
    }
}
