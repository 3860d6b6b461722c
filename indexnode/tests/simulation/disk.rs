//! A disk that loses unflushed data when the power fails, and that can fail itself.
//!
//! Invariant: flushed data survives: the content of a file, the names in a directory. Unflushed data may survive wholly, partly
//! or not at all, as the seed decides. The files themselves are real, in memory.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::c_int,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rand::{Rng, rngs::StdRng};

/// A failure to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The next flush fails.
    Flush,
    /// The disk is full after this many more bytes.
    Full(usize),
}

/// What the disk still holds after a loss of power.
#[derive(Default)]
pub struct Disk {
    directory: PathBuf,
    /// By inode: the content at its last flush.
    contents: BTreeMap<u64, Vec<u8>>,
    /// By inode of the directory: the names at its last flush, with their inodes.
    names: BTreeMap<u64, BTreeMap<String, u64>>,
    failure: Option<Failure>,
    /// Number of flushes.
    pub flushes: u64,
}

thread_local! {
    /// The disk of the host that runs now.
    static CURRENT: RefCell<Option<Disk>> = const { RefCell::new(None) };
}

/// Makes this the disk of the code that runs now.
pub fn attach(disk: Disk) {
    CURRENT.with(|current| *current.borrow_mut() = Some(disk));
}

/// Takes the disk back.
pub fn detach() -> Disk {
    CURRENT.with(|current| current.borrow_mut().take()).expect("a disk is attached")
}

/// `fsync` of an open file or directory.
pub fn flush(fd: c_int) -> Result<(), c_int> {
    CURRENT.with(|current| {
        let Ok(mut current) = current.try_borrow_mut() else { return Ok(()) };
        current.as_mut().map_or(Ok(()), |disk| disk.flush(fd))
    })
}

/// How many bytes of a write the disk takes.
pub fn room(fd: c_int, count: usize) -> Result<usize, c_int> {
    CURRENT.with(|current| {
        let Ok(mut current) = current.try_borrow_mut() else { return Ok(count) };
        current.as_mut().map_or(Ok(count), |disk| disk.room(fd, count))
    })
}

impl Disk {
    /// An empty disk on an existing directory, which itself is flushed.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), ..Self::default() }
    }

    /// Injects one failure.
    pub fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    /// Removes all failures.
    pub fn mend(&mut self) {
        self.failure = None;
    }

    fn path_of(&self, fd: c_int) -> Option<PathBuf> {
        fs::read_link(format!("/proc/self/fd/{fd}")).ok().filter(|path| path.starts_with(&self.directory))
    }

    fn flush(&mut self, fd: c_int) -> Result<(), c_int> {
        let Some(path) = self.path_of(fd) else { return Ok(()) };
        if self.failure == Some(Failure::Flush) {
            self.failure = None;
            return Err(libc::EIO);
        }
        self.flushes += 1;
        self.keep(&path).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
    }

    fn keep(&mut self, path: &Path) -> io::Result<()> {
        let metadata = fs::metadata(path)?;
        if metadata.is_dir() {
            self.names.insert(metadata.ino(), listing(path)?);
        } else {
            self.contents.insert(metadata.ino(), fs::read(path)?);
        }
        Ok(())
    }

    fn room(&mut self, fd: c_int, count: usize) -> Result<usize, c_int> {
        let Some(Failure::Full(left)) = self.failure else { return Ok(count) };
        if self.path_of(fd).is_none() {
            return Ok(count);
        }
        if left == 0 {
            return Err(libc::ENOSPC);
        }
        let taken = count.min(left);
        self.failure = Some(Failure::Full(left - taken));
        Ok(taken)
    }

    /// The current content, to be restored after the process has ended.
    pub fn image(&self) -> io::Result<Image> {
        Image::of_now(&self.directory)
    }

    /// The content after a loss of power now.
    pub fn image_after_power_loss(&self, rng: &mut StdRng) -> io::Result<Image> {
        self.survivors(&self.directory, rng)
    }

    fn survivors(&self, directory: &Path, rng: &mut StdRng) -> io::Result<Image> {
        let now = listing(directory)?;
        let inode = fs::metadata(directory)?.ino();
        let kept = self.names.get(&inode).cloned().unwrap_or_default();
        // Of unflushed names, this file system keeps all or none.
        let names = if rng.random_bool(0.5) { now.clone() } else { kept };
        let mut image = Image::default();
        for (name, inode) in names {
            let path = directory.join(&name);
            let is_here = now.get(&name) == Some(&inode);
            if is_here && path.is_dir() {
                image.directories.insert(name, self.survivors(&path, rng)?);
                continue;
            }
            let flushed = self.contents.get(&inode).cloned().unwrap_or_default();
            let content = if is_here { torn(flushed, fs::read(&path)?, rng) } else { flushed };
            image.files.insert(name, content);
        }
        Ok(image)
    }

    /// Restores the content of an image, all of it flushed.
    pub fn restore(&mut self, image: &Image) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        (self.contents, self.names, self.failure) = Default::default();
        let directory = self.directory.clone();
        self.write(&directory, image)
    }

    fn write(&mut self, directory: &Path, image: &Image) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        for (name, content) in &image.files {
            let path = directory.join(name);
            fs::write(&path, content)?;
            self.contents.insert(fs::metadata(&path)?.ino(), content.clone());
        }
        for (name, inner) in &image.directories {
            self.write(&directory.join(name), inner)?;
        }
        self.names.insert(fs::metadata(directory)?.ino(), listing(directory)?);
        Ok(())
    }
}

