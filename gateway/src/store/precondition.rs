//! The conditions of a change on the object that its key has now (`If-Match`, `If-None-Match`).

/// A condition of a put, or of a delete.
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
    /// The key has no object, or one with another etag: `If-None-Match: "…"`.
    OtherEtag(String),
}

impl Precondition {
    /// Whether it holds for a key that has an object with this etag.
    pub fn holds_for(&self, etag: Option<&str>) -> bool {
        match self {
            Self::None | Self::Present => true,
            Self::Absent => false,
            Self::Etag(wanted) => etag == Some(wanted),
            Self::OtherEtag(unwanted) => etag != Some(unwanted),
        }
    }

    /// The text that `mantle.put_object` takes, which also enters the request's hash.
    pub fn as_sql(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Absent => Some("*absent".into()),
            Self::Present => Some("*present".into()),
            // No object has such an etag, and one that spells a keyword must not become it.
            Self::Etag(etag) if etag.starts_with(['*', '!']) => Some("*".into()),
            Self::Etag(etag) => Some(etag.clone()),
            Self::OtherEtag(etag) => Some(format!("!{etag}")),
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
        assert_eq!(etag("0123").as_sql().as_deref(), Some("0123"));
        let other = Precondition::OtherEtag("0123".to_owned());
        for (keyword, sql) in [(Precondition::Absent, "*absent"), (Precondition::Present, "*present"), (other, "!0123")]
        {
            assert_eq!(keyword.as_sql().as_deref(), Some(sql));
            assert_eq!(etag(sql).as_sql().as_deref(), Some("*"));
        }
    }
}
