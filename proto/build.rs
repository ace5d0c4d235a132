//! Compiles `muster/v1/*.proto` with protox, so that no system protoc is needed.
#![allow(missing_docs, reason = "a build script has no readers of its documentation")]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["model", "enrollment", "agent_link", "fleet"].map(|name| format!("muster/v1/{name}.proto"));
    let descriptors = protox::compile(&files, ["."])?;
    tonic_prost_build::configure().btree_map(".").compile_fds(descriptors)?;
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    Ok(())
}
