//! The head of an S3 request: method, target and headers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mantle_gateway::parsers::head(bytes));
