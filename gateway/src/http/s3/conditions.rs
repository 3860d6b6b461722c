//! Conditions and ranges of reads (RFC 9110, sections 13 and 14), and conditions of changes. Read from the headers here:
//! `s3s` knows neither lists of etags, nor If-Range, nor the older forms of dates.

use std::{ops::Range, time::SystemTime};

use http::{
    Extensions, HeaderMap,
    header::{self, HeaderName},
};
use mantle_types::{Error, ErrorCode};
use s3s::{S3Error, S3ErrorCode};

use super::{
    errors::{bad_request, not_offered},
    headers::{IF_MATCH_MODIFIED, IF_MATCH_SIZE},
};
use crate::{http::header_text, ops::delete_object::DeleteCondition, store::Precondition};

/// An etag that a client names. A weak one (`W/"…"`) says only that the object is much the same.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tag {
    value: String,
    is_weak: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tags {
    Any,
    List(Vec<Tag>),
}

/// What If-Range names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Version {
    Tag(Tag),
    Time(i64),
}

/// The part of an object that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    From(u64),
    Within(u64, u64),
    Last(u64),
}

/// The conditions and the range of one request. Times are in whole seconds since 1970, as HTTP has them.
#[derive(Clone, Debug, Default)]
pub(super) struct Conditions {
    if_match: Option<Tags>,
    if_none_match: Option<Tags>,
    if_modified_since: Option<i64>,
    if_unmodified_since: Option<i64>,
    if_range: Option<Version>,
    range: Option<Wanted>,
    /// The part of a multipart upload, from 1.
    part: Option<u32>,
    /// Conditions of a delete: the object's size in bytes, and the time of its last change.
    size: Option<u64>,
    modified: Option<i64>,
}

/// What is chosen of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Whole,
    Range(Range<u64>),
}

const SIZE: HeaderName = HeaderName::from_static(IF_MATCH_SIZE);
const MODIFIED: HeaderName = HeaderName::from_static(IF_MATCH_MODIFIED);

/// The headers that this module reads instead of `s3s`.
pub(super) const HEADERS: [HeaderName; 8] = [
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::IF_RANGE,
    header::RANGE,
    SIZE,
    MODIFIED,
];

/// A date in one of HTTP's three forms. What is none is ignored, as RFC 9110 demands.
fn date(text: &str) -> Option<i64> {
    seconds(httpdate::parse_http_date(text.trim()).ok()?)
}

/// Whole seconds since 1970.
pub(super) fn seconds(time: SystemTime) -> Option<i64> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

/// A list of etags. S3 clients send etags without quotes too.
fn tags(text: &str) -> Tags {
    let mut list = Vec::new();
    let mut rest = text.trim();
    if rest == "*" {
        return Tags::Any;
    }
    while !rest.is_empty() {
        let (is_weak, after) = rest.strip_prefix("W/").map_or((false, rest), |after| (true, after));
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        if !value.trim().is_empty() || after.is_empty() {
            list.push(Tag { value: value.trim().to_owned(), is_weak });
        }
        rest = after.trim_start_matches([',', ' ', '\t']);
    }
    Tags::List(list)
}

impl Tags {
    /// For changes and ranges: a weak etag never matches.
    fn match_strongly(&self, etag: Option<&str>) -> bool {
        match self {
            Self::Any => true,
            Self::List(list) => list.iter().any(|tag| !tag.is_weak && etag == Some(tag.value.as_str())),
        }
    }

    fn match_weakly(&self, etag: Option<&str>) -> bool {
        match self {
            Self::Any => true,
            Self::List(list) => list.iter().any(|tag| etag == Some(tag.value.as_str())),
        }
    }
}

/// One range of bytes. Other units, several ranges and malformed ones are ignored: the whole object is the answer.
fn range(text: &str) -> Option<Wanted> {
    let (unit, set) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = set.split_once('-')?;
    // A number over u64 is beyond the end of any object.
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        true => Some(text.parse().unwrap_or(u64::MAX)),
        false => None,
    };
    match (first, last) {
        ("", last) => number(last).map(Wanted::Last),
        (first, "") => number(first).map(Wanted::From),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Wanted::Within(first, last))
        }
    }
}

