//! When the certificates of this server expire. No client connects from then on, and SQL cannot read the files.

use std::{
    ffi::CStr,
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use pgrx::{datum::TimestampWithTimeZone, prelude::*};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use x509_cert::{Certificate, der::Decode};

use crate::postgres::clock::POSTGRES_EPOCH_US;

/// The settings that name files with certificates.
const SETTINGS: [&CStr; 2] = [c"ssl_cert_file", c"ssl_ca_file"];
const SECOND_US: i64 = 1_000_000;

/// The files with certificates that the server's settings name: when the first certificate of each expires (NULL: there is
/// none that can be read), and when the file was changed last.
#[pg_extern(volatile)]
fn server_certificates() -> TableIterator<
    'static,
    (
        name!(setting, String),
        name!(expires, Option<TimestampWithTimeZone>),
        name!(changed, Option<TimestampWithTimeZone>),
    ),
> {
    let rows = SETTINGS.into_iter().filter_map(|setting| {
        let file = file_of(setting)?;
        let path = Path::new(&file);
        let changed = fs::metadata(path).and_then(|metadata| metadata.modified()).ok().and_then(since_epoch_us);
        Some((setting.to_string_lossy().into_owned(), expiry_us(path).and_then(time), changed.and_then(time)))
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

/// What a setting of the server says; `None` if nothing. Relative paths begin at the data folder, where each backend runs.
fn file_of(setting: &CStr) -> Option<String> {
    // SAFETY: the answer is copied before anything can change it.
    let file = unsafe {
        let value = pg_sys::GetConfigOption(setting.as_ptr(), true, false);
        (!value.is_null()).then(|| CStr::from_ptr(value).to_str().ok().map(str::to_owned))
    };
    file.flatten().filter(|file| !file.is_empty())
}

/// When the first certificate of a file expires, in microseconds since 1970.
fn expiry_us(path: &Path) -> Option<i64> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path).ok()?.collect::<Result<_, _>>().ok()?;
    let expiry = |certificate: &CertificateDer<'_>| {
        let validity = Certificate::from_der(certificate).ok()?.tbs_certificate.validity;
        i64::try_from(validity.not_after.to_unix_duration().as_secs()).ok()?.checked_mul(SECOND_US)
    };
    certificates.iter().map(expiry).collect::<Option<Vec<_>>>()?.into_iter().min()
}

fn since_epoch_us(time: SystemTime) -> Option<i64> {
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_micros()).ok()
}

/// A time as SQL has it, of microseconds since 1970.
fn time(at: i64) -> Option<TimestampWithTimeZone> {
    TimestampWithTimeZone::try_from(at - POSTGRES_EPOCH_US).ok()
}
