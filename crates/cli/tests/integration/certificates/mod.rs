//! Certificates that tests issue.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tidegate_core::{Clock, clock::SystemClock};

/// A certificate authority with its files.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: PathBuf,
    pub name: &'static str,
}

impl Authority {
    pub fn new(directory: &Path, name: &'static str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL treats a certificate as self-signed if its authority has the same name.
        params
            .distinguished_name
            .push(DnType::CommonName, format!("the authority {name}"));
        let certificate = params.self_signed(&key).unwrap();
        fs::write(directory.join(format!("{name}.pem")), certificate.pem()).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            directory: directory.to_owned(),
            name,
        }
    }

    pub fn file(&self) -> String {
        self.path(&format!("{}.pem", self.name))
    }

    pub fn path(&self, file: &str) -> String {
        self.directory.join(file).to_str().unwrap().to_owned()
    }

    /// Issues a certificate for these names, with its key, in files of this name. They appear by
    /// renaming, as with tools that renew certificates.
    pub fn issue(&self, file: &str, names: &[&str]) -> [String; 2] {
        self.issue_for(file, names, Duration::from_hours(365 * 24))
    }

    /// The same for a certificate that expires after this time.
    pub fn issue_for(&self, file: &str, names: &[&str], span: Duration) -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        let now = UNIX_EPOCH + Duration::from(SystemClock::new().now());
        params.not_after = (now + span).into();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        [("pem", certificate.pem()), ("key", key.serialize_pem())].map(|(kind, text)| {
            let path = self.path(&format!("{file}.{kind}"));
            fs::write(format!("{path}.new"), text).unwrap();
            fs::rename(format!("{path}.new"), &path).unwrap();
            path
        })
    }
}
