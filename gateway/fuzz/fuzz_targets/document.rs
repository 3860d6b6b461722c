//! The XML document of an S3 request.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mantle_gateway::parsers::document(bytes));
