//! The XML documents of requests: their digests, and their form. `s3s` overlooks the digests, and misreads CDATA, references
//! beyond the first plane and text after the document's end. So a document is read here, refused if anything in it is not
//! understood, and passed on in a plain form: no prefixes, attributes, comments or references but those that XML demands.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use mantle_types::name::is_xml;
use quick_xml::{
    NsReader,
    escape::{escape, resolve_predefined_entity},
    events::{BytesStart, Event},
    name::ResolveResult,
};
use s3s::{S3Error, s3_error};

use super::{checksums, errors, framing::Framing};
use crate::data::Expected;

const NAMESPACE: &[u8] = b"http://s3.amazonaws.com/doc/2006-03-01/";

/// The elements that a document may have, each with its ancestors: `Delete/Object/Key`.
pub(super) type Elements = &'static [&'static str];

pub(super) const DELETE: Elements = &[
    "Delete",
    "Delete/Quiet",
    "Delete/Object",
    "Delete/Object/Key",
    "Delete/Object/VersionId",
    "Delete/Object/ETag",
    "Delete/Object/LastModifiedTime",
    "Delete/Object/Size",
];
pub(super) const COMPLETE: Elements = &[
    "CompleteMultipartUpload",
    "CompleteMultipartUpload/Part",
    "CompleteMultipartUpload/Part/ETag",
    "CompleteMultipartUpload/Part/PartNumber",
    "CompleteMultipartUpload/Part/ChecksumCRC32",
    "CompleteMultipartUpload/Part/ChecksumCRC32C",
    "CompleteMultipartUpload/Part/ChecksumCRC64NVME",
    "CompleteMultipartUpload/Part/ChecksumMD5",
    "CompleteMultipartUpload/Part/ChecksumSHA1",
    "CompleteMultipartUpload/Part/ChecksumSHA256",
    "CompleteMultipartUpload/Part/ChecksumSHA512",
    "CompleteMultipartUpload/Part/ChecksumXXHASH128",
    "CompleteMultipartUpload/Part/ChecksumXXHASH3",
    "CompleteMultipartUpload/Part/ChecksumXXHASH64",
];
pub(super) const ACL: Elements = &[
    "AccessControlPolicy",
    "AccessControlPolicy/Owner",
    "AccessControlPolicy/Owner/ID",
    "AccessControlPolicy/Owner/DisplayName",
    "AccessControlPolicy/AccessControlList",
    "AccessControlPolicy/AccessControlList/Grant",
    "AccessControlPolicy/AccessControlList/Grant/Grantee",
    "AccessControlPolicy/AccessControlList/Grant/Grantee/ID",
    "AccessControlPolicy/AccessControlList/Grant/Grantee/DisplayName",
    "AccessControlPolicy/AccessControlList/Grant/Permission",
];
pub(super) const TAGGING: Elements =
    &["Tagging", "Tagging/TagSet", "Tagging/TagSet/Tag", "Tagging/TagSet/Tag/Key", "Tagging/TagSet/Tag/Value"];
pub(super) const CREATE_BUCKET: Elements =
    &["CreateBucketConfiguration", "CreateBucketConfiguration/LocationConstraint"];

/// Reads a body and compares it with its digests.
///
/// # Errors
/// `MaxMessageLengthExceeded`; the error of a digest, or of the framing.
pub(super) async fn read(
    mut body: s3s::Body,
    bytes_max: usize,
    expected: Expected,
    framing: Framing,
) -> Result<Bytes, S3Error> {
    let (mut document, mut hashers) = (BytesMut::new(), expected.hashers());
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|cause| framing.failure(cause.as_ref()))?;
        if document.len() + chunk.len() > bytes_max {
            return Err(s3_error!(MaxMessageLengthExceeded, "The document is over this service's limit."));
        }
        hashers.update(&chunk);
        document.extend_from_slice(&chunk);
    }
    expected.check(hashers).map_err(checksums::failure)?;
    Ok(document.freeze())
}

