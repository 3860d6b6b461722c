//! A disk that forgets at a loss of power whatever was not flushed, and that can fail.
//!
//! Invariant: what a replica flushed is there after the loss: of a file its content, of a folder the names in it. What it
//! did not flush may be there or not, wholly or in part, as the seed decides. The files themselves are real, in memory.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::c_int,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rand::{Rng, rngs::StdRng};

/// An error to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The next flush fails.
    Flush,
    /// The disk is full after this many more bytes.
    Full(usize),
}

/// What a replica's disk would still hold after a loss of power.
#[derive(Default)]
pub struct Disk {
    folder: PathBuf,
    /// By inode: content at the last flush.
    contents: BTreeMap<u64, Vec<u8>>,
    /// By inode of the folder: names at its last flush, and their inodes.
    names: BTreeMap<u64, BTreeMap<String, u64>>,
    failure: Option<Failure>,
    /// Flushes so far.
    pub flushes: u64,
}

thread_local! {
    /// The disk of the host whose turn it is.
    static CURRENT: RefCell<Option<Disk>> = const { RefCell::new(None) };
}

/// Makes a disk the one that the code now running writes to.
pub fn attach(disk: Disk) {
    CURRENT.with(|current| *current.borrow_mut() = Some(disk));
}

/// Takes it back.
pub fn detach() -> Disk {
    CURRENT.with(|current| current.borrow_mut().take()).expect("a disk is attached")
}

/// `fsync` of an open file or folder.
pub fn flush(fd: c_int) -> Result<(), c_int> {
    CURRENT.with(|current| {
        let Ok(mut current) = current.try_borrow_mut() else { return Ok(()) };
        current.as_mut().map_or(Ok(()), |disk| disk.flush(fd))
    })
}

/// How much of a write the disk takes.
pub fn room(fd: c_int, count: usize) -> Result<usize, c_int> {
    CURRENT.with(|current| {
        let Ok(mut current) = current.try_borrow_mut() else { return Ok(count) };
        current.as_mut().map_or(Ok(count), |disk| disk.room(fd, count))
    })
}

impl Disk {
    /// An empty one over a folder that exists and will survive.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), ..Self::default() }
    }

    /// Lets the disk fail once.
    pub fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    /// No failure any more.
    pub fn mend(&mut self) {
        self.failure = None;
    }

    fn path_of(&self, fd: c_int) -> Option<PathBuf> {
        fs::read_link(format!("/proc/self/fd/{fd}")).ok().filter(|path| path.starts_with(&self.folder))
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

    /// What is on the disk now, to be put back after the process has ended.
    pub fn image(&self) -> io::Result<Image> {
        Image::of_now(&self.folder)
    }

    /// What is on the disk after the power was lost now.
    pub fn image_after_power_loss(&self, rng: &mut StdRng) -> io::Result<Image> {
        self.survivors(&self.folder, rng)
    }

    fn survivors(&self, folder: &Path, rng: &mut StdRng) -> io::Result<Image> {
        let now = listing(folder)?;
        let inode = fs::metadata(folder)?.ino();
        let kept = self.names.get(&inode).cloned().unwrap_or_default();
        // Of names that were not flushed, a file system keeps all or none here.
        let names = if rng.random_bool(0.5) { now.clone() } else { kept };
        let mut image = Image::default();
        for (name, inode) in names {
            let path = folder.join(&name);
            let is_here = now.get(&name) == Some(&inode);
            if is_here && path.is_dir() {
                image.folders.insert(name, self.survivors(&path, rng)?);
                continue;
            }
            let flushed = self.contents.get(&inode).cloned().unwrap_or_default();
            let content = if is_here { torn(flushed, fs::read(&path)?, rng) } else { flushed };
            image.files.insert(name, content);
        }
        Ok(image)
    }

    /// Makes the folder what the image says, all of it flushed.
    pub fn restore(&mut self, image: &Image) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        (self.contents, self.names, self.failure) = Default::default();
        let folder = self.folder.clone();
        self.write(&folder, image)
    }

    fn write(&mut self, folder: &Path, image: &Image) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        for (name, content) in &image.files {
            let path = folder.join(name);
            fs::write(&path, content)?;
            self.contents.insert(fs::metadata(&path)?.ino(), content.clone());
        }
        for (name, inner) in &image.folders {
            self.write(&folder.join(name), inner)?;
        }
        self.names.insert(fs::metadata(folder)?.ino(), listing(folder)?);
        Ok(())
    }
}

/// What a file that was flushed as `flushed` and since then changed to `now` may hold.
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
                // The file had grown already, its last blocks had not come.
                content.resize(now.len(), 0);
            }
            content
        }
        _ => flushed,
    }
}

fn listing(folder: &Path) -> io::Result<BTreeMap<String, u64>> {
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
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

/// A folder's content.
#[derive(Default)]
pub struct Image {
    files: BTreeMap<String, Vec<u8>>,
    folders: BTreeMap<String, Image>,
}

impl Image {
    fn of_now(folder: &Path) -> io::Result<Self> {
        let mut image = Self::default();
        for name in listing(folder)?.into_keys() {
            let path = folder.join(&name);
            if path.is_dir() {
                image.folders.insert(name, Self::of_now(&path)?);
            } else {
                image.files.insert(name, fs::read(&path)?);
            }
        }
        Ok(image)
    }
}
