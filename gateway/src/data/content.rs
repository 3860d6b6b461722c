//! The bytes of a read, as they go to a client.

use std::io;

use bytes::Bytes;
use futures::{StreamExt, stream, stream::BoxStream};

/// Bytes as they are sent to a client.
pub type ByteStream = BoxStream<'static, io::Result<Bytes>>;

/// The bytes of a read. The first piece has already been read, so that after a failure the client gets an error, not
/// the beginning of an answer.
pub struct Content {
    pub first: Bytes,
    /// `None` if the first piece is all.
    pub rest: Option<ByteStream>,
}

impl Content {
    /// No bytes.
    pub fn empty() -> Self {
        Self { first: Bytes::new(), rest: None }
    }

    pub fn into_stream(self) -> ByteStream {
        let first = stream::once(std::future::ready(Ok(self.first)));
        match self.rest {
            Some(rest) => first.chain(rest).boxed(),
            None => first.boxed(),
        }
    }
}
