//! The data from the server.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::client::{ClientError, HttpTarget};

/// The number of seconds to show.
pub const RECENT: usize = 60;
/// The number of keys to show of a limit.
const KEYS: usize = 100;

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Overview {
    pub version: String,
    pub store: Option<Store>,
    pub limits: Vec<TopLimit>,
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
}

/// The state of a key, from a peek.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Standing {
    pub allowed: bool,
    pub limit: u64,
    pub remaining: u64,
    pub retry_after_ms: Option<u64>,
    pub reset_after_ms: Option<u64>,
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

    pub fn standing(&self, limit: &str, key: &str) -> Result<Standing, ClientError> {
        self.read(
            self.0
                .post("/v1/peek", &json!({"limit": limit, "key": key}))?,
        )
    }

    pub fn block(&self, limit: &str, key: &str) -> Result<(), ClientError> {
        self.0
            .post("/v1/block", &json!({"limit": limit, "key": key}))
            .map(|_| ())
    }

    /// Returns whether it was blocked.
    pub fn unblock(&self, limit: &str, key: &str) -> Result<bool, ClientError> {
        let answer = self
            .0
            .post("/v1/unblock", &json!({"limit": limit, "key": key}))?;
        Ok(answer["unblocked"] == true)
    }

    fn read<T: DeserializeOwned>(&self, value: Value) -> Result<T, ClientError> {
        serde_json::from_value(value).map_err(|_| self.0.no_tidegate())
    }
}

/// Text from elsewhere, for a terminal: control characters, and those that change the writing
/// direction, are replaced.
pub fn shown(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .map(|c| {
            if c.is_control() || turns(c) {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}
