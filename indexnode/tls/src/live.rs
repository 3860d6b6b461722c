//! The newest state of files that may be replaced while the process runs.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use metrics::{counter, gauge};
use parking_lot::{Mutex, RwLock};
use tokio::time::sleep;

use crate::{
    credentials::{Files, days_left},
    settings::{Phase, TlsSettings},
};

/// How often the files are compared with what was read. They are small, and a change may be a link to another folder.
const CHECK: Duration = Duration::from_secs(2);

/// What was made of files, made again when one changes; clones share it.
pub struct Live<F: Files>(Arc<Shared<F>>);

/// The certificates for connections between Mantle's processes.
pub type Tls = Live<TlsSettings>;

struct Shared<F: Files> {
    files: F,
    made: RwLock<Arc<F::Made>>,
    /// How often the files were made; changes under the lock of `made`.
    generation: AtomicU64,
    contents: Mutex<Vec<Vec<u8>>>,
}

impl<F: Files> Clone for Live<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: Files> Live<F> {
    /// Reads the files.
    ///
    /// # Errors
    /// A file is missing, too open, or not what it should be; or they do not belong together.
    pub fn load(files: F) -> Result<Self> {
        let contents = contents(&files)?;
        let made = RwLock::new(Arc::new(files.make()?));
        Ok(Self(Arc::new(Shared { files, made, generation: AtomicU64::new(0), contents: Mutex::new(contents) })))
    }

    /// What was made of the files last.
    pub fn current(&self) -> Arc<F::Made> {
        self.0.made.read().clone()
    }

    /// Changes with [`Self::current`].
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    pub(crate) fn generation_and_current(&self) -> (u64, Arc<F::Made>) {
        let made = self.0.made.read();
        (self.generation(), made.clone())
    }

    pub(crate) fn files(&self) -> &F {
        &self.0.files
    }

    /// Reads the files again if one has changed. What was there before stays if they are not good.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn reload(&self) -> Result<bool> {
        let new = contents(&self.0.files)?;
        if *self.0.contents.lock() == new {
            return Ok(false);
        }
        let made = self.0.files.make()?;
        let mut current = self.0.made.write();
        *current = Arc::new(made);
        self.0.generation.fetch_add(1, Ordering::Release);
        drop(current);
        *self.0.contents.lock() = new;
        Ok(true)
    }

    /// Reloads the files when they change, and keeps the metrics. Never returns.
    pub async fn watch(self) {
        let paths = self.0.files.paths();
        let of_files = paths.first().map_or("", |(name, _)| name);
        counter!("mantle_tls_reloads_total", "file" => of_files).increment(0);
        let mut failure = String::new();
        loop {
            gauge!("mantle_tls_files_refused", "file" => of_files).set(if failure.is_empty() { 0.0 } else { 1.0 });
            for (name, path) in self.0.files.paths() {
                if let Some(days) = days_left(path) {
                    gauge!("mantle_tls_certificate_days", "file" => name).set(days);
                }
            }
            sleep(CHECK).await;
            match self.reload() {
                Ok(false) => failure.clear(),
                Ok(true) => {
                    failure.clear();
                    counter!("mantle_tls_reloads_total", "file" => of_files).increment(1);
                    tracing::info!("certificates were replaced");
                }
                Err(e) => {
                    let now = format!("{e:#}");
                    if now != failure {
                        tracing::error!(error = now, "new certificates are not used, the old ones stay");
                        failure = now;
                    }
                }
            }
        }
    }
}

impl Tls {
    /// How far the change to TLS has come.
    pub fn phase(&self) -> Phase {
        self.files().phase
    }
}

fn contents<F: Files>(files: &F) -> Result<Vec<Vec<u8>>> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    files.paths().into_iter().map(|(_, path)| read(path)).collect()
}
