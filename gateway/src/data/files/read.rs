//! Reads the files of objects in pieces. A piece that is in the page cache is read by the task that asks for it: handing it
//! to a blocking thread costs several times as much as reading it. Everything else goes to a blocking thread, so no task
//! ever waits for the disk.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, stream};
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat2},
    io::{IoSliceMut, ReadWriteFlags, preadv2},
};
use tokio::task::{spawn_blocking, yield_now};

use super::Content;

/// Most bytes of one piece: so much memory a read takes, and so long it may keep others from its thread (some 30 µs).
const PIECE_BYTES: u64 = 256 << 10;

/// The bytes of a file in a range that is not empty; `None` if there is no such file.
///
/// # Errors
/// `UnexpectedEof`, here or from the stream, if the file ends before the range does.
pub(super) async fn read(path: PathBuf, range: Range<u64>) -> io::Result<Option<Content>> {
    let (first, rest) = split(range);
    let opened = match open_cached(&path) {
        Ok(file) => read_piece(Arc::new(file), first).await,
        Err(_) => blocking(move || open_and_read(path, first)).await,
    };
    let (file, first) = match opened {
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let others = stream::try_unfold((file, rest.clone()), async |(file, rest)| {
        if rest.is_empty() {
            return Ok(None);
        }
        // What is in the page cache is always ready. Without this a long read would keep every other task from its thread.
        yield_now().await;
        let (piece, rest) = split(rest);
        let (file, bytes) = read_piece(file, piece).await?;
        Ok(Some((bytes, (file, rest))))
    });
    Ok(Some(Content { first, rest: (!rest.is_empty()).then(|| others.boxed()) }))
}

/// The first piece of a range, and the rest.
fn split(range: Range<u64>) -> (Range<u64>, Range<u64>) {
    let end = range.end.min(range.start.saturating_add(PIECE_BYTES));
    (range.start..end, end..range.end)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

async fn read_piece(file: Arc<File>, piece: Range<u64>) -> io::Result<(Arc<File>, Bytes)> {
    let mut buffer = buffer_for(&piece);
    let done = read_cached(&file, piece.start, &mut buffer);
    if done == buffer.len() {
        return Ok((file, buffer.into()));
    }
    blocking(move || {
        file.read_exact_at(&mut buffer[done..], piece.start + done as u64)?;
        Ok((file, buffer.into()))
    })
    .await
}

fn open_and_read(path: PathBuf, piece: Range<u64>) -> io::Result<(Arc<File>, Bytes)> {
    let file = File::open(path)?;
    let mut buffer = buffer_for(&piece);
    file.read_exact_at(&mut buffer, piece.start)?;
    Ok((Arc::new(file), buffer.into()))
}

/// A piece has at most [`PIECE_BYTES`].
fn buffer_for(piece: &Range<u64>) -> Vec<u8> {
    vec![0; (piece.end - piece.start) as usize]
}

/// Opens a file whose path is in the kernel's cache of names. Any error says only that it was not opened so: the path is
/// not there, or the kernel (before 5.12) or the file system cannot tell.
fn open_cached(path: &std::path::Path) -> rustix::io::Result<File> {
    let opened = openat2(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED);
    opened.map(File::from)
}

/// Reads what the page cache has of this place, without waiting for the disk; returns how many bytes. File systems that do
/// not know this flag read nothing.
fn read_cached(file: &File, at: u64, buffer: &mut [u8]) -> usize {
    preadv2(file, &mut [IoSliceMut::new(buffer)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;

    use super::*;

    async fn read_all(path: &std::path::Path, range: Range<u64>) -> io::Result<Option<Vec<Bytes>>> {
        match read(path.to_owned(), range).await? {
            Some(content) => content.into_stream().try_collect().await.map(Some),
            None => Ok(None),
        }
    }

    fn content(length: u64) -> Vec<u8> {
        (0..length).map(|at| (at % 251) as u8).collect()
    }

    #[tokio::test]
    async fn ranges_are_read_in_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = (folder.path().join("file"), content(3 * PIECE_BYTES + 7));
        std::fs::write(&path, &bytes).unwrap();
        let end = bytes.len() as u64;
        for (range, pieces) in [(0..1, 1), (0..PIECE_BYTES, 1), (1..PIECE_BYTES + 2, 2), (0..end, 4), (end - 1..end, 1)]
        {
            let read = read_all(&path, range.clone()).await.unwrap().unwrap();
            assert_eq!(read.len(), pieces, "{range:?}");
            assert!(read.concat() == bytes[range.start as usize..range.end as usize], "{range:?}");
        }
    }

    #[tokio::test]
    async fn a_long_read_lets_other_tasks_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, content(8 * PIECE_BYTES)).unwrap();
        let mut pieces = read(path, 0..8 * PIECE_BYTES).await.unwrap().unwrap().into_stream();
        let other = tokio::spawn(async {});
        let mut read = 0;
        while !other.is_finished() {
            assert!(pieces.next().await.is_some(), "the whole file was read, and the other task has not begun");
            read += 1;
        }
        assert!(read > 0);
    }

    #[tokio::test]
    async fn what_is_not_cached_is_read_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = (folder.path().join("file"), content(5000));
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(open_and_read(path.clone(), 1000..5000).unwrap().1, bytes[1000..]);
        // A file without a page cache: the flag is refused, or answers nothing.
        let (_, maps) = read_piece(Arc::new(File::open("/proc/self/maps").unwrap()), 0..10).await.unwrap();
        assert_eq!(maps.len(), 10);
    }

    #[tokio::test]
    async fn a_file_that_is_absent_or_too_short_is_told_before_any_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(read_all(&path, 0..1).await.unwrap().is_none());
        std::fs::write(&path, content(10)).unwrap();
        for range in [0..11, 10..11, 20..21] {
            let Err(error) = read(path.clone(), range).await else { panic!("bytes that are not there") };
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
