//! A client's stream of bytes, cut into pieces, counted, and compared with the announced digests.

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};

use super::{Checksums, Expected, UploadError, digest::Hashers};

/// What a client sends as the bytes of an object.
pub(super) struct Body<S> {
    stream: S,
    size_max: u64,
    expected: Expected,
    hashers: Hashers,
    size: u64,
    /// Received, and in no piece yet.
    waiting: BytesMut,
}

impl<S, E> Body<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(super) fn new(stream: S, size_max: u64, expected: Expected) -> Self {
        let hashers = expected.hashers();
        Self { stream, size_max, expected, hashers, size: 0, waiting: BytesMut::new() }
    }

    /// The next piece: exactly this many bytes, or what is left at the end, which may be nothing.
    ///
    /// # Errors
    /// `TooLarge`, `Body`.
    pub(super) async fn piece(&mut self, bytes: usize) -> Result<Bytes, UploadError> {
        self.receive(bytes).await?;
        Ok(self.waiting.split_to(bytes.min(self.waiting.len())).freeze())
    }

    /// The whole body, if it has at most this many bytes; otherwise `None`, and the next piece begins as if this was not called.
    ///
    /// # Errors
    /// `TooLarge`, `Body`.
    pub(super) async fn whole(&mut self, bytes_max: usize) -> Result<Option<Bytes>, UploadError> {
        self.receive(bytes_max + 1).await?;
        Ok((self.waiting.len() <= bytes_max).then(|| self.waiting.split().freeze()))
    }

    /// Waits until this many bytes are buffered, or the body ends.
    async fn receive(&mut self, bytes: usize) -> Result<(), UploadError> {
        while self.waiting.len() < bytes {
            let Some(chunk) = self.stream.next().await else {
                return match self.expected.size.filter(|announced| *announced != self.size) {
                    Some(announced) => Err(UploadError::Body(unlike(announced))),
                    None => Ok(()),
                };
            };
            let chunk = chunk.map_err(|e| UploadError::Body(e.into()))?;
            self.size += chunk.len() as u64;
            if self.size > self.size_max {
                return Err(UploadError::TooLarge);
            }
            if let Some(announced) = self.expected.size.filter(|announced| *announced < self.size) {
                return Err(UploadError::Body(unlike(announced)));
            }
            self.hashers.update(&chunk);
            self.waiting.extend_from_slice(&chunk);
        }
        Ok(())
    }

    /// How many bytes will have come at the end, if the client has said it.
    pub(super) fn announced(&self) -> Option<u64> {
        self.expected.size
    }

    /// Bytes so far.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The digests of everything. Call it after the last piece.
    ///
    /// # Errors
    /// `Mismatch`.
    pub(super) fn check(&mut self) -> Result<Checksums, UploadError> {
        let hashers = std::mem::replace(&mut self.hashers, self.expected.hashers());
        self.expected.check(hashers).map_err(UploadError::Mismatch)
    }
}

/// A body is longer or shorter than the client has said.
fn unlike(announced: u64) -> Box<dyn std::error::Error + Send + Sync> {
    format!("the body has not the {announced} bytes that were announced").into()
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    fn body(
        chunks: &[&'static [u8]],
        size_max: u64,
    ) -> Body<impl Stream<Item = Result<Bytes, std::io::Error>> + Unpin> {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk))).collect();
        Body::new(stream::iter(chunks), size_max, Expected::default())
    }

    #[tokio::test]
    async fn pieces_have_the_size_that_was_asked_for() {
        let mut body = body(&[b"ab", b"cdefg", b"", b"hij"], 10);
        let mut pieces = Vec::new();
        loop {
            let piece = body.piece(4).await.unwrap();
            if piece.is_empty() {
                break;
            }
            pieces.push(piece);
        }
        assert_eq!((pieces, body.size()), (vec!["abcd".into(), "efgh".into(), "ij".into()], 10));
        assert_eq!(body.check().unwrap().md5, "a925576942e94b2ef57a066101b48876");
    }

    #[tokio::test]
    async fn a_small_body_is_had_whole_and_a_larger_one_from_its_beginning() {
        assert_eq!(body(&[b"ab", b"cd"], 10).whole(4).await.unwrap().unwrap(), "abcd");
        assert_eq!(body(&[], 10).whole(4).await.unwrap().unwrap(), "");
        let mut larger = body(&[b"ab", b"cde", b"f"], 10);
        assert_eq!(larger.whole(4).await.unwrap(), None);
        assert_eq!(larger.piece(4).await.unwrap(), "abcd");
        assert_eq!((larger.piece(4).await.unwrap(), larger.size()), ("ef".into(), 6));
        assert_eq!(larger.check().unwrap().md5, "e80b5017098950fc58aad83c8c14978e");
    }

    #[tokio::test]
    async fn a_body_has_the_announced_size_or_is_refused() {
        let body = |announced| {
            let mut body = body(&[b"abc", b"de"], 10);
            body.expected.size = Some(announced);
            body
        };
        assert_eq!(body(5).piece(100).await.unwrap(), "abcde");
        for announced in [0, 4, 6] {
            let refused = body(announced).piece(100).await;
            assert!(matches!(refused, Err(UploadError::Body(_))), "{announced}");
        }
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_is_refused() {
        assert!(matches!(body(&[b"abc", b"de"], 4).piece(100).await, Err(UploadError::TooLarge)));
        assert_eq!(body(&[b"abc", b"d"], 4).piece(100).await.unwrap(), "abcd");
    }
}