fn malformed(why: impl std::fmt::Display) -> S3Error {
    let why = errors::printable(&why.to_string()).into_owned();
    s3_error!(
        MalformedXML,
        "The XML you provided was not well-formed or did not validate against our published schema: {why}"
    )
}

/// An element with its ancestors, and the text in it.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) path: String,
    pub(super) text: String,
}

/// A document in its plain form; empty if there is none.
///
/// # Errors
/// `MalformedXML`, also for an element that is not understood.
pub(super) fn plain(document: &[u8], allowed: Elements) -> Result<String, S3Error> {
    Ok(read_plain(document, allowed)?.written)
}

/// The elements of a document, each after those in it; none if there is no document.
///
/// # Errors
/// As [`plain`].
pub(super) fn elements(document: &[u8], allowed: Elements) -> Result<Vec<Element>, S3Error> {
    Ok(read_plain(document, allowed)?.elements)
}

fn read_plain(document: &[u8], allowed: Elements) -> Result<Plain, S3Error> {
    let text = std::str::from_utf8(document).map_err(|_| malformed("it is not UTF-8"))?;
    let mut plain = Plain {
        written: String::with_capacity(text.len()),
        elements: Vec::new(),
        path: Vec::new(),
        text: String::new(),
        allowed,
        is_ended: false,
    };
    if text.trim().is_empty() {
        return Ok(plain);
    }
    if let Some(bad) = text.chars().find(|c| !is_xml(*c)) {
        return Err(malformed(format!("it has the character U+{:04X}", u32::from(bad))));
    }
    let mut reader = NsReader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    loop {
        let (namespace, event) = reader.read_resolved_event().map_err(malformed)?;
        match event {
            Event::Start(element) => plain.open(&namespace, &element)?,
            Event::End(_) => plain.close(),
            Event::Text(text) => plain.text(&text.xml10_content().map_err(malformed)?)?,
            Event::CData(text) => plain.text(&text.xml10_content().map_err(malformed)?)?,
            Event::GeneralRef(reference) => {
                let character = reference.resolve_char_ref().map_err(malformed)?;
                let name = reference.decode().map_err(malformed)?;
                match (character, resolve_predefined_entity(&name)) {
                    (Some(character), _) if is_xml(character) => plain.text(character.encode_utf8(&mut [0; 4]))?,
                    (None, Some(text)) => plain.text(text)?,
                    _ => return Err(malformed(format!("the reference `&{name};` is not known"))),
                }
            }
            Event::Comment(_) | Event::PI(_) | Event::Decl(_) => {}
            Event::DocType(_) => return Err(malformed("a document type is not allowed")),
            Event::Eof if plain.is_ended => return Ok(plain),
            Event::Eof => return Err(malformed("it breaks off")),
            Event::Empty(_) => return Err(malformed("an empty element was not expanded")),
        }
    }
}

/// The plain form as far as it is written.
struct Plain {
    written: String,
    /// Those that are complete.
    elements: Vec<Element>,
    path: Vec<String>,
    /// Of the element that is being read.
    text: String,
    allowed: Elements,
    /// The root element is complete.
    is_ended: bool,
}

impl Plain {
    fn open(&mut self, namespace: &ResolveResult<'_>, element: &BytesStart<'_>) -> Result<(), S3Error> {
        if self.is_ended {
            return Err(malformed("it has two roots"));
        }
        match namespace {
            ResolveResult::Unbound => {}
            ResolveResult::Bound(bound) if bound.as_ref() == NAMESPACE => {}
            _ => return Err(malformed("an element is of another namespace")),
        }
        let name = element.local_name();
        let name = std::str::from_utf8(name.as_ref()).map_err(malformed)?;
        self.path.push(name.to_owned());
        let path = self.path.join("/");
        if !self.allowed.contains(&path.as_str()) {
            return Err(malformed(format!("the element `{path}` is not offered")));
        }
        self.written.extend(["<", name, ">"]);
        self.text.clear();
        Ok(())
    }

