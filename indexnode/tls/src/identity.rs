//! Who a certificate is for: the role in its subject, and the hosts in its alternative names.

use anyhow::{Context, Result, ensure};
use rustls::{
    pki_types::{CertificateDer, ServerName},
    server::ParsedCertificate,
};
use x509_cert::{
    Certificate,
    attr::AttributeTypeAndValue,
    der::{Decode, asn1::Ia5StringRef, asn1::PrintableStringRef, asn1::Utf8StringRef},
};

/// OIDs of the subject's attributes (RFC 4519).
const ORGANIZATIONAL_UNIT: &str = "2.5.4.11";
const COMMON_NAME: &str = "2.5.4.3";

/// What the holder of a certificate may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// An IndexNode: the calls between replicas.
    Peer,
    /// A gateway: lookups, renames, waits.
    Gateway,
    /// An administrator's tool: status, members, directories.
    Administrator,
}

impl Role {
    const ALL: [Self; 3] = [Self::Peer, Self::Gateway, Self::Administrator];

    /// The organizational unit (OU) that stands for it in a certificate's subject.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Peer => "mantle-peer",
            Self::Gateway => "mantle-gateway",
            Self::Administrator => "mantle-administrator",
        }
    }
}

/// The holder of a certificate that has been verified.
#[derive(Debug)]
pub struct Identity {
    role: Option<Role>,
    name: String,
    certificate: CertificateDer<'static>,
}

impl Identity {
    /// Reads a certificate. One without a role is somebody who may do nothing.
    ///
    /// # Errors
    /// It cannot be read, or names several roles.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self> {
        let parsed = Certificate::from_der(certificate).context("the certificate cannot be read")?;
        let subject = parsed.tbs_certificate.subject;
        let attributes = || subject.0.iter().flat_map(|relative| relative.0.iter());
        let values = |oid: &'static str| attributes().filter(move |a| a.oid.to_string() == oid).filter_map(text);
        let units: Vec<String> = values(ORGANIZATIONAL_UNIT).collect();
        let mut roles = Role::ALL.into_iter().filter(|role| units.iter().any(|unit| unit == role.unit()));
        let name = values(COMMON_NAME).next().unwrap_or_default();
        let role = roles.next();
        ensure!(roles.next().is_none(), "the certificate of `{name}` names several roles: each needs one of its own");
        Ok(Self { role, name, certificate: certificate.clone().into_owned() })
    }

    /// Tells whether the certificate names this role.
    pub fn has(&self, role: Role) -> bool {
        self.role == Some(role)
    }

    /// Tells whether the certificate names a role.
    pub(crate) fn has_role(&self) -> bool {
        self.role.is_some()
    }

    /// Tells whether the certificate is for this host, a name or an address.
    pub fn covers(&self, host: &str) -> bool {
        let Ok(name) = ServerName::try_from(host) else { return false };
        let parsed = ParsedCertificate::try_from(&self.certificate);
        parsed.is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, &name).is_ok())
    }

    /// The common name, for logs.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn text(attribute: &AttributeTypeAndValue) -> Option<String> {
    let value = &attribute.value;
    if let Ok(text) = value.decode_as::<Utf8StringRef<'_>>() {
        return Some(text.as_str().to_owned());
    }
    if let Ok(text) = value.decode_as::<PrintableStringRef<'_>>() {
        return Some(text.as_str().to_owned());
    }
    value.decode_as::<Ia5StringRef<'_>>().ok().map(|text| text.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Authority;

    #[test]
    fn a_certificate_names_its_role_and_hosts() {
        let (certificate, _) = Authority::default().issue("mantle-gateway", &["gateway.example", "10.0.0.7"], |_| ());
        let identity = Identity::of(certificate.der()).unwrap();
        assert!(identity.has(Role::Gateway) && !identity.has(Role::Peer) && !identity.has(Role::Administrator));
        assert!(identity.covers("gateway.example") && identity.covers("10.0.0.7"));
        assert!(!identity.covers("10.0.0.8") && !identity.covers("example") && !identity.covers("not a name"));
        assert_eq!(identity.name(), "someone");
    }

    #[test]
    fn a_unit_that_is_no_role_gives_none() {
        for unit in ["", "Mantle-Peer", "mantle-peer ", "mantle-peers", "ops"] {
            let (certificate, _) = Authority::default().issue(unit, &["a"], |_| ());
            let identity = Identity::of(certificate.der()).unwrap();
            assert!(Role::ALL.iter().all(|role| !identity.has(*role)), "{unit:?}");
        }
        assert!(Identity::of(&CertificateDer::from(vec![48, 3, 1, 2])).is_err());
    }

    #[test]
    fn a_certificate_has_one_role() {
        let another = |params: &mut crate::testing::CertificateParams| {
            let mut subject = rcgen::DistinguishedName::new();
            let unit = || rcgen::DnType::OrganizationalUnitName;
            subject.push(unit(), "mantle-gateway");
            subject.push(rcgen::DnType::CustomDnType(vec![2, 5, 4, 11]), "mantle-administrator");
            params.distinguished_name = subject;
        };
        let (certificate, _) = Authority::default().issue("mantle-gateway", &["a"], another);
        assert!(Identity::of(certificate.der()).unwrap_err().to_string().contains("several roles"));
    }
}
