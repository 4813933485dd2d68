//! The address of a store, as one line of text.

use std::{fmt, fs, io, path::PathBuf, str::FromStr, sync::Arc};

use redis::{
    ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates,
    io::tcp::TcpSettings,
};

use crate::StoreError;

/// The address of a store.
///
/// | form | store |
/// |---|---|
/// | `redis://[user:password@]host[:port][/db]` | one server |
/// | `redis+unix:///path/to/socket` | one server, by its socket |
/// | `redis+cluster://[user:password@]host:port[,host:port…]` | a cluster; list one or more of its nodes |
/// | `redis+sentinel://[user:password@]host:port[,host:port…]/name[/db]` | the master that sentinels know by a name. User and password are the master's; those of the sentinels, if they want any, follow as `?sentinel_username=…&sentinel_password=…` |
///
/// In names and passwords write `: / ? # & @ %` as `%3A %2F %3F %23 %26 %40 %25`, or pass the
/// password separately with [`with_password`](Self::with_password). The default port is 6379 (26379
/// for sentinels). Append `?protocol=resp3` to use RESP3.
///
/// `rediss` instead of `redis` selects TLS (also `rediss+cluster` and `rediss+sentinel`), verified
/// with the system's certificates. `?ca=FILE` verifies with the authority in that file instead.
/// `?cert=FILE&key=FILE` send a client certificate. The files are PEM. They are read when the
/// address is parsed, and again for each connection. In their names `%2F` stands for `/`, as in any
/// other part.
///
/// ```
/// # mod tidegate_redis {
/// #     pub use tidegate_redis_script::{StoreError, connection::Address};
/// # }
/// use tidegate_redis::Address;
/// let cluster: Address = "redis+cluster://10.0.0.1:7000,10.0.0.2:7000".parse()?;
/// assert!(cluster.is_cluster());
/// assert!("http://example.com".parse::<Address>().is_err());
/// # Ok::<(), tidegate_redis::StoreError>(())
/// ```
#[derive(Clone)]
pub struct Address {
    pub(super) target: Target,
    pub(super) certificates: Option<TlsCertificates>,
    files: Files,
    tls: bool,
    shown: String,
}

/// The files that an address names: `ca`, `cert` and `key`, and the password's.
#[derive(Clone, Default)]
struct Files {
    tls: [Option<PathBuf>; 3],
    password: Option<PathBuf>,
}

#[derive(Clone)]
pub enum Target {
    Single(ConnectionInfo),
    Cluster(Vec<ConnectionInfo>),
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        name: String,
        login: RedisConnectionInfo,
    },
}

impl Address {
    /// Whether the address is that of a cluster.
    #[must_use]
    pub const fn is_cluster(&self) -> bool {
        matches!(self.target, Target::Cluster(_))
    }

    /// The same store with a password that is not in the address text. With sentinels, it is the
    /// master's password.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        let with = |info: &ConnectionInfo| {
            let settings = info.redis_settings().clone().set_password(password);
            info.clone().set_redis_settings(settings)
        };
        self.target = match self.target {
            Target::Single(info) => Target::Single(with(&info)),
            Target::Cluster(nodes) => Target::Cluster(nodes.iter().map(with).collect()),
            Target::Sentinel {
                sentinels,
                name,
                login,
            } => Target::Sentinel {
                sentinels,
                name,
                login: login.set_password(password),
            },
        };
        self
    }

    /// The same with the password in a file, without the line's end. The file is read again for
    /// each connection.
    ///
    /// # Errors
    /// When the file cannot be read as text.
    pub fn with_password_file(mut self, path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let path = path.into();
        self.files.password = Some(path.clone());
        let password = self.files.password().map_err(|error| {
            wrong(format!(
                "cannot read the file with the password, {}: {error}",
                path.display()
            ))
        })?;
        Ok(self.with_password(&password.unwrap_or_default()))
    }

    /// This address with its files read again, and a digest of their contents. A file that cannot
    /// be read keeps its last contents.
    pub(super) fn read_again(&self) -> (Self, String) {
        let (digest, mut fresh) = (self.files.digest(), self.clone());
        if let Ok(certificates) = self.files.certificates() {
            fresh.certificates = certificates;
        }
        match self.files.password() {
            Ok(Some(password)) => (fresh.with_password(&password), digest),
            _ => (fresh, digest),
        }
    }

    pub(super) const fn is_tls(&self) -> bool {
        self.tls
    }

    /// The number of the database; 0 in a cluster.
    fn database(&self) -> i64 {
        match &self.target {
            Target::Single(info) => info.redis_settings().db(),
            Target::Cluster(_) => 0,
            Target::Sentinel { login, .. } => login.db(),
        }
    }

    /// Which part of the address is wrong, if the server replies but refuses how the client uses
    /// it.
    pub(super) fn advice(&self) -> Option<String> {
        match self.database() {
            _ if self.is_cluster() => Some(
                "it is not a node of a cluster: write redis:// or rediss:// in the address"
                    .to_owned(),
            ),
            0 => None,
            number => Some(format!(
                "the address asks for database {number}: give another number, or raise `databases` in the store's configuration"
            )),
        }
    }
}

