//! Questions to the person at the terminal.

use std::io::{IsTerminal as _, stdin};

use crate::{errors::Failure, terminal};

/// Ask a yes-or-no question; on "no", print that everything stays as it is.
pub(crate) fn ask(question: &str) -> Result<bool, Failure> {
    if !stdin().is_terminal() {
        let problem = format!("there is no terminal to ask on: {question}");
        return Err(Failure::bad_input(problem).next("Add --yes to do it unasked."));
    }
    terminal::say(&format!("{question} [y/N]"));
    let mut answer = String::new();
    stdin().read_line(&mut answer).map_err(|source| Failure::failed("cannot read the answer").because(source))?;
    let agreed = matches!(answer.trim(), "y" | "Y" | "yes");
    if !agreed {
        terminal::say("nothing was done");
    }
    Ok(agreed)
}