/// What a file may hold that was flushed as `flushed` and then changed to `now`.
fn torn(flushed: Vec<u8>, now: Vec<u8>, rng: &mut StdRng) -> Vec<u8> {
    if now == flushed {
        return flushed;
    }
    match rng.random_range(0..4) {
        0 => flushed,
        1 => now,
        _ if now.starts_with(&flushed) => {
            let end = rng.random_range(flushed.len()..=now.len());
            let mut content = now[..end].to_vec();
            if rng.random_bool(0.3) {
                // The file has its new length, but its last blocks are missing.
                content.resize(now.len(), 0);
            }
            content
        }
        _ => flushed,
    }
}

fn listing(directory: &Path) -> io::Result<BTreeMap<String, u64>> {
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        names.insert(entry.file_name().to_string_lossy().into_owned(), entry.ino());
    }
    Ok(names)
}

trait Inode {
    fn ino(&self) -> u64;
}

impl Inode for fs::DirEntry {
    fn ino(&self) -> u64 {
        std::os::unix::fs::DirEntryExt::ino(self)
    }
}

/// What of a replica's folder goes back to an older copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All files, as when a machine's snapshot or a copy of the folder is restored.
    All,
    /// The log with its vote and positions.
    Log,
    Vote,
    Snapshot,
}

/// The content of a directory.
#[derive(Clone, Default)]
pub struct Image {
    files: BTreeMap<String, Vec<u8>>,
    directories: BTreeMap<String, Image>,
}

impl Image {
    /// This replica's folder with a part of an older copy. A file that the copy does not have is removed.
    pub fn with_older(&self, copy: &Self, part: Part) -> Self {
        let (mut image, directory) = (self.clone(), |image: &Self, name: &str| image.directories.get(name).cloned());
        let (Some(mut raft), Some(old)) = (directory(self, "raft"), directory(copy, "raft")) else { return image };
        match part {
            Part::All => return copy.clone(),
            Part::Log => raft.take("log", &old),
            Part::Snapshot => raft.take("snapshots", &old),
            Part::Vote => {
                if let (Some(log), Some(old)) = (raft.directories.get_mut("log"), old.directories.get("log")) {
                    match old.files.get("vote") {
                        Some(vote) => log.files.insert("vote".to_owned(), vote.clone()),
                        None => log.files.remove("vote"),
                    };
                }
            }
        }
        image.directories.insert("raft".to_owned(), raft);
        image
    }

    fn take(&mut self, name: &str, other: &Self) {
        match other.directories.get(name) {
            Some(directory) => self.directories.insert(name.to_owned(), directory.clone()),
            None => self.directories.remove(name),
        };
    }

    fn of_now(directory: &Path) -> io::Result<Self> {
        let mut image = Self::default();
        for name in listing(directory)?.into_keys() {
            let path = directory.join(&name);
            if path.is_dir() {
                image.directories.insert(name, Self::of_now(&path)?);
            } else {
                image.files.insert(name, fs::read(&path)?);
            }
        }
        Ok(image)
    }
}