impl Conditions {
    /// # Errors
    /// `InvalidArgument` for a part number that no part can have, and for a size or a time that is none; `InvalidRequest` for
    /// a part and a range together.
    pub(super) fn read(headers: &HeaderMap, part: Option<&str>) -> Result<Self, S3Error> {
        let text = |name| header_text(headers, name);
        let part = part.map(|number| {
            let number = number.parse().ok().filter(|number| (1..=10_000).contains(number));
            let message = "Part number must be an integer between 1 and 10000, inclusive";
            number.ok_or_else(|| bad_request("InvalidArgument", message))
        });
        let read = Self {
            if_match: text(header::IF_MATCH).map(tags),
            if_none_match: text(header::IF_NONE_MATCH).map(tags),
            if_modified_since: text(header::IF_MODIFIED_SINCE).and_then(date),
            if_unmodified_since: text(header::IF_UNMODIFIED_SINCE).and_then(date),
            if_range: text(header::IF_RANGE).and_then(version),
            range: text(header::RANGE).and_then(range),
            part: part.transpose()?,
            size: text(SIZE).map(size).transpose()?,
            modified: text(MODIFIED).map(modified).transpose()?,
        };
        match read.part.is_some() && headers.contains_key(header::RANGE) {
            true => {
                Err(bad_request("InvalidRequest", "Cannot specify both Range header and partNumber query parameter"))
            }
            false => Ok(read),
        }
    }

    /// The number of the part that is wanted.
    pub(super) fn part(&self) -> Option<u32> {
        self.part
    }

    /// The condition of a PutObject.
    ///
    /// # Errors
    /// `NotImplemented` for a condition that the database does not check in the same step as the change;
    /// `PreconditionFailed` for a weak etag, which never allows a change.
    pub(super) fn of_put(&self) -> Result<Precondition, S3Error> {
        match (&self.if_match, &self.if_none_match) {
            (None, None) => Ok(Precondition::None),
            (Some(Tags::Any), None) => Ok(Precondition::Present),
            (None, Some(Tags::Any)) => Ok(Precondition::Absent),
            (Some(Tags::List(list)), None) => match &list[..] {
                [Tag { is_weak: false, value }] => Ok(Precondition::Etag(value.clone())),
                list if list.iter().all(|tag| tag.is_weak) => Err(S3Error::new(S3ErrorCode::PreconditionFailed)),
                _ => Err(not_offered("If-Match is offered with one etag only")),
            },
            (None, Some(Tags::List(list))) => match &list[..] {
                [Tag { value, .. }] => Ok(Precondition::OtherEtag(value.clone())),
                _ => Err(not_offered("If-None-Match is offered with * and with one etag only")),
            },
            (Some(_), Some(_)) => Err(not_offered("If-Match and If-None-Match are not offered together")),
        }
    }

    /// The condition of a DeleteObject.
    ///
    /// # Errors
    /// Those of [`Self::of_put`].
    pub(super) fn of_delete(&self) -> Result<DeleteCondition, S3Error> {
        Ok(DeleteCondition { precondition: self.of_put()?, size: self.size, modified: self.modified })
    }

