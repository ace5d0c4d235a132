//! Answers of the stand-in against recordings of a real API server, and what no recording shows.

mod behaviour;
mod client;
mod recordings;
mod rockoon;
mod tungsten_fabric;
