//! The first line of a script, which names its interpreter. The kernel's handling of `#!` is reproduced here, because
//! the script file itself lacks the execute permission. An unusable line is refused when a manifest is applied.

/// Longest first line that the kernel reads in full, including the `#!` (BINPRM_BUF_SIZE, less its NUL).
pub const FIRST_LINE_BYTES_MAX: usize = 255;

/// The interpreter of a script, and its one argument before the script's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interpreter<'s> {
    /// Its absolute path.
    pub program: &'s str,
    /// The rest of the line: the kernel passes it as one argument, blanks included.
    pub argument: Option<&'s str>,
}

/// Why a first line is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FirstLineError {
    /// The program after `#!` is missing.
    #[error("'#!' in its first line, and no program behind it")]
    NoProgram,
    /// The path is relative: the kernel would resolve it against its working directory.
    #[error("'#!' in its first line, and no absolute path behind it")]
    NotAbsolute,
    /// The line ends in a carriage return, from an editor of another system.
    #[error("its first line ends in a carriage return, which the program's name would end in too")]
    CarriageReturn,
    /// The kernel would truncate the line.
    #[error("its first line is longer than 255 bytes, more than Linux reads of it")]
    TooLong,
    /// `env` would look for one program with a blank in its name.
    #[error("'env' gets all that follows as one program's name, blanks and options too")]
    EnvOptions,
}

impl FirstLineError {
    /// A correct form of the line.
    #[must_use]
    pub const fn cure(self) -> &'static str {
        match self {
            Self::NoProgram | Self::NotAbsolute => "the whole path: #!/bin/bash, #!/usr/bin/env python3",
            Self::CarriageReturn => "lines that end in a newline alone (dos2unix)",
            Self::TooLong => "a shorter one: options may stand in a second line, 'set -eu'",
            Self::EnvOptions => "'#!/usr/bin/env -S PROGRAM OPTIONS', or the options in a second line",
        }
    }
}

/// Parse the interpreter from a script's first line. None: the line has no `#!`, and bash reads the script.
///
/// # Errors
/// [`FirstLineError`] if the line is unusable.
pub fn interpreter(script: &str) -> Result<Option<Interpreter<'_>>, FirstLineError> {
    let line = script.split('\n').next().unwrap_or_default();
    let Some(named) = line.strip_prefix("#!") else { return Ok(None) };
    if line.len() > FIRST_LINE_BYTES_MAX {
        return Err(FirstLineError::TooLong);
    }
    if line.ends_with('\r') {
        return Err(FirstLineError::CarriageReturn);
    }
    let blanks = [' ', '\t'];
    let named = named.trim_matches(blanks);
    let (program, argument) = named.split_once(blanks).unwrap_or((named, ""));
    let argument = Some(argument.trim_start_matches(blanks)).filter(|argument| !argument.is_empty());
    if program.is_empty() {
        return Err(FirstLineError::NoProgram);
    }
    if !program.starts_with('/') {
        return Err(FirstLineError::NotAbsolute);
    }
    let is_split = |argument: &str| argument.starts_with("-S") || argument.starts_with("--split-string");
    if program.ends_with("/env") && argument.is_some_and(|it| it.contains(blanks) && !is_split(it)) {
        return Err(FirstLineError::EnvOptions);
    }
    Ok(Some(Interpreter { program, argument }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_names_interpreter() {
        let with = |program, argument| Ok(Some(Interpreter { program, argument }));
        for (script, expected) in [
            ("", Ok(None)),
            ("echo\n#!/bin/sh -e", Ok(None)),
            ("# !/bin/sh", Ok(None)),
            ("#!/bin/bash", with("/bin/bash", None)),
            ("#!/bin/bash -e\nfalse\r\n", with("/bin/bash", Some("-e"))),
            ("#! \t/bin/bash \t -e -u \t\n", with("/bin/bash", Some("-e -u"))),
            ("#!/usr/bin/env python3\nprint()", with("/usr/bin/env", Some("python3"))),
            ("#!/usr/bin/env -S python3 -u\n", with("/usr/bin/env", Some("-S python3 -u"))),
            ("#!/usr/bin/env python3 -u\n", Err(FirstLineError::EnvOptions)),
            ("#!\n", Err(FirstLineError::NoProgram)),
            ("#!bash\n", Err(FirstLineError::NotAbsolute)),
            ("#!/bin/bash\r\necho\r\n", Err(FirstLineError::CarriageReturn)),
        ] {
            assert_eq!(interpreter(script), expected, "{script:?}");
        }
        let longest = |bytes: usize| format!("#!/{}\n", "x".repeat(bytes - 3));
        assert!(interpreter(&longest(FIRST_LINE_BYTES_MAX)).is_ok());
        assert_eq!(interpreter(&longest(FIRST_LINE_BYTES_MAX + 1)), Err(FirstLineError::TooLong));
    }
}
