//! Who may do what: rights by token or by the name in a client's certificate.
//!
//! ```text
//! the access file ─ parse ─► Known ─┐
//! what a listener allows strangers ─┴─► Door ─ token or certificate ─► Rights
//! ```
//!
//! The file holds digests of tokens alone. It is loaded again when it changes. A token that has left it is refused from then on:
//! over HTTP and gRPC with the next request, over RESP with the next command.

mod parse;

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use ring::digest;
use subtle::ConstantTimeEq as _;

pub use self::parse::parse;
use crate::rules::{RulesError, read_text};

/// A token's digest: SHA-256.
pub(crate) type Digest = [u8; 32];

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Ask limits: take, look, and give back permits.
    Decide,
    /// See metrics and rules.
    Observe,
    /// Block, refund, reset, reload; and see what `Observe` sees.
    Operate,
}

impl Role {
    const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// As the access file calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::Observe => "observe",
            Self::Operate => "operate",
        }
    }
}

/// What one client may do, and with which limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    /// For messages.
    pub name: Box<str>,
    roles: u8,
    /// What the names of limits must begin with; empty for all limits.
    prefixes: Box<[Box<str>]>,
}

impl Rights {
    pub fn new(name: &str, roles: &[Role], prefixes: Box<[Box<str>]>) -> Self {
        let roles = roles.iter().fold(0, |all, role| all | role.bit());
        // Whoever changes something must see it.
        let sees = if roles & Role::Operate.bit() == 0 { 0 } else { Role::Observe.bit() };
        Self { name: name.into(), roles: roles | sees, prefixes }
    }

    /// Everything.
    pub fn all(name: &str) -> Self {
        Self::new(name, &[Role::Decide, Role::Observe, Role::Operate], Box::default())
    }

    #[inline]
    pub fn may(&self, role: Role) -> bool {
        self.roles & role.bit() != 0
    }

    /// Whether the limit of this name is one that they concern.
    #[inline]
    pub fn concern(&self, limit: &[u8]) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| limit.starts_with(prefix.as_bytes()))
    }

    /// Whether they concern every limit.
    pub fn concern_all(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// Whether the limits of this domain of Envoy's, whose names begin with `domain.`, are such.
    pub fn concern_domain(&self, domain: &str) -> bool {
        self.concern(format!("{domain}.").as_bytes())
    }
}

/// One client of the access file.
#[derive(Clone, Debug)]
struct Entry {
    rights: Arc<Rights>,
    tokens: Vec<Digest>,
    /// DNS names or URIs in a client's certificate.
    certificates: Vec<Box<str>>,
}

/// What the access file says.
#[derive(Clone, Debug, Default)]
pub struct Known {
    entries: Vec<Entry>,
}

impl Known {
    /// How many clients there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nobody may do anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Compares with every digest, always with all of their bytes: the time taken does not tell how much of one agrees.
    fn of_digest(&self, user: Option<&[u8]>, token: &Digest) -> Option<Arc<Rights>> {
        let mut found = None;
        for entry in &self.entries {
            let is_theirs =
                entry.tokens.iter().fold(subtle::Choice::from(0), |found, known| found | known.ct_eq(token));
            let is_named = user.is_none_or(|user| entry.rights.name.as_bytes() == user);
            if bool::from(is_theirs) && is_named {
                found = Some(&entry.rights);
            }
        }
        found.cloned()
    }

    fn of_certificate(&self, names: &[String]) -> Option<Arc<Rights>> {
        let has = |entry: &&Entry| {
            entry.certificates.iter().any(|known| names.iter().any(|name| **name == **known))
        };
        self.entries.iter().find(has).map(|entry| Arc::clone(&entry.rights))
    }
}

/// The digest of a token, as it is stored.
pub(crate) fn digest_of(token: &[u8]) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest::digest(&digest::SHA256, token).as_ref());
    bytes
}

/// A new token of 256 random bits, and the line for the access file.
///
/// # Errors
/// When the system has no random bytes.
pub fn new_token() -> Result<(String, String), std::io::Error> {
    let mut bytes = [0; 32];
    let random = ring::rand::SystemRandom::new();
    ring::rand::SecureRandom::fill(&random, &mut bytes)
        .map_err(|_| std::io::Error::other("the system gives no random bytes"))?;
    let token = format!("tg_{}", hex(&bytes));
    let stored = format!("sha256:{}", hex(&digest_of(token.as_bytes())));
    Ok((token, stored))
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a `String` does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What clients may do, as the access file says it now.
#[derive(Debug)]
pub(crate) struct Access {
    path: Option<PathBuf>,
    known: ArcSwap<Known>,
    /// Counts the loads of the file.
    generation: AtomicU64,
    /// Whether clients may show certificates.
    has_certificates: bool,
}

/// What a client has shown of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shown<'a> {
    Nothing,
    /// Perhaps with a user's name.
    Token(Option<&'a [u8]>, &'a Digest),
    /// The names in a certificate that was verified.
    Certificate(&'a [String]),
}

/// Why somebody has no rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// Nothing was shown.
    Unknown,
    /// What was shown is not in the access file.
    Wrong,
}

impl Access {
    /// Reads the access file, if there is one.
    ///
    /// # Errors
    /// When it cannot be read, or has problems.
    pub fn open(path: Option<PathBuf>, has_certificates: bool) -> Result<Self, RulesError> {
        let known = path.as_deref().map(load).transpose()?.unwrap_or_default();
        Ok(Self {
            path,
            known: ArcSwap::from_pointee(known),
            generation: AtomicU64::new(0),
            has_certificates,
        })
    }