    /// The header of the condition that S3 looks at first.
    pub(super) fn first_name(&self) -> Option<&'static str> {
        match self {
            Self { if_match: Some(_), .. } => Some("If-Match"),
            Self { if_unmodified_since: Some(_), .. } => Some("If-Unmodified-Since"),
            Self { if_none_match: Some(_), .. } => Some("If-None-Match"),
            Self { size: Some(_), .. } => Some(IF_MATCH_SIZE),
            Self { modified: Some(_), .. } => Some(IF_MATCH_MODIFIED),
            _ => None,
        }
    }

    /// An error if the object must not be sent.
    pub(super) fn check(&self, etag: Option<&str>, modified: Option<i64>) -> Result<(), S3Error> {
        let changed_after = |since: i64| modified.is_some_and(|modified| modified > since);
        let holds = match (&self.if_match, self.if_unmodified_since) {
            (Some(tags), _) => tags.match_strongly(etag),
            (None, Some(since)) => !changed_after(since),
            (None, None) => true,
        };
        if !holds {
            return Err(S3Error::with_message(
                S3ErrorCode::PreconditionFailed,
                "At least one of the pre-conditions you specified did not hold",
            ));
        }
        let is_news = match (&self.if_none_match, self.if_modified_since) {
            (Some(tags), _) => !tags.match_weakly(etag),
            (None, Some(since)) => changed_after(since),
            (None, None) => true,
        };
        if is_news { Ok(()) } else { Err(S3Error::new(S3ErrorCode::NotModified)) }
    }

    /// The part of an object of this size that is sent. `place`: where the part is that is wanted, if the object was uploaded
    /// in parts.
    ///
    /// # Errors
    /// `invalid_range` if the object has no such bytes, or no such part.
    pub(super) fn choose(
        &self,
        size: u64,
        etag: Option<&str>,
        modified: Option<i64>,
        place: Option<Range<u64>>,
    ) -> Result<Choice, Error> {
        let beyond = || Error::from(ErrorCode::InvalidRange);
        match (self.part, self.range) {
            (Some(_), _) if place.as_ref().is_some_and(|place| !place.is_empty()) => {
                return Ok(Choice::Range(place.unwrap_or_default()));
            }
            (Some(_), _) if place.is_some() => return Ok(Choice::Whole),
            // An object that was put in one piece has one part.
            (Some(1), _) if size == 0 => return Ok(Choice::Whole),
            (Some(1), _) => return Ok(Choice::Range(0..size)),
            (Some(_), _) => {
                return Err(Error::new(ErrorCode::InvalidRange, "the requested part number is not satisfiable"));
            }
            (None, None) => return Ok(Choice::Whole),
            (None, Some(_)) => {}
        }
        let is_same = match &self.if_range {
            None => true,
            Some(Version::Tag(tag)) => !tag.is_weak && etag == Some(tag.value.as_str()),
            Some(Version::Time(time)) => modified == Some(*time),
        };
        let Some(range) = self.range.filter(|_| is_same) else { return Ok(Choice::Whole) };
        let (first, end) = match range {
            Wanted::From(first) => (first, size),
            Wanted::Within(first, last) => (first, last.saturating_add(1).min(size)),
            Wanted::Last(0) => return Err(beyond()),
            Wanted::Last(count) => (size.saturating_sub(count), size),
        };
        if first >= size { Err(beyond()) } else { Ok(Choice::Range(first..end)) }
    }
}

/// The condition of a change, as the route has read it.
///
/// # Errors
/// Those of [`Conditions::of_put`].
pub(super) fn of_change(extensions: &Extensions) -> Result<Precondition, S3Error> {
    extensions.get::<Conditions>().map_or(Ok(Precondition::None), Conditions::of_put)
}

/// The size that an object must have to be deleted. A malformed condition of a read is ignored; this one is refused, because
/// the object would be gone.
fn size(text: &str) -> Result<u64, S3Error> {
    let number = || bad_request("InvalidArgument", format!("`{IF_MATCH_SIZE}` is not a number of bytes"));
    text.trim().parse().map_err(|_| number())
}

/// The time of the last change that an object must have to be deleted; refused when malformed, for the same reason.
fn modified(text: &str) -> Result<i64, S3Error> {
    date(text).ok_or_else(|| bad_request("InvalidArgument", format!("`{IF_MATCH_MODIFIED}` is not a date of HTTP")))
}

