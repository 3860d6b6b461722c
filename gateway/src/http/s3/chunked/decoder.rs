//! The form of `aws-chunked`: chunks of `SIZE[;chunk-signature=HEX]`, bytes, line end; one of no bytes; then the trailer.
//! The bytes of a chunk go on before its end is seen, so a chunk may be as large as the body. Whoever stores them must not
//! keep them unless [`Decoder::finish`] succeeds.

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use super::{super::framing::ChunkError, signature::Signatures};

/// Longest line before a chunk: a size, and a signature.
const LINE_BYTES_MAX: usize = 256;
const TRAILER_BYTES_MAX: usize = 16 << 10;
const SIGNATURE: &str = ";chunk-signature=";
const TRAILER_SIGNATURE: &str = "x-amz-trailer-signature";

/// What comes next.
enum State {
    /// The line before a chunk.
    Line,
    Data {
        left: u64,
    },
    /// The end of line after a chunk; the bytes of it that are missing.
    End {
        missing: &'static [u8],
    },
    Trailer,
}

pub(super) struct Decoder {
    state: State,
    /// The part of a line, or of the trailer, that has been read.
    line: Vec<u8>,
    /// The bytes that the whole body still has.
    left: u64,
    /// The one header that the request announces as trailer.
    announced: Option<HeaderName>,
    signatures: Option<Signatures>,
    /// The chunk that is being read, and its signature.
    chunk: Option<(Sha256, String)>,
}

impl Decoder {
    /// `length`: of the body without its framing. `signatures`: `None` if chunks are not signed.
    pub(super) fn new(length: u64, announced: Option<HeaderName>, signatures: Option<Signatures>) -> Self {
        Self { state: State::Line, line: Vec::new(), left: length, announced, signatures, chunk: None }
    }

    /// Reads from `input` up to the next bytes of the body; `None` if `input` has no more.
    pub(super) fn next(&mut self, input: &mut Bytes) -> Result<Option<Bytes>, ChunkError> {
        while !input.is_empty() {
            match &mut self.state {
                State::Line => self.read_line(input)?,
                State::Data { left } => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                    *left -= count as u64;
                    if *left == 0 {
                        self.state = State::End { missing: b"\r\n" };
                    }
                    let data = input.split_to(count);
                    if let Some((digest, _)) = &mut self.chunk {
                        digest.update(&data);
                    }
                    return Ok(Some(data));
                }
                State::End { missing } => {
                    if input.get_u8() != missing[0] {
                        return Err(ChunkError::Incomplete);
                    }
                    *missing = &missing[1..];
                    if missing.is_empty() {
                        self.end_chunk()?;
                        self.state = State::Line;
                    }
                }
                State::Trailer => {
                    if self.line.len() + input.len() > TRAILER_BYTES_MAX {
                        return Err(ChunkError::Trailer);
                    }
                    self.line.extend_from_slice(&input.split_to(input.len()));
                }
            }
        }
        Ok(None)
    }

    fn read_line(&mut self, input: &mut Bytes) -> Result<(), ChunkError> {
        let end = input.iter().position(|byte| *byte == b'\n');
        let part = input.split_to(end.map_or(input.len(), |end| end + 1));
        if self.line.len() + part.len() > LINE_BYTES_MAX {
            return Err(ChunkError::Incomplete);
        }
        self.line.extend_from_slice(&part);
        match end {
            Some(_) => self.begin_chunk(),
            None => Ok(()),
        }
    }

    fn begin_chunk(&mut self) -> Result<(), ChunkError> {
        let line = std::mem::take(&mut self.line);
        let line = std::str::from_utf8(&line).ok().and_then(|line| line.strip_suffix("\r\n"));
        let line = line.ok_or(ChunkError::Incomplete)?;
        let (size, signature) = line.split_once(SIGNATURE).map_or((line, None), |(size, text)| (size, Some(text)));
        let size = match size.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            true => u64::from_str_radix(size, 16).map_err(|_| ChunkError::Incomplete)?,
            false => return Err(ChunkError::Incomplete),
        };
        self.chunk = match (self.signatures.is_some(), signature) {
            (true, Some(text)) if text.len() == 64 => Some((Sha256::new(), text.to_owned())),
            (false, None) => None,
            _ => return Err(ChunkError::Incomplete),
        };
        self.left = self.left.checked_sub(size).ok_or(ChunkError::Length)?;
        if size == 0 {
            self.end_chunk()?;
        }
        self.state = if size == 0 { State::Trailer } else { State::Data { left: size } };
        Ok(())
    }

    fn end_chunk(&mut self) -> Result<(), ChunkError> {
        let (Some(signatures), Some((digest, given))) = (&mut self.signatures, self.chunk.take()) else {
            return Ok(());
        };
        match signatures.verify_chunk(digest, &given) {
            true => Ok(()),
            false => Err(ChunkError::Signature),
        }
    }

    /// The trailer, at the end of the body.
    pub(super) fn finish(&mut self) -> Result<HeaderMap, ChunkError> {
        if !matches!(self.state, State::Trailer) {
            return Err(ChunkError::Incomplete);
        }
        if self.left > 0 {
            return Err(ChunkError::Length);
        }
        let (headers, signature) = self.trailer()?;
        if headers.keys().ne(&self.announced) || headers.len() > 1 {
            return Err(ChunkError::Trailer);
        }
        if let (Some(signatures), Some((name, value))) = (&mut self.signatures, headers.iter().next()) {
            let signature = signature.ok_or(ChunkError::Trailer)?;
            let lines = format!("{name}:{}\n", value.to_str().unwrap_or_default());
            if !signatures.verify_trailer(&lines, &signature) {
                return Err(ChunkError::Signature);
            }
        }
        Ok(headers)
    }

    /// The headers of the trailer, and their signature. Clients differ in how they end lines.
    fn trailer(&self) -> Result<(HeaderMap, Option<String>), ChunkError> {
        let (mut headers, mut signature) = (HeaderMap::new(), None);
        let lines = self.line.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        for line in lines.filter(|line| !line.is_empty()) {
            if !line.contains(&b':') {
                return Err(ChunkError::Incomplete);
            }
            let read = || {
                let (name, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
                let name = HeaderName::try_from(name).ok()?;
                Some((name, HeaderValue::try_from(value.trim()).ok()?))
            };
            let (name, value) = read().ok_or(ChunkError::Trailer)?;
            if name == TRAILER_SIGNATURE {
                signature = value.to_str().ok().map(str::to_owned);
            } else {
                headers.append(name, value);
            }
        }
        Ok((headers, signature))
    }
}

