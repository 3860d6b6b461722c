//! A body in chunks (`aws-chunked`): its length, how it is cut into pieces, its bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|body: (u16, u8, &[u8])| {
    let (length, piece, bytes) = body;
    mantle_gateway::parsers::chunks(length, piece, bytes);
});
