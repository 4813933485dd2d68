//! Access control: rights by token, by the names in a client certificate, or, if the protocol has
//! neither, by address.
//!
//! ```text
//! the access file ─ parse ─► Known ─┐
//! the listener's default rights ─┴─► Door ─ token, certificate, address ─► Rights
//! ```
//!
//! The file contains only digests of tokens. It is loaded again when it changes. A removed token is
//! refused from then on: over HTTP and gRPC with the next request, over RESP with the next command.

mod parse;

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use subtle::ConstantTimeEq as _;
use tidegate_service::{
    decide::service::Sees,
    digest::{Digest, digest_of, hex},
    rules::{RulesError, read_text},
};

pub use self::parse::parse;

/// A digest in the access file. To compare it takes the same time wherever it differs.
#[derive(Clone, Debug, Eq)]
struct Stored(Digest);

impl Hash for Stored {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for Stored {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(test)]
        tests::COMPARED.set(tests::COMPARED.get() + 1);
        self.0.ct_eq(&other.0).into()
    }
}

/// The right to a kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Ask limits: take, peek, and give back permits.
    Decide,
    /// Read metrics and rules.
    Observe,
    /// Block, refund, reset and reload. Includes `Observe`.
    Operate,
    /// Report what resources do, and get rules for them: programs that link `tidegate::flow`.
    Report,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Decide, Self::Observe, Self::Operate, Self::Report];

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The name in the access file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::Observe => "observe",
            Self::Operate => "operate",
            Self::Report => "report",
        }
    }
}

/// The roles of one client, and the limits that they concern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The client's name, for messages.
    pub name: Box<str>,
    roles: u8,
    /// The prefixes of the names of its limits; empty for all limits.
    prefixes: Box<[Box<str>]>,
}

impl Rights {
    pub fn new(name: &str, roles: &[Role], prefixes: Box<[Box<str>]>) -> Self {
        let roles = roles.iter().fold(0, |all, role| all | role.bit());
        // A client that may change something may also see it.
        let sees = if roles & Role::Operate.bit() == 0 {
            0
        } else {
            Role::Observe.bit()
        };
        Self {
            name: name.into(),
            roles: roles | sees,
            prefixes,
        }
    }

    /// All roles on all limits.
    pub fn all(name: &str) -> Self {
        Self::new(name, &Role::ALL, Box::default())
    }

    #[inline]
    pub fn may(&self, role: Role) -> bool {
        self.roles & role.bit() != 0
    }

    /// Whether the rights cover the limit with this name.
    #[inline]
    pub fn concern(&self, limit: &[u8]) -> bool {
        self.prefixes.is_empty()
            || self
                .prefixes
                .iter()
                .any(|prefix| limit.starts_with(prefix.as_bytes()))
    }

    /// Whether the rights cover every limit.
    pub fn concern_all(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// Whether the rights cover the limits of this Envoy domain, whose names begin with `domain.`.
    pub fn concern_domain(&self, domain: &str) -> bool {
        self.concern(format!("{domain}.").as_bytes())
    }
}

impl Sees for Rights {
    fn sees_all(&self) -> bool {
        self.concern_all()
    }

    fn sees(&self, limit: &[u8]) -> bool {
        self.concern(limit)
    }
}

/// One client of the access file.
#[derive(Clone, Debug)]
struct AccessEntry {
    rights: Arc<Rights>,
    tokens: Vec<Digest>,
    /// DNS names or URIs in a client certificate.
    certificates: Vec<Box<str>>,
    /// For clients of protocols without credentials.
    addresses: Vec<IpNet>,
}

/// The contents of the access file.
#[derive(Clone, Debug, Default)]
pub struct Known {
    entries: Vec<AccessEntry>,
    /// The entry of each token and of each name in certificates. No two entries share one.
    by_token: HashMap<Stored, usize>,
    by_certificate: HashMap<Box<str>, usize>,
}

impl Known {
    fn new(entries: Vec<AccessEntry>) -> Self {
        let (mut by_token, mut by_certificate) = (HashMap::new(), HashMap::new());
        for (at, entry) in entries.iter().enumerate() {
            by_token.extend(entry.tokens.iter().map(|token| (Stored(*token), at)));
            by_certificate.extend(entry.certificates.iter().map(|name| (name.clone(), at)));
        }
        Self {
            entries,
            by_token,
            by_certificate,
        }
    }

    /// Looks the digest up. The time may reveal something about the digest of the client's own
    /// token, which it knows; it cannot choose a token by its digest.
    fn of_digest(&self, user: Option<&[u8]>, token: &Digest) -> Option<Arc<Rights>> {
        let rights = &self.entries[*self.by_token.get(&Stored(*token))?].rights;
        user.is_none_or(|user| rights.name.as_bytes() == user)
            .then(|| Arc::clone(rights))
    }

    fn of_certificate(&self, names: &[String]) -> Option<Arc<Rights>> {
        let first = names
            .iter()
            .filter_map(|name| self.by_certificate.get(&**name))
            .min()?;
        Some(Arc::clone(&self.entries[*first].rights))
    }

