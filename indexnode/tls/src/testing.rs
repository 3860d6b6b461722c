//! Certificates for tests.
// In a test a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

/// A server that a client of PostgreSQL may refuse.
pub mod postgres;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

pub use rcgen::CertificateParams;
use rcgen::{
    BasicConstraints, Certificate, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};

use crate::settings::{Phase, TlsSettings};

/// An authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Default for Authority {
    fn default() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }
}

impl Authority {
    /// A certificate for a unit and hosts, and its key, after a change of the parameters.
    pub fn issue(
        &self,
        unit: &str,
        hosts: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> (Certificate, KeyPair) {
        let mut params = CertificateParams::new(hosts.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
        params.distinguished_name.push(DnType::CommonName, "someone");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }
}

/// The files of one process, in a folder.
pub struct Files(PathBuf);

impl Files {
    /// Writes the files: what the process trusts, and a certificate for a unit and a host.
    pub fn new(folder: &Path, trusted: &[&Authority], authority: &Authority, (unit, host): (&str, &str)) -> Self {
        fs::create_dir_all(folder).unwrap();
        let files = Self(folder.to_owned());
        files.trust(trusted);
        files.replace(authority, (unit, host), |_| ());
        files
    }

    /// The path of a file of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Replaces the trusted authorities.
    pub fn trust(&self, authorities: &[&Authority]) {
        let pem: String = authorities.iter().map(|authority| authority.0.as_ref().pem()).collect();
        fs::write(self.path("ca.crt"), pem).unwrap();
    }

    /// Replaces the certificate and its key.
    pub fn replace(
        &self,
        authority: &Authority,
        (unit, host): (&str, &str),
        change: impl FnOnce(&mut CertificateParams),
    ) {
        let (certificate, key) = authority.issue(unit, &[host], change);
        fs::write(self.path("own.key"), key.serialize_pem()).unwrap();
        fs::set_permissions(self.path("own.key"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(self.path("own.crt"), certificate.pem()).unwrap();
    }

    /// The settings that name the files.
    pub fn settings(&self, phase: Phase) -> TlsSettings {
        TlsSettings {
            ca_file: self.path("ca.crt"),
            certificate_file: self.path("own.crt"),
            key_file: self.path("own.key"),
            phase,
        }
    }
}
