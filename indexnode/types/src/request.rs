//! The idempotency key of a mutation.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::NamespaceId;

/// A client's request id, scoped to its principal and namespace: equal UUIDs of two principals do not collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestKey {
    /// The principal's numeric id (`Caller::uid`).
    pub principal: u32,
    /// The namespace that the request changes; [`DirectoryId::SUPER_ROOT`](crate::DirectoryId::SUPER_ROOT)'s number
    /// for the creation of a namespace.
    pub ns: NamespaceId,
    /// The UUID that the client sent, or that the gateway made.
    pub id: Uuid,
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}/{}", self.id, self.principal, self.ns)
    }
}

/// Derives the request id of one step of a request that takes several (missing parents). A retry derives the same id.
pub fn derive_request_id(request: Uuid, step: &str) -> Uuid {
    Uuid::new_v5(&request, step.as_bytes())
}
