//! The record of a log segment: one entry, framed so that damage is detected, and distinguished from an incomplete end.
//!
//! Layout: magic (4 bytes), length of the payload (4), CRC-32 of length and payload (4), payload. Little endian.

const MAGIC: [u8; 4] = *b"MRL1";
pub const HEADER_BYTES: usize = 12;
/// A larger length means damage.
const PAYLOAD_BYTES_MAX: usize = 256 << 20;

pub fn append<E>(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; HEADER_BYTES - MAGIC.len()]);
    write(out)?;
    let length = (out.len() - start - HEADER_BYTES) as u32;
    out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
    let crc = checksum(length, &out[start + HEADER_BYTES..]);
    out[start + 8..start + 12].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// The payload of the record at the start of `bytes`, if it is complete and undamaged.
pub fn parse(bytes: &[u8]) -> Option<&[u8]> {
    let header = bytes.get(..HEADER_BYTES)?;
    if header[..4] != MAGIC {
        return None;
    }
    let length = u32::from_le_bytes(header[4..8].try_into().ok()?);
    let crc = u32::from_le_bytes(header[8..12].try_into().ok()?);
    if length as usize > PAYLOAD_BYTES_MAX {
        return None;
    }
    let payload = bytes.get(HEADER_BYTES..HEADER_BYTES + length as usize)?;
    (checksum(length, payload) == crc).then_some(payload)
}

/// True if `bytes` contains a complete record at any offset. After a damaged record this means that the damage is not a write
/// that a crash interrupted, and that truncation would lose entries.
pub fn any_within(bytes: &[u8]) -> bool {
    let starts = bytes.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC);
    starts.map(|(offset, _)| offset).any(|offset| parse(&bytes[offset..]).is_some())
}

fn checksum(length: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}