    fn of_address(&self, address: IpAddr) -> Option<Arc<Rights>> {
        let address = address.to_canonical();
        let has =
            |entry: &&AccessEntry| entry.addresses.iter().any(|known| known.contains(&address));
        self.entries
            .iter()
            .find(has)
            .map(|entry| Arc::clone(&entry.rights))
    }
}

/// Generates a token of 256 random bits, and the line for the access file.
///
/// # Errors
/// When the system provides no random bytes.
pub fn new_token() -> Result<(String, String), std::io::Error> {
    let mut bytes = [0; 32];
    let random = ring::rand::SystemRandom::new();
    ring::rand::SecureRandom::fill(&random, &mut bytes)
        .map_err(|_| std::io::Error::other("the system provides no random bytes"))?;
    let token = format!("tg_{}", hex(&bytes));
    let stored = format!("sha256:{}", hex(&digest_of(token.as_bytes())));
    Ok((token, stored))
}

/// A client of an access file, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Client {
    /// Its name.
    pub name: String,
    /// The names of its roles.
    pub roles: Vec<&'static str>,
    /// The prefixes of its limits' names; empty for all limits.
    pub limits: Vec<String>,
    /// How many tokens it has.
    pub tokens: usize,
    /// How many names of certificates it has.
    pub certificates: usize,
    /// How many addresses and networks it has.
    pub addresses: usize,
}

impl AccessEntry {
    /// A client with a certificate of this name, which may do what every certificate allows without
    /// a file.
    fn with_certificate(name: &str) -> Self {
        let rights = Rights::new(name, &[Role::Decide], Box::default());
        Self {
            rights: Arc::new(rights),
            tokens: Vec::new(),
            certificates: vec![name.into()],
            addresses: Vec::new(),
        }
    }

    fn shown(&self) -> Client {
        let Rights { name, prefixes, .. } = &*self.rights;
        Client {
            name: name.to_string(),
            roles: Role::ALL
                .into_iter()
                .filter(|role| self.rights.may(*role))
                .map(Role::name)
                .collect(),
            limits: prefixes.iter().map(ToString::to_string).collect(),
            tokens: self.tokens.len(),
            certificates: self.certificates.len(),
            addresses: self.addresses.len(),
        }
    }
}

/// Checks an access file: its clients, or all that is wrong with it. `None` for a file that has no
/// `access:` at its top, and for one that cannot be read at all.
pub fn check(path: &std::path::Path) -> Option<Result<Vec<Client>, RulesError>> {
    let text = read_text(path).ok()?;
    if !parse::is_access(&text) {
        return None;
    }
    Some(load(path).map(|known| known.entries.iter().map(AccessEntry::shown).collect()))
}

/// The access file in force.
#[derive(Debug)]
pub struct Access {
    pub path: Option<PathBuf>,
    known: ArcSwap<Known>,
    /// Counts the loads of the file.
    generation: AtomicU64,
    /// Whether the server accepts client certificates.
    has_certificates: bool,
    /// Whether the known clients are listed: in a file, or by the one name that certificates must
    /// have.
    is_listing: bool,
}

/// The credentials of a client.
#[derive(Clone, Copy, Debug)]
pub enum Shown<'a> {
    Nothing,
    /// With the user name, if one was given.
    Token(Option<&'a [u8]>, &'a Digest),
    /// The names in a verified certificate.
    Certificate(&'a [String]),
    /// Its address, over a protocol that has no credentials.
    Address(IpAddr),
}

/// Why a client has no rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// It gave no credentials.
    Unknown,
    /// Its credentials are not in the access file.
    Wrong,
}

impl Access {
    /// Reads the access file, if one is configured. Without a file, `name` is the name that a
    /// certificate must have.
    ///
    /// # Errors
    /// When the file cannot be read or has problems.
    pub fn open(
        path: Option<PathBuf>,
        has_certificates: bool,
        name: Option<&str>,
    ) -> Result<Self, RulesError> {
        let known = match (&path, name) {
            (Some(path), _) => load(path)?,
            (None, name) => Known::new(
                name.map(AccessEntry::with_certificate)
                    .into_iter()
                    .collect(),
            ),
        };
        let is_listing = path.is_some() || name.is_some();
        let (known, generation) = (ArcSwap::from_pointee(known), AtomicU64::new(0));
        Ok(Self {
            path,
            known,
            generation,
            has_certificates,
            is_listing,
        })
    }

    /// Reads the file again. If that fails, the previous one stays in force.
    ///
    /// # Errors
    /// The same as [`open`](Self::open).
    pub fn reload(&self) -> Result<usize, RulesError> {
        let Some(path) = &self.path else { return Ok(0) };
        let known = load(path)?;
        let clients = known.entries.len();
        self.known.store(Arc::new(known));
        // Release: a reader that sees the new number finds the new file.
        self.generation.fetch_add(1, Ordering::Release);
        Ok(clients)
    }

