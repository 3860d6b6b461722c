//! The change-stream message: the directory operations of one transaction on one PostgreSQL node.
//!
//! The extension emits it with `LogLogicalMessage(transactional, prefix "mantle")`; the IndexNode reads it through pgoutput.
//! Layout (docs/formats.md): format version (1 byte), operation count, then the operations; integers are LEB128 varints. A
//! reader refuses a message that it does not understand, whole: applying a part would make a wrong index.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    DirectoryId, NamespaceId, PartitionId, Permission, RequestKey,
    limits::{MESSAGE_OPS_MAX, NAME_BYTES_MAX},
};

/// Prefix that tells our logical messages from others.
pub const MESSAGE_PREFIX: &str = "mantle";
/// Version of the layout below.
pub const FORMAT_VERSION: u8 = 1;

/// A directory's whole record, so that applying needs nothing but the newest version (P1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct DirectoryRecord {
    /// The namespace that the directory never leaves.
    pub ns: NamespaceId,
    pub pid: PartitionId,
    /// The name, without the trailing slash.
    pub name: String,
    pub id: DirectoryId,
    /// Record version: 1 at creation, one more with every change of the record.
    pub version: u64,
    pub permission: Permission,
}

/// The request that made a change; for a rename also the attempt that holds its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Cause {
    pub request: RequestKey,
    /// Log index of the prepare; 0 when the change took no lock.
    pub attempt: u64,
}

/// One change of a directory, or the end of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum DirectoryOp {
    /// The directory is now this: created, changed, or moved here from another place. Finishes the request in `cause`, if any.
    Put { record: DirectoryRecord, cause: Option<Cause> },
    /// The directory was removed from `(pid, name)`. Its last record, with the version of the removal: one more than the last.
    Remove { record: DirectoryRecord, cause: Option<Cause> },
    /// Nothing changed here, but the request is done.
    Done { cause: Cause },
    /// A rename across nodes has done its part in `pid`, the source's partition or the destination's. The request is done when
    /// both parts are (P2), so the record that the destination part puts names no request.
    PartDone { pid: PartitionId, cause: Cause },
}

impl DirectoryOp {
    /// The namespace of the directory or request.
    pub fn namespace(&self) -> NamespaceId {
        match self {
            Self::Put { record, .. } | Self::Remove { record, .. } => record.ns,
            Self::Done { cause } | Self::PartDone { cause, .. } => cause.request.ns,
        }
    }

    /// The record of the directory that it changes, if any.
    pub fn record(&self) -> Option<&DirectoryRecord> {
        match self {
            Self::Put { record, .. } | Self::Remove { record, .. } => Some(record),
            Self::Done { .. } | Self::PartDone { .. } => None,
        }
    }

    /// The request that it finishes alone.
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Put { cause, .. } | Self::Remove { cause, .. } => cause.as_ref(),
            Self::Done { cause } => Some(cause),
            Self::PartDone { .. } => None,
        }
    }
}

/// Why a message was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DecodeError {
    #[error("message is truncated")]
    Truncated,
    #[error("{0} bytes follow the last operation")]
    Trailing(usize),
    #[error("message format {0} is not known")]
    Version(u8),
    #[error("operation {0} is not known")]
    Operation(u8),
    #[error("a number is out of range")]
    Range,
    #[error("a name is not UTF-8")]
    Utf8,
}

const OP_PUT: u8 = 1;
const OP_REMOVE: u8 = 2;
const OP_DONE: u8 = 3;
const OP_PART_DONE: u8 = 4;

