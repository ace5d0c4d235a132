//! Compiles `muster/v1/*.proto` with protox, a replacement of the system's protoc, and `src/process/nss.c` for static
//! programs.
#![allow(missing_docs, reason = "a build script has no readers of its documentation")]

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    messages()?;
    if is_static_glibc() {
        // The program has no call to it: only whole-archive keeps the linker from dropping it.
        cc::Build::new().file(NSS).link_lib_modifier("+whole-archive").try_compile("muster_nss")?;
    }
    println!("cargo::rerun-if-changed={NSS}");
    Ok(())
}

/// Source that keeps a static program away from the machine's NSS modules.
const NSS: &str = "src/process/nss.c";

fn is_static_glibc() -> bool {
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    features.split(',').any(|feature| feature == "crt-static")
        && env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu")
}

fn messages() -> Result<(), Box<dyn Error>> {
    let files = ["model", "enrollment", "swarm", "control_plane", "agent_link", "fleet", "maintenance"];
    let files = files.map(|name| format!("muster/v1/{name}.proto"));
    let descriptors = protox::compile(&files, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .btree_map(".")
        // Secret: src/convert shows what may be shown.
        .skip_debug([".muster.v1.SwarmTokens", ".muster.v1.AdminConf"])
        .compile_fds(descriptors)?;
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    Ok(())
}
