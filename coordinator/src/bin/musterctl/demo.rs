//! `musterctl demo` (being written).
use crate::failure::Failure;
/// The demo
#[derive(clap::Args)]
pub(crate) struct Args {}
pub(crate) async fn run(_args: Args) -> Result<(), Failure> {
    Ok(())
}
