//! `musterctl artifacts serve`: a small file server, for the demo and for a first fleet that has no mirror.

mod answer;
mod files;
mod server;

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::Subcommand;
use nix::libc::ENOSYS;
use tokio::net::TcpListener;

use crate::{errors::Failure, terminal};
use files::Files;
use server::Limits;

/// Serve files to the downloader
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ArtifactsCommand,
}

#[derive(Subcommand)]
enum ArtifactsCommand {
    Serve(ServeArgs),
}

/// Serve the files of a directory over HTTP, until Ctrl-C
///
/// Plain HTTP, read-only, with Range requests: machines check every artifact against the manifest's sha256, so the
/// way need not be trusted. Whoever reaches the address can read the regular files of the directory, and nothing that
/// its links lead out to.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl artifacts serve --dir /srv/artifacts --listen 10.0.0.1:8080
In the manifest, then:
  params: {url: \"http://10.0.0.1:8080/images.tar\", sha256: \"…\", path: /var/cache/muster/images.tar}")]
struct ServeArgs {
    /// The directory
    #[arg(long)]
    dir: PathBuf,
    /// Address and port; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Write the URL to this file once it is served
    #[arg(long, value_name = "FILE")]
    url_file: Option<PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let ArtifactsCommand::Serve(args) = args.command;
    serve(args).await
}

async fn serve(args: ServeArgs) -> Result<(), Failure> {
    let shown = args.dir.display();
    if !args.dir.is_dir() {
        return Err(Failure::bad_input(format!("{shown} is not a directory")).next("--dir names the files to serve."));
    }
    let files = Files::of(&args.dir).map_err(|source| {
        let next = match source.raw_os_error() {
            Some(ENOSYS) => {
                "This takes Linux 5.6 or later: serve the files from another machine, or by another server."
            }
            _ => "--dir names the files to serve.",
        };
        Failure::failed(format!("cannot serve {shown}")).because(source).next(next)
    })?;
    let listener = TcpListener::bind(args.listen).await.map_err(|source| {
        let next = match source.kind() {
            io::ErrorKind::PermissionDenied => "Ports below 1024 are root's: take a higher one.",
            _ => {
                "--listen ADDRESS:PORT takes an address of this machine (0.0.0.0 for all of them) and a port where no \
                 other program listens (0 takes a free one)"
            }
        };
        Failure::failed(format!("cannot listen on {}", args.listen)).because(source).next(next)
    })?;
    let address = listener.local_addr().map_err(|source| Failure::failed("no local address").because(source))?;
    let url = format!("http://{address}/");
    if let Some(file) = &args.url_file {
        write_whole(file, &url)
            .map_err(|source| Failure::failed(format!("cannot write {}", file.display())).because(source))?;
    }
    terminal::print(&url)?;
    server::run(&listener, files, Limits::default()).await;
    Ok(())
}

/// Whoever waits for the file finds it whole or not at all.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}
