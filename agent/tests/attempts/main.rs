//! Attempts as the agent makes them: the real binary as exec-item, real programs, real files, a real HTTP server.

mod bash;
mod hosting;
mod output;
mod site;
