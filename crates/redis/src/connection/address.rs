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
/// | `redis+sentinel://[user:password@]host:port[,host:port…]/name[/db]` | the master that sentinels know by a name. User and password are the master's; those of the sentinels, if they want any, follow as `?sentinel_username=…&sentinel_password=…` |
///
/// In names and passwords `: / ? # & @ %` are written as `%3A %2F %3F %23 %26 %40 %25`. `rediss` instead of `redis` is TLS (`rediss+cluster`, `rediss+sentinel`), checked against the system's certificates; the
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
    pub(crate) target: Target,
    tls: bool,
    shown: String,
}

#[derive(Clone, Debug)]
pub enum Target {
    Single(String),
    Cluster(Vec<String>),
    Sentinel { sentinels: Vec<String>, name: String, login: RedisConnectionInfo },
}

impl Address {
    /// Whether the address is a cluster's.
    #[must_use]
    pub const fn is_cluster(&self) -> bool {
        matches!(self.target, Target::Cluster(_))
    }

    pub(crate) const fn is_tls(&self) -> bool {
        self.tls
    }
}

const FORMS: &str = "an address begins with redis://, rediss://, redis+unix://, redis+cluster://, rediss+cluster://, redis+sentinel:// or rediss+sentinel://";

const FORM: &str = "it is user:password@host:port behind the ://, with : / ? # & @ % in names and passwords written as %3A %2F %3F %23 %26 %40 %25";

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
        let (main, query) = rest.split_once('?').map_or((rest, ""), |(main, query)| (main, query));
        let options = Options::read(query, kind)?;
        let query = options.protocol.map_or(String::new(), |protocol| format!("?protocol={protocol}"));
        let (login, hosts) = main.rsplit_once('@').map_or(("", main), |(login, hosts)| (login, hosts));
        let at = if login.is_empty() { "" } else { "@" };
        // Whether the parts make sense is told by whoever reads them later; here, so that nobody is told later.
        let info = |url: &str| {
            // The client's own words may hold a part of the password.
            url.into_connection_info().map_err(|_| wrong(FORM))
        };
        let target = match kind {
            "" => {
                let url = format!("{base}://{rest}");
                info(&url)?;
                Target::Single(url)
            }
            "unix" if !tls => {
                let url = format!("redis+unix://{rest}");
                info(&url)?;
                Target::Single(url)
            }
            "cluster" => {
                let hosts = hosts.trim_end_matches('/');
                let nodes: Vec<String> =
                    hosts.split(',').map(|host| format!("{base}://{login}{at}{host}{query}")).collect();
                nodes.iter().try_for_each(|node| info(node).map(drop))?;
                Target::Cluster(nodes)
            }
            "sentinel" => {
                let (hosts, path) = hosts
                    .split_once('/')
                    .filter(|(_, path)| !path.is_empty())
                    .ok_or_else(|| wrong("name the master, as in redis+sentinel://host:26379/mymaster"))?;
                let (name, db) = path.split_once('/').unwrap_or((path, "0"));
                let own = options.sentinel_login();
                let sentinels: Vec<String> = hosts
                    .split(',')
                    .map(|host| {
                        let port = if host.contains(':') { "" } else { ":26379" };
                        format!("{base}://{own}{host}{port}")
                    })
                    .collect();
                sentinels.iter().try_for_each(|sentinel| info(sentinel).map(drop))?;
                let login =
                    info(&format!("{base}://{login}{at}localhost/{db}{query}"))?.redis_settings().clone();
                Target::Sentinel { sentinels, name: name.into(), login }
            }
            _ => return Err(wrong(FORMS)),
        };
        let shown = format!("{scheme}://{hosts}");
        Ok(Self { target, tls, shown })
    }
}

/// What stands behind the `?`.
#[derive(Default)]
struct Options<'a> {
    protocol: Option<&'a str>,
    sentinel_username: Option<&'a str>,
    sentinel_password: Option<&'a str>,
}

impl<'a> Options<'a> {
    fn read(query: &'a str, kind: &str) -> Result<Self, StoreError> {
        let mut options = Self::default();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let option = match (name, kind) {
                ("protocol", _) => &mut options.protocol,
                ("sentinel_username", "sentinel") => &mut options.sentinel_username,
                ("sentinel_password", "sentinel") => &mut options.sentinel_password,
                // The client reads these itself.
                ("user" | "pass" | "db", "unix") => continue,
                _ => {
                    let known = match kind {
                        "sentinel" => "protocol, sentinel_username and sentinel_password",
                        "unix" => "protocol, user, pass and db",
                        _ => "protocol",
                    };
                    return Err(wrong(format!("there is no option `{name}`; known here: {known}")));
                }
            };
            if value.is_empty() || value.contains(['@', '/', ':', '?', '#']) {
                let what = format!("the option `{name}` has no value, or one with @ / : ? or # in it");
                return Err(wrong(format!("{what}; write these as %40 %2F %3A %3F %23")));
            }
            *option = Some(value);
        }
        if options.sentinel_username.is_some() && options.sentinel_password.is_none() {
            return Err(wrong("there is a sentinel_username without a sentinel_password"));
        }
        Ok(options)
    }

    /// As it stands before a sentinel's host.
    fn sentinel_login(&self) -> String {
        let password = self.sentinel_password.map(|password| format!(":{password}@"));
        format!("{}{}", self.sentinel_username.unwrap_or_default(), password.unwrap_or_default())
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
            "redis+sentinel://10.0.0.1/main?sentinel_username=u&sentinel_password=secret&protocol=resp3",
            "redis+unix:///run/redis.sock?user=u&pass=secret&db=2",
        ] {
            let address: Address = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(!format!("{address} {address:?}").contains("secret"), "{address}");
        }
        let Target::Sentinel { sentinels, name, login } =
            "redis+sentinel://u:p@a,b:1/main/3".parse::<Address>().expect("it is well formed").target
        else {
            panic!("sentinels are sentinels");
        };
        assert_eq!(
            (sentinels, name.as_str()),
            (vec!["redis://a:26379".into(), "redis://b:1".into()], "main")
        );
        assert_eq!((login.username(), login.password(), login.db()), (Some("u"), Some("p"), 3));
        for (options, own) in [
            ("sentinel_password=s%40", "redis://:s%40@a:26379"),
            ("protocol=resp3&sentinel_username=w&sentinel_password=s", "redis://w:s@a:26379"),
        ] {
            let address = format!("redis+sentinel://u:p@a/main?{options}").parse::<Address>();
            let Target::Sentinel { sentinels, .. } = address.expect("it is well formed").target else {
                panic!("sentinels are sentinels");
            };
            assert_eq!(sentinels, [own]);
        }
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
        for (text, told) in [
            ("redis://a?protcol=resp3", "there is no option `protcol`; known here: protocol"),
            ("redis://a?sentinel_password=x", "there is no option `sentinel_password`"),
            ("redis+sentinel://a/main?sentinel_pasword=x", "known here: protocol, sentinel_username"),
            ("redis+sentinel://a/main?sentinel_password=", "has no value"),
            ("redis+sentinel://a/main?sentinel_password=p@ss", "write these as %40"),
            ("redis+sentinel://a/main?sentinel_username=x", "without a sentinel_password"),
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.to_string().contains(told), "{text}: {error}");
            assert!(!error.to_string().contains("p@ss"), "{error}");
        }
    }
}
