//! The text of a locator, which the gateway reads from PostgreSQL.
#![no_main]

use mantle_volumes::Locator;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(read) = text.parse::<Locator>() {
        assert_eq!(read.to_string(), text);
        assert!(read.bytes() > 0);
    }
});