/// Encodes a transaction's operations. Panics if there are more than [`MESSAGE_OPS_MAX`]; writers have a lower bound.
pub fn encode(ops: &[DirectoryOp]) -> Vec<u8> {
    assert!(ops.len() <= MESSAGE_OPS_MAX, "too many operations for one message");
    let mut out = Vec::with_capacity(8 + ops.len() * 48);
    out.push(FORMAT_VERSION);
    put_varint(&mut out, ops.len() as u64);
    for op in ops {
        match op {
            DirectoryOp::Put { record, cause } | DirectoryOp::Remove { record, cause } => {
                out.push(if matches!(op, DirectoryOp::Put { .. }) { OP_PUT } else { OP_REMOVE });
                put_record(&mut out, record);
                put_cause(&mut out, cause.as_ref());
            }
            DirectoryOp::Done { cause } => {
                out.push(OP_DONE);
                put_cause(&mut out, Some(cause));
            }
            DirectoryOp::PartDone { pid, cause } => {
                out.push(OP_PART_DONE);
                put_varint(&mut out, pid.0);
                put_cause(&mut out, Some(cause));
            }
        }
    }
    out
}

/// Decodes a message; never panics, whatever the bytes.
pub fn decode(bytes: &[u8]) -> Result<Vec<DirectoryOp>, DecodeError> {
    let mut input = Input { bytes };
    let version = input.byte()?;
    if version != FORMAT_VERSION {
        return Err(DecodeError::Version(version));
    }
    let count: usize = input.number()?;
    if count > MESSAGE_OPS_MAX {
        return Err(DecodeError::Range);
    }
    let mut ops = Vec::with_capacity(count.min(bytes.len()));
    for _ in 0..count {
        ops.push(match input.byte()? {
            OP_PUT => DirectoryOp::Put { record: input.record()?, cause: input.cause()? },
            OP_REMOVE => DirectoryOp::Remove { record: input.record()?, cause: input.cause()? },
            OP_DONE => DirectoryOp::Done { cause: input.cause()?.ok_or(DecodeError::Range)? },
            OP_PART_DONE => {
                let pid = PartitionId(input.varint()?);
                DirectoryOp::PartDone { pid, cause: input.cause()?.ok_or(DecodeError::Range)? }
            }
            other => return Err(DecodeError::Operation(other)),
        });
    }
    match input.bytes.len() {
        0 => Ok(ops),
        n => Err(DecodeError::Trailing(n)),
    }
}

fn put_varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn put_record(out: &mut Vec<u8>, r: &DirectoryRecord) {
    for v in [r.ns.0, r.pid.0, r.id.0, r.version] {
        put_varint(out, v);
    }
    for v in [r.permission.owner, r.permission.group, u32::from(r.permission.mode)] {
        put_varint(out, u64::from(v));
    }
    put_varint(out, r.name.len() as u64);
    out.extend_from_slice(r.name.as_bytes());
}

fn put_cause(out: &mut Vec<u8>, cause: Option<&Cause>) {
    match cause {
        None => out.push(0),
        Some(c) => {
            out.push(1);
            put_varint(out, u64::from(c.request.principal));
            put_varint(out, c.request.ns.0);
            out.extend_from_slice(c.request.id.as_bytes());
            put_varint(out, c.attempt);
        }
    }
}

struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.bytes.split_at_checked(n).ok_or(DecodeError::Truncated)?;
        self.bytes = tail;
        Ok(head)
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        self.take(1).map(|b| b[0])
    }

    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            let bits = u64::from(b & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(DecodeError::Range);
            }
            v |= bits << shift;
            if b & 0x80 == 0 {
                return Ok(v);
            }
        }
        Err(DecodeError::Range)
    }

    fn number<T: TryFrom<u64>>(&mut self) -> Result<T, DecodeError> {
        T::try_from(self.varint()?).map_err(|_| DecodeError::Range)
    }

    fn record(&mut self) -> Result<DirectoryRecord, DecodeError> {
        let ns = NamespaceId(self.varint()?);
        let pid = PartitionId(self.varint()?);
        let id = DirectoryId(self.varint()?);
        let version = self.varint()?;
        let permission = Permission { owner: self.number()?, group: self.number()?, mode: self.number()? };
        let length: usize = self.number()?;
        if length > NAME_BYTES_MAX {
            return Err(DecodeError::Range);
        }
        let name = std::str::from_utf8(self.take(length)?).map_err(|_| DecodeError::Utf8)?.to_owned();
        Ok(DirectoryRecord { ns, pid, name, id, version, permission })
    }

    fn cause(&mut self) -> Result<Option<Cause>, DecodeError> {
        match self.byte()? {
            0 => Ok(None),
            1 => {
                let principal = self.number()?;
                let ns = NamespaceId(self.varint()?);
                let id = Uuid::from_slice(self.take(16)?).map_err(|_| DecodeError::Truncated)?;
                let attempt = self.varint()?;
                Ok(Some(Cause { request: RequestKey { principal, ns, id }, attempt }))
            }
            _ => Err(DecodeError::Range),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cause() -> impl Strategy<Value = Cause> {
        (any::<u32>(), any::<u64>(), any::<u128>(), any::<u64>()).prop_map(|(principal, ns, id, attempt)| Cause {
            request: RequestKey { principal, ns: NamespaceId(ns), id: Uuid::from_u128(id) },
            attempt,
        })
    }

    fn record() -> impl Strategy<Value = DirectoryRecord> {
        (any::<[u64; 4]>(), "[^/\0]{1,40}", any::<u32>(), any::<u32>(), any::<u16>()).prop_map(
            |([ns, pid, id, version], name, owner, group, mode)| DirectoryRecord {
                ns: NamespaceId(ns),
                pid: PartitionId(pid),
                name,
                id: DirectoryId(id),
                version,
                permission: Permission { owner, group, mode },
            },
        )
    }

    fn op() -> impl Strategy<Value = DirectoryOp> {
        prop_oneof![
            (record(), proptest::option::of(cause())).prop_map(|(record, cause)| DirectoryOp::Put { record, cause }),
            (record(), proptest::option::of(cause())).prop_map(|(record, cause)| DirectoryOp::Remove { record, cause }),
            cause().prop_map(|cause| DirectoryOp::Done { cause }),
            (any::<u64>(), cause()).prop_map(|(pid, cause)| DirectoryOp::PartDone { pid: PartitionId(pid), cause }),
        ]
    }

    proptest! {
        #[test]
        fn round_trips(ops in proptest::collection::vec(op(), 0..20)) {
            prop_assert_eq!(decode(&encode(&ops)).unwrap(), ops);
        }

        #[test]
        fn any_cut_is_refused(ops in proptest::collection::vec(op(), 1..5), at in any::<prop::sample::Index>()) {
            let bytes = encode(&ops);
            prop_assert!(decode(&bytes[..at.index(bytes.len())]).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = FORMAT_VERSION;
            }
            let _ = decode(&bytes);
        }
    }

    /// docs/formats.md: a change of these bytes needs another [`FORMAT_VERSION`] and an entry there.
    #[test]
    fn bytes_stay_as_they_are() {
        let permission = Permission { owner: 5, group: 300, mode: 0o755 };
        let (ns, pid, id) = (NamespaceId(1), PartitionId(2), DirectoryId(1024));
        let record = DirectoryRecord { ns, pid, name: "d\u{e4}".to_owned(), id, version: 3, permission };
        let request = RequestKey { principal: 7, ns, id: Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10) };
        let cause = Cause { request, attempt: 1 << 40 };
        let ops = [
            DirectoryOp::Put { record: record.clone(), cause: Some(cause) },
            DirectoryOp::Remove { record, cause: None },
            DirectoryOp::Done { cause },
            DirectoryOp::PartDone { pid, cause },
        ];
        let record = "01 02 80 08 03 05 ac 02 ed 03 03 64 c3 a4";
        let cause = "01 07 01 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 10 80 80 80 80 80 20";
        let text = format!("01 04 01 {record} {cause} 02 {record} 00 03 {cause} 04 02 {cause}");
        let bytes: Vec<u8> = text.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        assert_eq!(encode(&ops), bytes, "the format of messages has changed: see docs/formats.md");
        assert_eq!(decode(&bytes).unwrap(), ops);
        for version in [0, 2, u8::MAX] {
            assert_eq!(decode(&[version, 0]), Err(DecodeError::Version(version)));
        }
        assert_eq!(decode(&[FORMAT_VERSION, 1, 5]), Err(DecodeError::Operation(5)));
    }
}
