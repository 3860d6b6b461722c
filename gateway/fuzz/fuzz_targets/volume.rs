//! What a disk answers where a volume's superblock or an extent is to be. Checksums are not compared, so fields get any values.
#![no_main]

use mantle_volumes::{Extent, Generation, Geometry, Header, SegmentId, Superblock, VolumeId, verify};

libfuzzer_sys::fuzz_target!(|input: (u32, &[u8])| {
    let (length, bytes) = input;
    if let Ok(read) = Superblock::decode(bytes) {
        assert_eq!(Superblock::decode(&read.encode()), Ok(read));
    }
    let Some(header) = Header::decode(bytes) else { return };
    assert_eq!(Header::decode(&header.encode()), Some(header));
    let Some(geometry) = Geometry::new(1024, 256 << 20) else { return };
    let segment = SegmentId { volume: VolumeId(1), number: 0 };
    for (length, generation) in
        [(length, header.generation), (header.length, header.generation), (length, Generation { timeline: 1, id: 1 })]
    {
        if let Ok(data) = verify(Extent { segment, block: 0, length }, geometry, generation, bytes) {
            assert_eq!(bytes[data].len(), length as usize);
        }
    }
});
