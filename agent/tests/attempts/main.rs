//! Attempts end to end: the real binary as exec-item, real programs, real files, a real HTTP server.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "that is how tests fail")]

mod ansible;
mod bash;
mod downloader;
mod hosting;
mod mke;
mod output;
mod site;
mod web;
