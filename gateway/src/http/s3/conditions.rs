//! Conditional reads (RFC 9110, section 13.2.2, as S3 applies it): If-Match overrides If-Unmodified-Since, and
//! If-None-Match overrides If-Modified-Since.

use s3s::{
    S3Error, S3ErrorCode,
    dto::{ETagCondition, Timestamp},
};

#[derive(Default)]
pub(super) struct Conditions<'a> {
    pub(super) if_match: Option<&'a ETagCondition>,
    pub(super) if_none_match: Option<&'a ETagCondition>,
    pub(super) if_modified_since: Option<&'a Timestamp>,
    pub(super) if_unmodified_since: Option<&'a Timestamp>,
}

fn names(condition: &ETagCondition, etag: Option<&str>) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(wanted) => etag == Some(wanted.value()),
    }
}

/// HTTP dates have whole seconds.
fn seconds(time: &Timestamp) -> i64 {
    time::OffsetDateTime::from(time.clone()).unix_timestamp()
}

impl Conditions<'_> {
    /// An error if the object must not be sent.
    pub(super) fn check(&self, etag: Option<&str>, modified: Option<&Timestamp>) -> Result<(), S3Error> {
        let changed_after = |since: &Timestamp| modified.is_some_and(|modified| seconds(modified) > seconds(since));
        let holds = match (self.if_match, self.if_unmodified_since) {
            (Some(condition), _) => names(condition, etag),
            (None, Some(since)) => !changed_after(since),
            (None, None) => true,
        };
        if !holds {
            return Err(S3Error::new(S3ErrorCode::PreconditionFailed));
        }
        let modified = match (self.if_none_match, self.if_modified_since) {
            (Some(condition), _) => !names(condition, etag),
            (None, Some(since)) => changed_after(since),
            (None, None) => true,
        };
        if modified { Ok(()) } else { Err(S3Error::new(S3ErrorCode::NotModified)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        time::OffsetDateTime::from_unix_timestamp(second).unwrap().into()
    }

    fn code(conditions: &Conditions<'_>) -> Option<S3ErrorCode> {
        conditions.check(Some("e"), Some(&at(100))).err().map(|e| e.code().clone())
    }

    #[test]
    fn the_stronger_condition_decides() {
        let none = Conditions::default;
        let (same, other) = ("\"e\"".parse::<ETagCondition>().unwrap(), "\"o\"".parse::<ETagCondition>().unwrap());
        let (before, after) = (at(99), at(101));
        assert_eq!(code(&none()), None);
        assert_eq!(code(&Conditions { if_match: Some(&same), if_unmodified_since: Some(&before), ..none() }), None);
        assert_eq!(code(&Conditions { if_match: Some(&other), ..none() }), Some(S3ErrorCode::PreconditionFailed));
        assert_eq!(code(&Conditions { if_match: Some(&ETagCondition::Any), ..none() }), None);
        let failed = Some(S3ErrorCode::PreconditionFailed);
        assert_eq!(code(&Conditions { if_unmodified_since: Some(&before), ..none() }), failed);
        assert_eq!(code(&Conditions { if_none_match: Some(&same), ..none() }), Some(S3ErrorCode::NotModified));
        assert_eq!(code(&Conditions { if_none_match: Some(&other), if_modified_since: Some(&after), ..none() }), None);
        assert_eq!(code(&Conditions { if_modified_since: Some(&after), ..none() }), Some(S3ErrorCode::NotModified));
        assert_eq!(code(&Conditions { if_modified_since: Some(&before), ..none() }), None);
    }
}