/// Decodes a body that comes in pieces of these lengths.
#[cfg(any(test, fuzzing))]
pub(super) fn decode(mut decoder: Decoder, body: &[u8], pieces: &[usize]) -> Result<(Vec<u8>, HeaderMap), ChunkError> {
    let (mut rest, mut pieces, mut decoded) = (body, pieces.iter().copied().cycle(), Vec::new());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(pieces.next().unwrap_or(1).clamp(1, rest.len()));
        rest = after;
        let mut input = Bytes::copy_from_slice(piece);
        while let Some(data) = decoder.next(&mut input)? {
            assert!(!data.is_empty());
            decoded.extend_from_slice(&data);
        }
    }
    decoder.finish().map(|trailer| (decoded, trailer))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::super::authentication::HeaderSignature, *};

    fn crc() -> Option<HeaderName> {
        Some(HeaderName::from_static("x-amz-checksum-crc32c"))
    }

    fn unsigned(length: u64, announced: Option<HeaderName>, body: &str) -> Result<(Vec<u8>, HeaderMap), ChunkError> {
        decode(Decoder::new(length, announced, None), body.as_bytes(), &[usize::MAX])
    }

    #[test]
    fn unsigned_bodies_are_decoded() {
        assert_eq!(unsigned(5, None, "5\r\nhello\r\n0\r\n\r\n").unwrap().0, b"hello");
        assert_eq!(unsigned(0, None, "0\r\n\r\n").unwrap().0, b"");
        // Clients leave out the last end of line, or write more.
        for end in ["", "\r\n", "\r\n\r\n", "\n\r\n"] {
            let body = format!("3\r\nabc\r\n02\r\nde\r\n0\r\nX-Amz-Checksum-CRC32C: AAAA {end}");
            let (decoded, trailer) = unsigned(5, crc(), &body).unwrap();
            assert_eq!(decoded, b"abcde");
            assert_eq!(trailer[crc().unwrap()], "AAAA", "{end:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        use ChunkError::{Incomplete, Length, Trailer};
        for (wanted, length, announced, body) in [
            (Incomplete, 5, None, ""),
            (Incomplete, 5, None, "5"),
            (Incomplete, 5, None, "5\r\nhell"),
            (Incomplete, 5, None, "5\r\nhello"),
            (Incomplete, 5, None, "5\r\nhello\r\n"),
            (Incomplete, 5, None, "5\nhello\r\n0\r\n\r\n"),
            (Incomplete, 5, None, "5\r\nhelloo\r\n0\r\n\r\n"),
            (Incomplete, 5, None, "5\r\nhello0\r\n\r\n"),
            (Incomplete, 5, None, "+5\r\nhello\r\n0\r\n\r\n"),
            (Incomplete, 5, None, "\r\nhello\r\n0\r\n\r\n"),
            (Incomplete, 5, None, "5;x=y\r\nhello\r\n0\r\n\r\n"),
            (Incomplete, 5, None, "10000000000000000\r\n"),
            (Length, 5, None, "ffffffffffffffff\r\n"),
            (Length, 4, None, "5\r\nhello\r\n0\r\n\r\n"),
            (Length, 6, None, "5\r\nhello\r\n0\r\n\r\n"),
            (Trailer, 0, None, "0\r\nx-amz-checksum-crc32c:a\r\n\r\n"),
            (Trailer, 0, crc(), "0\r\n\r\n"),
            (Trailer, 0, crc(), "0\r\nx-amz-checksum-crc32:a\r\n\r\n"),
            (Trailer, 0, crc(), "0\r\nx-amz-checksum-crc32c:a\r\nx-amz-checksum-crc32c:b\r\n\r\n"),
            (Trailer, 0, crc(), "0\r\nx-amz-checksum-crc32c:a\r\nx-amz-meta-a:b\r\n\r\n"),
            (Trailer, 0, crc(), "0\r\n:a\r\n\r\n"),
            (Incomplete, 0, None, "0\r\n\r\nPUT / HTTP/1.1"),
        ] {
            assert_eq!(unsigned(length, announced, body).unwrap_err(), wanted, "{body:?}");
        }
        let line = "0".repeat(LINE_BYTES_MAX + 1);
        assert_eq!(unsigned(0, None, &line).unwrap_err(), Incomplete);
        let trailer = format!("0\r\n{}", "a".repeat(TRAILER_BYTES_MAX + 1));
        assert_eq!(unsigned(0, None, &trailer).unwrap_err(), Trailer);
    }

    /// A chunk may be as large as an object, so no part of it waits for the rest.
    #[test]
    fn a_chunk_is_passed_on_before_its_end() {
        let mut decoder = Decoder::new(1 << 40, None, None);
        let mut input = Bytes::from_static(b"10000000000\r\nabc");
        assert_eq!(decoder.next(&mut input).unwrap().unwrap(), "abc");
        assert_eq!(decoder.next(&mut Bytes::from_static(b"d")).unwrap().unwrap(), "d");
        assert_eq!(decoder.finish().unwrap_err(), ChunkError::Incomplete);
    }

    /// The examples of AWS's documentation, "Signature calculations for the Authorization header: transferring payload in
    /// multiple chunks", without and with a trailer.
    fn example(with_trailer: bool) -> (Decoder, Vec<u8>) {
        let (seed, first, second, last) = match with_trailer {
            false => (
                "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
                "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
                "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
                "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n".to_owned(),
            ),
            true => (
                "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
                "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
                "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
                "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992\r\nx-amz-checksum-crc32c:sOO8/Q==\r\n\
                 x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
                    .to_owned(),
            ),
        };
        let of_request =
            HeaderSignature { date: "20130524T000000Z", scope: "20130524/us-east-1/s3/aws4_request", signature: seed };
        let signatures = Signatures::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", &of_request);
        let (large, small) = ("a".repeat(65536), "a".repeat(1024));
        let body =
            format!("10000{SIGNATURE}{first}\r\n{large}\r\n400{SIGNATURE}{second}\r\n{small}\r\n0{SIGNATURE}{last}");
        let announced = crc().filter(|_| with_trailer);
        (Decoder::new(66560, announced, Some(signatures)), body.into_bytes())
    }

    #[test]
    fn signed_bodies_are_decoded() {
        for with_trailer in [false, true] {
            let (decoder, body) = example(with_trailer);
            let (decoded, trailer) = decode(decoder, &body, &[usize::MAX]).unwrap();
            assert_eq!((decoded.len(), trailer.len()), (66560, usize::from(with_trailer)));
        }
    }

    #[test]
    fn unsigned_chunks_of_a_signed_body_are_refused() {
        let (decoder, _) = example(false);
        let body = b"3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(decode(decoder, body, &[usize::MAX]).unwrap_err(), ChunkError::Incomplete);
    }

    proptest! {
        #[test]
        fn the_pieces_of_a_body_do_not_matter(pieces in prop::collection::vec(1..9000usize, 1..6), trailer: bool) {
            let (decoder, body) = example(trailer);
            prop_assert_eq!(decode(decoder, &body, &pieces).map(|(decoded, _)| decoded.len()), Ok(66560));
        }

        #[test]
        fn a_changed_byte_is_noticed(at: prop::sample::Index, bit in 0..8u8, trailer: bool) {
            let (decoder, mut body) = example(trailer);
            let at = at.index(body.len());
            // Not the end of lines, in which clients differ, nor the case of letters, which means nothing in them.
            let was = body[at];
            body[at] ^= 1 << bit;
            prop_assume!(at < body.len() - 2 && !was.eq_ignore_ascii_case(&body[at]) && !was.is_ascii_whitespace());
            prop_assert!(decode(decoder, &body, &[usize::MAX]).is_err(), "byte {}", at);
        }

        #[test]
        fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..80), pieces in prop::collection::vec(1..9usize, 1..4)) {
            let one = decode(Decoder::new(9, crc(), None), &body, &pieces);
            let other = decode(Decoder::new(9, crc(), None), &body, &[usize::MAX]);
            prop_assert_eq!(one.is_ok(), other.is_ok());
        }
    }
}
