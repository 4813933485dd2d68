//! The data from the server.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::client::{ClientError, HttpTarget, path};

pub use tidegate_server::shown::text as shown;

/// The number of seconds to show.
pub const RECENT: usize = 60;
/// The number of keys to show of a limit.
const KEYS: usize = 100;

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Overview {
    pub version: String,
    pub store: Option<Store>,
    #[serde(default)]
    pub conditions: Vec<Condition>,
    pub limits: Vec<TopLimit>,
}

/// A condition of the server as a whole.
#[derive(Clone, Debug, Deserialize)]
pub struct Condition {
    pub state: String,
    pub since_ms: u64,
    pub effect: String,
    pub remedy: String,
    pub is_wrong: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Store {
    pub health: String,
    pub nodes: u32,
}

#[derive(Clone, Debug, Deserialize)]
pub struct TopLimit {
    pub name: String,
    pub algorithm: String,
    pub quota: String,
    pub options: String,
    pub global: bool,
    pub shadow: bool,
    pub sharing: String,
    pub keys: u64,
    pub max_keys: u64,
    pub allowed: u64,
    pub delayed: u64,
    pub denied: u64,
    pub shadow_denied: u64,
    pub errors: u64,
    /// The callers in line; absent in an older server's answer, as the next.
    #[serde(default)]
    pub waiting: u64,
    #[serde(default)]
    pub waited: u64,
    pub admitted_per_second: Option<f64>,
    pub denied_per_second: Option<f64>,
    pub recent: Option<Recent>,
    pub heaviest: Option<Heaviest>,
}

impl TopLimit {
    /// The fraction of its recent requests that it denied; `None` without requests.
    pub fn share_denied(&self) -> Option<f64> {
        let (admitted, denied) = (self.admitted_per_second?, self.denied_per_second?);
        (admitted + denied > 0.0).then(|| denied / (admitted + denied))
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct Recent {
    pub denied: Vec<u64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Heaviest {
    pub key: String,
    pub share: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Top {
    pub seconds: f64,
    pub one_in: u64,
    pub asked_most: Vec<HeavyKey>,
    pub denied_most: Vec<HeavyKey>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct HeavyKey {
    pub key: String,
    #[serde(default)]
    pub not_utf8: bool,
    pub count: u64,
    pub at_least: u64,
    pub at_most: u64,
    /// Absent in an older server's answer.
    pub since_ms: Option<u64>,
}

/// The facts about a key, as in `tidegate explain`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Explained {
    pub facts: Vec<Fact>,
    /// Absent in an older server's answer.
    pub block_helps: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Fact {
    pub name: String,
    pub text: String,
}

/// The server.
pub struct TopServer<'a>(pub HttpTarget<'a>);

impl TopServer<'_> {
    pub fn overview_json(&self) -> Result<Value, ClientError> {
        self.0.get(&format!("/v1/limits?recent={RECENT}"))
    }

    pub fn overview(&self) -> Result<Overview, ClientError> {
        self.read(self.overview_json()?)
    }

    pub fn top(&self, limit: &str) -> Result<Top, ClientError> {
        let limit =
            percent_encoding::utf8_percent_encode(limit, percent_encoding::NON_ALPHANUMERIC);
        self.read(self.0.get(&format!("/v1/top?limit={limit}&n={KEYS}"))?)
    }

    pub fn explained(&self, limit: &str, key: &str) -> Result<Explained, ClientError> {
        let fields = [
            ("limit", Some(&limit.to_owned())),
            ("key", Some(&key.to_owned())),
        ];
        self.read(self.0.get(&path("/v1/explain", fields))?)
    }

    /// Blocks a key, for a time if one is given, with a note if there is one.
    pub fn block(&self, limit: &str, key: &str, span: &str, note: &str) -> Result<(), ClientError> {
        let mut body = json!({"limit": limit, "key": key});
        put(&mut body, "for", span);
        put(&mut body, "note", note);
        self.0.post("/v1/block", &body).map(|_| ())
    }

    /// Returns whether it was blocked.
    pub fn unblock(&self, limit: &str, key: &str, note: &str) -> Result<bool, ClientError> {
        let mut body = json!({"limit": limit, "key": key});
        put(&mut body, "note", note);
        let answer = self.0.post("/v1/unblock", &body)?;
        Ok(answer["unblocked"] == true)
    }

    fn read<T: DeserializeOwned>(&self, value: Value) -> Result<T, ClientError> {
        serde_json::from_value(value).map_err(|_| self.0.no_tidegate())
    }
}

fn put(body: &mut Value, name: &str, text: &str) {
    if !text.trim().is_empty() {
        body[name] = json!(text.trim());
    }
}
