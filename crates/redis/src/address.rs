//! Where a store is, as one line of text.

use std::{fmt, str::FromStr, sync::Arc};

use redis::{IntoConnectionInfo, RedisConnectionInfo};

use crate::StoreError;

/// Where a store is.
///
/// | form | what is there |
/// |---|---|
/// | `redis://[user:password@]host[:port][/db]` | one server |
/// | `redis+unix:///path/to/socket` | one server, by its socket |
/// | `redis+cluster://[user:password@]host:port[,host:port…]` | a cluster; any of its nodes will do |
/// | `redis+sentinel://[user:password@]host:port[,host:port…]/name[/db]` | the master that sentinels know by a name. User and password are the master's; the sentinels are asked without |
///
/// `rediss` instead of `redis` is TLS (`rediss+cluster`, `rediss+sentinel`), checked against the system's certificates; the
/// port is 6379 where none is given (26379 for sentinels). `?protocol=resp3` at the end speaks RESP3.
///
/// ```
/// use tidegate_redis::Address;
/// let cluster: Address = "redis+cluster://10.0.0.1:7000,10.0.0.2:7000".parse()?;
/// assert!(cluster.is_cluster());
/// assert!("http://example.com".parse::<Address>().is_err());
/// # Ok::<(), tidegate_redis::StoreError>(())
/// ```
#[derive(Clone)]
pub struct Address {
    pub(crate) place: Place,
    tls: bool,
    shown: String,
}

#[derive(Clone, Debug)]
pub enum Place {
    Single(String),
    Cluster(Vec<String>),
    Sentinel { sentinels: Vec<String>, name: String, login: RedisConnectionInfo },
}

impl Address {
    /// Whether the address is a cluster's.
    #[must_use]
    pub const fn is_cluster(&self) -> bool {
        matches!(self.place, Place::Cluster(_))
    }

    pub(crate) const fn is_tls(&self) -> bool {
        self.tls
    }
}

const FORMS: &str = "an address begins with redis://, rediss://, redis+unix://, redis+cluster://, rediss+cluster://, redis+sentinel:// or rediss+sentinel://";

fn wrong(why: impl fmt::Display) -> StoreError {
    StoreError::Address(Arc::from(why.to_string().as_str()))
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong(FORMS))?;
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(wrong(FORMS)),
        };
        let base = if tls { "rediss" } else { "redis" };
        let (main, query) = rest.split_once('?').map_or((rest, String::new()), |(m, q)| (m, format!("?{q}")));
        let (login, hosts) = main.rsplit_once('@').map_or(("", main), |(login, hosts)| (login, hosts));
        let at = if login.is_empty() { "" } else { "@" };
        // Whether the parts make sense is told by whoever reads them later; here, so that nobody is told later.
        let info = |url: &str| url.into_connection_info().map_err(wrong);
        let place = match kind {
            "" => {
                let url = format!("{base}://{rest}");
                info(&url)?;
                Place::Single(url)
            }
            "unix" if !tls => {
                let url = format!("redis+unix://{rest}");
                info(&url)?;
                Place::Single(url)
            }
            "cluster" => {
                let hosts = hosts.trim_end_matches('/');
                let nodes: Vec<String> =
                    hosts.split(',').map(|host| format!("{base}://{login}{at}{host}{query}")).collect();
                nodes.iter().try_for_each(|node| info(node).map(drop))?;
                Place::Cluster(nodes)
            }
            "sentinel" => {
                let (hosts, path) = hosts
                    .split_once('/')
                    .filter(|(_, path)| !path.is_empty())
                    .ok_or_else(|| wrong("name the master, as in redis+sentinel://host:26379/mymaster"))?;
                let (name, db) = path.split_once('/').unwrap_or((path, "0"));
                let sentinels: Vec<String> = hosts
                    .split(',')
                    .map(|host| {
                        let port = if host.contains(':') { "" } else { ":26379" };
                        format!("{base}://{host}{port}")
                    })
                    .collect();
                sentinels.iter().try_for_each(|sentinel| info(sentinel).map(drop))?;
                let login =
                    info(&format!("{base}://{login}{at}localhost/{db}{query}"))?.redis_settings().clone();
                Place::Sentinel { sentinels, name: name.into(), login }
            }
            _ => return Err(wrong(FORMS)),
        };
        let shown = format!("{scheme}://{hosts}");
        Ok(Self { place, tls, shown })
    }
}

/// Without user and password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_no_password_is_shown() {
        for text in [
            "redis://localhost",
            "rediss://user:secret@example.com:6380/2?protocol=resp3",
            "redis+unix:///run/redis.sock",
            "redis+cluster://user:secret@10.0.0.1:7000,10.0.0.2:7000",
            "rediss+cluster://10.0.0.1:7000",
            "redis+sentinel://:secret@10.0.0.1,10.0.0.2:26380/main/3",
        ] {
            let address: Address = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(!format!("{address} {address:?}").contains("secret"), "{address}");
        }
        let Place::Sentinel { sentinels, name, login } =
            "redis+sentinel://u:p@a,b:1/main/3".parse::<Address>().expect("it is well formed").place
        else {
            panic!("sentinels are sentinels");
        };
        assert_eq!(
            (sentinels, name.as_str()),
            (vec!["redis://a:26379".into(), "redis://b:1".into()], "main")
        );
        assert_eq!((login.username(), login.password(), login.db()), (Some("u"), Some("p"), 3));
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_would_be_one() {
        for text in [
            "",
            "localhost",
            "http://localhost",
            "redis+sentinel://a:1",
            "redis+sentinel://a:1/",
            "redis+x://a",
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.to_string().contains("redis"), "{text}: {error}");
        }
    }
}