/// What If-Range names: one etag, or a date.
fn version(text: &str) -> Option<Version> {
    if let Some(time) = date(text) {
        return Some(Version::Time(time));
    }
    match tags(text) {
        Tags::List(mut list) if list.len() == 1 => list.pop().map(Version::Tag),
        // Names nothing that the object could be: the whole is sent.
        _ => Some(Version::Time(i64::MIN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: i64 = 784_111_777; // Sun, 06 Nov 1994 08:49:37 GMT

    fn read(headers: &[(HeaderName, &str)]) -> Conditions {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        Conditions::read(&headers, None).unwrap()
    }

    fn code(headers: &[(HeaderName, &str)]) -> Option<String> {
        read(headers).check(Some("e"), Some(AT)).err().map(|e| e.code().as_str().to_owned())
    }

    #[test]
    fn the_stronger_condition_decides() {
        let (before, same) = ("Sun, 06 Nov 1994 08:49:36 GMT", "Sun, 06 Nov 1994 08:49:37 GMT");
        let (failed, unmodified) = (Some("PreconditionFailed".to_owned()), Some("NotModified".to_owned()));
        assert_eq!(code(&[]), None);
        assert_eq!(code(&[(header::IF_MATCH, "\"e\""), (header::IF_UNMODIFIED_SINCE, before)]), None);
        for missed in ["\"o\"", "W/\"e\"", "\"o\", W/\"e\"", "", "o"] {
            assert_eq!(code(&[(header::IF_MATCH, missed)]), failed, "{missed}");
        }
        for met in ["*", "\"e\"", "\"o\", \"e\"", "e", "o,e"] {
            assert_eq!(code(&[(header::IF_MATCH, met)]), None, "{met}");
        }
        assert_eq!(code(&[(header::IF_UNMODIFIED_SINCE, before)]), failed);
        for met in ["\"e\"", "W/\"e\"", "\"o\", \"e\"", "*"] {
            assert_eq!(code(&[(header::IF_NONE_MATCH, met)]), unmodified, "{met}");
        }
        assert_eq!(code(&[(header::IF_NONE_MATCH, "\"o\""), (header::IF_MODIFIED_SINCE, same)]), None);
        assert_eq!(code(&[(header::IF_MODIFIED_SINCE, before)]), None);
        for form in [same, "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(code(&[(header::IF_MODIFIED_SINCE, form)]), unmodified, "{form}");
        }
        for none in ["yesterday", "0", ""] {
            assert_eq!(code(&[(header::IF_MODIFIED_SINCE, none)]), None, "{none}");
            assert_eq!(code(&[(header::IF_UNMODIFIED_SINCE, none)]), None, "{none}");
        }
    }

    #[test]
    fn ranges_are_cut_to_the_object() {
        let choose =
            |text: &str| read(&[(header::RANGE, text)]).choose(7, Some("e"), Some(AT), None).map_err(|e| e.code());
        for (text, wanted) in [
            ("bytes=0-1", 0..2),
            ("Bytes=0-1", 0..2),
            ("bytes=5-", 5..7),
            ("bytes=5-100", 5..7),
            ("bytes=0-9223372036854775808", 0..7),
            ("bytes=0-99999999999999999999999", 0..7),
            ("bytes=-3", 4..7),
            ("bytes=-100", 0..7),
        ] {
            assert_eq!(choose(text), Ok(Choice::Range(wanted)), "{text}");
        }
        for ignored in [
            "items=0-1",
            "bytes= -1",
            "bytes=0 -1",
            "bytes=5-2",
            "bytes=abc",
            "bytes=",
            "bytes=-",
            "bytes=0-0,2-3",
            "none",
            "bytes=+1-2",
        ] {
            assert_eq!(choose(ignored), Ok(Choice::Whole), "{ignored}");
        }
        for beyond in ["bytes=7-", "bytes=7-8", "bytes=-0"] {
            assert_eq!(choose(beyond), Err(ErrorCode::InvalidRange), "{beyond}");
        }
    }

    #[test]
    fn a_range_of_another_version_is_the_whole() {
        let choose = |version: &str| {
            let headers = [(header::RANGE, "bytes=5-"), (header::IF_RANGE, version)];
            read(&headers).choose(7, Some("e"), Some(AT), None).unwrap()
        };
        for same in ["\"e\"", "Sun, 06 Nov 1994 08:49:37 GMT"] {
            assert_eq!(choose(same), Choice::Range(5..7), "{same}");
        }
        for other in ["\"o\"", "W/\"e\"", "Sun, 06 Nov 1994 08:49:38 GMT", "\"e\", \"o\"", "*", ""] {
            assert_eq!(choose(other), Choice::Whole, "{other}");
        }
    }

    #[test]
    fn an_object_in_one_piece_has_one_part() {
        let choose = |number: &str, size| {
            let part = Conditions::read(&HeaderMap::new(), Some(number)).map_err(|e| e.code().as_str().to_owned())?;
            part.choose(size, None, None, None).map_err(|e| e.code().row().s3.to_owned())
        };
        assert_eq!(choose("1", 5), Ok(Choice::Range(0..5)));
        assert_eq!(choose("1", 0), Ok(Choice::Whole));
        assert_eq!(choose("2", 5), Err("InvalidRange".to_owned()));
        for bad in ["0", "10001", "-1", "x", ""] {
            assert_eq!(choose(bad, 5), Err("InvalidArgument".to_owned()), "{bad}");
        }
        let headers = HeaderMap::from_iter([(header::RANGE, "bytes=0-1".parse().unwrap())]);
        assert_eq!(Conditions::read(&headers, Some("1")).unwrap_err().code().as_str(), "InvalidRequest");
    }
}
