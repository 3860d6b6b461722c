//! A message of the change stream, which an IndexNode reads from PostgreSQL.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(read) = mantle_types::message::decode(bytes) {
        assert_eq!(mantle_types::message::decode(&mantle_types::message::encode(&read)).ok(), Some(read));
    }
});
