//! The baseline: a file for each object, as the gateway's folder store writes one that comes in one piece. A new file under its
//! last name, flushed, then the folder's flush; on a thread for blocking calls.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::Result;
use bytes::Bytes;
use tokio::task::spawn_blocking;
use uuid::Uuid;

/// Folders below it, as locators name them.
const FOLDERS: usize = 256;

pub struct Folder(PathBuf);

impl Folder {
    pub fn new(path: PathBuf) -> Result<Self> {
        for number in 0..FOLDERS {
            fs::create_dir_all(path.join(format!("{number:02x}")))?;
        }
        File::open(&path)?.sync_all()?;
        Ok(Self(path))
    }

    /// Returns how many bytes it wrote.
    pub async fn put(&self, bytes: Bytes) -> Result<u64> {
        let id = Uuid::now_v7().simple().to_string();
        let folder = self.0.join(&id[id.len() - 2..]);
        let written = spawn_blocking(move || {
            let mut file = File::create_new(folder.join(id))?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            File::open(folder)?.sync_all()?;
            Ok::<_, io::Error>(bytes.len() as u64)
        });
        Ok(written.await??)
    }

    /// Removes everything, and waits until the file system has: the next turn is not to pay for it.
    pub fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.0)?;
        Ok(File::open(self.0.parent().unwrap_or(&self.0))?.sync_all()?)
    }
}