    /// Changes with each load of the file.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether any credentials can give a client rights.
    pub fn asks_for_something(&self) -> bool {
        self.is_listing || self.has_certificates
    }
}

fn load(path: &std::path::Path) -> Result<Known, RulesError> {
    if others_may_write(path) {
        tracing::warn!(file = %path.display(), "every user of this machine may change the access file: chmod o-w");
    }
    parse(&read_text(path)?).map_err(|problems| RulesError::Invalid {
        path: Some(path.to_owned()),
        problems,
    })
}

/// Whether every user of the machine may change the file, and with it the rights of all clients.
pub fn others_may_write(path: &std::path::Path) -> bool {
    const OTHERS_WRITE: u32 = 0o002;
    std::fs::metadata(path).is_ok_and(|there| there.permissions().mode() & OTHERS_WRITE != 0)
}

/// How a listener determines its clients' rights.
#[derive(Clone, Debug)]
pub struct Door {
    pub access: Arc<Access>,
    /// The rights of clients without credentials, if none are required.
    open: Arc<Rights>,
}

impl Door {
    /// `is_local`: only programs on this machine can connect, so they may do everything. Other
    /// clients may ask for decisions and nothing else: metrics and rules name the users.
    pub fn new(access: Arc<Access>, is_local: bool) -> Self {
        let open = if is_local {
            Rights::all("local client")
        } else {
            Rights::new(
                "client without credentials",
                &[Role::Decide],
                Box::default(),
            )
        };
        Self {
            access,
            open: Arc::new(open),
        }
    }

    /// The rights of a client.
    ///
    /// # Errors
    /// When the client may do nothing.
    pub fn rights(&self, shown: Shown<'_>) -> Result<Arc<Rights>, Stranger> {
        let has_file = self.access.is_listing;
        match shown {
            Shown::Token(user, token) if has_file => self
                .access
                .known
                .load()
                .of_digest(user, token)
                .ok_or(Stranger::Wrong),
            Shown::Certificate(names) if has_file => self
                .access
                .known
                .load()
                .of_certificate(names)
                .ok_or(Stranger::Wrong),
            Shown::Address(address) if has_file => self
                .access
                .known
                .load()
                .of_address(address)
                .ok_or(Stranger::Unknown),
            Shown::Nothing | Shown::Token(..) | Shown::Address(_)
                if self.access.asks_for_something() =>
            {
                Err(Stranger::Unknown)
            }
            // Without a file, every certificate from the authority gives the same rights.
            Shown::Nothing | Shown::Token(..) | Shown::Certificate(_) | Shown::Address(_) => {
                Ok(Arc::clone(&self.open))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How many digests this thread has compared.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn a_token_is_compared_with_hardly_any_other_however_many_there_are() {
        const CLIENTS: usize = 5_000;
        let entry = |at: usize| {
            let digest = hex(&digest_of(at.to_string().as_bytes()));
            format!("  - {{name: client-{at}, roles: [decide], tokens: ['sha256:{digest}']}}\n")
        };
        let known = parse(&format!(
            "access:\n{}",
            (0..CLIENTS).map(entry).collect::<String>()
        ))
        .unwrap();
        COMPARED.set(0);
        for at in 0..CLIENTS {
            let rights = known
                .of_digest(None, &digest_of(at.to_string().as_bytes()))
                .unwrap();
            assert_eq!(*rights.name, *format!("client-{at}"));
            assert_eq!(
                known.of_digest(None, &digest_of(format!("no-{at}").as_bytes())),
                None
            );
        }
        // One for each that is found, and one for each pair whose hashes begin alike.
        assert!(
            (CLIENTS..2 * CLIENTS).contains(&COMPARED.get()),
            "{} comparisons",
            COMPARED.get()
        );
    }

    #[test]
    fn the_first_entry_with_a_name_of_the_certificate_or_a_network_of_the_address_counts() {
        let known = parse(
            "access:
  - {name: a, roles: [decide], certificates: [a.example], addresses: [10.1.0.0/16, 192.0.2.7]}
  - {name: b, roles: [observe], certificates: ['spiffe://example/b', b.example], addresses: ['10.0.0.0/8', '2001:db8::/32']}
",
        )
        .unwrap();
        let name = |rights: Option<Arc<Rights>>| {
            rights.map_or("-".to_owned(), |rights| rights.name.to_string())
        };
        let with = |names: &[&str]| {
            name(
                known.of_certificate(&names.iter().copied().map(str::to_owned).collect::<Vec<_>>()),
            )
        };
        let names = [
            &["spiffe://example/b"][..],
            &["b.example", "a.example"],
            &["c.example"],
            &[],
        ]
        .map(with);
        assert_eq!(names, ["b", "a", "-", "-"]);
        let at = [
            "10.1.2.3",
            "192.0.2.7",
            "::ffff:10.1.2.3",
            "10.2.0.1",
            "2001:db8::1",
            "192.0.2.8",
        ];
        let at = at.map(|address| name(known.of_address(address.parse().unwrap())));
        assert_eq!(at, ["a", "a", "a", "b", "b", "-"]);
    }
}