const FORMS: &str = "an address begins with redis://, rediss://, redis+unix://, redis+cluster://, rediss+cluster://, redis+sentinel:// or rediss+sentinel://";

const FORM: &str = "after :// write user:password@host:port; write : / ? # & @ % in names and passwords as %3A %2F %3F %23 %26 %40 %25";

/// Disables Nagle's algorithm. Calls follow each other without waiting for replies, so the system
/// must not delay the second call until the first is acknowledged.
pub(super) fn tcp() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// An error about the address. Its text contains no part of the address, because any part may be a
/// password.
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
        if rest.ends_with("#insecure") {
            return Err(wrong(
                "certificates are always verified and #insecure is not supported; use ?ca=FILE for a private authority",
            ));
        }
        let (main, query) = rest
            .split_once('?')
            .map_or((rest, ""), |(main, query)| (main, query));
        if rest.contains('#') || query.contains(['@', '?']) {
            return Err(wrong(FORM));
        }
        let options = AddressOptions::read(query, kind, tls)?;
        let files = Files {
            tls: options.files()?,
            password: None,
        };
        let certificates = files.certificates()?;
        let own_query = options
            .protocol
            .map_or(String::new(), |protocol| format!("?protocol={protocol}"));
        let (login, hosts) = main
            .rsplit_once('@')
            .map_or(("", main), |(login, hosts)| (login, hosts));
        let at = if login.is_empty() { "" } else { "@" };
        // The client validates the parts itself. They are checked here so that the error appears
        // early. The client's own message may contain a part of the password.
        let info = |url: String| match url.into_connection_info() {
            Ok(info) => Ok(info.set_tcp_settings(tcp())),
            Err(_) => Err(wrong(FORM)),
        };
        let target = match kind {
            "" => Target::Single(info(format!("{base}://{main}{own_query}"))?),
            // The client parses these options itself.
            "unix" if !tls => Target::Single(info(format!("redis+unix://{rest}"))?),
            "cluster" => {
                let hosts = hosts.trim_end_matches('/').split(',');
                let node = |host: &str| info(format!("{base}://{login}{at}{host}{own_query}"));
                Target::Cluster(hosts.map(node).collect::<Result<_, _>>()?)
            }
            "sentinel" => {
                let (hosts, path) = hosts
                    .split_once('/')
                    .filter(|(_, path)| !path.is_empty())
                    .ok_or_else(|| {
                        wrong("name the master, as in redis+sentinel://host:26379/mymaster")
                    })?;
                let (name, db) = path.split_once('/').unwrap_or((path, "0"));
                let own = options.sentinel_login();
                let sentinel = |host: &str| {
                    let port = if host.contains(':') { "" } else { ":26379" };
                    info(format!("{base}://{own}{host}{port}"))
                };
                let sentinels = hosts.split(',').map(sentinel).collect::<Result<_, _>>()?;
                let login = info(format!("{base}://{login}{at}localhost/{db}{own_query}"))?;
                Target::Sentinel {
                    sentinels,
                    name: name.into(),
                    login: login.redis_settings().clone(),
                }
            }
            _ => return Err(wrong(FORMS)),
        };
        let shown = format!("{scheme}://{hosts}");
        Ok(Self {
            target,
            certificates,
            files,
            tls,
            shown,
        })
    }
}

