//! The conditions of a PutObject on the object that its key has now (`If-Match`, `If-None-Match`).

/// A condition of a put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Precondition {
    #[default]
    None,
    /// The key has no object: `If-None-Match: *`.
    Absent,
    /// The key has an object: `If-Match: *`.
    Present,
    /// The key has an object with this etag: `If-Match: "…"`.
    Etag(String),
}

impl Precondition {
    /// The text that `mantle.put_object` takes, which also enters the request's hash.
    pub fn as_sql(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Absent => Some("*absent"),
            Self::Present => Some("*present"),
            // No object has such an etag, and one that spells a keyword must not become it.
            Self::Etag(etag) if etag.starts_with('*') => Some("*"),
            Self::Etag(etag) => Some(etag),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_never_becomes_a_keyword() {
        let etag = |text: &str| Precondition::Etag(text.to_owned());
        assert_eq!(Precondition::None.as_sql(), None);
        assert_eq!(etag("0123").as_sql(), Some("0123"));
        for (keyword, sql) in [(Precondition::Absent, "*absent"), (Precondition::Present, "*present")] {
            assert_eq!(keyword.as_sql(), Some(sql));
            assert_eq!(etag(sql).as_sql(), Some("*"));
        }
    }
}
