//! Generates the types of the service between replicas from `proto/peer.proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/peer.proto");
    // The simulation answers for the kernel's randomness, and crates look that function up by its name at run time.
    println!("cargo:rustc-link-arg-tests=-Wl,--export-dynamic-symbol=getrandom");
    tonic_prost_build::configure().bytes(".").compile_protos(&["proto/peer.proto"], &["proto"])?;
    Ok(())
}
