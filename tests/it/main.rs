//! Hermetic tests over the whole workspace. Each module is one subject.

mod model;
mod startup;
mod tidy;
