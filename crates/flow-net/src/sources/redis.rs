//! A key in Redis, and a channel that announces its changes.

use std::{io, time::Duration};

use redis::{Client, Commands, Connection, RedisError};
use tidegate_flow::sources::{
    RuleSource, RuleUpdate, SourceError,
    sentinel::{self, Kind},
    yaml,
};

use super::Parse;

/// The timeout of connecting and of each answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the source waits for a message before it reads the key without one.
const WAIT: Duration = Duration::from_secs(1);

/// Rules in a key of Redis or Valkey (feature `redis-source`).
///
/// A client that changes the key publishes any message to the channel, and the source then reads
/// the key immediately. It also reads the key once a second, because a message may get lost. The
/// rules therefore come from the key alone. After a failure the source reconnects. A missing key is
/// an error, and the previous rules stay active. To remove all rules, set the key to `[]` or `{}`.
///
/// ```no_run
/// use tidegate_flow::{Gate, sources::sentinel::Kind};
/// use tidegate_flow_net::sources::RedisSource;
///
/// let gate = Gate::new();
/// let source = RedisSource::sentinel("redis://127.0.0.1/", "rules:flow", "rules", Kind::Flow)?;
/// let _following = gate.follow(source, |loaded| eprintln!("rules: {loaded:?}"))?;
/// # Ok::<(), tidegate_flow::sources::SourceError>(())
/// ```
pub struct RedisSource {
    client: Client,
    key: String,
    channel: String,
    parse: Parse,
    open: Option<OpenConnections>,
    loaded: Option<String>,
}

/// Two connections, because a connection that subscribes to a channel can do nothing else.
struct OpenConnections {
    read: Connection,
    listen: Connection,
}

impl RedisSource {
    /// A key in a custom format, on a server such as `redis://user:password@host:6379/0` or
    /// `redis+unix:///run/redis.sock`. This does not connect to the server yet.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub fn new(
        url: &str,
        key: impl Into<String>,
        channel: impl Into<String>,
        parse: impl Fn(&str) -> Result<RuleUpdate, SourceError> + Send + 'static,
    ) -> Result<Self, SourceError> {
        let client = Client::open(url).map_err(other)?;
        let (key, channel) = (key.into(), channel.into());
        Ok(Self {
            client,
            key,
            channel,
            parse: Box::new(parse),
            open: None,
            loaded: None,
        })
    }

    /// A key with one kind of rules as JSON, with Sentinel's field names: see
    /// [`sentinel`].
    ///
    /// # Errors
    /// Same as [`new`](Self::new).
    pub fn sentinel(
        url: &str,
        key: impl Into<String>,
        channel: impl Into<String>,
        kind: Kind,
    ) -> Result<Self, SourceError> {
        Self::new(url, key, channel, move |text| sentinel::parse(kind, text))
    }

    /// A key with rules of all kinds as YAML: see [`yaml`].
    ///
    /// # Errors
    /// Same as [`new`](Self::new).
    pub fn yaml(
        url: &str,
        key: impl Into<String>,
        channel: impl Into<String>,
    ) -> Result<Self, SourceError> {
        Self::new(url, key, channel, |text| {
            yaml::parse(text).map(RuleUpdate::from)
        })
    }

    fn connect(&self) -> Result<OpenConnections, RedisError> {
        let connect = |patience| {
            let connection = self.client.get_connection_with_timeout(PATIENCE)?;
            connection.set_read_timeout(Some(patience))?;
            connection.set_write_timeout(Some(PATIENCE))?;
            Ok::<_, RedisError>(connection)
        };
        Ok(OpenConnections {
            read: connect(PATIENCE)?,
            listen: connect(WAIT)?,
        })
    }

    /// Returns the key's value if it differs from the loaded one. Waits for a message once.
    fn news(&self, open: &mut OpenConnections) -> Result<Option<String>, SourceError> {
        let OpenConnections { read, listen } = open;
        // Subscribe first, so that a change between the read and the wait is not missed.
        let mut channel = listen.as_pubsub();
        channel.subscribe(&self.channel).map_err(other)?;
        let mut look = || {
            let value: Option<String> = read.get(&self.key).map_err(other)?;
            match value.filter(|text| !text.trim().is_empty()) {
                Some(text) => Ok(Some(text).filter(|text| self.loaded.as_ref() != Some(text))),
                None => Err(SourceError::Read(io::Error::other(format!(
                    "the key {} is missing or empty; to have no rules, set it to [] or {{}}",
                    self.key
                )))),
            }
        };
        let now = look()?;
        if now.is_some() || self.loaded.is_none() {
            return Ok(now);
        }
        match channel.get_message() {
            Ok(_) => look(),
            Err(e) if e.is_timeout() => Ok(None),
            Err(e) => Err(other(e)),
        }
    }
}

fn other(error: RedisError) -> SourceError {
    SourceError::Other(Box::new(error))
}

impl RuleSource for RedisSource {
    fn name(&self) -> String {
        format!("the Redis key {}", self.key)
    }

    fn changed(&mut self) -> Result<Option<RuleUpdate>, SourceError> {
        // Take the connections out, so that they are dropped after a failure.
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.connect().map_err(other)?,
        };
        let text = self.news(&mut open)?;
        self.open = Some(open);
        let Some(text) = text else { return Ok(None) };
        let update = (self.parse)(&text)?;
        self.loaded = Some(text);
        Ok(Some(update))
    }

    /// The pause is short because the source itself waits for messages, and not zero because a
    /// stopped server fails at once.
    fn pause(&self) -> Duration {
        Duration::from_millis(100)
    }
}
