//! Generates the gRPC types from `indexnode/proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../proto");
    tonic_prost_build::configure().compile_protos(&["../proto/index.proto"], &["../proto"])?;
    Ok(())
}
