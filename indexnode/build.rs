//! Generates the types of the service between replicas from `proto/peer.proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/peer.proto");
    tonic_prost_build::configure().bytes(".").compile_protos(&["proto/peer.proto"], &["proto"])?;
    Ok(())
}
