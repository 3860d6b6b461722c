//! A read of a random history: it goes on while everything else happens, piece by piece, and judges what it gets.

use std::{
    future::Future,
    ops::Range,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use super::oracle::{Row, content};
use crate::{Error, Reader};

/// What must hold, and does not.
pub(super) type Violation = String;

pub(super) struct Get {
    pub(super) row: Row,
    at: usize,
    end: usize,
    reader: Reader,
    expected: Option<Vec<u8>>,
    /// The row was there when the read began.
    must_succeed: bool,
}

impl Get {
    pub(super) fn new(row: Row, range: Range<u64>, reader: Reader, must_succeed: bool) -> Self {
        Self { row, at: range.start as usize, end: range.end as usize, reader, expected: None, must_succeed }
    }

    /// Reads a piece; `true` at the end.
    pub(super) fn next(&mut self) -> Result<bool, Violation> {
        let Poll::Ready(read) = poll(std::pin::pin!(self.reader.next())) else { return Err("a read waits".into()) };
        match read {
            Ok(Some(piece)) => {
                let to = self.at + piece.len();
                let bytes = || content(self.row.key, self.row.generation, self.row.bytes() as usize);
                if self.expected.get_or_insert_with(bytes).get(self.at..to) != Some(&piece) {
                    return Err(format!("{:?} returned other bytes at {}", self.row.locators, self.at));
                }
                self.at = to;
                Ok(false)
            }
            Ok(None) if self.at == self.end => Ok(true),
            Ok(None) => Err(format!("{:?} ended at {} of {}", self.row.locators, self.at, self.end)),
            Err(Error::Io(_)) => Ok(true),
            Err(_) if self.row.is_damaged || !self.must_succeed => Ok(true),
            Err(error) => Err(format!("{:?} is lost: {error}", self.row.locators)),
        }
    }
}

/// Asks a future once.
pub(super) fn poll<T>(future: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