    /// Reads the file again. The one in force stays where that fails.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn reload(&self) -> Result<usize, RulesError> {
        let Some(path) = &self.path else { return Ok(0) };
        let known = load(path)?;
        let clients = known.len();
        self.known.store(Arc::new(known));
        // Release: whoever sees the number finds the new file.
        self.generation.fetch_add(1, Ordering::Release);
        Ok(clients)
    }

    /// Changes with each load of the file.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// Whether clients can show anything that gives them rights.
    pub fn asks_for_something(&self) -> bool {
        self.path.is_some() || self.has_certificates
    }
}

fn load(path: &std::path::Path) -> Result<Known, RulesError> {
    parse(&read_text(path)?).map_err(|problems| RulesError::Invalid { path: Some(path.to_owned()), problems })
}

/// How a listener looks at its clients.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    access: Arc<Access>,
    /// The rights of those who show nothing, where nothing is asked for.
    open: Arc<Rights>,
}

impl Door {
    /// `is_local`: only programs of this machine come here, so they may do everything. Others may ask and see, and change nothing.
    pub fn new(access: Arc<Access>, is_local: bool) -> Self {
        let open = if is_local {
            Rights::all("anybody on this machine")
        } else {
            Rights::new("anybody", &[Role::Decide, Role::Observe], Box::default())
        };
        Self { access, open: Arc::new(open) }
    }

    /// What a client may do.
    ///
    /// # Errors
    /// When it may do nothing.
    pub fn rights(&self, shown: Shown<'_>) -> Result<Arc<Rights>, Stranger> {
        let has_file = self.access.path.is_some();
        match shown {
            Shown::Token(user, token) if has_file => {
                self.access.known.load().of_digest(user, token).ok_or(Stranger::Wrong)
            }
            Shown::Certificate(names) if has_file => {
                self.access.known.load().of_certificate(names).ok_or(Stranger::Wrong)
            }
            Shown::Nothing | Shown::Token(..) if self.access.asks_for_something() => Err(Stranger::Unknown),
            // Without a file every certificate of the authority is as good as another.
            Shown::Nothing | Shown::Token(..) | Shown::Certificate(_) => Ok(Arc::clone(&self.open)),
        }
    }

    pub fn access(&self) -> &Access {
        &self.access
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(text: &str) -> Known {
        parse(text).unwrap()
    }

    fn stored(token: &str) -> String {
        format!("sha256:{}", hex(&digest_of(token.as_bytes())))
    }

    #[test]
    fn a_digest_is_the_one_that_sha256sum_prints() {
        // printf %s tidegate | sha256sum
        assert_eq!(
            stored("tidegate"),
            "sha256:a99cd8901f3c80fd90b9c755f73d32bf3b14f3dbd572c605f72aa8fd32af42d8"
        );
    }

    #[test]
    fn any_of_several_tokens_opens_and_a_name_must_be_the_tokens_own() {
        let (old, new) = (stored("old"), stored("new"));
        let known = known(&format!(
            "access:\n  - {{name: shop, roles: [decide], tokens: ['{old}', '{new}'], limits: [shop.]}}\n  - {{name: ops, roles: [operate], tokens: ['{}']}}\n",
            stored("ops")
        ));
        let of = |user: Option<&str>, token: &str| {
            let rights = known.of_digest(user.map(str::as_bytes), &digest_of(token.as_bytes()));
            rights.map(|rights| rights.name.to_string())
        };
        assert_eq!(of(None, "old").as_deref(), Some("shop"));
        assert_eq!(of(Some("shop"), "new").as_deref(), Some("shop"));
        assert_eq!(of(Some("ops"), "new"), None);
        assert_eq!(of(None, "newer"), None);
        assert_eq!(of(None, &new), None, "what is in the file opens nothing");
        let shop = known.of_digest(None, &digest_of(b"old")).unwrap();
        assert!(shop.may(Role::Decide) && !shop.may(Role::Observe) && !shop.may(Role::Operate));
        assert!(shop.concern(b"shop.cart") && !shop.concern(b"shop"));
        assert!(shop.concern_domain("shop") && !shop.concern_domain("shopping"));
        let ops = known.of_digest(None, &digest_of(b"ops")).unwrap();
        assert!(ops.may(Role::Operate) && ops.may(Role::Observe) && !ops.may(Role::Decide));
    }

    #[test]
    fn a_certificate_has_the_rights_of_the_first_entry_with_one_of_its_names() {
        let known = known(
            "access:\n  - {name: a, roles: [decide], certificates: [a.example]}\n  - {name: b, roles: [observe], certificates: ['spiffe://example/b', b.example]}\n",
        );
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            known.of_certificate(&names).map(|rights| rights.name.to_string())
        };
        assert_eq!(of(&["spiffe://example/b"]).as_deref(), Some("b"));
        assert_eq!(of(&["b.example", "a.example"]).as_deref(), Some("a"));
        assert_eq!(of(&["c.example"]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn strangers_may_do_everything_on_the_machine_and_change_nothing_from_elsewhere() {
        let access = Arc::new(Access::open(None, false).unwrap());
        let local = Door::new(Arc::clone(&access), true).rights(Shown::Nothing).unwrap();
        assert!(local.may(Role::Operate));
        let remote = Door::new(access, false).rights(Shown::Nothing).unwrap();
        assert!(remote.may(Role::Decide) && remote.may(Role::Observe) && !remote.may(Role::Operate));
        let certified = Door::new(Arc::new(Access::open(None, true).unwrap()), true);
        assert_eq!(certified.rights(Shown::Nothing), Err(Stranger::Unknown));
        assert!(certified.rights(Shown::Certificate(&[])).is_ok());
    }
}