/// The options after the `?`.
#[derive(Default)]
struct AddressOptions<'a> {
    protocol: Option<&'a str>,
    sentinel_username: Option<&'a str>,
    sentinel_password: Option<&'a str>,
    ca: Option<&'a str>,
    cert: Option<&'a str>,
    key: Option<&'a str>,
}

impl<'a> AddressOptions<'a> {
    fn read(query: &'a str, kind: &str, tls: bool) -> Result<Self, StoreError> {
        let mut options = Self::default();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let place = match (name, kind) {
                ("protocol", _) => &mut options.protocol,
                ("sentinel_username", "sentinel") => &mut options.sentinel_username,
                ("sentinel_password", "sentinel") => &mut options.sentinel_password,
                ("ca", _) if tls => &mut options.ca,
                ("cert", _) if tls => &mut options.cert,
                ("key", _) if tls => &mut options.key,
                // The client parses these options itself.
                ("user" | "pass" | "db", "unix") => continue,
                _ => {
                    let known = match kind {
                        "sentinel" => "protocol, sentinel_username and sentinel_password",
                        "unix" => "protocol, user, pass and db",
                        _ => "protocol",
                    };
                    let of_tls = if tls { "; ca, cert and key" } else { "" };
                    // The option's name may be the rest of a password.
                    return Err(wrong(format!(
                        "unknown option after the ?; this kind of address has: {known}{of_tls}. If the ? belongs to a password, write %3F"
                    )));
                }
            };
            let is_file = matches!(name, "ca" | "cert" | "key");
            if value.is_empty() || (!is_file && value.contains(['/', ':'])) {
                let what = format!("the option `{name}` is empty or contains / or :");
                return Err(wrong(format!(
                    "{what}; write these characters as %2F and %3A"
                )));
            }
            *place = Some(value);
        }
        if options.sentinel_username.is_some() && options.sentinel_password.is_none() {
            return Err(wrong("sentinel_username needs a sentinel_password"));
        }
        if options.cert.is_some() != options.key.is_some() {
            return Err(wrong(
                "a client certificate needs both cert=FILE and key=FILE",
            ));
        }
        Ok(options)
    }

    /// The login as it is written before a sentinel's host.
    fn sentinel_login(&self) -> String {
        let password = self
            .sentinel_password
            .map(|password| format!(":{password}@"));
        format!(
            "{}{}",
            self.sentinel_username.unwrap_or_default(),
            password.unwrap_or_default()
        )
    }

    fn files(&self) -> Result<[Option<PathBuf>; 3], StoreError> {
        let path = |text: Option<&str>| {
            text.map(|text| decoded(text).map(PathBuf::from))
                .transpose()
        };
        Ok([path(self.ca)?, path(self.cert)?, path(self.key)?])
    }
}

impl Files {
    fn certificates(&self) -> Result<Option<TlsCertificates>, StoreError> {
        let read = |at: usize| {
            let option = ["ca", "cert", "key"][at];
            let failed = |error| {
                wrong(format!(
                    "cannot read the file of the option `{option}`: {error}"
                ))
            };
            self.tls[at]
                .as_ref()
                .map(fs::read)
                .transpose()
                .map_err(failed)
        };
        let root_cert = read(0)?;
        let client_tls = match (read(1)?, read(2)?) {
            (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig {
                client_cert,
                client_key,
            }),
            _ => None,
        };
        let any = root_cert.is_some() || client_tls.is_some();
        Ok(any.then_some(TlsCertificates {
            client_tls,
            root_cert,
        }))
    }

    fn password(&self) -> io::Result<Option<String>> {
        let text = self.password.as_ref().map(fs::read_to_string).transpose()?;
        Ok(text.map(|text| text.trim_end_matches(['\r', '\n']).to_owned()))
    }

    /// A digest of their contents.
    fn digest(&self) -> String {
        let mut digest = sha1_smol::Sha1::new();
        for path in self.tls.iter().chain([&self.password]).flatten() {
            let contents = fs::read(path).unwrap_or_default();
            digest.update(&contents.len().to_le_bytes());
            digest.update(&contents);
        }
        digest.digest().to_string()
    }
}

/// Text in which `%2F` stands for `/`, and so on.
fn decoded(text: &str) -> Result<String, StoreError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = if byte == b'%' { after.get(..2) } else { None };
        let code =
            digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).map_err(|_| wrong("the name of a file is not UTF-8 text"))
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
