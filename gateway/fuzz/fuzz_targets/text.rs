//! Names, hosts, tokens of listings, and tags.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| mantle_gateway::parsers::text(text));