    /// The reader has compared the name with that of the beginning.
    fn close(&mut self) {
        let path = self.path.join("/");
        if let Some(name) = self.path.pop() {
            self.written.extend(["</", &name, ">"]);
            self.elements.push(Element { path, text: std::mem::take(&mut self.text) });
        }
        self.is_ended = self.path.is_empty();
    }

    /// Text between elements must be white space, and is left out.
    fn text(&mut self, text: &str) -> Result<(), S3Error> {
        let path = self.path.join("/");
        let below = format!("{path}/");
        let is_container = path.is_empty() || self.allowed.iter().any(|allowed| allowed.starts_with(&below));
        match is_container {
            false => {
                self.written.push_str(&escape(text));
                self.text.push_str(text);
            }
            true if text.trim().is_empty() => {}
            true => return Err(malformed("it has text outside of its elements")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(written: &str) -> Result<String, String> {
        let document = format!("<Delete><Object><Key>{written}</Key></Object></Delete>");
        let plain = plain(document.as_bytes(), DELETE).map_err(|error| error.code().as_str().to_owned())?;
        let inner =
            plain.strip_prefix("<Delete><Object><Key>").and_then(|s| s.strip_suffix("</Key></Object></Delete>"));
        Ok(inner.unwrap().to_owned())
    }

    #[test]
    fn keys_may_be_written_in_every_way() {
        for (written, plain) in [
            ("a<![CDATA[b]]>", "ab"),
            ("<![CDATA[a]]>b", "ab"),
            ("<![CDATA[a&b]]>", "a&amp;b"),
            ("a&amp;b", "a&amp;b"),
            ("&#128578;", "\u{1f642}"),
            ("&#x1F642;", "\u{1f642}"),
            ("a<!-- c -->b", "ab"),
            (" a ", " a "),
            ("&lt;&gt;&quot;&apos;", "&lt;&gt;&quot;&apos;"),
        ] {
            assert_eq!(key(written).as_deref(), Ok(plain), "{written}");
        }
        for bad in ["a\u{1}", "&#1;", "&none;", "&#xFFFE;", "\u{ffff}", "&", "<b/>", "<Key>"] {
            assert_eq!(key(bad), Err("MalformedXML".to_owned()), "{bad}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let check = |text: &str| plain(text.as_bytes(), DELETE).map_err(|error| error.code().as_str().to_owned());
        let all = "<Delete><Object><Key>a</Key></Object></Delete>";
        let in_namespace = all.replace("<Delete>", "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
        let prefixed = "<s:Delete xmlns:s=\"http://s3.amazonaws.com/doc/2006-03-01/\"><s:Object><s:Key>a</s:Key></s:Object></s:Delete>";
        for text in [
            all,
            &in_namespace,
            prefixed,
            &format!("<?xml version=\"1.0\"?>\n{all}\n<!-- end -->"),
            "<Delete>\n<Object>\n<Key>a</Key></Object></Delete>",
        ] {
            assert_eq!(check(text).as_deref(), Ok(all), "{text}");
        }
        assert_eq!(check("").as_deref(), Ok(""));
        assert_eq!(check("<Delete/>").as_deref(), Ok("<Delete></Delete>"));
        for bad in [
            &format!("{all}garbage"),
            &format!("garbage{all}"),
            &format!("{all}{all}"),
            &format!("<!DOCTYPE Delete>{all}"),
            "<Delete>text</Delete>",
            "<Delete><Object><Key>a</Key></Object>",
            "<Delete><Object><Key>a</Object></Key></Delete>",
            "<Delete><New/></Delete>",
            "<Delete xmlns=\"urn:other\"/>",
            "<x:Delete/>",
            "<Other/>",
        ] {
            assert_eq!(check(bad), Err("MalformedXML".to_owned()), "{bad}");
        }
        assert!(plain(b"<Delete>\xff</Delete>", DELETE).is_err());
    }
}
